"""The language of interval streams: strategies, confidence, functions of RETURN; and what is refused over intervals."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer.query import Confidence
from latecomer.query import expressions as x
from latecomer.query.parse import parse
from latecomer.query.types import result_type

PAIR = "PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h "
LEVEL = lc.Conservative()


def plan(text):
    return lc.Query(text, level=LEVEL).plan


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("", Confidence(0.0)),
        ("CONFIDENCE > 0", Confidence(0.0)),
        ("CONFIDENCE >= 0.8", Confidence(0.8, inclusive=True)),
        ("confidence >= 80%", Confidence(0.8, inclusive=True)),
        ("CONFIDENCE >= 1", Confidence(1.0, inclusive=True)),
        ("CONFIDENCE > .5", Confidence(0.5)),
        ("CONFIDENCE > 5e-1 sampled 1%", Confidence(0.5, error=0.01)),
        ("CONFIDENCE >= 0.9 SAMPLED 0.001", Confidence(0.9, True, 0.001)),
    ],
)
def test_what_confidence_means(text, meaning):
    assert plan(PAIR + text).confidence == meaning


def test_clauses_in_their_order_are_written_as_they_are_read():
    text = (
        "PATTERN SEQ(Shelf s, !Counter c, Exit e)\nWHERE [tag]\nWITHIN 1 h\n"
        'RETURN s.tag AS tag, confidence() AS "confidence", latest(e) - earliest(s) AS took\n'
        "STRATEGY skip-till-next-match\nCONFIDENCE >= 0.8 SAMPLED 0.01\n"
        "CONSISTENCY aggressive(max_delay = 1 min, confidence_step = 0.05)"
    )
    query = lc.Query(text)
    assert query.text == text
    assert query.level == lc.Aggressive("1 min", confidence_step=0.05)
    assert lc.Query(query.text) == query


@given(st.floats(0, 1), st.booleans(), st.none() | st.floats(0.001, 1, exclude_max=True), st.booleans())
def test_every_threshold_is_written_as_it_is_read(least, inclusive, error, next_match):
    pattern = lc.seq(lc.event("A", "a"), lc.event("B", "b")).within(5)
    pattern = pattern.confidence(**{"at_least" if inclusive else "more_than": least}, sampled=error)
    if next_match:
        pattern = pattern.strategy("skip_till_next_match")
    if (inclusive and least == 0) or (not inclusive and least == 1):
        with pytest.raises(lc.QueryError, match="CONFIDENCE"):
            pattern.query(level=LEVEL)
        return
    query = pattern.query(level=LEVEL)
    assert query.plan.confidence == Confidence(least, inclusive, error)
    assert query.plan.strategy == f"skip-till-{'next' if next_match else 'any'}-match"
    assert lc.Query(query.text) == query


def test_fields_of_functions_take_their_names():
    found = plan(PAIR + "RETURN confidence(), earliest(s), Latest(e), latest(e) AS left").returns
    assert found == (
        ("confidence", x.Call("confidence", None)),
        ("earliest_s", x.Call("earliest", "s")),
        ("latest_e", x.Call("latest", "e")),
        ("left", x.Call("latest", "e")),
    )


def test_confidence_earliest_and_latest_are_names_elsewhere():
    found = plan(
        "PATTERN SEQ(earliest latest, confidence e) WHERE latest.confidence > e.latest WITHIN 1 h RETURN e.sampled"
    )
    assert [c.var for c in found.positives] == ["latest", "e"]
    assert found.returns == (("sampled", x.Attribute("e", "sampled")),)


def test_the_same_query_built_in_python():
    s, e = lc.event("Shelf", "s"), lc.event("Exit", "e")
    built = (
        lc.seq(s, e)
        .within("1 h")
        .returns(lc.confidence(), lc.earliest(s), took=lc.latest(e) - lc.earliest(s))
        .strategy("skip-till-next-match")
        .confidence(at_least=0.8, sampled=0.01)
        .query(level=LEVEL)
    )
    text = PAIR + (
        "RETURN confidence(), earliest(s), latest(e) - earliest(s) AS took "
        "STRATEGY skip-till-next-match CONFIDENCE >= 80% SAMPLED 1%"
    )
    assert built == lc.Query(text, level=LEVEL)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.confidence(), "confidence.. takes one limit"),
        (lambda p: p.confidence(at_least=0.5, more_than=0.5), "confidence.. takes one limit"),
        (lambda p: p.confidence(at_least=1.5), "1.5 is no probability"),
        (lambda p: p.confidence(at_least=True), "True is no probability"),
        (lambda p: p.confidence(at_least="high"), "'high' is no probability"),
        (lambda p: p.confidence(at_least=float("nan")), "nan is no probability"),
        (lambda p: p.strategy(5), "5 is not the name of a strategy"),
        (lambda p: p.strategy("strict-contiguity").query(level=LEVEL), "strict-contiguity is not supported yet"),
        (lambda p: p.strategy("anything").query(level=LEVEL), "anything is not a selection strategy"),
        (lambda p: p.where(lc.confidence() > 0.5).query(level=LEVEL), "belongs in RETURN"),
        (lambda p: p.returns(lc.confidence() * 2).query(level=LEVEL), "a computed field needs a name"),
        (lambda p: p.returns(lc.latest(lc.event("A", "z"))).query(level=LEVEL), "unknown variable 'z'"),
        (lambda p: p.returns(lc.latest(lc.event("A"))), r"no variable, so latest\(\) cannot name it"),
    ],
)
def test_a_wrong_query_built_in_python_is_refused(build, message):
    with pytest.raises(lc.QueryError, match=message):
        build(lc.seq(lc.event("A", "a"), lc.event("B", "b")).within(5))


@pytest.mark.parametrize("step", [-0.1, 1, 2, True, "much"])
def test_a_step_is_a_share(step):
    with pytest.raises(lc.ConfigError, match="confidence_step="):
        lc.Aggressive(1, confidence_step=step)


INTEGERS = pa.schema({"type": pa.string(), "from": pa.int64(), "to": pa.int64(), "tag": pa.string()})
MOMENTS = pa.schema({"type": pa.string(), "from": pa.timestamp("ms"), "to": pa.timestamp("ms"), "tag": pa.string()})
STREAM = lc.Stream(lower="from", upper="to", longest=10, unit="ms")


@pytest.mark.parametrize(
    ("text", "integers", "moments"),
    [
        ("confidence()", pa.float64(), pa.float64()),
        ("earliest(s)", pa.int64(), pa.timestamp("ms")),
        ("latest(e) - earliest(s)", pa.int64(), pa.duration("ms")),
        ("(latest(e) - earliest(s)) / 2", pa.float64(), pa.duration("ms")),
        ("earliest(s) + 5 ms", pa.int64(), pa.timestamp("ms")),
        ("s.from", pa.int64(), pa.timestamp("ms")),
    ],
)
def test_types_of_fields(text, integers, moments):
    [(_, expr)] = plan(PAIR + f"RETURN {text} AS field").returns
    assert result_type(expr, STREAM, INTEGERS) == integers
    assert result_type(expr, STREAM, MOMENTS) == moments


REFUSED = {
    "PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN s.ts AS taken": """\
the time of an event is an interval here: it has no single value in RETURN
  line 1, column 48
    PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN s.ts AS taken
                                                   ^
  earliest(…) and latest(…) say where it may lie; columns may be named, like s.from""",
    "PATTERN SEQ(Shelf s, !Counter c, Exit e) WHERE c.ts - s.ts > 5 WITHIN 1 h": """\
the time of an event is an interval here: it has no single value where an absent component is judged
  line 1, column 48
    PATTERN SEQ(Shelf s, !Counter c, Exit e) WHERE c.ts - s.ts > 5 WITHIN 1 h
                                                   ^
  PATTERN and WITHIN say when it must not come; columns may be named, like c.from""",
    "PATTERN SEQ(Shelf s, Exit e) WHERE e.ts - s.ts > 5 WITHIN 1 h STRATEGY skip-till-next-match": """\
the time of an event is an interval here: it has no single value under skip-till-next-match
  line 1, column 36
    PATTERN SEQ(Shelf s, Exit e) WHERE e.ts - s.ts > 5 WITHIN 1 h STRATEGY skip-till-next-match
                                       ^
  conditions on times go with skip-till-any-match only; columns may be named, like e.from""",
    "PATTERN SEQ(Shelf s, Exit e) WHERE [tag, ts] WITHIN 1 h": """\
[ts] cannot compare times that are intervals
  line 1, column 36
    PATTERN SEQ(Shelf s, Exit e) WHERE [tag, ts] WITHIN 1 h
                                       ^
  leave it out; order is said by PATTERN, nearness by WITHIN""",
    "PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN s.tag AS confidence": """\
a field cannot be called 'confidence': every change of an interval stream has such a column
  line 1, column 48
    PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN s.tag AS confidence
                                                   ^
  give it another name with AS; taken are earliest, latest, confidence, confidence_error""",
    "PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN earliest(s) AS earliest": """\
a field cannot be called 'earliest': every change of an interval stream has such a column
  line 1, column 48
    PATTERN SEQ(Shelf s, Exit e) WITHIN 1 h RETURN earliest(s) AS earliest
                                                   ^
  give it another name with AS; taken are earliest, latest, confidence, confidence_error""",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items())
def test_what_intervals_cannot_say_is_refused_in_these_words(text, message):
    query = lc.Query(text, level=LEVEL)
    with pytest.raises(lc.QueryError) as refused:
        query.check(STREAM, INTEGERS)
    assert str(refused.value) == message
    query.check(lc.Stream(unit="ms"), INTEGERS)  # while exact times can
    with pytest.raises(lc.QueryError) as refused:  # before the first batch
        lc.Runtime(STREAM, query)
    assert str(refused.value) == message


def test_confidence_may_be_returned_under_its_own_name_over_intervals():
    lc.Query(PAIR + "RETURN confidence(), s.from AS began", level=LEVEL).check(STREAM, INTEGERS)


def test_functions_over_exact_times_say_what_is_certain():
    query = lc.Query(
        "PATTERN SEQ(A a, B b) WITHIN 10 RETURN confidence(), earliest(a), latest(b) - earliest(a) AS took "
        "CONFIDENCE >= 0.9",
        level=lc.Aggressive(5),
    )
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    changes = runtime.process([{"id": 1, "type": "A", "ts": 3}, {"id": 2, "type": "B", "ts": 8}]).changes
    assert changes.schema.names[6:] == ["confidence", "earliest_a", "took"]
    assert changes.select(["confidence", "earliest_a", "took"]).to_pylist() == [
        {"confidence": 1.0, "earliest_a": 3, "took": 5}
    ]


def test_conditions_on_the_times_of_a_match_are_probable():
    query = lc.Query("PATTERN SEQ(A a, B b) WHERE b.ts - a.ts > 1 AND a.ts <= 3 WITHIN 9", level=lc.Aggressive(5))
    runtime = lc.Runtime(lc.Stream(lower="from", upper="to", longest=10, unit="s"), query)
    rows = [{"type": "A", "from": 1, "to": 4}, {"type": "B", "from": 4, "to": 5}]
    [change] = runtime.process(rows).changes.to_pylist()
    assert change["confidence"] == pytest.approx(5 / 8)  # all of the eight worlds but a = 4, and a = 3 with b = 4
    assert (change["earliest"], change["latest"]) == (1, 5)


def test_a_call_knows_its_place():
    [item] = parse(PAIR + "RETURN latest(e)").returns
    assert item.expr.position == item.position == 47


@pytest.mark.parametrize("error", ["0.0009", "0.00001"])
def test_an_error_that_takes_too_many_worlds_is_refused(error):
    with pytest.raises(
        lc.QueryError, match=r"would draw [0-9.e+]+ worlds for each match[\s\S]*the least error is 0\.001"
    ):
        lc.Query(f"PATTERN SEQ(A a, B b) WITHIN 5 s CONFIDENCE >= 0.1 SAMPLED {error}", level=lc.Aggressive(10))
