"""The compiled road against the NumPy road: the same matches, deletions and killers, whatever the pattern."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.runtime import follow, road, rows
from latecomer.runtime import pattern as patterns
from latecomer.runtime.evaluate import Times, compile_truth
from latecomer.runtime.follow import CompiledMatcher, matcher_of
from latecomer.runtime.road import Unpaved
from latecomer.runtime.selection import Selector
from latecomer.runtime.sequence import SequenceMatcher
from latecomer.storage import kernels
from latecomer.storage.log import EventLog
from latecomer.storage.store import CodeLayout, Store

pytestmark = pytest.mark.skipif(kernels.follow is None, reason="kernels are not compiled: there is one road alone")

LAYOUT = CodeLayout(4)
TYPES = {
    "n": pa.int64(),
    "small": pa.int8(),
    "u": pa.uint64(),
    "f": pa.float64(),
    "g": pa.float32(),
    "text": pa.string(),
    "b": pa.bool_(),
    "when": pa.timestamp("s"),
    "day": pa.date32(),
    "length": pa.duration("s"),
}
SHAPES = (
    "A a, B b",
    "A a, A b, C c",
    "A a, !B n, C c",
    "A a, !B n",
    "!B n, A a",
    "!B n, A a, B b, !C o",
    "A a, !B n, !C o, B b",
    "A a, !B n, B b, !C o, C c",
    "A a, B b, !A n, C c, A d",
)
#: Conditions that the compiled road knows, over two variables.
CONDITIONS = (
    "{x}.n = {y}.n",
    "{x}.small = {y}.small",
    "{x}.text = {y}.text",
    "{x}.f = {y}.f",
    "{x}.g = {y}.g",
    "{x}.u = {y}.u",
    "{x}.b = {y}.b",
    "{x}.when = {y}.when",
    "{x}.day = {y}.day",
    "{x}.n = {y}.ts",
    "{x}.n < {y}.n",
    "{x}.n <> {y}.small",
    "{x}.n >= {y}.f",
    "{x}.f > {y}.n",
    "{x}.g <= {y}.f + 1",
    "{x}.text <> {y}.text",
    "{x}.n + {y}.n * 2 > 3 - {x}.small",
    "{x}.n * {y}.n > 4",
    "{x}.n / {y}.n >= 0.5",
    "{x}.n % {y}.small = 1",
    "-{x}.f < {y}.f % 2",
    "{x}.ts - {y}.ts < 5",
    "{x}.ts - {y}.ts < {y}.length * 2",
    "{x}.when + {y}.length > {y}.when",
    "({x}.b AND {y}.n > 1) OR NOT ({y}.b = {x}.b)",
    "{x}.n IS NULL OR {y}.f IS NOT NULL",
    "{x}.n IN ({y}.n, {y}.small, 2)",
    "{x}.n BETWEEN {y}.small AND {y}.f",
    "{x}.u > {y}.n",
)
#: One that it does not: these queries go the other road.
UNKNOWN = ("{x}.text < {y}.text", "{x}.text LIKE 'a%' OR {y}.n > 1", "{x}.when + 1 d > {y}.day")


_WHOLE = [0, 1, 2, 3] * 4 + [2**53, 2**53 + 1, -(2**63), 2**63 - 1]
#: What columns hold.
VALUES = {
    "n": _WHOLE,
    "small": [-2, 0, 1, 2],
    "u": [0, 1, 2, 3, 2**63 + 5],
    "f": [0.0, -0.0, 1.0, 1.5, 2.0, 2.0, float("nan"), float("inf"), 2.0**53],
    "g": [0.0, -0.0, 1.0, 1.5, float("nan")],
    "text": ["", "a", "ab", "a text of more than eight bytes", "a text of more than eight bytez"],
    "b": [False, True],
    "when": [0, 1, 2, 3],
    "day": [0, 1, 2, 3],
    "length": [-1, 0, 1, 3],
}


def drawn(rng, n, nulls):
    """Columns of ``n`` events; drawn by number, which is faster than value by value."""
    columns = {}
    for name, values in VALUES.items():
        choice = [*values, *([None] if nulls else [])]
        columns[name] = pa.array([choice[i] for i in rng.integers(0, len(choice), n)], TYPES[name])
    return columns


@st.composite
def questions(draw, conditions=CONDITIONS):
    """A query's text."""
    shape = draw(st.sampled_from(SHAPES))
    variables = [part.split()[1] for part in shape.split(", ")]
    positive = [part.split()[1] for part in shape.split(", ") if not part.startswith("!")]
    where = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        x, y = draw(st.sampled_from(variables)), draw(st.sampled_from(positive))
        where.append(draw(st.sampled_from(conditions)).format(x=x, y=y))
    key = draw(st.sampled_from(["", "", "[b]", "[small]", "[text]", "[b, small]", "[f]"]))
    where = [w for w in (key, *where) if w]
    condition = f" WHERE {' AND '.join(f'({w})' if 'OR' in w else w for w in where)}" if where else ""
    return f"PATTERN SEQ({shape}){condition} WITHIN {draw(st.integers(8, 40))} s"


class Machine:
    """A log, stores, and both matchers over them."""

    def __init__(self, text):
        plan = lc.Query(text, name="q", level=lc.Aggressive(max_delay="1 d")).plan
        times = Times("s", pa.int64())
        self.pattern = patterns.Pattern(plan, int(plan.window.amount // 10**9), TYPES, times)
        self.log = EventLog(TYPES)
        self.tester = patterns.Tester(self.log, self.pattern)
        self.stores = {s: Store(LAYOUT) for s in self.pattern.selections()}
        self.plain = SequenceMatcher(self.pattern, self.stores.__getitem__, LAYOUT, self.tester)
        self.compiled = matcher_of(self.pattern, self.stores, LAYOUT, self.tester)
        self.conditions = {c: compile_truth(c, times) for s in self.stores for c in s.filter}

    def stage(self, types, ts, columns):
        refs = self.log.coming(ts)
        self.log.append(ts, types, np.zeros(len(ts), np.uint64), columns)
        selector = Selector(types, {"A": 0, "B": 1, "C": 2}, ts, columns, self.conditions)
        for selection, store in self.stores.items():
            at, hashes = selector.select(selection)
            store.stage(hashes, ts[at], refs[at])

    def commit(self):
        for store in self.stores.values():
            store.commit()


def listed(parts, positives):
    """Matches as sorted tuples of references and times."""
    found = []
    for part in parts:
        part, cause = part if isinstance(part, tuple) else (part, np.full(len(part), -1))
        columns = [part.ref(i).tolist() for i in positives] + [part.time(i).tolist() for i in positives]
        found += list(zip(*columns, part.keys.tolist(), cause.tolist(), strict=True))
    return found


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), questions(), st.booleans(), st.sampled_from([3, 1 << 18]), st.booleans(), st.booleans())
def test_both_roads_lead_to_the_same(seed, text, colliding, piece, nulls, sparse):
    rng = np.random.default_rng(seed)
    with (
        mock.patch.object(follow, "PIECE", piece),
        mock.patch.object(rows, "PIECE", piece),
        mock.patch.object(road, "HASHED", 1 << 40 if colliding else -1),
    ):
        try:
            machine = Machine(text)
        except lc.QueryError:
            return  # a condition between two negatives, or one that makes no sense
        positives = machine.pattern.positives
        hashed = machine.tester.hashes
        if colliding:
            machine.tester.hashes = lambda step, own: hashed(step, own) & np.uint64(1 << 40)
        for number in range(3):
            n = int(rng.integers(0, 12))
            types, ts = rng.integers(0, 3, n), rng.integers(0, 40, n)
            columns = drawn(rng, n, nulls)
            if colliding:
                select = Selector.select

                def coarse(self, selection, select=select):
                    at, hashes = select(self, selection)
                    return at, hashes & np.uint64(1 << 40)

                with mock.patch.object(Selector, "select", coarse):
                    machine.stage(types, ts, columns)
            else:
                machine.stage(types, ts, columns)
            gained = [listed(m.inserted(False), positives) for m in (machine.plain, machine.compiled)]
            assert sorted(gained[0]) == sorted(gained[1]), text
            lost = [listed(m.deleted(), positives) for m in (machine.plain, machine.compiled)]
            assert sorted(lost[0]) == sorted(lost[1]), text
            answered(machine.compiled.answer(3), machine.compiled, lost[1], gained[1], piece)
            in_order = [listed(m.inserted(True), positives) for m in (machine.plain, machine.compiled)]
            assert sorted(in_order[0]) == sorted(in_order[1]), text
            last = len(positives) * 2 - 1
            assert [m[last] for m in in_order[1]] == sorted(m[last] for m in in_order[1])
            for part in list(machine.plain.inserted(True)):
                for call in ("alive", "spared"):
                    both = [getattr(m, call)(part).tolist() for m in (machine.plain, machine.compiled)]
                    assert both[0] == both[1], (text, call)
            machine.commit()
            if sparse and number == 1:
                machine.log.compact(np.ones(len(machine.log), bool))
            for order in (*machine.pattern.inserts, *machine.pattern.deletes):
                if n and not order.selection.filter:
                    around = [
                        listed(m.around(order, refs, ts_, hashes), positives)
                        for m in (machine.plain, machine.compiled)
                        for refs, ts_, hashes in [events_of(machine.stores[order.selection])]
                    ]
                    assert sorted(around[0]) == sorted(around[1]), text


def answered(answer, matcher, lost, gained, piece):
    """One answer tells all that is lost and gained, in this order."""
    if answer is None:
        assert not matcher._paved or len(lost) + len(gained) >= piece
        return
    told = [*answer.refs.T.tolist(), *answer.ts.T.tolist()]
    both = [*lost, *gained]
    assert (list(zip(*told, strict=True)) if told else []) == [match[:-2] for match in both]
    kinds = [op for op, count in answer.ops for _ in range(count)]
    assert kinds == [False] * len(lost) + [True] * len(gained)
    assert answer.query == 3 and all(count for _, count in answer.ops)


def events_of(store):
    """References, times and hashes of a store's events."""
    found = [(n, r) for n, f in store.frames.items() for r in f.old.all]
    keys, refs = store.events()
    ts = [(r.codes & np.uint64(LAYOUT.mask)).view(np.int64) + (n << LAYOUT.bits) for n, r in found]
    return refs, np.concatenate([np.zeros(0, np.int64), *ts]), keys


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_compiled_road_knows(condition):
    machine = Machine(f"PATTERN SEQ(A a, B b) WHERE {condition.format(x='a', y='b')} WITHIN 9 s")
    assert isinstance(machine.compiled, CompiledMatcher)
    assert all(own is not None for own in [*machine.compiled._gaining, *machine.compiled._gaining_in_order])


@pytest.mark.parametrize("condition", UNKNOWN)
def test_what_it_does_not_know_goes_the_other_road(condition):
    machine = Machine(f"PATTERN SEQ(A a, B b) WHERE {condition.format(x='a', y='b')} WITHIN 9 s")
    assert all(own is None for own in [*machine.compiled._gaining, *machine.compiled._gaining_in_order])
    with pytest.raises(Unpaved):
        road.road_of(machine.pattern.inserts[0], machine.pattern, TYPES)


def test_a_damaged_program_is_refused():
    machine = Machine("PATTERN SEQ(A a, !C c, B b) WHERE [n] AND a.f < b.f WITHIN 9 s")
    words = road.road_of(machine.pattern.inserts[0], machine.pattern, TYPES).words
    for cut in range(len(words)):
        with pytest.raises(TypeError):
            kernels.program(np.array(words[:cut], np.int64))
    with pytest.raises(TypeError):
        kernels.program(np.array([*words, 0], np.int64))


def test_a_reference_that_is_not_in_the_log_is_an_error():
    machine = Machine("PATTERN SEQ(A a, B b) WHERE [n] WITHIN 9 s")
    columns = {kind: pa.array([1, 1], pa.int64()).cast(t) for kind, t in TYPES.items() if pa.types.is_integer(t)}
    columns |= {kind: pa.nulls(2, t) for kind, t in TYPES.items() if kind not in columns}
    machine.stage(np.array([0, 1]), np.array([1, 2]), columns)
    assert len(listed(machine.compiled.inserted(False), (0, 1))) == 1
    machine.log._dense += 1
    with pytest.raises(IndexError, match="not in the log"):
        list(machine.compiled.inserted(False))


def test_in_memory_references_are_numbers_however_many_events_have_come():
    """Where slices leave memory a reference also tells a slice; elsewhere all of its bits are the number."""
    query = lc.Query("PATTERN SEQ(A a, B b) WHERE [k] AND b.v > a.v WITHIN 10 s", name="q", level=lc.Aggressive("10 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    runtime.process([{"id": 0, "type": "A", "ts": 0, "k": "x", "v": 1}])
    log = runtime._engine.log
    log.drop_before(1)
    log._look_at = 0
    log.drop_before(1)
    log._dense = 1 << 41  # what is behind it has been forgotten
    rows = [{"id": n, "type": "AB"[n % 2 == 0], "ts": 20 + n, "k": "x", "v": n} for n in (1, 2)]
    assert runtime.process(rows).changes["events"].to_pylist() == [[1, 2]]


def test_wrong_orders_are_refused():
    machine = Machine("PATTERN SEQ(A a, B b) WHERE [n] WITHIN 9 s")
    none = np.zeros(0, np.int64)
    order = machine.compiled._gaining[0]._program, (), 10, (), (), none, (none,), (none,), 9, ()
    for orders, parts in ((None, none), ([order], none), ((order,) * 65, none), ((order[1:],), none), ((order,), none)):
        with pytest.raises(TypeError):
            kernels.follow_each(orders, parts, 9)
    with pytest.raises(TypeError):
        kernels.follow_each((), np.zeros(33, np.int64), 9)
    counts, refs, ts = kernels.follow_each((), np.zeros(2, np.int64), 9)
    assert counts == () and refs.shape == ts.shape == (0, 2)
