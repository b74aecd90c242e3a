"""WinSeq and WinNeg: the deltas that a batch makes to a query's set of matches.

The set of matches is a function of the set of events, so a batch of events, late or not, positive or negative,
changes it by

* insertions: each match with at least one new positive, unless some negative, old or new, falls in a scope of it.
  Components take in their new events one at a time: from the new events of component i, components before i see all
  events and those after it only the old ones, so that each new match is found once, from its last component that is
  new;
* deletions: each old match in whose scope a new negative falls, unless an old negative had killed it before. A match
  that several new negatives kill is reported by the first of them alone (least negation, then least reference).

Here in NumPy, all rows a component further at a time; :mod:`latecomer.runtime.follow` goes the same way compiled, and
is compared with this. This is Liu 2012, Algorithms 3 and 4, for whole batches; the checks against old negatives come
from the state *before* the batch, which is the order of steps that makes corrections right (§3.6.2 there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from latecomer.runtime.pattern import JoinOrder, Pattern, Probe, Step, Test, Tester, time_range
from latecomer.runtime.rows import Answer, Pairs, Rows, pairs
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64, every, some
from latecomer.storage.hashing import U64
from latecomer.storage.store import Bools, CodeLayout, Store, View

StoreOf = Callable[[Selection], Store]


class SequenceMatcher:
    """Deltas of one query over its lane's stores."""

    def __init__(self, pattern: Pattern, store_of: StoreOf, layout: CodeLayout, tester: Tester) -> None:
        self._pattern, self._store, self._layout, self._tester = pattern, store_of, layout, tester
        self._components = len(pattern.components)
        #: What orders begin with: the new events of these stores.
        self._gaining_from = [store_of(order.selection) for order in pattern.inserts]
        self._losing_from = [store_of(order.selection) for order in pattern.deletes]

    def inserted(self, ordered: bool) -> Iterator[Rows]:
        """New matches that no known negative kills, in bounded pieces.

        ``ordered``: every new event is at least as late as every old one (a sorted admission), so each new match ends
        with a new event: only the last component is tried, in order of time, and matches come in order of their last
        event.
        """
        last = len(self._gaining_from) - 1
        for position, store in enumerate(self._gaining_from):
            if len(store.staged.refs) and (position == last or not ordered):
                yield from self._gained(position, self._seeds(self._pattern.inserts[position], store), ordered)

    def deleted(self) -> Iterator[tuple[Rows, I64]]:
        """Old matches that a new negative kills and no old one had killed, each once, in bounded pieces, with the
        references of the negatives.
        """
        for j, store in enumerate(self._losing_from):
            if len(store.staged.refs):
                yield from self._lost(j, self._seeds(self._pattern.deletes[j], store))

    def answer(self, query: int) -> Answer | None:
        """All changes in one call, which only compiled matchers know how to make."""
        return None

    def _gained(self, position: int, seeds: Rows, ordered: bool) -> Iterator[Rows]:
        """New matches whose last new component, in the order of :attr:`Pattern.inserts`, is this one: ``seeds``."""
        order = self._pattern.inserts[position]
        if ordered:
            seeds = seeds.take(seeds.time(order.seed).argsort(kind="stable"))

        def view(index: int) -> View:
            return View.ALL if ordered or index < order.seed else View.OLD

        yield from self._complete(order, seeds, view, View.ALL, ordered)

    def _lost(self, j: int, seeds: Rows) -> Iterator[tuple[Rows, I64]]:
        """Old matches that new negatives of negation ``j``, bound in ``seeds``, kill."""
        order = self._pattern.deletes[j]
        alone = self._alone(order, self._pattern.probes[j])
        for rows in self._complete(order, seeds, lambda _: View.OLD, View.OLD, False):
            dead = np.zeros(len(rows), bool)
            for earlier in range(j if alone else j + 1):
                self._mark(rows, self._pattern.probes[earlier], View.NEW, dead, order.seed if earlier == j else None)
            if not every(dead):
                left = rows.take(~dead)
                yield left.unbind(order.seed), left.ref(order.seed)

    def _alone(self, order: JoinOrder, probe: Probe) -> bool:
        """Whether no two new negatives have one key, so that none of them kills what another one does: as it is in most
        small batches.
        """
        if not probe.step.carried or not probe.step.links:
            return False
        keys = np.sort(self._store(order.selection).staged.keys)
        return every(keys[1:] != keys[:-1])

    def around(self, order: JoinOrder, refs: I64, ts: I64, hashes: U64) -> Iterator[Rows]:
        """What events that are not in the stores would complete (as a positive), or would kill (as a negative): the
        live matches around each of them, the seed component bound to it.
        """
        yield from self._around(order, Rows.seed(self._components, order.seed, refs, ts, self._layout.keys(hashes)))

    def _around(self, order: JoinOrder, seeds: Rows) -> Iterator[Rows]:
        yield from self._complete(order, seeds, lambda _: View.OLD, View.OLD, False)

    def alive(self, rows: Rows) -> Bools:
        """Which complete matches no known negative kills."""
        dead = np.zeros(len(rows), bool)
        for probe in self._pattern.probes:
            self._mark(rows, probe, View.ALL, dead)
        return ~dead

    def spared(self, rows: Rows) -> Bools:
        """Which complete matches no *new* negative in a leading scope kills."""
        dead = np.zeros(len(rows), bool)
        for probe in self._pattern.probes:
            if probe.negation.kind == "leading":
                self._mark(rows, probe, View.NEW, dead)
        return ~dead

    def _seeds(self, order: JoinOrder, store: Store) -> Rows:
        staged = store.staged
        return Rows.seed(self._components, order.seed, staged.refs, staged.ts, staged.keys)

    def _complete(
        self, order: JoinOrder, rows: Rows, view: Callable[[int], View], negatives: View, ordered: bool
    ) -> Iterator[Rows]:
        if not len(rows):
            return
        views = [view(step.index) for step in order.steps]
        if any(self._store(s.selection).count(v) == 0 for s, v in zip(order.steps, views, strict=True)):
            return
        left = self._keep(rows, order.tests, order.negations, negatives)
        if len(left):
            yield from self._extend(left, order.steps, views, negatives, ordered)

    def _extend(
        self, rows: Rows, steps: tuple[Step, ...], views: list[View], negatives: View, ordered: bool
    ) -> Iterator[Rows]:
        """Depth first, so that at most one piece per component is held at a time."""
        if not steps:
            yield rows
            return
        step, view = steps[0], views[0]
        lo, hi = time_range(rows, step.index, step.bound, self._pattern.window)
        # Most new events are newer than all that is known, and find nothing after them.
        able = lo <= self._store(step.selection).latest(view)
        if not every(able):
            at = able.nonzero()[0]
            if not len(at):
                return
            rows, lo, hi = rows.take(at), lo.take(at), hi.take(at)
        probes = []
        for probe in step.negations:
            exact = False
            if probe.bounds:
                lo, hi, exact = self._tightened(rows, step, probe, lo, hi, negatives)
            if not exact:
                probes.append(probe)
        for owner, refs, ts in self._partners(rows, step, lo, hi, view, ordered):
            extended = rows.bind(step.index, owner, refs, ts)
            same = self._tester.agrees(step, extended)
            if same is not None and not every(same):
                extended = extended.take(same)
            extended = self._keep(extended, step.tests, probes, negatives)
            if len(extended):
                yield from self._extend(extended, steps[1:], views[1:], negatives, ordered)

    def _partners(self, rows: Rows, step: Step, lo: I64, hi: I64, view: View, ordered: bool) -> Iterator[Pairs]:
        keys = rows.keys if step.carried else self._layout.keys(self._tester.hashes(step, rows))
        yield from pairs(self._store(step.selection), keys, lo, hi, view, ordered)

    def _tightened(self, rows: Rows, step: Step, probe: Probe, lo: I64, hi: I64, view: View) -> tuple[I64, I64, bool]:
        """The time range ``lo`` to ``hi`` of the component being bound, cut off at the nearest negative; and whether
        that settles the negation (not where a negative has the hash of the row's key but another key).
        """
        store = self._store(probe.step.selection)
        if store.count(view) == 0:
            return lo, hi, True
        negation, positives = probe.negation, self._pattern.positives
        assert negation.left is not None and negation.right is not None, "it lies between two"
        left, right = positives[negation.left], positives[negation.right]
        backward = step.index == left
        if backward:
            ts, refs = store.nearest(rows.keys, lo + 1, rows.time(right) - 1, view, backward)
        else:
            ts, refs = store.nearest(rows.keys, rows.time(left) + 1, hi - 1, view, backward)
        at = (refs >= 0).nonzero()[0]
        if not len(at):
            return lo, hi, True
        same = self._tester.same(probe.step, refs.take(at), rows, at)
        exact = every(same)
        if not exact:
            at = at[same]
        if backward:
            lo[at] = ts.take(at)
        else:
            hi[at] = ts.take(at)
        return lo, hi, exact

    def _keep(self, rows: Rows, tests: Sequence[Test], probes: Sequence[Probe], negatives: View) -> Rows:
        """Drop rows that fail a test, or a negation, that has just become decidable."""
        for test in tests:
            if len(rows):
                mask = self._tester.passes(test, rows)
                if not every(mask):
                    rows = rows.take(mask)
        for probe in probes:
            if len(rows):
                dead = np.zeros(len(rows), bool)
                self._mark(rows, probe, negatives, dead)
                if some(dead):
                    rows = rows.take(~dead)
        return rows

    def _mark(self, rows: Rows, probe: Probe, view: View, dead: Bools, before: int | None = None) -> None:
        """Mark in ``dead`` the rows that have a negative in the probe's scope.

        ``before``: count only negatives with a lesser reference than the one bound as this component.
        """
        step = probe.step
        store = self._store(step.selection)
        if store.count(view) == 0:
            return
        lo, hi = scope(rows, probe, self._pattern)
        keys = rows.keys if step.carried else self._layout.keys(self._tester.hashes(step, rows))
        left: I64 | None = None
        if before is None and not step.tests:
            left = self._first_hits(rows, step, store, view, (keys, lo, hi), dead)
            if not len(left):
                return
            keys, lo, hi = keys.take(left), lo.take(left), hi.take(left)
        for owner, refs, ts in pairs(store, keys, lo, hi, view, False):
            if left is not None:
                owner = left.take(owner)
            counts = ~dead.take(owner)
            if before is not None:
                counts &= refs < rows.ref(before).take(owner)
            at = counts.nonzero()[0]
            if not len(at):
                continue
            owner, refs = owner.take(at), refs.take(at)
            joined = rows.bind(step.index, owner, refs, ts.take(at))
            mask = self._tester.agrees(step, joined)
            if mask is not None and not every(mask):
                owner, joined = owner[mask], joined.take(mask)
            for test in step.tests:
                if len(joined):
                    mask = self._tester.passes(test, joined)
                    owner, joined = owner[mask], joined.take(mask)
            dead[owner] = True

    def _first_hits(
        self, rows: Rows, step: Step, store: Store, view: View, probes: tuple[U64, I64, I64], dead: Bools
    ) -> I64:
        """Mark the rows whose first hit kills, as it nearly always does: only the key can still differ. Returns the
        rows with a hit that does not.
        """
        _, refs = store.nearest(*probes, view, False)
        at = (refs >= 0).nonzero()[0]
        if not len(at) or not step.links:
            dead[at] = True
            return at[:0]
        same = self._tester.same(step, refs.take(at), rows, at)
        dead[at[same]] = True
        return at[~same]


def scope(rows: Rows, probe: Probe, pattern: Pattern) -> tuple[I64, I64]:
    """The whole times at which a negative would kill, both ends included: middle ``(ti, tj)``, leading ``[tn - W,
    t1)``, trailing ``(tn, t1 + W]`` (design §3).
    """
    negation, positives = probe.negation, pattern.positives
    if negation.left is None:
        return rows.time(positives[-1]) - pattern.window, rows.time(positives[0]) - 1
    if negation.right is None:
        return rows.time(positives[-1]) + 1, rows.time(positives[0]) + pattern.window
    return rows.time(positives[negation.left]) + 1, rows.time(positives[negation.right]) - 1
