"""Late events, duplicates and malformed rows, case by case: each is reported or counted, and the rest goes on."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

import latecomer as lc
from tests.script import batch, changes, late, start, take, tell

PAIR = "PATTERN SEQ(A a, B b) WITHIN 10 s"
NEGATED = "PATTERN SEQ(A a, !C c, B b) WITHIN 10 s"


@pytest.mark.parametrize(("level", "reason"), [(lc.KSlack(5), "after_k"), (lc.Aggressive(5), "after_max_delay")])
def test_lateness_is_judged_by_the_clock_at_the_events_own_arrival(level, reason):
    runtime = start(PAIR, level)
    out = runtime.process(batch("a10 a4 a5 b20 a12 a15 b14"))
    assert late(out) == [("a4", reason, 1), ("a12", reason, 3), ("b14", reason, 1)]
    told = [*changes(out), *changes(runtime.finish())]
    assert sorted(told) == ["+a10 b20", "+a15 b20"]


def test_punctuation_judges_by_type_and_by_its_place_in_the_stream():
    runtime = start(NEGATED, lc.Conservative())
    assert late(take(runtime, "c4")) == []
    assert tell(runtime, "a3 b9 <C,8>") == {}  # c4 is in time, and kills
    assert late(runtime.process(batch("c8 c9 a8 c-3"))) == [
        ("c8", "after_punctuation", 1),
        ("c-3", "after_punctuation", 12),
    ]
    take(runtime, "<*,20>")
    assert late(runtime.process(batch("a20 b19 c21 z1"))) == [
        ("a20", "after_punctuation", 1),
        ("b19", "after_punctuation", 2),
    ]


def test_punctuation_travels_in_the_stream():
    stream = lc.Stream(id="id", unit="s", punctuation="PUNCT", of="about")
    rows = [
        {"id": 1, "type": "A", "ts": 3},
        {"id": 2, "type": "B", "ts": 9},
        {"type": "PUNCT", "ts": 5, "about": "C"},
        {"id": 3, "type": "C", "ts": 5},
        {"id": 4, "type": "C", "ts": 6},
        {"id": 5, "type": "A", "ts": 7},
        {"type": "PUNCT", "ts": 8, "about": None},
    ]
    whole = start(NEGATED, lc.Conservative(), stream)
    out = whole.process(rows)
    assert late(out) == [(3, "after_punctuation", 1)]
    assert changes(out) == ["+5 2"]
    assert whole.clock == 9  # punctuation is no event
    assert whole.counters["punctuation"] == 2
    one_by_one = start(NEGATED, lc.Conservative(), stream)
    outs = [one_by_one.process([row]) for row in rows]
    assert [r for o in outs for r in late(o)] == late(out)
    assert [c for o in outs for c in changes(o)] == changes(out)


def test_punctuation_of_one_source_binds_that_source_until_all_have_promised():
    stream = lc.Stream(id="id", source="source", unit="s", sources=["x", "y"])
    runtime = start(NEGATED, lc.Conservative(), stream)
    runtime.process([{"id": 1, "type": "A", "ts": 3, "source": "x"}, {"id": 2, "type": "B", "ts": 9, "source": "x"}])
    assert changes(runtime.punctuate(8, type="C", source="x")) == []
    out = runtime.process(
        [{"id": 3, "type": "C", "ts": 20, "source": "x"}, {"id": 4, "type": "C", "ts": 3, "source": "x"}]
    )
    assert late(out) == [(4, "after_punctuation", 6)]
    assert late(runtime.process([{"id": 5, "type": "C", "ts": 3, "source": "y"}])) == []
    assert changes(runtime.punctuate(8, type="C", source="y")) == ["+1 2"]


def test_punctuation_never_makes_an_event_late_for_the_other_levels():
    for level in (lc.KSlack(5), lc.Aggressive(5)):
        runtime = start(NEGATED, level)
        told = tell(runtime, "a3 <*,100> c5 b9 f50 .")
        assert told == {}
        assert runtime.counters["late"] == {"q": {}}


def test_a_late_event_may_be_fine_for_another_query():
    queries = [
        lc.Query(NEGATED, name="strict", level=lc.KSlack(1)),
        lc.Query(NEGATED, name="patient", level=lc.Aggressive(9)),
        lc.Query(NEGATED, name="proven", level=lc.Conservative()),
        lc.Query("PATTERN SEQ(A a, B b) WITHIN 10 s", name="other types", level=lc.KSlack(0)),
    ]
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries)
    out = runtime.process(batch("a3 b9 c5"))
    assert [(r["query"], r["id"], r["reason"], r["late_by"]) for r in out.late.to_pylist()] == [
        ("strict", "c5", "after_k", 3)
    ]
    out = runtime.finish()
    answers = {(r["op"], r["query"]) for r in out.changes.to_pylist()}
    assert ("insert", "strict") in answers  # for it c5 did not happen
    assert not {("insert", "patient"), ("insert", "proven")} & answers
    assert runtime.counters["late"] == {"strict": {"after_k": 1}, "patient": {}, "proven": {}, "other types": {}}


def test_events_of_types_that_a_query_ignores_are_never_late_but_move_the_clock():
    runtime = start(PAIR, lc.KSlack(5))
    assert late(runtime.process(batch("z100 z1 a90"))) == [("a90", "after_k", 5)]
    assert runtime.clock == 100


def test_the_filter_does_not_matter_for_being_late():
    runtime = start("PATTERN SEQ(A a, B b) WHERE a.x > 5 WITHIN 10 s", lc.KSlack(5))
    assert late(runtime.process(batch("b20 a3.x=1"))) == [("a3", "after_k", 12)]


def test_a_late_row_is_the_whole_event():
    stream = lc.Stream(type="kind", ts="at", id="number", source="device", unit="s")
    runtime = start(PAIR, lc.Aggressive(2), stream)
    rows = [
        {"number": 7, "kind": "B", "at": 20, "device": "d1", "note": "first", "weight": 1.5},
        {"number": 8, "kind": "A", "at": 11, "device": "d2", "note": "second", "weight": None},
    ]
    out = runtime.process(rows)
    fixed = ["late_id", "query", "id", "type", "ts", "source", "reason", "late_by", "detail", "missed", "wrong"]
    assert out.late.column_names == [*fixed, "note", "weight"]
    row = out.late.to_pylist()[0]
    assert len(row.pop("late_id")) == 32
    assert row == {
        "query": "q",
        "id": 8,
        "type": "A",
        "ts": 11,
        "source": "d2",
        "reason": "after_max_delay",
        "late_by": 7,
        "detail": None,
        "missed": 1,
        "wrong": 0,
        "note": "second",
        "weight": None,
    }


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (pa.month_day_nano_interval(), (1, 2, 3), (1, 2, 4)),
        (pa.list_(pa.struct({"x": pa.decimal128(5, 2)})), [{"x": 1}], [{"x": 2}]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], [("a", 2)]),
        (pa.null(), None, None),
    ],
    ids=str,
)
def test_a_late_row_has_values_of_any_type(kind, one, other):
    """Also those that Arrow has no text for; late ids and copies are told by them."""
    columns = {"id": [1, 2, 3, 3], "type": ["B", "A", "A", "A"], "ts": [100, 1, 2, 2], "k": ["x"] * 4}
    table = pa.table(columns).append_column("value", pa.array([one, one, one, other], kind))
    out = start(PAIR, lc.Aggressive(2)).process(table)
    assert out.late["value"].to_pylist() == pa.array([one, one, other], kind).to_pylist()
    assert len(set(out.late["late_id"].to_pylist())) == (2 if one == other else 3)


def test_moments_within_nested_values_may_come_in_another_zone():
    """Spark tells of the same column in UTC in one place and in the session's zone in another."""

    def kind(zone):
        moment = pa.timestamp("us", zone)
        return pa.struct({"all": pa.list_(moment), "by": pa.map_(pa.string(), moment)})

    runtime = start(PAIR, lc.Aggressive(2))
    value = {"all": [1, None], "by": [("a", 3)]}
    told = []
    for number, zone in enumerate(("UTC", "America/New_York")):
        columns = {"id": [2 * number, 2 * number + 1], "type": ["B", "A"], "ts": [100, 1]}
        table = pa.table(columns).append_column("value", pa.array([value, value], kind(zone)))
        told.append(runtime.process(table).late["value"])
    assert told[0].type == told[1].type == kind("UTC")
    assert told[0].to_pylist() == told[1].to_pylist()
    with pytest.raises(lc.SchemaError, match="'value' holds struct"):
        runtime.process(table.set_column(3, "value", pa.array([value, value], kind(None))))


def test_late_ids_are_stable_and_tell_rows_apart():
    def ids(*words):
        runtime = lc.Runtime(
            lc.Stream(id="id", unit="s"),
            [lc.Query(PAIR, name="one", level=lc.KSlack(1)), lc.Query(PAIR, name="two", level=lc.KSlack(1))],
        )
        return [i for w in words for i in runtime.process(batch(w)).late["late_id"].to_pylist()]

    together = ids("b20 a12 a13 a12")
    assert len(together) == len(set(together)) == 4
    assert sorted(ids("b20 a12", "a13", "a12")) == sorted(together)
    assert len(set(ids("b20 a3 a3"))) == 2  # a copy that nobody remembers is late like the first, and the same row


# --- duplicates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [lc.KSlack(20), lc.Conservative(), lc.Aggressive(20)])
@pytest.mark.parametrize("words", [["a3.x=1 a3.x=1 b9 b9 a3.x=1"], ["a3.x=1", "a3.x=1", "b9 b9", "a3.x=1"]])
def test_a_true_copy_counts_once_and_is_only_counted(level, words):
    runtime = start(PAIR, level)
    outs = [*(runtime.process(batch(w)) for w in words), runtime.finish()]
    assert [c for out in outs for c in changes(out)] == ["+a3 b9"]
    assert not any(out.late.num_rows for out in outs)
    assert (runtime.counters["duplicates"], runtime.counters["conflicts"]) == (3, 0)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("other", [{"x": 2}, {"ts": 4}, {"type": "B"}, {"x": None}, {"k": "u"}])
def test_the_first_of_an_id_counts_and_a_conflicting_one_is_reported(split, other):
    first = {"id": "e", "type": "A", "ts": 3, "x": 1, "k": None}
    end = {"id": "f", "type": "B", "ts": 9, "x": 1, "k": None}
    runtime = start("PATTERN SEQ(A a, B b) WHERE a.x = 1 WITHIN 10 s RETURN a.ts AS at, a.k AS k", lc.Aggressive(20))
    schema = pa.schema(
        [("id", pa.string()), ("type", pa.string()), ("ts", pa.int64()), ("x", pa.int64()), ("k", pa.string())]
    )
    rows = [first, first | other, end]
    parts = [[row] for row in rows] if split else [rows]
    outs = [runtime.process(pa.Table.from_pylist(part, schema)) for part in parts]
    found = [r for out in outs for r in out.changes.to_pylist()]
    assert [(r["events"], r["at"], r["k"]) for r in found] == [(["e", "f"], 3, None)]
    rows = [r for out in outs for r in out.late.to_pylist()]
    assert [(r["query"], r["id"], r["reason"]) for r in rows] == [(None, "e", "duplicate")]
    assert "conflicts" in rows[0]["detail"]
    assert {n: rows[0][n] for n in other} == other
    assert (runtime.counters["duplicates"], runtime.counters["conflicts"]) == (1, 1)


def test_a_copy_of_a_late_event_is_late_or_a_duplicate_but_never_used():
    runtime = start(PAIR, lc.Aggressive(2))
    outs = [runtime.process(batch(w)) for w in ("b9", "a3", "a3")]
    assert late(outs[1]) == [("a3", "after_max_delay", 4)]
    assert [c for out in outs for c in changes(out)] == []
    counted = runtime.counters["duplicates"] + sum(out.late.num_rows for out in outs)
    assert counted == 2


def test_a_copy_long_after_is_late():
    runtime = start(PAIR, lc.KSlack(5))
    tell(runtime, "a3 b9 f1000")
    assert late(take(runtime, "a3")) == [("a3", "after_k", 992)]
    assert changes(runtime.finish()) == []


@pytest.mark.parametrize("level", [lc.KSlack(5), lc.Aggressive(5)])
def test_a_late_event_that_is_sent_again_and_again_is_not_remembered_each_time(level):
    """Each copy would be compared with all that came before it."""
    runtime = start(PAIR, level)
    tell(runtime, "a3 b9 f1000")
    rows = [late(out) for out in [*(take(runtime, "a3") for _ in range(20)), take(runtime, " ".join(["a3"] * 500))]]
    assert [len(own) for own in rows] == [1] * 20 + [500]
    assert len(runtime._engine.ids) < 10
    assert changes(runtime.finish()) == []


@pytest.mark.parametrize("ids", [["x", "y"], [1, 2], [b"x", b"y"]])
def test_ids_may_be_text_numbers_or_bytes(ids):
    runtime = start(PAIR, lc.Aggressive(5))
    rows = [
        {"id": ids[0], "type": "A", "ts": 3},
        {"id": ids[1], "type": "B", "ts": 5},
        {"id": ids[1], "type": "B", "ts": 5},
    ]
    out = runtime.process(rows)
    assert out.changes["events"].to_pylist() == [ids]
    assert runtime.counters["duplicates"] == 1


def test_without_ids_events_are_numbered_by_arrival():
    runtime = start(PAIR, lc.Aggressive(5), lc.Stream(unit="s"))
    first = runtime.process([{"type": "A", "ts": 3}, {"type": "A", "ts": 3}])
    second = runtime.process([{"type": "B", "ts": 5}])
    assert first.changes.num_rows == 0
    assert sorted(second.changes["events"].to_pylist()) == [[0, 2], [1, 2]]
    assert runtime.counters["duplicates"] == 0


# --- malformed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["id", "type", "ts"])
@pytest.mark.parametrize("as_table", [False, True])
def test_a_row_without_id_type_or_time_is_malformed(column, as_table):
    good = [{"id": "a", "type": "A", "ts": 3, "x": 1}, {"id": "b", "type": "B", "ts": 5, "x": 2}]
    bad = {"id": "c", "type": "A", "ts": 4, "x": 9} | {column: None}
    rows = [good[0], bad, good[1]]
    runtime = start(PAIR, lc.Aggressive(5))
    out = runtime.process(pa.Table.from_pylist(rows) if as_table else rows)
    assert changes(out) == ["+a b"]
    row = out.late.to_pylist()[0]
    assert (out.late.num_rows, row["query"], row["reason"], row["late_by"], row["x"]) == (1, None, "malformed", None, 9)
    assert column in row["detail"]
    assert runtime.counters["malformed"] == 1
    assert runtime.counters["rows"] == 3
    assert runtime.counters["events"] == 2


def test_a_malformed_row_moves_nothing_and_takes_no_id():
    runtime = start(PAIR, lc.KSlack(5))
    rows = [{"id": "a", "type": None, "ts": 1000}, {"id": "a", "type": "A", "ts": 3}, {"id": "b", "type": "B", "ts": 5}]
    out = runtime.process(rows)
    assert [r["reason"] for r in out.late.to_pylist()] == ["malformed"]
    assert runtime.clock == 5
    assert changes(runtime.finish()) == ["+a b"]


def test_values_that_do_not_fit_their_column_make_their_row_malformed():
    runtime = start("PATTERN SEQ(A a, B b) WHERE a.x < b.x WITHIN 10 s", lc.Aggressive(5))
    runtime.process([{"id": 1, "type": "A", "ts": 3, "x": 1}])
    out = runtime.process(
        [
            {"id": 2, "type": "B", "ts": "soon", "x": 2},
            {"id": 3, "type": "B", "ts": 5, "x": "many"},
            {"id": 4, "type": "B", "ts": 6, "x": 2},
        ]
    )
    assert [(r["id"], r["reason"]) for r in out.late.to_pylist()] == [(2, "malformed"), (3, "malformed")]
    details = [r["detail"] for r in out.late.to_pylist()]
    assert "soon" in details[0]
    assert "many" in details[1]
    assert out.changes["events"].to_pylist() == [[1, 4]]


def test_bad_rows_may_come_first():
    runtime = start(PAIR, lc.Aggressive(5))
    out = runtime.process(
        [{"id": 1, "type": "A", "ts": "never"}, {"id": 2, "type": "A", "ts": 3}, {"id": 3, "type": "B", "ts": 4}]
    )
    assert [(r["id"], r["reason"]) for r in out.late.to_pylist()] == [(1, "malformed")]
    assert out.changes["events"].to_pylist() == [[2, 3]]


def test_a_time_too_large_to_count_with_is_malformed():
    runtime = start(PAIR, lc.KSlack(5))
    out = runtime.process(batch(f"a{2**62 + 1} a{-(2**62) - 1} a{2**63 - 1} a{-(2**63)} a3 b4"))
    assert [r["reason"] for r in out.late.to_pylist()] == ["malformed"] * 4
    assert changes(runtime.finish()) == ["+a3 b4"]


def test_the_greatest_and_the_least_time_can_be_counted_with():
    for level in (lc.KSlack(5), lc.Conservative(), lc.Aggressive(5)):
        runtime = start("PATTERN SEQ(A a, B b, !C c) WITHIN 10 s", level)
        told = tell(runtime, f"a{-(2**62)} b{1 - 2**62} a{2**62 - 1} b{2**62} .")
        assert sorted(c for answer in told.values() for c in answer) == [
            f"+a{-(2**62)} b{1 - 2**62}",
            f"+a{2**62 - 1} b{2**62}",
        ]


@pytest.mark.parametrize("value", [2**40, -(2**40), 2**63 - 1, -(2**63)])
def test_a_timestamp_that_does_not_fit_a_finer_unit_is_malformed(value):
    schema = pa.schema([("id", pa.int64()), ("type", pa.string()), ("ts", pa.timestamp("s"))])
    rows = pa.table([pa.array([1, 2]), pa.array(["A", "A"]), pa.array([value, 3], pa.timestamp("s"))], schema=schema)
    runtime = start("PATTERN SEQ(A a) WITHIN 10 s", lc.Aggressive("5 s"), lc.Stream(id="id", unit="ns"))
    out = runtime.process(rows)
    assert runtime.counters["malformed"] == 1
    assert changes(out) == ["+2"]


def test_nothing_is_dropped_without_a_count():
    runtime = start(PAIR, lc.KSlack(2))
    rows = batch("a10 a10 a3 z9 b12").to_pylist()
    rows += [{"id": None, "type": "A", "ts": 5}, {"id": "a10", "type": "A", "ts": 10, "k": "other"}]
    out = runtime.process(rows)
    counters = runtime.counters
    assert counters["rows"] == 7
    assert counters["events"] + counters["malformed"] + counters["punctuation"] == counters["rows"]
    assert (counters["malformed"], counters["other_types"]) == (1, 1)
    assert (counters["duplicates"], counters["conflicts"]) == (2, 1)
    assert counters["late"] == {"q": {"after_k": 1}}
    assert out.late.num_rows == counters["malformed"] + counters["conflicts"] + 1


def test_times_of_late_rows_keep_their_type():
    stream = lc.Stream(id="id")
    rows = [
        {"id": 1, "type": "B", "ts": datetime(2024, 1, 1, 12, tzinfo=UTC)},
        {"id": 2, "type": "A", "ts": datetime(2024, 1, 1, 11, 59, tzinfo=UTC)},
    ]
    schema = pa.schema([("id", pa.int64()), ("type", pa.string()), ("ts", pa.timestamp("ms", "UTC"))])
    runtime = start("PATTERN SEQ(A a, B b) WITHIN 10 s", lc.KSlack("30 s"), stream)
    out = runtime.process(pa.Table.from_pylist(rows, schema))
    assert out.late.schema.field("ts").type == pa.timestamp("ms", "UTC")
    assert [(r["ts"], r["late_by"]) for r in out.late.to_pylist()] == [(rows[1]["ts"], 30_000)]
