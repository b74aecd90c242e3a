"""Pattern: a plan bound to a schema. Which equalities may be hashed, in what order components are joined, what is
tested when.

Rules:
* Equal values may be *proposed* by hashes; each link is verified on real values afterwards.
* ``[attr]`` and conjuncts ``a.x = b.y`` over columns of one type make join keys, closed under transitivity among the
  positives of a match and at most one negative: a negative only testifies about the candidates it is joined with.
* A test runs as soon as the components that it names are bound; a negation as soon as its scope is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from latecomer.query.expressions import Attribute, Expr, equality, variables
from latecomer.query.plan import Negation, Plan
from latecomer.query.types import EVENT_TIME
from latecomer.runtime.evaluate import Condition, Lookup, Times, compile_truth
from latecomer.runtime.rows import Rows
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64
from latecomer.storage.hashing import hash_columns
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools

#: An attribute of a component: (component index, attribute name).
Place = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Link:
    """The component being bound must have ``attr`` equal to ``other``'s ``other_attr``."""

    attr: str
    other: int
    other_attr: str


@dataclass(frozen=True, slots=True)
class Test:
    """A conjunct on candidate rows; ``needs`` are the component indexes that it names."""

    expr: Expr
    needs: frozenset[int]
    condition: Condition = field(compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """Bind component ``index`` to events of ``selection`` that agree on ``links``.

    ``carried``: the key of the whole pattern is the one to probe with, and rows carry its hash. ``tests`` and
    ``negations`` become decidable by this step.
    """

    index: int
    bound: tuple[int, ...]
    selection: Selection
    links: tuple[Link, ...]
    carried: bool
    tests: tuple[Test, ...] = ()
    negations: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """How to complete matches from a seed component, kept by the pattern's key: what the seed decides alone, then the
    steps."""

    seed: int
    selection: Selection
    tests: tuple[Test, ...]
    negations: tuple[Probe, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """How to look for negatives of one negation around (partial) matches in which its scope is fixed.

    ``bounds``: a negative between two neighbours kills whatever it is, so the one nearest to the neighbour that is
    bound already bounds the time of the other one.
    """

    step: Step
    negation: Negation
    bounds: bool = False


class Pattern:
    """The joins of one query. ``inserts`` holds one order for each positive; ``deletes`` and ``probes`` one for each
    negation."""

    def __init__(self, plan: Plan, window: int, types: Mapping[str, pa.DataType], times: Times) -> None:
        self.plan, self.window, self._types, self.times = plan, window, types, times
        self.components = plan.components
        self.positives = tuple(c.index for c in plan.positives)
        self._by_var = {c.var: c.index for c in self.components}
        self._key = tuple(sorted(plan.key))
        self._tests = tuple(self._test(e) for e in plan.conjuncts)
        self._negation_tests = tuple(tuple(self._test(e) for e in n.conjuncts) for n in plan.negations)
        self.probes = tuple(self._probe(j, self.positives) for j in range(len(plan.negations)))
        self.inserts = tuple(self._order(i, None) for i in self.positives)
        self.deletes = tuple(self._order(n.component.index, j) for j, n in enumerate(plan.negations))

    def selections(self) -> set[Selection]:
        """Every store that the joins look at."""
        orders = (*self.inserts, *self.deletes)
        steps = [s for o in orders for s in o.steps] + [p.step for p in self.probes]
        return {o.selection for o in orders} | {s.selection for s in steps}

    def index_of(self, var: str) -> int:
        """The component that a variable names."""
        return self._by_var[var]

    def _test(self, expr: Expr) -> Test:
        needs = frozenset(self._by_var[v] for v in variables(expr))
        return Test(expr, needs, compile_truth(expr, self.times))

    # --- links -------------------------------------------------------------------------------------------------------

    def _classes(self, negation: int | None) -> list[frozenset[Place]]:
        """Sets of attributes that are equal in every match (joined with a negative of ``negation``)."""
        allowed = set(self.positives)
        conjuncts = list(self.plan.conjuncts)
        if negation is not None:
            allowed.add(self.plan.negations[negation].component.index)
            conjuncts += self.plan.negations[negation].conjuncts
        groups: list[set[Place]] = [{(i, attr) for i in allowed} for attr in self.plan.key]
        for conjunct in conjuncts:
            sides = equality(conjunct)
            if sides is not None and self._hashable(*sides):
                groups.append({(self._by_var[s.var], s.name) for s in sides})
        merged: list[set[Place]] = []
        for group in groups:
            for other in [m for m in merged if m & group]:
                merged.remove(other)
                group |= other
            merged.append(group)
        return [frozenset(m) for m in merged]

    def _hashable(self, left: Attribute, right: Attribute) -> bool:
        kinds = [pa.int64() if a.name == EVENT_TIME else self._types[a.name] for a in (left, right)]
        return bool(kinds[0] == kinds[1])

    def _links(self, index: int, bound: Iterable[int], classes: list[frozenset[Place]]) -> tuple[Link, ...]:
        """One link for each attribute of ``index`` that some bound component determines, the earliest bound first."""
        links: dict[str, Link] = {}
        for cls in classes:
            for _, attr in sorted(p for p in cls if p[0] == index):
                for other in bound:
                    attrs = sorted(a for i, a in cls if i == other)
                    if attrs and attr not in links:
                        links[attr] = Link(attr, other, attr if attr in attrs else attrs[0])
        return tuple(links[a] for a in sorted(links))

    # --- orders ------------------------------------------------------------------------------------------------------

    def _order(self, seed: int, negation: int | None) -> JoinOrder:
        """Components in the order of most links, then nearest in the pattern: the tightest time range; of two equally
        near the later one, since most seeds are newer than all that is known and find nothing after them.
        """
        classes = self._classes(negation)
        bound = [seed]
        left = [i for i in self.positives if i != seed]
        plain: list[tuple[int, tuple[int, ...], tuple[Link, ...]]] = []
        while left:
            index = min(left, key=lambda i: (-len(self._links(i, bound, classes)), min(abs(i - b) for b in bound), -i))
            plain.append((index, tuple(bound), self._links(index, bound, classes)))
            bound.append(index)
            left.remove(index)
        selection = Selection.of(self.components[seed], self._key)
        tests = self._tests + (self._negation_tests[negation] if negation is not None else ())
        done: set[Test] = set()
        checked: set[int] = set()

        def due(now: tuple[int, ...]) -> tuple[tuple[Test, ...], tuple[Probe, ...]]:
            have = frozenset(now)
            ready = tuple(t for t in tests if t.needs <= have and t not in done)
            fixed = [j for j in range(len(self.plan.negations)) if self._decidable(j, have) and j not in checked]
            done.update(ready)
            checked.update(fixed)
            return ready, tuple(self._probe(j, now) for j in fixed)

        first_tests, first_negations = due((seed,))
        steps = []
        for index, before, links in plain:
            ready, fixed = due((*before, index))
            ready = tuple(t for t in ready if not self._is_link(t, index, links))
            steps.append(self._step(index, before, links, ready, fixed))
        return JoinOrder(seed, selection, first_tests, first_negations, tuple(steps))

    def _step(
        self,
        index: int,
        bound: tuple[int, ...],
        links: tuple[Link, ...],
        tests: tuple[Test, ...],
        negations: tuple[Probe, ...] = (),
    ) -> Step:
        key = tuple(link.attr for link in links)
        carried = key == self._key and all(link.attr == link.other_attr for link in links)
        return Step(index, bound, Selection.of(self.components[index], key), links, carried, tests, negations)

    def _is_link(self, test: Test, index: int, links: tuple[Link, ...]) -> bool:
        """Whether verifying the links says the same as the test."""
        sides = equality(test.expr)
        if sides is None:
            return False
        places = {(self._by_var[s.var], s.name) for s in sides}
        return any(places == {(index, link.attr), (link.other, link.other_attr)} for link in links)

    def _decidable(self, j: int, bound: frozenset[int]) -> bool:
        negation = self.plan.negations[j]
        if negation.kind == "middle":
            ends = {self.positives[negation.left or 0], self.positives[negation.right or 0]}
        else:
            ends = {self.positives[0], self.positives[-1]}
        index = negation.component.index
        return ends <= bound and all(t.needs - {index} <= bound for t in self._negation_tests[j])

    def _probe(self, j: int, bound: tuple[int, ...]) -> Probe:
        """``bound`` may contain another negation's component, which tells nothing about this one."""
        negation = self.plan.negations[j]
        index = negation.component.index
        positives = tuple(i for i in bound if i in self.positives)
        links = self._links(index, positives, self._classes(j))
        tests = tuple(t for t in self._negation_tests[j] if not self._is_link(t, index, links))
        step = self._step(index, positives, links, tests)
        known_before = all(link.other != bound[-1] for link in links)
        return Probe(step, negation, negation.kind == "middle" and step.carried and not tests and known_before)


def time_range(rows: Rows, index: int, bound: Iterable[int], window: int) -> tuple[I64, I64]:
    """The times that component ``index`` may have, both ends included: strictly between its bound neighbours and, at
    either end of the pattern, within the window of the match (design §3).
    """
    before = [b for b in bound if b < index]
    after = [b for b in bound if b > index]
    if not before:
        return rows.time(max(after)) - window, rows.time(min(after)) - 1
    if not after:
        return rows.time(max(before)) + 1, rows.time(min(before)) + window
    return rows.time(max(before)) + 1, rows.time(min(after)) - 1


class Tester:
    """Evaluates tests and links on candidate rows, reading columns from the event log."""

    def __init__(self, log: EventLog, pattern: Pattern) -> None:
        self.log = log
        self._by_var = {c.var: c.index for c in pattern.components}

    def lookup(self, rows: Rows) -> Lookup:
        """Columns of the events that ``rows`` bind, as expressions ask for them."""

        def column(attribute: Attribute) -> pa.Array:
            index = self._by_var[attribute.var]
            if attribute.name == EVENT_TIME:
                return pa.array(rows.time(index))
            return self.log.take(attribute.name, rows.ref(index))

        return column

    def passes(self, test: Test, rows: Rows) -> Bools:
        """The mask of rows on which the test is true."""
        return test.condition(self.lookup(rows), len(rows))

    def agrees(self, step: Step, rows: Rows) -> Bools | None:
        """The mask of rows whose real values agree on the step's links; None when there is none to check."""
        mask: Bools | None = None
        for link in step.links:
            refs, others = rows.ref(step.index), rows.ref(link.other)
            if link.attr == EVENT_TIME or link.other_attr == EVENT_TIME:
                same = self._values(link.attr, step.index, rows) == self._values(link.other_attr, link.other, rows)
            else:
                same = self.log.equal(link.attr, refs, link.other_attr, others)
            mask = same if mask is None else mask & same
        return mask

    def same(self, step: Step, refs: I64, rows: Rows, owner: I64) -> Bools:
        """Whether the events ``refs`` agree on the step's links with the rows at ``owner``."""
        mask: Bools | None = None
        for link in step.links:
            if link.attr == EVENT_TIME or link.other_attr == EVENT_TIME:
                result = self.agrees(step, rows.bind(step.index, owner, refs, self.log.ts(refs)))
                assert result is not None
                return result
            same = self.log.equal(link.attr, refs, link.other_attr, rows.ref(link.other).take(owner))
            mask = same if mask is None else mask & same
        return np.ones(len(refs), bool) if mask is None else mask

    def _values(self, name: str, index: int, rows: Rows) -> I64:
        if name == EVENT_TIME:
            return rows.time(index)
        values: I64 = self.log.take(name, rows.ref(index)).fill_null(0).to_numpy(zero_copy_only=False)
        return values

    def hashes(self, step: Step, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Key hashes to probe the step's selection with, from the bound side of its links."""
        if not step.links:
            return np.zeros(len(rows), np.uint64)
        columns = []
        for link in step.links:
            if link.other_attr == EVENT_TIME:
                columns.append(pa.array(rows.time(link.other)))
            else:
                columns.append(self.log.take(link.other_attr, rows.ref(link.other)))
        return hash_columns(columns)
