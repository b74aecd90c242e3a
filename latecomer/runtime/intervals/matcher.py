"""Interval matcher: the deltas that a batch makes to a query's matches and to their confidences.

The set of matches *with their confidences* is a function of the set of events. A batch changes it by

* new matches: those with at least one new positive. Each is found once, from its last component that is new, as in
  :mod:`latecomer.runtime.sequence`: components before it see all events, those after it only the old ones;
* moved confidences: old matches that a new event may spoil. They are derived again around each new negative (under
  skip-till-next-match around each new rival too), by the least one that concerns them, and answered twice: with what
  was known before the batch, and with what is known now. Where the two differ the old revision is deleted and the new
  one inserted, as far as each passes the query's threshold.

Joins work on whole intervals: an event is a partner iff the valid bounds of the chain with it are not empty. Nothing
is expanded to points before a confidence is computed. So net output does not depend on order of arrival or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from latecomer.consistency.levels import Aggressive
from latecomer.query.expressions import variables
from latecomer.query.plan import Confidence
from latecomer.runtime.intervals.chains import Chain, Chains, Place, distinct
from latecomer.runtime.intervals.confidence import confidence
from latecomer.runtime.intervals.drift import Drift
from latecomer.runtime.intervals.memo import Memo, signatures
from latecomer.runtime.intervals.pattern import IntervalPattern
from latecomer.runtime.intervals.pmf import F64, Distributions
from latecomer.runtime.intervals.question import Answer, Hits, Question, Scope
from latecomer.runtime.intervals.spans import SpanStore
from latecomer.runtime.intervals.ways import Budget
from latecomer.runtime.pattern import JoinOrder, Probe, Step, Test, Tester
from latecomer.runtime.rows import expand
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64, Array, every, some
from latecomer.storage.hashing import U64
from latecomer.storage.store import Bools, CodeLayout, View

#: A threshold is met from so little below it: sums of products of fractions are not exact in float64.
TOLERANCE = 1e-9
_PIECE = 1 << 15  # candidates whose confidences are asked for at once


class Timing(Protocol):
    """What is known about when events happened; events are given by reference."""

    def bounds(self, refs: I64) -> tuple[I64, I64]:
        """First and last possible time."""
        ...

    def distributions(self, refs: I64) -> Distributions:
        """How likely each time between them is."""
        ...


@dataclass(frozen=True, slots=True)
class Revision:
    """Matches that the output gains (``insert``) or loses, with what is said of them.

    ``rows`` bind the positives. ``earliest`` and ``latest`` hold an array for each positive, in pattern order. A
    confidence is NaN where it is too costly to compute and the query does not allow sampling; ``error`` is the most
    that its standard error can be, 0 where it is exact. ``cause``: where a confidence has moved, the reference of the
    new event that moved it (one of them).
    """

    insert: bool
    rows: Chains
    confidence: F64
    error: F64
    earliest: list[I64]
    latest: list[I64]
    cause: I64 | None = None

    def take(self, at: I64) -> Revision:
        first, last = [e.take(at) for e in self.earliest], [e.take(at) for e in self.latest]
        cause = None if self.cause is None else self.cause.take(at)
        return Revision(
            self.insert, self.rows.take(at), self.confidence.take(at), self.error.take(at), first, last, cause
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """Hits in one view: candidate, negation, reference."""

    owner: I64
    guard: I64
    ref: I64


class IntervalMatcher:
    """Deltas of one query over span stores. Stage events in the stores, take all of :meth:`step`, commit the stores."""

    def __init__(
        self,
        pattern: IntervalPattern,
        store_of: Callable[[Selection], SpanStore],
        layout: CodeLayout,
        timing: Timing,
        tester: Tester,
        least: Confidence,
        steps: float = 1e8,
        moved: float = 0.0,
    ) -> None:
        """``steps``: what one exact confidence may cost; ``moved``: a revision replaces another when the confidence
        has moved by more than that.
        """
        self._pattern, self._store, self._layout, self._timing, self._tester = pattern, store_of, layout, timing, tester
        self._least, self._budget = least, Budget.for_error(least.error, steps, least.least)
        self.drift = Drift(moved)
        self._memo = Memo() if isinstance(pattern.plan.level, Aggressive) and pattern.deletes else None
        self._steps = 0.0
        self._positives = pattern.positives
        self._chain = Chain(self._positives, self._positives)
        self._scopes: list[Scope] = list(dict.fromkeys((n.left, n.right) for n in pattern.plan.negations))
        self._scope_of = np.array([self._scopes.index((n.left, n.right)) for n in pattern.plan.negations] or [0])
        self._chains: dict[tuple[int, ...], Chain] = {}
        self._places: dict[tuple[int, tuple[int, ...]], Place] = {}
        types = {c.index: c.type for c in pattern.components}
        # Positives by which it may differ what a candidate's hits are, besides the key.
        negatives = [(n.component, {v for c in n.conjuncts for v in variables(c)}) for n in pattern.plan.negations]
        self._decisive = [
            j
            for j, c in enumerate(pattern.plan.positives)
            if any(c.var in named or c.type == negative.type for negative, named in negatives)
        ]
        self._twins = {i: [p for p in self._positives if types[p] == types[i] and p != i] for i in types}

    # --- deltas ------------------------------------------------------------------------------------------------------

    def step(self) -> Iterator[Revision]:
        """All changes that the staged events make, deletions of a match before its insertion."""
        yield from self.moved()
        for rows in self.candidates():
            now = self.assess(rows)
            if len(now.rows):
                yield now

    def candidates(self) -> Iterator[Chains]:
        """New candidates: they have a new positive, and may be a match in some world; in bounded pieces."""
        for order in self._pattern.inserts:

            def view(index: int, seed: int = order.seed) -> View:
                return View.ALL if index < seed else View.OLD

            for rows in self._complete(order, self._seeds(order), view, View.ALL):
                yield from self._pieces(rows)

    def assess(self, rows: Chains, view: View = View.ALL) -> Revision:
        """Those of the candidates that pass the threshold, by what the view holds."""
        hits = self._hits(rows, view)
        now = self._answer(rows, [hits])
        self._steps += now.steps
        if self._memo is not None:
            self._memo.keep(self._names(rows), self._signed(rows, hits), now)
        found = _revision(True, rows, now)
        passes = self._passes(now)
        return found if every(passes) else found.take(passes.nonzero()[0])

    def moved(self, left: Callable[[Chains], Bools] | None = None) -> Iterator[Revision]:
        """Old matches whose confidence the staged events have changed; of those that ``left`` marks (None: all)."""
        for j, order in enumerate(self._pattern.deletes):
            for found in self._complete(order, self._seeds(order), lambda _: View.OLD):
                for piece in self._pieces(found):
                    yield from self._compared(j, order, piece, left)

    def _compared(
        self, j: int, order: JoinOrder, found: Chains, left: Callable[[Chains], Bools] | None
    ) -> Iterator[Revision]:
        cause, rows = found.ref(order.seed), found.unbind(order.seed)
        new = self._hits(rows, View.NEW)
        # Of several new events that concern a match the first one reports it.
        own = (new.guard < j) | ((new.guard == j) & (new.ref < cause.take(new.owner)))
        mask = np.ones(len(rows), bool)
        mask[new.owner[own]] = False
        if left is not None:
            mask &= left(rows)
        if not every(mask):
            at = mask.nonzero()[0]
            if not len(at):
                return
            cause, rows = cause.take(at), rows.take(at)
            new = self._hits(rows, View.NEW)
        old = self._hits(rows, View.OLD)
        signs = self._signed(rows, old)
        before, now = self._recalled(rows, old, signs), self._answer(rows, [old, new])
        self._steps += before.steps + now.steps
        if self._memo is not None:
            self._memo.keep(self._names(rows), signs + self._signed(rows, new), now)
        was, passes = self._passes(before), self._passes(now)
        gone, shown, come = self.drift.replace(rows, self._positives, before, now, was, passes)
        if len(gone):
            yield _revision(False, rows, shown, cause).take(gone)
        if len(come):
            yield _revision(True, rows, now, cause).take(come)

    def spent(self) -> int:
        """The steps that confidences have taken since this was last asked."""
        steps, self._steps = int(self._steps), 0.0
        return steps

    def chains(self, refs: Sequence[I64], keys: U64) -> Chains:
        """Complete candidates of these positives, in pattern order."""
        chains = Chains.begin(len(self._pattern.components), 0, refs[0], refs[0], refs[0], keys).unbind(0)
        for index, ref in zip(self._positives, refs, strict=True):
            chains.refs[index] = ref
            chains.ts[index], chains.uppers[index] = self._timing.bounds(ref)
        return chains

    def around(self, order: JoinOrder, refs: I64, hashes: U64) -> Iterator[Chains]:
        """What events that are not in the stores would complete (as a positive), or may spoil (as a negative): the
        candidates around each of them, with the seed bound to it.
        """
        lower, upper = self._timing.bounds(refs)
        size, keys = len(self._pattern.components), self._layout.keys(hashes)
        seeds = Chains.begin(size, order.seed, refs, lower, upper, keys)
        yield from self._complete(order, seeds, lambda _: View.OLD)

    def passing(self, rows: Chains) -> Bools:
        """Which complete candidates pass the threshold, by what is committed."""
        return self._passes(self._answer(rows, [self._hits(rows, View.OLD)]))

    def _passes(self, answer: Answer) -> Bools:
        """Which matches the query asks for; what is not known is not kept back."""
        least, value = self._least, answer.confidence
        if not least.least and not least.inclusive:
            return (value > 0) | (answer.error > 0) | np.isnan(value)
        over = value >= least.least - TOLERANCE if least.inclusive else value > least.least + TOLERANCE
        return (over & (value > 0)) | np.isnan(value)

    # --- joins -------------------------------------------------------------------------------------------------------

    def _seeds(self, order: JoinOrder) -> Chains:
        staged = self._store(order.selection).staged
        lower, upper = self._timing.bounds(staged.refs)
        return Chains.begin(len(self._pattern.components), order.seed, staged.refs, lower, upper, staged.keys)

    def _complete(
        self, order: JoinOrder, rows: Chains, view: Callable[[int], View], sure: View = View.OLD
    ) -> Iterator[Chains]:
        """All candidates around the seeds, in bounded pieces, but for some that events of ``sure`` spoil for sure."""
        if not len(rows) or any(self._store(s.selection).count(view(s.index)) == 0 for s in order.steps):
            return
        left = self._kept(rows, order.tests)
        for probe in order.negations:
            left = self._spared(left, probe, sure)
        if len(left):
            yield from self._extend(left, order.steps, view, sure)

    def _extend(
        self, rows: Chains, steps: tuple[Step, ...], view: Callable[[int], View], sure: View
    ) -> Iterator[Chains]:
        """Depth first, so that at most one piece per component is held at a time."""
        if not steps:
            yield rows
            return
        step = steps[0]
        place = self._place(step.index, step.bound)
        store, seen = self._store(step.selection), view(step.index)
        lo, hi = place.times(rows)
        able = (lo <= store.latest(seen)) & (lo <= hi)
        if not every(able):
            at = able.nonzero()[0]
            if not len(at):
                return
            rows, lo, hi = rows.take(at), lo.take(at), hi.take(at)
        for owner, refs in self._partners(rows, step, lo, hi, seen):
            lower, upper = self._timing.bounds(refs)
            near = (upper >= lo.take(owner)).nonzero()[0]
            extended = rows.bound(step.index, owner[near], refs[near], lower[near], upper[near])
            extended = self._fitting(step, extended, place)
            for probe in step.negations:
                extended = self._spared(extended, probe, sure)
            if len(extended):
                yield from self._extend(extended, steps[1:], view, sure)

    def _partners(self, rows: Chains, step: Step, lo: I64, hi: I64, view: View) -> Iterator[tuple[I64, I64]]:
        keys = rows.keys if step.carried else self._layout.keys(self._tester.hashes(step, rows))
        hits = list(self._store(step.selection).probe(keys, lo, hi, view))
        for owner, refs, _ in expand(hits, len(rows), False):
            yield owner, refs

    def _fitting(self, step: Step, rows: Chains, place: Place) -> Chains:
        """The rows whose event ``step.index`` is another one than the others, agrees with them, and can be there."""
        twins = [i for i in self._twins[step.index] if rows.refs[i] is not None]
        mask = place.possible(rows)
        if twins:
            mask &= distinct(rows, step.index, twins)
        if not every(mask):
            rows = rows.take(mask)
        same = self._tester.agrees(step, rows) if len(rows) else None
        if same is not None and not every(same):
            rows = rows.take(same)
        return self._kept(rows, step.tests)

    def _spared(self, rows: Chains, probe: Probe, view: View) -> Chains:
        """The rows for which no event is found that lies in the probe's scope in every world.

        Only one event that is sure by its lower end and the longest length is looked at for each row: what this leaves
        has confidence 0 in the end. Skip-till-next-match lives by it, since most candidates skip an event for sure.
        """
        step, negation = probe.step, probe.negation
        store = self._store(step.selection)
        if not len(rows) or not store.count(view):
            return rows
        bound = tuple(i for i in self._positives if rows.refs[i] is not None)
        chain = self._chains.get(bound)
        if chain is None:
            chain = self._chains[bound] = Chain(bound, self._positives)
        earliest, latest, _ = rows.bounds(chain, self._pattern.window)
        left = None if negation.left is None else bound.index(self._positives[negation.left])
        right = None if negation.right is None else bound.index(self._positives[negation.right])
        lo = latest[-1] - self._pattern.window if left is None else latest[left] + 1
        hi = earliest[0] + self._pattern.window if right is None else earliest[right] - 1
        keys = rows.keys if step.carried else self._layout.keys(self._tester.hashes(step, rows))
        dead = np.zeros(len(rows), bool)
        for hit in store.within(keys, lo, hi, view):
            owner = (hit.count * ~dead).nonzero()[0]
            refs = hit.run.refs.take(hit.first.take(owner))
            number = Numbered(rows.bound(step.index, owner, refs, *self._timing.bounds(refs)), owner)
            same = self._tester.agrees(step, number)
            found = self._kept(number if same is None else number.take(same), step.tests)
            assert isinstance(found, Numbered)
            dead[found.owner] = True
        return rows.take(~dead) if some(dead) else rows

    def _kept(self, rows: Chains, tests: Sequence[Test]) -> Chains:
        for test in tests:
            if len(rows):
                mask = self._tester.passes(test, rows)
                if not every(mask):
                    rows = rows.take(mask)
        return rows

    def _place(self, index: int, bound: tuple[int, ...]) -> Place:
        place = self._places.get((index, bound))
        if place is None:
            place = self._places[index, bound] = Place(index, bound, self._positives, self._pattern.window)
        return place

    # --- confidence --------------------------------------------------------------------------------------------------

    def _pieces(self, rows: Chains) -> Iterator[Chains]:
        for start in range(0, len(rows), _PIECE):
            yield rows if len(rows) <= _PIECE else rows.take(np.arange(start, min(start + _PIECE, len(rows))))

    def _hits(self, rows: Chains, view: View) -> _Found:
        """The events that may spoil complete candidates."""
        owners: list[I64] = [_NONE]
        guards: list[I64] = [_NONE]
        refs: list[I64] = [_NONE]
        for j, probe in enumerate(self._pattern.probes):
            step = probe.step
            if not self._store(step.selection).count(view):
                continue
            place = self._place(step.index, self._positives)
            lo, hi = place.times(rows)
            for owner, found in self._partners(rows, step, lo, hi, view):
                lower, upper = self._timing.bounds(found)
                near = (upper >= lo.take(owner)).nonzero()[0]
                number = Numbered(
                    rows.bound(step.index, owner[near], found[near], lower[near], upper[near]), owner[near]
                )
                left = self._fitting(step, number, place)
                assert isinstance(left, Numbered)
                owners.append(left.owner)
                guards.append(np.full(len(left), j))
                refs.append(left.ref(step.index))
        return _Found(np.concatenate(owners), np.concatenate(guards), np.concatenate(refs))

    def _answer(self, rows: Chains, hits: Sequence[_Found]) -> Answer:
        """Confidences and ranges of complete candidates, given what may spoil them."""
        earliest, latest, _ = rows.bounds(self._chain, self._pattern.window)
        owner, guard, ref = (np.concatenate([getattr(h, name) for h in hits]) for name in ("owner", "guard", "ref"))
        own = [rows.ref(i) for i in self._positives]
        known, which = np.unique(np.concatenate([*own, ref]), return_inverse=True)
        numbers = np.split(which, np.arange(1, len(own) + 1) * len(rows))
        question = Question(
            self._timing.distributions(known),
            numbers[:-1],
            earliest,
            latest,
            Hits(owner, self._scope_of.take(guard), numbers[-1]),
            self._scopes,
            self._pattern.window,
            partial(self._timely, rows) if self._pattern.time_tests else None,
            [rows.keys.view(np.int64), *(own[j] for j in self._decisive)],
        )
        return confidence(question, self._budget)

    def _recalled(self, rows: Chains, hits: _Found, signs: U64) -> Answer:
        """The answer as it was before the batch, computed only where nobody remembers."""
        if self._memo is None or not len(self._memo):
            return self._answer(rows, [hits])
        known, answer = self._memo.recall(self._names(rows), signs, len(self._positives))
        if not every(known):
            left = (~known).nonzero()[0]
            mine = (~known.take(hits.owner)).nonzero()[0]
            place = np.cumsum(~known) - 1
            few = _Found(place.take(hits.owner.take(mine)), hits.guard.take(mine), hits.ref.take(mine))
            fresh = self._answer(rows.take(left), [few])
            answer.confidence[left], answer.error[left] = fresh.confidence, fresh.error
            for ours, theirs in zip((*answer.earliest, *answer.latest), (*fresh.earliest, *fresh.latest), strict=True):
                ours[left] = theirs
            answer = replace(answer, steps=fresh.steps)
        return answer

    def _names(self, rows: Chains) -> list[tuple[int, ...]]:
        return list(zip(*(rows.ref(i).tolist() for i in self._positives), strict=True))

    def _signed(self, rows: Chains, hits: _Found) -> U64:
        return signatures(len(rows), hits.owner, hits.guard, hits.ref)

    def _timely(self, rows: Chains, at: I64, times: Sequence[I64]) -> Bools:
        """Where the rows ``at`` pass the query's time tests, if they happened at ``times``."""
        mask = np.ones((len(at), *([1] * (times[0].ndim - 1))), bool)
        for test in self._pattern.time_tests:
            needed = [j for j, index in enumerate(self._positives) if index in test.needs]
            columns = np.broadcast_arrays(*(times[j] for j in needed))
            wide = rows.take(at.repeat(columns[0].size // len(at)))
            for j, column in zip(needed, columns, strict=True):
                wide.ts[self._positives[j]] = column.reshape(-1)
            mask = mask & self._tester.passes(test, wide).reshape(columns[0].shape)
        return mask


class Numbered(Chains):
    """Chains that remember which row they extend."""

    __slots__ = ("owner",)

    def __init__(self, chains: Chains, owner: I64) -> None:
        super().__init__(chains.refs, chains.ts, chains.uppers, chains.keys)
        self.owner = owner

    def take(self, which: Array) -> Numbered:
        at = which.nonzero()[0] if which.dtype == bool else which
        return Numbered(super().take(at), self.owner.take(at))


def _revision(insert: bool, rows: Chains, answer: Answer, cause: I64 | None = None) -> Revision:
    return Revision(insert, rows, answer.confidence, answer.error, answer.earliest, answer.latest, cause)


_NONE = np.zeros(0, np.int64)
