"""Distributions over intervals, as columns: how likely each instant is, for events known only to lie between two times.

Rule: every distribution is a row of *whole-number weights*, one for each instant from ``lower`` to ``upper``, and a
probability is a weight divided by their total. Sums of weights up to 2**53 are exact in float64, so "surely" and
"never" are decided without rounding, whatever is added to or taken from them.

* Uniform: all weights are 1. Nothing is ever expanded.
* Other shapes (:mod:`latecomer.uncertainty`): their probabilities, scaled to whole numbers as large as 2**53 allows;
  one table for all intervals of a shape and a length. Except in a histogram every instant keeps at least 1. A curve
  longer than 65,536 instants is taken as straight between so many knots.
* An event's own weights: whole numbers are taken as they are; others are scaled like shapes, and what was positive
  stays positive.

So a probability is what was declared to within 1e-15 times the length. Nothing is expanded to instants when events are
stored or joined; only :meth:`Distributions.cumulative` looks at instants, and only at those it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from latecomer.storage.columns import I64
from latecomer.storage.store import Bools
from latecomer.uncertainty import Histogram, Shape, Uniform

F64 = npt.NDArray[np.float64]

#: The code of an event that has its own weights; others have their place in the table of shapes.
OWN = -1
_WHOLE = 2.0**53  # whole numbers up to here are exact in float64
_KNOTS = 1 << 16
_UNIFORM, _TABLE, _CURVE = range(3)
_NOTHING = np.zeros(0)


class Distributions:
    """The distributions of n events, as columns.

    Attributes:
        lower, upper: (n,) first and last instant.
        total: (n,) sums of weights.
        gaps: (n,) whether an instant between lower and upper has no weight.

    >>> from latecomer.uncertainty import Uniform, Triangular
    >>> own = np.array([3.0, 0.0, 5.0])
    >>> d = Distributions.of(np.array([0, 10]), np.array([3, 12]), np.array([0, OWN]), [Uniform()], own)
    >>> d.cumulative(np.array([0, 1]), np.array([[0, 1, 9], [9, 10, 12]]))
    array([[1., 2., 4.],
           [0., 3., 8.]])
    >>> d.total, d.gaps
    (array([4., 8.]), array([False,  True]))
    """

    __slots__ = ("_kind", "_offset", "_plain", "_sums", "gaps", "lower", "total", "upper")

    def __init__(
        self, lower: I64, upper: I64, kind: npt.NDArray[np.int8], offset: I64, sums: F64, total: F64, gaps: Bools
    ) -> None:
        self.lower, self.upper, self.total, self.gaps = lower, upper, total, gaps
        self._kind, self._offset, self._sums = kind, offset, sums
        self._plain = not kind.any()

    @classmethod
    def of(
        cls,
        lower: I64,
        upper: I64,
        codes: I64 | None = None,
        shapes: Sequence[Shape] = (Uniform(),),
        weights: F64 | None = None,
    ) -> Distributions:
        """Distributions of events with the given intervals.

        ``codes`` (n,) are places in ``shapes``, or :data:`OWN` (None: all 0). ``weights`` holds the weights of those
        events that have their own, one event after another, ``upper - lower + 1`` of each.
        """
        n = len(lower)
        kind, offset, gaps = np.zeros(n, np.int8), np.zeros(n, np.int64), np.zeros(n, bool)
        length = upper - lower + 1
        total = length.astype(np.float64)
        if codes is None:
            codes = np.zeros(n, np.int64)
        parts: list[F64] = []
        used = 0
        for code in np.unique(codes).tolist():
            if code == OWN or isinstance(shapes[code], Uniform):
                continue
            at = (codes == code).nonzero()[0]
            sizes = np.where(length[at] > _KNOTS, 0, length[at])
            for size in np.unique(sizes).tolist():
                which = at[sizes == size]
                table = _table(shapes[code], size) if size else _curve(shapes[code])
                kind[which] = _TABLE if size else _CURVE
                offset[which], total[which], gaps[which] = used, table[-1], bool((np.diff(table) == 0).any())
                parts.append(table)
                used += len(table)
        own = (codes == OWN).nonzero()[0]
        if len(own) and weights is not None:
            tables, totals, holes = _tables(weights, length[own])
            kind[own], gaps[own], total[own] = _TABLE, holes, totals
            offset[own] = used + (length[own] + 1).cumsum() - (length[own] + 1)
            parts.append(tables)
        return cls(lower, upper, kind, offset, np.concatenate(parts) if parts else _NOTHING, total, gaps)

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def uniform(self) -> Bools:
        """(n,) whether every instant is equally likely."""
        result: Bools = self._kind == _UNIFORM
        return result

    def cumulative(self, at: I64, times: I64) -> F64:
        """The weight at or before ``times`` (m, …) of the events ``at`` (m,). O(size of ``times``)."""
        wide = (slice(None),) + (None,) * (times.ndim - 1)
        lower, length = self.lower.take(at)[wide], (self.upper - self.lower + 1).take(at)[wide]
        count = np.minimum(np.maximum(times - lower + 1, 0), length)  # so many instants are included
        result: F64 = count.astype(np.float64)
        if self._plain:
            return result
        kind = self._kind.take(at)
        some = (kind == _TABLE).nonzero()[0]
        if len(some):
            result[some] = self._sums.take(self._offset.take(at.take(some))[wide] + count[some])
        some = (kind == _CURVE).nonzero()[0]
        if len(some):
            place = result[some] * _KNOTS / length[some]
            knot = np.minimum(place.astype(np.int64), _KNOTS - 1)
            start = self._offset.take(at.take(some))[wide] + knot
            low = self._sums.take(start)
            result[some] = np.rint(low + (self._sums.take(start + 1) - low) * (place - knot))
        return result

    def mass(self, at: I64, times: I64) -> F64:
        """The weight at ``times`` (m, …) of the events ``at`` (m,)."""
        if self._plain:
            wide = (slice(None),) + (None,) * (times.ndim - 1)
            inside = (times >= self.lower.take(at)[wide]) & (times <= self.upper.take(at)[wide])
            return inside.astype(np.float64)
        result: F64 = self.cumulative(at, times) - self.cumulative(at, times - 1)
        return result

    def quantile(self, at: I64, weight: F64) -> I64:
        """The first times whose cumulative weight exceeds ``weight`` (m, …), which is from 0 to below the total."""
        wide = (slice(None),) + (None,) * (weight.ndim - 1)
        low: I64 = np.broadcast_to(self.lower.take(at)[wide], weight.shape).copy()
        high: I64 = np.broadcast_to(self.upper.take(at)[wide], weight.shape).copy()
        while (low < high).any():
            middle = low + (high - low) // 2
            over = self.cumulative(at, middle) > weight
            high = np.where(over, middle, high)
            low = np.where(over, low, np.minimum(middle + 1, high))
        return low

    def weights(self, i: int) -> F64:
        """All weights of one event, from lower to upper: for looking at, not for computing with."""
        result: F64 = self.mass(np.array([i]), np.arange(self.lower[i], self.upper[i] + 1)[None, :])[0]
        return result


@lru_cache(1024)
def _table(shape: Shape, length: int) -> F64:
    """Cumulative weights of a shape over ``length`` instants, beginning with 0."""
    weights = shape.weights(length)
    whole = np.rint(weights * (_WHOLE / (2 * length * weights.max())))
    whole = np.maximum(whole, weights > 0 if isinstance(shape, Histogram) else 1)
    return np.concatenate([[0.0], whole.cumsum()])


@lru_cache(64)
def _curve(shape: Shape) -> F64:
    """Cumulative weights of a shape at its knots."""
    sums: F64 = np.rint(shape.cumulative(np.arange(_KNOTS + 1) / _KNOTS) * (_WHOLE / 2))
    return sums


def _tables(weights: F64, lengths: I64) -> tuple[F64, F64, Bools]:
    """Cumulative whole-number weights of events (each beginning with 0), their totals, and which have gaps."""
    starts = lengths.cumsum() - lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    broken = np.maximum.reduceat((np.rint(weights) != weights).astype(np.int8), starts) > 0
    broken |= np.add.reduceat(weights, starts) > _WHOLE / 2  # sums of two totals are exact too
    largest = np.maximum.reduceat(weights, starts)
    # First to at most 1, so that neither very small nor very large weights overflow on the way.
    scaled = weights / np.where(broken, largest, 1.0)[owner] * np.where(broken, _WHOLE / (2.0 * lengths), 1.0)[owner]
    whole = np.where(broken[owner], np.maximum(np.rint(scaled), weights > 0), weights)
    sums = np.zeros(len(weights) + len(lengths))
    places = np.arange(len(weights)) + owner + 1
    for start, length, place in zip(starts.tolist(), lengths.tolist(), places[starts].tolist(), strict=True):
        sums[place : place + length] = whole[start : start + length].cumsum()  # one by one: sums stay whole numbers
    ends = places[starts + lengths - 1]
    return sums, sums[ends], np.minimum.reduceat(whole, starts) == 0
