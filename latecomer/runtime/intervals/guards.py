"""Guards: skip-till-next-match told as negation, so that one mechanism serves both.

Under skip-till-next-match component j is the *first* event after component j - 1 that fits, so no other event that
fits may lie between the two. That is a negation with the type, filter and key of component j and the scope before it.
An event fits by all that is known when the next component is chosen: the conjuncts whose last component is j, with
this event in its place. Events at the same time as the chosen one are first too, since scopes are open.

A query's own negations stay as they are; they decide about matches and do not take part in choosing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from latecomer.consistency.levels import Aggressive, Level
from latecomer.errors import ConfigError
from latecomer.query.expressions import Attribute, Expr, variables
from latecomer.query.plan import Component, Negation, Plan
from latecomer.query.syntax import NEXT_MATCH


def over_intervals(plan: Plan, uncertain: bool) -> bool:
    """Whether a plan is matched over intervals: the stream's times are uncertain, or the strategy asks for guards."""
    return uncertain or plan.strategy == NEXT_MATCH


def check_level(level: Level | None) -> None:
    """Refuse a level that cannot be kept where one answer may be revised many times (ConfigError)."""
    if isinstance(level, Aggressive) and level.retractions is not None:
        raise ConfigError(
            f"{level}: retractions= counts answers that are taken back, and over intervals or with "
            "skip-till-next-match an answer may be corrected many times: use patience="
        )


def guarded(plan: Plan) -> Plan:
    """The plan with a negation in front of each component but the first, if its strategy is skip-till-next-match.

    Components are numbered anew; the positives keep their order and their variables.
    """
    if plan.strategy != NEXT_MATCH:
        return plan
    place = {c.var: j for j, c in enumerate(plan.positives)}
    parts: list[tuple[Component, Negation | None]] = []
    negations = {n.component.index: n for n in plan.negations}
    for component in plan.components:
        j = place.get(component.var) if not component.negated else None
        if j:  # not the first
            parts.append(_before(plan, j, component))
        parts.append((component, negations.get(component.index)))
    numbered = [(replace(c, index=i), n) for i, (c, n) in enumerate(parts)]
    return replace(
        plan,
        positives=tuple(c for c, n in numbered if n is None),
        negations=tuple(replace(n, component=c) for c, n in numbered if n is not None),
    )


def _before(plan: Plan, j: int, component: Component) -> tuple[Component, Negation]:
    """What must not lie between components j - 1 and j."""
    var = f"{component.var}'"  # no variable of a user's has such a name
    known = {c.var for c in plan.positives[: j + 1]}
    tests = [c for c in plan.conjuncts if component.var in variables(c) and variables(c) <= known]
    rival = replace(component, var=var, negated=True, filter=_renamed(component.filter, component.var, var))
    return rival, Negation(rival, j - 1, j, _renamed(tests, component.var, var))


def _renamed(exprs: Sequence[Expr], old: str, new: str) -> tuple[Expr, ...]:
    def renamed(value: Any) -> Any:
        if isinstance(value, Attribute):
            return replace(value, var=new) if value.var == old else value
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: renamed(getattr(value, f.name)) for f in dataclasses.fields(value)})
        return value

    return tuple(renamed(e) for e in exprs)
