"""The oracle itself, on answers worked out by hand: whoever trusts it should be able to read here why."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.consistency.levels import Conservative
from latecomer.query.expressions import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Moment,
    Negative,
    Not,
    Or,
)
from latecomer.query.plan import Component, Negation, Plan
from latecomer.units import Duration
from tests.oracle import matches, value

NULL = Literal(None)


def plan(pattern, window=10, key=(), conjuncts=(), filters=None, kills=None):
    """A plan by hand: ``"A a, !B b, C c"``; ``filters`` and ``kills`` map variables to expressions."""
    components = []
    for index, part in enumerate(pattern.split(", ")):
        kind, var = part.lstrip("!").split()
        components.append(Component(index, kind, var, part.startswith("!"), tuple((filters or {}).get(var, ()))))
    positives = tuple(c for c in components if not c.negated)
    negations = []
    for c in components:
        if c.negated:
            before = sum(p.index < c.index for p in positives)
            left, right = (before - 1 if before else None), (before if before < len(positives) else None)
            negations.append(Negation(c, left, right, tuple((kills or {}).get(c.var, ()))))
    window = Duration.of(window)
    return Plan("q", positives, tuple(negations), key, tuple(conjuncts), window, (), "", Conservative(), "")


def stream(text, **attributes):
    """``"a1 b5"`` -> an A at 1 named a1, a B at 5 named b5; attributes by name of event: ``k=dict(a1=7)``."""
    events = []
    for word in text.split():
        given = {name: values.get(word) for name, values in attributes.items()}
        events.append({"id": word, "type": word[0].upper(), "ts": int(word[1:].strip("'")), **given})
    return events


#: (pattern, events, matches), with a window of 10.
BY_HAND = [
    ("A a, B b", "a1 b5", {("a1", "b5")}),
    ("A a, B b", "b5 a1", {("a1", "b5")}),
    ("A a, B b", "a5 b1", set()),
    ("A a, B b", "a1 b1", set()),  # equal times never follow each other
    ("A a, B b", "a1 b11", {("a1", "b11")}),  # the window's end belongs to it
    ("A a, B b", "a1 b12", set()),
    ("A a, B b", "a-3 b7 b8", {("a-3", "b7")}),
    ("A a, B b", "a1 a2 b5 b6", {("a1", "b5"), ("a1", "b6"), ("a2", "b5"), ("a2", "b6")}),
    ("A a, A b", "a1 a2 a3", {("a1", "a2"), ("a1", "a3"), ("a2", "a3")}),
    ("A a", "a1 b2 a3", {("a1",), ("a3",)}),
    ("A a, !B b, C c", "a1 c9", {("a1", "c9")}),
    ("A a, !B b, C c", "a1 b5 c9", set()),
    ("A a, !B b, C c", "a1 b1 b9 c9", {("a1", "c9")}),  # the scope is open at its neighbours
    ("A a, !B b, C c", "a1 b3 a4 c9", {("a4", "c9")}),
    ("A a, !B b, !D d, C c", "a1 d5 c9", set()),
    ("A a, !B b, !D d, C c", "a1 b5 c9", set()),
    ("!B b, A a, C c", "b0 a1 c9", set()),  # [9 - 10, 1)
    ("!B b, A a, C c", "b-1 a1 c9", set()),
    ("!B b, A a, C c", "b-2 a1 c9", {("a1", "c9")}),
    ("!B b, A a, C c", "b1 a1 c9", {("a1", "c9")}),
    ("A a, C c, !B b", "a1 c9 b9", {("a1", "c9")}),  # (9, 1 + 10]
    ("A a, C c, !B b", "a1 c9 b10", set()),
    ("A a, C c, !B b", "a1 c9 b11", set()),
    ("A a, C c, !B b", "a1 c9 b12", {("a1", "c9")}),
    ("A a, !A x, A b", "a1 a2 a3", {("a1", "a2"), ("a2", "a3")}),
    ("A a, !B b", "a1 b11", set()),
    ("!B b, A a, !B d", "a5", {("a5",)}),
]


@pytest.mark.parametrize(("pattern", "events", "answer"), BY_HAND)
def test_order_window_and_negation(pattern, events, answer):
    assert matches(plan(pattern), stream(events), "s") == answer


def test_equivalence_joins_equal_values_and_never_null():
    events = stream("a1 a2 a3 b5 b6 c9", k={"a1": 1, "a2": 2, "a3": None, "b5": 1, "b6": None, "c9": 1})
    assert matches(plan("A a, C c", key=("k",)), events, "s") == {("a1", "c9")}
    assert matches(plan("A a, !B b, C c", key=("k",)), events, "s") == set()
    assert matches(plan("A a, !B b, C c", key=("k",)), [e for e in events if e["id"] != "b5"], "s") == {("a1", "c9")}
    assert matches(plan("A a", key=("k",)), events, "s") == {("a1",), ("a2",)}


def test_predicates_say_which_matches_stand_and_which_negatives_count():
    events = stream("a1 b5 c9", x={"a1": 1, "b5": 2, "c9": 3})
    a, b, c = (Attribute(v, "x") for v in "abc")

    def answer(**predicates):
        return bool(matches(plan("A a, !B b, C c", **predicates), events, "s"))

    assert not answer()
    assert answer(filters={"b": [Comparison("=", b, Literal(1))]})
    assert answer(kills={"b": [Comparison(">", a, b)]})
    assert not answer(kills={"b": [Comparison("<", a, b), Comparison("<", b, c)]})
    assert answer(kills={"b": [Comparison("<", a, b), Comparison("=", b, c)]})
    assert answer(kills={"b": [Comparison("<", b, NULL)]})  # unknown: the negative does not count
    assert not answer(filters={"b": [IsNull(NULL)], "a": [Comparison("=", a, NULL)]})


E = {"x": {"i": 3, "f": 2.5, "t": "a%b", "n": None, "nan": float("nan"), "yes": True, "ts": 7}}


def attr(name):
    return Attribute("x", name)


@pytest.mark.parametrize(
    ("expr", "answer"),
    [
        (Comparison("=", attr("n"), attr("n")), None),
        (Comparison("<>", attr("nan"), Literal(1)), None),
        (Comparison("<", Literal("Z"), Literal("a")), True),
        (Comparison(">", Literal("é"), Literal("z")), True),
        (Comparison("=", attr("i"), Literal(3.0)), True),
        (And((Literal(False), NULL)), False),
        (And((Literal(True), NULL)), None),
        (Or((Literal(True), NULL)), True),
        (Or((Literal(False), NULL)), None),
        (Not(NULL), None),
        (Not(attr("yes")), False),
        (In(attr("i"), (Literal(1), NULL)), None),
        (In(attr("i"), (Literal(3), NULL)), True),
        (In(attr("i"), (Literal(1), Literal(2))), False),
        (Not(In(attr("i"), (Literal(1), NULL))), None),
        (Between(attr("i"), Literal(4), NULL), False),
        (Between(attr("i"), Literal(3), Literal(3)), True),
        (Between(attr("i"), NULL, Literal(3)), None),
        (IsNull(attr("nan")), True),
        (Like(attr("t"), "a_b"), True),
        (Like(attr("t"), r"a\%b"), True),
        (Like(attr("t"), r"a\_b"), False),
        (Like(attr("t"), "%"), True),
        (Like(attr("t"), "A%"), False),
        (Like(Literal("a.c\n"), "a.%"), True),
        (Like(Literal("abc"), "a.%"), False),
        (Like(attr("n"), "%"), None),
        (Arithmetic("/", attr("i"), Literal(2)), 1.5),
        (Arithmetic("/", attr("i"), Literal(0)), None),
        (Arithmetic("%", attr("i"), Literal(0)), None),
        (Arithmetic("+", attr("i"), attr("n")), None),
        (Negative(attr("f")), -2.5),
        (Comparison(">", Arithmetic("-", attr("ts"), Literal(1)), Literal(Duration.of("5 s"))), True),
        (Comparison(">", attr("ts"), Literal(Duration.of("7100 ms"))), False),
        (Comparison("<", attr("ts"), Literal(Moment(7_000_000_001))), True),
    ],
)
def test_values_are_those_of_sql(expr, answer):
    found = value(expr, E, "s")
    assert found == answer
    assert type(found) is type(answer)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 6)), max_size=7), st.integers(0, 6))
def test_matches_are_the_product_of_all_events_filtered(drawn, window):
    """The same definition once more, spelled with a plain product over the whole set."""
    events = [{"id": i, "type": kind, "ts": ts} for i, (kind, ts) in enumerate(drawn)]
    answer = {
        (a["id"], c["id"])
        for a, c in itertools.product(events, events)
        if (a["type"], c["type"]) == ("A", "C")
        and 0 < c["ts"] - a["ts"] <= window
        and not any(b["type"] == "B" and a["ts"] < b["ts"] < c["ts"] for b in events)
        and not any(b["type"] == "B" and c["ts"] - window <= b["ts"] < a["ts"] for b in events)
        and not any(b["type"] == "A" and c["ts"] < b["ts"] <= a["ts"] + window for b in events)
    }
    assert matches(plan("!B x, A a, !B b, C c, !A y", window=window), events, "s") == answer
