"""The ways to compute a confidence against each other, their costs, and what happens beyond the bound."""

from dataclasses import replace
from itertools import pairwise, product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.query.plan import Confidence
from latecomer.runtime.intervals import evaluators, separable, ways
from latecomer.runtime.intervals.bounds import valid_bounds
from latecomer.runtime.intervals.confidence import confidence
from latecomer.runtime.intervals.evaluators import Block
from latecomer.runtime.intervals.pmf import OWN, Distributions
from latecomer.runtime.intervals.question import Hits, Question
from latecomer.runtime.intervals.ways import Budget, sizes_of
from latecomer.uncertainty import Normal, Triangular, Uniform
from tests.interval_machine import Machine
from tests.worlds import STAM, STNM, answer, random_worlds

SHAPES = (Uniform(), Triangular(0.3), Normal(2.0))


@st.composite
def questions(draw, shared=True, most=4, sizes=(1, 2, 3, 4), shapes=(OWN, 0, 1, 2)):
    """A candidate of some events and up to ``most`` that may spoil it."""
    n = draw(st.sampled_from(sizes))
    window = draw(st.sampled_from([3, 6, 9, 20, 1]))
    spoilers = draw(st.integers(0, most))
    spans = [(low, low + draw(st.integers(0, 4))) for low in (draw(st.integers(j, j + 4)) for j in range(n))]
    spans += [(low, low + draw(st.integers(0, 4))) for low in (draw(st.integers(-2, 9)) for _ in range(spoilers))]
    codes = [draw(st.sampled_from(shapes)) for _ in spans]
    flat = []
    for code, (low, high) in zip(codes, spans, strict=True):
        if code == OWN:
            flat += [1] + [draw(st.integers(0, 3)) for _ in range(high - low - 1)] + [2] * (high > low)
    lower, upper = np.array(spans).T
    events = Distributions.of(lower, upper, np.array(codes), SHAPES, np.array(flat, float))
    own = [np.array([j]) for j in range(n)]
    earliest, latest, possible = valid_bounds(
        [lower[[j]] for j in range(n)], [upper[[j]] for j in range(n)], [1] * (n - 1), window
    )
    assume(possible[0])
    scopes = [(None, 0), (n - 1, None), *((j, j + 1) for j in range(n - 1))]
    pairs = [
        (event, scope)
        for event in range(n, n + spoilers)
        for scope in (range(len(scopes)) if shared and draw(st.booleans()) else [draw(st.integers(0, len(scopes) - 1))])
    ]
    event, scope = np.array(pairs, np.int64).reshape(-1, 2).T
    hits = Hits(np.zeros(len(pairs), np.int64), scope, event)
    return Question(events, own, earliest, latest, hits, scopes, window)


def block(question):
    hits, spoiled = question.sorted_out()
    sizes = [sizes_of(b - a + 1)[0] for a, b in zip(question.earliest, question.latest, strict=True)]
    assume(not spoiled[0])
    fields = question.events, question.own, question.earliest, question.latest, hits, question.scopes, question.window
    return Block(*fields, tuple(map(int, sizes)), True)


def by_hand(question):
    """The definition: over all times of the candidate's events, the chance that nothing else spoils."""
    n, events, window = len(question.own), question.events, question.window
    weights = [dict(enumerate(events.weights(i), events.lower[i])) for i in range(len(events))]
    hits = set(zip(question.hits.event.tolist(), question.hits.scope.tolist(), strict=True))
    sum_ = 0
    for times in product(*(weights[j] for j in range(n))):
        if times[-1] - times[0] > window or any(a >= b for a, b in pairwise(times)):
            continue
        chance = prod(weights[j][t] / events.total[j] for j, t in enumerate(times))
        for q in range(n, len(events)):
            inside = set()
            for number, (left, right) in enumerate(question.scopes):
                if (q, number) in hits:
                    low = times[-1] - window if left is None else times[left] + 1
                    high = times[0] + window if right is None else times[right] - 1
                    inside |= {t for t in weights[q] if low <= t <= high}
            chance *= 1 - sum(weights[q][t] for t in inside) / events.total[q]
        sum_ += chance
    return sum_


@settings(deadline=None)
@given(questions())
def test_any_way_is_the_definition(question):
    expected = by_hand(question)
    assert confidence(question, Budget()).confidence[0] == pytest.approx(expected, rel=1e-11, abs=1e-15)
    assert evaluators.grid(block(question))[0][0] == pytest.approx(expected, rel=1e-11, abs=1e-15)


@settings(deadline=None, max_examples=200)
@given(questions(shared=False, most=3, sizes=(2, 3, 4)))
def test_ways_that_pay_for_long_intervals_only_are_the_definition(question):
    def choose(self, kind, able, cost):
        self.kind[able] = kind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways.Ways, "_choose", choose)
        answer = confidence(question, Budget())
    expected = by_hand(question)
    assert answer.confidence[0] == pytest.approx(expected, rel=1e-11, abs=1e-15)
    grid = evaluators.grid(block(question))[1]
    for j, chances in enumerate(grid if expected else []):
        able = (chances[0] > 0).nonzero()[0] + question.earliest[j][0]
        assert (answer.earliest[j][0], answer.latest[j][0]) == (able[0], able[-1])


@settings(deadline=None)
@given(questions(shared=False, sizes=(3, 4)))
def test_chains_are_grids(question):
    (one, marginals), (other, chances) = evaluators.chain(block(question)), evaluators.grid(block(question))
    assert one == pytest.approx(other, rel=1e-12)
    for mine, theirs in zip(marginals, chances, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-12, abs=1e-300)
        assert ((mine > 0) == (theirs > 0)).all()


@settings(deadline=None, max_examples=200)
@given(questions(shared=False, sizes=(3,)), st.integers(1, 2))
def test_planes_are_grids(question, gap):
    """All that may spoil lies in one gap."""
    hits = replace(question.hits, scope=np.full(len(question.hits), 1 + gap))
    whole = block(replace(question, hits=hits))
    (one, marginals), (other, chances) = evaluators.plane(replace(whole, gap=gap)), evaluators.grid(whole)
    assert one == pytest.approx(other, rel=1e-12)
    for mine, theirs in zip(marginals, chances, strict=True):
        able, really = (mine[0] > 0).nonzero()[0], (theirs[0] > 0).nonzero()[0]
        assert able[:1].tolist() == really[:1].tolist()
        assert able[-1:].tolist() == really[-1:].tolist()


@settings(deadline=None)
@given(questions(most=0))
def test_prefix_sums_are_grids(question):
    assert evaluators.free(block(question))[0] == pytest.approx(evaluators.grid(block(question))[0], rel=1e-11)


@settings(deadline=None)
@given(questions(most=2, sizes=(2,), shapes=(OWN, 0)))
def test_pairs_that_come_apart_are_grids(question):
    whole = block(question)
    (one, marginals), (other, chances) = separable.pairs(whole), evaluators.grid(whole)
    assert one == pytest.approx(other, rel=1e-12)
    for mine, theirs in zip(marginals, chances, strict=True):
        assert ((mine > 0) == (theirs > 0)).all()


@settings(deadline=None)
@given(questions(most=0, sizes=(3,), shapes=(OWN, 0)))
def test_triples_that_come_apart_are_grids(question):
    assert separable.triples(block(question))[0] == pytest.approx(evaluators.grid(block(question))[0], rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(questions())
def test_draws_are_near(question):
    """Within six standard errors of what they estimate, and their error is what it says."""
    some, exact = confidence(question, Budget(0, 4000)), confidence(question, Budget())
    assert abs(some.confidence[0] - exact.confidence[0]) <= 6 * some.error[0]
    assert some.error[0] <= 0.5 / 4000**0.5
    assert confidence(question, Budget(0, 4000)).confidence[0] == some.confidence[0]


def test_what_is_impossible_is_so_whatever_the_weights():
    """Weights of 52 bits: sums that come apart would not be exact, so they must not be used. The first spoiler spoils
    every world in which the first event comes behind it; the second one may lie before the window.
    """
    shapes = (Triangular(0.3), Normal(2.0))
    lower, upper = np.array([50, 200, 20, -155]), np.array([149, 249, 60, -60])
    events = Distributions.of(lower, upper, np.array([0, 1, 0, 1]), shapes)
    ends = [np.array([50]), np.array([200])], [np.array([149]), np.array([249])]
    hits = Hits(np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([2, 3]))
    question = Question(events, [np.array([0]), np.array([1])], *ends, hits, [(None, 0)], 400)
    answer = confidence(question, Budget())
    assert (answer.earliest[0][0], answer.latest[0][0]) == (50, 60)
    assert answer.confidence[0] == pytest.approx(by_hand(question), rel=1e-12)


def test_draws_for_a_standard_error():
    assert Budget.for_error(0.01).worlds == 2500
    assert Budget.for_error(None).worlds == 0
    assert 0.5 / Budget.for_error(0.003).worlds ** 0.5 <= 0.003


def test_the_answer_does_not_depend_on_what_else_is_asked():
    """To the last bit, though other candidates make other blocks."""
    machine = Machine(lc.Query("PATTERN SEQ(A a, !B n, C c, !B m, A d) WITHIN 30", level=lc.Aggressive(0)).plan)
    draw = np.random.default_rng(4)
    events = []
    for number in range(60):
        low, length = int(draw.integers(0, 60)), int(draw.integers(1, 12))
        events.append({"id": number, "type": "ABC"[number % 3], "lower": low, "upper": low + length})
    machine.process(events)
    refs = np.array([[*ids] for ids in machine.shown])
    everything = machine.matcher.assess(machine.matcher.chains(list(refs.T), np.zeros(len(refs), np.uint64)))
    assert len(everything.rows) == len(refs) > 100
    for i in range(0, len(refs), 7):
        alone = machine.matcher.assess(machine.matcher.chains(list(refs[[i]].T), np.zeros(1, np.uint64)))
        assert alone.confidence[0] == everything.confidence[i] == machine.shown[tuple(refs[i].tolist())][0]


def test_beyond_the_bound_it_says_so():
    query = lc.Query("PATTERN SEQ(A a, !B n, B b, !B m, C c) WITHIN 1000", level=lc.Aggressive(0)).plan
    events = [{"id": i, "type": t, "lower": 0, "upper": 500} for i, t in enumerate("ABBC")]
    unknown, near = Machine(query, steps=1e4), Machine(replace(query, confidence=Confidence(error=0.01)), steps=1e4)
    for machine in (unknown, near):
        machine.process(events)
        assert set(machine.shown) == {(0, 1, 3), (0, 2, 3)}
    assert all(np.isnan(c) for c, _ in unknown.shown.values())
    few = [e | {"upper": 60} for e in events]
    exact, near = Machine(query), Machine(replace(query, confidence=Confidence(error=0.005)), steps=1e4)
    exact.process(few)
    near.process(few)
    for ids, (expected, _) in exact.shown.items():
        assert 0 < abs(near.shown[ids][0] - expected) < 6 * 0.005
    assert ceil(0.25 / 0.005**2) == near.matcher._budget.worlds


def test_tests_of_times_hold_in_draws_too():
    text = "PATTERN SEQ(A a, !B n, C c) WHERE c.ts - a.ts > 30 AND a.x = c.x WITHIN 200"
    plan = lc.Query(text, level=lc.Aggressive(0)).plan
    spans = {"A": (0, 60), "B": (20, 90), "C": (10, 80)}
    events = [{"id": i, "type": t, "lower": a, "upper": b, "x": 1} for i, (t, (a, b)) in enumerate(spans.items())]
    exact, drawn = Machine(plan), Machine(replace(plan, confidence=Confidence(error=0.005)), steps=1)
    for machine in (exact, drawn):
        machine.process(events)
    world = answer(plan, events)[0, 2]
    assert exact.shown[0, 2][0] == pytest.approx(float(world.confidence), rel=1e-12)
    assert 0 < abs(drawn.shown[0, 2][0] - exact.shown[0, 2][0]) < 6 * 0.005


def test_very_long_intervals_take_no_more_memory_than_allowed():
    """Of a curve, a day in nanoseconds is too long to sum over, a second in microseconds is not; draws do it at any
    length.
    """
    for length, exact in ((10**6, True), (86_400 * 10**9, False)):
        text = f"PATTERN SEQ(A a, B b) WITHIN {2 * length}"
        events = [{"id": i, "type": t, "lower": 0, "upper": length - 1, "shape": 1} for i, t in enumerate("AB")]
        for error in (None, 0.01):
            plan = replace(lc.Query(text, level=lc.Aggressive(0)).plan, confidence=Confidence(error=error))
            machine = Machine(plan, shapes=(Uniform(), Triangular()))
            machine.process(events)
            said = machine.shown[0, 1][0]
            if exact:
                assert said == pytest.approx(0.5, rel=1e-5)
            elif error is None:
                assert np.isnan(said)
            else:
                assert 0 < abs(said - 0.5) < 0.06


@pytest.mark.parametrize("strategy", [STAM, STNM])
def test_long_intervals_agree_with_drawn_worlds(strategy):
    """Monte Carlo, 10^5 worlds: within six standard errors."""
    text = "PATTERN SEQ(A a, !B n, C c, A d) WHERE a.x <= d.x WITHIN 150"
    query = replace(lc.Query(text, level=lc.Aggressive(0)).plan, strategy=strategy)
    draw = np.random.default_rng(8)
    events = []
    for number in range(24):
        low, length = int(draw.integers(0, 300)), int(draw.integers(1, 120))
        e = {
            "id": number,
            "type": "ABCA"[number % 4],
            "lower": low,
            "upper": low + length - 1,
            "x": int(draw.integers(3)),
        }
        if number % 5 == 0:
            e["weights"] = [1, *draw.integers(0, 5, length - 2).tolist(), 2][:length] if length > 1 else [1]
        events.append(e)
    machine = Machine(query)
    machine.process(events)
    drawn = answer(query, events, worlds=random_worlds(events, 100_000))
    assert len(machine.shown) > 20
    assert set(drawn) <= set(machine.shown)
    for ids, (p, ranges) in machine.shown.items():
        seen = drawn.get(ids)
        assert abs(p - (float(seen.confidence) if seen else 0)) <= 6 * (p * (1 - p) / 100_000) ** 0.5 + 1e-4
        if seen:
            assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(ranges, seen.ranges, strict=True))
