"""What the live page is told: totals that are exact however it is asked, samples that stay small, matches in the state
in which they are."""

import json
import random
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.errors import ConfigError
from latecomer.serve import demo, running
from latecomer.serve.config import Serve
from latecomer.serve.letters import DeadLetter
from latecomer.serve.live import Live

STREAM = lc.Stream(id="id", source="from", unit="s", punctuation="PUNCT")
PATTERN = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 20 s RETURN a.k AS k"
LEVELS = [lc.KSlack("10 s"), lc.Conservative(), lc.Aggressive("30 s")]
QUERIES = [lc.Query(PATTERN, name=f"q{i}", level=level) for i, level in enumerate(LEVELS)]
MOST = 50_000
NONE = pa.table({})


def size(frame):
    return len(json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def rows(seed, count, *, disorder=15):
    """Events in order of arrival, some late, some with nulls where none belong."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        ts = number // 2 - rng.randrange(disorder) * (rng.random() < 0.4)
        made.append(
            {
                "id": f"e{number}", "type": rng.choice("ABCCX") if rng.random() > 0.05 else None,
                "ts": ts if rng.random() > 0.05 else None, "k": rng.choice("xy"), "from": rng.choice(["s", "t", None]),
                "of": None,
            }
        )  # fmt: skip
        if rng.random() < 0.15:
            bound = {"id": None, "type": "PUNCT", "ts": ts - 20, "k": None, "from": None, "of": rng.choice("ABC")}
            made.append(bound)
    return made


SCHEMA = pa.schema([(name, "int64" if name == "ts" else "string") for name in ("id", "type", "ts", "k", "from", "of")])


def table(events):
    return pa.Table.from_pylist(events, SCHEMA)


class Service:
    """A runtime and what is told of it, as the worker of a service does it."""

    def __init__(self, queries=QUERIES, stream=STREAM, **options):
        self.runtime, self.live, self.now = lc.Runtime(stream, queries), Live(queries, stream, **options), 0.0
        self.changes = []

    def process(self, batch):
        self.now += 0.1
        self.live.arrived(batch, self.now)
        out = self.runtime.process(batch)
        self.live.answered(out.changes, out.late, self.now, clock=self.runtime.clock)
        self.changes += out.changes.to_pylist()
        return out

    def look(self):
        self.live.described(self.runtime.explain(), {"readers": 1}, self.now)


class Reader:
    """A page: what it knows from the frames it was sent."""

    def __init__(self):
        self.since, self.matches, self.events, self.totals = 0, [], [], Counter()

    def read(self, live):
        frame = live.frame(self.since)
        assert size(frame) <= MOST
        if frame["since"] == 0:
            self.matches, self.events = [{} for _ in frame["queries"]], []
        self.events += frame["events"]
        for known, query in zip(self.matches, frame["queries"], strict=True):
            for match in query["matches"]:
                known.pop(match["id"], None)
                known[match["id"]] = match["seq"], match["back"] is not None
            for name, back, seq in query["rest"]:
                if name in known:
                    known[name] = seq, back
            for name in [name for name, (seq, _) in known.items() if seq < query["oldest"]]:
                del known[name]
        self.since, self.totals = frame["frame"], frame["totals"]
        return frame


# --- totals -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.data())
def test_any_split_of_the_batches_gives_the_same_counts(seed, data):
    events = rows(seed, 60)
    whole = Live(QUERIES, STREAM)
    whole.arrived(table(events), 0.0)
    whole.answered(NONE, NONE, 0.0)
    cut = Live(QUERIES, STREAM)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        cut.arrived(table(events[start:end]), 0.0)
        cut.answered(NONE, NONE, 0.0)
    one, other = whole.frame(0), cut.frame(0)
    for key in ("rows", "events", "behind"):
        assert one["totals"][key] == other["totals"][key], key
    assert one["types"] == other["types"] and one["other_types"] == other["other_types"]
    assert one["clock"] == other["clock"]
    usable = [e for e in events if e["type"] not in (None, "PUNCT") and e["ts"] is not None]
    assert one["totals"]["events"] == sum(e["type"] != "PUNCT" for e in events)
    assert {name: n for name, n in one["types"] if n} == Counter(e["type"] for e in usable)
    reached, behind = -(10**9), 0
    for event in usable:
        reached = max(reached, event["ts"])
        behind += event["ts"] < reached
    assert one["totals"]["behind"] == behind


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.lists(st.integers(1, 12), min_size=1, max_size=30))
def test_counts_of_changes_and_late_rows_are_those_of_the_runtime(seed, sizes):
    service, events = Service(), rows(seed, 80)
    while events:
        for step in sizes:
            service.process(table(events[:step]))
            events = events[step:]
    counters, frame = service.runtime.counters, service.live.frame(0)
    for query in frame["queries"]:
        assert query["inserted"] == counters["inserted"][query["name"]]
        assert query["deleted"] == counters["deleted"][query["name"]]
        assert query["late"] == sum(counters["late"][query["name"]].values())
    assert frame["totals"]["inserted"] == sum(counters["inserted"].values())
    assert frame["totals"]["deleted"] == sum(counters["deleted"].values())
    assert frame["totals"]["late"] == sum(frame["reasons"].values())
    assert frame["reasons"].get("malformed", 0) == counters["malformed"]


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=40, max_size=40), st.integers(16, 60))
def test_a_slow_reader_is_told_the_same_totals_and_states_as_a_fast_one(seed, pace, keep):
    service, events = Service(keep=keep), rows(seed, 160)
    fast, slow, late = Reader(), Reader(), Reader()
    for number, start in enumerate(range(0, len(events), 8)):
        service.process(table(events[start : start + 8]))
        if number % 7 == 0:
            service.look()
        fast.read(service.live)
        if pace[number % 40] == 0:
            slow.read(service.live)
    for reader in (fast, slow, late):
        reader.read(service.live)
    assert fast.totals == slow.totals == late.totals
    assert fast.events[-len(slow.events) :] == slow.events  # what fits, the newest
    assert slow.events[-len(late.events) :] == late.events
    alive = [{}, {}, {}]
    for change in service.changes:
        alive[int(change["query"][1])][change["match_id"][:12]] = change["op"] == "delete"
    for number, (lane, true) in enumerate(zip(service.live._lanes._lanes, alive, strict=True)):
        kept = {match["id"]: (match["seq"], match["back"] is not None) for match in map(lane.match, lane.ids)}
        assert {name: back for name, (_, back) in kept.items()}.items() <= true.items()
        assert len(kept) == min(len(true), max(keep // 3, 16))
        for reader in (fast, slow, late):
            assert reader.matches[number].items() <= kept.items()
        assert fast.matches[number].items() >= slow.matches[number].items() >= late.matches[number].items()


def test_where_not_all_fits_a_frame_what_was_shown_is_still_taken_back():
    query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 1000 s", name="q" * 60, level=lc.Aggressive("5000 s"))
    service = Service([query], STREAM, keep=400)
    fast, slow = Reader(), Reader()
    name = "an id of a good length, of which much is shown "
    for number in range(300):  # each A has its C, far from the others
        ts = 2_000 * number
        both = [{"id": f"{name} {kind}{number}", "type": kind, "ts": ts + 2 * (kind == "C")} for kind in "AC"]
        service.process(table(both))
        fast.read(service.live)
        if number == 0:
            slow.read(service.live)
    late = [{"id": f"B{number}", "type": "B", "ts": 2_000 * number + 1} for number in range(297, 300)]
    service.process(table([*late, {"id": "end", "type": "X", "ts": 600_000}]))
    for reader in (fast, slow):
        reader.read(service.live)
        known = reader.matches[0]
        assert sum(back for _, back in known.values()) == 3
    assert len(slow.matches[0]) < len(fast.matches[0]) == 300
    # Far more than fits is taken back at once: whoever was shown one is told.
    service = Service([query], STREAM, keep=400)
    both = [{"id": f"{name} A", "type": "A", "ts": 0}]
    service.process(table(both))
    reader = Reader()
    for number in range(300):
        service.process(table([{"id": f"{name} C{number}", "type": "C", "ts": 2 + number}]))
        reader.read(service.live)
    service.process(table([{"id": "B", "type": "B", "ts": 1}]))
    frame = reader.read(service.live)
    assert frame["queries"][0]["rest"] and frame["queries"][0]["deleted"] == 300
    assert len(reader.matches[0]) == 300 and all(back for _, back in reader.matches[0].values())


# --- bounds -----------------------------------------------------------------------------------------------------------


def nasty(number):
    """Long texts of characters that take much room."""
    return f"{number} " + "<script>alert('\U0001f6a8')</script>\\\"\x00\x1f\u2028" * 40


def test_frames_stay_small_whatever_comes():
    queries = [
        lc.Query(PATTERN.replace("[k]", "[k] AND a.k <> '" + "\u20ac" * 900 + "'"), name=nasty(i), level=level)
        for i, level in enumerate([*LEVELS, *[lc.Aggressive(f"{n} s") for n in range(40, 46)]])
    ]
    service = Service(queries, STREAM, name=nasty("service"))
    for batch in range(12):
        now = 1000 * batch
        events = [
            {
                "id": nasty(f"{batch}-{i}"),
                "type": "ABCX"[i % 4] if i % 9 else nasty(i),
                "ts": now + i % 7,
                "k": "x",
                "from": nasty(i),
            }
            for i in range(300)
        ]
        service.process(table(events))
        service.live.dead([DeadLetter(i, nasty(i), nasty(i), nasty(i).encode() + b"\xff") for i in range(500)], now)
        if batch % 4 == 0:
            service.look()
    frame = service.live.frame(0)
    assert 30_000 < size(frame) <= MOST
    assert frame["totals"]["events"] == 3_600 and frame["totals"]["dead"] == 6_000
    assert len(frame["queries"]) == 6 and frame["more_queries"] == 3
    assert len(frame["types"]) <= 16 and frame["other_types"] > 0 and len(frame["sources"]) == 10
    longest = max(len(text) for text in texts_of(frame))
    assert longest <= 400


def texts_of(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)


def calls(work):
    """How many Python functions ``work`` calls."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_batch_costs_no_more_steps_however_large_it_is():
    def cost(count):
        live = Live(QUERIES, STREAM)
        rng = np.random.default_rng(1)
        ids = pa.array(np.arange(count)).cast("string")
        batch = pa.table(
            {
                "id": ids, "type": pa.array(["A", "B", "C"]).take(pa.array(rng.integers(0, 3, count))),
                "ts": rng.integers(0, 1000, count), "from": ids,
            }
        )  # fmt: skip
        matches = pa.table(
            {
                "op": pa.array(["insert", "delete"]).take(pa.array(rng.integers(0, 2, count))),
                "query": pa.array(["q0", "q1", "q2"]).take(pa.array(rng.integers(0, 3, count))),
                "match_id": ids, "events": pa.array([["1", "2"]] * count), "first_ts": rng.integers(0, 9, count),
                "last_ts": rng.integers(9, 99, count), "k": ids,
            }
        )  # fmt: skip
        late = pa.table({"query": ["q0"] * count, "reason": ["after_k"] * count, "id": ids, "ts": [1] * count})

        def work():
            live.arrived(batch, 0.0)
            live.answered(matches, late, 0.0, clock=1000)
            live.dead([DeadLetter(1, "r", "d", b"")] * count, 0.0)
            live.frame(0)

        work()  # imports, first names
        return calls(work)

    assert cost(200_000) < 1.3 * cost(2_000)


def test_memory_does_not_grow_with_the_stream():
    import tracemalloc

    live = Live(QUERIES, STREAM)

    def run(first):
        for number in range(first, first + 100):
            ids = pa.array(range(100 * number, 100 * number + 100)).cast("string")
            live.arrived(pa.table({"id": ids, "type": pa.repeat("A", 100), "ts": [number] * 100, "from": ids}), number)
            changes = pa.table(
                {
                    "op": ["insert"] * 20 + ["delete"], "query": [f"q{i % 3}" for i in range(21)],
                    "match_id": [f"{number} {i}" for i in range(20)] + [f"{number - 1} 3"],
                    "events": [[str(100 * number), str(100 * number + 1)]] * 21, "first_ts": [number] * 21,
                    "last_ts": [number] * 21,
                }
            )  # fmt: skip
            late = pa.table(
                {"query": ["q0"] * 5, "reason": ["after_k"] * 5, "id": [f"l{number} {i}" for i in range(5)]}
            )
            live.answered(changes, late, number, clock=number)
            live.dead([DeadLetter(number, "r", "d", b"x" * 100)] * 5, number)

    def held():
        return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(only_serve()).statistics("filename"))

    run(0)
    tracemalloc.start()
    try:
        run(100)
        first = held()
        run(200)
        run(300)
        assert held() < 1.2 * first + 50_000
    finally:
        tracemalloc.stop()


def only_serve():
    import tracemalloc

    return [tracemalloc.Filter(True, "*/latecomer/serve/*")]


# --- what is said of matches ------------------------------------------------------------------------------------------


def test_how_long_answers_took_and_what_took_them_back():
    service = Service([lc.Query(PATTERN, name="q", level=lc.Aggressive("30 s"))])
    for event in (("a", "A", 10), ("c", "C", 14), ("far", "X", 30), ("b", "B", 12)):
        service.process(table([{"id": event[0], "type": event[1], "ts": event[2], "k": "x", "from": "s"}]))
    (match,) = service.live.frame(0)["queries"][0]["matches"]
    assert match["events"] == ["a", "c"] and match["times"] == [10, 14] and match["values"] == {"k": "x"}
    assert (match["left"], match["wait"]) == (14, 0)
    assert match["back"] == {"clock": 30, "by": {"id": "b", "type": "B", "ts": 12, "late": 18}}
    # Two that can have done it: neither is named.
    service = Service([lc.Query(PATTERN, name="q", level=lc.Aggressive("30 s"))])
    service.process(table([{"id": "a", "type": "A", "ts": 10, "k": "x"}, {"id": "c", "type": "C", "ts": 14, "k": "x"}]))
    service.process(table([{"id": i, "type": "B", "ts": 12, "k": k} for i, k in (("b1", "x"), ("b2", "y"))]))
    (match,) = service.live.frame(0)["queries"][0]["matches"]
    assert match["back"] == {"clock": 14, "by": None}


def test_the_flights_causes_and_waits_are_true():
    """Every cause that is named could have been found by brute force, and waits are those of the clock."""
    stream, queries = demo.setting()
    service = Service(queries, stream, keep=10**6)
    source = demo.named(demo.arrivals(demo.read()))
    seen, clock, named, judged = {}, None, 0, 0
    waits = {}
    for batch, _ in demo.beats(source, demo.minute_of("2013-03-19 15:00"), 1.0):
        before = len(service.changes)
        service.process(batch)
        clock = service.runtime.clock
        reached = None
        for row in batch.to_pylist():
            if row["type"] != "PUNCT":
                ts = int(row["scheduled"].timestamp()) // 60
                reached = max(reached or seen.get("reached", ts), ts)
                seen["reached"] = reached
                seen[row["id"]] = row, ts, min(reached, clock)
        for change in service.changes[before:]:
            if change["op"] == "insert":
                waits[change["match_id"][:12]] = clock - max(seen[e][2] for e in change["events"])
        if clock is not None and clock > demo.minute_of("2013-03-20 00:00"):
            break
    for query in service.live.frame(0)["queries"]:
        assert query["kind"] == "aggressive" or not query["deleted"]
    for lane in service.live._lanes._lanes:
        for match_id in lane.ids:
            match = lane.match(match_id)
            assert match["wait"] == waits[match["id"]]
            judged += 1
            if match["back"] and match["back"]["by"]:
                by, ts, _ = seen[match["back"]["by"]["id"]]
                ends = [seen[event] for event in match["events"]]
                assert by["type"] in lane.plan.types and ends[0][1] < ts < ends[1][1]
                assert len({(row["carrier"], row["origin"]) for row in (by, ends[0][0], ends[1][0])}) == 1
                named += 1
    assert named > 5 and judged > 100


def test_what_waits_is_told_with_its_times():
    service = Service([lc.Query(PATTERN, name="q", level=lc.Conservative())])
    service.process(table([{"id": "a", "type": "A", "ts": 10, "k": "x"}, {"id": "c", "type": "C", "ts": 14, "k": "x"}]))
    service.look()
    (query,) = service.live.frame(0)["queries"]
    assert query["held"] == 1
    (waiting,) = query["waiting"]
    assert waiting["events"] == ["a", "c"] and waiting["times"] == [10, 14]
    assert waiting["scopes"][0]["type"] == "B" and waiting["scopes"][0]["waits_for"] == "punctuation for B"


def test_an_event_from_the_future_makes_nothing_after_it_look_late():
    stream = lc.Stream(id="id", unit="s", max_ahead="10 s")
    service = Service([lc.Query(PATTERN, name="q", level=lc.Aggressive("30 s"))], stream)
    out = service.runtime.advance(100)
    service.live.answered(out.changes, out.late, 0.0, clock=service.runtime.clock)
    for number, ts in enumerate([100, 5000, 101, 102]):
        service.process(pa.table({"id": [str(number)], "type": ["A"], "ts": [ts], "k": ["x"]}))
    frame = service.live.frame(0)
    assert [event[1] for event in frame["events"]] == [0, 0, 0, 0]
    assert frame["clock"] == 102 and frame["reasons"] == {"ahead": 1}


# --- odd input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"type": ["A"]},
        {"ts": [1]},
        {"type": ["A"], "ts": ["soon"]},
        {"type": ["A"], "ts": [1.5]},
        {"type": [1], "ts": [1], "id": [7], "from": [2.5]},
        {"type": [["A"]], "ts": [1]},
        {"type": ["A", None], "ts": [None, 1]},
        {"type": pa.array([None, None]), "ts": pa.array([None, None])},
        {"type": pa.array(["A", "B"]).dictionary_encode(), "ts": pa.array([1, 2], pa.int8())},
        {"type": pa.array(["A"], pa.large_string()), "ts": pa.array([2**63], pa.uint64())},
        {"type": ["A"], "ts": pa.array([2**62], pa.timestamp("s"))},
        {"type": ["A"], "ts": pa.array([10**15], pa.timestamp("us", "UTC")), "id": pa.array([b"\xff"], pa.binary())},
    ],
)
def test_columns_of_odd_types_are_counted_and_stop_nothing(batch):
    live = Live(QUERIES, STREAM)
    batch = pa.table(batch)
    live.arrived(batch, 1.0)
    live.answered(NONE, NONE, 1.0)
    frame = live.frame(0)
    assert frame["totals"]["rows"] == batch.num_rows
    assert size(frame) < 5_000


def test_a_frame_number_of_another_process_gives_all():
    service = Service()
    service.process(table(rows(1, 30)))
    whole = service.live.frame(0)
    assert service.live.frame(10**9) == whole == service.live.frame(-1)
    nothing_new = service.live.frame(whole["frame"])
    assert nothing_new["events"] == [] and "history" not in nothing_new and "history" in whole


def test_answers_that_belong_to_no_batch():
    """From Kafka, events and changes are read from topics of their own: nothing is said to have caused anything."""
    paired, loose = Service(), Service(paired=False)
    for service in (paired, loose):
        events = rows(5, 200)
        for start in range(0, len(events), 5):
            service.process(table(events[start : start + 5]))
    causes = [
        [m["back"]["by"] for m in service.live.frame(0)["queries"][2]["matches"] if m["back"]]
        for service in (paired, loose)
    ]
    assert any(causes[0]) and causes[1] and not any(causes[1])


def test_a_batch_that_changes_nothing_is_shown_all_the_same():
    live = Live(QUERIES, STREAM)
    live.arrived(table([{"id": "1", "type": "A", "ts": 7, "k": "x"}]), 0.0)
    assert live.frame(0)["totals"]["rows"] == 1 and live.frame(0)["events"] == []  # what became of it is not known
    live.described({"clock": 7}, {}, 0.5)
    assert live.frame(0)["events"] == [[7, 0, 0, -1, "1"]] and live.frame(0)["totals"]["events"] == 1


def test_rates_are_over_the_last_whole_seconds():
    live = Live(QUERIES, STREAM)
    for second in range(10):
        live.arrived(table([{"id": str(second), "type": "A", "ts": second}] * 10), float(second))
        live.answered(NONE, NONE, float(second))
    assert live.frame(0)["rates"] == [10.0, 0.0, 0.0]
    assert live.frame(0)["history"][-4:] == [[10, 0, 0]] * 4
    live.described({}, {}, 13.0)
    assert live.frame(0)["rates"] == [4.0, 0.0, 0.0]
    live.described({}, {}, 100.0)
    assert live.frame(0)["rates"] == [0.0, 0.0, 0.0]


# --- the demo ---------------------------------------------------------------------------------------------------------


def test_the_demo_gives_every_flight_once_in_order():
    source = demo.named(demo.arrivals(demo.read())).slice(0, 20_000)
    begin = int(source["arrived"][2_000].as_py())
    parts, waits = zip(*demo.beats(source, begin, 1.0), strict=True)
    joined = pa.concat_tables(parts)
    rest = source.slice(source.num_rows - joined.num_rows)
    assert joined.equals(rest)
    assert rest["arrived"][0].as_py() >= begin - demo.BEFORE
    if source.num_rows > joined.num_rows:
        assert source["arrived"][source.num_rows - joined.num_rows - 1].as_py() < begin - demo.BEFORE
    arrived = [(part["arrived"][0].as_py(), part["arrived"][-1].as_py()) for part in parts]
    assert all(last == first for first, last in arrived if last <= begin)  # minute by minute
    minutes = arrived[-1][1] - begin
    assert minutes * demo.BEAT * 0.3 < sum(waits) <= minutes * demo.BEAT + 1e-6  # nights are cut short
    assert max(waits) <= demo.NIGHT * demo.BEAT + demo.BEAT


def test_the_demo_refuses_what_makes_no_sense():
    """Before it is served: nobody looks at a page on which nothing will ever happen."""
    import threading

    with pytest.raises(ConfigError, match="speed=0: a number above 0"):
        demo.reel(speed=0)
    with pytest.raises(ConfigError, match="the flights are between 2013-01-01"):
        demo.reel(start="2014-05-01")
    with pytest.raises(ConfigError, match="start='soon': a date is needed"):
        running.run_demo(Serve(port=0), None, lambda address: pytest.fail("it is served"), speed=1.0, start="soon")
    stop = threading.Event()
    stop.set()
    demo.play(iter([(pa.table({}), 0.0)]), lambda batch: pytest.fail("it was stopped"), stop)
