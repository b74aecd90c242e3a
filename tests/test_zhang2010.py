"""The worked examples of Zhang, Diao, Immerman (VLDB 2010) with their numbers, in the possible-worlds oracle.

The paper's window is strict (``tn - t1 < W``) and ours is not, so its ``W`` is ours plus one.
"""

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

import latecomer as lc
from latecomer.units import Duration
from tests.worlds import STAM, STNM, answer, answer_by_world, every_world, random_worlds

FIGURE_1 = {"a1": (1, 5), "c2": (3, 5), "b3": (3, 7), "c4": (4, 6)}


def plan(pattern, window, strategy=STAM, where=""):
    text = f"PATTERN SEQ({pattern}) {where and 'WHERE ' + where} WITHIN 1"
    found = lc.Query(text, level=lc.Aggressive(0)).plan
    return replace(found, strategy=strategy, window=Duration.of(window - 1))


def stream(spans):
    """Events named by type and number: ``{"a1": (1, 5)}``."""
    return [{"id": n, "type": n[0].upper(), "lower": low, "upper": high} for n, (low, high) in spans.items()]


def rounded(found):
    return {ids: (m.range, m.confidence) for ids, m in found.items()}


def test_figure_1_any():
    found = answer(plan("A a, B b, C c", 4), stream(FIGURE_1))
    assert rounded(found) == {
        ("a1", "b3", "c2"): ((1, 5), Fraction(15, 225)),
        ("a1", "b3", "c4"): ((1, 6), Fraction(24, 225)),
    }
    assert found["a1", "b3", "c2"].ranges == ((1, 3), (3, 4), (4, 5))
    assert found["a1", "b3", "c4"].ranges == ((1, 4), (3, 5), (4, 6))


def test_figure_1_next():
    assert rounded(answer(plan("A a, B b, C c", 4, STNM), stream(FIGURE_1))) == {
        ("a1", "b3", "c2"): ((1, 5), Fraction(14, 225)),
        ("a1", "b3", "c4"): ((1, 6), Fraction(22, 225)),
    }


@pytest.mark.parametrize(
    ("number", "times", "matches"),
    [
        (1, (1, 3, 3, 4), {"c4"}),
        (2, (1, 3, 3, 5), set()),
        (3, (1, 3, 3, 6), set()),
        (4, (1, 3, 4, 4), set()),
        (17, (1, 4, 3, 5), {"c2"}),
        (125, (3, 5, 4, 5), {"c2", "c4"}),
        (225, (5, 5, 7, 6), set()),
    ],
)
def test_figure_1_worlds(number, times, matches):
    """Rows of Figure 1(c), counted with the last event fastest."""
    events = stream(FIGURE_1)
    assert tuple(every_world(events).times[number - 1]) == times
    world = [e | {"lower": t, "upper": t} for e, t in zip(events, times, strict=True)]
    assert {ids[-1] for ids in answer(plan("A a, B b, C c", 4), world)} == matches


@pytest.mark.parametrize(("strategy", "counts"), [(STAM, (194, 7, 16, 8)), (STNM, (194, 9, 17, 5))])
def test_figure_1_worlds_by_outcome(strategy, counts):
    """None, only c2, only c4, both."""
    events, seen = stream(FIGURE_1), []
    for times in every_world(events).times:
        world = [e | {"lower": int(t), "upper": int(t)} for e, t in zip(events, times, strict=True)]
        seen.append(frozenset(ids[-1] for ids in answer(plan("A a, B b, C c", 4, strategy), world)))
    assert tuple(map(seen.count, (frozenset(), {"c2"}, {"c4"}, {"c2", "c4"}))) == counts


def test_strategies_in_a_certain_world():
    """§3.1: stream a, b1, b2, c, d."""
    events = stream({"a1": (1, 1), "b1": (2, 2), "b2": (3, 3), "c1": (4, 4), "d1": (5, 5)})
    pattern = "A a, B b, C c, D d"
    assert set(answer(plan(pattern, 15), events)) == {("a1", "b1", "c1", "d1"), ("a1", "b2", "c1", "d1")}
    assert set(answer(plan(pattern, 15, STNM), events)) == {("a1", "b1", "c1", "d1")}


def test_figure_2_next_events_latest_time():
    """§4: b4 at the latest comes before every point of b6; with the instance of intervals that fits the text."""
    spans = {"a1": (1, 4), "b2": (1, 2), "b3": (2, 4), "b4": (5, 7), "b5": (6, 8), "b6": (8, 9)}
    found = answer(plan("A a, B b", 50, STNM), stream(spans))
    assert {ids[1]: m.ranges[1] for ids, m in found.items()} == {"b2": (2, 2), "b3": (2, 4), "b4": (5, 7), "b5": (6, 7)}


def test_figure_2_another_instance():
    """The dissertation's figure: of 432 combinations the matches occur in so many."""
    spans = {"a1": (1, 4), "b2": (2, 4), "b3": (3, 5), "b4": (5, 7), "b5": (6, 7), "b6": (8, 9)}
    found = answer(plan("A a, B b", 50, STNM), stream(spans))
    counts = {"b2": 192, "b3": 204, "b4": 104, "b5": 48}
    assert {ids[1]: m.confidence for ids, m in found.items()} == {b: Fraction(n, 432) for b, n in counts.items()}


def test_figure_2_one_world_misses_what_others_hold():
    """Skip-till-next on the points after a1 at 3 finds b3 at 4 alone."""
    spans = {"a1": (1, 4), "b2": (1, 2), "b3": (2, 4), "b4": (5, 7), "b5": (6, 8), "b6": (8, 9)}
    world = stream(spans | {"a1": (3, 3), "b3": (4, 4)})
    assert set(answer(plan("A a, B b", 50, STNM), world)) == {("a1", "b3")}


@pytest.mark.parametrize(
    ("pattern", "window", "spans", "strategy", "expected"),
    [
        ("A a, B b", 4, {"a1": (1, 5), "b1": (7, 7)}, STAM, {("a1", "b1"): ((4, 7), Fraction(2, 5))}),
        ("A a, B b", 3, {"a1": (4, 4), "b1": (4, 7)}, STAM, {("a1", "b1"): ((4, 6), Fraction(1, 2))}),
        ("A a, B b, C c", 3, {"a1": (4, 6), "b1": (7, 10), "c1": (9, 9)}, STAM, {}),
        ("A a, B b, C c", 4, {"a1": (1, 5), "b5": (2, 3), "c6": (6, 7)}, STAM, {}),
        ("A a, B b", 1, {"a1": (9, 12), "b1": (6, 11)}, STAM, {}),
        ("A a, B b", 5, {"a1": (1, 1), "b1": (2, 2)}, STAM, {("a1", "b1"): ((1, 2), 1)}),
        (
            "A a, B b",
            10,
            {"a1": (1, 2), "b1": (4, 6), "b2": (6, 6)},
            STNM,
            {("a1", "b1"): ((1, 6), 1), ("a1", "b2"): ((1, 6), Fraction(1, 3))},
        ),
        ("A a, B b", 4, {"a1": (1, 1), "b1": (2, 6)}, STAM, {("a1", "b1"): ((1, 4), Fraction(3, 5))}),
        ("A a, B b", 7, {"a1": (1, 2), "b1": (8, 12)}, STAM, {("a1", "b1"): ((2, 8), Fraction(1, 10))}),
        ("A a, B b, C c", 1, {"a1": (5, 9), "b1": (8, 12), "c1": (7, 11)}, STAM, {}),
    ],
)
def test_small_cases(pattern, window, spans, strategy, expected):
    assert rounded(answer(plan(pattern, window, strategy), stream(spans))) == expected


def test_passes_the_bound_of_the_next_event_but_happens_in_no_world():
    spans = {"a0": (1, 1), "b1": (1, 3), "b3": (2, 2), "c2": (3, 3), "c4": (4, 7)}
    found = answer(plan("A a, B b, C c", 5, STNM), stream(spans))
    assert ("a0", "b1", "c4") not in found
    assert found


def test_the_dissertations_running_example():
    spans = {"a1": (1, 5), "c2": (3, 5), "b3": (3, 5), "c4": (4, 8)}
    assert rounded(answer(plan("A a, B b, C c", 4), stream(spans))) == {
        ("a1", "b3", "c2"): ((1, 5), Fraction(25, 225)),
        ("a1", "b3", "c4"): ((1, 7), Fraction(27, 225)),
    }
    assert rounded(answer(plan("A a, B b, C c", 4, STNM), stream(spans))) == {
        ("a1", "b3", "c2"): ((1, 5), Fraction(24, 225)),
        ("a1", "b3", "c4"): ((1, 7), Fraction(25, 225)),
    }


def test_distributions_and_negation():
    """A negative that surely falls in the scope removes the match, one that may lowers its confidence."""
    events = stream({"a1": (0, 0), "b1": (1, 4), "c1": (3, 5)})
    query = plan("A a, !B b, C c", 11)
    assert answer(query, [events[0], events[2]])["a1", "c1"].confidence == 1
    assert answer(query, events)["a1", "c1"].confidence == Fraction(1 + 0 + 2, 12)
    events[1]["weights"] = [1, 0, 0, 9]
    assert answer(query, events)["a1", "c1"].confidence == Fraction(9 + 9, 30)
    assert answer(query, [*events, {"id": "b2", "type": "B", "lower": 1, "upper": 2}]) == {}


QUERIES = [
    ("A a, B b", ""),
    ("A a, A b", ""),
    ("A a, B b, C c", ""),
    ("A a, B b, B c", "a.x = c.x AND b.x <= 1"),
    ("A a, !B b, C c", "[x]"),
    ("!B n, A a, C c", ""),
    ("A a, C c, !B n", "n.x >= a.x"),
    ("!B n, A a, !B m", ""),
    ("!B n, A a, !C m, B c, !A k", "m.x <> c.x"),
    ("A a, B b", "b.ts - a.ts > 1"),
    ("A a, !C n, B b", "n.ts > 3"),
    ("A a, B b, A c", "a.x = b.x AND c.x = a.x"),
]


def random_events(pick, most=7):
    events = []
    for number in range(pick(range(2, most))):
        low, length = pick(range(8)), pick([1, 1, 2, 3, 4])
        e = {"id": number, "type": pick("ABC"), "lower": low, "upper": low + length - 1, "x": pick([0, 1, 1, None])}
        if pick([True, False]):
            e["weights"] = [pick([1, 2, 5])] + [pick([0, 1, 3]) for _ in range(length - 2)] + [4] * (length > 1)
        events.append(e)
    return events


@pytest.mark.parametrize("seed", range(30))
def test_all_worlds_at_once_or_one_by_one(seed):
    """The oracle against a slower telling of the same, with the oracle of certain times inside."""
    pick = Random(seed).choice
    events = random_events(pick, 6)
    while len(every_world(events).times) > 300:
        events = random_events(pick, 6)
    for pattern, where in QUERIES:
        query = plan(pattern, pick([3, 5, 8]), pick([STAM, STNM]), where)
        assert answer(query, events) == answer_by_world(query, events)


def test_drawn_worlds_agree_with_all_worlds():
    """Monte Carlo: 10^5 worlds, within five standard errors."""
    events = stream(FIGURE_1)
    for strategy in (STAM, STNM):
        query = plan("A a, B b, C c", 4, strategy)
        exact, drawn = answer(query, events), answer(query, events, worlds=random_worlds(events, 100_000))
        assert set(exact) == set(drawn)
        for ids, match in exact.items():
            p = float(match.confidence)
            assert abs(p - drawn[ids].confidence) < 5 * (p * (1 - p) / 100_000) ** 0.5
