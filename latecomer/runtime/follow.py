"""WinSeq and WinNeg on the compiled road: each join order is followed from its new events to matches in one call.

It gives what :class:`latecomer.runtime.sequence.SequenceMatcher` gives, up to the order of matches where that does not
count, and takes that one's road wherever there is no compiled one: for a query where a condition or a column has no
words in :mod:`latecomer.runtime.road` or events may be on the shelf, and for all where kernels are not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from latecomer.runtime.pattern import JoinOrder, Pattern, Tester
from latecomer.runtime.road import NEGATIVES, NEW, Road, Unpaved, checking_road, killing_road, road_of
from latecomer.runtime.rows import PIECE, Rows
from latecomer.runtime.selection import Selection
from latecomer.runtime.sequence import SequenceMatcher
from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.store import Bools, CodeLayout, Store, View


def matcher_of(
    pattern: Pattern, stores: Mapping[Selection, Store], layout: CodeLayout, tester: Tester
) -> SequenceMatcher:
    """The fastest matcher there is for a query over these stores."""
    if kernels.follow is None or not all(stores[s].in_memory for s in pattern.selections()):
        return SequenceMatcher(pattern, stores.__getitem__, layout, tester)
    return CompiledMatcher(pattern, stores, layout, tester)


class _Paved:
    """A road as a program, and what it looks at: the log's columns and views of stores."""

    def __init__(self, road: Road, looks: Sequence[tuple[Store, View]], tester: Tester, layout: CodeLayout) -> None:
        self._program = kernels.program(np.array(road.words, np.int64))
        self._columns, self._looks, self._log, self._bits = road.columns, looks, tester.log, layout.bits

    def follow(self, keys: U64, refs: tuple[I64, ...], ts: tuple[I64, ...]) -> Iterator[tuple[I64, Rows]]:
        """Matches in bounded pieces, with the numbers of their seeds. Seeds are keys, and references and times of each
        component that they bind.
        """
        sources = tuple([store.source(view) for store, view in self._looks])
        latest = tuple([store.latest(view) for store, view in self._looks])
        columns, places = self._log.plain(self._columns), self._log.places()
        found = kernels.follow(self._program, sources, self._bits, columns, places, keys, refs, ts, PIECE, latest)
        while found is not None:
            seeds, own, all_refs, all_ts, rest = found
            yield seeds, Rows(all_refs, all_ts, own)
            found = None if rest is None else kernels.resume(rest, PIECE)


class CompiledMatcher(SequenceMatcher):
    """Deltas of one query over its lane's stores, all of whose events are in memory."""

    def __init__(self, pattern: Pattern, stores: Mapping[Selection, Store], layout: CodeLayout, tester: Tester) -> None:
        super().__init__(pattern, stores.__getitem__, layout, tester)
        types = {name: column.type for name, column in tester.log.columns.items()}

        def paved(road: Callable[[], Road], view: Callable[[int], View]) -> _Paved | None:
            try:
                own = road()
            except Unpaved:
                return None
            looks = [(stores[s], View.NEW if index == NEW else view(index)) for s, index in own.looks]
            return _Paved(own, looks, tester, layout)

        def gaining(order: JoinOrder, ordered: bool) -> _Paved | None:
            def view(index: int) -> View:
                return View.ALL if ordered or index == NEGATIVES or index < order.seed else View.OLD

            return paved(partial(road_of, order, pattern, types), view)

        def known(index: int) -> View:
            return View.OLD

        def everything(index: int) -> View:
            return View.ALL

        self._gaining = [[gaining(order, ordered) for ordered in (False, True)] for order in pattern.inserts]
        self._losing = [paved(partial(killing_road, j, pattern, types), known) for j in range(len(pattern.deletes))]
        self._around = {
            id(order): paved(partial(road_of, order, pattern, types), known)
            for order in (*pattern.inserts, *pattern.deletes)
        }
        leading = [p for p in pattern.probes if p.negation.kind == "leading"]
        self._checking = paved(partial(checking_road, pattern.probes, False, pattern, types), everything)
        self._sparing = paved(partial(checking_road, leading, True, pattern, types), everything)

    def _gained(self, position: int, ordered: bool) -> Iterator[Rows]:
        road = self._gaining[position][ordered]
        if road is None:
            yield from super()._gained(position, ordered)
            return
        staged = self._store(self._pattern.inserts[position].selection).staged
        if not len(staged):
            return
        keys, refs, ts = staged.keys, staged.refs, staged.ts
        if ordered:
            order = ts.argsort(kind="stable")
            keys, refs, ts = keys.take(order), refs.take(order), ts.take(order)
        for _, rows in road.follow(keys, (refs,), (ts,)):
            yield rows

    def _lost(self, j: int) -> Iterator[tuple[Rows, I64]]:
        road = self._losing[j]
        if road is None:
            yield from super()._lost(j)
            return
        order = self._pattern.deletes[j]
        staged = self._store(order.selection).staged
        if len(staged):
            for _, rows in road.follow(staged.keys, (staged.refs,), (staged.ts,)):
                yield rows.unbind(order.seed), rows.ref(order.seed)

    def around(self, order: JoinOrder, refs: I64, ts: I64, hashes: U64) -> Iterator[Rows]:
        road = self._around[id(order)]
        if road is None:
            yield from super().around(order, refs, ts, hashes)
            return
        for _, rows in road.follow(self._layout.keys(hashes), (refs,), (ts,)):
            yield rows

    def alive(self, rows: Rows) -> Bools:
        return super().alive(rows) if self._checking is None else self._left(self._checking, rows)

    def spared(self, rows: Rows) -> Bools:
        return super().spared(rows) if self._sparing is None else self._left(self._sparing, rows)

    def _left(self, road: _Paved, rows: Rows) -> Bools:
        """Which complete matches come to the end of a road."""
        mask = np.zeros(len(rows), bool)
        positives = self._pattern.positives
        refs, ts = tuple([rows.ref(i) for i in positives]), tuple([rows.time(i) for i in positives])
        for seeds, _ in road.follow(rows.keys, refs, ts):
            mask[seeds] = True
        return mask
