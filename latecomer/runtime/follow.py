"""WinSeq and WinNeg on the compiled road: each join order is followed from its new events to matches in one call.

It gives what :class:`latecomer.runtime.sequence.SequenceMatcher` gives, up to the order of matches where that does not
count, and takes that one's road wherever there is no compiled one: for a query where a condition or a column has no
words in :mod:`latecomer.runtime.road`, for events a window from which state may be on the shelf, and for all where
kernels are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from latecomer.runtime.pattern import JoinOrder, Pattern, Probe, Tester
from latecomer.runtime.refinement import Refinement, refinement
from latecomer.runtime.road import NEGATIVES, NEW, Road, Unpaved, checking_road, killing_road, refining_road, road_of
from latecomer.runtime.rows import PIECE, Answer, Rows
from latecomer.runtime.selection import Selection
from latecomer.runtime.sequence import SequenceMatcher
from latecomer.storage import kernels
from latecomer.storage.columns import I64, every, some
from latecomer.storage.hashing import U64
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools, CodeLayout, Store, View


def matcher_of(
    pattern: Pattern, stores: Mapping[Selection, Store], layout: CodeLayout, tester: Tester
) -> SequenceMatcher:
    """The fastest matcher there is for a query over these stores."""
    if kernels.follow is None:
        return SequenceMatcher(pattern, stores.__getitem__, layout, tester)
    return CompiledMatcher(pattern, stores, layout, tester)


class _Paved:
    """A road as a program, and what it looks at: the log's columns and views of stores."""

    def __init__(self, road: Road, looks: Sequence[tuple[Store, View]], tester: Tester, layout: CodeLayout) -> None:
        self._program = kernels.program(np.array(road.words, np.int64))
        self._columns, self._looks, self._log, self._bits = road.columns, looks, tester.log, layout.bits
        #: The looks for components: where one finds nothing there are no matches.
        self._needed = [
            look for look, (_, index) in zip(looks, road.looks, strict=True) if index not in (NEGATIVES, NEW)
        ]

    def follow(self, keys: U64, refs: tuple[I64, ...], ts: tuple[I64, ...]) -> Iterator[tuple[I64, Rows]]:
        """Matches in bounded pieces, with the numbers of their seeds. Seeds are keys, and references and times of each
        component that they bind.
        """
        order = self.order(keys, refs, ts)
        found = None if order is None else kernels.follow(*order)
        while found is not None:
            seeds, own, all_refs, all_ts, rest = found
            yield seeds, Rows(all_refs, all_ts, own)
            found = None if rest is None else kernels.resume(rest, PIECE)

    def plan(self, stores: Mapping[Store, int], columns: Sequence[str]) -> tuple[Any, ...]:
        """The program, and by their places among ``stores`` and ``columns`` what it looks at, for ``native/plan.h``."""
        looks = [stores[store] for store, _ in self._looks], [_VIEWS[view] for _, view in self._looks]
        return self._program, *map(tuple, looks), tuple([columns.index(name) for name in self._columns])

    def order(self, keys: U64, refs: tuple[I64, ...], ts: tuple[I64, ...]) -> tuple[Any, ...] | None:
        """What the kernel is asked about these seeds; None: there is nothing to be found."""
        for store, view in self._needed:
            if not store.count(view):
                return None
        sources = tuple([store.source(view) for store, view in self._looks])
        latest = tuple([store.latest(view) for store, view in self._looks])
        columns, places = self._log.plain(self._columns), self._log.places()
        return self._program, sources, self._bits, columns, places, keys, refs, ts, PIECE, latest


#: What ``native/plan.h`` calls the matches that are due, and those that another order finds: most orders start from the
#: events of a store.
_DUE, _FOUND = -1, -2

#: How ``native/plan.h`` counts views.
_VIEWS = {View.OLD: 0, View.NEW: 1, View.ALL: 2}

_NOTHING = np.zeros((0, 0), np.int64)


def _known(index: int) -> View:
    return View.OLD


def _everything(index: int) -> View:
    return View.ALL


class CompiledMatcher(SequenceMatcher):
    """Deltas of one query over its lane's stores."""

    def __init__(self, pattern: Pattern, stores: Mapping[Selection, Store], layout: CodeLayout, tester: Tester) -> None:
        super().__init__(pattern, stores.__getitem__, layout, tester)
        own = [stores[s] for s in pattern.selections()]
        self._holders: list[EventLog | Store] = [] if all(s.in_memory for s in own) else [tester.log, *own]
        self._parts = np.array(pattern.positives, np.int64)
        self._stores = stores
        self._types = {name: column.type for name, column in tester.log.columns.items()}
        self._gaining = [self._gain(order, ordered=False) for order in pattern.inserts]
        self._losing = [self._lose(j) for j in range(len(pattern.deletes))]
        roads = [*self._losing, *self._gaining]
        self._paved = [] if self._holders or None in roads else [road for road in roads if road is not None]

    def _gain(self, order: JoinOrder, *, ordered: bool) -> _Paved | None:
        def view(index: int) -> View:
            return View.ALL if ordered or index == NEGATIVES or index < order.seed else View.OLD

        return self._pave(partial(road_of, order, self._pattern, self._types), view)

    def _lose(self, j: int) -> _Paved | None:
        return self._pave(partial(killing_road, j, self._pattern, self._types), _known)

    # Most queries never take these.

    @cached_property
    def _gaining_in_order(self) -> list[_Paved | None]:
        return [self._gain(order, ordered=True) for order in self._pattern.inserts]

    @cached_property
    def _reaching(self) -> dict[int, _Paved | None]:
        orders = (*self._pattern.inserts, *self._pattern.deletes)
        return {id(o): self._pave(partial(road_of, o, self._pattern, self._types), _known) for o in orders}

    @cached_property
    def _checking(self) -> _Paved | None:
        return self._check(self._pattern.probes, new=False)

    @cached_property
    def _sparing(self) -> _Paved | None:
        return self._check([p for p in self._pattern.probes if p.negation.kind == "leading"], new=True)

    def _check(self, probes: Sequence[Probe], *, new: bool) -> _Paved | None:
        return self._pave(partial(checking_road, probes, new, self._pattern, self._types), _everything)

    def _pave(self, road: Callable[[], Road], view: Callable[[int], View]) -> _Paved | None:
        """The program of a road, whose looks at a component (or at negatives) are at this view; None: it has none."""
        try:
            own = road()
        except Unpaved:
            return None
        looks = [(self._stores[s], View.NEW if index == NEW else view(index)) for s, index in own.looks]
        return _Paved(own, looks, self._tester, self._layout)

    def answer(self, query: int) -> Answer | None:
        """All that the new events change, where nothing waits and nothing was ordered: as :meth:`deleted`, then
        :meth:`inserted`, in one call. None: that cannot be, or is too much for one table. ``query``: its number.
        """
        orders, ops = [], []
        for number, road in enumerate(self._paved):
            loses = number < len(self._losing)
            store = self._losing_from[number] if loses else self._gaining_from[number - len(self._losing)]
            new = store.staged
            if len(new.refs) and (order := road.order(new.keys, (new.refs,), (new.ts,))) is not None:
                orders.append(order)
                ops.append(not loses)
        if not orders:
            return Answer(query, [], _NOTHING, _NOTHING) if self._paved else None
        found = kernels.follow_each(tuple(orders), self._parts, PIECE)
        if found is None:
            return None
        counts, refs, ts = found
        return Answer(query, [(op, count) for op, count in zip(ops, counts, strict=True) if count], refs, ts)

    def orders(self, stores: Mapping[Store, int], columns: Sequence[str], waits: bool) -> tuple[Any, ...]:
        """The join orders of :meth:`answer`, as ``native/plan.h`` reads them; empty where it has none.

        ``stores``: their places; ``columns``: of the log; ``waits``: whether matches wait, and are looked at again.
        """
        lost, seeds = len(self._losing), [*self._losing_from, *self._gaining_from]
        roads = [(road, number >= lost, stores[seeds[number]]) for number, road in enumerate(self._paved)]
        if waits and roads:
            if self._checking is None:
                return ()
            roads.append((self._checking, True, _DUE))
        plans = [(gains, seed, road.plan(stores, columns)) for road, gains, seed in roads]
        return tuple([(program, gains, seed, *looks, None) for gains, seed, (program, *looks) in plans])

    def refined(
        self,
        orders: tuple[Any, ...],
        wider: CompiledMatcher,
        place: int,
        stores: Mapping[Store, int],
        columns: Sequence[str],
    ) -> tuple[Any, ...]:
        """``orders``, as :meth:`orders` says them, but for those that can start from what the orders of a wider query
        find, which is at this place; where the query does not refine that one they stay as they are.
        """
        terms = refinement(self._pattern, wider._pattern)
        if terms is None:
            return orders
        return tuple(
            [
                order if origin is None else self._refining(number, origin, terms, order, place, stores, columns)
                for number, (order, origin) in enumerate(zip(orders, self._origins(terms, wider), strict=True))
            ]
        )

    def _origins(self, terms: Refinement, wider: CompiledMatcher) -> list[int | None]:
        """For each of our orders the number of that order of the wider query that finds what it wants, and more."""
        return [*terms.negations, *(len(wider._losing) + i for i in range(len(self._gaining)))]

    def _refining(
        self,
        number: int,
        origin: int,
        terms: Refinement,
        order: tuple[Any, ...],
        place: int,
        stores: Mapping[Store, int],
        columns: Sequence[str],
    ) -> tuple[Any, ...]:
        """An order that starts from what an order of the wider query finds; the given one, if that has no words."""
        loses = number < len(self._losing)
        probes = self._pattern.probes
        added = [probes[j] for j in terms.added]
        first = [probes[j] for j in terms.added if loses and j < number]  # they have killed it
        words = partial(refining_road, terms.tests, added, first, self._pattern, self._types)
        road = self._pave(words, _known if loses else _everything)
        if road is None:
            return order
        program, *looks = road.plan(stores, columns)
        return (program, not loses, _FOUND, *looks, (place, origin))

    def _gained(self, position: int, seeds: Rows, ordered: bool) -> Iterator[Rows]:
        roads = self._gaining_in_order if ordered else self._gaining
        road, seed = roads[position], self._pattern.inserts[position].seed
        far, near = self._parted(road, seeds, seeds.time(seed))
        if far is not None:  # these are earlier than the others
            yield from super()._gained(position, far, ordered)
        if road is None or near is None:
            return
        if ordered:
            near = near.take(near.time(seed).argsort(kind="stable"))
        for _, rows in road.follow(near.keys, (near.ref(seed),), (near.time(seed),)):
            yield rows

    def _lost(self, j: int, seeds: Rows) -> Iterator[tuple[Rows, I64]]:
        road, seed = self._losing[j], self._pattern.deletes[j].seed
        far, near = self._parted(road, seeds, seeds.time(seed))
        if far is not None:
            yield from super()._lost(j, far)
        if road is None or near is None:
            return
        for _, rows in road.follow(near.keys, (near.ref(seed),), (near.time(seed),)):
            yield rows.unbind(seed), rows.ref(seed)

    def _around(self, order: JoinOrder, seeds: Rows) -> Iterator[Rows]:
        road = self._reaching[id(order)]
        far, near = self._parted(road, seeds, seeds.time(order.seed))
        if far is not None:
            yield from super()._around(order, far)
        if road is None or near is None:
            return
        for _, rows in road.follow(near.keys, (near.ref(order.seed),), (near.time(order.seed),)):
            yield rows

    def alive(self, rows: Rows) -> Bools:
        return self._left(self._checking, rows, super().alive)

    def spared(self, rows: Rows) -> Bools:
        return self._left(self._sparing, rows, super().spared)

    def _left(self, road: _Paved | None, rows: Rows, other: Callable[[Rows], Bools]) -> Bools:
        """Which complete matches come to the end of a road, or of the ``other`` one where that cannot be gone."""
        if road is None:
            return other(rows)
        near = self._near(rows.time(self._pattern.positives[-1]))
        if near is None:
            return self._passed(road, rows)
        mask = np.zeros(len(rows), bool)
        mask[~near] = other(rows.take(~near))
        mask[near] = self._passed(road, rows.take(near))
        return mask

    def _passed(self, road: _Paved, rows: Rows) -> Bools:
        mask = np.zeros(len(rows), bool)
        positives = self._pattern.positives
        refs, ts = tuple([rows.ref(i) for i in positives]), tuple([rows.time(i) for i in positives])
        for seeds, _ in road.follow(rows.keys, refs, ts):
            mask[seeds] = True
        return mask

    def _parted(self, road: _Paved | None, seeds: Rows, ts: I64) -> tuple[Rows | None, Rows | None]:
        """The seeds that have to go the other road, and those that can go this one; None where there are none."""
        if road is None:
            return seeds, None
        near = self._near(ts)
        if near is None:
            return None, seeds
        return (seeds.take(~near), seeds.take(near)) if some(near) else (seeds, None)

    def _near(self, ts: I64) -> Bools | None:
        """For which rows all that they may look at, a window from ``ts``, is in memory; None: for all."""
        if not self._holders:
            return None
        near: Bools = ts > max([holder.away_until for holder in self._holders]) + self._pattern.window
        return None if every(near) else near
