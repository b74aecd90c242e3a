"""How long a delayed event takes: the distributions of delay, each a small frozen configuration with one function.

Rule: ``draw`` gives whole units of time, at least 1, so that an event chosen to be delayed is delayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.disorder.measure import IntArray
from latecomer.errors import ConfigError
from latecomer.units import Duration, DurationLike


class Tail(Protocol):
    """A distribution of delays."""

    def draw(self, n: int, unit: str, rng: np.random.Generator) -> IntArray:
        """``n`` delays in whole ``unit``, each at least 1."""


@dataclass(frozen=True, slots=True, init=False)
class Uniform:
    """Every delay from ``low`` to ``high`` is equally likely: a bounded disorder, what a fixed slack is made for.

    >>> Uniform("2 s").draw(3, "s", np.random.default_rng(0)).tolist()
    [2, 2, 2]
    """

    low: Duration
    high: Duration

    def __init__(self, high: DurationLike, low: DurationLike = 0) -> None:
        object.__setattr__(self, "low", Duration.of(low))
        object.__setattr__(self, "high", Duration.of(high))
        if self.low.plain == self.high.plain and self.low.amount > self.high.amount:
            raise ConfigError(f"low={low!r} is above high={high!r}: give the smaller delay as low")

    def draw(self, n: int, unit: str, rng: np.random.Generator) -> IntArray:
        low = max(self.low.units(unit), 1)
        return rng.integers(low, max(self.high.units(unit), low) + 1, n)


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """Delays with this mean and a thin tail: queues and retries. No bound, but 10 times the mean is hardly seen."""

    mean: Duration

    def __init__(self, mean: DurationLike) -> None:
        object.__setattr__(self, "mean", Duration.of(mean))

    def draw(self, n: int, unit: str, rng: np.random.Generator) -> IntArray:
        return _whole(rng.exponential(float(self.mean.exact(unit)), n))


@dataclass(frozen=True, slots=True, init=False)
class Pareto:
    """Delays of at least ``least`` with a fat tail: a few events come very late, and no slack is large enough.

    The share of delays above x is (least / x) ** shape; the mean is least * shape / (shape - 1), infinite for shape <=
    1.

    Args:
        least: the smallest delay.
        shape: the tail's exponent; 1.2 to 3 are usual, smaller is fatter.
        most: delays are cut here, as a sender gives up at some time.
    """

    least: Duration
    shape: float
    most: Duration | None

    def __init__(self, least: DurationLike, shape: float = 1.5, most: DurationLike | None = None) -> None:
        if not shape > 0:
            raise ConfigError(f"shape={shape!r}: a number above 0 is allowed; 1.2 to 3 are usual")
        object.__setattr__(self, "least", Duration.of(least))
        object.__setattr__(self, "shape", float(shape))
        object.__setattr__(self, "most", None if most is None else Duration.of(most))

    def draw(self, n: int, unit: str, rng: np.random.Generator) -> IntArray:
        delays = float(self.least.exact(unit)) * (1 + np.minimum(rng.pareto(self.shape, n), _LONGEST))
        return _whole(delays if self.most is None else np.minimum(delays, float(self.most.exact(unit))))


#: No draw exceeds this many units, so that sums of times stay within 64 bits.
_LONGEST = 2.0**60


def _whole(delays: NDArray[np.float64]) -> IntArray:
    whole: IntArray = np.clip(np.rint(delays), 1, _LONGEST).astype(np.int64)
    return whole
