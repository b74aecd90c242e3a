"""Time units and durations. A stream counts time in whole units; a duration is text, a timedelta or a number of units.

Durations stay exact until a stream's unit is known; then they become whole units, rounded down, since event times are
whole and ``difference <= 2.5 units`` says the same as ``difference <= 2``. Every duration has a finite decimal form, so
that it can be written: ``Duration.of(str(d)) == d``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from latecomer.errors import ConfigError, options

#: Nanoseconds per unit.
UNITS: dict[str, int] = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}

_SPELLINGS: dict[str, str] = {
    spelling: unit
    for unit, spellings in {
        "ns": "ns nanosecond nanoseconds",
        "us": "us µs microsecond microseconds",
        "ms": "ms millisecond milliseconds",
        "s": "s sec secs second seconds",
        "min": "min mins minute minutes",
        "h": "h hr hrs hour hours",
        "d": "d day days",
    }.items()
    for spelling in spellings.split()
}

_NUMBER = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([^\W\d]+)\s*")


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: exact nanoseconds, or (``plain``) a bare number of the stream's units.

    Raises ConfigError for an amount that no finite decimal number says, like a third.

    >>> Duration.of("5 minutes").units("ms")
    300000
    >>> Duration.of(7).units("h")
    7
    """

    amount: Fraction
    plain: bool = False

    def __post_init__(self) -> None:
        if _decimals(self.amount) is None:
            raise ConfigError(f"the duration {self.amount} has no finite decimal form: round it")

    @classmethod
    def of(cls, value: DurationLike) -> Duration:
        """Read text (``"5 minutes"``, ``"1 h 30 min"``), a timedelta or a plain number of the stream's units.

        Text that is a bare number counts as one. Floats mean what they print: 0.1 is a tenth.

        Raises ConfigError for anything else and for negative lengths.
        """
        if isinstance(value, Duration):
            return value
        if isinstance(value, timedelta):
            micros = (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds
            return cls._checked(Fraction(micros * 1_000), False, value)
        if isinstance(value, (int, float, Fraction)) and not isinstance(value, bool):
            if value != value or value in (float("inf"), float("-inf")):
                raise ConfigError(f"{value!r} is not a duration: give a finite number, or text like '5 minutes'")
            return cls._checked(Fraction(float.__repr__(value) if isinstance(value, float) else value), True, value)
        if isinstance(value, str):
            return cls._checked(*_parse(value), value)
        raise ConfigError(
            f"{value!r} is not a duration: give text like '5 minutes' or '250 ms', a timedelta, "
            "or a plain number of the stream's units"
        )

    @classmethod
    def _checked(cls, amount: Fraction, plain: bool, given: object) -> Duration:
        if amount < 0:
            raise ConfigError(f"{given!r} is negative: a duration must be 0 or more")
        return cls(amount, plain)

    def exact(self, unit: str) -> Fraction:
        """The length in ``unit``, not rounded."""
        return self.amount if self.plain else self.amount / UNITS[unit]

    def units(self, unit: str) -> int:
        """The length in whole ``unit``, rounded down."""
        exact = self.exact(unit)
        return exact.numerator // exact.denominator

    def __str__(self) -> str:
        """Text that :meth:`of` reads back to an equal duration: in the largest unit that needs no decimals."""
        if self.plain:
            return _written(self.amount)
        if self.amount == 0:
            return "0 s"
        for unit in ("d", "h", "min", "s", "ms", "us"):
            scaled = self.amount / UNITS[unit]
            if scaled.denominator == 1:
                return f"{scaled.numerator} {unit}"
        return f"{_written(self.amount)} ns"


DurationLike = Duration | timedelta | str | int | float


def canonical_unit(name: str) -> str:
    """``minutes`` -> ``min``; raises ConfigError for what is no unit."""
    unit = _SPELLINGS.get(name if name in UNITS else name.lower())
    if unit is None:
        raise ConfigError(f"{name!r} is not a unit of time: allowed are {options(UNITS)}")
    return unit


def _parse(text: str) -> tuple[Fraction, bool]:
    """The amount, and whether it is a bare number."""
    if _NUMBER.fullmatch(text):
        return Fraction(text.strip()), True
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ConfigError(f"{text!r} is not a duration: write numbers and units, like '5 minutes' or '1 h 30 min'")
        total += Fraction(part[1]) * UNITS[canonical_unit(part[2])]
        at = part.end()
    if not text.strip():
        raise ConfigError("an empty text is not a duration: write a number and a unit, like '5 minutes'")
    return total, False


def _decimals(value: Fraction) -> int | None:
    """How many decimals say the value exactly; None when no number of them does."""
    most, rest = 0, value.denominator
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        most = max(most, power)
    return most if rest == 1 else None


def _written(value: Fraction) -> str:
    digits = _decimals(value)
    if not digits:
        return str(value.numerator)
    whole, part = divmod(abs(value.numerator) * 10**digits // value.denominator, 10**digits)
    return f"{'-' * (value < 0)}{whole}.{part:0{digits}d}"
