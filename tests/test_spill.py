"""State beyond memory: no net answer depends on what is in memory, on how long late events wait for the shelf, or on
where a runtime ended and went on from its last version.
"""

import shutil
import tempfile
from collections import Counter
from random import Random
from unittest import mock

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
