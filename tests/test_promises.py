"""Generators of promises in a running engine: final answers, all of them, as soon as something is proven."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

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
from tests import oracle
from tests.test_generators import COLUMNS, STREAM, STREAMS, LowWatermark

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
