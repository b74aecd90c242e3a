"""A lane: the queries of one consistency level over one stream, and the stores that they share.

Events are judged, admitted and purged by the level; so queries of one level hold each event once, while an event that
is late for one level may be in time for another. Each step takes a batch's events through the same six moves, in this
order:

1. judge: events that break the promise leave for the late output;
2. admit: the others enter the stores' staging, at once or through a sort buffer;
3. correct: old matches that new negatives kill are taken back (final levels have none that has left);
4. match: new matches leave, or wait until the horizon covers their scopes;
5. release: waiting matches whose scopes are covered leave, if they are still alive;
6. commit and purge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latecomer.consistency.clock import BEGINNING, END
from latecomer.consistency.policy import Policy
from latecomer.runtime.holding import Holding
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.proofs import Proofs
from latecomer.runtime.purging import ProofPurge
from latecomer.runtime.rows import Rows, joined
from latecomer.runtime.selection import Selection, Selector
from latecomer.runtime.sequence import SequenceMatcher
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools, CodeLayout, Store, View
from latecomer.storage.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Delta:
    """Matches of one query that the output gains (``insert``) or loses.

    ``cause``: for lost matches the references of the negatives that killed them. ``amended``: an event beyond the
    level's promise was applied all the same.
    """

    query: int
    insert: bool
    rows: Rows
    cause: I64 | None = None
    amended: bool = False


class QueryState:
    """One query in a lane: its joins and its waiting matches."""

    def __init__(self, number: int, pattern: Pattern, type_numbers: Mapping[str, int]) -> None:
        self.number = number
        self.pattern = pattern
        self.types = tuple(type_numbers[t] for t in pattern.plan.types)
        self.negative_types = tuple(type_numbers[n.component.type] for n in pattern.plan.negations)
        self.type_of = {c.index: type_numbers[c.type] for c in pattern.components}
        self.matcher: SequenceMatcher
        self.holding: Holding
        self.purge: ProofPurge
        self.horizons = [BEGINNING] * len(self.negative_types)
        self.clock = BEGINNING  # at the last step
        self.floor = BEGINNING  # nothing below it is needed
        self.complete = BEGINNING  # all events at or above it are still held


class Lane:
    """State and step of one level. ``patterns`` are (query number, pattern) pairs."""

    def __init__(
        self,
        policy: Policy,
        patterns: Sequence[tuple[int, Pattern]],
        type_numbers: Mapping[str, int],
        layout: CodeLayout,
        log: EventLog,
        testers: Sequence[Tester],
    ) -> None:
        self.policy = policy
        self.amends = patterns[0][1].plan.level.on_late == "amend"
        self._log = log
        self.clock = BEGINNING
        self.queries = [QueryState(number, pattern, type_numbers) for number, pattern in patterns]
        selections = sorted({s for q in self.queries for s in q.pattern.selections()}, key=repr)
        self.stores: dict[Selection, Store] = {s: Store(layout) for s in selections}
        self._buffers: dict[Selection, Timeline] = {s: Timeline(2) for s in selections} if policy.ordered else {}
        for query in self.queries:
            query.matcher = SequenceMatcher(query.pattern, self.stores.__getitem__, layout, log, testers[query.number])
            query.holding = Holding(query.pattern, log)
            if policy.proves:
                query.purge = ProofPurge(query.pattern, self.stores.__getitem__, log)
        self._after_proof = 0  # events left by the last purge by proof
        self.purges = 0  # how often a purge by proof has run
        self.types = sorted({t for q in self.queries for t in q.types})
        self._users = {s: [q for q in self.queries if s in q.pattern.selections()] for s in selections}

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(self, selector: Selector | None, accepted: Any, refs: I64, ts: I64, proofs: Proofs) -> Iterator[Delta]:
        """Take in the events marked in ``accepted`` (None: all) and act on the policy and ``proofs`` as they are now;
        the deltas must be consumed to the end.
        """
        if selector is not None:
            self._admit(selector, accepted, refs, ts)
        entry = self.policy.entry()
        for selection, buffer in self._buffers.items():
            moments, columns = buffer.take(entry)
            self.stores[selection].stage(columns[0].view(np.uint64), moments, columns[1])
        for query in self.queries:
            # A horizon never moves back, whatever patience does: what has left has left.
            now = [self.policy.horizon(proofs.bound(t)) for t in query.negative_types]
            yield from self._advance(query, [max(pair) for pair in zip(query.horizons, now, strict=True)], proofs)
        for store in self.stores.values():
            store.commit()
        self._purge(proofs)

    def _admit(self, selector: Selector, accepted: Any, refs: I64, ts: I64) -> None:
        for selection, store in self.stores.items():
            at, hashes = _among(selector, selection, accepted)
            if not len(at):
                continue
            if self.policy.ordered:
                self._buffers[selection].add(ts[at], [hashes.view(np.int64), refs[at]])
            else:
                store.stage(hashes, ts[at], refs[at])

    def _advance(self, query: QueryState, horizons: list[int], proofs: Proofs) -> Iterator[Delta]:
        """Corrections, new matches and releases of one query."""
        matcher, holding = query.matcher, query.holding
        ordered = self.policy.ordered
        if holding.outlives_its_killers:
            holding.keep(matcher.spared)
        if not self.policy.final:
            for rows, cause in matcher.deleted():
                self.policy.learn(holding.delays(rows, query.clock), 0)
                left = holding.closed(rows, query.horizons)
                if left.any():
                    yield Delta(query.number, False, rows.take(left), cause[left])
        for rows in matcher.inserted(ordered):
            if not horizons:
                yield Delta(query.number, True, rows)
            elif ordered and holding.waits_past_its_end:
                holding.hold(rows)
            else:
                if not self.policy.final:
                    self.policy.learn(_NO_DELAYS, len(rows))
                yield from self._release(query, rows, horizons, proofs, False)
        yield from self._due(query, horizons, proofs)
        query.horizons = horizons
        query.clock = self.clock

    def _closed(self, query: QueryState, rows: Rows, horizons: list[int], proofs: Proofs) -> Bools:
        """The matches whose scopes are all covered, for their own keys where keys were closed."""
        if not (self.policy.proves and proofs.keyed and set(proofs.names) <= set(query.pattern.plan.key)):
            return query.holding.closed(rows, horizons)
        refs = rows.ref(query.pattern.positives[0])
        own = [np.maximum(h, proofs.at(t, refs)) for h, t in zip(horizons, query.negative_types, strict=True)]
        return query.holding.closed(rows, own)

    def _release(
        self, query: QueryState, rows: Rows, horizons: list[int], proofs: Proofs, amended: bool
    ) -> Iterator[Delta]:
        """New matches leave, or wait."""
        closed = self._closed(query, rows, horizons, proofs)
        if closed.all():
            yield Delta(query.number, True, rows, amended=amended)
            return
        query.holding.hold(rows.take(~closed))
        if closed.any():
            yield Delta(query.number, True, rows.take(closed), amended=amended)

    def _due(self, query: QueryState, horizons: list[int], proofs: Proofs) -> Iterator[Delta]:
        """Waiting matches whose scopes are covered leave, if they are still alive."""
        if not horizons or not len(query.holding):
            return
        rows = query.holding.due(horizons)
        if self.policy.proves and proofs.keys_moved:
            more = query.holding.pick(lambda waiting: self._closed(query, waiting, horizons, proofs))
            rows = joined([rows, more])
        if len(rows):
            rows = rows.take(query.matcher.alive(rows))
        if self.policy.ordered and len(rows):
            rows = rows.take(query.holding.completion(rows).argsort(kind="stable"))
        if len(rows):
            yield Delta(query.number, True, rows)

    def _purge(self, proofs: Proofs) -> None:
        for query in self.queries:
            query.floor = max(query.floor, self.policy.floor(proofs.least(query.types), query.pattern.window))
            query.complete = max(query.complete, query.floor)
        for selection, store in self.stores.items():
            floor = min(q.floor for q in self._users[selection])
            if floor > BEGINNING:
                store.purge(floor)
        if self.policy.proves and not self.amends and self.stored() > 2 * self._after_proof + _FIRST_PURGE:
            self.purge_by_proof(proofs)

    def purge_by_proof(self, proofs: Proofs) -> None:
        """Drop every event that :class:`ProofPurge` finds useless, until none is left. O(n log n) in the stored events.

        Runs when state has doubled since it last ran, so that it costs a constant per event, however much it cannot
        purge.
        """
        self.purges += 1
        for query in self.queries:
            query.holding.keep(query.matcher.alive)  # what stored negatives have killed needs them no more
        gone = 1
        while gone:
            needed: dict[Any, list[I64]] = {}
            for query in self.queries:

                def bound_of(index: int, refs: I64, query: QueryState = query) -> I64:
                    if proofs.keyed and set(proofs.names) <= set(query.pattern.plan.key):
                        return proofs.at(query.type_of[index], refs)
                    return np.full(len(refs), proofs.bound(query.type_of[index]))

                for component in query.pattern.components:
                    selection = query.purge.selection(component.index)
                    refs = query.purge.needed(component.index, bound_of)
                    needed.setdefault((selection.type, selection.filter), []).append(refs)
            gone = 0
            for selection, store in self.stores.items():
                dropped = store.keep(np.unique(np.concatenate(needed[selection.type, selection.filter])))
                gone += len(dropped)
                if len(dropped):
                    latest = int(self._log.ts(dropped).max())
                    for query in self._users[selection]:
                        query.complete = max(query.complete, latest + 1)
        self._after_proof = self.stored()

    def stored(self) -> int:
        """Events in stores, once for each store that holds them."""
        return sum(store.count(View.OLD) for store in self.stores.values())

    def oldest(self) -> int:
        """Stores purge in strides, so they hold events below the floor for a while; none below this."""
        return min((o for store in self.stores.values() if (o := store.oldest()) is not None), default=END)

    def refs(self) -> I64:
        """References to all events that the lane still needs."""
        parts = [store.events()[1] for store in self.stores.values()]
        parts += [buffer.all()[1][1] for buffer in self._buffers.values()]
        parts += [query.holding.refs() for query in self.queries]
        return np.concatenate(parts)

    # --- events beyond the promise -----------------------------------------------------------------------------------

    def amend(self, selector: Selector, late: Bools, refs: I64, ts: I64, proofs: Proofs) -> Iterator[Delta]:
        """Apply the events marked in ``late`` as far as state allows: only matches whose whole reach is still held."""
        for selection, store in self.stores.items():
            at, hashes = _among(selector, selection, late)
            at, hashes = _where(ts[at] >= min(q.complete for q in self._users[selection]), at, hashes)
            store.stage(hashes, ts[at], refs[at])
        for query in self.queries:
            holding = query.holding
            for rows, cause in query.matcher.deleted():
                left = self._closed(query, rows, query.horizons, proofs) & (holding.reach(rows) >= query.complete)
                if left.any():
                    yield Delta(query.number, False, rows.take(left), cause[left], amended=True)
            for rows in query.matcher.inserted(False):
                rows = rows.take(holding.reach(rows) >= query.complete)
                if len(rows):
                    yield from self._release(query, rows, query.horizons, proofs, True)
        for store in self.stores.values():
            store.commit()

    def what_if(self, query: QueryState, selector: Selector, late: Bools, refs: I64, ts: I64) -> tuple[I64, I64]:
        """What each event of the batch that is marked in ``late`` would have changed: matches that are missing
        without it, and matches that are wrong without it, as far as state tells; -1 where it is too old to tell.
        """
        missed, wrong = np.zeros(len(ts), np.int64), np.zeros(len(ts), np.int64)
        pattern, holding = query.pattern, query.holding
        for orders, counts in ((pattern.inserts, missed), (pattern.deletes, wrong)):
            for order in orders:
                at, hashes = _among(selector, order.selection, late)
                at, hashes = _where(ts[at] >= query.complete, at, hashes)
                for rows in query.matcher.around(order, refs[at], ts[at], hashes):
                    told = rows.take(holding.reach(rows) >= query.complete)
                    # References grow with the row, so the seed's reference leads back to its row.
                    counts += np.bincount(at[refs[at].searchsorted(told.ref(order.seed))], minlength=len(ts))
        unknown = ts < query.complete
        missed[unknown] = wrong[unknown] = -1
        return missed, wrong

    # --- what is held ------------------------------------------------------------------------------------------------

    def floor(self, clock: int, proofs: Proofs) -> int:
        """Below this time ids are forgotten and payload dropped: it changes no answer of the lane, whatever it
        chooses."""
        floors = []
        for query in self.queries:
            kept = self.policy.retention(query.pattern.window)
            least = proofs.least(query.types) - query.pattern.window
            floors.append(least if kept is None else clock - kept)
        return max(min(floors), BEGINNING)

    def buffered(self) -> int:
        """Rows in sort buffers."""
        return sum(map(len, self._buffers.values()))

    @property
    def nbytes(self) -> int:
        holders: list[Any] = [*self.stores.values(), *self._buffers.values(), *(q.holding for q in self.queries)]
        return sum(h.nbytes for h in holders)

    def dump(self) -> dict[str, Any]:
        return {
            "stores": [s.dump() for s in self.stores.values()],
            "buffers": [b.dump() for b in self._buffers.values()],
            "holding": [q.holding.dump() for q in self.queries],
            "horizons": [q.horizons for q in self.queries],
            "clocks": [q.clock for q in self.queries],
            "floors": [[q.floor, q.complete] for q in self.queries],
            "clock": self.clock,
            "policy": self.policy.dump(),
            "after_proof": self._after_proof,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for store, saved in zip(self.stores.values(), state["stores"], strict=True):
            store.load(saved)
        for buffer, saved in zip(self._buffers.values(), state["buffers"], strict=True):
            buffer.load(saved)
        queries = zip(self.queries, state["holding"], state["horizons"], state["clocks"], state["floors"], strict=True)
        for query, saved, horizons, clock, (floor, complete) in queries:
            query.holding.load(saved)
            query.horizons, query.clock, query.floor, query.complete = list(horizons), clock, floor, complete
        self.clock = state["clock"]
        self.policy.load(state["policy"])
        self._after_proof = state["after_proof"]


def _among(selector: Selector, selection: Selection, mask: Any) -> tuple[I64, U64]:
    """Rows and key hashes of a selection among the rows marked in ``mask`` (None: all)."""
    at, hashes = selector.select(selection)
    return (at, hashes) if mask is None or not len(at) else _where(mask[at], at, hashes)


def _where(mask: Bools, at: I64, hashes: U64) -> tuple[I64, U64]:
    return at[mask], hashes[mask]


_NO_DELAYS = np.zeros(0, np.int64)
_FIRST_PURGE = 256  # stored events below which a purge by proof is not worth its calls
