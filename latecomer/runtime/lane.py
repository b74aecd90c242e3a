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

from latecomer.consistency.clock import BEGINNING
from latecomer.consistency.policy import Policy
from latecomer.consistency.punctuation import Bounds
from latecomer.runtime.holding import Holding
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.rows import Rows
from latecomer.runtime.selection import Selection, Selector
from latecomer.runtime.sequence import SequenceMatcher
from latecomer.storage.columns import I64
from latecomer.storage.log import EventLog
from latecomer.storage.store import CodeLayout, Store
from latecomer.storage.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Delta:
    """Matches of one query that the output gains (``insert``) or loses."""

    query: int
    insert: bool
    rows: Rows


class QueryState:
    """One query in a lane: its joins and its waiting matches."""

    def __init__(self, number: int, pattern: Pattern, type_numbers: Mapping[str, int]) -> None:
        self.number = number
        self.pattern = pattern
        self.types = tuple(type_numbers[t] for t in pattern.plan.types)
        self.negative_types = tuple(type_numbers[n.component.type] for n in pattern.plan.negations)
        self.matcher: SequenceMatcher
        self.holding: Holding
        self.horizons = [BEGINNING] * len(self.negative_types)


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
        self._log = log
        self.queries = [QueryState(number, pattern, type_numbers) for number, pattern in patterns]
        selections = sorted({s for q in self.queries for s in q.pattern.selections()}, key=repr)
        self.stores: dict[Selection, Store] = {s: Store(layout) for s in selections}
        self._buffers: dict[Selection, Timeline] = {s: Timeline(2) for s in selections} if policy.ordered else {}
        for query in self.queries:
            query.matcher = SequenceMatcher(query.pattern, self.stores.__getitem__, layout, log, testers[query.number])
            query.holding = Holding(query.pattern, log)
        self.types = sorted({t for q in self.queries for t in q.types})
        self._users = {s: [q for q in self.queries if s in q.pattern.selections()] for s in selections}

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(
        self, selector: Selector | None, accepted: Any, refs: I64, ts: I64, clock: int, bounds: Bounds
    ) -> Iterator[Delta]:
        """Take in the events marked in ``accepted`` and move to ``clock`` and ``bounds``; the deltas must be consumed
        to the end."""
        if selector is not None:
            self._admit(selector, accepted, refs, ts)
        entry = self.policy.entry(clock)
        for selection, buffer in self._buffers.items():
            moments, columns = buffer.take(entry)
            self.stores[selection].stage(columns[0].view(np.uint64), moments, columns[1])
        for query in self.queries:
            horizons = [self.policy.horizon(clock, bounds.bound(t)) for t in query.negative_types]
            yield from self._advance(query, horizons)
        for store in self.stores.values():
            store.commit()
        self._purge(clock, bounds)

    def _admit(self, selector: Selector, accepted: Any, refs: I64, ts: I64) -> None:
        for selection, store in self.stores.items():
            at, hashes = selector.select(selection)
            if accepted is not None and len(at):
                mask = accepted[at]
                at, hashes = at[mask], hashes[mask]
            if not len(at):
                continue
            if self.policy.ordered:
                self._buffers[selection].add(ts[at], [hashes.view(np.int64), refs[at]])
            else:
                store.stage(hashes, ts[at], refs[at])

    def _advance(self, query: QueryState, horizons: list[int]) -> Iterator[Delta]:
        """Corrections, new matches and releases of one query."""
        matcher, holding = query.matcher, query.holding
        ordered = self.policy.ordered
        if not self.policy.final:
            for rows in matcher.deleted():
                left = rows.take(holding.closed(rows, query.horizons))
                if len(left):
                    yield Delta(query.number, False, left)
        for rows in matcher.inserted(ordered):
            if not horizons:
                yield Delta(query.number, True, rows)
            elif ordered and holding.waits_past_its_end:
                holding.hold(rows)
            else:
                closed = holding.closed(rows, horizons)
                if closed.all():
                    yield Delta(query.number, True, rows)
                    continue
                holding.hold(rows.take(~closed))
                if closed.any():
                    yield Delta(query.number, True, rows.take(closed))
        if horizons and len(holding):
            rows = holding.due(horizons)
            if len(rows):
                rows = rows.take(matcher.alive(rows))
            if ordered and len(rows):
                rows = rows.take(holding.completion(rows).argsort(kind="stable"))
            if len(rows):
                yield Delta(query.number, True, rows)
        query.horizons = horizons

    def _purge(self, clock: int, bounds: Bounds) -> None:
        for selection, store in self.stores.items():
            floor = self.floor(clock, bounds, selection)
            if floor > BEGINNING:
                store.purge(floor)

    # --- what is held ------------------------------------------------------------------------------------------------

    def floor(self, clock: int, bounds: Bounds, selection: Selection | None = None) -> int:
        """Events below this time cannot change any answer of the lane (or of the store's users)."""
        users = self.queries if selection is None else self._users[selection]
        return min(self.policy.floor(clock, bounds.least(q.types), q.pattern.window) for q in users)

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
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for store, saved in zip(self.stores.values(), state["stores"], strict=True):
            store.load(saved)
        for buffer, saved in zip(self._buffers.values(), state["buffers"], strict=True):
            buffer.load(saved)
        for query, saved, horizons in zip(self.queries, state["holding"], state["horizons"], strict=True):
            query.holding.load(saved)
            query.horizons = list(horizons)
