"""Bounded delay: an event type that is never more than so far behind the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import BEGINNING
from latecomer.consistency.generators.base import Generator, Promises, Setting, Stateless, generator
from latecomer.consistency.punctuation import ANY
from latecomer.errors import ConfigError
from latecomer.units import Duration, DurationLike


@generator
@dataclass(frozen=True, init=False)
class BoundedDelay(Generator):
    """Events of a type come at most ``delay`` behind the stream's clock.

    When the clock shows ``c``, no event at or below ``c - delay - 1`` can follow; one at exactly ``c - delay`` may.

    Args:
        delays: the delay of each type, or one for all types. Types that are not named are promised nothing.

    >>> BoundedDelay({"OnTime": "15 min"}).delays
    (('OnTime', Duration(amount=Fraction(900000000000, 1), plain=False)),)
    """

    delays: tuple[tuple[str, Duration], ...] | Duration

    def __init__(
        self, delays: DurationLike | Mapping[str, DurationLike] | Iterable[Sequence[str | DurationLike]]
    ) -> None:
        found: tuple[tuple[str, Duration], ...] | Duration
        if isinstance(delays, str) or not isinstance(delays, Iterable):
            found = Duration.of(delays)
        else:
            pairs: dict[Any, Any] = dict(delays)  # type: ignore[arg-type]
            if not pairs:
                raise ConfigError("BoundedDelay names no type: give {'OnTime': '15 min'}, or one delay for all types")
            found = tuple(sorted((str(type), Duration.of(delay)) for type, delay in pairs.items()))
        object.__setattr__(self, "delays", found)

    def start(self, setting: Setting) -> DelayLogic:
        if isinstance(self.delays, Duration):
            return DelayLogic([(ANY, self.delays.units(setting.unit))])
        numbers = {setting.number(type): delay.units(setting.unit) for type, delay in self.delays}
        return DelayLogic([(number, delay) for number, delay in numbers.items() if number is not None])


class DelayLogic(Stateless):
    """A promise for each type wherever the clock has moved."""

    def __init__(self, delays: Sequence[tuple[int, int]]) -> None:
        self._delays = delays

    def observe(self, arrivals: Arrivals) -> Promises:
        clock = np.maximum.accumulate(np.append(arrivals.clock, arrivals.reached))
        moved = np.flatnonzero(np.diff(clock, prepend=BEGINNING))
        position = np.minimum(moved, len(arrivals) - 1)  # the last one speaks for the clock after the arrivals
        return Promises.join(
            Promises.of(position, clock[moved] - delay - 1, type=number) for number, delay in self._delays
        )
