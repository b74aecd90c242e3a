"""Valid bounds and distributions against plain enumeration."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.intervals.bounds import valid_bounds
from latecomer.runtime.intervals.pmf import OWN, Distributions
from latecomer.uncertainty import Histogram, Normal, Triangular, Uniform

SPAN = st.tuples(st.integers(0, 9), st.integers(0, 5)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(SPAN, min_size=1, max_size=4), st.integers(0, 9), st.data())
def test_bounds_are_exactly_tight(spans, window, data):
    """Also chains in which only some components are bound (gaps above 1), and windows shorter than the chain."""
    gaps = [data.draw(st.integers(1, 3)) for _ in spans[1:]]
    times = [
        t
        for t in itertools.product(*(range(a, b + 1) for a, b in spans))
        if t[-1] - t[0] <= window and all(b - a >= g for (a, b), g in zip(itertools.pairwise(t), gaps, strict=True))
    ]
    columns = [[np.array([s[side]]) for s in spans] for side in (0, 1)]
    earliest, latest, possible = valid_bounds(*columns, gaps, window)
    assert possible.tolist() == [bool(times)]
    if times:
        assert [int(e[0]) for e in earliest] == [min(t) for t in zip(*times, strict=True)]
        assert [int(e[0]) for e in latest] == [max(t) for t in zip(*times, strict=True)]


@pytest.mark.parametrize(
    ("spans", "window", "expected"),
    [
        ([(1, 5), (3, 7), (3, 5)], 3, [(1, 3), (3, 4), (4, 5)]),
        ([(1, 5), (3, 7), (4, 6)], 3, [(1, 4), (3, 5), (4, 6)]),
        ([(1, 5), (2, 3), (6, 7)], 3, None),
        ([(1, 5), (7, 7)], 3, [(4, 5), (7, 7)]),
        ([(4, 4), (4, 7)], 2, [(4, 4), (5, 6)]),
        ([(4, 6), (7, 10), (9, 9)], 2, None),
        ([(9, 12), (6, 11)], 0, None),
        ([(1, 1), (2, 2)], 4, [(1, 1), (2, 2)]),
        ([(1, 2), (8, 12)], 6, [(2, 2), (8, 8)]),
        ([(5, 9), (8, 12), (7, 11)], 0, None),
        ([(0, 20), (0, 20)], 0, None),
        ([(0, 20), (0, 20), (0, 20)], 1, None),
        ([(0, 20), (0, 20), (0, 20)], 2, [(0, 18), (1, 19), (2, 20)]),
    ],
)
def test_bounds_of_the_paper(spans, window, expected):
    columns = [[np.array([s[side]]) for s in spans] for side in (0, 1)]
    earliest, latest, possible = valid_bounds(*columns, [1] * (len(spans) - 1), window)
    assert possible[0] == (expected is not None)
    if expected:
        assert [(int(a[0]), int(b[0])) for a, b in zip(earliest, latest, strict=True)] == expected


SHAPES = [Uniform(), Triangular(), Triangular(0.0), Triangular(0.9), Normal(), Normal(8.0), Histogram((1, 0, 2))]


@st.composite
def distributions(draw):
    """Columns of distributions, and the weights of each event."""
    spans = draw(st.lists(SPAN, min_size=1, max_size=6))
    codes = [draw(st.integers(OWN, len(SHAPES) - 1)) for _ in spans]
    one = draw(st.sampled_from([st.integers(0, 9), st.floats(0, 9)]))
    flat = []
    for code, (low, high) in zip(codes, spans, strict=True):
        if code == OWN:
            flat += [1] + [draw(one) for _ in range(high - low - 1)] + [2] * (high > low)
    lower, upper = np.array(spans).T
    return Distributions.of(lower, upper, np.array(codes), SHAPES, np.array(flat, float))


@given(distributions())
def test_sums_are_whole_and_agree_with_the_weights(found):
    for i, (low, high) in enumerate(zip(found.lower.tolist(), found.upper.tolist(), strict=True)):
        weights = found.weights(i)
        assert (weights == np.rint(weights)).all()
        assert (weights >= 0).all()
        assert weights[0] > 0
        assert weights[-1] > 0
        assert found.gaps[i] == (weights == 0).any()
        assert found.total[i] == sum(Fraction(w) for w in weights)
        times = np.arange(low - 2, high + 3)
        sums = [sum(w for t, w in enumerate(weights, low) if t <= time) for time in times]
        assert found.cumulative(np.array([i]), times[None, :])[0].tolist() == sums
        wanted = np.array([[0.0, weights[0], found.total[i] - 1]])
        drawn = [
            next(t for t, s in zip(times, sums, strict=True) if s > w) for w in np.minimum(wanted[0], sums[-1] - 1)
        ]
        assert found.quantile(np.array([i]), np.minimum(wanted, sums[-1] - 1))[0].tolist() == drawn


def test_shapes_are_what_they_say():
    for shape in SHAPES:
        for length in (1, 2, 5, 1000):
            found = Distributions.of(np.array([7]), np.array([6 + length]), np.array([0]), [shape])
            assert found.weights(0) / found.total[0] == pytest.approx(shape.weights(length), abs=1e-15 * length)
            assert shape == Histogram((1, 0, 2)) or not found.gaps[0]


def test_long_curves_are_straight_between_knots():
    found = Distributions.of(np.array([0]), np.array([10**12 - 1]), None, [Triangular()])
    sums = found.cumulative(np.array([0]), np.array([[-1, 10**12 // 4 - 1, 10**12 // 2 - 1, 10**12 - 1]]))[0]
    assert sums / found.total[0] == pytest.approx([0, 0.125, 0.5, 1], abs=1e-9)
    half = found.quantile(np.array([0]), np.array([[found.total[0] / 2]]))
    assert abs(half[0, 0] - 10**12 / 2) < 10


def test_own_weights_keep_their_proportions():
    found = Distributions.of(np.array([0]), np.array([2]), np.array([OWN]), [], np.array([0.2, 0.0, 0.6]))
    assert found.weights(0) / found.total[0] == pytest.approx([0.25, 0, 0.75], rel=1e-15)
    small = Distributions.of(np.array([0]), np.array([1]), np.array([OWN]), [], np.array([1e-300, 1.0]))
    assert small.weights(0)[0] == 1
    counts = Distributions.of(np.array([0]), np.array([2]), np.array([OWN]), [], np.array([3.0, 0.0, 4.0]))
    assert counts.weights(0).tolist() == [3, 0, 4]
