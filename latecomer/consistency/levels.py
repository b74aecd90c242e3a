"""The three consistency levels, as a user holds them: small frozen configurations, no behaviour but to print
themselves.

What a level *does* is in ``policy.py``. In one line: a level says when events enter, when matches leave, and how long
state is kept. ``str(level)`` is what the CONSISTENCY clause of a query says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from latecomer.errors import ConfigError, options
from latecomer.units import Duration, DurationLike

OnLate = Literal["divert", "amend"]
Corrections = Literal["changes", "replace"]


@dataclass(frozen=True, slots=True, init=False)
class KSlack:
    """Wait a slack ``k`` of event time, then be final; matches leave in order of completion (Liu 2012, §3.5).

    Args:
        k: the slack. An event more than ``k`` behind the clock goes to the late output with reason ``after_k``.
        sources: slacks of single sources, by name; the others have ``k``. With ``Stream(clock="source")`` each source's
            own clock counts with its own slack, and the least of them decides; with one clock the largest slack does.
        recall: choose ``k`` from the lateness seen so far, so that the share of matches lost stays under ``1 -
            recall``.
        max: the largest slack that ``recall`` may choose; state is kept for it.
        on_late: ``"divert"``: a late event only goes to the late output. ``"amend"``: it is also applied as far as
            state allows, and what it changes comes out as marked corrections, so the level is no longer final.

    >>> str(KSlack("5 minutes"))
    'kslack(5 min)'
    >>> str(KSlack(recall=0.99, max="1 h"))
    'kslack(recall = 0.99, max = 1 h)'
    """

    k: Duration | None
    sources: tuple[tuple[str, Duration], ...]
    recall: float | None
    max: Duration | None
    on_late: OnLate

    def __init__(
        self,
        k: DurationLike | None = None,
        *,
        sources: Mapping[str, DurationLike] | None = None,
        recall: float | None = None,
        max: DurationLike | None = None,
        on_late: OnLate = "divert",
    ) -> None:
        if (k is None) == (recall is None):
            raise ConfigError("KSlack takes a slack, KSlack('5 minutes'), or a recall, KSlack(recall=0.99, max='1 h')")
        if (recall is None) != (max is None):
            raise ConfigError("recall and max go together: KSlack(recall=0.99, max='1 h'); max bounds the state")
        if sources and recall is not None:
            raise ConfigError("sources= gives fixed slacks and recall= chooses one: use one of them")
        object.__setattr__(self, "k", None if k is None else Duration.of(k))
        for name in sources or {}:
            if not isinstance(name, str):
                raise ConfigError(f"sources={{{name!r}: …}}: a source is named by text")
        named = sorted((sources or {}).items())
        object.__setattr__(self, "sources", tuple((name, Duration.of(slack)) for name, slack in named))
        object.__setattr__(self, "recall", None if recall is None else _share("recall", recall))
        object.__setattr__(self, "max", None if max is None else Duration.of(max))
        object.__setattr__(self, "on_late", _choice("on_late", on_late, ("divert", "amend")))

    def __str__(self) -> str:
        parts = [str(self.k)] if self.k is not None else [f"recall = {self.recall!r}", f"max = {self.max}"]
        parts += [f"source {_quoted(name)} = {slack}" for name, slack in self.sources]
        return f"kslack({', '.join(parts + _late(self.on_late))})"


@dataclass(frozen=True, slots=True, init=False)
class Conservative:
    """Wait for proof (punctuation), then be final (Liu 2012, §3.6.1).

    An event that punctuation had excluded goes to the late output with reason ``after_punctuation``;
    ``on_late="amend"`` applies it all the same, as far as state allows, as marked corrections.

    >>> str(Conservative())
    'conservative'
    """

    on_late: OnLate

    def __init__(self, *, on_late: OnLate = "divert") -> None:
        object.__setattr__(self, "on_late", _choice("on_late", on_late, ("divert", "amend")))

    def __str__(self) -> str:
        parts = _late(self.on_late)
        return f"conservative({', '.join(parts)})" if parts else "conservative"


@dataclass(frozen=True, slots=True, init=False)
class Aggressive:
    """Answer at once, take answers back for as long as events may still come (Liu 2012, §3.6.2).

    Args:
        max_delay: how far behind the clock an event may come; later ones go to the late output (``after_max_delay``).
        patience: how long a match with negation waits before it leaves: fewer answers are taken back, each a little
            later.
        retractions: choose the patience instead, as little as needed so that at most this share of the emitted
            matches is taken back later; never more than ``max_delay``.
        corrections: ``"changes"``: inserts and deletes as they come. ``"replace"``: deletes and inserts of one call
            that belong together carry a common number in the column ``revision``.
        on_late: ``"amend"`` also applies events beyond ``max_delay``, as far as state allows, as marked corrections.
        confidence_step: over interval streams, correct a match's confidence only once it has moved by more than this
            since it was last told; any change is told by default. Crossing the query's threshold always is.

    >>> str(Aggressive(max_delay="5 minutes"))
    'aggressive(max_delay = 5 min)'
    """

    max_delay: Duration
    patience: Duration
    retractions: float | None
    corrections: Corrections
    on_late: OnLate
    confidence_step: float

    def __init__(
        self,
        max_delay: DurationLike,
        patience: DurationLike = 0,
        *,
        retractions: float | None = None,
        corrections: Corrections = "changes",
        on_late: OnLate = "divert",
        confidence_step: float = 0.0,
    ) -> None:
        object.__setattr__(self, "max_delay", Duration.of(max_delay))
        object.__setattr__(self, "patience", Duration.of(patience))
        object.__setattr__(self, "retractions", None if retractions is None else _share("retractions", retractions))
        object.__setattr__(self, "corrections", _choice("corrections", corrections, ("changes", "replace")))
        object.__setattr__(self, "on_late", _choice("on_late", on_late, ("divert", "amend")))
        object.__setattr__(self, "confidence_step", _share("confidence_step", confidence_step, nothing=True))
        if retractions is not None and self.patience.amount:
            raise ConfigError("retractions= chooses the patience, and patience= fixes it: use one of them")

    def __str__(self) -> str:
        parts = [f"max_delay = {self.max_delay}"]
        parts += [f"patience = {self.patience}"] if self.patience.amount else []
        parts += [f"retractions = {self.retractions!r}"] if self.retractions is not None else []
        parts += [f"corrections = {self.corrections}"] if self.corrections != "changes" else []
        parts += [f"confidence_step = {self.confidence_step!r}"] if self.confidence_step else []
        return f"aggressive({', '.join(parts + _late(self.on_late))})"


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


def _share(name: str, value: float | str, nothing: bool = False) -> float:
    """A share as a number or a percentage; ``nothing``: it may be 0."""
    share: object = value
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9.]+\s*%\s*", value):
        with suppress(ValueError):
            share = float(Fraction(value.replace("%", "").strip()) / 100)
    number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not number or not (0 < share < 1 or (nothing and share == 0)):  # type: ignore[operator]  # it is a number
        allowed = "from 0 (every change is told) to below 1" if nothing else "between 0 and 1"
        example = "0.05 or '5%'" if nothing else "0.99 or '1%'"
        raise ConfigError(f"{name}={value!r}: a share {allowed} is needed, like {example}")
    return float(share)  # type: ignore[arg-type]


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r}: allowed are {options(map(repr, allowed))}")
    return value


def _late(on_late: str) -> list[str]:
    return [f"on_late = {on_late}"] if on_late != "divert" else []


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
