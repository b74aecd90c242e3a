"""Queries that ask for some of the matches of another one: steps test what that one finds, and tell the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.runtime.refinement import refinement
from latecomer.runtime.step import Step
from latecomer.storage import kernels
from tests.test_express import net, ordinary
from tests.test_holding import counting, events

stepping = pytest.mark.skipif(kernels.step is None, reason="kernels are not compiled: there are no steps")


def text(parts, conditions=(), window="200 s", key="[k]"):
    return f"PATTERN SEQ({parts}) WHERE {' AND '.join([key, *conditions])} WITHIN {window}"


def patterns(*texts):
    queries = [lc.Query(text, name=f"q{i}", level=lc.Aggressive("700 s")) for i, text in enumerate(texts)]
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries)
    runtime.process(events(1, 1, 0))
    return [query.pattern for lane in runtime._engine.lanes for query in lane.queries]


GAP = text("A a, !B b, C c")
NARROW = text("A a, !B b, C c", ["c.x > a.x"])


@pytest.mark.parametrize(
    ("narrow", "tests", "negations"),
    [
        (GAP, 0, (0,)),
        (text("A x, !B y, C z"), 0, (0,)),
        (NARROW, 1, (0,)),
        (text("A a, !B b, C c", ["a.x > 0.5", "c.x IS NOT NULL"]), 2, (0,)),
        (text("A a, !B b, !D d, C c"), 0, (0, None)),
        (text("A a, !D d, !B b, C c", ["d.x < a.x"]), 0, (None, 0)),
        (text("!B d, A a, !B b, C c, !D e"), 0, (None, 0, None)),
    ],
)
def test_more_conditions_and_negations_refine_a_query(narrow, tests, negations):
    own, wider = patterns(narrow, GAP)
    terms = refinement(own, wider)
    assert (len(terms.tests), terms.negations) == (tests, negations)
    assert terms.added == tuple(j for j, other in enumerate(negations) if other is None)


@pytest.mark.parametrize(
    ("narrow", "wider"),
    [
        (text("A a, C c"), GAP),  # its negation is missing
        (text("A a, !B b, C c", window="100 s"), GAP),
        (text("A a, !B b, C c", key="a.k = c.k"), GAP),
        (text("A a, !B b, D d"), GAP),
        (text("A a, B b, C c"), GAP),
        (text("A a, !B b, C c, D d"), GAP),
        (text("A a, C c, !B b"), GAP),
        (text("A a, !B b, C c", ["b.x > 0.5"]), GAP),
        (text("A a, !B b, C c", ["b.x > a.x"]), GAP),
        (text("A a, !B b, C c", ["b.x > a.x"]), text("A a, !B b, C c", ["b.x > c.x"])),
        (text("A a, C c", ["a.x > 1"]), text("A a, C c", ["a.x > 1.0"])),
        (text("A a, !B b, !D d, C c"), text("A a, !D d, !B b, C c")),  # another one is the first to kill
    ],
)
def test_other_queries_do_not(narrow, wider):
    own, other = patterns(narrow, wider)
    assert refinement(own, other) is None


CONDITIONS = ["c.x > a.x", "a.x < 0.8", "c.x > 0.1", "a.x + c.x < 1.7", "(a.x < 0.5 OR c.x > 0.2)"]
NEGATIONS = ["!B b", "!D d", "!D e"]
OF_NEGATIVES = {"!B b": "b.x > a.x", "!D d": "d.x < 0.7"}


@st.composite
def families(draw):
    """Texts of queries of which some refine others, in any order."""
    found = []
    for _ in range(draw(st.integers(2, 5))):
        between = draw(st.lists(st.sampled_from(NEGATIONS), unique=True))
        before = draw(st.sampled_from([[], [], ["!X x"]]))
        after = draw(st.sampled_from([[], [], [], ["!X y"]]))
        conditions = draw(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True))
        conditions += [OF_NEGATIVES[n] for n in between if n in OF_NEGATIVES and draw(st.integers(0, 3)) == 0]
        found.append(text(", ".join([*before, "A a", *between, "C c", *after]), conditions))
    return found


@stepping
@settings(max_examples=60)
@given(families(), st.integers(0, 99), st.data())
def test_what_is_found_for_others_is_all_that_there_is(texts, seed, data):
    level = lc.Aggressive("700 s", patience=data.draw(st.sampled_from(["0 s", "0 s", "0 s", "30 s"])))
    queries = [lc.Query(text, name=f"q{i}", level=level) for i, text in enumerate(texts)]
    one, other = (lc.Runtime(lc.Stream(id="id", unit="s"), queries) for _ in range(2))
    first = 0
    for number in range(data.draw(st.integers(10, 30))):
        n = data.draw(st.sampled_from([1, 2, 30, 200]))
        batch = events(n, 100 * seed + number, first)
        first += n
        same = net(one, ("process", batch)) == net(ordinary(other), ("process", batch))
        assert same
        if number == 0:
            counting(one)
    if not any("!X x" in text and "!X y" in text for text in texts):
        assert one._engine.express.steps > 0


@stepping
def test_a_query_that_refines_another_one_joins_nothing(monkeypatch):
    """Whichever comes first; and a refinement is refined."""
    seen = []
    plan = kernels.plan
    monkeypatch.setattr(kernels, "plan", lambda *args: seen.append(args[4]) or plan(*args))
    texts = [
        text("A a, !B b, !D d, C c"),
        text("A a, !B b, C c", ["c.x > a.x"]),
        text("A a, !B b, C c"),
        text("A a, C c"),
    ]
    queries = [lc.Query(text, name=f"q{i}", level=lc.Aggressive("700 s")) for i, text in enumerate(texts)]
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries)
    for number in range(2):
        runtime.process(events(100, number, 100 * number))
    assert Step.of(runtime._engine, runtime._engine.lanes) is not None
    origins = {number: [(order[2], order[-1]) for order in orders] for number, _, orders, *_ in seen[-1]}
    places = {number: place for place, (number, *_) in enumerate(seen[-1])}
    joins = {number: [origin for seed, origin in own if seed == -2] for number, own in origins.items()}
    assert joins[3] == []
    assert joins[2] == [(places[3], 0), (places[3], 1)]
    assert joins[1] == [(places[2], i) for i in range(3)]
    assert joins[0] == [(places[2], i) for i in range(3)]
    assert [len(own) for own in origins.values()] == [2, 3, 4, 3]


@stepping
def test_changes_come_in_the_order_of_queries():
    """Though the last one is answered first."""
    texts = [text("A a, C c", ["c.x > a.x"]), text("A a, C c", ["c.x < a.x"]), text("A a, C c")]
    queries = [lc.Query(text, name=f"q{i}", level=lc.Aggressive("700 s")) for i, text in enumerate(texts)]
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries)
    for number in range(5):
        out = runtime.process(events(200, number, 200 * number)).changes
        names = out["query"].to_pylist()
        assert names == sorted(names)
    assert set(names) == {"q0", "q1", "q2"}


@stepping
def test_the_wider_query_may_go():
    level = lc.Aggressive("700 s")
    wider, narrow = lc.Query(GAP, name="q0", level=level), lc.Query(NARROW, name="q1", level=level)
    one, other = (lc.Runtime(lc.Stream(id="id", unit="s"), queries) for queries in ([wider, narrow], narrow))
    found = [[], []]
    for number in range(6):
        batch = events(100, number, 100 * number)
        for own, runtime in zip(found, (one, other), strict=True):
            changes = runtime.process(batch).changes.to_pylist()
            own += [(row["op"], row["events"]) for row in changes if row["query"] == "q1"]
        if number == 0:
            counting(one)
        if number == 2:
            one.drop(["q0"])
            counting(one)
    assert one._engine.express.steps > 0
    assert len(found[0]) > 50
    assert sorted(found[0]) == sorted(found[1])
