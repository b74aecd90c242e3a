"""Distributions: how likely each instant of an interval is, for events known only to lie between two times.

Rule: every distribution is a row of *whole-number weights*, one for each instant from ``lower`` to ``upper``, and a
probability is a weight divided by their total. Sums of weights up to 2**53 are exact in float64, so "surely" and
"never" are decided without rounding, whatever is added to or taken from them.

* :class:`Uniform`: all weights are 1.
* :class:`Triangular`: weights rise in equal steps to the mode and fall in equal steps behind it (whole numbers by
  construction; exact up to 400,000 instants).
* :class:`Normal`: a normal curve cut to the interval; each instant has 1 plus its share of 2**40 weights, rounded,
  so every instant is possible and a probability is right to 1e-12 times the length.
* a histogram: weights that come with the event. Whole numbers are taken as they are; others are scaled to whole
  numbers as large as 2**53 allows, and what was positive stays positive.

Nothing is expanded to instants when events are stored or joined; only :meth:`Distributions.cumulative` looks at
instants, and only at those it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.errors import ConfigError

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: The code of a histogram, where others have their place in the table of shapes.
HISTOGRAM = -1
_WHOLE = 2**53  # whole numbers up to here are exact in float64
_SCALE = 2**40  # weights that a normal curve shares out
_LONGEST_TABLE = 2**20  # instants of an interval with a normal distribution


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every instant is equally likely: the right choice for rounded times."""


@dataclass(frozen=True, slots=True)
class Triangular:
    """Most likely at ``mode``, a share of the interval from 0 (lower end) to 1 (upper end).

    >>> Triangular(0.5)
    Triangular(mode=0.5)
    """

    mode: float = 0.5

    def __post_init__(self) -> None:
        _check_share("Triangular", "mode", self.mode)


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal curve around ``mean`` (a share of the interval), cut to the interval: measured clocks.

    ``sigma`` is the standard deviation as a share of the interval's length; by default a quarter, so that the interval
    is mean ± 2 sigma.
    """

    mean: float = 0.5
    sigma: float = 0.25

    def __post_init__(self) -> None:
        _check_share("Normal", "mean", self.mean)
        if not (isinstance(self.sigma, (int, float)) and 0 < self.sigma < math.inf):
            raise ConfigError(f"Normal(sigma={self.sigma!r}): a positive share of the interval's length is needed")


def _check_share(owner: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{owner}({name}={value!r}): a share of the interval from 0 to 1 is needed")


Shape = Uniform | Triangular | Normal


class Distributions:
    """The distributions of n events, as columns.

    Attributes:
        lower, upper: (n,) first and last instant.
        total: (n,) sums of weights.
        gaps: (n,) whether an instant between lower and upper has no weight; only histograms have some.

    >>> d = Distributions.of(np.array([0, 10]), np.array([3, 12]), np.array([0, 1]), [Uniform(), Triangular()])
    >>> d.cumulative(np.array([0, 1]), np.array([[0, 1, 9], [9, 10, 11]]))
    array([[1., 2., 4.],
           [0., 2., 6.]])
    >>> d.total
    array([4., 8.])
    """

    __slots__ = ("_kind", "_mode", "_offset", "_plain", "_sums", "gaps", "lower", "total", "upper")

    def __init__(
        self,
        lower: I64,
        upper: I64,
        kind: npt.NDArray[np.int8],
        mode: I64,
        offset: I64,
        sums: F64,
        total: F64,
        gaps: Bools,
    ) -> None:
        self.lower, self.upper, self.total, self.gaps = lower, upper, total, gaps
        self._kind, self._mode, self._offset, self._sums = kind, mode, offset, sums
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

        ``codes`` (n,) are places in ``shapes``, or :data:`HISTOGRAM` (None: all 0). ``weights`` holds the weights of
        those events that have a histogram, one event after another, ``upper - lower + 1`` of each.
        """
        n = len(lower)
        kind, mode, offset = np.zeros(n, np.int8), np.zeros(n, np.int64), np.zeros(n, np.int64)
        gaps = np.zeros(n, bool)
        length = upper - lower + 1
        total = length.astype(np.float64)
        sums: list[F64] = []
        used = 0
        for code, shape in enumerate(shapes):
            if isinstance(shape, Uniform) and (codes is None or len(shapes) == 1):
                continue
            at = np.arange(n) if codes is None else (codes == code).nonzero()[0]
            if isinstance(shape, Triangular):
                kind[at] = _TRIANGLE
                mode[at] = np.rint(shape.mode * (length[at] - 1)).astype(np.int64)
                rise, fall = mode[at] + 1.0, length[at] - mode[at] + 0.0
                total[at] = rise * fall * (rise + fall) / 2
            elif isinstance(shape, Normal):
                kind[at] = _TABLE
                for size in np.unique(length[at]).tolist():
                    table = _normal(shape, size)
                    which = at[length[at] == size]
                    offset[which], total[which] = used, table[-1]
                    sums.append(table)
                    used += len(table)
            if codes is None:
                break
        if codes is not None and weights is not None:
            at = (codes == HISTOGRAM).nonzero()[0]
            tables, totals, holes = _tables(weights, length[at])
            kind[at], gaps[at], total[at] = _TABLE, holes, totals
            offset[at] = used + (length[at] + 1).cumsum() - (length[at] + 1)
            sums.append(tables)
        return cls(lower, upper, kind, mode, offset, np.concatenate(sums) if sums else _NOTHING, total, gaps)

    def __len__(self) -> int:
        return len(self.lower)

    def take(self, at: I64) -> Distributions:
        """The distributions of some of the events; shares the tables."""
        lower, upper, mode, offset = (c.take(at) for c in (self.lower, self.upper, self._mode, self._offset))
        kind, total, gaps = self._kind.take(at), self.total.take(at), self.gaps.take(at)
        return Distributions(lower, upper, kind, mode, offset, self._sums, total, gaps)

    def cumulative(self, at: I64, times: I64) -> F64:
        """The weight at or before ``times`` (m, …) of the events ``at`` (m,). O(size of ``times``)."""
        wide = (slice(None),) + (None,) * (times.ndim - 1)
        lower, upper = self.lower.take(at)[wide], self.upper.take(at)[wide]
        first = np.minimum(np.maximum(times - lower + 1, 0), upper - lower + 1)  # how many instants are included
        result: F64 = first.astype(np.float64)
        if self._plain:
            return result
        kind = self._kind.take(at)
        some = (kind == _TRIANGLE).nonzero()[0]
        if len(some):
            rise = self._mode.take(at.take(some))[wide] + 1.0
            fall = (upper - lower)[some] + 2.0 - rise
            k = result[some]
            rest = rise + fall - 1 - k
            total = rise * fall * (rise + fall) / 2
            result[some] = np.where(k <= rise, fall * (k * (k + 1) / 2), total - rise * (rest * (rest + 1) / 2))
        some = (kind == _TABLE).nonzero()[0]
        if len(some):
            result[some] = self._sums.take(self._offset.take(at.take(some))[wide] + first[some])
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


def check_weights(weights: Sequence[float | None] | npt.NDArray[Any]) -> str | None:
    """Why a histogram cannot be used, or None when it can.

    >>> check_weights([0.2, -1])
    'weights must be finite and not negative'
    """
    values = np.asarray(weights, np.float64)
    if not len(values):
        return "a histogram needs a weight for each instant from lower to upper"
    if not np.isfinite(values).all() or (values < 0).any():
        return "weights must be finite and not negative"
    if values[0] == 0 or values[-1] == 0:
        return "the first and the last weight must be positive: let the interval begin and end where they are"
    return None


_TRIANGLE, _TABLE = 1, 2
_NOTHING = np.zeros(0)


@lru_cache(256)
def _normal(shape: Normal, length: int) -> F64:
    """Cumulative weights of a normal curve cut to ``length`` instants, beginning with 0."""
    if length > _LONGEST_TABLE:
        raise ConfigError(
            f"an interval of {length} instants is too long for pmf=Normal(…), which keeps a table of up to "
            f"{_LONGEST_TABLE}: count time in a coarser unit, Stream(unit=…), or use Uniform or Triangular"
        )
    centre, width = shape.mean * (length - 1), shape.sigma * length * math.sqrt(2)
    curve = np.array([math.erf((k - 0.5 - centre) / width) for k in range(length + 1)])
    spread = curve[-1] - curve[0]
    even: F64 = np.arange(length + 1, dtype=np.float64) / length
    shares: F64 = (curve - curve[0]) / spread if spread > 0 else even
    sums: F64 = np.arange(length + 1, dtype=np.float64) + np.rint(shares * _SCALE)
    return sums


def _tables(weights: F64, lengths: I64) -> tuple[F64, F64, Bools]:
    """Cumulative whole-number weights of histograms (each beginning with 0), their totals, and which have gaps."""
    starts = lengths.cumsum() - lengths
    if not len(lengths):
        return _NOTHING, _NOTHING, np.zeros(0, bool)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    broken = np.maximum.reduceat((np.rint(weights) != weights).astype(np.int8), starts) > 0
    broken |= np.add.reduceat(weights, starts) > _WHOLE
    largest = np.maximum.reduceat(weights, starts)
    factor = np.where(broken, _WHOLE / (2.0 * lengths * largest), 1.0)[owner]
    whole = np.where(broken[owner], np.maximum(np.rint(weights * factor), weights > 0), weights)
    sums = np.zeros(len(weights) + len(lengths))
    places = np.arange(len(weights)) + owner + 1
    for start, length, place in zip(starts.tolist(), lengths.tolist(), places[starts].tolist(), strict=True):
        sums[place : place + length] = whole[start : start + length].cumsum()  # one by one: sums stay whole numbers
    ends = places[starts + lengths - 1]
    return sums, sums[ends], np.minimum.reduceat(whole, starts) == 0
