"""Plan: what a query asks for, taken apart so that an engine can run it without looking at the text again.

Rules kept here: WHERE is split at its top-level ANDs. A conjunct that names one component only is its *filter*; one
that names a negative (and any positives) says which of its events count; all others constrain the match. ``[attr]`` in
WHERE means that all components, negatives too, agree on ``attr``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as Choice

from latecomer.consistency.levels import Level
from latecomer.query.expressions import Expr
from latecomer.units import Duration


@dataclass(frozen=True, slots=True)
class Component:
    """One event of the pattern.

    ``index`` counts all components from 0 in pattern order; ``filter`` holds the conjuncts that name this one alone.
    """

    index: int
    type: str
    var: str
    negated: bool
    filter: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Negation:
    """A negated component and its scope, open at its neighbours.

    Scopes are: middle ``(ti, tj)``; leading ``[tn - W, t1)``; trailing ``(tn, t1 + W]``. ``left`` and ``right`` are the
    numbers (from 0, among the positives) of the nearest positive on each side, None where there is none. ``conjuncts``
    name this component and at least one positive.
    """

    component: Component
    left: int | None
    right: int | None
    conjuncts: tuple[Expr, ...] = ()

    @property
    def kind(self) -> Choice["leading", "middle", "trailing"]:
        return "leading" if self.left is None else "trailing" if self.right is None else "middle"


@dataclass(frozen=True, slots=True)
class Confidence:
    """How probable a match must be: ``> least``, or ``>= least`` where ``inclusive``.

    ``error``: where computing a confidence exactly would cost too much, it may be sampled with this standard error.
    """

    least: float = 0.0
    inclusive: bool = False
    error: float | None = None

    def __str__(self) -> str:
        sampled = "" if self.error is None else f" SAMPLED {self.error!r}"
        return f"{'>=' if self.inclusive else '>'} {self.least!r}{sampled}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A validated query.

    Attributes:
        name: the query's name.
        positives: components that a match consists of, in pattern order.
        negations: components that must not occur, in pattern order.
        key: attributes of ``[…]``, on which all components agree.
        conjuncts: conjuncts that name no negative and are no filter (two or more positives, or no variable at all).
        window: the most that may pass between a match's first and last event.
        returns: output columns: (alias, expression over positives).
        strategy: the selection strategy.
        level: the consistency level.
        text: the query's canonical text, from which the same plan can be made again (without name and level).
        confidence: how probable a match must be.
    """

    name: str
    positives: tuple[Component, ...]
    negations: tuple[Negation, ...]
    key: tuple[str, ...]
    conjuncts: tuple[Expr, ...]
    window: Duration
    returns: tuple[tuple[str, Expr], ...]
    strategy: str
    level: Level
    text: str
    confidence: Confidence = Confidence()

    @property
    def components(self) -> tuple[Component, ...]:
        """All components in pattern order."""
        return tuple(sorted((*self.positives, *(n.component for n in self.negations)), key=lambda c: c.index))

    @property
    def types(self) -> tuple[str, ...]:
        """The event types that the query looks at, each once, in pattern order."""
        return tuple(dict.fromkeys(c.type for c in self.components))

    @property
    def negates_both_ends(self) -> bool:
        """Whether there are a leading and a trailing negation, so that a match has to do with two windows of events."""
        return {"leading", "trailing"} <= {negation.kind for negation in self.negations}
