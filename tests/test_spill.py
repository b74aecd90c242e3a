"""State beyond memory: no net answer depends on what is in memory, on how long late events wait for the shelf, or on
where a runtime ended and went on from its last version.
"""

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.runtime import memory as memory_module
from latecomer.storage.shelf import MemoryShelf
from tests.script import start, tell
from tests.squeeze import squeezed
from tests.strategies import act
from tests.test_levels import ESTIMATES, Ledger, net, property_of, run


def told_late(outs):
    rows = [row for out in outs for row in out.late.to_pylist()]
    return Counter(repr({k: v for k, v in row.items() if k not in ESTIMATES}) for row in rows)


def choices(case):
    """Random choices that go with a case, so that a failure can be repeated."""
    return Random(repr(case.steps))


def checked(case, restore_after):
    """:func:`run`, with all invariants of state asserted after each step."""
    runtime, outs = case.runtime(), []
    for number, (action, _) in enumerate(case.batches()):
        outs.append(act(runtime, action))
        if number in restore_after:
            runtime = lc.Runtime.restore(runtime.snapshot())
        if runtime._engine is not None:
            runtime._engine._check()
    return [*outs, runtime.finish()]


@property_of(queries=4)
def test_no_net_answer_depends_on_waiting(case):
    random = choices(case)
    with squeezed(""):
        plain = run(case)
    points = {n for n in range(len(case.steps)) if random.random() < 0.2}
    with squeezed("spilling", random.choice([0, 1, 3, 1000]), random.choice([0, 1, 4, 1000])):
        waited = checked(case, points)
    for name, reference in case.references().items():
        assert net(plain, name) == net(waited, name)
        ledger = Ledger(name)
        for out in waited:
            ledger.read(out)
        if not isinstance(reference.level, lc.Aggressive):
            assert all(op == "insert" for op, _ in ledger.order), f"{name} is final, yet deletes"
    assert told_late(plain) == told_late(waited)


def crashing(case, folder, random):
    """All outputs of a run that writes versions, ends at random points and goes on from the last version, with the
    outputs after it forgotten, as a sink forgets that commits together with the version.
    """
    actions = [action for action, _ in case.batches()]
    spill = lc.Spill(folder, batch=random.choice([0, 2, 1000]), wait=random.choice([0, 3, 1000]))
    stream, queries = case.runtime().stream, case.runtime().queries
    memory = random.choice([None, "1 MiB"])
    runtime = lc.Runtime(stream, queries, spill=spill, memory=memory)
    runtime.checkpoint({"done": 0})
    outs, at, crashes = [], 0, random.choice([0, 1, 2, 3])
    while at < len(actions):
        outs.append(act(runtime, actions[at]))
        at += 1
        if random.random() < 0.4:
            runtime.checkpoint({"done": at})
        if crashes and random.random() < 0.3:
            crashes -= 1
            runtime = lc.Runtime.open(spill, memory=memory)
            at = runtime.note["done"]
            outs = outs[:at]
    return [*outs, runtime.finish()]


@property_of(queries=3)
def test_versions_lose_nothing_and_repeat_nothing(case):
    random = choices(case)
    plain = run(case)
    folder = tempfile.mkdtemp()
    try:
        with mock.patch.object(memory_module, "_CARRIED", random.choice([0, 1000, 1 << 20])):
            crashed = crashing(case, folder, random)
    finally:
        shutil.rmtree(folder)
    for name in case.references():
        assert net(plain, name) == net(crashed, name)
    assert told_late(plain) == told_late(crashed)


def waiting(level, query, words):
    """What a runtime tells whose late events wait for ever, unless the stream ends."""
    with squeezed("spilling", 1000, 1000):
        return tell(start(f"PATTERN {query}", level), words)


def test_a_final_level_releases_nothing_that_a_waiting_negative_may_kill():
    query = "SEQ(A a, !B b, C c) WITHIN 4 s"
    assert waiting(lc.Conservative(), query, "a1 c3 z30 b2 <B,10> .") == {}
    assert waiting(lc.Conservative(), query, "a1 c3 z30 b4 <B,3> <B,4> .") == {"<B,3>": ["+a1 c3"]}


def test_what_a_waiting_event_needs_is_kept_until_it_enters():
    # At 140 nothing below 10 is needed any more, but for what waits.
    assert waiting(lc.Aggressive(80), "SEQ(A a, B b) WITHIN 50 s", "b40 z60 a1 z140 .") == {".": ["+a1 b40"]}


def test_events_in_time_do_not_wait():
    assert waiting(lc.Aggressive(9), "SEQ(A a, B b) WITHIN 9 s", "a1 z2 b3 .") == {"b3": ["+a1 b3"]}


def test_late_events_enter_together_once_there_are_enough_of_them():
    words = "b3 z60 z61 a1 a2 ."
    with squeezed("spilling", 1, 1000):
        answers = tell(start("PATTERN SEQ(A a, B b) WITHIN 9 s", lc.Aggressive(90)), words)
    assert answers == {"a2": ["+a1 b3", "+a2 b3"]}


def test_late_events_enter_once_the_clock_has_moved():
    words = "b3 z60 a1 z64 z65 ."
    with squeezed("spilling", 1000, 5):
        answers = tell(start("PATTERN SEQ(A a, B b) WITHIN 9 s", lc.Aggressive(90)), words)
    assert answers == {"z65": ["+a1 b3"]}


@property_of(queries=3)
def test_a_runtime_on_a_shelf_that_somebody_else_keeps(case):
    """As Spark does it: after each batch only the residue and the shelf stay."""
    plain = run(case)
    shelf, outs = MemoryShelf(), []
    with mock.patch.object(memory_module, "_CARRIED", choices(case).choice([0, 300, 1000])):
        outs = resumed(case, shelf)
    for name in case.references():
        assert net(plain, name) == net(outs, name)
    assert told_late(plain) == told_late(outs)


def resumed(case, shelf):
    outs = []
    runtime = lc.Runtime.resume(case.runtime().snapshot(), shelf)
    for action, _ in case.batches():
        outs.append(act(runtime, action))
        residue, slots = runtime.residue()
        assert sorted(slots) == sorted(shelf.slots)
        runtime = lc.Runtime.resume(residue, shelf)
    outs.append(runtime.finish())
    return outs


def matched(k):
    return [{"id": i, "type": "AC"[i % 2], "ts": i, "k": str(i // 2)} for i in range(k, k + 500)]


def hidden(folder):
    """The folder's blobs are away, as when a disk or a network fails; the returned call brings them back."""
    blobs, away = folder / "blobs", folder / "away"
    blobs.rename(away)

    def back():
        blobs.mkdir(exist_ok=True)
        for file in away.iterdir():
            file.rename(blobs / file.name)

    return back


def test_a_call_that_ends_half_way_is_not_gone_on_from(tmp_path):
    query = lc.Query("PATTERN SEQ(A a, C c) WHERE [k] WITHIN 100 s", name="q", level=lc.KSlack("1000000 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, memory="1 MiB", spill=tmp_path / "state")
    runtime._spilling = replace(runtime._spilling, budget=0)
    for start_at in range(0, 3000, 500):
        runtime.process(matched(start_at))
    runtime.checkpoint({"done": 3000})
    last = [{"id": -1, "type": "A", "ts": 1_060_000, "k": "x"}]
    back = hidden(tmp_path / "state")
    with pytest.raises(lc.StateError, match="blobs"):
        runtime.process(last)
    back()
    for call in (lambda: runtime.process(last), runtime.finish, runtime.snapshot, runtime.checkpoint):
        with pytest.raises(lc.StateError, match="ended half-way"):
            call()
    again = lc.Runtime.open(tmp_path / "state")
    assert again.process(last).changes.num_rows + again.finish().changes.num_rows == 1500


def test_a_finish_that_had_no_room_may_be_repeated(tmp_path):
    query = lc.Query("PATTERN SEQ(A a, B b) WITHIN 9 s", name="q", level=lc.Aggressive(10_000))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, spill=lc.Spill(tmp_path / "state", wait=10_000))
    runtime._spilling = replace(runtime._spilling, budget=0)
    rows = [{"id": 1, "type": "B", "ts": 30}, {"id": 2, "type": "Z", "ts": 5000}, {"id": 3, "type": "A", "ts": 25}]
    for row in rows:
        runtime.process([row])
    full = mock.patch.object(memory_module.Memory, "make_room", side_effect=lc.StateError("no space is left"))
    with full, pytest.raises(lc.StateError, match="no space"):
        runtime.finish()
    assert runtime.finish().changes.column("events").to_pylist() == [[3, 1]]


def test_who_cannot_open_a_folder_leaves_it_to_its_writer(tmp_path):
    query = lc.Query("PATTERN SEQ(A a) WITHIN 9 s", name="q", level=lc.Aggressive(10))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, spill=tmp_path / "state")
    runtime.checkpoint()
    for options in ({"memory": "64 MiBs"}, {"version": 7}):
        with pytest.raises(lc.LatecomerError):
            lc.Runtime.open(tmp_path / "state", **options)
    assert runtime.checkpoint() == 2


@pytest.mark.parametrize(
    "options", [{"number": 1.5}, {"number": True}, {"number": -1}, {"note": "x"}, {"note": {1: 2}}]
)
def test_versions_that_could_not_be_found_again_are_refused(tmp_path, options):
    query = lc.Query("PATTERN SEQ(A a) WITHIN 9 s", name="q", level=lc.Aggressive(10))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, spill=tmp_path / "state")
    with pytest.raises(lc.ConfigError, match=r"number=|note="):
        runtime.checkpoint(**options)


def test_a_state_of_an_earlier_release_goes_on(tmp_path):
    """``states/packed-2`` was written by a release whose parts were packed in format 2, from the rows below."""

    def rows(n, seed, start):
        rng = Random(seed)
        return [
            {
                "id": f"e{start + i}",
                "type": rng.choice("ABC"),
                "ts": (start + i) // 4 - (rng.randrange(60) if rng.random() < 0.2 else 0) + 1000,
                "key": f"k{rng.randrange(12)}",
                "price": rng.choice([None, 1.5, 7.25]),
            }
            for i in range(n)
        ]

    folder = tmp_path / "state"
    shutil.copytree(Path(__file__).parent / "states" / "packed-2", folder)
    told = Counter(json.loads((folder / "told.json").read_text()))
    batches = [rows(300, k, 300 * k) for k in range(6)]
    batches[4] = batches[3][::7] + batches[4]  # repeats, whose ids are on the shelf
    runtime = lc.Runtime.open(folder)
    assert runtime.note == {"batch": 3}
    plain = lc.Runtime(runtime.stream, runtime.queries)
    wanted = Counter()
    for number, batch in enumerate(batches):
        for count, one in ((wanted, plain), (told, runtime)):
            if one is runtime and number < 4:
                continue
            for change in one.process(batch).changes.to_pylist():
                count[change["match_id"]] += 1 if change["op"] == "insert" else -1
        if number == 4:
            runtime.checkpoint()
            runtime = lc.Runtime.open(folder)
    for count, one in ((wanted, plain), (told, runtime)):
        for change in one.finish().changes.to_pylist():
            count[change["match_id"]] += 1 if change["op"] == "insert" else -1
    assert +told == +wanted
    assert set(told.values()) <= {0, 1} and sum(told.values()) > 100
    assert runtime.counters["duplicates"] == plain.counters["duplicates"] > 20


def test_where_late_events_are_amended_none_waits():
    # Event a20 is in time and its partner on the shelf; b23 is beyond the promise, and a20 must be there when it comes.
    told = waiting(lc.Aggressive(60, on_late="amend"), "SEQ(A a, B b) WITHIN 5 s", "b22 z50 a20 z84 b23 .")
    assert told == {"a20": ["+a20 b22"], "b23": ["+a20 b23"]}


def stream_of(first, n):
    """Events on a thousand keys, one in twenty late by up to 200,000 s."""
    rng = np.random.default_rng(first)
    now = np.arange(first, first + n)
    back = rng.integers(0, 200_000, n) * (rng.random(n) < 0.05)
    columns = {"id": now, "type": rng.choice(list("ABC"), n), "ts": np.maximum(now - back, 0)}
    return pa.table(columns | {"k": rng.integers(0, 1000, n)})


def test_the_budget_holds(tmp_path):
    """After each batch, and with state several times as large."""
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 9000 s", name="q", level=lc.Aggressive("200000 s"))
    budget = 4 << 20
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, memory=budget, spill=tmp_path / "state")
    for first in range(0, 90_000, 1_500):
        runtime.process(stream_of(first, 1_500))
        assert runtime.explain()["memory"]["in_memory"] <= 1.1 * budget
    assert runtime.explain()["memory"]["events_on_shelf"] > 40_000


def test_what_one_large_batch_brought_leaves_with_the_next_call(tmp_path):
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 9000 s", name="q", level=lc.Aggressive("200000 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, memory="1 MiB", spill=tmp_path / "state")
    runtime.process(stream_of(0, 40_000))
    assert runtime.explain()["memory"]["in_memory"] > 2 << 20
    runtime.process(stream_of(40_000, 1))
    assert runtime.explain()["memory"]["in_memory"] <= 1.1 * (1 << 20)


def on_the_shelf(tmp_path):
    """A runtime all of whose events have left memory, so that nothing is written together with what is read next."""
    query = lc.Query("PATTERN SEQ(A a, C c) WHERE [k] WITHIN 100 s", name="q", level=lc.Aggressive("1000000 s"))
    spill = lc.Spill(tmp_path / "state", batch=0)
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, memory="1 MiB", spill=spill)
    runtime._spilling = replace(runtime._spilling, budget=0)
    for start_at in range(0, 8_000, 500):
        runtime.process(matched(start_at))
    runtime._engine.memory.make_room(0)
    return runtime


def test_what_was_only_read_leaves_memory_without_being_written(tmp_path):
    runtime = on_the_shelf(tmp_path)
    before = runtime.explain()["memory"]
    late = runtime.process([{"id": -1, "type": "A", "ts": 10, "k": "5"}]).changes
    assert late.column("events").to_pylist() == [[-1, 11]]
    assert runtime.explain()["memory"]["reads"] > before["reads"]
    assert runtime.explain()["memory"]["written_bytes"] == before["written_bytes"]
    assert all(saved.run is None for s in runtime._engine.all_stores() for f in s.frames.values() for saved in f.saved)


def test_late_events_without_partners_read_no_frame(tmp_path):
    """The filters in memory say that no frame on the shelf holds their keys."""
    runtime = on_the_shelf(tmp_path)
    reads = runtime.explain()["memory"]["reads"]
    late = [{"id": -k, "type": "A", "ts": 40 * k, "k": f"new {k}"} for k in range(1, 200)]
    assert not runtime.process(late).changes.num_rows
    assert runtime.explain()["memory"]["reads"] == reads
