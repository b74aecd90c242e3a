"""Draft: a query as it was written, in text or in Python, before anything is checked.

The parser and the builder both end here, and :mod:`latecomer.query.validate` starts here, so the two ways of writing a
query cannot drift apart. Positions are offsets into the text, -1 for what was built in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.consistency.levels import Level
from latecomer.query.expressions import Expr
from latecomer.query.plan import Confidence
from latecomer.units import Duration

#: The selection strategy that is used when none is named, and the other one.
DEFAULT_STRATEGY = "skip-till-any-match"
NEXT_MATCH = "skip-till-next-match"


@dataclass(frozen=True, slots=True)
class Step:
    """One component of PATTERN; ``var`` is None where the query does not name it."""

    type: str
    var: str | None
    negated: bool
    position: int = -1


@dataclass(frozen=True, slots=True)
class Returned:
    """One item of RETURN; ``alias`` is None where there is no AS."""

    expr: Expr
    alias: str | None
    position: int = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """All clauses. ``conjuncts`` is WHERE split at its top-level ANDs, without the ``[…]``, which are ``key``."""

    steps: tuple[Step, ...]
    key: tuple[str, ...] = ()
    conjuncts: tuple[Expr, ...] = ()
    window: Duration | None = None
    window_position: int = -1
    returns: tuple[Returned, ...] = ()
    strategy: str = DEFAULT_STRATEGY
    strategy_position: int = -1
    confidence: Confidence | None = None
    confidence_position: int = -1
    level: Level | None = None
    level_position: int = -1
