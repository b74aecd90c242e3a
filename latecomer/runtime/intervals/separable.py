"""Confidences in linear time: sums over pairs of times that come apart into sums over single times.

For two components the weight of an event outside its scopes is ``alpha(t1) + beta(t2)``, since every scope begins at
one of the two and ends at one. So the product over k events is a sum of ``2**k`` products of something of t1 and
something of t2, and each of these is summed by prefix sums: ``O(2**k · (len1 + len2))`` in place of ``len1 · len2``.
For three components that nothing spoils, the weight of the last one behind the second comes apart in the same way.

Terms are subtracted here, which is exact for whole numbers alone: these ways are right while no sum passes 2**53, that
is, while the weights concerned have no more than :data:`BITS` bits together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latecomer.runtime.intervals.evaluators import Block, Result
from latecomer.runtime.intervals.pmf import F64
from latecomer.runtime.intervals.question import Hits, Question
from latecomer.storage.columns import I64

#: Bits that a sum may need.
BITS = 52


def pairs(block: Block) -> Result:
    """Two components; each candidate has the same number of events that may spoil it."""
    start, end, window = block.times(0), block.times(1), block.window
    first, last = (block.events.mass(block.own[j], block.times(j)) for j in (0, 1))
    first[start > block.latest[0][:, None]] = 0.0
    last[end > block.latest[1][:, None]] = 0.0
    all_alpha, all_beta, totals = parts(block, block.hits, start, end)
    k = len(totals) // len(block)
    alpha, beta = [all_alpha[i::k] for i in range(k)], [all_beta[i::k] for i in range(k)]
    scale: F64 = np.ones(len(block))
    for i in range(k):
        scale *= totals[i::k]
    before: F64 = np.zeros_like(first)
    after: F64 = np.zeros_like(last)
    for subset in range(1 << len(alpha)):
        left, right = np.ones_like(first), np.ones_like(last)
        for k, (one, other) in enumerate(zip(alpha, beta, strict=True)):
            if subset >> k & 1:
                left *= one
            else:
                right *= other
        # For each t1 the sum over (t1, t1 + W] of t2, and for each t2 that over [t2 - W, t2) of t1.
        before += left * _between(right * last, block.earliest[1], start, start + window)
        after += right * _between(left * first, block.earliest[0], end - window - 1, end - 1)
    total = [block.events.total.take(own) for own in block.own]
    confidence = (first * before).sum(axis=1) / total[0] / total[1] / scale
    return confidence, [first * before, last * after]


def uniform_pairs(question: Question, at: I64) -> F64:
    """The chance that the two events of the candidates ``at``, both uniform, are in order and in the window: pairs of
    times with ``t2 - t1 <= d`` are lattice points of a rectangle below a line. O(1) a candidate, whatever its lengths.
    """
    events = question.events
    first, second = (own.take(at) for own in question.own)
    sizes = [events.upper.take(own) - events.lower.take(own) + 1 for own in (first, second)]
    # By whole numbers of any size where 64 bits do not hold the square of a length.
    one, two, apart = (
        c if _fits(sizes) else c.astype(object) for c in (*sizes, events.lower[second] - events.lower[first])
    )

    def below(distance: int) -> Any:
        line = np.clip(distance - apart + one - 1, -1, one + two - 2)
        return _triangle(line) - _triangle(line - one) - _triangle(line - two) + _triangle(line - one - two)

    result: F64 = ((below(question.window) - below(0)) / (one * two)).astype(np.float64)
    return result


def _fits(sizes: Sequence[I64]) -> bool:
    return int(max(s.max(initial=0) for s in sizes)) < 1 << 30


def _triangle(line: Any) -> Any:
    """How many points with whole coordinates from 0 lie at or below a line."""
    line = np.maximum(line, -2)
    return (line + 1) * (line + 2) // 2


def triples(block: Block) -> Result:
    """Three components, nothing that may spoil, and a window that cuts."""
    start, middle, window = block.times(0), block.times(1), block.window
    first, second = block.chances(0), block.events.mass(block.own[1], middle)
    second[middle > block.latest[1][:, None]] = 0.0
    until = block.events.cumulative(block.own[2], start + window)
    known = block.events.cumulative(block.own[2], middle)
    low, high = start, start + window
    rest = until * _between(second, block.earliest[1], low, high)
    rest -= _between(second * known, block.earliest[1], low, high)
    total = block.events.total.take(block.own[1]) * block.events.total.take(block.own[2])
    result: F64 = (first * rest).sum(axis=1) / total
    return result, None


def _between(weights: F64, base: I64, low: I64, high: I64) -> F64:
    """Sums of ``weights`` (c, size), which begin at time ``base`` (c,), over times behind ``low`` up to ``high``."""
    sums = np.zeros((len(weights), weights.shape[1] + 1))
    np.cumsum(weights, axis=1, out=sums[:, 1:])
    places = [np.clip(t - base[:, None] + 1, 0, weights.shape[1]) for t in (low, high)]
    result: F64 = np.take_along_axis(sums, places[1], axis=1) - np.take_along_axis(sums, places[0], axis=1)
    return result


def parts(question: Question | Block, hits: Hits, start: I64, end: I64) -> tuple[F64, F64, F64]:
    """For each event of every candidate the parts (…, size) of its weight outside all its scopes that depend on the
    first and on the last time, and its total; in the order of ``hits``, which are by owner and event.

    ``start`` and ``end`` (c, size) are times of the two events of each candidate.
    """
    events, window = question.events, question.window
    fresh = np.ones(len(hits), bool)
    fresh[1:] = (np.diff(hits.owner) != 0) | (np.diff(hits.event) != 0)
    item = fresh.cumsum() - 1
    total = events.total.take(hits.event[fresh])
    alpha = np.zeros((len(total), start.shape[1]))
    beta = np.repeat(total[:, None], end.shape[1], axis=1)
    for number, (left, right) in enumerate(question.scopes):
        at = (hits.scope == number).nonzero()[0]
        if not len(at):
            continue
        row, event = item[at], hits.event[at]
        one, other = start[hits.owner[at]], end[hits.owner[at]]
        if left is None:
            alpha[row] -= events.cumulative(event, one - 1)
            beta[row] += events.cumulative(event, other - window - 1)
        elif right is None:
            alpha[row] -= events.cumulative(event, one + window)
            beta[row] += events.cumulative(event, other)
        else:
            alpha[row] += events.cumulative(event, one)
            beta[row] -= events.cumulative(event, other - 1)
    return alpha, beta, total
