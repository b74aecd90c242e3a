"""Uncertainty: how an event's interval, and the distribution over it, follow from what a stream declares.

Rules:

* an interval ``[lower, upper]`` counts in whole units and includes both ends; a precise event has ``lower == upper``;
* it is given by two columns, or it is a time stamp ``± ε``, or a time stamp that was rounded (or both of these);
* no interval is longer than the stream's *longest* (``upper - lower``), which is known before the first event: it
  bounds how far back an event that is still to come may lie;
* a distribution is a *shape*: a cumulative function over the interval, scaled to [0, 1], of which each unit takes the
  part that falls in it. So one shape serves intervals of every length.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, erf, frexp, inf, sqrt
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from latecomer.errors import ConfigError, options
from latecomer.units import Duration

F64 = npt.NDArray[np.float64]

ROUNDINGS = ("down", "nearest", "up")

#: A normal distribution that is cut this many standard deviations out leaves units without any measurable weight.
_MOST_SIGMAS = 8.0
_CALL = re.compile(r"\s*([a-z]+)\s*(?:\(\s*([0-9.]+)\s*\))?\s*")


class Shape(ABC):
    """A distribution over an interval of any length."""

    @abstractmethod
    def cumulative(self, x: F64) -> F64:
        """How much lies below each ``x``, from 0 at 0 to 1 at 1."""

    def weights(self, units: int) -> F64:
        """The probability of each of ``units`` units; they sum to 1.

        >>> Triangular().weights(4).tolist()
        [0.125, 0.375, 0.375, 0.125]
        """
        parts: F64 = np.diff(self.cumulative(np.arange(units + 1) / units))
        return np.asarray(parts / parts.sum())


@dataclass(frozen=True, slots=True)
class Uniform(Shape):
    """Every unit is as likely as any other."""

    def cumulative(self, x: F64) -> F64:
        return x


@dataclass(frozen=True, slots=True)
class Triangular(Shape):
    """Rises to ``peak`` (0: the interval's begin, 1: its end) and falls from there."""

    peak: float = 0.5

    def cumulative(self, x: F64) -> F64:
        rising = x**2 / self.peak if self.peak else x
        falling = 1 - (1 - x) ** 2 / (1 - self.peak) if self.peak < 1 else x
        return np.where(x < self.peak, rising, falling)


@dataclass(frozen=True, slots=True)
class Normal(Shape):
    """A normal distribution around the middle, cut ``sigmas`` standard deviations out on each side."""

    sigmas: float = 3.0

    def cumulative(self, x: F64) -> F64:
        scaled = (2 * x - 1) * (self.sigmas / sqrt(2))
        return np.fromiter(map(erf, scaled.tolist()), np.float64, len(x)) / (2 * erf(self.sigmas / sqrt(2))) + 0.5


@dataclass(frozen=True, slots=True)
class Histogram(Shape):
    """Equal parts of the interval with these weights."""

    parts: tuple[float, ...]

    def cumulative(self, x: F64) -> F64:
        parts = np.ldexp(self.parts, -frexp(max(self.parts))[1])  # exact, and their sum cannot overflow
        sums = np.append(0.0, np.cumsum(parts))
        return np.asarray(np.interp(x * len(self.parts), np.arange(len(sums)), sums / sums[-1]))


def shape_of(given: object) -> Shape:
    """Read ``"uniform"``, ``"triangular"``, ``"triangular(0.2)"``, ``"normal"``, ``"normal(2)"`` or a list of weights.

    Raises ConfigError for anything else.

    >>> shape_of("normal(2)"), shape_of([1, 2, 1])
    (Normal(sigmas=2.0), Histogram(parts=(1.0, 2.0, 1.0)))
    """
    if isinstance(given, str):
        call = _CALL.fullmatch(given.lower())
        name, argument = (call[1], call[2]) if call is not None else (given, None)
        if name == "uniform" and argument is None:
            return Uniform()
        if name in ("triangular", "normal"):
            return _with_argument(given, name, argument)
    elif isinstance(given, (Sequence, np.ndarray)) and not isinstance(given, bytes):
        if any(isinstance(w, (list, tuple, np.ndarray)) for w in given):
            raise ConfigError(
                f"distribution={given!r}: a histogram is one list of weights, like [1, 3, 1]; distributions by source "
                "are pairs of a name and one of these"
            )
        weights = tuple(float(w) for w in given if isinstance(w, Real) and not isinstance(w, bool))
        if not weights or len(weights) < len(given) or not all(0 <= w < inf for w in weights):
            raise ConfigError(f"distribution={given!r}: a histogram is a list of weights, each 0 or more")
        if not weights[0] or not weights[-1]:
            raise ConfigError(f"distribution={given!r}: leave the zeros at its ends off and make the interval shorter")
        return Histogram(weights)
    allowed = "'uniform', 'triangular', 'triangular(0.2)', 'normal', 'normal(2)' or a list of weights"
    raise ConfigError(f"distribution={given!r}: allowed are {allowed}, or one of these for each source")


def _with_argument(given: str, name: str, argument: str | None) -> Shape:
    if argument is None:
        return Triangular() if name == "triangular" else Normal()
    try:
        value = float(argument)
    except ValueError:
        raise ConfigError(f"distribution={given!r}: {argument} is no number") from None
    if name == "triangular":
        if value > 1:
            raise ConfigError(f"distribution={given!r}: the peak lies between 0 (begin) and 1 (end of the interval)")
        return Triangular(value)
    if not 0 < value <= _MOST_SIGMAS:
        raise ConfigError(
            f"distribution={given!r}: the interval reaches some standard deviations out, more than 0 and at "
            f"most {_MOST_SIGMAS:g}"
        )
    return Normal(value)


class Declared(Protocol):
    """The options of a stream that make intervals; :class:`latecomer.Stream` has them."""

    @property
    def lower(self) -> str | None: ...
    @property
    def upper(self) -> str | None: ...
    @property
    def longest(self) -> Any: ...
    @property
    def uncertainty(self) -> Any: ...
    @property
    def granularity(self) -> Any: ...
    @property
    def rounding(self) -> str: ...
    @property
    def distribution(self) -> Any: ...
    @property
    def pmf(self) -> str | None: ...
    @property
    def source(self) -> str | None: ...


def by_source(option: str, given: object, source: str | None) -> dict[Any, Any] | None:
    """The settings of single sources, if ``given`` is such: a mapping, or its pairs. ``None`` names all others."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, (list, tuple)) and given and all(_is_setting(option, pair) for pair in given):
        pairs = [(p[0], p[1]) for p in given]
    else:
        return None
    if source is None:
        raise ConfigError(f"{option}={given!r} names sources: their column is needed, Stream(source='device')")
    if not pairs:
        raise ConfigError(f"{option}={given!r} names no source: give some, or one value for all")
    twice = next((name for i, (name, _) in enumerate(pairs) if name in [n for n, _ in pairs[:i]]), _NOBODY)
    if twice is not _NOBODY:
        raise ConfigError(f"{option}={given!r} names the source {twice!r} twice: give it once")
    return dict(pairs)


def _is_setting(option: str, given: object) -> bool:
    """A pair of a source and its value. No distribution is a number, so two numbers are weights."""
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        return False
    return option != "distribution" or not isinstance(given[1], Real)


_NOBODY = object()


@dataclass(frozen=True, slots=True)
class Intervals:
    """A stream's intervals in its unit of time.

    Attributes:
        longest: the largest ``upper - lower``.
        sources: those with settings of their own; class ``i + 1`` is ``sources[i]``, class 0 is all others.
        before, after: by class, how far the interval reaches to each side of a time stamp.
        shape: by class, the number of its distribution in ``shapes``.
        shapes: all distributions; number 0 is the uniform one.
    """

    longest: int
    sources: tuple[Any, ...]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    shapes: tuple[Shape, ...]

    @property
    def shift(self) -> int:
        """How far before its time stamp an event may lie at most."""
        return int(self.before.max())


def intervals_of(stream: Declared, unit: str) -> Intervals:
    """The intervals of a stream that counts in ``unit``. Raises ConfigError where a granularity is no whole units."""
    reaches = by_source("uncertainty", stream.uncertainty, stream.source)
    forms = by_source("distribution", stream.distribution, stream.source)
    reach_of = reaches if reaches is not None else {None: stream.uncertainty}
    form_of = forms if forms is not None else {None: stream.distribution}
    sources = tuple(dict.fromkeys(s for s in (*reach_of, *form_of) if s is not None))
    behind, ahead = _rounded(stream, unit)
    shapes: list[Shape] = [Uniform()]
    before, after, numbers = [], [], []
    for source in (None, *sources):
        reach = reach_of.get(source, reach_of.get(None))
        units = 0 if reach is None else ceil(Duration.of(reach).exact(unit))
        form = form_of.get(source, form_of.get(None))
        shape = Uniform() if form is None else shape_of(form)
        if shape not in shapes:
            shapes.append(shape)
        before.append(behind + units)
        after.append(ahead + units)
        numbers.append(shapes.index(shape))
    longest = max(b + a for b, a in zip(before, after, strict=True))
    if stream.longest is not None:
        longest = Duration.of(stream.longest).units(unit)
    return Intervals(longest, sources, np.array(before), np.array(after), np.array(numbers), tuple(shapes))


def _rounded(stream: Declared, unit: str) -> tuple[int, int]:
    """How far the true time may lie before and after one that was rounded."""
    if stream.granularity is None:
        return 0, 0
    exact: Fraction = Duration.of(stream.granularity).exact(unit)
    if exact.denominator != 1 or exact < 1:
        raise ConfigError(
            f"granularity={str(stream.granularity)!r} is {float(exact):g} {unit}: whole units of the stream are "
            "needed, Stream(unit=…)"
        )
    size = int(exact)
    behind = {"down": 0, "nearest": size // 2, "up": size - 1}[stream.rounding]
    return behind, size - 1 - behind


def check_options(stream: Declared, ts_given: bool) -> None:
    """Raise ConfigError where options of a stream that make intervals do not fit together.

    ``ts_given``: a column of time stamps was named too.
    """
    pair = [name for name in ("lower", "upper") if getattr(stream, name) is not None]
    stamped = [name for name in ("uncertainty", "granularity") if getattr(stream, name) is not None]
    if len(pair) == 1:
        other = "upper" if pair == ["lower"] else "lower"
        raise ConfigError(f"{pair[0]}= needs {other}=: the columns of both ends, Stream(lower='from', upper='to')")
    if pair and stamped:
        raise ConfigError(f"lower= and upper= give the intervals, so {options(stamped)} cannot: use one of them")
    if pair and ts_given:
        raise ConfigError("lower= and upper= give the time of events, so ts= cannot: leave it out")
    if pair and stream.longest is None:
        raise ConfigError(
            "Stream(lower=…, upper=…) needs longest=: how long an interval may be at most, like longest='10 minutes'; "
            "without it no event would ever be known to have come"
        )
    if not pair and stream.longest is not None:
        raise ConfigError("longest= goes with lower= and upper=; elsewhere it follows from the options")
    lonely = [name for name in ("pmf", "distribution") if getattr(stream, name) is not None]
    if lonely and not pair and not stamped:
        raise ConfigError(f"{lonely[0]}= needs intervals: Stream(lower=…, upper=…), uncertainty= or granularity=")
    if stream.rounding not in ROUNDINGS:
        raise ConfigError(f"rounding={stream.rounding!r}: allowed are {options(map(repr, ROUNDINGS))}")
    if stream.rounding != "down" and stream.granularity is None:
        raise ConfigError(f"rounding={stream.rounding!r} needs granularity=: to what times were rounded")


def plain(option: str, given: Any, source: str | None) -> Any:
    """An option that may differ by source, checked, as plain data that says the same."""
    if given is None:
        return None
    one = _plain_reach if option == "uncertainty" else _plain_form
    settings = by_source(option, given, source)
    return one(given) if settings is None else tuple((name, one(value)) for name, value in settings.items())


def _plain_reach(given: Any) -> str:
    return str(Duration.of(given))


def _plain_form(given: Any) -> Any:
    shape_of(given)
    return given.lower() if isinstance(given, str) else tuple(map(float, given))
