"""Policies: what each level does at the two ends of the engine, which is the same for all.

| level | late below (*limit*) | enters | horizon | useless below |
|---|---|---|---|---|
| K-slack | ``clock - k`` | at the limit, sorted | ``limit - 1`` | ``limit - W`` |
| conservative | ``bound of its type + 1`` | at once | bound of the negative's type | least bound ``- W`` |
| aggressive | ``clock - max_delay`` | at once | ``clock - patience - 1`` | ``clock - max(max_delay, patience) - W`` |

Why the last column is right: an event that still may enter has a time at or above the level's limit, whatever it can
meet lies within W of it, and a match that still waits began at or above the floor. A policy is a pure state machine:
clocks and promises come in through arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import BEGINNING, END, I64, LONGEST
from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level
from latecomer.consistency.patience import AdaptivePatience, FixedPatience, Patience
from latecomer.consistency.slack import AdaptiveSlack, FixedSlack, LargestSlack, Slack, SourceSlack
from latecomer.errors import ConfigError
from latecomer.units import Duration


class Policy(Protocol):
    """A level bound to a stream."""

    reason: str  #: what the late output says
    final: bool  #: never takes an answer back
    ordered: bool  #: events enter in order of time, through a sort buffer
    proves: bool  #: punctuation rather than the clock decides

    def observe(self, arrivals: Arrivals, bound: I64) -> I64:
        """The limit at each arrival; ``bound`` is the promise that each had to respect."""
        ...

    def advance(self, clock: int, now: int | None) -> None:
        """The batch is over, or the clock has moved without one."""
        ...

    def entry(self) -> int:
        """Events up to this time may enter."""
        ...

    def horizon(self, bound: int) -> int:
        """Everything of a type up to this time is taken as known; ``bound`` is the type's punctuation."""
        ...

    def floor(self, least: int, window: int) -> int:
        """Events below this time cannot change any answer; ``least`` is the least bound of the query's types."""
        ...

    def retention(self, window: int) -> int | None:
        """How long behind the clock state may be needed, in units; None when punctuation alone decides."""
        ...

    def learn(self, delays: I64, matches: int) -> None:
        """What became of matches, for levels that adapt."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the level uses now, for explain."""
        ...

    def dump(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class KSlackPolicy:
    """Wait a slack, then be final and in order."""

    reason, final, ordered, proves = "after_k", True, True, False

    def __init__(self, slack: Slack) -> None:
        self._slack = slack

    def observe(self, arrivals: Arrivals, bound: I64) -> I64:
        return self._slack.observe(arrivals)

    def advance(self, clock: int, now: int | None) -> None:
        self._slack.advance(clock, now)

    def entry(self) -> int:
        return self._slack.limit

    def horizon(self, bound: int) -> int:
        return self._slack.limit - 1

    def floor(self, least: int, window: int) -> int:
        return self._slack.limit - window

    def retention(self, window: int) -> int:
        return window + self._slack.longest

    def learn(self, delays: I64, matches: int) -> None:
        """Slack learns from arrivals."""

    def facts(self) -> dict[str, Any]:
        return self._slack.facts()

    def dump(self) -> dict[str, Any]:
        return self._slack.dump()

    def load(self, state: dict[str, Any]) -> None:
        self._slack.load(state)


class ConservativePolicy:
    """Wait for proof, then be final."""

    reason, final, ordered, proves = "after_punctuation", True, False, True

    def observe(self, arrivals: Arrivals, bound: I64) -> I64:
        return bound + 1

    def advance(self, clock: int, now: int | None) -> None:
        """Clocks prove nothing."""

    def entry(self) -> int:
        return END

    def horizon(self, bound: int) -> int:
        return bound

    def floor(self, least: int, window: int) -> int:
        return max(least - window, BEGINNING)

    def retention(self, window: int) -> None:
        return None

    def learn(self, delays: I64, matches: int) -> None:
        """Nothing to choose."""

    def facts(self) -> dict[str, Any]:
        return {}

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Its state is the promises."""


class AggressivePolicy:
    """Answer at once, or after some patience, and take answers back."""

    reason, final, ordered, proves = "after_max_delay", False, False, False

    def __init__(self, max_delay: int, patience: Patience) -> None:
        self.max_delay, self._patience = max_delay, patience
        self._clock = BEGINNING

    @property
    def patient(self) -> bool:
        """Whether matches may ever wait though their negations lie before the clock."""
        return self._patience.longest > 0

    @property
    def wait(self) -> int:
        """How far the horizon is behind the clock now."""
        return self._patience.wait

    def observe(self, arrivals: Arrivals, bound: I64) -> I64:
        return arrivals.clock - self.max_delay

    def advance(self, clock: int, now: int | None) -> None:
        self._clock = clock

    def entry(self) -> int:
        return END

    def horizon(self, bound: int) -> int:
        return self._clock - self.wait - 1

    def floor(self, least: int, window: int) -> int:
        return self._clock - self.retention(window)

    def retention(self, window: int) -> int:
        return window + max(self.max_delay, self._patience.longest)

    def learn(self, delays: I64, matches: int) -> None:
        self._patience.learn(delays, matches)

    def facts(self) -> dict[str, Any]:
        return {"patience": self.wait}

    def dump(self) -> dict[str, Any]:
        return {"clock": self._clock, "patience": self._patience.dump()}

    def load(self, state: dict[str, Any]) -> None:
        self._clock = state["clock"]
        self._patience.load(state["patience"])


@dataclass(frozen=True, slots=True)
class Setting:
    """What a stream says that levels depend on; ``positives`` are the numbers of the query's positive types."""

    unit: str
    clock: str
    declared: Sequence[Any]
    idle_timeout: int | None
    positives: Sequence[int]


def policy_of(level: Level, setting: Setting) -> Policy:
    """The policy of ``level``; raises ConfigError for lengths beyond all reason."""
    unit = setting.unit
    match level:
        case KSlack(k=None, recall=float() as recall, max=Duration() as longest):
            return KSlackPolicy(AdaptiveSlack(recall, whole_units(longest, unit), setting.positives))
        case KSlack(k=Duration() as k, sources=()):
            return KSlackPolicy(FixedSlack(whole_units(k, unit)))
        case KSlack(k=Duration() as k, sources=sources):
            by_source = {name: whole_units(slack, unit) for name, slack in sources}
            if setting.clock == "source":
                return KSlackPolicy(
                    SourceSlack(whole_units(k, unit), by_source, setting.declared, setting.idle_timeout)
                )
            return KSlackPolicy(LargestSlack(whole_units(k, unit), by_source, setting.declared))
        case Aggressive(max_delay=max_delay, retractions=float() as share):
            longest_wait = whole_units(max_delay, unit)
            return AggressivePolicy(longest_wait, AdaptivePatience(share, longest_wait))
        case Aggressive(max_delay=max_delay, patience=patience):
            return AggressivePolicy(whole_units(max_delay, unit), FixedPatience(whole_units(patience, unit)))
        case Conservative():
            return ConservativePolicy()
    raise ConfigError(f"{level} is not a complete level")


def adapts(level: Level) -> bool:
    """Whether the level learns from one query's events or matches, so that no other query may share its state."""
    return (isinstance(level, KSlack) and level.recall is not None) or (
        isinstance(level, Aggressive) and level.retractions is not None
    )


def whole_units(duration: Duration, unit: str) -> int:
    """A duration in whole units, checked to leave room for sums of times."""
    units = duration.units(unit)
    if units > LONGEST:
        raise ConfigError(f"{duration} is {units} {unit}: at most {LONGEST} are allowed; take a coarser Stream(unit=…)")
    return units
