"""The lane of interval streams: the queries of one level, matched over possible worlds.

It takes the same six moves as :class:`latecomer.runtime.lane.Lane` (judge, admit, correct, match, release, purge), with
these differences:

* an event's time is its lower end. The stream's clock follows lower ends, and a level's slack is longer by the longest
  interval, so that everything that the level promises about events, it promises about each instant of theirs;
* there is no sort buffer: K-slack keeps matches in order, not events;
* a match leaves with a confidence. Later events can only lower it, so a match below the query's threshold is gone for
  good; in a level that corrects itself one whose confidence falls is deleted and inserted anew (with the same id).

Invariant: with ``h`` the horizon of a final level, no event that is still to come may have happened at or before ``h``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latecomer.consistency.clock import BEGINNING, END
from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level
from latecomer.consistency.policy import Policy
from latecomer.runtime.intervals.chains import Chains
from latecomer.runtime.intervals.guards import check_level
from latecomer.runtime.intervals.matcher import IntervalMatcher, Revision
from latecomer.runtime.intervals.pattern import IntervalPattern
from latecomer.runtime.intervals.spans import SpanStore
from latecomer.runtime.intervals.timing import LogTiming
from latecomer.runtime.intervals.waiting import Waiting
from latecomer.runtime.lane import Delta, Lane
from latecomer.runtime.pattern import Tester
from latecomer.runtime.pending import Paging
from latecomer.runtime.proofs import Proofs
from latecomer.runtime.selection import Selection, Selector
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools, CodeLayout, Store, View
from latecomer.storage.timeline import Timeline
from latecomer.uncertainty import Intervals
from latecomer.units import UNITS, Duration


@dataclass(frozen=True, slots=True)
class Told(Delta):
    """Matches that the output gains or loses, with what is said of them."""

    revision: Revision | None = None


def widened(level: Level, longest: int, unit: str) -> Level:
    """The level with its slack longer by ``longest`` units: what it promises of events' lower ends.

    >>> str(widened(KSlack("5 s"), 500, "ms"))
    'kslack(5500 ms)'
    """
    if not longest:
        return level
    more = Duration(longest * UNITS[unit] * Duration.of(1).amount)

    def longer(slack: Duration) -> Duration:
        return Duration(slack.exact(unit) * UNITS[unit] + more.amount)

    match level:
        case KSlack(k=None, recall=recall, max=Duration() as most):
            return KSlack(recall=recall, max=longer(most), on_late=level.on_late)
        case KSlack(k=Duration() as k):
            sources = {name: longer(slack) for name, slack in level.sources}
            return KSlack(longer(k), sources=sources, on_late=level.on_late)
        case Aggressive(max_delay=most):
            return Aggressive(
                longer(most),
                level.patience,
                retractions=level.retractions,
                corrections=level.corrections,
                on_late=level.on_late,
                confidence_step=level.confidence_step,
            )
        case _:
            assert isinstance(level, (Conservative, KSlack))
            return level


class IntervalQuery:
    """One query in the lane: its joins and its waiting matches."""

    def __init__(
        self,
        number: int,
        pattern: IntervalPattern,
        numbers: Mapping[str, int],
        matcher: IntervalMatcher,
        holding: Waiting,
        longest: int,
    ) -> None:
        self.number, self.pattern, self.matcher, self.holding = number, pattern, matcher, holding
        plan = pattern.plan
        self.types = tuple(numbers[t] for t in plan.types)
        self.negatives = tuple(n.component.type for n in plan.negations)
        self.negative_types = tuple(numbers[name] for name in self.negatives)
        self.type_of = {c.index: numbers[c.type] for c in pattern.components}
        self.horizons = [BEGINNING] * len(self.negatives)
        self.entry = BEGINNING  # matches that ended before it have left, where they leave in order
        self.floor = BEGINNING  # nothing that ended before it is needed
        self.complete = BEGINNING  # all events that ended at or after it are still held
        #: How far back an event may have ended that has to do with one to come, or with a match that waits: a window
        #: before that the match's first event may have ended, so it began up to ``longest`` earlier. With a leading
        #: scope and a trailing one a match waits a window, and what undoes it may lie a window before it.
        self.reach = pattern.window * (2 if plan.negates_both_ends else 1) + longest


class IntervalLane:
    """State and step of one level. ``patterns`` are (query number, pattern) pairs; ``intervals`` are the stream's
    (None: its times are exact), and ``policy`` is that of the :func:`widened` level.
    """

    def __init__(
        self,
        policy: Policy,
        patterns: Sequence[tuple[int, IntervalPattern]],
        type_numbers: Mapping[str, int],
        layout: CodeLayout,
        log: EventLog,
        testers: Sequence[Tester],
        paging: Paging | None = None,
        intervals: Intervals | None = None,
        counters: Counter[Any] | None = None,
    ) -> None:
        """``counters``: where what confidences cost, and those that are not exact, are counted by query."""
        self._counters: Counter[Any] = Counter() if counters is None else counters
        self.policy, self.layout, self._log = policy, layout, log
        timing = self._timing = LogTiming(log) if intervals is None else LogTiming(log, intervals.shapes)
        self._longest = 0 if intervals is None else intervals.longest
        level = patterns[0][1].plan.level
        check_level(level)
        self.amends = level.on_late == "amend"
        self.clock = BEGINNING
        selections = sorted({s for _, pattern in patterns for s in pattern.selections()}, key=repr)
        pager = None if paging is None else paging.pager
        self.stores: dict[Selection, SpanStore] = {
            s: SpanStore(layout, lambda own: Store(own, pager)) for s in selections
        }
        self.buffers: dict[Selection, Timeline] = {}  # none, see above
        self.pending: Any = None  # events never wait for state to be read
        self.drains = False
        self.purges = 0  # nothing is purged by proof
        moved = level.confidence_step if isinstance(level, Aggressive) else 0.0
        self.queries = []
        for number, pattern in patterns:
            matcher = IntervalMatcher(
                pattern,
                self.stores.__getitem__,
                layout,
                timing,
                testers[number],
                pattern.plan.confidence,
                moved=moved,
            )
            holding = Waiting(pattern, timing, final=policy.final, ordered=policy.ordered)
            self.queries.append(IntervalQuery(number, pattern, type_numbers, matcher, holding, self._longest))
        self.look()

    def look(self) -> None:
        """Note what the queries of the lane look at; they have changed."""
        self.types = sorted({t for q in self.queries for t in q.types})
        self._users = {s: [q for q in self.queries if s in q.pattern.selections()] for s in self.stores}

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(self, selector: Selector | None, accepted: Any, refs: I64, ts: I64, proofs: Proofs) -> Iterator[Delta]:
        """Take in the events marked in ``accepted`` (None: all) and act on the policy and ``proofs`` as they are now;
        the deltas must be consumed to the end.
        """
        if selector is not None:
            for selection, store in self.stores.items():
                at, hashes = _among(selector, selection, accepted)
                if len(at):
                    store.stage(hashes, *self._timing.bounds(refs[at]), refs[at])
        for query in self.queries:
            # A horizon never moves back, whatever patience does: what has left has left.
            now = [self.policy.horizon(proofs.bound(t)) for t in query.negative_types]
            horizons = [max(pair) for pair in zip(query.horizons, now, strict=True)]
            yield from self._advance(query, horizons, max(query.entry, self.policy.entry()), proofs)
        for store in self.stores.values():
            store.commit()
        for query in self.queries:
            steps = query.matcher.spent()
            if steps:
                self._counters[query.pattern.plan.name, "steps"] += steps
        self._purge(proofs)

    def _advance(self, query: IntervalQuery, horizons: list[int], entry: int, proofs: Proofs) -> Iterator[Delta]:
        """Corrections, new matches and releases of one query."""
        matcher, holding = query.matcher, query.holding
        if not self.policy.final:
            before, reached = query.horizons, query.entry
            for revision in matcher.moved(lambda rows: holding.closed(rows, before, reached)):
                yield self._told(query, revision)
        for rows in matcher.candidates():
            if self.policy.ordered:
                holding.hold(rows)  # they leave in order, below
            else:
                yield from self._release(query, rows, horizons, entry, proofs, False)
        yield from self._due(query, horizons, entry, proofs)
        query.horizons, query.entry = horizons, entry

    def _closed(self, query: IntervalQuery, rows: Chains, horizons: list[int], entry: int, proofs: Proofs) -> Bools:
        """The matches that need not wait any more, for their own keys where keys were closed."""
        if not (self.policy.proves and proofs.keyed and set(proofs.names) <= set(query.pattern.plan.key)):
            return query.holding.closed(rows, horizons, entry)
        refs = rows.ref(query.pattern.positives[0])
        own = [np.maximum(h, proofs.at(t, refs)) for h, t in zip(horizons, query.negative_types, strict=True)]
        return query.holding.closed(rows, own, entry)

    def _release(
        self, query: IntervalQuery, rows: Chains, horizons: list[int], entry: int, proofs: Proofs, amended: bool
    ) -> Iterator[Delta]:
        """New matches leave, or wait."""
        closed = self._closed(query, rows, horizons, entry, proofs)
        query.holding.hold(rows.take(~closed))
        yield from self._leave(query, rows.take(closed), amended)

    def _leave(self, query: IntervalQuery, rows: Chains, amended: bool = False) -> Iterator[Delta]:
        """Matches leave, as far as they pass the query's threshold."""
        for start in range(0, len(rows), _AT_ONCE):
            revision = query.matcher.assess(rows.take(np.arange(start, min(start + _AT_ONCE, len(rows)))))
            if len(revision.rows):
                yield self._told(query, revision, amended)

    def _due(self, query: IntervalQuery, horizons: list[int], entry: int, proofs: Proofs) -> Iterator[Delta]:
        """Waiting matches that need not wait any more leave."""
        holding = query.holding
        if not len(holding):
            return
        rows = holding.due(horizons, entry)
        if self.policy.proves and proofs.keys_moved:
            more = holding.pick(lambda waiting: self._closed(query, waiting, horizons, entry, proofs))
            rows = holding.joined(rows, more)
        if self.policy.ordered and len(rows):
            rows = rows.take(holding.completion(rows).argsort(kind="stable"))
        yield from self._leave(query, rows)

    def _told(self, query: IntervalQuery, revision: Revision, amended: bool = False) -> Told:
        name = query.pattern.plan.name
        if revision.insert:
            for kind, rows in (("unknown", np.isnan(revision.confidence)), ("sampled", revision.error > 0)):
                if rows.any():
                    self._counters[name, kind] += int(rows.sum())
        return Told(query.number, revision.insert, revision.rows, revision.cause, amended, revision)

    def _purge(self, proofs: Proofs) -> None:
        for query in self.queries:
            query.floor = max(query.floor, self.policy.floor(proofs.least(query.types), query.reach))
            query.complete = max(query.complete, query.floor)
            query.matcher.drift.forget(query.floor)
        for selection, store in self.stores.items():
            floor = min(q.floor for q in self._users[selection])
            if floor > BEGINNING:
                store.purge(floor)

    # --- events beyond the promise -----------------------------------------------------------------------------------

    def amend(self, selector: Selector, late: Bools, refs: I64, ts: I64, proofs: Proofs) -> Iterator[Delta]:
        """Apply the events marked in ``late`` as far as state allows: only matches whose whole reach is still held."""
        for selection, store in self.stores.items():
            complete = min(q.complete for q in self._users[selection])
            at, hashes = self._recent(*_among(selector, selection, late), refs, complete)
            store.stage(hashes, *self._timing.bounds(refs[at]), refs[at])
        for query in self.queries:

            def held(rows: Chains, query: IntervalQuery = query) -> Bools:
                return query.holding.reach(rows) >= query.complete

            def left(rows: Chains, query: IntervalQuery = query) -> Bools:
                return self._closed(query, rows, query.horizons, query.entry, proofs) & held(rows, query)

            for revision in query.matcher.moved(left):
                yield self._told(query, revision, amended=True)
            for rows in query.matcher.candidates():
                kept = rows.take(held(rows))
                if len(kept):
                    yield from self._release(query, kept, query.horizons, query.entry, proofs, True)
        for store in self.stores.values():
            store.commit()

    def what_if(self, query: Any, selector: Selector, late: Bools, refs: I64, ts: I64) -> tuple[I64, I64]:
        """What each event of the batch that is marked in ``late`` would have changed: matches that are missing
        without it, and matches that are wrong (or have a wrong confidence) without it, as far as state tells; -1 where
        it is too old to tell.
        """
        missed, wrong = np.zeros(len(ts), np.int64), np.zeros(len(ts), np.int64)
        pattern, matcher = query.pattern, query.matcher
        for orders, counts in ((pattern.inserts, missed), (pattern.deletes, wrong)):
            for order in orders:
                at, hashes = self._recent(*_among(selector, order.selection, late), refs, query.complete)
                own = refs[at]
                by = own.argsort()  # the seed's reference leads back to its row
                for rows in matcher.around(order, own, hashes):
                    told = rows.take(query.holding.reach(rows) >= query.complete)
                    if len(told):
                        told = told.take(matcher.passing(told.unbind(order.seed) if counts is wrong else told))
                        place = by[own.searchsorted(told.ref(order.seed), sorter=by)]
                        counts += np.bincount(at[place], minlength=len(ts))
        rows_late = np.flatnonzero(late)
        unknown = rows_late[self._timing.bounds(refs[rows_late])[1] < query.complete]
        missed[unknown] = wrong[unknown] = -1
        return missed, wrong

    def _recent(self, at: I64, hashes: U64, refs: I64, complete: int) -> tuple[I64, U64]:
        """Those rows whose events ended at or after ``complete``."""
        mask = self._timing.bounds(refs[at])[1] >= complete
        return at[mask], hashes[mask]

    # --- what is held ------------------------------------------------------------------------------------------------

    def floor(self, clock: int, proofs: Proofs) -> int:
        """Below this time ids are forgotten and payload dropped: an event that began there changes no answer."""
        floors = []
        for query in self.queries:
            reach = query.reach + self._longest
            kept = self.policy.retention(reach)
            floors.append(proofs.least(query.types) - reach if kept is None else clock - kept)
        return max(min(floors), BEGINNING)

    def alive(self, query: Any, rows: Any) -> Bools:
        """Which waiting matches of one of the lane's queries pass its threshold so far."""
        mask: Bools = query.matcher.passing(rows)
        return mask

    def all_stores(self) -> list[Store]:
        """All stores: a selection has one for each class of length."""
        return [part for store in self.stores.values() for part in store.parts()]

    def works_at(self, first: int, last: int) -> bool:
        """Whether events in time look at times from ``first`` to ``last``."""
        reach = max(query.reach for query in self.queries) + self._longest
        return self.clock == BEGINNING or last >= self.clock - reach

    def stored(self) -> int:
        """Events in stores, once for each store that holds them."""
        return sum(store.count(View.OLD) for store in self.stores.values())

    def oldest(self) -> int:
        """Stores purge in strides, so they hold events below the floor for a while; none below this."""
        return min((o for store in self.stores.values() if (o := store.oldest()) is not None), default=END)

    def refs(self) -> I64:
        """References to all events that the lane still needs."""
        parts = [store.events()[1] for store in self.stores.values()]
        return np.concatenate([*parts, *(query.holding.refs() for query in self.queries)])

    def buffered(self) -> int:
        """Rows in sort buffers: there are none."""
        return 0

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.stores.values()) + sum(q.holding.nbytes for q in self.queries)

    def dump(self) -> dict[str, Any]:
        return {
            "stores": [s.dump() for s in self.stores.values()],
            "holding": [q.holding.dump() for q in self.queries],
            "drift": [q.matcher.drift.dump() for q in self.queries],
            "horizons": [q.horizons for q in self.queries],
            "marks": [[q.entry, q.floor, q.complete] for q in self.queries],
            "clock": self.clock,
            "policy": self.policy.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for store, saved in zip(self.stores.values(), state["stores"], strict=True):
            store.load(saved)
        parts = zip(self.queries, state["holding"], state["drift"], state["horizons"], state["marks"], strict=True)
        for query, held, drift, horizons, (entry, floor, complete) in parts:
            query.holding.load(held)
            query.matcher.drift.load(drift)
            query.horizons, query.entry = list(horizons), entry
            query.floor, query.complete = floor, complete
        self.clock = state["clock"]
        self.policy.load(state["policy"])


#: What the engine drives.
AnyLane = Lane | IntervalLane


def _among(selector: Selector, selection: Selection, mask: Any) -> tuple[I64, U64]:
    """Rows and key hashes of a selection among the rows marked in ``mask`` (None: all)."""
    at, hashes = selector.select(selection)
    if mask is None or not len(at):
        return at, hashes
    return at[mask[at]], hashes[mask[at]]


_AT_ONCE = 1 << 15  # matches whose confidences are asked for at once
