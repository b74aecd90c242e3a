"""The three consistency levels, as a user holds them: small frozen configurations, no behaviour but to print
themselves.

What a level *does* is in ``policy.py``; design in one line: a level is when events enter, when matches leave, and how
long state is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latecomer.errors import ConfigError
from latecomer.units import Duration, DurationLike


@dataclass(frozen=True, slots=True, init=False)
class KSlack:
    """Wait a fixed slack ``k`` of event time, then be final; matches leave in order of completion (Liu 2012, §3.5).

    An event more than ``k`` behind the clock goes to the late output with reason ``after_k``.

    >>> str(KSlack("5 minutes"))
    'kslack(5 min)'
    """

    k: Duration

    def __init__(self, k: DurationLike) -> None:
        object.__setattr__(self, "k", Duration.of(k))

    def __str__(self) -> str:
        return f"kslack({self.k})"


@dataclass(frozen=True, slots=True)
class Conservative:
    """Wait for proof (punctuation), then be final (Liu 2012, §3.6.1).

    An event that punctuation had excluded goes to the late output with reason ``after_punctuation``.

    >>> str(Conservative())
    'conservative'
    """

    def __str__(self) -> str:
        return "conservative"


@dataclass(frozen=True, slots=True, init=False)
class Aggressive:
    """Answer at once, take answers back for as long as events may still come (Liu 2012, §3.6.2).

    Args:
        max_delay: how far behind the clock an event may come; later ones go to the late output (``after_max_delay``).
        patience: how long a match with negation waits before it leaves: fewer answers are taken back, each a little
            later.

    >>> str(Aggressive(max_delay="5 minutes"))
    'aggressive(max_delay = 5 min)'
    """

    max_delay: Duration
    patience: Duration

    def __init__(self, max_delay: DurationLike, patience: DurationLike = 0) -> None:
        object.__setattr__(self, "max_delay", Duration.of(max_delay))
        object.__setattr__(self, "patience", Duration.of(patience))

    def __str__(self) -> str:
        patience = f", patience = {self.patience}" if self.patience.amount else ""
        return f"aggressive(max_delay = {self.max_delay}{patience})"


Level = KSlack | Conservative | Aggressive


def check_level(level: Any) -> Level:
    """Return ``level``; raises ConfigError that explains the three when it is none of them."""
    if isinstance(level, (KSlack, Conservative, Aggressive)):
        return level
    raise ConfigError(f"{level!r} is not a consistency level. {CHOICES}")


CHOICES = (
    "Choose one: KSlack('5 minutes') waits a fixed slack, then is final and in order; "
    "Conservative() waits for punctuation, then is final; "
    "Aggressive(max_delay='5 minutes') answers at once and takes answers back when late events come."
)
