"""Matches that wait for the end of their window: in compiled steps they leave when they do elsewhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.runtime import step
from latecomer.runtime.rows import PIECE
from latecomer.storage import kernels
from tests.test_express import Counted, net, ordinary

stepping = pytest.mark.skipif(kernels.step is None, reason="kernels are not compiled: there are no steps")

TEXTS = [
    "PATTERN SEQ(A a, !B b) WHERE [k] WITHIN 640 s",
    "PATTERN SEQ(A a, C c, !B b) WHERE [k] WITHIN 300 s",
    "PATTERN SEQ(A a, !B b, C c, !D d) WHERE [k] AND c.x > a.x WITHIN 90 s",
]

#: Where only patience makes matches wait.
NOT_AT_THE_END = [
    "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 200 s",
    "PATTERN SEQ(!D d, A a, C c) WHERE [k] AND d.x < 0.7 WITHIN 100 s",
    "PATTERN SEQ(A a, B b, C c) WHERE [k] WITHIN 100 s",
]


def runtimes(count, *texts, max_delay="700 s", patience=()):
    """``patience``: of the levels at which each query is asked; none where it is empty."""
    levels = [lc.Aggressive(max_delay, patience=p) for p in patience or [0]]
    queries = [
        lc.Query(text, name=f"q{i}" if level is levels[0] else f"q{i} at {level.patience}", level=level)
        for level in levels
        for i, text in enumerate(texts)
    ]
    return [lc.Runtime(lc.Stream(id="id", unit="s"), queries) for _ in range(count)]


def counting(runtime):
    engine = runtime._engine
    engine.express = Counted.of(engine, engine.lanes)
    return runtime


def events(n, seed, first, late=0.3, most=700, keys=4):
    rng = np.random.default_rng(seed)
    at = np.arange(first, first + n)
    ts = 3 * at - np.where(rng.random(n) < late, rng.integers(1, most, n), 0)
    kinds = np.array(list("ABCDX"))[rng.choice(5, n, p=[0.3, 0.1, 0.3, 0.1, 0.2])]
    return pa.record_batch({"id": at, "type": kinds, "ts": ts, "k": rng.integers(0, keys, n), "x": rng.random(n)})


@stepping
@settings(max_examples=25)
@given(st.integers(0, 99), st.data())
def test_matches_wait_the_same_on_roads_that_take_turns(seed, data):
    """Some batches take no step, since an id comes again; some look at all that waits; some go on from a snapshot."""
    one, other = runtimes(2, *TEXTS, *NOT_AT_THE_END, patience=[0, "50 s", "900 s"])
    first, sent = 0, []
    for number in range(data.draw(st.integers(20, 50))):
        n = data.draw(st.sampled_from([1, 1, 2, 5, 30, 200]))
        batch = events(n, 100 * seed + number, first)
        first += n
        sent.append(batch)
        what = data.draw(st.sampled_from(["step", "step", "step", "again", "look", "snapshot", "observe"]))
        if what == "again":
            batch = (
                pa.Table.from_batches([batch, sent[-min(3, len(sent))].slice(0, 1)]).combine_chunks().to_batches()[0]
            )
        assert net(one, ("process", batch)) == net(ordinary(other), ("process", batch))
        if number == 0:
            counting(one)
        if what == "look":
            assert one.explain()["queries"]["q0"]["held"] == other.explain()["queries"]["q0"]["held"]
        elif what == "snapshot":
            steps = one._engine.express.steps
            one, other = map(lc.Runtime.restore, (other.snapshot(), one.snapshot()))
            counting(one)._engine.express.steps = steps
        elif what == "observe":
            ahead = ("observe", 3 * first + 1)
            assert net(one, ahead) == net(ordinary(other), ahead)
    assert one._engine.express.steps > 0
    assert sorted(map(repr, one.finish().changes.to_pylist())) == sorted(map(repr, other.finish().changes.to_pylist()))


@stepping
def test_a_match_that_is_held_between_steps_leaves_in_time():
    """It came on another road, to be due before what steps have looked at already."""
    one, other = runtimes(2, TEXTS[0])
    told = []
    for runtime in (one, other):
        rows = [(1, "A", 2_000), (2, "A", 2_600), (3, "X", 2_641), (4, "A", 2_003), (4, "A", 2_003)]
        batches = [[rows[0]], [rows[1]], [rows[2]], rows[3:], [(5, "X", 2_643)], [(6, "X", 2_645)]]
        told.append([])
        for batch in batches:
            if runtime is other:
                ordinary(other)
            given = pa.RecordBatch.from_pylist(
                [{"id": i, "type": kind, "ts": ts, "k": 1, "x": 0.0} for i, kind, ts in batch]
            )
            told[-1].append([row["events"] for row in runtime.process(given).changes.to_pylist()])
    assert told[0] == told[1]
    assert told[0] == [[], [], [[1]], [], [], [[4]]]


@stepping
def test_more_matches_are_due_at_once_than_one_table_holds():
    """The clock jumps: such a batch takes no step, and nothing is lost by that."""
    one, other = runtimes(2, TEXTS[0], max_delay="1 s")
    n = PIECE + 5_000
    for begin in range(0, n, 25_000):
        size = min(25_000, n - begin)
        ids = np.arange(begin, begin + size)
        batch = pa.record_batch({"id": ids, "type": ["A"] * size, "ts": ids // 1_000, "k": ids, "x": ids / 2})
        same = net(one, ("process", batch)) == net(ordinary(other), ("process", batch))
        assert same
        if not begin:
            counting(one)
    taken = one._engine.express.steps
    assert taken == n // 25_000
    jump = pa.record_batch({"id": [n], "type": ["X"], "ts": [100_000], "k": [0], "x": [0.0]})
    same = net(one, ("process", jump)) == net(ordinary(other), ("process", jump))
    assert same
    assert one.counters["inserted"] == {"q0": n}
    assert one._engine.express.steps == taken


@stepping
def test_what_is_due_waits_on_where_another_query_finds_too_much():
    """The step that has taken it out is undone, after room was made for all the matches that the batch brings. The
    other query has no fewer conditions, so it is answered later.
    """
    one, other = runtimes(2, TEXTS[0], "PATTERN SEQ(C c, D d) WHERE c.k < d.k + 9 WITHIN 640 s")

    def send(kinds, ts):
        ids = sent + np.arange(len(ts))
        batch = pa.record_batch({"id": ids, "type": kinds, "ts": ts, "k": ids % 5, "x": ids / 2})
        found = []
        for runtime in (one, ordinary(other)):
            changes = runtime.process(batch).changes
            own = changes.filter(pc.equal(changes["query"], "q0"))  # of the other query there are too many to be listed
            found.append((sorted(map(repr, own.to_pylist())), len(changes)))
        same = found[0] == found[1] and one.counters == other.counters
        assert same
        return sent + len(ts)

    sent = 0
    for number in range(14):  # until what waits fills its room; some have left
        sent = send(["A"] * 3_000, np.arange(3_000 * number, 3_000 * (number + 1)) // 30)
        if not number:
            counting(one)
    steps = one._engine.express.steps
    sent = send([*"CD" * 1_000, *"A" * 100], np.arange(2_100) // 10 + 1_800)
    assert one._engine.express.steps == steps == 13
    assert one.counters["inserted"]["q0"] == 30 * 1_369  # their windows are over by 2,008
    assert one.counters["inserted"]["q1"] > PIECE
    sent = send(["X"], np.array([2_650]))
    assert one._engine.express.steps == steps + 1
    assert one.counters["inserted"]["q0"] == 42_100


@stepping
def test_a_negative_at_the_very_end_of_a_scope_kills_what_has_left():
    one, other = runtimes(2, TEXTS[0])
    told = []
    for number, (kind, ts) in enumerate([("A", 0), ("A", 5), ("X", 641), ("B", 640), ("B", 641)]):
        batch = pa.record_batch({"id": [number], "type": [kind], "ts": [ts], "k": [1], "x": [0.0]})
        told.append(net(one, ("process", batch)))
        assert told[-1] == net(ordinary(other), ("process", batch))
        if not number:
            counting(one)
    assert one._engine.express.steps == 4
    assert one.counters["inserted"] == one.counters["deleted"] == {"q0": 1}


@stepping
def test_what_waits_is_counted_and_takes_memory():
    [one] = runtimes(1, TEXTS[0])
    one.process(events(10, 1, 0, late=0))
    before = one._engine._lanes[0].nbytes
    one.process(events(500, 2, 10, late=0).filter(pa.array(np.arange(500) < 200)))
    holding = one._engine._lanes[0].queries[0].holding
    held = len(holding)
    assert holding.recent.count == held > 0
    assert one._engine._lanes[0].nbytes > before
    assert 0 < one.explain()["queries"]["q0"]["held"] <= held  # some have been killed
    assert (holding.recent.count, len(holding)) == (0, held)


@stepping
@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["stay", "stay", "out and in", "due"])), max_size=200))
def test_what_waits_comes_in_the_order_of_moments_then_as_it_came(given_rows):
    """Rows go out and in again now and then, and some leave."""
    waiting, expected = kernels.Waiting(2), []
    for number, (moment, what) in enumerate(given_rows):
        row = np.array([moment]), (np.array([number]), np.array([-number]), np.array([7]))
        waiting.add(*row, True)
        expected.append((moment, number))
        if what == "out and in":
            moments, columns = waiting.take(99)
            assert waiting.count == waiting.nbytes == 0
            waiting.add(moments, columns, False)
        elif what == "due":
            moments, columns = waiting.take(moment)
            due = sorted(row for row in expected if row[0] <= moment)
            assert list(zip(moments.tolist(), columns[0].tolist(), strict=True)) == due
            expected = [row for row in expected if row[0] > moment]
    due, columns = waiting.take(0)
    assert due.tolist() == sorted(moment for moment, _ in expected if moment <= 0)
    assert waiting.count == len(expected) - len(due)
    moments, more = waiting.take(99)
    moments = np.concatenate([due, moments])
    refs, others, keys = map(np.concatenate, zip(columns, more, strict=True))
    assert list(zip(moments.tolist(), refs.tolist(), strict=True)) == sorted(expected)
    assert (others == -refs).all()
    assert (keys == 7).all()


@stepping
def test_what_cannot_wait_is_refused():
    nothing = np.zeros(0, np.int64)
    for parts in (0, 33):
        with pytest.raises(TypeError, match="1 to 32 parts"):
            kernels.Waiting(parts)
    waiting = kernels.Waiting(1)
    with pytest.raises(TypeError, match="3 arguments"):
        waiting.add(nothing)
    with pytest.raises(TypeError, match="2 columns"):
        waiting.add(nothing, (nothing,), True)
    with pytest.raises(TypeError, match="8-byte"):
        waiting.add(np.zeros(0, np.int32), (nothing, nothing), True)
    with pytest.raises(TypeError, match="8-byte"):
        waiting.add(np.zeros(1, np.int64), (nothing, nothing), True)
    with pytest.raises(TypeError, match="int"):
        waiting.take(None)
    reading = np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(0, np.uint8), 1, 1, 10, 0
    engine = counting_engine()
    log = engine.log.spans
    for waits, message in [
        ((None, waiting), "3 parts"),
        ((None, None, 5), "parts of"),
        ((None, kernels.Waiting(2), 5), "parts of"),
    ]:
        query = 0, np.zeros(1, np.int64), (), None, waits
        with pytest.raises(TypeError, match=message):
            kernels.plan(reading, log, (), (), (query,), None, 10, step.MOST)


def counting_engine():
    [one] = runtimes(1, TEXTS[0])
    one.process(events(3, 1, 0))
    return counting(one)._engine


@stepping
def test_room_is_made_for_what_is_held_when_nothing_else_comes():
    """Of matches that wait elsewhere some are drawn that are not due yet, in the same step that holds others."""
    [one] = runtimes(1, "PATTERN SEQ(A a, !B b) WITHIN 6400 s", max_delay=0)
    count = 0

    def give(times, again=False):
        nonlocal count
        ids = np.arange(count, count + len(times))
        count += len(times)
        if again:
            ids[-1] = ids[-2]
        one.process(pa.record_batch({"id": ids, "type": ["A"] * len(times), "ts": pa.array(times, pa.int64())}))

    for number in range(1, 40):
        begin = 20_000 * number
        give([begin] * 61, again=True)  # no step: 60 wait where steps do not look
        give([begin + 1] * 40)
        give([begin + 6400] * 60)
    one.finish()
    assert one.counters["inserted"] == {"q0": 39 * 160}


@pytest.mark.parametrize("batches", [[[0, 1, 2], [3]], [[0], [1], [2], [3]], [[0, 1, 2, 3]]])
def test_what_has_kept_a_match_from_living_is_known_as_long_as_its_end_may_change(batches):
    """A match with a leading and a trailing negation: what it never said is not taken back."""
    rows = [(1, "D", 9), (2, "A", 13), (3, "B", 20), (4, "B", 18)]
    query = lc.Query("PATTERN SEQ(!D d, A a, !B b) WITHIN 5 s", name="q", level=lc.Aggressive("5 s"))
    one = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    for batch in batches:
        given = [dict(zip(("id", "type", "ts"), rows[at], strict=True)) for at in batch]
        assert one.process(given).changes.num_rows == 0
    assert one.finish().changes.num_rows == 0
