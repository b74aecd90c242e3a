"""A clock that stands still until it is told to move. Nothing below the edge of Latecomer reads a clock: ``now`` is an
argument, so a test that passes this clock's ``now()`` has time in its hands.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from latecomer.errors import ConfigError
from latecomer.units import Duration, DurationLike, canonical_unit


class ManualClock:
    """Wall clock by hand. It never moves back.

    Args:
        now: where it starts: whole units of the stream, or a datetime for streams whose times are timestamps.
        unit: the unit of a number (``ns us ms s min h d``), in which durations like ``"5 s"`` are added.

    >>> clock = ManualClock(1_000, unit="ms")
    >>> clock.advance("2 s")
    3000
    >>> clock.now()
    3000
    """

    def __init__(self, now: int | datetime = 0, unit: str = "s") -> None:
        self._now = now
        self._unit = canonical_unit(unit)

    def now(self) -> int | datetime:
        """The time; pass it to ``Runtime.advance``, or the method itself where a function of no arguments is wanted."""
        return self._now

    def advance(self, by: DurationLike) -> int | datetime:
        """Move on by a duration; a plain number counts in the clock's unit. Returns the new time."""
        duration = Duration.of(by)
        if isinstance(self._now, datetime):
            micros = Duration.of(f"{duration.units(self._unit)} {self._unit}") if duration.plain else duration
            self._now += timedelta(microseconds=micros.units("us"))
        else:
            self._now += duration.units(self._unit)
        return self._now

    def set(self, now: int | datetime) -> None:
        """Move on to a moment. Raises ConfigError for one that lies in the past, or is of the other kind."""
        if isinstance(now, datetime) != isinstance(self._now, datetime):
            raise ConfigError(f"now={now!r}: this clock shows {self._now!r}, give a moment of the same kind")
        if now < self._now:  # type: ignore[operator]
            raise ConfigError(f"now={now!r} lies before {self._now!r}: a clock moves on only, make a new ManualClock")
        self._now = now
