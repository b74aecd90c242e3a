"""Policies: what each level does, as pure functions of clock and promises. The engine between the two ends is the
same for all.

| level | late when | enters | horizon | useless below |
|---|---|---|---|---|
| K-slack | ``ts < clock - k`` | at ``ts <= clock - k``, sorted | ``clock - k - 1`` | ``clock - k - W`` |
| conservative | ``ts <= bound of its type`` | at once | bound of the negative's type | least bound ``- W`` |
| aggressive | ``ts < clock - max_delay`` | at once | ``clock - patience - 1`` | ``clock - max(max_delay, patience) -
W`` |

Why the last column is right: an event that still may enter has a time at or above the level's limit, whatever it can
meet lies within W of it, and a match that still waits began at or above the floor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from latecomer.consistency.clock import BEGINNING, END, I64, LONGEST
from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level
from latecomer.errors import ConfigError
from latecomer.units import Duration


class Policy(Protocol):
    """A level bound to a stream's unit."""

    @property
    def reason(self) -> str:
        """What the late output says."""
        ...

    @property
    def final(self) -> bool:
        """Whether it never takes an answer back."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether events enter in order of time, through a sort buffer."""
        ...

    @property
    def proves(self) -> bool:
        """Whether punctuation rather than the clock decides."""
        ...

    def limit(self, clock: I64, bound: I64) -> I64:
        """The least time that keeps the promise: an event below it is late by the difference."""
        ...

    def entry(self, clock: int) -> int:
        """Events up to this time may enter."""
        ...

    def horizon(self, clock: int, bound: int) -> int:
        """Everything of a type up to this time is taken as known; ``bound`` is the type's punctuation."""
        ...

    def floor(self, clock: int, least: int, window: int) -> int:
        """Events below this time cannot change any answer; ``least`` is the least bound of the query's types."""
        ...

    def retention(self, window: int) -> int | None:
        """How long behind the clock state is kept, in units; None when punctuation alone decides."""
        ...


@dataclass(frozen=True, slots=True)
class KSlackPolicy:
    k: int
    reason: str = "after_k"
    final: bool = True
    ordered: bool = True
    proves: bool = False

    def limit(self, clock: I64, bound: I64) -> I64:
        return clock - self.k

    def entry(self, clock: int) -> int:
        return clock - self.k

    def horizon(self, clock: int, bound: int) -> int:
        return clock - self.k - 1

    def floor(self, clock: int, least: int, window: int) -> int:
        return clock - self.k - window

    def retention(self, window: int) -> int:
        return window + self.k


@dataclass(frozen=True, slots=True)
class ConservativePolicy:
    reason: str = "after_punctuation"
    final: bool = True
    ordered: bool = False
    proves: bool = True

    def limit(self, clock: I64, bound: I64) -> I64:
        return bound + 1

    def entry(self, clock: int) -> int:
        return END

    def horizon(self, clock: int, bound: int) -> int:
        return bound

    def floor(self, clock: int, least: int, window: int) -> int:
        return max(least - window, BEGINNING)

    def retention(self, window: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class AggressivePolicy:
    max_delay: int
    patience: int
    reason: str = "after_max_delay"
    final: bool = False
    ordered: bool = False
    proves: bool = False

    def limit(self, clock: I64, bound: I64) -> I64:
        return clock - self.max_delay

    def entry(self, clock: int) -> int:
        return END

    def horizon(self, clock: int, bound: int) -> int:
        return clock - self.patience - 1

    def floor(self, clock: int, least: int, window: int) -> int:
        return clock - max(self.max_delay, self.patience) - window

    def retention(self, window: int) -> int:
        return window + max(self.max_delay, self.patience)


def policy_of(level: Level, unit: str) -> Policy:
    """The policy of ``level`` on a stream that counts in ``unit``; raises ConfigError for lengths beyond all reason."""
    match level:
        case KSlack(k=k):
            return KSlackPolicy(whole_units(k, unit))
        case Aggressive(max_delay=max_delay, patience=patience):
            return AggressivePolicy(whole_units(max_delay, unit), whole_units(patience, unit))
        case Conservative():
            return ConservativePolicy()


def whole_units(duration: Duration, unit: str) -> int:
    """A duration in whole units, checked to leave room for sums of times."""
    units = duration.units(unit)
    if units > LONGEST:
        raise ConfigError(
            f"{duration} is {units} {unit}: at most {LONGEST} are allowed; choose a coarser Stream(unit=…)"
        )
    return units
