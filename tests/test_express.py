"""Nobody can tell which road a batch took: the express road, or the one with all steps."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.query.expressions import Attribute, Comparison, Literal
from latecomer.runtime.evaluate import Times
from latecomer.runtime.express import Express
from latecomer.runtime.road import filtering_road
from latecomer.runtime.share import Share
from latecomer.storage import kernels
from latecomer.storage.columns import Buffer
from latecomer.storage.hashing import hash_column
from latecomer.storage.store import View
from tests.strategies import act, cases


def ordinary(runtime):
    """The same runtime without an express road."""
    if runtime._engine is not None:
        runtime._engine.express = None
    return runtime


def told(runtime, action):
    """What the runtime says, row by row, and what it has counted since the start."""
    out = act(runtime, action)
    return repr((out.changes.to_pylist(), out.late.to_pylist(), runtime.counters))


def net(runtime, action):
    """As :func:`told`, but for the order of the matches that a query gains, or loses, with one batch: that of runs."""
    out = act(runtime, action)
    changes = [
        list(map(repr, own)) for _, own in groupby(out.changes.to_pylist(), lambda row: (row["query"], row["op"]))
    ]
    return list(map(sorted, changes)), repr((out.late.to_pylist(), runtime.counters))


@settings(max_examples=300)
@given(cases(kinds=(lc.Aggressive,), queries=3, sources=False, bare=True), st.data())
def test_every_batch_says_the_same_on_both_roads(case, data):
    one, other = case.runtime(), case.runtime()
    for action, _ in case.batches():
        assert told(one, action) == told(ordinary(other), action)
        if data.draw(st.integers(0, 4)) == 0:
            one, other = map(lc.Runtime.restore, (other.snapshot(), one.snapshot()))  # each goes on from the other's
    assert one.finish().changes.to_pylist() == ordinary(other).finish().changes.to_pylist()


def stream(n, keys, late, seed, first=0, twice=0.02):
    """Events of a batch or more, some of them late by up to 40, some twice, some of no use."""
    rng = np.random.default_rng(seed)
    at = np.arange(first, first + n)
    ts = at // 3 - np.where(rng.random(n) < late, rng.integers(1, 40, n), 0)
    ids = np.where(rng.random(n) < twice, at - rng.integers(1, 30, n), at)
    kinds = np.array(list("ABCDX"))[rng.integers(0, 5, n)]
    return pa.record_batch(
        {
            "id": ids,
            "type": kinds,
            "ts": ts,
            "k": rng.integers(0, keys, n),
            "j": rng.integers(0, 3, n),
            "x": rng.random(n),
        }
    )


I64 = np.dtype(np.int64)

QUERIES = {
    "one key": "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 60 s",
    "two keys": "PATTERN SEQ(A a, B b, C c) WHERE [k] AND [j] AND c.x > a.x WITHIN 40 s",
    "no key": "PATTERN SEQ(A a, D d) WHERE a.x > 0.99 AND d.x > 0.9 WITHIN 20 s",
    "leading": "PATTERN SEQ(!D d, A a, C c) WHERE [k] WITHIN 30 s",
    "trailing": "PATTERN SEQ(A a, C c, !B b) WHERE [k] WITHIN 30 s",
    "by float": "PATTERN SEQ(A a, C c) WHERE a.x = c.x WITHIN 30 s",
}


@pytest.mark.parametrize("size", [1, 7, 500, 4_000])
@pytest.mark.parametrize("keys", [1, 20, 3_000])
def test_long_streams_say_the_same_on_both_roads(size, keys):
    """With state that is purged, ids that are forgotten, and clocks of several lanes."""
    delays = [40, 40, 45, 60, 40, 40]
    queries = [
        lc.Query(text, name=name, level=lc.Aggressive(delay, patience))
        for (name, text), delay, patience in zip(QUERIES.items(), delays, [0, 0, 0, 0, 0, 5], strict=True)
    ]
    one, other = (lc.Runtime(lc.Stream(id="id", unit="s"), queries) for _ in range(2))
    n = {1: 1_500, 7: 6_000}.get(size, 30_000)
    whole = stream(n, keys, 0.2, 7)
    for begin in range(0, n, size):
        batch = whole.slice(begin, size)
        assert told(one, ("process", batch)) == told(ordinary(other), ("process", batch))
    one._engine._check()
    assert one._engine.log.held < 0.8 * n or n < 2_000, "nothing was forgotten"
    for lane, twin in zip(one._engine.lanes, other._engine.lanes, strict=True):
        for store, same in zip(lane.all_stores(), twin.all_stores(), strict=True):
            held = [store.count(View.OLD), same.count(View.OLD)]  # each is purged a quarter of a slice at a time
            assert max(held) <= 1.5 * min(held) + 100
            assert needed(one, lane, store) == needed(other, twin, same)


def without_steps(runtime):
    """The same runtime, whose batches take the express road by one kernel after another."""
    runtime._engine.express.step = lambda _: None
    return runtime


#: Tests of steps alone; all others compare what roads there are.
stepping = pytest.mark.skipif(kernels.step is None, reason="kernels are not compiled: there are no steps")

STEPS = {
    "one key": "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 60 s",
    "compared": "PATTERN SEQ(A a, B b, C c) WHERE [k] AND c.x > a.x AND c.j > a.j WITHIN 40 s",
    "no key": "PATTERN SEQ(A a, D d) WHERE a.x + d.x > 1.9 WITHIN 20 s",
    "text": "PATTERN SEQ(A a, B b, D d) WHERE [name] WITHIN 40 s RETURN d.x AS x",
    "leading": "PATTERN SEQ(!D d, A a, C c) WHERE [k] WITHIN 30 s",
    "filtered": "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND a.x > 0.3 AND b.j IN (0, 1) AND c.ts > 9 WITHIN 60 s",
    "texts": "PATTERN SEQ(A a, C c) WHERE [k] AND a.name = 'n3' AND 'n30' <> c.note AND c.note <> '' WITHIN 90 s",
    "two keys": "PATTERN SEQ(A a, B b, C c) WHERE [k] AND [note] WITHIN 60 s",
    "condition": "PATTERN SEQ(A a, D d) WHERE a.k = d.k AND a.j < d.j WITHIN 20 s",
    "nulls": "PATTERN SEQ(A a, !B b, D d) WHERE [place] AND (a.good OR a.y > d.y) WITHIN 60 s RETURN a.note AS note",
    "trailing": "PATTERN SEQ(A a, C c, !B b) WHERE [k] AND b.j <> 1 WITHIN 30 s",
    "overdue": "PATTERN SEQ(A a, !B b) WHERE [k] AND a.x > 0.5 WITHIN 70 s",
    "two negations": "PATTERN SEQ(A a, !D d, C c, !B b) WHERE [k] WITHIN 20 s",
    "two that end it": "PATTERN SEQ(B b, !A a, !D d) WHERE [name] AND (a.y IS NULL OR a.y < 0.6) WITHIN 50 s",
    "null": "PATTERN SEQ(B b, D d) WHERE [k] AND b.y IS NULL AND NOT (d.good = true) WITHIN 30 s",
}


def named(batch):
    """With columns of texts, some of them empty, and of values that are null now and then."""
    rng = np.random.default_rng(5)
    n = len(batch)
    names = [f"n{k % 50}" if k % 50 else "" for k in batch.column("k").to_pylist()]
    batch = batch.append_column("name", pa.array(names))
    for name, values in {
        "note": np.array(names),
        "place": rng.integers(0, 30, n).astype(np.int32),
        "y": rng.random(n),
        "good": rng.random(n) < 0.5,
    }.items():
        batch = batch.append_column(name, pa.array(values, mask=rng.random(n) < 0.2))
    return batch


@stepping
@pytest.mark.parametrize("identified", [True, False])
@pytest.mark.parametrize(
    ("sizes", "n"),
    [([1], 400), ([7], 2_500), ([300], 12_000), ([1_024], 20_000), ([6_000], 50_000), ([1, 2_500, 3, 90, 700], 25_000)],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_batches_say_the_same_in_one_step(sizes, n, identified):
    """Against the express road's own kernels, and against the road with all steps; restored crosswise now and then."""
    levels = [lc.Aggressive("40 s"), lc.Aggressive("45 s"), lc.Aggressive("40 s", patience="7 s")]
    queries = [lc.Query(t, name=name, level=levels[i % 3]) for i, (name, t) in enumerate(STEPS.items())]
    runtimes = [lc.Runtime(lc.Stream(id="id" if identified else None, unit="s"), queries) for _ in range(3)]
    whole = named(stream(n, 40, 0.2, 11, twice=0.02 if max(sizes) < 10 else 0.0001))  # with one, a batch takes no step
    if not identified:
        whole = whole.drop_columns(["id"])
    begins = np.cumsum([0, *np.resize(sizes, n)])
    for number, (begin, end) in enumerate(pairwise(begins[begins < n + max(sizes)].tolist())):
        if number == 1:
            one = runtimes[0]._engine
            one.express = Counted.of(one, one.lanes)
        if number % 97 == 50:
            express = runtimes[0]._engine.express
            runtimes = [lc.Runtime.restore(r.snapshot()) for r in (runtimes[1], runtimes[2], runtimes[0])]
            one = runtimes[0]._engine
            one.express = Counted.of(one, one.lanes)
            one.express.steps = express.steps
        batch = ("process", whole.slice(begin, end - begin))
        one, two, three = runtimes
        if number:
            without_steps(two)
        expected = net(ordinary(three), batch)
        assert net(one, batch) == expected
        assert net(two, batch) == expected
    one, two, three = (runtime._engine for runtime in runtimes)
    assert one.express.steps > 0.1 * number, "hardly any batch went by a step"
    one._check()
    assert one.log.held < 0.8 * n or n < 10_000, "nothing was forgotten"
    assert min(runtimes[0].counters["inserted"].values()) > 0 or n < 10_000
    for lane, twin in zip(one.lanes, three.lanes, strict=True):
        for store, same in zip(lane.all_stores(), twin.all_stores(), strict=True):
            assert needed(runtimes[0], lane, store) == needed(runtimes[2], twin, same)


def test_a_batch_with_cuts_after_steps_loses_nothing():
    """Its first part looks at what was in time when it came, though the clock has passed the whole batch by then."""
    query = lc.Query("PATTERN SEQ(A a, C c) WITHIN 40 s", level=lc.Aggressive("100 s"), name="query")
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)

    def told(*rows, **options):
        batch = pa.RecordBatch.from_pylist([{"id": i, "type": type, "ts": ts} for i, type, ts in rows])
        return [row["events"] for row in runtime.process(batch, **options).changes.to_pylist()]

    for row in [(1, "A", 0), (2, "A", 1), (3, "A", 2)]:
        assert told(row) == []
    assert told((4, "A", 50), (5, "C", 30), (6, "A", 10_000), cuts=(1, 2)) == [[1, 5], [2, 5], [3, 5]]


@pytest.mark.parametrize("seed", range(4))
def test_batches_with_cuts_between_steps_say_the_same(seed):
    rng = np.random.default_rng(seed)
    queries = [lc.Query(QUERIES[name], name=name, level=lc.Aggressive("40 s")) for name in ("one key", "leading")]
    one, other = (lc.Runtime(lc.Stream(id="id", unit="s"), queries) for _ in range(2))
    whole, begin = stream(6_000, 20, 0.3, seed), 0
    while begin < len(whole):
        parted = rng.random() < 0.1  # a batch that is longer than windows and delays
        size = int(rng.integers(300, 900) if parted else rng.integers(1, 60))
        batch = whole.slice(begin, size)
        cuts = sorted({*rng.integers(0, len(batch), 9).tolist()}) if parted else []
        mine = one.process(batch, cuts=cuts)
        its = ordinary(other).process(batch, cuts=cuts)
        assert sorted(map(repr, mine.changes.to_pylist())) == sorted(map(repr, its.changes.to_pylist()))
        assert repr((mine.late.to_pylist(), one.counters)) == repr((its.late.to_pylist(), other.counters))
        begin += size


@pytest.mark.parametrize("condition", ["a.x = c.x", "a.name LIKE 'n%'", "a.name > 'n'"])
def test_what_has_no_words_takes_no_step(condition):
    """Floats have no hashes that are read with the rows; some conditions no program."""
    text = f"PATTERN SEQ(A a, C c) WHERE [k] AND {condition} WITHIN 30 s"
    query = lc.Query(text, level=lc.Aggressive("40 s"), name="query")
    one, other = (lc.Runtime(lc.Stream(id="id", unit="s"), query) for _ in range(2))
    for seed in range(3):
        batch = ("process", named(stream(20, 3, 0.1, seed, first=20 * seed)))
        assert told(one, batch) == told(ordinary(other), batch)


def known_id(batch):
    """The id of an event that the query asks for."""
    return next(row["id"] for row in batch.to_pylist() if row["type"] == "A")


BEFORE = [stream(200, 20, 0.1, seed, first=200 * seed, twice=0) for seed in range(4)]
PLAIN = stream(60, 20, 0.1, 9, first=800, twice=0)


def identified(batch, kind):
    """The same events with ids of another type."""
    return batch.set_column(0, pa.field("id", kind), batch.column("id").cast(kind))


def warm(kind=None):
    """A runtime that has seen so much that its columns have room for one more batch."""
    runtime = lc.Runtime(
        lc.Stream(id="id", unit="s"), lc.Query(STEPS["compared"], level=lc.Aggressive("40 s"), name="q")
    )
    for batch in BEFORE:
        runtime.process(identified(batch, kind or pa.int64()))
    return runtime


def test_an_empty_batch_takes_no_step_and_changes_nothing():
    runtime = warm()
    for batch in (PLAIN.slice(0, 0), PLAIN.slice(0, 3), PLAIN.slice(3, 0), PLAIN.slice(3)):
        rows = runtime.counters["rows"]
        runtime.process(batch)
        assert runtime.counters["rows"] == rows + len(batch)


@stepping
@pytest.mark.parametrize(
    "change",
    [
        {"id": known_id(PLAIN)},
        {"id": known_id(BEFORE[-1])},
        {"x": None},
        {"k": None},
        {"id": None},
        {"ts": 100},
        {"type": None},
    ],
    ids=["twice in it", "twice", "null that is kept", "null key", "no id", "late", "no type"],
)
def test_a_batch_that_takes_no_step_has_changed_nothing(change):
    """What was entered before the odd row is taken out again."""
    *rows, last = PLAIN.to_pylist()
    odd = pa.RecordBatch.from_pylist([*rows, last | {"type": "A"} | change], schema=PLAIN.schema)
    assert warm()._engine.express.step(PLAIN) is not None, "it would have taken none anyway"
    runtime, other = warm(), warm()
    log, ids = runtime._engine.log, runtime._engine.ids
    before = len(log), len(ids), sorted(ids.refs().tolist()), runtime._engine.time.clock.value, dict(runtime._counters)
    assert runtime._engine.express.step(odd) is None
    after = len(log), len(ids), sorted(ids.refs().tolist()), runtime._engine.time.clock.value, dict(runtime._counters)
    assert after == before
    assert told(runtime, ("process", odd)) == told(ordinary(other), ("process", odd))


@stepping
def test_payload_stays_while_what_is_recent_refers_to_it():
    """Behind a gap, after which stores have forgotten all: for a while nobody looks through what has come since."""
    query = lc.Query("PATTERN SEQ(A a, B b) WHERE [k] WITHIN 2 s", level=lc.Aggressive("1 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    for turn, (second, kinds) in enumerate([(0, "AB"), (5_000, "XX"), *((5_000 + k, "AB") for k in range(1, 12))]):
        at = np.arange(400 * turn, 400 * (turn + 1))
        kind = np.where(at % 2, *kinds)
        runtime.process(pa.record_batch({"id": at, "type": kind, "ts": np.full(400, second), "k": at % 300}))
    recent = [store.recent.count for store in runtime._engine.all_stores()]
    held = runtime._engine.log.held
    runtime._engine._check()
    assert min(recent) > 0, "nothing is recent"
    assert held < 12 * 400, "nothing was forgotten"


@stepping
@pytest.mark.parametrize("apart", [7, 1_000, 100_000])
def test_where_events_are_few_their_stores_are_seldom_looked_through_and_stay_small(apart):
    """Events that lie ``apart`` as long as some of a slice, a slice, or far more. Whoever asks sees none of it."""
    query = lc.Query("PATTERN SEQ(A a, B b) WITHIN 1 s", level=lc.Aggressive("1 ms"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="ms"), query)
    looks, most, known = 0, 0, None
    for at in range(6_000):
        runtime.process(pa.record_batch({"id": [at], "type": ["AB"[at % 2]], "ts": [at * apart]}))
        next_look = runtime._engine.express._tidying._at
        looks += known is not None and known != next_look
        known = next_look
        if at % 100 == 99:  # counting makes recent events a run
            stores = [store for lane in runtime._engine._lanes for store in lane.stores.values()]
            most = max(most, sum(store.count(View.OLD) for store in stores))
    assert 0 < looks <= 6_000 // 64
    assert most <= 256 + 2_048 // apart + 64
    assert runtime.explain()["events"] <= 1_024 + 256 + 2_048 // apart, "payload stays"
    runtime._engine._check()
    assert sum(store.count(View.OLD) for store in runtime._engine.all_stores()) <= 2_048 // apart + 2
    lc.Runtime.restore(runtime.snapshot())._engine._check()


@stepping
def test_a_batch_that_brings_far_more_than_those_before_it_takes_no_step():
    """Room for ids is made for about as many rows as count of the batches before: the next one has room again."""
    one, other = counted(), counted()
    taken, first = [], 10
    for size, every in [(5_000, 50), (5_000, 50), (5_000, 50), (30_000, 1), (30_000, 1), (30_000, 1)]:
        batch = stream(size, 300, 0.1, size, first=first, twice=0)
        first += size
        kinds = np.where(np.arange(size) % every, "X", batch.column("type").to_numpy(False))
        batch = batch.set_column(1, "type", pa.array(kinds))
        before = one._engine.express.steps
        assert net(one, ("process", batch)) == net(without_steps(other), ("process", batch))
        taken.append(one._engine.express.steps - before)
        one._engine._check()
    assert taken == [1, 1, 1, 0, 1, 1]


@stepping
@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_texts_in_other_encodings_take_steps(kind):
    """As data frames have them; what comes out has them as they are kept."""
    runtimes = [
        lc.Runtime(lc.Stream(id="id", unit="s"), lc.Query(STEPS["text"], level=lc.Aggressive("40 s"), name="q"))
        for _ in range(2)
    ]
    whole = named(stream(3_000, 20, 0.1, 3, twice=0))
    for begin in range(0, 3_000, 60):
        batch = whole.slice(begin, 60)
        columns = [c.cast(kind) if pa.types.is_string(c.type) else c for c in batch.columns]
        other = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        outs = [r.process(b).changes for r, b in zip(runtimes, (batch, other), strict=True)]
        assert outs[0].equals(outs[1])
        if begin == 0:
            for runtime in runtimes:
                runtime._engine.express = Counted.of(runtime._engine, runtime._engine.lanes)
    assert [r._engine.express.steps for r in runtimes] == [49, 49]


def ids_of_one_mark(kind):
    """Two pairs of ids whose hashes begin with the same 32 bits."""
    ids = pa.array(np.arange(10**6, 1_300_000)).cast(kind)
    marks = hash_column(ids) >> np.uint64(32)
    order = np.argsort(marks)
    first = np.flatnonzero(np.diff(marks[order]) == 0)
    pairs = zip(
        ids.take(pa.array(order[first])).to_pylist(), ids.take(pa.array(order[first + 1])).to_pylist(), strict=True
    )
    return list(pairs)[:2]


@stepping
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
@pytest.mark.parametrize("cuts", [[0, 4], [0, 2, 4], [0, 1, 2, 3, 4]], ids=["together", "apart", "alone"])
def test_ids_of_one_mark_are_other_ids(kind, cuts):
    """A step enters them all, since it asks for their whole hashes; and it knows the one that comes again."""
    (a, b), (c, d) = ids_of_one_mark(kind)
    rows = [
        {"id": id, "type": type, "ts": 300 + i, "k": 1, "j": i, "x": i / 10}
        for i, (id, type) in enumerate(zip([a, c, b, d, b], "ABCCC", strict=True))
    ]
    schema = identified(PLAIN, kind).schema
    runtime, other = warm(kind), warm(kind)
    for begin, end in pairwise(cuts):
        batch = pa.RecordBatch.from_pylist(rows[begin:end], schema=schema)
        pieces = runtime._engine.express.step(batch)
        assert pieces is not None
        found = [row for _, piece in pieces for row in piece.to_pylist()]
        assert sorted(map(repr, found)) == sorted(map(repr, ordinary(other).process(batch).changes.to_pylist()))
    index, same = runtime._engine.ids, other._engine.ids
    assert sorted(index.refs().tolist()) == sorted(same.refs().tolist())
    for batch in (pa.RecordBatch.from_pylist(rows[i : i + 1], schema=schema) for i in range(5)):
        assert runtime._engine.express.step(batch) is None, "it is known"
        runtime._engine.express._rest = 0
        assert runtime.process(batch).changes.num_rows == 0
    assert runtime.counters["duplicates"] == other.counters["duplicates"] + 5


def needed(runtime, lane, store):
    """The references of a store's events that may still change an answer."""
    refs = store.events()[1]
    floor = min(query.floor for query in lane.queries if store in query.stores)
    return sorted(refs[runtime._engine.log.ts(refs) >= floor].tolist())


@pytest.mark.parametrize("twice", [0.02, 0])
@pytest.mark.parametrize(("number", "of"), [(0, 2), (1, 2), (2, 3)])
def test_a_share_says_the_same_on_both_roads(number, of, twice):
    one, other = counted(), counted()
    for runtime in (one, other):
        runtime._engine.share = Share(number, of, ("k",))
    batches = [stream(300, 20, 0.2, seed, first=300 * seed, twice=twice) for seed in range(1, 6)]
    for batch in batches:
        assert net(one, ("process", batch)) == net(ordinary(other), ("process", batch))
    assert sorted(one._engine.ids.refs().tolist()) == sorted(other._engine.ids.refs().tolist())
    assert one._engine.express.taken == len(batches)
    assert twice or kernels.step is None or one._engine.express.steps == len(batches)
    assert 0 < one.counters["inserted"]["query"] < matches_of_all(batches)


def matches_of_all(batches):
    whole = counted()
    for batch in batches:
        whole.process(batch)
    return whole.counters["inserted"]["query"]


class Counted(Express):
    """Counts the batches that take the road, and those of them that take it in one step."""

    taken = steps = 0

    def process(self, batch, passed):
        self.taken += 1
        return super().process(batch, passed)

    def step(self, given):
        pieces = super().step(given)
        if pieces is not None:
            self.taken += 1
            self.steps += 1
        return pieces


def counted(level=None, **options):
    query = lc.Query(QUERIES["one key"], level=level or lc.Aggressive("40 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", **options), query)
    runtime.process(stream(10, 3, 0, 1))
    if runtime._engine.express is not None:
        runtime._engine.express = Counted.of(runtime._engine, runtime._engine.lanes)
    return runtime


def taken(runtime, *batches, **options):
    """How many of the batches took the express road."""
    express = runtime._engine.express
    for batch in batches:
        runtime.process(batch, **options)
    return 0 if express is None else getattr(express, "taken", 0)


def test_plain_batches_take_the_express_road():
    batches = [stream(20, 3, 0, seed, first=20 * seed) for seed in range(1, 6)]
    assert taken(counted(), *batches) == 5
    runtime = counted()
    taken(runtime, *batches)
    assert kernels.step is None or runtime._engine.express.steps > 0
    assert taken(counted(), batches[0], cuts=[3]) == 0
    assert taken(counted(), batches[0], clocks=np.arange(20)) == 0


def test_a_batch_with_an_event_that_breaks_its_promise_takes_the_other_road():
    late = pa.record_batch(
        {"id": [900, 901], "type": ["A", "A"], "ts": [200, 3], "k": [1, 1], "j": [1, 1], "x": [0.0, 0.0]}
    )
    runtime = counted()
    assert taken(runtime, late) == 0
    [reasons] = runtime.counters["late"].values()
    assert reasons == {"after_max_delay": 1}


@pytest.mark.parametrize(
    ("level", "options"),
    [
        (lc.KSlack("40 s"), {}),
        (lc.Conservative(), {}),
        (lc.Aggressive("40 s", retractions=0.1), {}),
        (lc.Aggressive("40 s"), {"source": "j"}),
        (lc.Aggressive("40 s"), {"max_ahead": "5 s"}),
    ],
)
def test_there_is_no_express_road_where_other_steps_have_something_to_do(level, options):
    assert counted(level, **options)._engine.express is None


def test_there_is_no_express_road_where_rows_may_be_promises():
    query = lc.Query(QUERIES["one key"], level=lc.Aggressive("40 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", punctuation="P"), query)
    runtime.process([{"id": 1, "type": "A", "ts": 1, "k": 1, "of": "A"}])
    assert runtime._engine.express is None


@stepping
def test_wrong_plans_and_steps_are_refused():
    reading = np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(0, np.uint8), 1, 1, 10, 0
    ts, types, content, other = Buffer(I64), Buffer(np.dtype(np.int32)), Buffer(I64), kernels.Span()
    log, recent = (ts, types, content), kernels.Recent()
    no_key, a_key, words = np.zeros(0, np.int64), np.zeros(1, np.int64), (-1, 1, 8, other, None, None)
    above = Comparison(">", Attribute("", "x"), Literal(1))
    filter = kernels.program(
        np.array(filtering_road([above], Times("s", pa.int64()), {"x": pa.int64()}).words, np.int64)
    )
    for wrong, message in [
        (((), log, (), (), (), None, 10, 10), "7 parts of reading"),
        ((reading, (ts, types, None), (), (), (), None, 10, 10), "span"),
        ((reading, log, ((5, 0, 8, other, None, None),), (), (), None, 10, 10), "no field"),
        ((reading, log, ((0, 4, 1, other, None, None),), (), (), None, 10, 10), "no field"),
        ((reading, log, ((-1, 0, 8, other, None, other),), (), (), None, 10, 10), "no field"),
        ((reading, log, (), ((None, None, 0, no_key, None, ()),), (), None, 10, 10), "recent"),
        ((reading, log, (), ((None, recent, 0, a_key, None, ()),), (), None, 10, 10), "hashes"),
        ((reading, log, (), ((None, recent, 0, no_key, filter, ()),), (), None, 10, 10), "1 columns"),
        ((reading, log, (words,), ((None, recent, 0, no_key, filter, (0,)),), (), None, 10, 10), "what it is not"),
        ((reading, log, (), (), ((0, np.zeros(1, np.int64), (1,), None, None),), None, 10, 10), "order"),
        ((reading, log, (), (), (), (0, 2, a_key), 10, 10), "portion"),
        ((reading, log, (), (), (), (0, 2, no_key), 10, 10), "portion"),
        ((reading, log, (), (), (), None, 63, 10), "slices"),
    ]:
        with pytest.raises(TypeError, match=message):
            kernels.plan(*wrong)
    plan = kernels.plan(reading, log, (), (), (), None, 10, 10)
    rows, slot = pa.record_batch({"a": [1]}), np.zeros(10, np.uint64)
    schema = rows.schema.__arrow_c_schema__()
    tables = *[np.zeros(4, np.uint64), np.zeros(0, np.uint32)] * 2, 0, 0, 0
    with pytest.raises(TypeError, match="arguments"):
        kernels.step(plan, schema, slot)
    with pytest.raises(ValueError, match="PyCapsule"):
        kernels.step(schema, schema, slot, 0, 0, 0, 0, tables, 9)
    with pytest.raises(TypeError, match="7 parts of an index"):
        kernels.step(plan, schema, slot, 0, 0, 0, 0, tables[:6], 9)
    for wrong in (slot, slot[:9]):
        with pytest.raises(TypeError, match="slot"):
            kernels.step(plan, schema, wrong, 0, 0, 0, 0, tables, 9)
    rows._export_to_c(slot.ctypes.data)
    assert kernels.step(plan, schema, slot, 0, 0, 0, 0, tables, 9) is None  # no type, no time
    assert not slot[8], "they are released"
    with pytest.raises(TypeError, match="slot"):
        kernels.joint(slot)
    rows._export_to_c(slot.ctypes.data)
    shared = kernels.joint(slot)
    assert not slot[8], "they are taken over"
    for _ in range(2):
        assert kernels.step(plan, schema, shared, 0, 0, 0, 0, tables, 9) is None
    with pytest.raises(ValueError, match="alike"):
        kernels.step(plan, schema, shared, 1, 0, 0, 0, tables, 9)
