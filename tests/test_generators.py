"""Generators of promises: sound, as strong as what they assume allows, and the same for every batch split.

The tests drive them as the engine does: sources are numbered as they appear, the clock runs, all promises go into one
:class:`Bounds`, and each event is asked what it had to respect.
"""

from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, date, datetime
from itertools import pairwise

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.consistency.bounds import Bounds
from latecomer.consistency.clock import BEGINNING, END, FAR
from latecomer.consistency.generators import (
    Arrivals,
    BoundedDelay,
    Combined,
    EndOfInput,
    Generator,
    Heartbeats,
    Promises,
    Schedule,
    SequenceNumbers,
    Setting,
    SourcesInOrder,
    Stateless,
    from_plain,
    generator,
    to_plain,
)
from latecomer.consistency.generators.sequence import Runs
from latecomer.consistency.punctuation import ANY, Punctuation
from latecomer.errors import ConfigError, SchemaError, StateError
from latecomer.stream import Stream

STREAM = Stream(type="kind", id="id", source="device", unit="s", sources=["x", "y", "z"])
DISCOVERED = Stream(type="kind", id="id", source="device", unit="s")
TYPES = ("A", "B")
COLUMNS = {"kind": pa.string(), "id": pa.string(), "seq": pa.int64(), "upto": pa.int64()}


class Edge:
    """An engine that does nothing but take promises in."""

    def __init__(self, *configs, stream=STREAM):
        self.configs, self.stream = configs, stream
        self.logic = Combined(configs, Setting(stream, "s", TYPES))
        self.bounds = Bounds(len(TYPES), len(stream.sources or ()))
        self.sources = {name: number for number, name in enumerate(stream.sources or ())}
        self.clock, self.now = BEGINNING, None

    def send(self, events, reached=None):
        """Process one batch; for each event the bound that it had to respect (BEGINNING where no query asks for it)."""
        n = len(events)
        ts = np.array([e["ts"] for e in events], np.int64)
        types = np.array([TYPES.index(e["kind"]) if e["kind"] in TYPES else ANY for e in events], np.int64)
        before = len(self.sources)
        sources, known = np.full(n, ANY), np.zeros(n, np.int64)
        if self.stream.source is not None:
            sources = np.array([self.sources.setdefault(e["device"], len(self.sources)) for e in events], np.int64)
            known = np.maximum(np.maximum.accumulate(sources) + 1, before) if n else sources
        clock = np.maximum(np.maximum.accumulate(ts), self.clock) if n else ts
        self.clock = max([self.clock, *clock[-1:].tolist(), *([] if reached is None else [reached])])
        columns = {name: pa.array([e.get(name) for e in events], t) for name, t in COLUMNS.items()}
        names = list(self.sources)
        found = self.logic.observe(Arrivals(ts, types, sources, clock, names, columns, self.clock, self.now))
        counts = np.append(known, before)[found.position]
        history = self.bounds.apply(Punctuation(found.position, found.type, found.ts, found.source, counts))
        asked = types != ANY
        result = np.full(n, BEGINNING)
        result[asked] = history.at(types[asked], sources[asked], np.arange(n)[asked])
        return result.tolist()

    def hear(self, now):
        self.now = now
        self.send([])

    def saved(self):
        """The same edge in another process."""
        other = Edge(*(from_plain(to_plain(c)) for c in self.configs), stream=self.stream)
        other.logic.load(self.logic.dump())
        other.bounds.load(self.bounds.dump())
        other.sources, other.clock, other.now = dict(self.sources), self.clock, self.now
        return other

    def own(self, kind):
        return self.bounds.own(kind, len(self.sources))

    @property
    def whole(self):
        return [self.bounds.bound(t) for t in range(len(TYPES))]


def event(ts, kind="A", device="x", **more):
    return {"ts": ts, "kind": kind, "device": device, **more}


def mixed(draw, lists):
    """One order of all elements that keeps the order within each list."""
    lists = [list(part) for part in lists]
    order = draw(st.permutations([i for i, part in enumerate(lists) for _ in part]))
    return [lists[i].pop(0) for i in order]


DEVICES = st.sampled_from("xyz")
TIMES = st.lists(st.integers(0, 12), max_size=5)
KIND = st.sampled_from(["A", "B", "C"])


@st.composite
def in_order(draw, strict):
    """Sources that send in order of time."""
    lists = []
    for device in "xyz":
        times = sorted(draw(TIMES))
        lists.append([event(t, draw(KIND), device) for t in (sorted(set(times)) if strict else times)])
    return SourcesInOrder(strict=strict), mixed(draw, lists)


@st.composite
def delayed(draw, everyone):
    """A at most 3 behind the clock, B at most 0, C as it likes (or like A, when one delay is for all)."""
    most = {"A": 3, "B": 3 if everyone else 0, "C": 3 if everyone else 12}
    clock, events = 0, []
    for kind in draw(st.lists(KIND, max_size=12)):
        ts = clock + draw(st.integers(-most[kind], 3))
        clock = max(clock, ts)
        events.append(event(ts, kind, draw(DEVICES)))
    return BoundedDelay(3 if everyone else {"A": 3, "B": "0 s"}), events


@st.composite
def beating(draw, column):
    """Sources in disorder, with heartbeats that are true."""
    lists = []
    for device in "xyz":
        events = [event(t, draw(KIND), device) for t in draw(st.permutations(draw(TIMES)))]
        for place in sorted(draw(st.sets(st.integers(0, len(events)), max_size=2)), reverse=True):
            rest = [e["ts"] for e in events[place:] if e["kind"] != "beat"]
            upto = min(rest, default=15) - 1 - draw(st.integers(0, 1))
            beat = event(20, "beat", device, upto=upto) if column else event(upto, "beat", device)
            events.insert(place, beat)
        lists.append(events)
    return Heartbeats("beat", time="upto" if column else None), mixed(draw, lists)


@st.composite
def numbered(draw, strict):
    """Events numbered in order of time, which arrive in any order; some arrive twice, some have no number."""
    events = []
    for device in "xyz":
        times = sorted(set(draw(TIMES))) if strict else sorted(draw(TIMES))
        events += [event(t, draw(KIND), device, seq=i) for i, t in enumerate(times)]
    events = draw(st.permutations(events))
    if events and not strict:
        twice = draw(st.sampled_from(events))
        events = [*events, twice]
    return SequenceNumbers("seq", strict=strict), events


@st.composite
def scheduled(draw, typed, with_ids):
    """Expected events, in any order; some are cancelled, in the stream."""
    times = draw(TIMES)
    kinds = [draw(st.sampled_from("AB")) for _ in times]
    types = [k if typed and (with_ids is False or draw(st.booleans())) else None for k in kinds]
    ids = [f"i{n}" for n in range(len(times))] if with_ids else None
    events = [
        event(t, k, draw(DEVICES), id=i) for t, k, i in zip(times, kinds, ids or [None] * len(times), strict=True)
    ]
    if with_ids:
        gone = (
            draw(st.sets(st.sampled_from(events) if not events else st.integers(0, len(events) - 1), max_size=2))
            if events
            else set()
        )
        events = [replace_kind(e, "gone") if n in gone else e for n, e in enumerate(events)]
    config = Schedule(times, types if typed else None, ids, cancelled="gone" if with_ids else None, complete_to=14)
    return config, draw(st.permutations(events))


def replace_kind(e, kind):
    return {**e, "kind": kind, "ts": e["ts"]}


@st.composite
def ending(draw):
    """Sources that end at some time, the stream going on."""
    lists = []
    for device in "xyz":
        ends = [event(draw(st.integers(0, 12)), "end", device)] if draw(st.booleans()) else []
        lists.append([event(t, draw(KIND), device) for t in draw(TIMES)] + ends)
    return EndOfInput("end"), mixed(draw, lists)


STREAMS = {
    "in order": in_order(strict=False),
    "strictly in order": in_order(strict=True),
    "delay of each type": delayed(everyone=False),
    "delay of all": delayed(everyone=True),
    "heartbeats": beating(column=False),
    "heartbeats with a column": beating(column=True),
    "numbers": numbered(strict=False),
    "strict numbers": numbered(strict=True),
    "schedule": scheduled(typed=False, with_ids=False),
    "schedule with types": scheduled(typed=True, with_ids=False),
    "schedule with ids": scheduled(typed=False, with_ids=True),
    "schedule with ids and some types": scheduled(typed=True, with_ids=True),
    "ends": ending(),
}
each = pytest.mark.parametrize("name", STREAMS)


@each
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_promise_is_broken_where_the_assumption_holds(name, data):
    config, events = data.draw(STREAMS[name])
    bounds = Edge(config).send(events)
    for n, (e, bound) in enumerate(zip(events, bounds, strict=True)):
        repeated = e.get("seq") is not None and e in events[:n]
        assert e["kind"] not in TYPES or e["ts"] > bound or repeated


@each
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_bound_depends_on_the_batches(name, data):
    """Whole, one by one, and cut anywhere, with a snapshot at each cut; no bound ever falls."""
    config, events = data.draw(STREAMS[name])
    stream = data.draw(st.sampled_from([STREAM, DISCOVERED]))
    whole = Edge(config, stream=stream)
    expected = whole.send(events)
    single, found = Edge(config, stream=stream), []
    before = single.whole
    for e in events:
        found += single.send([e])
        assert all(a <= b for a, b in zip(before, single.whole, strict=True))
        before = single.whole
    assert found == expected
    assert single.whole == whole.whole or not events
    cuts = sorted({0, len(events), *data.draw(st.lists(st.integers(0, len(events)), max_size=3))})
    edge, found = Edge(config, stream=stream), []
    for begin, end in pairwise(cuts):
        edge = edge.saved()
        found += edge.send(events[begin:end])
    assert found == expected
    assert edge.whole == whole.whole or not events


# How far could a promise go? An event breaks what is assumed or it does not; the strongest promise is just below the
# earliest event that does not.


def keeps_order(strict):
    def keeps(events):
        of = [(e["device"], e["ts"]) for e in events]
        return all(s > t or (s == t and not strict) for n, (d, t) in enumerate(of) for c, s in of[n + 1 :] if c == d)

    return keeps


def keeps_delay(events):
    clock = -100
    for e in events:
        clock = max(clock, e["ts"])
        if e["kind"] in "AB" and e["ts"] < clock - {"A": 3, "B": 0}[e["kind"]]:
            return False
    return True


def keeps_beats(events):
    said = {}
    for e in events:
        if e["kind"] == "beat":
            said[e["device"]] = max(e["ts"], said.get(e["device"], -100))
        elif e["ts"] <= said.get(e["device"], -100):
            return False
    return True


def keeps_numbers(strict):
    def keeps(events):
        times = {}
        for e in events:
            times.setdefault((e["device"], e["seq"]), e["ts"])
        for device in "xyz":
            own = sorted((n, t) for (d, n), t in times.items() if d == device)
            for (_, s), (_, t) in pairwise(own):
                if s > t or (s == t and strict):
                    return False
        return True

    return keeps


def keeps_ends(events):
    ended = set()
    for e in events:
        if e["device"] in ended:
            return False
        ended |= {e["device"]} if e["kind"] == "end" else set()
    return True


def unseen(events, device):
    """Numbers that the next event of a source may have."""
    seen = {e["seq"] for e in events if e["device"] == device}
    return [n for n in range(max(seen, default=-1) + 2) if n not in seen]


STRENGTHS = {
    "in order": keeps_order(False),
    "strictly in order": keeps_order(True),
    "delay of each type": keeps_delay,
    "heartbeats": keeps_beats,
    "numbers": keeps_numbers(False),
    "strict numbers": keeps_numbers(True),
    "ends": keeps_ends,
}


@pytest.mark.parametrize("name", STRENGTHS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_promises_are_as_strong_as_the_assumption_allows(name, data):
    config, events = data.draw(STREAMS[name])
    keeps = STRENGTHS[name]
    assert keeps(events)
    edge = Edge(config)
    edge.send(events)
    for kind in TYPES:
        strongest = {}
        for device in edge.sources:
            numbers = unseen(events, device) if "numbers" in name else [None]
            possible = [t for t in range(-6, 18) for n in numbers if keeps([*events, event(t, kind, device, seq=n)])]
            # Nothing before this time, or nothing at all, within what was looked at.
            strongest[device] = min(possible, default=None)
        own = edge.own(TYPES.index(kind))
        for device, earliest in strongest.items():
            mine = int(own[edge.sources[device]])
            if earliest is None:
                assert mine >= 17
            elif earliest == -6:
                assert mine <= -7
            else:
                assert mine == earliest - 1
        assert edge.whole[TYPES.index(kind)] == max(BEGINNING, min(own))


@pytest.mark.parametrize("name", [name for name in STREAMS if "schedule" in name])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_schedule_promises_up_to_the_earliest_that_is_outstanding(name, data):
    config, events = data.draw(STREAMS[name])
    arrived = data.draw(st.integers(0, len(events)))
    edge = Edge(config)
    edge.send(events[:arrived])
    left = {e["id"]: e for e in events[arrived:]}
    for number, kind in enumerate(TYPES):
        if config.ids is not None:
            types = config.types or (None,) * len(config.ts)
            open_ts = [
                t for t, k, i in zip(config.ts, types, config.ids, strict=True) if i in left and k in (None, kind)
            ]
        else:
            open_ts = [e["ts"] for e in events[arrived:] if config.types is None or e["kind"] == kind]
        named = config.types is None or None in config.types or kind in config.types
        expected = min(open_ts, default=15) - 1 if named else BEGINNING
        assert edge.whole[number] == expected


# Combinations


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_of_several_generators_the_strongest_promise_counts(data):
    """On any events: what each says alone, combined per type and source, and over the known sources the least."""
    configs = data.draw(
        st.lists(
            st.sampled_from(
                [
                    SourcesInOrder(),
                    BoundedDelay({"A": 2}),
                    BoundedDelay(5),
                    Heartbeats("beat"),
                    EndOfInput("end"),
                    SequenceNumbers("seq", timeout=4),
                    Schedule([3, 5, 9], ["A", "A", "B"]),
                ]
            ),
            min_size=2,
            max_size=4,
        )
    )
    events = data.draw(
        st.lists(
            st.builds(
                event,
                st.integers(0, 12),
                st.sampled_from(["A", "B", "beat", "end"]),
                DEVICES,
                seq=st.integers(0, 4) | st.none(),
            ),
            max_size=10,
        )
    )
    stream = data.draw(st.sampled_from([STREAM, DISCOVERED]))
    together, alone = Edge(*configs, stream=stream), [Edge(c, stream=stream) for c in configs]
    whole = [BEGINNING] * len(TYPES)
    for e in events:
        (bound,) = together.send([e])
        single = [edge.send([e])[0] for edge in alone]
        if e["kind"] in TYPES:
            assert bound >= max(single)
        for kind in range(len(TYPES)):
            own = np.maximum.reduce([edge.own(kind) for edge in alone])
            whole[kind] = max(whole[kind], int(own.min()))
            assert together.own(kind).tolist() == np.maximum(own, whole[kind]).tolist()
        assert together.whole == whole


def test_two_generators_complete_each_other():
    """One source is in order, the other sends heartbeats: neither alone says anything of the whole stream."""
    stream = replace(STREAM, sources=["x", "y"])
    edge = Edge(Heartbeats("beat"), BoundedDelay({"B": 0}), stream=stream)
    edge.send([event(5, "beat", "x"), event(7, "A", "y")])
    assert edge.whole == [BEGINNING, 6]
    assert edge.send([event(6, "beat", "y"), event(5, "A", "x"), event(6, "A", "x")]) == [BEGINNING, 5, 5]
    assert edge.whole == [5, 6]


# Sequence numbers


class Naive:
    """Sequence numbers with a timeout, by definition: all numbers of one source, looked through after each event."""

    def __init__(self, timeout):
        self.timeout, self.next, self.bound, self.waiting = timeout, 0, None, {}

    def take(self, number, ts, clock):
        if number >= self.next:
            self.waiting.setdefault(number, (ts, clock))

    def settle(self, clock):
        while self.waiting:
            overdue = min(at for _, at in self.waiting.values()) + self.timeout <= clock
            if self.next not in self.waiting and not overdue:
                return
            number = min(self.waiting)
            ts, _ = self.waiting.pop(number)
            self.bound = ts if self.bound is None else max(self.bound, ts)
            self.next = number + 1
            while self.next in self.waiting:  # a run goes with its first number
                ts, _ = self.waiting.pop(self.next)
                self.bound, self.next = max(self.bound, ts), self.next + 1


SENT = st.lists(st.builds(event, st.integers(0, 20), st.just("A"), DEVICES, seq=st.integers(0, 6)), max_size=14)


@settings(max_examples=300, deadline=None)
@given(SENT, st.integers(0, 8), st.lists(st.integers(0, 14), max_size=3))
def test_a_gap_is_given_up_when_its_time_by_the_clock_is_over(events, timeout, cuts):
    edge, naive = Edge(SequenceNumbers("seq", timeout=timeout)), {d: Naive(timeout) for d in "xyz"}
    expected, clock = [], BEGINNING
    for e in events:
        own = [n.bound for n in naive.values()]
        least = BEGINNING if None in own else min(own) - 1
        mine = naive[e["device"]].bound
        expected.append(max(least, BEGINNING if mine is None else mine - 1))
        clock = max(clock, e["ts"])
        naive[e["device"]].take(e["seq"], e["ts"], clock)
        for n in naive.values():
            n.settle(clock)
    found = []
    for begin, end in pairwise(sorted({0, len(events), *(min(c, len(events)) for c in cuts)})):
        edge = edge.saved()
        found += edge.send(events[begin:end])
    assert found == expected


def numbers(*pairs):
    return [event(ts, seq=number) for number, ts in pairs]


ONE = replace(STREAM, source=None, sources=None)


def test_a_gap_is_given_up_when_the_clock_moves_elsewhere():
    edge = Edge(SequenceNumbers("seq", timeout=10), stream=ONE)
    edge.send(numbers((0, 5), (2, 7)))
    edge.send([], reached=16)
    assert edge.whole == [4, 4]
    edge.send([], reached=17)
    assert edge.whole == [6, 6]
    edge.send(numbers((4, 20)), reached=30)
    assert edge.whole == [19, 19]


def test_a_gap_is_given_up_by_the_wall_clock():
    edge = Edge(SequenceNumbers("seq", timeout="10 s", by="now"), stream=ONE)
    edge.hear(1000)
    edge.send(numbers((0, 5), (2, 7), (1_000, 90)))
    edge.hear(1009)  # from here on it waits: when it came within the time before is not known
    edge.send(numbers((1_000, 90), (2, 7)))
    edge.hear(1018)
    assert edge.whole == [4, 4]
    edge = edge.saved()
    edge.hear(1019)
    assert edge.whole == [89, 89]
    edge.send(numbers((1, 6), (1_001, 95), (1_003, 99)))
    assert edge.whole == [94, 94]
    edge.hear(1019)
    edge.hear(1029)
    assert edge.whole == [94, 94]
    edge.hear(1039)
    assert edge.whole == [98, 98]


def test_numbers_may_start_anywhere():
    edge = Edge(SequenceNumbers("seq", first=None), stream=ONE)
    edge.send(numbers((7, 10), (9, 12), (3, 2)))
    assert edge.whole == [9, 9]
    edge.send(numbers((8, 11)))
    assert edge.whole == [11, 11]
    edge = Edge(SequenceNumbers("seq", first=1, strict=True), stream=ONE)
    edge.send(numbers((0, 3), (2, 5)))
    assert edge.whole == [BEGINNING, BEGINNING]
    edge.send(numbers((1, 4)))
    assert edge.whole == [5, 5]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 50), st.integers(0, 9) | st.none())))
def test_runs_hold_their_invariants(added):
    runs, seen = Runs(), {}
    for number, ts, stamp in added:
        runs.add(number, ts, stamp)
        seen.setdefault(number, (ts, stamp))
        runs._check()
    stamps = [stamp for _, stamp in seen.values() if stamp is not None]
    assert runs.since() == min(stamps, default=-BEGINNING)
    while runs.starts:
        begin = runs.starts[0]
        end, bound = runs.pop()
        assert bound == max(seen.pop(n)[0] for n in range(begin, end))
    assert not seen


# Schedules


def test_a_long_schedule_is_walked_in_blocks():
    n = 10_000
    edge = Edge(Schedule(range(n), ids=map(str, range(n)), speaks_of=["A", "C"]))
    events = [event(t, id=str(t)) for t in range(n)]
    assert edge.send(events[1:]) == [-1] * (n - 1)
    assert edge.whole == [-1, BEGINNING]
    edge.send(events[:1])
    assert edge.whole == [n - 1, BEGINNING]
    edge = edge.saved()
    assert edge.send(events[:1]) == [n - 1]


def test_only_cancelling_rows_with_an_id_take_entries_off():
    config = Schedule([3, 3, 5], ["A", "A", None], cancelled="gone")
    edge = Edge(config)
    edge.send([event(3, "gone"), event(5, "gone"), event(3)])
    assert edge.whole == [2, 4]
    edge.send([event(5, "C"), event(3), event(3)])
    assert edge.whole == [5, 5]


def test_a_schedule_knows_its_events_by_a_column_of_their_own():
    config = Schedule([3, 5], ids=["p", None], key="flight")
    assert config.columns == ("flight",)
    logic = config.start(Setting(Stream(unit="s"), "s", TYPES))
    columns = {"flight": pa.array(["q", "p"]), "type": pa.array(["A", "A"])}
    two = np.array([4, 9])
    found = logic.observe(Arrivals(two, two * 0, two * 0 + ANY, two, (), columns))
    assert list(zip(found.position.tolist(), found.ts.tolist(), strict=True)) == [(-1, 2), (1, 4)]


def test_times_of_a_schedule_in_other_units():
    when = [datetime(1970, 1, 1, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 2, tzinfo=UTC)]
    for ts in (when, pa.array(when, pa.timestamp("ms")), pa.chunked_array([pa.array(when, pa.timestamp("ns"))])):
        edge = Edge(Schedule(ts))
        edge.send([event(60)])
        assert edge.whole == [119, 119]
    edge = Edge(Schedule([1, 2], unit="minutes"))
    edge.send([event(120), event(60)])
    assert edge.whole == [120, 120]
    edge = Edge(Schedule(when, complete_to=datetime(1970, 1, 2, tzinfo=UTC)))
    edge.send([event(120), event(60)])
    assert edge.whole == [86_400, 86_400]


# Marks


def test_heartbeats_carry_times_in_a_column():
    events = [event(9, "beat", upto=u) for u in (4, None, 3)]
    edge = Edge(Heartbeats("beat", time="upto"), stream=ONE)
    edge.send(events)
    assert edge.whole == [4, 4]


@pytest.mark.parametrize(
    ("values", "ts"),
    [
        (pa.array([datetime(1970, 1, 1, 0, 0, 1, 999_000)], pa.timestamp("ms")), 1),
        (pa.array([date(1970, 1, 2)]), 86_400),
        (pa.array([7], pa.int8()), 7),
        (pa.array([2**63], pa.uint64()), FAR),
        (pa.array([-(2**63)], pa.int64()), -FAR),
    ],
)
def test_columns_of_times(values, ts):
    logic = Heartbeats("beat", time="upto").start(Setting(Stream(unit="s"), "s", TYPES))
    one = np.array([0])
    arrivals = Arrivals(one, one, one, one, ("x",), {"type": pa.array(["beat"]), "upto": values})
    assert logic.observe(arrivals).ts.tolist() == [ts]


def test_times_that_would_not_fit_are_cut_off():
    logic = Heartbeats("beat", time="upto").start(Setting(Stream(unit="ns"), "ns", TYPES))
    one = np.array([0, 0])
    said = pa.array([2**62, -(2**62)], pa.timestamp("s"))
    found = logic.observe(Arrivals(one, one, one, one, ("x",), {"type": pa.array(["beat"] * 2), "upto": said}))
    assert found.ts.tolist() == [FAR // 10**9 * 10**9, -(FAR // 10**9) * 10**9]


# Configs


@generator
@dataclass(frozen=True)
class LowWatermark(Generator):
    """Every event carries, in a column, a time below which its source has sent everything."""

    column: str

    def start(self, setting):
        return LowWatermarkLogic(self.column)


class LowWatermarkLogic(Stateless):
    def __init__(self, column):
        self.column = column

    def observe(self, arrivals):
        low = arrivals.column(self.column).fill_null(BEGINNING).to_numpy(zero_copy_only=False)
        return Promises.of(np.arange(len(arrivals)), low - 1, source=arrivals.sources)


@pytest.mark.parametrize(
    "config",
    [
        SourcesInOrder(strict=True),
        BoundedDelay("1 h 30 min"),
        BoundedDelay({"B": 3, "A": "0.5 s"}),
        Heartbeats("beat", time="upto"),
        EndOfInput("end"),
        SequenceNumbers("seq", first=None, timeout="1 min", by="now", strict=True),
        Schedule([1, 2], ["A", None], [None, 7], unit="ms", key="flight", cancelled="x", speaks_of="AB", complete_to=9),
        LowWatermark("low"),
    ],
)
def test_configs_are_plain_values(config):
    plain = to_plain(config)
    assert from_plain(plain) == config
    assert hash(from_plain(plain)) == hash(config)
    assert plain == msgpack.unpackb(msgpack.packb(plain))
    with pytest.raises(FrozenInstanceError):
        config.strict = None


def test_a_generator_of_ones_own():
    edge = Edge(LowWatermark("upto"), SourcesInOrder(), stream=ONE)
    edge.send([event(9, upto=4), event(12, upto=None), event(3, upto=20)])
    assert edge.whole == [19, 19]
    assert LowWatermark("upto").columns == ()


@pytest.mark.parametrize(
    ("promises", "message"),
    [
        (Promises.of(1, 5), r"Loose made a promise with position 1: allowed are -1 to 0"),
        (Promises.of(-2, 5), r"position -2"),
        (Promises.of([0, 0], 5, type=[ANY, 2]), r"type 2: allowed are -1 to 1"),
        (Promises.of(0, 5, source=1), r"source 1: allowed are -1 to 0"),
    ],
)
def test_promises_of_nobody_are_refused(promises, message):
    class Loose(Stateless):
        def start(self, setting):
            return self

        def observe(self, arrivals):
            return promises

    with pytest.raises(ConfigError, match=message):
        Edge(Loose(), stream=DISCOVERED).send([event(5)])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BoundedDelay({}), ConfigError, "names no type"),
        (lambda: BoundedDelay({"A": "soon"}), ConfigError, "'soon' is not a duration"),
        (lambda: Heartbeats(""), ConfigError, r"Heartbeats\(type=''\): the name of an event type is needed"),
        (lambda: EndOfInput(None), ConfigError, r"EndOfInput\(type=None\)"),
        (lambda: SequenceNumbers(""), ConfigError, "the column with the numbers is needed"),
        (lambda: SequenceNumbers("seq", by="wall"), ConfigError, "by='wall'.*'?clock'? or '?now'?"),
        (lambda: SequenceNumbers("seq", timeout=-1), ConfigError, "negative"),
        (lambda: Schedule([]), ConfigError, "needs complete_to="),
        (lambda: Schedule([1, None]), ConfigError, "has no time"),
        (lambda: Schedule([1.5]), ConfigError, "are double"),
        (lambda: Schedule([1, "x"]), ConfigError, "must be whole numbers or datetimes"),
        (lambda: Schedule([1, 2], ["A"]), ConfigError, "2 times and 1 types"),
        (lambda: Schedule([1, 2], ids=["p", "p"]), ConfigError, "'p' twice"),
        (lambda: Schedule([1], complete_to=datetime(2020, 1, 1)), ConfigError, "give both alike"),
        (lambda: Schedule([1], complete_to="noon"), ConfigError, "complete_to='noon': give a whole number"),
        (lambda: Schedule([1], ids=["p"]).start(Setting(Stream(), "s", TYPES)), ConfigError, "no id column"),
        (lambda: Edge(SourcesInOrder), ConfigError, "is not a generator of promises"),
        (lambda: Edge("in order"), ConfigError, "is not a generator of promises"),
        (lambda: Edge(SequenceNumbers("upto2")).send([event(1)]), SchemaError, "no column 'upto2'"),
        (lambda: Edge(SequenceNumbers("kind")).send([event(1)]), SchemaError, "numbers must be whole numbers"),
        (lambda: Edge(Heartbeats("A", time="id")).send([event(1, id="p")]), SchemaError, "column 'id' holds string"),
        (lambda: from_plain({"generator": "Oracle"}), StateError, "'Oracle' is not a known generator"),
        (lambda: Edge(SourcesInOrder()).logic.load([["Heartbeats", {}]]), StateError, "is of the promises"),
        (lambda: generator(dataclass(frozen=True)(type("SourcesInOrder", (), {}))), ConfigError, "another generator"),
        (lambda: to_plain(type("Loose", (), {})()), ConfigError, "decorate the class with @generator"),
    ],
)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_types_that_no_query_asks_for_are_promised_nothing():
    edge = Edge(BoundedDelay({"C": 3}), Schedule([5], ["C"]), stream=ONE)
    edge.send([event(9, "C")])
    assert edge.whole == [BEGINNING, BEGINNING]


def test_the_end_is_the_end():
    edge = Edge(EndOfInput("end"))
    edge.send([event(1, "end", "x"), event(9, "end", "y")])
    assert edge.whole == [BEGINNING, BEGINNING]
    assert edge.send([event(1, "A", "x"), event(3, "end", "z"), event(99, "B", "z")]) == [END, BEGINNING, END]
    assert edge.whole == [END, END]
