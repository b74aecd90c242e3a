"""The language: what a text means as a plan, canonical text, and the same query built in Python."""

import pickle
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.cli.report import facts
from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.errors import ConfigError, QueryError
from latecomer.query import Query, absent, event, seq
from latecomer.query import expressions as x
from latecomer.query.parse import parse
from latecomer.query.types import result_type
from latecomer.query.unparse import write
from latecomer.query.validate import validate
from latecomer.query.words import read_moment, write_moment
from latecomer.stream import Stream
from latecomer.units import Duration

S, C, E = x.Attribute("s", "tag"), x.Attribute("c", "till"), x.Attribute("e", "price")


def plan(text, level=Conservative(), name=None):  # noqa: B008
    return Query(text, level=level, name=name).plan


def where(text):
    """The conjuncts of a WHERE over variables s and e."""
    return parse(f"PATTERN SEQ(Shelf s, Exit e) WHERE {text} WITHIN 1 h").conjuncts


def expression(text):
    return parse(f"PATTERN SEQ(Shelf s, Exit e) RETURN {text} AS v").returns[0].expr


THEFT = """
    PATTERN SEQ(Shelf s, !Counter c, Exit e)
    WHERE   [tag] AND e.price > 100 AND c.till <> 'training'
    WITHIN  10 minutes
    RETURN  s.tag AS tag, s.ts AS taken, e.ts AS left
"""

# Plans


def test_a_query_becomes_a_plan():
    found = plan(THEFT, name="theft")
    shelf, exit = found.positives
    assert (shelf.index, shelf.type, shelf.var, shelf.negated, shelf.filter) == (0, "Shelf", "s", False, ())
    assert (exit.index, exit.type, exit.var) == (2, "Exit", "e")
    assert exit.filter == (x.Comparison(">", E, x.Literal(100)),)
    (negation,) = found.negations
    assert (negation.kind, negation.left, negation.right, negation.conjuncts) == ("middle", 0, 1, ())
    assert negation.component.filter == (x.Comparison("<>", C, x.Literal("training")),)
    assert found.key == ("tag",)
    assert found.conjuncts == ()
    assert found.window == Duration.of("10 min")
    assert found.returns[1] == ("taken", x.Attribute("s", "ts"))
    assert [alias for alias, _ in found.returns] == ["tag", "taken", "left"]
    assert (found.name, found.strategy, found.level) == ("theft", "skip-till-any-match", Conservative())
    assert found.types == ("Shelf", "Counter", "Exit")


def test_where_is_split_by_what_each_conjunct_names():
    found = plan(
        """PATTERN SEQ(!A n, B b, !C m, D d, !E o)
        WHERE b.x = 1 AND b.x < d.x AND n.x = 1 AND n.x = b.x AND m.x = b.y + d.y AND (1 = 1 AND (d.z AND b.x = d.x))
          AND (o.x = 1 OR b.x = 1)
        WITHIN 5"""
    )
    text = {c.var: [write(f) for f in c.filter] for c in found.components}
    assert text == {"n": ["n.x = 1"], "b": ["b.x = 1"], "m": [], "d": ["d.z"], "o": []}
    assert [[write(c) for c in n.conjuncts] for n in found.negations] == [
        ["n.x = b.x"],
        ["m.x = b.y + d.y"],
        ["o.x = 1 OR b.x = 1"],
    ]
    assert [write(c) for c in found.conjuncts] == ["b.x < d.x", "1 = 1", "b.x = d.x"]
    assert [(n.kind, n.left, n.right) for n in found.negations] == [
        ("leading", None, 0),
        ("middle", 0, 1),
        ("trailing", 1, None),
    ]


def test_adjacent_negations_share_their_neighbours():
    found = plan("PATTERN SEQ(A a, !B b, !C c, D d, !B e, !B f) WITHIN 1 h")
    assert [(n.component.index, n.left, n.right) for n in found.negations] == [
        (1, 0, 1),
        (2, 0, 1),
        (4, 1, None),
        (5, 1, None),
    ]
    assert found.types == ("A", "B", "C", "D")


def test_an_or_within_a_conjunct_is_not_split():
    assert len(where("s.a = 1 AND (s.b = 2 AND e.c = 3 OR s.d = 4)")) == 2
    assert len(where("NOT (s.a = 1 AND s.b = 2)")) == 1


def test_equivalences_are_collected_once_each():
    text = 'PATTERN SEQ(A a, B b) WHERE [tag, "odd name"] AND a.x = 1 AND ([place] AND [tag]) WITHIN 1 h'
    assert plan(text).key == ("tag", "odd name", "place")


def test_an_equality_of_attributes_stays_a_conjunct():
    (conjunct,) = plan("PATTERN SEQ(A a, B b) WHERE a.x = b.x WITHIN 1 h").conjuncts
    assert x.equality(conjunct) == (x.Attribute("a", "x"), x.Attribute("b", "x"))


def test_variables_may_be_left_out():
    found = plan("PATTERN SEQ(A, !B, C _1, D) WITHIN 1 h")
    assert [c.var for c in found.components] == ["__1", "_2", "_1", "_4"]
    assert plan(found.text) == found


@pytest.mark.parametrize(
    "text", ["PATTERN Late a WITHIN 1 h", "PATTERN SEQ(Late a) WITHIN 1 h", "pattern Late a within 1 h"]
)
def test_a_single_component_is_a_pattern(text):
    (component,) = plan(text).positives
    assert (component.type, component.var) == ("Late", "a")


def test_names_may_be_quoted_and_keywords_stand_where_no_keyword_can():
    found = plan(
        'PATTERN SEQ("Late flight" a, "SEQ" "in", Seq q) WHERE "in".and = a."it ""s""" WITHIN 1 h RETURN a.like AS is'
    )
    assert [(c.type, c.var) for c in found.components] == [("Late flight", "a"), ("SEQ", "in"), ("Seq", "q")]
    assert found.conjuncts == (x.Comparison("=", x.Attribute("in", "and"), x.Attribute("a", 'it "s"')),)
    assert found.returns == (("is", x.Attribute("a", "like")),)
    assert plan(found.text) == found


def test_names_of_units_and_timestamp_are_no_keywords():
    assert where("s.h > 5 h AND s.min = 1") == (
        x.Comparison(">", x.Attribute("s", "h"), x.Literal(Duration.of("5 h"))),
        x.Comparison("=", x.Attribute("s", "min"), x.Literal(1)),
    )
    assert plan("PATTERN SEQ(timestamp timestamp) WHERE timestamp.timestamp > 5 WITHIN 1 h").types == ("timestamp",)


def test_keywords_are_in_any_case_and_comments_are_skipped():
    text = """-- what is stolen
    pattern seq(Shelf s, Exit e) -- in the shop
    Where [tag] and NOT s.sold is Null within 1 h return s.tag as tag"""
    assert plan(text) == plan(
        "PATTERN SEQ(Shelf s, Exit e) WHERE [tag] AND NOT s.sold IS NULL WITHIN 1 h RETURN s.tag AS tag"
    )


def test_returns_take_the_name_of_their_attribute():
    found = plan("PATTERN SEQ(A a, B b) WITHIN 1 h RETURN a.tag, b.ts, a.x + b.x AS sum")
    assert [alias for alias, _ in found.returns] == ["tag", "ts", "sum"]


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("10 minutes", "10 min"),
        ("1 h 30 min", "90 min"),
        ("1h30min", "90 min"),
        ("2.5 s", "2500 ms"),
        (".5 s", "500 ms"),
        ("3 Days", "3 d"),
        ("7 µs", "7 us"),
        ("300", 300),
        ("2.5", Fraction(5, 2)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_windows(text, window):
    assert plan(f"PATTERN SEQ(A a, B b) WITHIN {text}").window == Duration.of(window)


def test_window_0_is_allowed_for_one_component():
    assert plan("PATTERN Late a WITHIN 0").window == Duration.of(0)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("kslack(5 minutes)", KSlack("5 min")),
        ("KSLACK(k = 300)", KSlack(300)),
        ("conservative", Conservative()),
        ("conservative()", Conservative()),
        ("aggressive(max_delay = 5 minutes, patience = 10 seconds)", Aggressive("5 min", "10 s")),
        ("Aggressive(patience = 10 s, max_delay = 1 h 30 min)", Aggressive("90 min", "10 s")),
        ("aggressive(5 minutes)", Aggressive("5 min")),
        ("aggressive(5 minutes, 10)", Aggressive("5 min", 10)),
        (
            "kslack(5 minutes, source 'truck-7' = 1 hour, SOURCE 'it''s' = 2 h)",
            KSlack("5 min", sources={"it's": "2 h", "truck-7": "1 h"}),
        ),
        ("kslack(source '' = 1, k = 2.5)", KSlack(2.5, sources={"": 1})),
        ("kslack(recall = 0.99, max = 1 hour)", KSlack(recall=0.99, max="1 h")),
        ("kslack(max = 3600, Recall = 1e-3)", KSlack(recall=0.001, max=3600)),
        ("kslack(5 minutes, on_late = amend)", KSlack("5 min", on_late="amend")),
        ("kslack(5 minutes, on_late = divert)", KSlack("5 min")),
        ("conservative(on_late = AMEND)", Conservative(on_late="amend")),
        ("aggressive(max_delay = 5 minutes, retractions = 0.01)", Aggressive("5 min", retractions=0.01)),
        ("aggressive(5 minutes, corrections = replace)", Aggressive("5 min", corrections="replace")),
        (
            "aggressive(1 h, 1 s, corrections = replace, on_late = amend)",
            Aggressive("1 h", "1 s", corrections="replace", on_late="amend"),
        ),
    ],
)
def test_levels_in_the_text(text, level):
    query = Query(f"PATTERN SEQ(A a, B b) WITHIN 1 h CONSISTENCY {text}")
    assert query.level == level
    assert Query(query.text) == query


def test_the_default_strategy_may_be_named():
    bare = plan("PATTERN SEQ(A a, B b) WITHIN 1 h")
    assert plan("PATTERN SEQ(A a, B b) WITHIN 1 h STRATEGY skip-till-any-match") == bare
    assert plan("PATTERN SEQ(A a, B b) WITHIN 1 h STRATEGY SKIP_TILL_ANY_MATCH") == bare


# Expressions

X, Y = x.Attribute("s", "x"), x.Attribute("e", "y")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("s.x + e.y * 2", x.Arithmetic("+", X, x.Arithmetic("*", Y, x.Literal(2)))),
        ("s.x - e.y - 2", x.Arithmetic("-", x.Arithmetic("-", X, Y), x.Literal(2))),
        ("s.x - (e.y - 2)", x.Arithmetic("-", X, x.Arithmetic("-", Y, x.Literal(2)))),
        ("-s.x / 2", x.Arithmetic("/", x.Negative(X), x.Literal(2))),
        ("- 5", x.Literal(-5)),
        ("-9223372036854775808", x.Literal(-(2**63))),
        ("s.x - -5", x.Arithmetic("-", X, x.Literal(-5))),
        ("s.x != 1", x.Comparison("<>", X, x.Literal(1))),
        ("s.x IN (1, e.y)", x.In(X, (x.Literal(1), Y))),
        ("s.x NOT IN (1)", x.Not(x.In(X, (x.Literal(1),)))),
        ("s.x BETWEEN 1 AND 2 AND e.y", x.And((x.Between(X, x.Literal(1), x.Literal(2)), Y))),
        ("s.x NOT BETWEEN 1 AND 2", x.Not(x.Between(X, x.Literal(1), x.Literal(2)))),
        ("s.x LIKE 'a%'", x.Like(X, "a%")),
        ("s.x NOT LIKE 'it''s'", x.Not(x.Like(X, "it's"))),
        ("s.x IS NULL", x.IsNull(X)),
        ("s.x IS NOT NULL", x.Not(x.IsNull(X))),
        ("NOT s.x IS NULL OR e.y", x.Or((x.Not(x.IsNull(X)), Y))),
        ("NOT NOT s.x", x.Not(x.Not(X))),
        ("s.x OR e.y AND TRUE", x.Or((X, x.And((Y, x.Literal(True)))))),
        ("(s.x OR e.y) AND FALSE", x.And((x.Or((X, Y)), x.Literal(False)))),
        (
            "(s.x = 1) = (e.y = NULL)",
            x.Comparison("=", *(x.Comparison("=", a, x.Literal(v)) for a, v in ((X, 1), (Y, None)))),
        ),
        ("1.5", x.Literal(1.5)),
        ("1e3", x.Literal(1000.0)),
        (".5E-1", x.Literal(0.05)),
        ("''", x.Literal("")),
        ("'two\nlines -- no comment'", x.Literal("two\nlines -- no comment")),
        ("s.x > 5 minutes", x.Comparison(">", X, x.Literal(Duration.of("5 min")))),
        ("1 h 30 min * 2", x.Arithmetic("*", x.Literal(Duration.of("90 min")), x.Literal(2))),
        ("TIMESTAMP '1970-01-02'", x.Literal(x.Moment(86_400 * 10**9))),
        ("timestamp'1970-01-01T00:00:01Z'", x.Literal(x.Moment(10**9))),
    ],
)
def test_expressions(text, tree):
    assert expression(text) == tree


def test_constants_of_different_kinds_differ():
    assert expression("1") != expression("1.0") != expression("TRUE") != expression("1")
    assert len({expression("1"), expression("1.0"), expression("TRUE"), expression(" 1")}) == 3


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2013-01-01", datetime(2013, 1, 1, tzinfo=UTC)),
        ("2013-01-01 10:00", datetime(2013, 1, 1, 10, tzinfo=UTC)),
        ("2013-1-1 10:00:05.25", datetime(2013, 1, 1, 10, 0, 5, 250_000, tzinfo=UTC)),
        ("2013-01-01 10:00+01:00", datetime(2013, 1, 1, 10, tzinfo=timezone(timedelta(hours=1)))),
        ("2013-01-01T10:00:00-0530", datetime(2013, 1, 1, 10, tzinfo=timezone(-timedelta(hours=5, minutes=30)))),
        ("0001-01-01 00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_moments(text, when):
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    assert read_moment(text).nanoseconds == (since // timedelta(microseconds=1)) * 1000


@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9))
def test_moments_are_written_as_they_are_read(nanoseconds):
    assert read_moment(write_moment(x.Moment(nanoseconds))).nanoseconds == nanoseconds


# Canonical text

NAMES = st.sampled_from(
    ["s", "e", "x", "and", "NULL", "odd name", 'qu"ote', "é", "within", "h", "µs", "İn", "ıs", "ſ"]
) | st.text(min_size=1)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
CONSTANTS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.text()
    | st.integers(0, 10**20).map(lambda n: Duration(Fraction(n)))
    | st.decimals(0, 10**6, places=3).map(lambda d: Duration(Fraction(d)))
    | st.integers(-(10**18), 10**18).map(x.Moment)
)
LEAVES = st.builds(x.Literal, CONSTANTS) | st.builds(x.Attribute, NAMES, NAMES)


def is_number(expr):
    return isinstance(expr, x.Literal) and type(expr.value) in (int, float)


def larger(inner):
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return (
        st.builds(x.Arithmetic, st.sampled_from("+-*/%"), inner, inner)
        # A minus before a number is part of the number.
        | st.builds(x.Negative, inner.filter(lambda e: not (is_number(e) and str(e.value)[0] != "-")))
        | st.builds(x.Comparison, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), inner, inner)
        | st.builds(x.And, several)
        | st.builds(x.Or, several)
        | st.builds(x.Not, inner)
        | st.builds(x.In, inner, st.lists(inner, min_size=1, max_size=3).map(tuple))
        | st.builds(x.Between, inner, inner, inner)
        | st.builds(x.Like, inner, st.text())
        | st.builds(x.IsNull, inner)
    )


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=8)


@settings(max_examples=500)
@given(EXPRESSIONS)
def test_what_is_written_reads_back_equal(expr):
    assert expression(write(expr)) == expr


VARS = ("a", "n", "b")
COLUMN = st.builds(x.Attribute, st.sampled_from(VARS), st.sampled_from(["k", "ts", "odd name"]))
CONDITION = st.recursive(
    st.builds(x.Comparison, st.sampled_from(["=", "<"]), COLUMN, COLUMN) | st.builds(x.IsNull, COLUMN),
    lambda c: (
        st.builds(x.And, st.lists(c, min_size=2, max_size=3).map(tuple))
        | st.builds(x.Or, st.lists(c, min_size=2, max_size=3).map(tuple))
        | st.builds(x.Not, c)
    ),
    max_leaves=5,
)
LENGTH = (
    st.integers(1, 10**15).map(lambda n: Duration(Fraction(n)))
    | st.integers(1, 99).map(Duration.of)
    | st.decimals(Decimal("1e-12"), 10**6, places=12).map(lambda d: Duration(Fraction(d)))
)
SHARE = st.floats(0, 1, exclude_min=True, exclude_max=True)
ON_LATE = st.sampled_from(["divert", "amend"])
CORRECTIONS = st.sampled_from(["changes", "replace"])
LEVEL = (
    st.builds(KSlack, LENGTH, sources=st.dictionaries(st.text(), LENGTH, max_size=3), on_late=ON_LATE)
    | st.builds(KSlack, recall=SHARE, max=LENGTH, on_late=ON_LATE)
    | st.builds(Conservative, on_late=ON_LATE)
    | st.builds(Aggressive, LENGTH, st.just(Duration.of(0)) | LENGTH, corrections=CORRECTIONS, on_late=ON_LATE)
    | st.builds(Aggressive, LENGTH, retractions=SHARE, corrections=CORRECTIONS, on_late=ON_LATE)
)


@settings(max_examples=200)
@given(
    st.permutations([False, True, False]),
    st.lists(st.sampled_from(["k", "odd name", "WHERE"]), max_size=3),
    st.lists(CONDITION, max_size=4),
    LENGTH,
    LEVEL,
)
def test_queries_are_written_as_they_are_read(negated, key, conditions, window, level):
    steps = ", ".join(f"{'!' * n}T {v}" for n, v in zip(negated, VARS, strict=True))
    names = ", ".join(f'"{k}"' for k in key)
    parts = [f"[{names}]"] * bool(key) + [f"({write(c)})" for c in conditions]
    text = f"PATTERN SEQ({steps})" + (f" WHERE {' AND '.join(parts)}" if parts else "") + " WITHIN 1"
    draft = replace(parse(text), window=window)
    query = Query.from_plan(validate(draft, name="q", level=level, text=None))
    assert Query(query.text, name="q") == query
    assert Query(query.text, name="q").text == query.text
    assert len(query.plan.text) < len(query.text)


def test_a_query_is_its_plan():
    query = Query(THEFT, name="theft", level=Aggressive("5 min", "1 s"))
    assert query == Query(query.text, name="theft") != Query(THEFT, name="other", level=query.level)
    assert (query.name, query.level, query.source) == ("theft", Aggressive("5 min", "1 s"), THEFT)
    assert Query(THEFT, level=Conservative()).name == "query"
    assert hash(query) == hash(Query(query.text, name="theft"))
    assert pickle.loads(pickle.dumps(query)) == query
    assert str(query) == query.text
    assert eval(repr(query), {"Query": Query}) == query
    with pytest.raises(AttributeError):
        query.plan = None


def test_the_canonical_text_is_readable():
    assert Query(THEFT, level=Aggressive("5 min", 10)).text == (
        "PATTERN SEQ(Shelf s, !Counter c, Exit e)\n"
        "WHERE [tag] AND c.till <> 'training' AND e.price > 100\n"
        "WITHIN 10 min\n"
        "RETURN s.tag AS tag, s.ts AS taken, e.ts AS left\n"
        "CONSISTENCY aggressive(max_delay = 5 min, patience = 10)"
    )


@settings(max_examples=300)
@given(
    st.decimals(0, 10**9, places=15).map(lambda d: Duration(Fraction(d)))
    | st.integers(0, 10**30).map(lambda n: Duration(Fraction(n)))
    | st.integers(0, 10**6).map(lambda n: Duration(Fraction(n), plain=True))
    | st.floats(0, allow_infinity=False, allow_nan=False).map(Duration.of)
    | st.timedeltas(timedelta(0)).map(Duration.of)
)
def test_durations_are_written_exactly(duration):
    assert Duration.of(str(duration)) == duration
    window = plan(f"PATTERN A a WITHIN {duration}").window
    assert window == duration


@pytest.mark.parametrize(
    ("text", "waits", "retention", "units", "final"),
    [
        (
            "kslack(5 min, source 'x' = 1 h)",
            "until the clock reaches b.ts + 5 min (other sources have their own slack)",
            "2 h of event time behind the clock: the window and the largest slack",
            7200,
            True,
        ),
        (
            "kslack(recall = 0.99, max = 30 min)",
            "until the clock reaches b.ts + the slack it chooses (at most 30 min)",
            "90 min of event time behind the clock: the window and max",
            5400,
            True,
        ),
        (
            "aggressive(5 min, retractions = 0.01)",
            "until the clock reaches b.ts + the patience it chooses",
            "65 min of event time behind the clock: the window and max_delay",
            3900,
            False,
        ),
        (
            "kslack(5 min, on_late = amend)",
            "until the clock reaches b.ts + 5 min",
            "65 min of event time behind the clock: the window and k",
            3900,
            False,
        ),
        (
            "aggressive(5, 1 h)",
            "until the clock reaches b.ts + 1 h",
            "2 h of event time behind the clock: the window and patience",
            7200,
            False,
        ),
    ],
)
def test_what_levels_mean_for_a_query_is_told(text, waits, retention, units, final):
    told = facts(plan(f"PATTERN SEQ(A a, !N n, B b) WITHIN 1 h CONSISTENCY {text}", level=None), "s")
    assert told["waits"] == [waits]
    assert told["retention"] == {"text": retention, "units": units, "unit": "s"}
    assert told["level"]["final"] is final


@pytest.mark.parametrize(
    ("text", "written"),
    [("0.0000005 ms", "0.5 ns"), ("1 h 0.0000005 ms", "3600000000000.5 ns"), ("90 s", "90 s"), ("36 h", "36 h")],
)
def test_durations_are_written_in_the_largest_unit_that_says_them(text, written):
    assert str(Duration.of(text)) == written
    assert (str(Duration.of(0.1)), str(Duration.of(" 07.50 "))) == ("0.1", "7.5")


def test_a_duration_without_finite_decimals_is_refused():
    with pytest.raises(ConfigError, match="1/3 has no finite decimal form: round it"):
        seq(event("A")).within(Fraction(1, 3))


# Built in Python


def same_condition(term, text):
    """The builder's condition and the text's are one expression."""
    assert repr(term) == write(expression(text))
    assert term._expr == expression(text)


def test_the_same_query_built_in_python():
    s, c, e = event("Shelf", "s"), absent("Counter", "c"), event("Exit", "e")
    built = (
        seq(s, c, e)
        .same("tag")
        .where(e.price > 100, c.till != "training")
        .within("10 minutes")
        .returns(tag=s.tag, taken=s.ts, left=e.ts)
        .query(name="theft", level=Conservative())
    )
    assert built.plan == plan(THEFT, name="theft")
    assert built == Query(THEFT, name="theft", level=Conservative())
    assert built.source is None


def test_conditions_joined_in_python_are_split_like_those_of_the_text():
    a, n, b = event("A", "a"), absent("N"), event("B", "b")
    built = (
        seq(a, n, b)
        .where((a.x > 1) & (b.x > a.x) & ~a.y.is_null())
        .where(True)
        .within(5)
        .returns(a.x, b.ts, sum=a.x + 1)
    )
    where = "a.x > 1 AND b.x > a.x AND a.y IS NOT NULL AND TRUE"
    text = f"PATTERN SEQ(A a, !N, B b) WHERE {where} WITHIN 5 RETURN a.x, b.ts, a.x + 1 AS sum"
    assert built.query(level=KSlack(1)).plan == plan(text, KSlack(1))


s, e = event("Shelf", "s"), event("Exit", "e")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (s.x == e.x, "s.x = e.x"),
        (s["odd name"] != 1, 's."odd name" <> 1'),
        (s.x < 1, "s.x < 1"),
        (s.x <= 1.0, "s.x <= 1.0"),
        (1 > s.x, "s.x < 1"),  # noqa: SIM300
        (s.x >= True, "s.x >= TRUE"),
        (s.x + 1 - e.x, "s.x + 1 - e.x"),
        (1 - s.x * 2, "1 - s.x * 2"),
        (2 * s.x / 3 % 4, "2 * s.x / 3 % 4"),
        (1 / s.x, "1 / s.x"),
        (7 % (1 + s.x), "7 % (1 + s.x)"),
        (-s.x, "-s.x"),
        ((s.x == 1) | (s.x == 2) | (s.x == 3), "s.x = 1 OR s.x = 2 OR s.x = 3"),
        ((s.x == 1) & ((s.x == 2) | ~(s.x == 3)), "s.x = 1 AND (s.x = 2 OR NOT s.x = 3)"),
        (s.x.isin(1, "a", None), "s.x IN (1, 'a', NULL)"),
        (~s.x.isin([1, 2]), "s.x NOT IN (1, 2)"),
        (s.x.between(1, e.x), "s.x BETWEEN 1 AND e.x"),
        (s.x.like("a%"), "s.x LIKE 'a%'"),
        (~s.x.is_null(), "s.x IS NOT NULL"),
        (e.ts - s.ts > timedelta(minutes=5), "e.ts - s.ts > 5 minutes"),
        (s.x + -timedelta(seconds=1), "s.x + -(1 s)"),
        (s.x > Duration.of("1 h"), "s.x > 1 h"),
        (s.x > Duration.of(5), "s.x > 5"),
        (s.ts > datetime(2013, 1, 1, 10), "s.ts > TIMESTAMP '2013-01-01 10:00'"),
        (
            s.ts > datetime(2013, 1, 1, 10, tzinfo=timezone(timedelta(hours=1))),
            "s.ts > TIMESTAMP '2013-01-01 10:00+01:00'",
        ),
        (s.ts > date(2013, 1, 1), "s.ts > TIMESTAMP '2013-01-01'"),
    ],
)
def test_terms_in_python(term, text):
    same_condition(term, text)


def test_patterns_are_immutable():
    base = seq(event("A", "a")).within(5)
    base.where(event("A", "a").x > 1)
    assert base.query(level=Conservative()).plan.positives[0].filter == ()
    assert repr(absent("A")) == "!A" and repr(event("A", "a")) == "A a"


# Types of fields

COLUMNS = pa.schema(
    {
        "when": pa.timestamp("us", "UTC"),
        "tag": pa.dictionary(pa.int32(), pa.string()),
        "price": pa.int32(),
        "weight": pa.float32(),
        "sold": pa.bool_(),
        "due": pa.timestamp("ms"),
        "length": pa.duration("ms"),
        "count": pa.int64(),
    }
)


@pytest.mark.parametrize(
    ("text", "timestamps", "integers"),
    [
        ("s.tag", pa.string(), pa.string()),
        ("s.price", pa.int32(), pa.int32()),
        ("s.ts", pa.timestamp("us", "UTC"), pa.int64()),
        ("s.due", pa.timestamp("ms"), pa.timestamp("ms")),
        ("s.price + 1", pa.int64(), pa.int64()),
        ("s.price / 1", pa.float64(), pa.float64()),
        ("s.weight * s.price", pa.float64(), pa.float64()),
        ("s.price > 1", pa.bool_(), pa.bool_()),
        ("'x'", pa.string(), pa.string()),
        ("NULL", pa.null(), pa.null()),
        ("s.ts + 5 minutes", pa.timestamp("us", "UTC"), pa.int64()),
        ("s.ts - 5", pa.timestamp("us", "UTC"), pa.int64()),
        ("s.ts - e.ts", pa.duration("us"), pa.int64()),
        ("5 minutes", pa.duration("us"), pa.int64()),
        ("5 ms", pa.duration("us"), pa.float64()),
        ("s.length", pa.duration("ms"), pa.duration("ms")),
        ("s.length * 2", pa.duration("us"), pa.float64()),
        ("e.ts - s.due", pa.duration("us"), pa.float64()),
        ("(e.ts - s.ts) / 2", pa.duration("us"), pa.float64()),
        ("(e.ts - s.ts) * s.count", pa.duration("us"), pa.int64()),
        ("(e.ts - s.ts) * s.weight", pa.duration("us"), pa.float64()),
        ("(e.ts - s.ts) / 1 min", pa.float64(), pa.float64()),
    ],
)
def test_types_of_fields(text, timestamps, integers):
    counted = COLUMNS.append(pa.field("seconds", pa.int64()))
    assert result_type(expression(text), Stream(ts="when"), COLUMNS) == timestamps
    assert result_type(expression(text), Stream(ts="seconds", unit="s"), counted) == integers


def test_a_field_of_no_column_has_no_type():
    with pytest.raises(
        QueryError, match=r"the stream has no column 'tga' — did you mean 'tag'\?: s\.tga\n  its columns"
    ):
        result_type(expression("s.tga"), Stream(ts="when"), COLUMNS)


def test_a_good_query_passes_the_check_against_its_columns():
    query = Query(
        """PATTERN SEQ(A s, B e) WHERE [tag] AND s.price > 1.5 AND s.sold AND s.due > e.ts - 5 AND s.tag LIKE 'x%'
           AND s.length < 5 AND s.price IN (1, 2.5, NULL) AND NOT s.sold = (e.price = 1) AND s.sensor = 'x'
           WITHIN 5 RETURN s.tag""",
        level=Conservative(),
    )
    query.check(Stream(ts="when", source="sensor"), COLUMNS)


# The page about it

PAGE = (Path(__file__).parent.parent / "docs" / "language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "sql"])
def test_the_queries_of_the_page_are_queries(text):
    query = Query(text)
    assert Query(query.text) == query


def test_the_programs_of_the_page_print_what_it_shows(capsys):
    exec("\n".join(text for kind, text in BLOCKS if kind == "python"), {})
    assert capsys.readouterr().out == "".join(text for kind, text in BLOCKS if kind == "text")
