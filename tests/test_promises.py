"""Promises in a running engine: final answers, all of them, as soon as something is proven, whoever promises; and no
more state than what cannot be proven useless."""

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.consistency.generators import (
    BoundedDelay,
    EndOfInput,
    Heartbeats,
    Schedule,
    SequenceNumbers,
    SourcesInOrder,
)
from latecomer.runtime import lane
from tests import oracle
from tests.test_generators import COLUMNS, STREAM, STREAMS, LowWatermark
from tests.test_levels import Ledger
from tests.test_purge import excluded
from tests.time_reference import (
    Beating,
    Delayed,
    Ending,
    InOrder,
    Numbered,
    Planned,
    Proven,
    clock_of,
    merged,
    some,
    wild,
)

QUERY = lc.Query("PATTERN SEQ(A a, !B b, A c) WITHIN 6", name="q", level=lc.Conservative())
SCHEMA = pa.schema({**COLUMNS, "ts": pa.int64(), "device": pa.string()})


def stream(*promises, **options):
    fields = {"type": "kind", "id": "id", "source": "device", "unit": "s", "sources": STREAM.sources}
    return lc.Stream(promises=promises, **{**fields, **options})


def table(events):
    return pa.Table.from_pylist([{name: e.get(name) for name in SCHEMA.names} for e in events], SCHEMA)


def identified(events):
    """The events with ids; what arrives twice has one."""
    made = []
    for n, e in enumerate(events):
        name = e.get("id") or (f"{e['device']}{e['seq']}" if e.get("seq") is not None else str(n))
        made.append({**e, "id": name})
    return made


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_answers_are_final_and_complete(name, data):
    config, events = data.draw(STREAMS[name])
    events = identified(events)
    runtime, out = lc.Runtime(stream(config), [QUERY]), []
    for begin, end in pairwise(sorted({0, len(events), *data.draw(st.sets(st.integers(0, len(events)), max_size=3))})):
        out.append(runtime.process(table(events[begin:end])))
        runtime = lc.Runtime.restore(runtime.snapshot())
    out.append(runtime.finish())
    changes = [row for o in out for row in o.changes.to_pylist()]
    assert all(row["op"] == "insert" for row in changes)
    found = [tuple(row["events"]) for row in changes]
    once = {e["id"]: {**e, "type": e["kind"]} for e in events}.values()
    assert sorted(found) == sorted(oracle.matches(QUERY.plan, list(once), "s"))
    # An event that comes again after all that it could change was final is late, not a duplicate: its id is forgotten.
    twice = {e["id"] for n, e in enumerate(events) if e in events[:n]}
    assert {r["id"] for o in out for r in o.late.to_pylist()} <= twice


def row(ts, kind, device="x", **more):
    return {"id": f"{kind}{ts}{device}", "ts": ts, "kind": kind, "device": device, **more}


def answers(runtime, *events):
    """After which event each match leaves."""
    left = {}
    for e in events:
        for change in runtime.process(table([e])).changes.to_pylist():
            left[" ".join(change["events"])] = e["id"]
    return left


def test_a_match_leaves_when_every_source_has_passed_it():
    runtime = lc.Runtime(stream(SourcesInOrder(), sources=["x", "y"]), [QUERY])
    told = answers(runtime, row(1, "A"), row(4, "A"), row(3, "C", "y"), row(4, "C", "y"), row(9, "A"))
    assert told == {"A1x A4x": "C4y"}
    late = runtime.process(table([row(3, "B", "y")])).late.to_pylist()
    assert [(r["id"], r["reason"], r["late_by"]) for r in late] == [("B3y", "after_punctuation", 1)]


def test_a_match_leaves_when_the_absent_type_cannot_come_any_more():
    runtime = lc.Runtime(stream(BoundedDelay({"B": "2 s"})), [QUERY])
    told = answers(runtime, row(1, "A"), row(4, "A"), row(5, "C"), row(6, "C"))
    assert told == {"A1x A4x": "C6x"}


def test_sources_that_end_or_beat_hold_nothing_back():
    runtime = lc.Runtime(stream(Heartbeats("beat"), EndOfInput("end")), [QUERY])
    events = [row(1, "A"), row(4, "A"), row(3, "beat"), row(0, "end", "y"), row(2, "beat", "z"), row(5, "beat", "z")]
    assert answers(runtime, *events) == {"A1x A4x": "beat5z"}


def test_numbers_show_what_is_on_its_way():
    runtime = lc.Runtime(stream(SequenceNumbers("seq"), source=None, sources=None), [QUERY])
    events = [row(1, "A", seq=0), row(4, "A", seq=2), row(9, "C", seq=3), row(2, "C", seq=1)]
    assert answers(runtime, *events) == {"A1x A4x": "C2x"}


def test_a_schedule_says_what_is_outstanding():
    runtime = lc.Runtime(stream(Schedule([2, 3], ["B", "B"], ["p", "q"], cancelled="gone", complete_to=60)), [QUERY])
    gone = {"id": "q", "kind": "gone", "ts": 3, "device": "x"}
    told = answers(runtime, row(1, "A"), row(4, "A"), {"id": "p", "kind": "B", "ts": 2, "device": "y"}, gone)
    assert told == {}
    assert answers(runtime, row(7, "A")) == {"A4x A7x": "A7x"}


def test_a_silent_source_is_waited_for_until_it_idles():
    runtime = lc.Runtime(stream(SourcesInOrder(), sources=["x", "y"], idle_timeout="10 s"), [QUERY])
    runtime.advance(100)
    assert answers(runtime, row(1, "A"), row(4, "A"), row(5, "C")) == {}
    runtime.advance(109)
    assert answers(runtime, row(6, "C")) == {}
    runtime = lc.Runtime.restore(runtime.snapshot())
    out = runtime.advance(110).changes.to_pylist()
    assert [r["events"] for r in out] == [["A1x", "A4x"]]


def test_a_gap_by_the_wall_clock():
    runtime = lc.Runtime(stream(SequenceNumbers("seq", timeout=10, by="now"), source=None, sources=None), [QUERY])
    assert answers(runtime, row(1, "A", seq=0), row(4, "A", seq=2)) == {}
    assert runtime.advance(50).changes.num_rows == runtime.advance(59).changes.num_rows == 0
    assert runtime.advance(60).changes.num_rows == 1


def test_the_clock_may_move_elsewhere():
    runtime = lc.Runtime(stream(BoundedDelay(2)), [QUERY])
    assert answers(runtime, row(1, "A"), row(4, "A")) == {}
    assert runtime.observe(5).changes.num_rows == 0
    assert runtime.observe(6).changes.num_rows == 1


def test_ones_own_generator_and_others_together():
    runtime = lc.Runtime(stream(LowWatermark("upto"), BoundedDelay({"B": 60}), sources=["x"]), [QUERY])
    runtime.process(table([row(1, "A", upto=0)]))
    runtime = lc.Runtime.restore(runtime.snapshot())
    assert answers(runtime, row(4, "A", upto=3), row(5, "C", upto=4)) == {"A1x A4x": "C5x"}


def test_a_column_that_promises_read_is_asked_for():
    runtime = lc.Runtime(stream(SequenceNumbers("number")), [QUERY])
    with pytest.raises(lc.SchemaError, match="no column 'number'"):
        runtime.process(table([row(1, "A")]))


def test_other_levels_do_without():
    fast = lc.Query(QUERY.plan.text, name="fast", level=lc.Aggressive(100))
    runtime = lc.Runtime(stream(SourcesInOrder()), [fast])
    assert answers(runtime, row(1, "A"), row(4, "A")) == {"A1x A4x": "A4x"}


def test_the_examples_of_the_page_print_what_it_shows():
    page = (Path(__file__).parent.parent / "docs" / "punctuation.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = "\n".join(text for kind, text in blocks if kind == "python")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(text for kind, text in blocks if kind == "text")


# Against the scalar reference: exactly what must be out, and exactly what is late, after each batch

TEXTS = [
    "SEQ(A a, !B b, A c) WITHIN 6",
    "SEQ(A a, !B b) WITHIN 5",
    "SEQ(!B b, A a, C c) WITHIN 6",
    "SEQ(A a, C c) WITHIN 8",
    "SEQ(A a, !B b, C c, !A d) WITHIN 5",
    "SEQ(A a, !B b, C c) WHERE [k] WITHIN 8",
    "SEQ(A a, !B b) WHERE [k] WITHIN 5",
    "SEQ(!C c, A a, !B b) WITHIN 5",
]
ROWS = pa.schema([("id", pa.string()), ("type", pa.string()), ("ts", pa.int64()), ("source", pa.string())])
ROWS = ROWS.append(pa.field("of", pa.string())).append(pa.field("seq", pa.int64())).append(pa.field("k", pa.string()))


@dataclass(frozen=True)
class Course:
    """A query, generators (config and scalar counterpart), and steps in order of arrival: ("row", dict), where type
    PUNCT is punctuation, with a ``k`` for that key alone; ("punctuate", type, source, ts), ("close", type, key, ts),
    ("advance", now) and ("observe", ts)."""

    text: str
    promises: tuple
    steps: tuple
    options: tuple = ()
    cuts: frozenset = frozenset()
    restores: frozenset = frozenset()

    @property
    def query(self):
        return lc.Query(f"PATTERN {self.text}", name="q", level=lc.Conservative())

    def play(self):
        """Each output, with the number of steps done."""
        given = {"source": "source", "punctuation": "PUNCT", "unit": "s", "schema": ROWS, "of_key": ["k"]}
        configs = [config for config, _ in self.promises]
        runtime = lc.Runtime(lc.Stream(id="id", promises=configs, **given | dict(self.options)), self.query)
        rows = []
        for number, step in enumerate((*self.steps, None)):
            if rows and (step is None or step[0] != "row" or number in self.cuts):
                yield runtime.process(pa.Table.from_pylist(rows, ROWS)), number
                rows = []
                if number in self.restores:
                    runtime = lc.Runtime.restore(runtime.snapshot())
            match step:
                case "row", e:
                    rows.append({name: e.get(name) for name in ROWS.names})
                case "punctuate", type, source, ts:
                    yield runtime.punctuate(ts, type=type, source=source), number + 1
                case "close", type, key, ts:
                    yield runtime.punctuate(ts, type=type, key={"k": key}), number + 1
                case "advance", now:
                    yield runtime.advance(now), number + 1
                case "observe", ts:
                    yield runtime.observe(ts), number + 1
        yield runtime.finish(), None

    def reference(self):
        names = {"clock": "kind", "sources": "declared", "idle_timeout": "timeout"}
        options = {names[k]: v for k, v in self.options if v is not None}
        return Proven(self.query.plan, "s", [make() for _, make in self.promises], **options)


def tell(reference, step):
    match step:
        case "row", {"type": "PUNCT", "k": str(key)} as e:
            reference.close(e["of"], key, e["ts"])
        case "close", type, key, ts:
            reference.close(type, key, ts)
        case "row", {"type": "PUNCT"} as e:
            reference.punctuate(e["of"], e["source"], e["ts"])
        case "row", e:
            reference.event(e)
        case "punctuate", type, source, ts:
            reference.punctuate(type, source, ts)
        case "advance", now:
            reference.advance(now)
        case "observe", ts:
            reference.observe(ts)


def check(course):
    reference, ledger, late, done = course.reference(), Ledger("q"), [], 0
    for out, upto in course.play():
        for step in course.steps[done:upto]:
            tell(reference, step)
        if upto is None:
            reference.finish()
        done = upto
        late += [(r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist()]
        assert late == reference.late, f"after step {upto}"
        ledger.read(out)
        assert set(ledger.held()) == set(reference.out()), f"after step {upto}"
        assert all(op == "insert" for op, _ in ledger.order)
    return reference, set(ledger.held())


def events_in(course):
    return [s[1] for s in course.steps if s[0] == "row" and s[1]["type"] != "PUNCT"]


PLANS = [(3, "B"), (5, "B"), (9, "A")]
ANY_PROMISE = [
    (SourcesInOrder(), InOrder),
    (SourcesInOrder(strict=True), lambda: InOrder(strict=True)),
    (BoundedDelay({"B": 2}), lambda: Delayed({"B": 2})),
    (BoundedDelay(5), lambda: Delayed({None: 5})),
    (Heartbeats("beat"), lambda: Beating("beat")),
    (EndOfInput("end"), lambda: Ending("end")),
    (SequenceNumbers("seq"), Numbered),
    (SequenceNumbers("seq", timeout=4), lambda: Numbered(4)),
    (
        Schedule([t for t, _ in PLANS], [k for _, k in PLANS], ["e0", "e3", "e5"], complete_to=20),
        lambda: Planned({i: (k, t) for i, (t, k) in zip(["e0", "e3", "e5"], PLANS, strict=True)}, 20),
    ),
]


def make(pick):
    """Anything; ``pick`` chooses from a list. Promises are broken, sources join, idle and return, punctuation comes
    from everywhere."""
    promises = tuple(pick(ANY_PROMISE) for _ in range(pick([0, 0, 1, 1, 2, 3])))
    idles, text = pick([None, 3, 6]), pick(TEXTS)
    sources = pick([None, ["x"], ["x", "y", "z"]])
    options = (("clock", pick(["stream", "source"])), ("sources", sources), ("idle_timeout", idles))
    steps, now, time, closes = [], 0, 0, "[k]" in text
    kinds = ["event"] * 8 + ["punctuation", "punctuate", "observe"] + ["advance"] * (3 if idles else 0)
    for number in range(pick(range(6, 23))):
        time += pick([0, 1, 1, 2])
        what = pick(kinds + ["close"] * (3 if closes else 0))
        of, source, ts = pick(["A", "B", "B", None]), pick([None, *"xyz"]), time - pick([0, 0, 0, 1, 2, 4, -2])
        if what == "event":
            e = {"id": f"e{number}", "type": pick(["A", "A", "A", "B", "C", "C", "beat", "end"]), "ts": ts}
            e |= {"source": pick("xxyyz"), "seq": pick([None, 0, 1, 2, 3]), "k": pick(["u", "u", "u", "v", None])}
            steps.append(("row", e))
        elif what == "punctuation":
            key = pick([None, "u"]) if source is None else None
            steps.append(("row", {"id": None, "type": "PUNCT", "ts": ts, "of": of, "source": source, "k": key}))
        elif what == "punctuate":
            steps.append((what, of, source, ts))
        elif what == "close":
            steps.append((what, of, pick("uv"), ts))
        elif what == "observe":
            steps.append((what, time))
        else:
            now += pick([1, 2, 3, 6])
            steps.append((what, now))
    return Course(text, promises, tuple(steps), options, some(pick, len(steps)), some(pick, len(steps)))


def test_after_each_batch_exactly_what_is_proven_is_out():
    wild(make, check, range(150))


@settings(max_examples=40)
@given(st.data())
def test_exactly_what_is_proven_is_out_in_small_cases(data):
    check(make(lambda choices: data.draw(st.sampled_from(choices))))


def test_nothing_depends_on_the_batches():
    def outcome(course, cuts):
        ledger, late = Ledger("q"), []
        for out, _ in replace(course, cuts=frozenset(cuts), restores=frozenset()).play():
            ledger.read(out)
            late += [(r["late_id"], r["late_by"]) for r in out.late.to_pylist()]
        return ledger.net, late

    def same(course):
        every = range(len(course.steps))
        assert outcome(course, []) == outcome(course, every) == outcome(course, course.cuts)

    wild(make, same, range(1000, 1050))


def honest(pick, punctuation=False):
    """Sources in order with numbers, heartbeats, an end, bounded delay and a schedule: all that is promised is true."""
    lists, number = [], 0
    for source in "xyz":
        sent = []
        for seq, ts in enumerate(sorted(pick(range(15)) for _ in range(pick(range(2, 7))))):
            if sent and pick([0, 0, 1]) and ts > sent[-1]["ts"]:
                sent.append({"id": f"e{number}", "type": "beat", "ts": ts - 1, "source": source, "k": "u"})
                number += 1
            sent.append(
                {"id": f"e{number}", "type": pick("AAABCC"), "ts": ts, "source": source, "seq": seq, "k": pick("uuv")}
            )
            number += 1
        if pick([0, 1]):
            at = max(e["ts"] for e in sent) + pick([0, 3])
            sent.append({"id": f"e{number}", "type": "end", "ts": at, "source": source, "k": "u"})
            number += 1
        lists.append(sent)
    events, kind, sources = merged(pick, lists), pick(["stream", "source"]), ["x", "y", "z"]
    clock, delay = clock_of(kind, sources), {"A": 0, "B": 0, "C": 0}
    for e in events:
        clock.event(e["ts"], e["source"])
        delay[e["type"]] = max(delay.get(e["type"], 0), clock.value - e["ts"])
    asked = {t: d for t, d in delay.items() if t in "ABC"}
    expected = {e["id"]: (e["type"], e["ts"]) for e in events if e["type"] in "AB"}
    kinds, times = zip(*expected.values(), strict=True) if expected else ((), ())
    choices = [
        (SourcesInOrder(), InOrder),
        (BoundedDelay(asked), lambda: Delayed(asked)),
        (BoundedDelay({"B": asked["B"]}), lambda: Delayed({"B": asked["B"]})),
        (Heartbeats("beat"), lambda: Beating("beat")),
        (EndOfInput("end"), lambda: Ending("end")),
        (SequenceNumbers("seq"), Numbered),
        (Schedule(times, kinds, list(expected), complete_to=15), lambda: Planned(expected, 15)),
    ]
    promises = tuple(pick(choices) for _ in range(pick([0, 1, 1] if punctuation else [1, 2, 3])))
    steps = [("row", e) for e in events]
    for _ in range(pick(range(2, 9)) if punctuation else 0):
        steps = punctuated(pick, steps)
    options = (("clock", kind), ("sources", sources))
    return Course(pick(TEXTS), promises, tuple(steps), options, some(pick, len(steps)), some(pick, len(steps)))


def punctuated(pick, steps):
    """With one more punctuation that is true, in the stream or by hand, for one source, one key or all; it may come
    later than it could, say less, or come twice."""
    at = pick(range(len(steps) + 1))
    of, source = pick(["A", "B", "B", None]), pick([None, None, *"xyz"])
    key = pick([None, "u"]) if source is None else None
    rest = [s[1] for s in steps[at:] if s[0] == "row" and s[1]["type"] != "PUNCT"]
    later = [
        e["ts"] for e in rest if of in (None, e["type"]) and source in (None, e["source"]) and key in (None, e["k"])
    ]
    ts = min(later, default=20) - 1 - pick([0, 0, 0, 1, 5])
    row = {"id": None, "type": "PUNCT", "ts": ts, "of": of, "source": source, "k": key}
    by_hand = ("punctuate", of, source, ts) if key is None else ("close", of, key, ts)
    step = pick([("row", row), by_hand])
    again = pick(range(at, len(steps) + 1))
    steps = [*steps[:again], *pick([[], [], [step]]), *steps[again:]]
    return [*steps[:at], step, *steps[at:]]


@pytest.mark.parametrize("punctuation", [False, True])
def test_where_all_promises_are_kept_nothing_is_lost_or_late(punctuation):
    def complete(course):
        reference, net = check(course)
        assert reference.late == []
        assert net == oracle.matches(course.query.plan, events_in(course), "s")

    wild(honest, complete, range(70), punctuation=punctuation)


def test_lost_punctuation_only_delays():
    """Without some of its punctuation a course gives the same answer, never sooner."""

    def told(course):
        """After which row of the full course each match was out."""
        when = {}
        for out, upto in replace(course, cuts=frozenset(range(len(course.steps))), restores=frozenset()).play():
            for r in out.changes.to_pylist():
                when[tuple(r["events"])] = 99 if upto is None else number_of(course.steps[upto - 1])
        return when

    def number_of(step):
        return places[id(step)]

    places = {}

    def never_sooner(course):
        places.clear()
        places.update({id(step): n for n, step in enumerate(course.steps)})
        spoken = [n for n, s in enumerate(course.steps) if s[0] != "row" or s[1]["type"] == "PUNCT"]
        lost = {n for n in spoken if n % 3 != 0}
        full = told(course)
        less = told(replace(course, steps=tuple(s for n, s in enumerate(course.steps) if n not in lost)))
        assert set(full) == set(less)
        assert all(less[match] >= at for match, at in full.items())

    wild(honest, never_sooner, range(200, 250), punctuation=True)


# Idle sources


def test_an_idle_source_holds_nothing_back_until_it_returns():
    course = Course(
        "SEQ(A a, !B b, A c) WITHIN 6",
        ((SourcesInOrder(), InOrder),),
        (
            ("row", {"id": "1", "type": "A", "ts": 1, "source": "x", "k": "u"}),
            ("row", {"id": "2", "type": "C", "ts": 1, "source": "y", "k": "u"}),
            ("row", {"id": "3", "type": "A", "ts": 5, "source": "x", "k": "u"}),
            ("advance", 0),
            ("row", {"id": "4", "type": "A", "ts": 9, "source": "x", "k": "u"}),
            ("advance", 5),  # y idles: x has promised up to 8
            ("row", {"id": "5", "type": "B", "ts": 4, "source": "y", "k": "u"}),  # late, and y holds again
            ("row", {"id": "6", "type": "A", "ts": 13, "source": "x", "k": "u"}),
            ("row", {"id": "7", "type": "B", "ts": 10, "source": "y", "k": "u"}),
            ("advance", 20),
            ("advance", 40),  # both idle at once: nothing moves
        ),
        (("sources", ("x", "y")), ("idle_timeout", 5)),
    )
    reference, net = check(course)
    assert [i for i, *_ in reference.late] == ["5"]
    assert net == {("1", "3"), ("3", "4")}
    when = {}
    for out, upto in course.play():
        when |= {tuple(r["events"]): upto for r in out.changes.to_pylist()}
    assert when == {("1", "3"): 6, ("3", "4"): 6}


@pytest.mark.parametrize("by_hand", [False, True])
def test_who_punctuates_is_known(by_hand):
    """Whatever type it speaks of, and whichever way: y is waited for."""
    row = {"id": None, "type": "PUNCT", "ts": 4, "of": "B", "source": "y", "k": None}
    course = Course(
        "SEQ(A a, C c) WITHIN 8",
        ((SourcesInOrder(), InOrder),),
        (
            ("punctuate", "B", "y", 4) if by_hand else ("row", row),
            ("row", {"id": "1", "type": "C", "ts": 6, "source": "x", "k": "u"}),
            ("row", {"id": "2", "type": "A", "ts": 2, "source": "y", "k": "u"}),
        ),
        (("sources", ["x"]),),
    )
    reference, net = check(course)
    assert (reference.late, net) == ([], {("2", "1")})


# State


@pytest.mark.parametrize("pattern", ["A a, B b, C c", "A a, !B b, C c", "!A a, B b, C c", "A a, B b, !C c"])
@pytest.mark.parametrize("first", [0, 40])
def test_state_stays_near_the_least_that_proof_allows(pattern, first):
    """After each step at most twice the least that any earlier step could have come down to, and ``first`` more: the
    brute force looks at all events that were ever accepted."""
    query = lc.Query(f"PATTERN SEQ({pattern}) WHERE [k] WITHIN 20 s", level=lc.Conservative())
    choose, kinds = Random(pattern), {c.index: c.type for c in query.plan.components}
    with mock.patch.object(lane, "_FIRST_PURGE", first):
        runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
        accepted, bounds, most, stored = {i: [] for i in kinds}, dict.fromkeys("ABC", -(10**6)), 0, []
        for step in range(120):
            rows = [
                {
                    "id": 4 * step + n,
                    "type": choose.choice("ABC"),
                    "ts": 2 * step + choose.randint(-5, 5),
                    "k": choose.choice("uvw"),
                }
                for n in range(4)
            ]
            late = {r["id"] for r in runtime.process(rows).late.to_pylist()}
            for r in rows:
                for index, kind in kinds.items():
                    if kind == r["type"] and r["id"] not in late:
                        accepted[index].append((r["k"], r["ts"]))
            kind = choose.choice("ABC")
            bounds[kind] = max(bounds[kind], 2 * step - choose.randint(3, 12 if kind == "A" else 6))
            runtime.punctuate(bounds[kind], type=kind)
            least = minimum(query.plan, 20, accepted, bounds)
            most = max(most, least)
            stored.append(runtime._engine.lanes[0].stored())
            assert stored[-1] <= 2 * most + first + 8  # a step brings two events of a kind at most to each component
            assert stored[-1] >= least
    assert max(stored) < 200  # of some 480


def minimum(plan, window, accepted, bounds):
    """How many events are left when all that can be excluded is excluded, over and over."""
    kept = {index: list(events) for index, events in accepted.items()}
    while True:
        useless = excluded(plan, window, kept, bounds)
        if not useless:
            return sum(map(len, kept.values()))
        kept = {index: [(k, t) for k, t in events if (index, k, t) not in useless] for index, events in kept.items()}


@pytest.mark.parametrize("level", [lc.KSlack(300), lc.Aggressive(200), lc.Aggressive(50, 400)])
def test_state_of_levels_with_a_clock_is_what_lies_within_their_reach(level):
    """Of all accepted events only those are held that lie above the floor, or a quarter of a slice below it."""
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 500 s", name="q", level=level)
    choose, runtime = Random(5), lc.Runtime(lc.Stream(id="id", unit="s"), query)
    runtime.process([{"id": -1, "type": "A", "ts": -(10**6), "k": 0}])
    events, retention = [], runtime.explain()["queries"]["q"]["retention"]
    assert retention == 500 + (
        300 if isinstance(level, lc.KSlack) else max(level.max_delay.units("s"), level.patience.units("s"))
    )
    excess = runtime._engine.layout.mask // 4 + 1
    for step in range(300):
        rows = []
        for n in range(10):
            ts = 60 * step + choose.randint(-250, 50)
            rows.append({"id": 10 * step + n, "type": choose.choice("ABC"), "ts": ts, "k": choose.randint(0, 3)})
        out = runtime.process(rows)
        late = {r["id"] for r in out.late.to_pylist()}
        events += [r["ts"] for r in rows if r["id"] not in late]
        told = runtime.explain()["queries"]["q"]
        held = told["stored"] + told["buffered"]
        floor = runtime.clock - retention
        assert sum(ts >= floor for ts in events) <= held <= sum(ts >= floor - excess for ts in events)
