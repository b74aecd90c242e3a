"""Validation: :class:`~latecomer.query.syntax.Draft` -> :class:`~latecomer.query.plan.Plan`, or a QueryError.

This is where a query gets its meaning: variables are bound to components, WHERE is taken apart by what each conjunct
names, and whatever could not be kept is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from latecomer.consistency.levels import CHOICES, Level
from latecomer.errors import QueryError, options
from latecomer.query.expressions import Attribute, Call, Expr, attributes, calls, children, parts, variables
from latecomer.query.plan import Component, Confidence, Negation, Plan
from latecomer.query.syntax import DEFAULT_STRATEGY, NEXT_MATCH, Draft, Returned
from latecomer.query.types import check_clauses
from latecomer.query.unparse import write_plan
from latecomer.stream import Stream
from latecomer.units import Duration

#: A smaller error would draw more than 250,000 worlds for each match.
_LEAST_ERROR = 0.001

#: Columns that every change has; a RETURN field may not take their names.
OUTPUT_COLUMNS = ("op", "query", "match_id", "events", "first_ts", "last_ts")

#: How many levels of operators an expression may have.
DEEPEST = 100

#: Strategies that the field knows and that are not built yet.
OTHER_STRATEGIES = ("strict-contiguity", "partition-contiguity")


def validate(draft: Draft, *, name: str, level: Level | None, text: str | None) -> Plan:
    """The plan of a draft. ``text`` is what the draft was parsed from, for carets (None when it was built in Python).

    Raises QueryError. The level is the draft's own or ``level``; both are allowed only when they are equal.
    """
    check = _Check(draft, text)
    components = check.components()
    filters: dict[str, list[Expr]] = {c.var: [] for c in components}
    counted: dict[str, list[Expr]] = {c.var: [] for c in components if c.negated}
    conjuncts: list[Expr] = []
    for conjunct in draft.conjuncts:
        named = check.named(conjunct)
        check.no_calls(conjunct)
        negative = check.single_negative(conjunct, named & counted.keys())
        if len(named) == 1:
            filters[next(iter(named))].append(conjunct)
        elif negative is not None:
            counted[negative].append(conjunct)
        else:
            conjuncts.append(conjunct)
    returns = check.returns()
    check_clauses(draft.key, draft.conjuncts, [expr for _, expr in returns], Stream(), None, text)
    components = [replace(c, filter=tuple(filters[c.var])) for c in components]
    plan = Plan(
        name=name,
        positives=tuple(c for c in components if not c.negated),
        negations=tuple(_negations(components, counted)),
        key=tuple(dict.fromkeys(draft.key)),
        conjuncts=tuple(conjuncts),
        window=check.window(sum(not c.negated for c in components)),
        returns=tuple(returns),
        strategy=check.strategy(),
        confidence=check.confidence(),
        level=check.level(level),
        text="",
    )
    return replace(plan, text=write_plan(plan))


def _negations(components: Sequence[Component], counted: dict[str, list[Expr]]) -> list[Negation]:
    found: list[Negation] = []
    total = sum(not c.negated for c in components)
    before = 0
    for component in components:
        if component.negated:
            left = before - 1 if before else None
            right = before if before < total else None
            found.append(Negation(component, left, right, tuple(counted[component.var])))
        else:
            before += 1
    return found


@dataclass
class _Check:
    """The rules, each one method; they share the draft and how to point into its text."""

    draft: Draft
    text: str | None

    def fail(self, problem: str, position: int, hint: str | None = None) -> QueryError:
        return QueryError(problem, text=self.text, position=position if position >= 0 else None, hint=hint)

    def components(self) -> list[Component]:
        """PATTERN: variables are unique, those left out get a name (``_2`` for the second), not all are negated."""
        self.negated: dict[str, bool] = {}
        for step in self.draft.steps:
            if not step.type:
                raise self.fail("an event type without a name", step.position, "give the text of the type column")
            if step.var is not None and step.var in self.negated:
                raise self.fail(
                    f"the variable {step.var!r} is declared twice",
                    step.position,
                    f"each component needs its own, like {step.var}1 and {step.var}2",
                )
            if step.var is not None:
                self.negated[step.var] = step.negated
        if all(step.negated for step in self.draft.steps):
            raise self.fail(
                "the pattern has no positive component, so nothing could be a match",
                self.draft.steps[0].position if self.draft.steps else -1,
                "leave '!' off at least one component",
            )
        found = []
        for index, step in enumerate(self.draft.steps):
            var = step.var
            if var is None:
                var = f"_{index + 1}"
                while var in self.negated:
                    var = "_" + var
            found.append(Component(index, step.type, var, step.negated))
        return found

    def shallow(self, expr: Expr) -> None:
        """Everything that walks expressions does so by recursion, here and in the engine."""
        level, depth = [expr], 0
        while level:
            depth += 1
            if depth > DEEPEST:
                raise self.fail(
                    f"an expression is nested too deeply: {DEEPEST} levels are allowed",
                    expr.position,
                    "use fewer parentheses and shorter sums, or IN with a list",
                )
            level = [child for parent in level for child in children(parent)]

    def named(self, expr: Expr) -> frozenset[str]:
        """The variables in ``expr``, all of them declared."""
        self.shallow(expr)
        for part in parts(expr):
            if part.var is not None and part.var not in self.negated:
                raise self.unknown(part.var, part.position)
        return variables(expr)

    def unknown(self, var: str, position: int) -> QueryError:
        near = get_close_matches(var, self.negated, 1)
        guess = f" — did you mean {near[0]!r}?" if near else ""
        declared = f"declared in PATTERN: {', '.join(self.negated)}"
        if not self.negated:
            declared = "PATTERN declares none: a variable follows its type, like SEQ(Shelf s, …)"
        return self.fail(f"unknown variable {var!r}{guess}", position, declared)

    def no_calls(self, conjunct: Expr) -> None:
        for call in calls(conjunct):
            threshold = "a threshold is a clause of its own, like CONFIDENCE >= 0.8"
            times = "times are limited by the order of PATTERN and by WITHIN; conditions compare attributes"
            hint = threshold if call.function == "confidence" else times
            raise self.fail(f"{call.function}(…) belongs in RETURN: it is known of a match only", call.position, hint)

    def single_negative(self, conjunct: Expr, negatives: frozenset[str]) -> str | None:
        if len(negatives) < 2:
            return next(iter(negatives), None)
        seen: list[str] = []
        for attribute in attributes(conjunct):
            if attribute.var in negatives and attribute.var not in seen:
                seen.append(attribute.var)
                second = attribute
        raise self.fail(
            f"this condition links two negated components, {seen[0]!r} and {seen[1]!r}",
            second.position if len(seen) == 2 else conjunct.position,
            "each negation is decided on its own, so a condition may name one negated component and any positive ones",
        )

    def window(self, positives: int) -> Duration:
        window = self.draft.window
        if window is None:
            raise self.fail(
                "WITHIN is missing: it says how much time may pass between the first and the last event of a match",
                -1 if self.text is None else len(self.text.rstrip()),
                "add it after WHERE, like WITHIN 10 minutes; without it nothing could ever be forgotten",
            )
        if window.amount == 0 and positives > 1:
            raise self.fail(
                "WITHIN 0 leaves no match: components follow each other strictly, so their times differ",
                self.draft.window_position,
                "give a longer window",
            )
        return window

    def returns(self) -> list[tuple[str, Expr]]:
        taken: list[str] = []
        found: list[tuple[str, Expr]] = []
        for item in self.draft.returns:
            self.named(item.expr)
            for part in parts(item.expr):
                if part.var is not None and self.negated[part.var]:
                    positives = [v for v, negated in self.negated.items() if not negated]
                    raise self.fail(
                        f"RETURN names {part.var!r}, which is negated: a match has no such event",
                        part.position,
                        f"name positive components: {options(positives)}",
                    )
            alias = self.alias(item)
            if alias in OUTPUT_COLUMNS:
                raise self.fail(
                    f"a field cannot be called {alias!r}: every change has a column of that name",
                    item.position,
                    f"give it another name with AS; taken are {', '.join(OUTPUT_COLUMNS)}",
                )
            if alias in taken:
                raise self.fail(f"two fields are called {alias!r}", item.position, "give each its own name with AS")
            taken.append(alias)
            found.append((alias, item.expr))
        return found

    def alias(self, item: Returned) -> str:
        if item.alias is not None:
            return item.alias
        if isinstance(item.expr, Attribute):
            return item.expr.name
        if isinstance(item.expr, Call):
            return item.expr.function if item.expr.var is None else f"{item.expr.function}_{item.expr.var}"
        raise self.fail("a computed field needs a name", item.position, "name it with AS, like e.ts - s.ts AS took")

    def strategy(self) -> str:
        strategy = self.draft.strategy
        if strategy in (DEFAULT_STRATEGY, NEXT_MATCH):
            return strategy
        known = "is not supported yet" if strategy in OTHER_STRATEGIES else "is not a selection strategy"
        raise self.fail(
            f"{strategy} {known}",
            self.draft.strategy_position,
            f"allowed are {DEFAULT_STRATEGY} (all combinations), the default, and {NEXT_MATCH} (each time the next"
            " event that fits)",
        )

    def confidence(self) -> Confidence:
        found, at = self.draft.confidence, self.draft.confidence_position
        if found is None:
            return Confidence()
        if not found.inclusive and found.least >= 1:
            problem = "CONFIDENCE > 1 leaves no match: what is certain has confidence 1"
            raise self.fail(problem, at, "write CONFIDENCE >= 1 for matches that are certain")
        if found.inclusive and found.least == 0:
            problem = "CONFIDENCE >= 0 says nothing: what cannot be has confidence 0"
            raise self.fail(problem, at, "write CONFIDENCE > 0, which is also the default")
        if found.error is not None and not 0 < found.error < 1:
            problem = f"SAMPLED {found.error:g} is no error to sample with"
            raise self.fail(problem, at, "give the standard error that a confidence may have, like SAMPLED 0.01")
        if found.error is not None and found.error < _LEAST_ERROR:
            worlds = 0.25 / found.error / found.error
            problem = f"SAMPLED {found.error:g} would draw {worlds:.3g} worlds for each match"
            raise self.fail(problem, at, f"the least error is {_LEAST_ERROR:g}")
        return found

    def level(self, given: Level | None) -> Level:
        written = self.draft.level
        if written is not None and given is not None and written != given:
            raise self.fail(
                f"two consistency levels: the text says {written}, level= says {given}",
                self.draft.level_position,
                "give one of them",
            )
        level = written if written is not None else given
        if level is None:
            raise QueryError(
                "the query has no consistency level: how long may it wait, and may it correct itself?",
                hint=f"{CHOICES} In text: CONSISTENCY kslack(5 minutes), CONSISTENCY conservative, or "
                "CONSISTENCY aggressive(max_delay = 5 minutes, patience = 10 seconds)",
            )
        return level
