"""Clocks and guards in a running engine: sources that join, idle, return and die, against the scalar reference."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from benchmarks.data.flights import load
from latecomer.demo import truth
from latecomer.demo.queries import TEXTS as DEMO
from tests.oracle import matches
from tests.test_levels import Ledger
from tests.time_reference import FOREVER, World, some, wild

COLUMNS = {"id": pa.string(), "type": pa.string(), "ts": pa.int64(), "source": pa.string(), "k": pa.string()}
SCHEMA = pa.schema(COLUMNS)
SOURCES = ["x", "y", "z"]
TEXTS = [
    "PATTERN SEQ(A a, !B b, C c) WITHIN 6",
    "PATTERN SEQ(A a, !B b) WITHIN 5",
    "PATTERN SEQ(!B b, A a, C c) WITHIN 6",
    "PATTERN SEQ(A a, C c) WITHIN 4",
    "PATTERN SEQ(A a, !B b, C c, !A d) WITHIN 5",
]


@dataclass(frozen=True)
class Journey:
    """A stream's options, its queries, and steps in order: ("event", dict, clock known from elsewhere), ("advance",
    now), ("observe", ts), ("punctuate", (ts, source))."""

    queries: tuple[lc.Query, ...]
    steps: tuple[tuple, ...]
    options: dict = field(default_factory=dict)
    cuts: frozenset[int] = frozenset()
    restores: frozenset[int] = frozenset()
    declared_schema: bool = True

    def __repr__(self):
        lines = [f"{self.options} cuts={sorted(self.cuts)} restores={sorted(self.restores)} {self.declared_schema}"]
        lines += [f"{q.name}: {q.text}" for q in self.queries]
        return "\n".join(lines + [f"  {n} {' '.join(map(str, step))}" for n, step in enumerate(self.steps)])

    def runtime(self):
        schema = SCHEMA if self.declared_schema else None
        return lc.Runtime(lc.Stream(id="id", source="source", unit="s", schema=schema, **self.options), self.queries)

    def world(self):
        o = self.options
        names = {"clock": "kind", "sources": "declared", "idle_timeout": "timeout"}
        return World(self.queries, **{names.get(k, k): v for k, v in o.items() if v is not None})

    def cut(self, cuts):
        return Journey(self.queries, self.steps, self.options, frozenset(cuts), frozenset(), self.declared_schema)

    def batches(self):
        """("process", events), ("advance", now) and ("observe", ts), each with the number of steps done then."""
        rows = []
        for number, step in enumerate(self.steps):
            if rows and (number in self.cuts or step[0] != "event"):
                yield ("process", rows), number
                rows = []
            if step[0] == "event":
                rows.append(step)
            else:
                yield step, number + 1
        if rows:
            yield ("process", rows), len(self.steps)

    def play(self):
        """Each output, with the number of steps done."""
        runtime = self.runtime()
        for number, ((kind, what), upto) in enumerate(self.batches()):
            if kind == "process":
                clocks = [reached for _, _, reached in what]
                elsewhere = None if clocks == [None] * len(clocks) else [-(2**62) if c is None else c for c in clocks]
                yield runtime.process(table([e for _, e, _ in what]), clocks=elsewhere), upto
            elif kind == "punctuate":
                yield runtime.punctuate(what[0], source=what[1]), upto
            else:
                yield getattr(runtime, kind)(what), upto
            if number in self.restores:
                runtime = lc.Runtime.restore(runtime.snapshot())
        yield runtime.finish(), None


def table(events):
    return pa.Table.from_pylist([{name: e.get(name) for name in SCHEMA.names} for e in events], SCHEMA)


def told(out, query):
    return [(r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist() if r["query"] == query]


def check(journey):
    """After each batch exactly the matches that the reference expects are out, and exactly its late rows."""
    world = journey.world()
    ledgers = {q.name: Ledger(q.name) for q in journey.queries}
    late, ahead, done = {q.name: [] for q in journey.queries}, [], 0
    for out, upto in journey.play():
        for step in journey.steps[done:upto]:
            if step[0] == "event":
                world.event(step[1], -FOREVER if step[2] is None else step[2])
            elif step[0] != "punctuate":  # which speaks to another level, and moves no clock
                getattr(world, step[0])(step[1])
        if upto is None:
            world.finish()
        done = upto
        ahead += told(out, None)
        assert ahead == world.ahead
        for name, asked in world.asked.items():
            late[name] += told(out, name)
            assert late[name] == asked.late, f"{name} after step {upto}"
            ledgers[name].read(out)
            assert set(ledgers[name].held()) == set(asked.out()), f"{name} after step {upto}"
            assert (
                ledgers[name].order == []
                or asked.level.__class__ is lc.Aggressive
                or not any(op == "delete" for op, _ in ledgers[name].order)
            )
    for name, asked in world.asked.items():
        assert set(ledgers[name].held()) == matches(asked.plan, asked.accepted, "s")


def make(pick, by_source=False):
    """A journey; ``pick`` chooses from a list. ``by_source``: K-slack with slacks by source."""
    kind, outside = pick(["stream", "source"]), pick([False, False, True])
    options = {
        "clock": kind,
        "sources": SOURCES[: pick([0, 1, 2, 3])] or None,
        "idle_timeout": pick([None, 3, 6, 6]),
        "max_ahead": None if outside else pick([None, 0, 4]),
        "quorum": pick([1, 1, 2, 3]) if kind == "stream" else 1,
    }
    levels = [lc.KSlack(0), lc.KSlack(3), lc.KSlack(8), lc.Aggressive(0), lc.Aggressive(4), lc.Aggressive(8, 3)]
    if by_source:
        levels = [lc.KSlack(k, sources=s) for k in (0, 2) for s in ({"x": 5}, {"x": 0, "y": 7}, {"z": 3, "y": 1})]
    queries = [lc.Query(pick(TEXTS), name=f"q{n}", level=pick(levels)) for n in range(pick([1, 2]))]
    real, steps = pick([0, -50, 10**9]), []
    rare = [*pick([[], ["punctuate"]]), *(["observe"] if outside else [])]
    for number in range(pick(range(4, 19))):
        what = pick(["event"] * 6 + ["advance"] * 2 + rare)
        if what == "advance":
            real += pick([0, 1, 2, 3, 6, 10])
            steps.append((what, real))
        elif what == "punctuate":
            steps.append((what, (real, pick("xyzp"))))
        elif what == "observe":
            steps.append((what, real - pick([0, 1, 5, -3])))
        else:
            real += pick([0, 1, 1, 2])
            ts = real - pick([0, 0, 0, 0, 1, 1, 2, 3, 5, 8, -1, -4, -20])
            reached = real - pick([8, 3, 0]) if outside and pick([False, True]) else None
            e = {
                "id": f"e{number}",
                "type": pick("AAABBCCCZ"),
                "ts": ts,
                "source": pick(["x", "x", "y", "y", "z", None]),
            }
            steps.append((what, e, reached))
    cuts, restores = some(pick, len(steps), pick([1, 2, 4])), some(pick, len(steps))
    return Journey(tuple(queries), tuple(steps), options, cuts, restores, pick([True, False]))


@st.composite
def journeys(draw, **options):
    return make(lambda choices: draw(st.sampled_from(choices)), **options)


@pytest.mark.parametrize("by_source", [False, True])
def test_clocks_guards_and_slack_as_the_reference_has_them(by_source):
    wild(make, check, range(80), by_source=by_source)


@settings(max_examples=40)
@given(st.booleans().flatmap(lambda by_source: journeys(by_source=by_source)))
def test_clocks_guards_and_slack_in_small_cases(journey):
    check(journey)


def outcome(journey):
    """All late rows in order, and the net of each query."""
    ledgers, late = {q.name: Ledger(q.name) for q in journey.queries}, []
    for out, _ in journey.play():
        late += [(r["query"], r["id"], r["reason"], r["late_by"], r["late_id"]) for r in out.late.to_pylist()]
        for ledger in ledgers.values():
            ledger.read(out)
    return sorted(late, key=repr), {name: ledger.net for name, ledger in ledgers.items()}


def test_nothing_depends_on_the_batches_between_two_advances():
    def same(journey):
        told = outcome(journey)
        assert outcome(journey.cut([])) == told
        assert outcome(journey.cut(range(len(journey.steps)))) == told

    for by_source in (False, True):
        wild(make, same, range(1000, 1030), by_source=by_source)


# Case by case

PAIR = "PATTERN SEQ(A a, C c) WITHIN 100"
OVERDUE = "PATTERN SEQ(A a, !B b) WITHIN 10"


def start(text, level, **options):
    stream = lc.Stream(id="id", source="source", unit="s", schema=SCHEMA, **options)
    return lc.Runtime(stream, [lc.Query(text, name="q", level=level)])


def send(runtime, *words):
    """``"xA5"``: an event of type A at time 5 from source x; the late rows, as text, and the changes."""
    rows = [{"id": w, "type": w[1], "ts": int(w[2:].rstrip("'")), "source": w[0]} for w in words]
    return shown(runtime.process(table(rows)))


def shown(out):
    late = [f"{r['id']} {r['reason']} {r['late_by']}" for r in out.late.to_pylist()]
    return late + [f"{'+' if r['op'] == 'insert' else '-'}{' '.join(r['events'])}" for r in out.changes.to_pylist()]


@pytest.mark.parametrize("clock", ["stream", "source"])
@pytest.mark.parametrize(("level", "due"), [(lc.KSlack(4), 35), (lc.Aggressive(9), 31), (lc.Aggressive(9, 4), 35)])
def test_overdue_is_told_though_nothing_arrives(clock, level, due):
    """A at 10 needs B up to 20; the clock follows 10 behind ``now`` once all have been silent for that long."""
    runtime = start(OVERDUE, level, clock=clock, idle_timeout=10)
    assert send(runtime, "xA10", "yZ9") == []
    runtime.advance(12)
    for now in range(13, due):
        assert shown(runtime.advance(now)) == []
        runtime = lc.Runtime.restore(runtime.snapshot())
    assert shown(runtime.advance(due)) == ["+xA10"]
    assert runtime.clock == due - 10


def test_overdue_is_not_told_while_a_source_speaks():
    runtime = start(OVERDUE, lc.KSlack(0), clock="source", idle_timeout=10)
    send(runtime, "xA10")
    for now in range(0, 100, 5):
        assert shown(runtime.advance(now)) == []
        assert send(runtime, f"xA10{chr(39) * now}") == []
    assert runtime.clock == 10


def test_a_source_that_dies_is_waited_for_and_then_forgotten():
    runtime = start(PAIR, lc.KSlack(0), clock="source", idle_timeout=10)
    assert send(runtime, "xA1", "yZ2") == []
    runtime.advance(0)
    told = [send(runtime, f"xC{now}") + shown(runtime.advance(now)) for now in range(2, 13)]
    assert told[:8] == [["+xA1 xC2"]] + [[]] * 7  # y stays at 2, so nothing later is complete
    assert told[8] == [f"+xA1 xC{ts}" for ts in range(3, 11)]  # at now 10
    assert told[9:] == [["+xA1 xC11"], ["+xA1 xC12"]]


def test_a_source_that_returns_is_judged_like_all_others_and_holds_again():
    runtime = start(PAIR, lc.KSlack(2), clock="source", idle_timeout=10)
    send(runtime, "xZ1", "yZ1")
    runtime.advance(0)
    send(runtime, "xZ50")
    runtime.advance(10)
    assert runtime.clock == 50
    assert send(runtime, "yA47", "yA48", "xZ90", "yZ60", "xZ95") == ["yA47 after_k 1"]
    assert runtime.clock == 60
    assert send(runtime, "yA57", "yA59") == ["yA57 after_k 1"]


def test_declared_sources_hold_the_clock_and_others_join_at_the_present():
    declared = start(PAIR, lc.KSlack(0), clock="source", sources=["x", "y"])
    assert send(declared, "xA50", "xA40", "xC60") == []
    assert declared.clock is None
    late, *told = send(declared, "yZ55", "yC54", "yC55")
    assert (late, sorted(told)) == ("yC54 after_k 1", ["+xA40 yC55", "+xA50 yC55"])
    found = start(PAIR, lc.KSlack(0), clock="source")
    assert send(found, "xA50", "xA40", "yC49", "xC60", "yC52") == ["xA40 after_k 10", "yC49 after_k 1", "+xA50 yC52"]
    assert found.clock == 52


def test_without_a_timeout_nobody_is_ever_idle():
    runtime = start(OVERDUE, lc.Aggressive(0), clock="source")
    send(runtime, "xA1", "yZ2")
    runtime.advance(0)
    assert shown(runtime.advance(10**9)) == []
    assert runtime.clock == 1
    assert not any(s["idle"] for s in runtime.explain()["sources"].values())


def test_an_event_from_the_future_moves_nothing_and_is_not_remembered():
    runtime = start(PAIR, lc.KSlack(0), max_ahead=10)
    runtime.advance(100)
    assert send(runtime, "xA95", "xC111", "xC110") == ["xC111 ahead 1", "+xA95 xC110"]
    assert runtime.clock == 110
    assert (runtime.counters["ahead"], runtime.counters["events"], runtime.counters["duplicates"]) == (1, 2, 0)
    runtime.advance(101)
    runtime.advance(50)  # a wall clock that was set back
    assert send(runtime, "xC111", "xC112") == ["xC112 ahead 1", "+xA95 xC111"]
    assert runtime.counters["duplicates"] == 0


def test_the_guard_is_told_for_the_stream_and_not_for_a_query():
    runtime = start(PAIR, lc.KSlack(0), max_ahead=0)
    runtime.advance(100)
    out = runtime.process(table([{"id": "z", "type": "Z", "ts": 107, "source": "x", "k": "kept"}]))
    row = out.late.to_pylist()[0]
    assert (row["query"], row["reason"], row["late_by"], row["missed"], row["k"]) == (None, "ahead", 7, None, "kept")


def test_the_guard_is_off_without_a_wall_clock():
    runtime = start(PAIR, lc.KSlack(0), max_ahead=10)
    assert send(runtime, "xA5", f"xC{2**61}") == []
    assert runtime.clock == 2**61
    assert runtime.counters["ahead"] == 0


@pytest.mark.parametrize("options", [{}, {"clock": "source"}, {"quorum": 2}])
def test_a_stream_replayed_from_years_ago_works(options):
    """Event time is 2013 and nobody says what time it is now: no guard, no idling."""
    stream = lc.Stream(id="id", source="source", unit="s", max_ahead="1 h", idle_timeout="5 min", **options)
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a, !B b) WITHIN 1 h", name="q", level=lc.KSlack("1 min")))
    schema = pa.schema({**COLUMNS, "ts": pa.timestamp("s", "UTC")})
    begin = datetime(2013, 1, 1, tzinfo=UTC)
    told = []
    for hour in range(24):
        at = begin + timedelta(hours=2 * hour)
        rows = [{"id": f"{s}{hour}", "type": "A" if s == "x" else "Z", "ts": at, "source": s} for s in "xy"]
        told += shown(runtime.process(pa.Table.from_pylist([{"k": None, **r} for r in rows], schema)))
    assert told == [f"+x{hour}" for hour in range(23)]


def test_a_replay_with_a_wall_clock_of_its_own_time():
    runtime = start(PAIR, lc.KSlack(0), max_ahead=10, idle_timeout=60, clock="source")
    runtime.advance(-(10**9))
    assert send(runtime, f"xA{-(10**9)}", f"xA{11 - 10**9}") == ["xA-999999989 ahead 1"]


@pytest.mark.parametrize(("quorum", "reached"), [(1, 10**6), (2, 1000), (3, 12)])
def test_a_quorum_keeps_broken_sources_from_moving_the_clock(quorum, reached):
    runtime = start(PAIR, lc.KSlack(5), quorum=quorum)
    assert send(runtime, "xA10") == []
    assert runtime.clock == (10 if quorum == 1 else None)
    send(runtime, "yZ1000", f"zZ{10**6}", "xA12")
    assert runtime.clock == reached
    assert (send(runtime, "xC13") == []) == (quorum == 3)


def test_moments_may_be_datetimes():
    stream = lc.Stream(id="id", source="source", idle_timeout="1 min", max_ahead="1 h")
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a, !B b) WITHIN 30 s", name="q", level=lc.KSlack(0)))
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    runtime.advance(at)
    rows = [{"id": "a", "type": "A", "ts": at, "source": "x"}]
    rows.append({"id": "b", "type": "A", "ts": at + timedelta(hours=1, milliseconds=1), "source": "x"})
    schema = pa.schema({**COLUMNS, "ts": pa.timestamp("ms", "UTC")})
    assert shown(runtime.process(pa.Table.from_pylist([{"k": None, **r} for r in rows], schema))) == ["b ahead 1"]
    assert shown(runtime.advance(at + timedelta(seconds=30))) == []
    assert shown(runtime.advance(at + timedelta(seconds=90))) == []
    assert shown(runtime.advance(at + timedelta(seconds=90, milliseconds=1))) == ["+a"]


# Once wrong


def test_slack_and_clock_agree_on_who_is_idle():
    runtime = start(PAIR, lc.KSlack(0, sources={"x": 5}), clock="source", idle_timeout=3)
    runtime.advance(0)
    send(runtime, "xA0")
    runtime.advance(10)  # x was heard since: it counts as silent from here
    assert send(runtime, "xA0'", "xA-5", "xA-6") == ["xA-6 after_k 1"]


def test_a_source_that_only_makes_promises_holds_no_clock():
    runtime = start(PAIR, lc.KSlack(0), clock="source")
    send(runtime, "xZ1")
    runtime.punctuate(5, source="p")
    send(runtime, "yZ10", "yZ20", "xZ30")
    assert runtime.clock == 20


@pytest.mark.parametrize("together", [True, False])
def test_a_clock_from_elsewhere_counts_event_by_event_for_slack_by_source_too(together):
    runtime = start(PAIR, lc.KSlack(0, sources={"x": 5}), clock="source")
    rows = [{"id": f"a{ts}", "type": "A", "ts": ts, "source": "x"} for ts in (94, 95, 94)]
    rows[2]["id"] = "again"
    parts = [rows] if together else [[row] for row in rows]
    told = [line for part in parts for line in shown(runtime.process(table(part), clocks=[100] * len(part)))]
    assert told == ["a94 after_k 1", "again after_k 1"]


def test_silence_counts_from_the_first_advance_though_nothing_has_come_yet():
    stream = lc.Stream(id="id", source="source", unit="s", clock="source", sources=["x", "y"], idle_timeout=10)
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a) WITHIN 5", name="q", level=lc.KSlack(0)))
    runtime.advance(0)
    runtime.advance(100)
    assert send(runtime, "xA95") == ["+xA95"]


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_no_source_no_slack_no_limit(schema):
    """The clock comes from elsewhere before any source is known here: nothing is late by a slack that nobody has."""
    stream = lc.Stream(id="id", source="source", unit="s", schema=schema)
    level = lc.KSlack(0, sources={"x": 3, "y": 7})
    runtime = lc.Runtime(stream, lc.Query(PAIR, name="q", level=level))
    runtime.observe(100)
    assert send(runtime, "yA95", "yA92") == ["yA92 after_k 1"]
    assert send(runtime, "xA93", "zA92") == ["zA92 after_k 1"]


# Real data: three weeks of flights, each carrier a source with its own slack

FLIGHTS = lc.Stream(
    type="kind", ts="ts", id="id", source="carrier", unit="min", clock="source", idle_timeout="8 h", sources=["9E"]
)


@cache
def flights():
    """In order of arrival, which is the actual departure."""
    table = load()
    return table.filter(pc.less(table["arrival"], table["arrival"][0].as_py() + 21 * 24 * 60))


def of_the_demo(level):
    return [lc.Query(text.split("RETURN")[0], name=name, level=level) for name, text in DEMO.items()]


def true_matches(table):
    """By the definition of the demo's two queries, without the engine."""
    moments = pc.cast(pc.multiply(table["ts"], 60_000_000), pa.timestamp("us", "UTC"))
    columns = {name: table[name] for name in ("id", "carrier", "origin")}
    return truth.matches(pa.table(columns | {"type": table["kind"], "scheduled": moments}))


def slacks(table, share):
    """How far behind its own latest flight a share of each carrier's flights comes, in minutes."""
    found, latest = {}, {}
    for carrier, ts in zip(table["carrier"].to_pylist(), table["ts"].to_pylist(), strict=True):
        latest[carrier] = max(latest.get(carrier, ts), ts)
        found.setdefault(carrier, []).append(latest[carrier] - ts)
    return {carrier: sorted(late)[int(share * (len(late) - 1))] for carrier, late in found.items()}


def fly(table, level, stream, hours):
    """Hour by hour as they leave, with the hour told if ``hours``; late rows, and matches with the hour they came."""
    queries = of_the_demo(level)
    runtime, late, when = lc.Runtime(stream, queries), [], {"cascade": {}, "recovery": {}}
    arrival = table["arrival"].to_numpy()
    first, last = int(arrival.min()) // 60, int(arrival.max()) // 60
    outs = []
    for hour in range(first, last + 1):
        begin, end = arrival.searchsorted([hour * 60, hour * 60 + 60])
        if hours:
            outs.append((hour, runtime.advance(hour * 60)))
        outs.append((hour, runtime.process(table.slice(begin, end - begin))))
    outs.append((None, runtime.finish()))
    for hour, out in outs:
        late += [(r["query"], r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist()]
        for r in out.changes.to_pylist():
            assert r["op"] == "insert"
            assert when[r["query"]].setdefault(tuple(r["events"]), hour) == hour
    return late, when


def test_flights_with_the_slack_of_each_carrier_lose_nothing():
    table = flights()
    most = slacks(table, 1.0)
    assert max(most.values()) > 20 * min(most.values())  # carriers are not alike
    level = lc.KSlack(0, sources=most)
    late, when = fly(table, level, replace(FLIGHTS, sources=sorted(most), idle_timeout=None), hours=False)
    assert late == []
    assert {name: set(found) for name, found in when.items()} == true_matches(table)


def test_flights_whose_carriers_join_idle_and_return():
    """One of the carriers is declared, some have a flight a day; nine of ten flights are within their carrier's
    slack."""
    table = flights()
    level = lc.KSlack(60, sources=slacks(table, 0.9))
    late, when = fly(table, level, FLIGHTS, hours=True)
    world = World(of_the_demo(level), "min", "source", declared=["9E"], timeout=8 * 60)
    rows = table.rename_columns({"kind": "type", "carrier": "source"}).to_pylist()
    hour = rows[0]["arrival"] // 60 - 1
    for row in rows:
        while row["arrival"] // 60 > hour:
            hour += 1
            world.advance(hour * 60)
        world.event(row)
    expected = [(name, *row) for name, asked in world.asked.items() for row in asked.late]
    assert sorted(late) == sorted(expected)
    assert 100 < len(late) < 2 * table.num_rows / 10
    for name, found in when.items():
        gone = [row[1] for row in late if row[0] == name]
        accepted = table.filter(pc.invert(pc.is_in(table["id"], pa.array(gone))))
        assert set(found) == true_matches(accepted)[name]
        assert list(found.values()).count(None) < 0.1 * len(found)  # hardly any had to wait for the end
