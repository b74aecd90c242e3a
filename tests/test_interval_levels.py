"""Interval streams, one matter each: promises, corrections, late reports, insight, versions, types of the output."""

import dataclasses
import datetime as dt

import pyarrow as pa
import pytest

import latecomer as lc
from tests import squeeze

GAP = "PATTERN SEQ(A a, !B b, C c) WITHIN 6"
STREAM = lc.Stream(lower="from", upper="to", longest=10, unit="s", id="id", punctuation="P")


def row(id, type, lower, upper, **more):
    return {"id": id, "type": type, "from": lower, "to": upper, **more}


def said(output):
    """Changes as ``+ac 0.5``."""
    signs = {"insert": "+", "delete": "-"}
    changes = output.changes.to_pylist()
    return [f"{signs[c['op']]}{''.join(c['events'])} {round(c['confidence'], 3)}" for c in changes]


def test_a_correction_deletes_the_row_and_inserts_it_anew_under_the_same_id():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Aggressive(10, corrections="replace")))
    assert said(runtime.process([row("a", "A", 1, 2)])) == []
    first = runtime.process([row("c", "C", 4, 6)])
    assert said(first) == ["+ac 1.0"]
    second = runtime.process([row("b", "B", 3, 4)])
    assert said(second) == ["-ac 1.0", "+ac 0.167"]
    assert second.changes["revision"].to_pylist() == [2, 2]
    assert second.changes["latest"].to_pylist() == [6, 4]
    third = runtime.process([row("d", "B", 3, 3)])
    assert said(third) == ["-ac 0.167"]
    ids = [i for out in (first, second, third) for i in out.changes["match_id"].to_pylist()]
    assert len(set(ids)) == 1


def test_a_threshold_is_crossed_once():
    runtime = lc.Runtime(STREAM, lc.Query(GAP + " CONFIDENCE >= 0.5", level=lc.Aggressive(10)))
    runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6)])
    assert said(runtime.process([row("b", "B", 2, 9)])) == ["-ac 1.0", "+ac 0.688"]
    assert said(runtime.process([row("d", "B", 3, 5)])) == ["-ac 0.688"]
    assert said(runtime.process([row("e", "B", 3, 3)])) == []


def test_steps_add_up():
    """What was told last counts, not what was known last."""
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Aggressive(10, confidence_step=0.25)))
    runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 4)])
    rows = [row(f"b{i}", "B", 3, 12) for i in range(4)]  # each takes a tenth
    assert [said(runtime.process([r])) for r in rows] == [[], [], ["-ac 1.0", "+ac 0.729"], []]


def test_patience_waits_from_the_first_moment_at_which_the_match_can_be():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Aggressive(10, patience=2)))
    assert said(runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6)])) == []
    assert said(runtime.process([row("x", "Z", 5, 5)])) == []
    assert said(runtime.process([row("y", "Z", 6, 9)])) == ["+ac 1.0"]


def test_overdue_is_told_when_its_scope_is_surely_over():
    query = lc.Query("PATTERN SEQ(A a, !B b) WITHIN 6", level=lc.Aggressive(10))
    runtime = lc.Runtime(STREAM, query)
    assert said(runtime.process([row("a", "A", 1, 3), row("x", "C", 9, 9)])) == []
    assert said(runtime.process([row("y", "C", 10, 10)])) == ["+a 1.0"]
    assert said(runtime.process([row("b", "B", 8, 8)])) == ["-a 1.0", "+a 0.333"]


def test_a_final_level_waits_for_what_may_still_come():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.KSlack(3)))
    assert said(runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6)])) == []
    assert said(runtime.process([row("x", "A", 18, 18)])) == []  # horizon 18 - 3 - 10 - 1
    assert said(runtime.process([row("y", "A", 19, 25)])) == ["+ac 1.0"]


def test_promises_release_by_either_end():
    for promise in ({"from": 5, "to": None}, {"from": None, "to": 15}, {"from": 2, "to": 15}):
        runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Conservative()))
        assert said(runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6)])) == []
        assert said(runtime.process([{"type": "P", "of": "B", "from": 4, "to": 14}])) == []
        assert said(runtime.process([{"type": "P", "of": "B", **promise}])) == ["+ac 1.0"]


def test_promises_about_time_stamps_are_moved_back():
    stream = lc.Stream(source="by", uncertainty={"x": 2, None: 5}, unit="s", id="id")
    rows = [{"id": "a", "type": "A", "ts": 4, "by": "x"}, {"id": "c", "type": "C", "ts": 9, "by": "x"}]
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WITHIN 20", level=lc.Conservative())
    runtime = lc.Runtime(stream, query)
    assert said(runtime.process(rows)) == []  # the scope ends at 10 at the latest
    assert said(runtime.punctuate(14, type="B")) == []
    assert said(runtime.punctuate(15, type="B")) == ["+ac 1.0"]
    runtime = lc.Runtime(dataclasses.replace(stream, sources=["x"]), query)
    runtime.process(rows)
    assert said(runtime.punctuate(12, source="x")) == ["+ac 1.0"]


def test_late_events_are_reported_with_what_they_would_have_changed():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.KSlack(1)))
    runtime.process([row("a", "A", 10, 11), row("c", "C", 13, 15)])
    out = runtime.process([row("z", "A", 24, 30), row("b", "B", 12, 13), row("d", "C", 12, 20), row("e", "B", 13, 13)])
    assert [(r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist()] == [
        ("b", "after_k", 1),
        ("d", "after_k", 1),
    ]
    assert [(r["missed"], r["wrong"]) for r in out.late.to_pylist()] == [(0, 1), (1, 0)]


def test_amended_events_are_applied_and_marked():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.KSlack(1, on_late="amend")))
    runtime.process([row("a", "A", 10, 11), row("c", "C", 13, 15)])
    assert said(runtime.process([row("z", "A", 27, 30)])) == ["+ac 1.0"]
    out = runtime.process([row("b", "B", 12, 13)])
    assert said(out) == ["-ac 1.0", "+ac 0.167"]
    assert out.changes["amended"].to_pylist() == [True, True]
    assert said(runtime.process([row("d", "C", 15, 15)])) == []  # b lies between, whenever it was
    assert said(runtime.process([row("e", "C", 13, 13)])) == ["+ae 0.5"]
    runtime.process([row("old", "C", -50, -50)])
    assert runtime.counters["late"]["query"]["after_k"] == 4


def test_malformed_intervals_and_copies_are_reported():
    runtime = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Aggressive(10)))
    bad = runtime.process([row("a", "A", 5, 4), row("c", "C", 0, 11), row("d", "C", 1, None)])
    assert [r["reason"] for r in bad.late.to_pylist()] == ["malformed"] * 3
    assert bad.late["detail"].to_pylist()[0] == "from=5 comes after to=4"
    runtime.process([row("a", "A", 1, 2)])
    again = runtime.process([row("a", "A", 1, 2), row("a", "A", 1, 3)])
    assert [(r["reason"], r["to"]) for r in again.late.to_pylist()] == [("duplicate", 3)]
    assert said(runtime.process([row("c", "C", 4, 4)])) == ["+ac 1.0"]


def test_explain_says_what_a_match_waits_for():
    query = lc.Query("PATTERN SEQ(A a, !B b, C c, !D d) WITHIN 6", level=lc.KSlack(3))
    runtime = lc.Runtime(STREAM, query)
    runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6), row("b", "B", 3, 4)])
    told = runtime.explain()["queries"]["query"]
    assert told["held"] == 1
    assert told["stored"] == 3
    [waiting] = told["waiting"]
    assert waiting["events"] == ["a", "c"]
    assert [(s["type"], s["ends"], s["waits_for"]) for s in waiting["scopes"]] == [
        ("B", 5, "the clock"),
        ("D", 8, "the clock"),
    ]
    runtime.process([row("b2", "B", 3, 3)])
    assert runtime.explain()["queries"]["query"]["held"] == 0  # it is surely none any more


def test_rivals_of_the_next_event_are_explained_too():
    query = lc.Query("PATTERN SEQ(A a, C c) WITHIN 6 STRATEGY skip-till-next-match", level=lc.Conservative())
    runtime = lc.Runtime(STREAM, query)
    runtime.process([row("a", "A", 1, 2), row("c", "C", 4, 6)])
    [waiting] = runtime.explain()["queries"]["query"]["waiting"]
    assert [(s["type"], s["ends"], s["waits_for"]) for s in waiting["scopes"]] == [("C", 5, "punctuation for C")]


def test_state_is_forgotten_by_upper_ends():
    runtime = lc.Runtime(STREAM, lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 6", level=lc.KSlack(0)))
    for n in range(40):
        runtime.process([row(f"{t}{n}{i}", t, 60 * n + i, 60 * n + i + 5, k=i) for t in "ABC" for i in range(50)])
    told = runtime.explain()
    assert told["queries"]["query"]["stored"] < 40 * 150 / 2
    assert told["events"] < 40 * 150 / 2


@pytest.mark.parametrize("level", [lc.KSlack(2), lc.Aggressive(2, confidence_step=0.3), lc.Conservative()])
def test_a_version_of_the_state_goes_on_as_if_nothing_had_happened(level, tmp_path):
    stream = lc.Stream(
        source="by", uncertainty={"x": 1, None: 2}, distribution={"x": [1, 2, 1]}, unit="s", id="id", pmf="w"
    )
    query = lc.Query(GAP + " RETURN confidence(), earliest(a)", level=level)
    kinds = {"id": pa.string(), "type": pa.string(), "ts": pa.int64(), "by": pa.string(), "w": pa.list_(pa.float64())}

    def batch(*rows):
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, t) for c, t in zip(columns, kinds.values(), strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=list(kinds))

    first = batch(("a", "A", 1, "x", None), ("b", "B", 3, "y", [1, 0, 0, 0, 2]), ("c", "C", 5, "x", None))
    second = batch(("d", "B", 2, "y", [5, 1, 1, 1, 1]), ("e", "C", 6, None, None), ("z", "A", 40, "x", None))
    plain = lc.Runtime(stream, query)
    kept = lc.Runtime(stream, query, spill=tmp_path / "state")
    assert said(plain.process(first)) == said(kept.process(first))
    kept.checkpoint()
    again = lc.Runtime.open(tmp_path / "state")
    copy = lc.Runtime.restore(plain.snapshot())
    wanted = [plain.process(second), plain.finish()]
    for other in (again, copy):
        got = [other.process(second), other.finish()]
        assert [g.changes.to_pylist() for g in got] == [w.changes.to_pylist() for w in wanted]
        assert sum(g.changes.num_rows for g in got) > 0


def test_output_has_the_types_of_the_stream():
    stream = lc.Stream(ts="day", granularity="1 day", unit="h")
    query = lc.Query(
        "PATTERN SEQ(A a, B b) WITHIN 3 days RETURN latest(b) - earliest(a) AS most", level=lc.Aggressive(0)
    )
    runtime = lc.Runtime(stream, query)
    rows = [{"type": "A", "day": dt.date(2024, 2, 28)}, {"type": "B", "day": dt.date(2024, 3, 1)}]
    changes = runtime.process(rows).changes
    kinds = {f.name: f.type for f in changes.schema}
    assert kinds["first_ts"] == kinds["earliest"] == kinds["latest"] == pa.timestamp("s")
    assert kinds["confidence"] == pa.float64()
    assert kinds["most"] == pa.duration("s")
    [change] = changes.to_pylist()
    assert change["earliest"] == dt.datetime(2024, 2, 28)
    assert change["latest"] == dt.datetime(2024, 3, 1, 23)
    assert change["most"] == dt.timedelta(days=2, hours=23)
    assert change["confidence"] == 1


def test_a_confidence_that_is_too_costly_is_null_unless_it_may_be_sampled(monkeypatch):
    from latecomer.runtime.intervals.ways import Budget

    monkeypatch.setattr(
        Budget, "for_error", classmethod(lambda cls, error, steps=0, least=0: cls(1.0, 0 if error is None else 2_500))
    )
    rows = [row("a", "A", 0, 9), row("c", "C", 5, 14), row("b", "B", 2, 11)]
    sure = lc.Runtime(STREAM, lc.Query(GAP + " CONFIDENCE >= 0.9", level=lc.Aggressive(10))).process(rows)
    assert sure.changes["confidence"].to_pylist() == [None]
    drawn = lc.Runtime(STREAM, lc.Query(GAP + " CONFIDENCE > 0 SAMPLED 0.01", level=lc.Aggressive(10))).process(rows)
    [estimate] = drawn.changes["confidence"].to_pylist()
    [error] = drawn.changes["confidence_error"].to_pylist()
    assert 0 < error <= 0.01
    assert "confidence_error" not in sure.changes.column_names
    monkeypatch.undo()
    exact = lc.Runtime(STREAM, lc.Query(GAP, level=lc.Aggressive(10))).process(rows).changes["confidence"].to_pylist()
    assert exact == pytest.approx([estimate], abs=0.05)


@pytest.mark.parametrize("stream", [STREAM, lc.Stream(unit="s")])
def test_a_share_of_retractions_cannot_be_kept_where_answers_are_revised(stream):
    query = lc.Query(GAP + " STRATEGY skip-till-next-match", level=lc.Aggressive(50, retractions=0.2))
    with pytest.raises(lc.ConfigError, match="an answer may be corrected many times: use patience="):
        lc.Runtime(stream, query)  # before the first batch


def test_a_slack_that_adapts_covers_what_intervals_need():
    runtime = lc.Runtime(STREAM, lc.Query("PATTERN SEQ(A a, C c) WITHIN 6", level=lc.KSlack(recall=0.9, max=40)))
    assert runtime.process([row("a0", "A", 0, 0)]).late.num_rows == 0
    assert runtime.explain()["queries"]["query"]["k"] == 50  # until it knows better: max, and the longest interval
    for start in range(0, 300_000, 30_000):
        pairs = [
            (row(f"c{n}", "C", n + 4, n + 6), row(f"a{n}", "A", n + 1, n + 2)) for n in range(start, start + 30_000, 15)
        ]
        runtime.process([event for pair in pairs for event in pair])
    assert 3 <= runtime.explain()["queries"]["query"]["k"] < 50
    assert sum(runtime.counters["late"].get("query", {}).values()) == 0


def test_clocks_of_sources_go_by_lower_ends():
    stream = lc.Stream(source="by", clock="source", sources=["x", "y"], uncertainty=2, unit="s", id="id")
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a, C c) WITHIN 20", level=lc.KSlack(1)))
    runtime.process([{"id": "a", "type": "A", "ts": 1, "by": "x"}, {"id": "c", "type": "C", "ts": 8, "by": "x"}])
    assert runtime.clock is None
    runtime.process([{"id": "x", "type": "A", "ts": 50, "by": "x"}])
    runtime.process([{"id": "y", "type": "A", "ts": 16, "by": "y"}])  # 14 - 1 - 4 is not behind 10
    assert runtime.clock == 14
    assert said(runtime.process([{"id": "z", "type": "A", "ts": 17, "by": "y"}])) == ["+ac 1.0"]


@pytest.mark.parametrize("pattern", ["A a, !B b, C c", "!B b, A a, !D d", "A a, !B b, C c, !D d"])
@pytest.mark.parametrize("level", [lc.KSlack(0), lc.Conservative()])
def test_what_may_undo_a_match_is_kept_for_as_long_as_the_match_waits(pattern, level):
    """Though it ended more than a window before all that is still to come."""
    query = lc.Query(f"PATTERN SEQ({pattern}) WITHIN 3", level=level)
    stream = dataclasses.replace(STREAM, longest=5)
    rows = [row("a", "A", 0, 5), row("b", "B", -2, 3), row("b2", "B", -3, -3), row("c", "C", 2, 7)]
    with squeeze.squeezed("small"):
        at_once, slowly = lc.Runtime(stream, query), lc.Runtime(stream, query)
        wanted = [*said(at_once.process(rows)), *said(at_once.finish())]
        got = said(slowly.process(rows))
        for time in range(3, 30):
            promise = {"type": "P", "from": time - 6, "to": None}
            got += said(slowly.process([row(f"z{time}", "Z", time, time), promise]))
        got += said(slowly.finish())
    assert got == wanted != []


def test_sources_in_order_release_by_lower_ends():
    stream = lc.Stream(
        source="by", uncertainty=2, sources=["x", "y"], promises=[lc.SourcesInOrder()], unit="s", id="id"
    )
    runtime = lc.Runtime(stream, lc.Query("PATTERN SEQ(A a, !B b, C c) WITHIN 20", level=lc.Conservative()))
    runtime.process([{"id": "a", "type": "A", "ts": 1, "by": "x"}, {"id": "c", "type": "C", "ts": 8, "by": "x"}])
    assert said(runtime.process([{"id": "y", "type": "Z", "ts": 12, "by": "y"}])) == []  # x may still send a B of 8
    assert said(runtime.process([{"id": "x", "type": "Z", "ts": 11, "by": "x"}])) == []  # not before 9, nor after 8
    assert said(runtime.process([{"id": "z", "type": "Z", "ts": 12, "by": "x"}])) == ["+ac 1.0"]


def test_a_match_is_amended_only_while_its_whole_reach_is_held():
    """A scope before it, too, though nothing may lie there."""
    for clock, amended in ((43, ["+ac 1.0"]), (45, [])):
        query = lc.Query("PATTERN SEQ(!B b, A a, C c) WITHIN 6", level=lc.KSlack(1, on_late="amend"))
        runtime = lc.Runtime(STREAM, query)
        runtime.process([row("x", "B", clock, clock)])
        out = runtime.process([row("a", "A", 20, 20), row("c", "C", 22, 22)])
        assert out.late["reason"].to_pylist() == ["after_k", "after_k"]
        assert said(out) == amended
