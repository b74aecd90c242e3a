"""Interval pattern: a plan bound to a schema, for events whose times are not known.

It differs from the pattern of certain events in two ways: skip-till-next-match has become negations
(:mod:`~latecomer.runtime.intervals.guards`), and a conjunct on the ``ts`` of positives is no test of candidates, since
it holds in some worlds and not in others. Such *time tests* are evaluated where confidences are, for all combinations
of the candidates' times. What is not allowed is refused: where a negative's ``ts`` is compared, or where
skip-till-next-match would have to choose by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from latecomer.errors import QueryError
from latecomer.query.expressions import Attribute, Expr, attributes
from latecomer.query.plan import Plan
from latecomer.query.syntax import NEXT_MATCH
from latecomer.query.types import EVENT_TIME
from latecomer.runtime.evaluate import Times
from latecomer.runtime.intervals.guards import guarded
from latecomer.runtime.pattern import Pattern, Test


class IntervalPattern(Pattern):
    """The joins of one query over an interval stream (``uncertain``), or over exact times.

    Raises QueryError where ``ts`` is used in a way that has no meaning over intervals.
    """

    def __init__(
        self, plan: Plan, window: int, types: Mapping[str, pa.DataType], times: Times, uncertain: bool = True
    ) -> None:
        timed: tuple[Expr, ...] = ()
        if uncertain:
            plan, timed = _apart(plan)
        super().__init__(guarded(plan), window, types, times)
        self.time_tests: tuple[Test, ...] = tuple(self._test(e) for e in timed)


def _apart(plan: Plan) -> tuple[Plan, tuple[Expr, ...]]:
    """The plan without conjuncts on positives' times, and these."""
    if EVENT_TIME in plan.key:
        raise QueryError(
            f"[{EVENT_TIME}] asks for events at the same time, and in an interval stream nobody knows that",
            hint="events of a match follow each other, so their times differ in any case",
        )
    for negation in plan.negations:
        for conjunct in (*negation.component.filter, *negation.conjuncts):
            named = _named(conjunct)
            if named is not None:
                raise _refused(plan, named, "when an event must not happen is said by where it stands in the pattern")
    timed = [c for c in (*plan.conjuncts, *(f for p in plan.positives for f in p.filter)) if _named(c) is not None]
    if timed and plan.strategy == NEXT_MATCH:
        named = _named(timed[0])
        assert named is not None, "it was chosen by that"
        raise _refused(plan, named, "which event is next would depend on it: use STRATEGY skip-till-any-match")
    positives = tuple(replace(p, filter=tuple(f for f in p.filter if _named(f) is None)) for p in plan.positives)
    conjuncts = tuple(c for c in plan.conjuncts if _named(c) is None)
    return replace(plan, positives=positives, conjuncts=conjuncts), tuple(timed)


def _named(expr: Expr) -> Attribute | None:
    """The first event time that the expression names."""
    return next((a for a in attributes(expr) if a.name == EVENT_TIME), None)


def _refused(plan: Plan, named: Attribute, hint: str) -> QueryError:
    what = f"{named.var}.{EVENT_TIME}"
    at = named.position if plan.text[max(named.position, 0) :].startswith(what) else None
    problem = f"{what} has no one value in an interval stream, so WHERE cannot test it here"
    return QueryError(problem, text=None if at is None else plan.text, position=at, hint=hint)
