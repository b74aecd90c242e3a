"""The kit for users' tests: scripts, clock, sink, restarts, and the assertion that arrival does not matter."""

from __future__ import annotations

import doctest
import itertools
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from random import Random

import polars
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer import testing
from latecomer.connectors.sinks import as_sink
from latecomer.disorder import ClockSkew, Delayed, Duplicates, GroupShuffle, Uniform
from latecomer.testing import (
    Abort,
    Aborted,
    CollectingSink,
    End,
    ManualClock,
    Pause,
    ScriptedSource,
    assert_same_matches,
    disordered,
    orders,
    play,
    same,
)
from tests import oracle
from tests.strategies import PUNCTUATION, sound, table, wild

STREAM = lc.Stream(id="id", unit="s")
GAP = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="gap", level=lc.Aggressive("5 s"))
ROWS = [
    {"id": i, "type": t, "ts": ts}
    for i, (t, ts) in enumerate([("A", 1), ("B", 3), ("C", 5), ("A", 6), ("C", 9), ("A", 9), ("C", 12), ("B", 14)])
]
ANSWER = {(3, 4), (3, 6), (5, 6)}
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", ["clock", "disorder", "orders", "playing", "same", "script", "sink"])
def test_examples_of_the_docstrings(name):
    module = sys.modules[f"latecomer.testing.{name}"]
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def test_the_example_of_the_page_runs_in_a_suite_of_its_own(tmp_path):
    [program] = re.findall(r"^```python\n(.*?)^```$", (DOCS / "testing.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_theft.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_names_everything():
    page = (DOCS / "testing.md").read_text()
    assert [name for name in testing.__all__ if not re.search(rf"\b{name}\b", page)] == []
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)


# --- scripts and time ----------------------------------------------------------------------------------------------


def test_a_script_is_handed_over_in_batches():
    a, b, c, d = ROWS[:4]
    clock = ManualClock(100, unit="s")
    source = ScriptedSource([a, b, c, Pause("2 min"), d, End(), a], batch=2, clock=clock)
    seen = [(batch, source.position, clock.now()) for batch in source]
    assert seen == [([a, b], 2, 100), ([c], 3, 100), ([], 4, 220), ([d], 5, 220)]
    assert list(source) == [[a]]  # what stands behind the end
    assert list(source) == []
    source.seek(2)
    assert list(source) == [[c], [], [d]]
    assert clock.now() == 220  # time has passed once


def test_a_script_aborts_once():
    a, b = ROWS[:2]
    source = ScriptedSource([a, Abort(), b])
    seen = []
    with pytest.raises(Aborted) as died:
        seen.extend(source)
    assert died.value.position == 1
    assert not isinstance(died.value, Exception)  # a handler for all errors does not survive a crash
    source.seek(0)
    assert list(source) == [[a], [b]]


@pytest.mark.parametrize(
    ("script", "options", "problem"),
    [
        ([1], {}, "1 cannot stand in a script: give events as dicts, Pause, Abort or End"),
        ([Pause(1)], {}, "needs a clock to move"),
        (ROWS, {"batch": 0}, "batch=0: a batch holds at least 1 event"),
    ],
)
def test_scripts_that_make_no_sense(script, options, problem):
    with pytest.raises(lc.ConfigError, match=problem):
        ScriptedSource(script, **options)


@pytest.mark.parametrize("position", [-1, 9])
def test_positions_lie_within_the_script(position):
    with pytest.raises(lc.ConfigError, match="positions 0 to 8"):
        ScriptedSource(ROWS).seek(position)


def test_the_clock_counts_in_its_unit():
    clock = ManualClock(5, unit="ms")
    assert clock.advance("2 s") == clock.now() == 2005
    assert clock.advance(7) == 2012
    clock.set(3000)
    assert clock.now() == 3000
    for past in (2999, datetime(2026, 1, 1)):
        with pytest.raises(lc.ConfigError, match="clock"):
            clock.set(past)
    assert clock.now() == 3000


def test_the_clock_can_show_a_date():
    clock = ManualClock(datetime(2026, 1, 1), unit="min")
    assert clock.advance("90 s") == datetime(2026, 1, 1, 0, 1, 30)
    assert clock.advance(2) == datetime(2026, 1, 1, 0, 3, 30)
    clock.set(datetime(2026, 1, 2))
    assert clock.now() == datetime(2026, 1, 2)
    with pytest.raises(lc.ConfigError, match="of the same kind"):
        clock.set(0)


# --- the sink ------------------------------------------------------------------------------------------------------


def change(op, id, events, query="q"):
    return {"op": op, "query": query, "match_id": id, "events": events}


def output(*changes, late=()):
    columns = {"op": pa.string(), "query": pa.string(), "match_id": pa.string(), "events": pa.list_(pa.int64())}
    return lc.Output(pa.Table.from_pylist(list(changes), pa.schema(columns)), pa.Table.from_pylist(list(late)))


def test_the_sink_knows_what_matches_now():
    sink = CollectingSink()
    assert (sink.net(), sink.changes.num_rows, sink.late.num_rows) == (set(), 0, 0)
    sink.add(output(change("insert", "m", [1, 2]), change("insert", "n", [1, 3]), late=[{"id": 9}]))
    sink.add(output())
    sink.add(output(change("delete", "m", [1, 2]), change("insert", "o", [4], query="other")))
    sink.add(output(change("insert", "m", [1, 2]), late=[{"id": 10, "x": 1}]))
    assert sink.net() == {(1, 3), (1, 2), (4,)}
    assert sink.net("q") == {(1, 3), (1, 2)}
    assert [row["match_id"] for row in sink.rows("q")] == ["n", "m"]
    assert sink.changes.column("op").to_pylist() == ["insert", "insert", "delete", "insert", "insert"]
    assert sink.late.to_pylist() == [{"id": 9, "x": None}, {"id": 10, "x": 1}]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([change("insert", "m", [1]), change("insert", "m", [1])], "query 'q': the match .1. was inserted twice"),
        ([change("delete", "m", [1])], "query 'q': the match .1. was deleted while absent"),
        ([change("insert", "m", [1]), change("delete", "m", [2])], "match_id m stands for .1. and for .2."),
    ],
)
def test_the_sink_asserts_multiplicities(changes, problem):
    with pytest.raises(AssertionError, match=problem):
        CollectingSink().add(output(*changes))


def test_the_sink_takes_each_batch_once():
    sink = CollectingSink()
    as_sink(sink).open("job")
    first = output(change("insert", "m", [1]))
    for _ in range(2):
        as_sink(sink).apply(7, first.changes, first.late)
    sink.close()
    assert (sink.job, sink.net(), sink.changes.num_rows) == ("job", {(1,)}, 1)
    with pytest.raises(AssertionError, match="batch 7 came again with other changes"):
        sink.apply(7, first.changes.slice(1), first.late)
    with pytest.raises(AssertionError, match="batch 7 came again with other late rows"):
        sink.apply(7, first.changes, output(late=[{"id": 1}]).late)


# --- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_crashes_change_nothing(every):
    whole, broken = CollectingSink(), CollectingSink()
    play(lc.Runtime(STREAM, GAP), ScriptedSource(ROWS, batch=1), whole)
    script = list(itertools.chain.from_iterable((row, Abort()) for row in ROWS))
    runtime = lc.Runtime(STREAM, GAP)
    last = play(runtime, ScriptedSource(script, batch=1), broken, every=every)
    assert broken.changes.to_pylist() == whole.changes.to_pylist()
    assert broken.net() == ANSWER
    assert last is not runtime and last.counters["rows"] == len(ROWS)


def test_a_crash_without_snapshots_is_the_callers():
    with pytest.raises(Aborted):
        play(lc.Runtime(STREAM, GAP), ScriptedSource([ROWS[0], Abort()]))
    with pytest.raises(lc.ConfigError, match="every=0"):
        play(lc.Runtime(STREAM, GAP), ScriptedSource(ROWS), every=0)


def test_a_runtime_that_forgets_is_caught_by_the_redelivery(monkeypatch):
    """A restart from a snapshot that lacks state says other things for the same batch."""
    sound_restore = lc.Runtime.restore
    monkeypatch.setattr(lc.Runtime, "restore", lambda snapshot: sound_restore(empty))
    empty = lc.Runtime(STREAM, GAP).snapshot()
    source = ScriptedSource([ROWS[0], ROWS[1], ROWS[3], ROWS[4], Abort(), ROWS[5]], batch=1)
    with pytest.raises(AssertionError, match="came again with other changes"):
        play(lc.Runtime(STREAM, GAP), source, CollectingSink(), every=3)


def test_now_is_replayed_with_the_batches():
    """After a restart a batch sees the time that it saw at first, so idle sources come out as before."""
    stream = lc.Stream(id="id", unit="s", idle_timeout="20 s", max_ahead="1 min")
    overdue = lc.Query("PATTERN SEQ(A a, !C c) WITHIN 10 s", name="overdue", level=lc.Aggressive("5 s"))
    rows = [{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "A", "ts": 62}, {"id": 3, "type": "A", "ts": 60}]
    script = [rows[0], Pause("1 s"), rows[1], Pause("40 s"), rows[2], Abort(), Pause("1 min")]
    for every in (1, 2, 100):
        sink = CollectingSink()
        play(lc.Runtime(stream, overdue), ScriptedSource(script, clock=ManualClock(0)), sink, every=every, finish=False)
        assert sink.late.column("reason").to_pylist() == ["ahead"]  # 62 came at 1
        assert sink.net() == {(1,), (3,)}


def test_play_ends_the_stream_only_if_told():
    trailing = lc.Query("PATTERN SEQ(A a, !B) WITHIN 10 s", name="q", level=lc.KSlack(0))
    for finish, found in ((True, {(0,)}), (False, set())):
        sink = CollectingSink()
        play(lc.Runtime(STREAM, trailing), ScriptedSource(ROWS[:1]), sink, finish=finish)
        assert sink.net() == found


# --- orders --------------------------------------------------------------------------------------------------------


def keeps(ts, order, slack):
    clock = float("-inf")
    for number in order:
        clock = max(clock, ts[number])
        if ts[number] < clock - slack:
            return False
    return True


@pytest.mark.parametrize("slack", [0, 1, 2, 5, 100])
def test_every_order_that_keeps_the_promise_can_come_and_no_other(slack):
    ts = [1, 2, 2, 4, 7]
    allowed = {p for p in itertools.permutations(range(5)) if keeps(ts, p, slack)}
    made = {tuple(orders.arrange(ts, slack, p.__getitem__)) for p in itertools.permutations(range(5))}
    assert made == allowed


def timed(rng, n):
    ts = sorted(rng.randrange(20) for _ in range(n))
    return orders.Timed(ts, [rng.choice("ABCD") for _ in ts], [rng.choice(["n", "s"]) for _ in ts])


@pytest.mark.parametrize("number", range(12))
def test_orders_keep_their_promise_and_use_it(number):
    rng = Random(number)
    used = 0
    for _ in range(20):
        events, slack = timed(rng, 12), rng.choice([0, 3, 30])
        name, arrivals = orders.order(events, slack, ["A", "B"], number, rng)
        assert sorted(arrivals) == list(range(12))
        assert keeps(events.ts, arrivals, slack), name
        used += slack > 0 and not keeps(events.ts, arrivals, 0)
    assert used > 5 or number == 0  # the first order is the one without disorder


def test_punctuation_is_true_and_varied():
    rng, kinds = Random(1), set()
    for _ in range(50):
        events = timed(rng, 10)
        _, arrivals = orders.order(events, None, ["A", "B"], rng.randrange(8), rng)
        things = list(orders.punctuated(arrivals, events, ["A", "B"], {"n", "s"}, rng))
        assert [t for t in things if isinstance(t, int)] == arrivals
        for place, thing in enumerate(things):
            if isinstance(thing, orders.Promise):
                kinds.add((thing.type, thing.source))
                later = [i for i in things[place:] if isinstance(i, int)]
                broken = [
                    i
                    for i in later
                    if thing.type in (None, events.types[i])
                    and thing.source in (None, events.sources[i])
                    and events.ts[i] <= thing.ts
                ]
                assert not broken
    assert kinds == set(itertools.product([None, "A", "B"], [None, "n", "s"]))


@pytest.mark.parametrize("number", range(5))
def test_cuts_lose_nothing_and_end_before_punctuation(number):
    promise = orders.Promise(3, None)
    things = [0, 1, promise, 2, 3, 4, promise, promise, 5]
    for seed in range(20):
        name, steps = orders.cut(things, number, Random(seed))
        flat = [t for step in steps for t in ([step] if isinstance(step, orders.Promise) else step)]
        assert flat == things and name in orders.CUTS
        sizes = [len(step) for step in steps if isinstance(step, list)]
        assert {0: sizes == [1] * 6, 1: sizes == [2, 3, 1]}.get(number, True)


# --- the assertion -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_answer_is_the_oracles(seed):
    """Any query over any events at any level: every order gives what brute force gives."""
    case = wild(seed * 17, promise=True, plain=True, queries=2)
    rows = {s[1]["id"]: s[1] for s in case.steps if s[0] == "row" and sound(s[1]) and s[1]["type"] != PUNCTUATION}
    events = list(rows.values())
    for asked in case.asked:
        found = assert_same_matches(
            asked.query(), table(events, case.ids), stream=case.stream(), orders=5, splits=1, seed=seed
        )
        assert found == oracle.matches(asked.query().plan, events, case.unit)


@pytest.mark.parametrize("level", [lc.KSlack("3 s"), lc.Conservative(), lc.Aggressive("3 s", "1 s"), None])
def test_one_level_or_all(level):
    assert assert_same_matches(GAP, ROWS, level, stream=STREAM, orders=6, splits=1) == ANSWER
    assert assert_same_matches(GAP, ROWS[::-1], [lc.KSlack(0)], stream=STREAM, orders=2) == ANSWER


def test_the_levels_that_are_tried():
    def tried(level):
        return list(map(str, same._levels(lc.Query(GAP.plan.text, name="q", level=level), None)))

    assert tried(lc.Aggressive("5 s", "1 s")) == [
        "kslack(5 s)", "conservative", "aggressive(max_delay = 5 s, patience = 1 s)",
    ]  # fmt: skip
    assert tried(lc.KSlack("7 s")) == ["kslack(7 s)", "conservative", "aggressive(max_delay = 7 s)"]
    assert tried(lc.Conservative()) == ["kslack(10 s)", "conservative", "aggressive(max_delay = 10 s)"]
    assert tried(lc.KSlack(recall=0.9, max="8 s"))[0] == "kslack(8 s)"


def test_slack_by_source_keeps_the_strictest_promise():
    stream = lc.Stream(id="id", source="from", unit="s", clock="source")
    rows = [row | {"from": "ns"[i % 2]} for i, row in enumerate(ROWS)]
    level = lc.KSlack("4 s", sources={"n": "2 s"})
    assert assert_same_matches(GAP, rows, level, stream=stream) == ANSWER
    assert same._slack(level, "s") == 2


def test_any_form_of_events():
    arrow = pa.Table.from_pylist(ROWS)
    for events in (arrow, arrow.to_batches()[0], arrow.to_pandas(), polars.from_arrow(arrow)):
        assert assert_same_matches(GAP, events, stream=STREAM, orders=3, splits=1) == ANSWER


def test_events_without_ids_are_numbered_by_their_place():
    bare = [{"type": row["type"], "ts": row["ts"], "event_number": "taken"} for row in ROWS]
    assert assert_same_matches(GAP, bare, stream=lc.Stream(unit="s"), orders=3) == ANSWER


def test_columns_are_found_by_their_names():
    times = [datetime(2026, 1, 1, 0, 0, row["ts"]) for row in ROWS]
    rows = [row | {"ts": ts, "source": "s"} for row, ts in zip(ROWS, times, strict=True)]
    assert assert_same_matches(GAP, rows, orders=4, splits=1) == ANSWER
    coarse = lc.Stream(id="id", unit="min")  # all of them in one minute, so nothing follows anything
    assert assert_same_matches(GAP, rows, stream=coarse, orders=4, splits=1) == set()


def test_attributes_that_no_event_has_are_null():
    query = lc.Query("PATTERN SEQ(A a, C c) WHERE a.x IS NULL WITHIN 3 s", name="q", level=lc.Conservative())
    assert assert_same_matches(query, ROWS, stream=STREAM, orders=2) == {(3, 4), (5, 6)}


def test_rows_that_take_part_in_no_answer_are_left_out():
    stream = lc.Stream(id="id", unit="s", punctuation="PUNCT")
    junk = [{"id": None, "type": "B", "ts": 7}, {"id": 90, "type": None, "ts": 7}, {"id": 91, "type": "B", "ts": None}]
    rows = [*ROWS, *junk, {"id": None, "type": "PUNCT", "ts": 99}, dict(ROWS[0])]
    assert assert_same_matches(GAP, rows, stream=stream) == ANSWER


@pytest.mark.parametrize("level", [lc.KSlack("10 s"), lc.Conservative(), lc.Aggressive("10 s")])
def test_a_level_that_is_strong_enough_for_a_disorder(level):
    models = [Delayed(0.5, Uniform("10 s")), GroupShuffle(3), Duplicates(0.5, Uniform("5 s"))] * 2
    assert assert_same_matches(GAP, ROWS, level, stream=STREAM, orders=models) == ANSWER


def test_a_level_that_is_too_weak_for_a_disorder():
    def try_it(**more):
        models = [Delayed(0.5, Uniform("10 s"))] * 10
        assert_same_matches(GAP, ROWS, lc.KSlack("2 s"), stream=STREAM, orders=models, seed=5, **more)

    with pytest.raises(AssertionError) as failure:
        try_it()
    text = str(failure.value)
    lines = text.splitlines()
    assert lines[0] == "the matches depend on the order of arrival"
    assert "query 'gap':" in lines and "  CONSISTENCY kslack(2 s)" in lines
    assert re.search(r"^in order of time: 3 matches; as the events arrived here: \d+$", text, re.MULTILINE)
    assert re.search(r"^late: +\d after_k by \d", text, re.MULTILINE)
    assert re.search(r"^  \d\([ABC]@\d+\)( \||) ", text, re.MULTILINE)
    number, split = map(int, re.search(r"repeat with seed=5, only=\((\d+), (\d+)\)", text).groups())
    with pytest.raises(AssertionError) as again:
        try_it(only=(number, split))
    assert str(again.value) == text


def test_another_seed_is_another_test():
    def arrivals(seed):
        prepared = same.prepare(GAP, ROWS, STREAM)
        return [same._arrive(GAP, lc.Conservative(), prepared, None, seed, n, 0).steps for n in range(5, 9)]

    assert arrivals(1) == arrivals(1) != arrivals(2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"query": "PATTERN"}, "'PATTERN' is not a query"),
        ({"level": "kslack"}, "'kslack' is not a consistency level"),
        ({"level": lc.KSlack(recall=0.9, max="5 s")}, r"promises a share of the matches.*try KSlack\('5 s'\) here"),
        ({"orders": 0}, "orders=0, splits=2: at least one of each"),
        ({"orders": []}, r"orders=\[\], splits=2: at least one of each"),
        ({"splits": 0}, "orders=12, splits=0: at least one of each"),
        ({"stream": None}, "its unit is not known"),
        ({"stream": lc.Stream(ts="when", unit="s")}, "no column 'when': they have id, type, ts; say with stream="),
        ({"events": [*ROWS, ROWS[0] | {"ts": 2}]}, "id 0 occurs with two contents"),
        ({"events": [*ROWS, {"id": 99, "type": "A", "ts": "soon"}]}, "event 8: ts='soon' is no whole number"),
        ({"events": pa.table({"id": [1], "type": ["A"], "ts": [1.5]})}, "column 'ts' holds double: whole numbers"),
        (
            {"orders": [ClockSkew("5 s")], "stream": lc.Stream(id="id", source="type", type="kind", unit="s")},
            "stamps events with other times",
        ),
    ],
)
def test_what_cannot_be_asserted(options, problem):
    given = {"query": GAP, "events": ROWS, "stream": STREAM} | options
    if "kind" in str(given["stream"]):
        given["events"] = [row | {"kind": row["type"]} for row in ROWS]
    with pytest.raises(lc.LatecomerError, match=problem):
        assert_same_matches(given.pop("query"), given.pop("events"), **given)


# --- what the assertion finds --------------------------------------------------------------------------------------


class Forgetful(lc.Runtime):
    """Drops what comes late, silently."""

    def process(self, batch, **more):
        kept, clock = [], self.clock
        for row in batch.to_pylist():
            clock = row["ts"] if clock is None else max(clock, row["ts"])
            kept.append(row["ts"] == clock)
        return super().process(batch.filter(pa.array(kept)), **more)


class Twice(lc.Runtime):
    """Says everything twice."""

    def process(self, batch, **more):
        out = super().process(batch, **more)
        return lc.Output(pa.concat_tables([out.changes, out.changes]), out.late)


class Fickle(lc.Runtime):
    """Takes each answer back for a moment."""

    def finish(self):
        changes = super().finish().changes.to_pylist()
        again = [row | {"op": op} for row in changes for op in ("insert", "delete", "insert")]
        return lc.Output(pa.Table.from_pylist(again), pa.table({}))


class Impatient(lc.Runtime):
    """Calls events late that are on time."""

    def __init__(self, stream, query):
        super().__init__(stream, lc.Query(query.plan.text, name=query.name, level=lc.KSlack(0)))


class Broken(lc.Runtime):
    """Raises an error."""

    def finish(self):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("runtime", "level", "problem"),
    [
        (Forgetful, lc.Aggressive("5 s"), "the matches depend on the order of arrival\n"),
        (Twice, lc.Aggressive("5 s"), "query 'gap': the match .* was inserted twice\n"),
        (Fickle, lc.KSlack("20 s"), "a final level took a match back\n"),
        (Impatient, lc.KSlack("2 s"), "an event was late although the promise was kept\n"),
    ],
)
def test_an_engine_that_errs_is_found(monkeypatch, runtime, level, problem):
    """On events without a match that late ones could make, so that only the one thing is wrong."""
    rows = ROWS if runtime is not Impatient else [{"id": n, "type": "B", "ts": n} for n in range(6)]
    expected = same._in_order(GAP, same.prepare(GAP, rows, STREAM))
    monkeypatch.setattr(same, "_in_order", lambda *_: expected)
    monkeypatch.setattr(same, "Runtime", runtime)
    with pytest.raises(AssertionError, match=problem) as failure:
        assert_same_matches(GAP, rows, level, stream=STREAM)
    assert "repeat with seed=0" in str(failure.value)


def test_an_error_says_how_to_repeat_it(monkeypatch):
    expected = same._in_order(GAP, same.prepare(GAP, ROWS, STREAM))
    monkeypatch.setattr(same, "_in_order", lambda *_: expected)
    monkeypatch.setattr(same, "Runtime", Broken)
    with pytest.raises(ZeroDivisionError) as failure:
        assert_same_matches(GAP, ROWS, stream=STREAM)
    assert "repeat with seed=0, only=(0, 0)" in failure.value.__notes__[0]


def test_long_messages_are_cut():
    rows = [{"id": n, "type": "AC"[n % 2], "ts": n} for n in range(300)]
    query = lc.Query("PATTERN SEQ(A a, C c) WITHIN 3 s", name="q", level=lc.KSlack(0))
    with pytest.raises(AssertionError) as failure:
        assert_same_matches(query, rows, stream=STREAM, orders=[Delayed(0.9, Uniform("1 min"))], splits=1)
    assert re.search(r"missing: .*\) and \d+ more", str(failure.value))
    assert re.search(r" … and \d+ more$", str(failure.value))


# --- the injector --------------------------------------------------------------------------------------------------


def test_disordered_keeps_all_events_and_columns():
    model, stream = Delayed(0.5, Uniform("9 s")), lc.Stream(id="id", unit="s")
    rows = [{"id": n, "ts": n, "type": "A", "arrival": "mine"} for n in range(50)]
    sent = disordered(rows[::-1], model, stream, seed=3)
    assert sent.column_names == ["id", "ts", "type", "arrival"]
    assert sorted(sent.to_pylist(), key=lambda r: r["id"]) == rows
    assert sent.to_pylist() != rows
    assert sent.equals(disordered(pa.Table.from_pylist(rows), model, stream, seed=3))
    assert not sent.equals(disordered(rows, model, stream, seed=4))
    with pytest.raises(lc.SchemaError, match="no column 'when'"):
        disordered(rows, model, lc.Stream(ts="when", unit="s"), seed=1)
    with pytest.raises(lc.SchemaError, match="nulls"):
        disordered([*rows, {"id": 99, "ts": None}], model, stream, seed=1)
