"""Copies: what is sent again is known as a copy for as long as its event matters, and a window longer."""

import pytest

import latecomer as lc

TEXT = "PATTERN SEQ(A a, C c) WHERE [k] WITHIN 10"


def row(number, kind, ts, seq):
    return {"id": number, "type": kind, "ts": ts, "k": 1, "src": "x", "seq": seq}


@pytest.mark.parametrize("others", [[], [lc.KSlack(1000)]])
def test_a_copy_is_counted_and_not_late_whatever_runs_beside(others):
    stream = lc.Stream(id="id", unit="s", source="src", promises=[lc.SequenceNumbers("seq")])
    levels = [lc.Conservative(), *others]
    runtime = lc.Runtime(stream, [lc.Query(TEXT, name=f"q{i}", level=level) for i, level in enumerate(levels)])
    first = row("a", "A", 1, 0)
    out = runtime.process([first, row("c", "C", 6, 1), row("z", "Z", 9, 2)])
    assert out.changes.filter(lc_query(out, "q0"))["events"].to_pylist() == [["a", "c"]]
    assert runtime.process([first, first]).late.num_rows == 0
    assert runtime.counters["duplicates"] == 2


def lc_query(out, name):
    return [value == name for value in out.changes["query"].to_pylist()]


def test_a_key_may_be_closed_before_it_has_a_value():
    stream = lc.Stream(id="id", unit="s", of_key="k")
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 10", level=lc.Conservative()))
    runtime.process([{"id": 1, "type": "A", "ts": 1, "k": None}])
    runtime.punctuate(5, "B", key={"k": 1})
    rows = [{"id": 2, "type": "A", "ts": 2, "k": 1}, {"id": 3, "type": "C", "ts": 6, "k": 1}]
    assert runtime.process(rows).changes["events"].to_pylist() == [[2, 3]]
