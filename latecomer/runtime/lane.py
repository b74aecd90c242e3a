"""A lane: the queries of one consistency level over one stream, and the stores that they share.

Events are judged, admitted and purged by the level; so queries of one level hold each event once, while an event that
is late for one level may be in time for another. Each step takes a batch's events through the same six moves, in this
order:

1. judge: events that break the promise leave for the late output;
2. admit: the others enter the stores' staging, at once, or through a sort buffer, or once the state that they need is
   worth reading (``pending``);
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
from latecomer.consistency.levels import Aggressive
from latecomer.consistency.policy import AggressivePolicy, Policy, adapts
from latecomer.runtime.follow import matcher_of
from latecomer.runtime.holding import Holding
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.pending import Paging, Pending, Picked, among
from latecomer.runtime.proofs import Proofs
from latecomer.runtime.purging import ProofPurge
from latecomer.runtime.rows import Answer, Rows, joined
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
        self.reach = pattern.window  # how far apart events may be that have to do with each other
        self.negatives = tuple(n.component.type for n in pattern.plan.negations)
        self.negative_types = tuple(type_numbers[name] for name in self.negatives)
        self.type_of = {c.index: type_numbers[c.type] for c in pattern.components}
        self.stores: list[Store]
        self.plain = self.prompt = False
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
        paging: Paging | None = None,
    ) -> None:
        self.policy = policy
        self.layout = layout
        self.amends = patterns[0][1].plan.level.on_late == "amend"
        self._log = log
        self.clock = BEGINNING
        self._learns = adapts(patterns[0][1].plan.level) and not policy.final  # from what becomes of matches
        self.drains = False  # whether what is pending enters, though its turn has not come
        self.queries = [QueryState(number, pattern, type_numbers) for number, pattern in patterns]
        selections = sorted({s for q in self.queries for s in q.pattern.selections()}, key=repr)
        pager = None if paging is None else paging.pager
        self.stores: dict[Selection, Store] = {s: Store(layout, pager) for s in selections}
        self.buffers: dict[Selection, Timeline] = {s: Timeline(2, pager) for s in selections} if policy.ordered else {}
        self.pending: Pending | None = None
        # Where late events are amended none waits: how far that reaches is what has been told by then.
        if paging is not None and paging.batch and not (policy.ordered or self.amends):
            self.pending = Pending(selections, layout.bits, paging)
        for query in self.queries:
            query.stores = [self.stores[s] for s in query.pattern.selections()]
            query.matcher = matcher_of(query.pattern, self.stores, layout, testers[query.number])
            query.holding = Holding(query.pattern, log, pager)
            if query.holding.outlives_its_killers and not policy.final:
                query.reach *= 2  # what is in a leading scope says whether a match lived that the trailing one ends
            query.plain = self._plain(query)
            query.prompt = query.plain and not self._waits_in(query)
            if policy.proves:
                query.purge = ProofPurge(query.pattern, self.stores.__getitem__, log)
        self._after_proof = 0  # events left by the last purge by proof
        self.purges = 0  # how often a purge by proof has run
        self.look()

    def look(self) -> None:
        """Note what the queries of the lane look at; they have changed."""
        self.types = sorted({t for q in self.queries for t in q.types})
        self._users = {s: [q for q in self.queries if s in q.pattern.selections()] for s in self.stores}

    def _plain(self, query: QueryState) -> bool:
        """Whether the clock alone says when matches leave, and changes say no more than what they are made of."""
        level, by_clock = query.pattern.plan.level, isinstance(self.policy, AggressivePolicy) and not self._learns
        plain = isinstance(level, Aggressive) and level.corrections != "replace" and not self.amends
        return plain and by_clock and not query.holding.outlives_its_killers

    def _waits_in(self, query: QueryState) -> bool:
        """Whether there may be matches that do not leave as soon as the clock has passed their last event."""
        patient = isinstance(self.policy, AggressivePolicy) and self.policy.patient
        return bool(query.negatives) and (patient or query.holding.waits_past_its_end)

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(
        self, selector: Selector | None, accepted: Any, refs: I64, ts: I64, proofs: Proofs
    ) -> Iterator[Delta | Answer]:
        """Take in the events marked in ``accepted`` (None: all) and act on the policy and ``proofs`` as they are now;
        the deltas must be consumed to the end.
        """
        rows = {} if selector is None else self._picked(selector, accepted, refs)
        if self.policy.ordered:
            rows = self._sorted(rows)
        elif self.pending is not None:
            rows = self._ready(self.pending, rows)
        for selection, (hashes, moments, events) in rows.items():
            self.stores[selection].stage(hashes, moments, events)
        yield from self.act(proofs)
        self.purge(proofs)

    def act(self, proofs: Proofs, passed: bool = False) -> Iterator[Delta | Answer]:
        """The moves 3 to 6 but for the purge, once the batch's events are in the stores' staging. ``passed``: the clock
        has passed all events, so that matches of prompt queries need not wait.
        """
        for query in self.queries:
            horizons = self._horizons(query, proofs)
            if len(query.holding) or any(len(store.staged.refs) for store in query.stores):
                answer = query.matcher.answer(query.number) if passed and query.prompt else None
                if answer is None:
                    yield from self._advance(query, horizons, proofs)
                elif answer.ops:
                    yield answer
            query.horizons, query.clock = horizons, self.clock
        for store in self.stores.values():
            store.commit()
        self._raise_floors(proofs)

    def catch_up(self, proofs: Proofs) -> None:
        """Act on the clock as it is now, where that changes no answer: after events that did not come this way."""
        for query in self.queries:
            query.horizons, query.clock = self._horizons(query, proofs), self.clock
        self._raise_floors(proofs)

    def _picked(self, selector: Selector, accepted: Any, refs: I64) -> dict[Selection, Picked]:
        """The batch's accepted events, by selection."""
        return {selection: selector.picked(selection, accepted, refs) for selection in self.stores}

    def _sorted(self, rows: Mapping[Selection, Picked]) -> dict[Selection, Picked]:
        """Events go through the sort buffers: those whose turn has come, in order of time."""
        for selection, (hashes, ts, refs) in rows.items():
            self.buffers[selection].add(ts, [hashes.view(np.int64), refs])
        result: dict[Selection, Picked] = {}
        entry = self.policy.entry()
        for selection, buffer in self.buffers.items():
            moments, (keys, events) = buffer.take(entry)
            result[selection] = keys.view(np.uint64), moments, events
        return result

    def _ready(self, pending: Pending, rows: dict[Selection, Picked]) -> dict[Selection, Picked]:
        """Events whose partners may be on the shelf wait for others that need the same."""
        waits = []
        clock = min(query.clock for query in self.queries)  # before this batch, which may be longer than a window
        for selection, (hashes, ts, events) in rows.items():
            window = max(q.pattern.window for q in self._users[selection])
            late = (ts < clock - window).nonzero()[0]  # others look at state in use, and are answered at once
            if len(late):
                waits.append(events[late[self._away(pending, selection, hashes[late], ts[late], window)]])
        if any(map(len, waits)):
            apart = among(np.concatenate(waits))
            parted = {selection: apart(events) for selection, (_, _, events) in rows.items()}
            pending.add({s: _masked(row, parted[s]) for s, row in rows.items()}, self.clock)
            rows = {s: _masked(row, ~parted[s]) for s, row in rows.items()}
        for selection, row in pending.due(None if self.drains else self.clock).items():
            now = rows.get(selection)
            rows[selection] = row if now is None else _together(now, row)
        return rows

    def _away(self, pending: Pending, selection: Selection, hashes: U64, ts: I64, window: int) -> Bools:
        """Which late events of a selection may find partners on the shelf, or belong to a page that others wait for."""
        mask = pending.awaited(ts)
        for other in {s for q in self._users[selection] for s in q.pattern.selections()}:
            at = (~mask & (ts - window <= self.stores[other].away_until)).nonzero()[0]
            if len(at):
                keys = self.layout.keys(hashes[at]) if other.key == selection.key else None
                mask[at] |= self.stores[other].away(ts[at] - window, ts[at] + window, keys)
        return mask

    def _horizons(self, query: QueryState, proofs: Proofs) -> list[int]:
        """For each negation up to where all is known. A horizon never moves back, whatever patience does: what has left
        has left.
        """
        if not query.negatives:
            return query.horizons
        if self.policy.proves or self.policy.final:
            types = zip(query.negative_types, query.negatives, strict=True)
            now = [self._horizon(type, name, proofs) for type, name in types]
        else:
            now = [self.policy.horizon(BEGINNING)] * len(query.negatives)
        return [max(pair) for pair in zip(query.horizons, now, strict=True)]

    def _horizon(self, type: int, name: str, proofs: Proofs) -> int:
        """Everything of a negative type with time up to here is known, and in the stores where the level is final."""
        horizon = self.policy.horizon(proofs.bound(type))
        waits = self._unsettled(name)
        return horizon if waits is None else min(horizon, waits - 1)

    def _unsettled(self, name: str) -> int | None:
        """The time from which on a final level must not call a type known, since events of it are pending."""
        return self.pending.earliest(name) if self.policy.final and self.pending else None

    def _advance(self, query: QueryState, horizons: list[int], proofs: Proofs) -> Iterator[Delta]:
        """Corrections, new matches and releases of one query."""
        matcher, holding = query.matcher, query.holding
        ordered = self.policy.ordered
        if holding.outlives_its_killers:
            holding.keep(matcher.spared)
        if not self.policy.final:
            for rows, cause in matcher.deleted():
                if self._learns:
                    self.policy.learn(holding.delays(rows, query.clock), 0)
                if holding.all_closed(rows, query.horizons):
                    yield Delta(query.number, False, rows, cause)
                    continue
                left = holding.closed(rows, query.horizons)
                if left.any():
                    yield Delta(query.number, False, rows.take(left), cause[left])
        for rows in matcher.inserted(ordered):
            if not horizons:
                yield Delta(query.number, True, rows)
            elif ordered and holding.waits_past_its_end:
                holding.hold(rows)
            else:
                if self._learns:
                    self.policy.learn(_NO_DELAYS, len(rows))
                yield from self._release(query, rows, horizons, proofs, False)
        if horizons and len(holding):
            yield from self._due(query, horizons, proofs)

    def _closed(self, query: QueryState, rows: Rows, horizons: list[int], proofs: Proofs) -> Bools:
        """The matches whose scopes are all covered, for their own keys where keys were closed."""
        if not (self.policy.proves and proofs.keyed and set(proofs.names) <= set(query.pattern.plan.key)):
            return query.holding.closed(rows, horizons)
        refs = rows.ref(query.pattern.positives[0])
        own: list[int | I64] = []
        for horizon, type, name in zip(horizons, query.negative_types, query.negatives, strict=True):
            waits = self._unsettled(name)
            own.append(np.maximum(horizon, np.minimum(proofs.at(type, refs), END if waits is None else waits - 1)))
        return query.holding.closed(rows, own)

    def _release(
        self, query: QueryState, rows: Rows, horizons: list[int], proofs: Proofs, amended: bool
    ) -> Iterator[Delta]:
        """New matches leave, or wait."""
        if query.holding.all_closed(rows, horizons):
            yield Delta(query.number, True, rows, amended=amended)
            return
        closed = self._closed(query, rows, horizons, proofs)
        if closed.all():
            yield Delta(query.number, True, rows, amended=amended)
            return
        query.holding.hold(rows.take(~closed))
        if closed.any():
            yield Delta(query.number, True, rows.take(closed), amended=amended)

    def _due(self, query: QueryState, horizons: list[int], proofs: Proofs) -> Iterator[Delta]:
        """Waiting matches whose scopes are covered leave, if they are still alive."""
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

    def _waits(self) -> int | None:
        """The time of the earliest event that is pending."""
        return self.pending.earliest() if self.pending else None

    def _raise_floors(self, proofs: Proofs) -> None:
        waits = self._waits()
        for query in self.queries:
            least = proofs.least(query.types) if self.policy.proves else BEGINNING
            # What is kept longer than for a window, or for what waits, changes no answer to events beyond the promise.
            query.complete = max(query.complete, self.policy.floor(least, query.pattern.window))
            floor = self.policy.floor(least, query.reach)
            if waits is not None:
                floor = min(floor, waits - query.reach)
            query.floor = max(query.floor, floor)

    def purge(self, proofs: Proofs) -> int:
        """Drop what is below the floors; returns by how much these have to rise until there may be more of that."""
        more = END
        for selection, store in self.stores.items():
            floor = min([q.floor for q in self._users[selection]])
            if floor > BEGINNING:
                more = min(more, store.purge(floor) - floor)
        if not self.policy.proves or self.amends or self._waits() is not None:
            return more
        # What is on the shelf waits for its whole slice to be useless.
        if all(store.whole for store in self.stores.values()) and self.stored() > 2 * self._after_proof + _FIRST_PURGE:
            self.purge_by_proof(proofs)
        return more

    def expose(self) -> None:
        """Show the stores' runs to compiled code."""
        for store in self.stores.values():
            store.expose()

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
                dropped = store.keep(np.concatenate(needed[selection.type, selection.filter]))
                gone += len(dropped)
                if len(dropped):
                    latest = int(self._log.ts(dropped).max())
                    for query in self._users[selection]:
                        query.complete = max(query.complete, latest + 1)
        self._after_proof = self.stored()

    def works_at(self, first: int, last: int) -> bool:
        """Whether events in time look at times from ``first`` to ``last``."""
        window = max(query.pattern.window for query in self.queries)
        now = min(self.policy.entry(), self.clock)
        if now == BEGINNING:
            return True
        return last >= now - window and (not self.policy.ordered or first <= now)

    def alive(self, query: Any, rows: Rows) -> Bools:
        """Which waiting matches of one of the lane's queries nothing has killed so far."""
        mask: Bools = query.matcher.alive(rows)
        return mask

    def all_stores(self) -> list[Store]:
        """All stores, whoever uses them."""
        return list(self.stores.values())

    def stored(self) -> int:
        """Events in stores, once for each store that holds them."""
        return sum(store.count(View.OLD) for store in self.stores.values())

    def oldest(self) -> int:
        """Stores purge in strides, so they hold events below the floor for a while; none below this."""
        known = [o for store in self.stores.values() if (o := store.oldest()) is not None]
        if self.pending and (waits := self.pending.earliest()) is not None:
            known.append(waits)
        return min(known, default=END)

    def refs(self) -> I64:
        """References to all events that the lane still needs, where the lane's own state is in memory."""
        parts = [store.events()[1] for store in self.stores.values()]
        parts += [buffer.awake()[1] for buffer in self.buffers.values()]
        parts += [query.holding.refs() for query in self.queries]
        if self.pending:
            parts.append(self.pending.refs())
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

    def what_if(self, query: Any, selector: Selector, late: Bools, refs: I64, ts: I64) -> tuple[I64, I64]:
        """What each event of the batch that is marked in ``late`` would have changed in one of the lane's queries:
        matches that are missing without it, and matches that are wrong without it, as far as state tells; -1 where it
        is too old to tell.
        """
        missed, wrong = np.zeros(len(ts), np.int64), np.zeros(len(ts), np.int64)
        pattern, holding = query.pattern, query.holding
        for orders, counts in ((pattern.inserts, missed), (pattern.deletes, wrong)):
            for order in orders:
                at, hashes = _among(selector, order.selection, late)
                at, hashes = _where(ts[at] >= query.complete, at, hashes)
                own = refs[at]
                by = own.argsort()  # the seed's reference leads back to its row
                for rows in query.matcher.around(order, own, ts[at], hashes):
                    told = rows.take(holding.reach(rows) >= query.complete)
                    counts += np.bincount(at[by[own.searchsorted(told.ref(order.seed), sorter=by)]], minlength=len(ts))
        unknown = ts < query.complete
        missed[unknown] = wrong[unknown] = -1
        return missed, wrong

    # --- what is held ------------------------------------------------------------------------------------------------

    def floor(self, clock: int, proofs: Proofs) -> int:
        """Below this time ids are forgotten and payload dropped: it changes no answer of the lane, whatever it
        chooses."""
        floors = []
        for query in self.queries:
            kept = self.policy.retention(query.reach)
            floors.append(proofs.least(query.types) - query.reach if kept is None else clock - kept)
        return max(min(floors), BEGINNING)

    def buffered(self) -> int:
        """Rows in sort buffers."""
        return sum(map(len, self.buffers.values()))

    @property
    def nbytes(self) -> int:
        holders: list[Any] = [*self.stores.values(), *self.buffers.values(), *(q.holding for q in self.queries)]
        return sum(int(h.nbytes) for h in holders) + (self.pending.nbytes if self.pending else 0)

    def dump(self) -> dict[str, Any]:
        return {
            "stores": [s.dump() for s in self.stores.values()],
            "buffers": [b.dump() for b in self.buffers.values()],
            "holding": [q.holding.dump() for q in self.queries],
            "horizons": [q.horizons for q in self.queries],
            "clocks": [q.clock for q in self.queries],
            "floors": [[q.floor, q.complete] for q in self.queries],
            "clock": self.clock,
            "policy": self.policy.dump(),
            "after_proof": self._after_proof,
            "pending": None if self.pending is None else self.pending.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for store, saved in zip(self.stores.values(), state["stores"], strict=True):
            store.load(saved)
        for buffer, saved in zip(self.buffers.values(), state["buffers"], strict=True):
            buffer.load(saved)
        queries = zip(self.queries, state["holding"], state["horizons"], state["clocks"], state["floors"], strict=True)
        for query, saved, horizons, clock, (floor, complete) in queries:
            query.holding.load(saved)
            query.horizons, query.clock, query.floor, query.complete = list(horizons), clock, floor, complete
        self.clock = state["clock"]
        self.policy.load(state["policy"])
        self._after_proof = state["after_proof"]
        if self.pending is not None and state["pending"] is not None:
            self.pending.load(state["pending"])


def _among(selector: Selector, selection: Selection, mask: Any) -> tuple[I64, U64]:
    """Rows and key hashes of a selection among the rows marked in ``mask`` (None: all)."""
    at, hashes = selector.select(selection)
    return (at, hashes) if mask is None or not len(at) else _where(mask[at], at, hashes)


def _masked(row: Picked, mask: Bools) -> Picked:
    hashes, ts, refs = row
    return hashes[mask], ts[mask], refs[mask]


def _together(a: Picked, b: Picked) -> Picked:
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]), np.concatenate([a[2], b[2]])


def _where(mask: Bools, at: I64, hashes: U64) -> tuple[I64, U64]:
    return at[mask], hashes[mask]


_NO_DELAYS = np.zeros(0, np.int64)
_FIRST_PURGE = 256  # stored events below which a purge by proof is not worth its calls
