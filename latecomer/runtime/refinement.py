"""Refinements: queries whose matches are some of those of another one, which meets fewer conditions.

``SEQ(A a, !B b, C c) WHERE c.x > a.x`` refines ``SEQ(A a, C c)``: what the latter gains and loses with a batch says
what the former does, but for what its own negation takes away. So only the wider query has to join events; the narrower
one tests what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from latecomer.query.expressions import Expr, renamed
from latecomer.query.plan import Negation, Plan
from latecomer.runtime.pattern import Pattern


@dataclass(frozen=True, slots=True)
class Refinement:
    """What a query asks of the matches of a wider one.

    Attributes:
        tests: conditions that the wider one does not have.
        negations: for each negation of the query its number in the wider one; None: it is not there.
    """

    tests: tuple[Expr, ...]
    negations: tuple[int | None, ...]

    @property
    def added(self) -> tuple[int, ...]:
        """The negations that the wider query does not have."""
        return tuple(j for j, other in enumerate(self.negations) if other is None)


def refinement(pattern: Pattern, wider: Pattern) -> Refinement | None:
    """How the matches of ``pattern`` are some of those of another one; None: it cannot be told that they are.

    Both have the same positives, key, window and strategy; the other one has no condition and no negation that
    ``pattern`` lacks, whatever variables are called.
    """
    plan, other = pattern.plan, wider.plan
    alike = (pattern.window, plan.strategy, frozenset(plan.key)) == (wider.window, other.strategy, frozenset(other.key))
    types = [[positive.type for positive in p.positives] for p in (plan, other)]
    if not alike or types[0] != types[1]:
        return None
    names = {theirs.var: ours.var for ours, theirs in zip(plan.positives, other.positives, strict=True)}
    ours, theirs = list(_conditions(plan)), _named(_conditions(other), names)
    negations = _matched(plan.negations, other.negations, names)
    if negations is None or not theirs <= set(ours):
        return None
    return Refinement(tuple(condition for condition in ours if condition not in theirs), negations)


def _conditions(plan: Plan) -> Iterable[Expr]:
    """All conditions on positives."""
    yield from plan.conjuncts
    for positive in plan.positives:
        yield from positive.filter


def _named(conditions: Iterable[Expr], names: Mapping[str, str]) -> set[Expr]:
    return {renamed(condition, lambda name: names.get(name, name)) for condition in conditions}


def _matched(
    ours: Sequence[Negation], theirs: Sequence[Negation], names: Mapping[str, str]
) -> tuple[int | None, ...] | None:
    """For each of our negations its number among the others, in the same order; None: some of those are not ours."""
    found: list[int | None] = []
    number = 0  # of the others, the next one to be found
    for negation in ours:
        same = number < len(theirs) and _same(negation, theirs[number], names)
        found.append(number if same else None)
        number += same
    return tuple(found) if number == len(theirs) else None


def _same(ours: Negation, theirs: Negation, names: Mapping[str, str]) -> bool:
    own, other = ours.component, theirs.component
    names = {**names, other.var: own.var}
    return (
        (own.type, ours.left, ours.right) == (other.type, theirs.left, theirs.right)
        and set(own.filter) == _named(other.filter, names)
        and set(ours.conjuncts) == _named(theirs.conjuncts, names)
    )
