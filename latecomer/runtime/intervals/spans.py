"""Span stores: events with intervals, found by key and by the time in which they may have happened.

A span store is a few stores by *class of length* (1, 2–7, 8–31, 32–127, … instants), each ordered by the lower end of
the intervals. An event may have happened from ``lo`` to ``hi`` iff its lower end lies in ``[lo - longest + 1, hi]``
and its upper end at or behind ``lo``; the first is a probe, the second is for the caller to check. ``longest`` is that
of the class, so a few very long intervals do not make every probe wide.

It offers what :class:`latecomer.storage.store.Store` offers to lanes, with ``purge`` by upper end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sortedcontainers import SortedDict

from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.store import CodeLayout, Hits, Staged, Store, View

#: Makes the store of one class.
MakeStore = Callable[[CodeLayout], Store]


class SpanStore:
    """All events of one (type, key, filter) with intervals."""

    def __init__(self, layout: CodeLayout, make: MakeStore = Store) -> None:
        self.layout, self._make = layout, make
        self._stores: SortedDict[int, Store] = SortedDict()
        self._longest: dict[int, int] = {}

    def stage(self, hashes: U64, lower: I64, upper: I64, refs: I64) -> None:
        """Take in a batch's events (any order); they are in the views NEW and ALL until :meth:`commit`."""
        if not len(refs):
            return
        length = upper - lower + 1
        classes = np.frexp(length.astype(np.float64))[1] // 2
        for number in np.unique(classes).tolist():
            at = (classes == number).nonzero()[0]
            store = self._stores.get(number)
            if store is None:
                store = self._stores[number] = self._make(self.layout)
            self._longest[number] = max(self._longest.get(number, 1), int(length[at].max()))
            store.stage(hashes.take(at), lower.take(at), refs.take(at))

    def parts(self) -> list[Store]:
        """The stores of all classes."""
        return list(self._stores.values())

    def commit(self) -> None:
        """Make the staged events part of the committed state."""
        for store in self._stores.values():
            store.commit()

    @property
    def staged(self) -> Staged:
        """The batch's new events; ``ts`` are lower ends."""
        parts = [s.staged for s in self._stores.values() if len(s.staged)]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Staged(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return Staged(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("keys", "ts", "refs")))

    def count(self, view: View) -> int:
        """How many events the view holds."""
        return sum(s.count(view) for s in self._stores.values())

    def latest(self, view: View) -> int:
        """No event of the view ends later."""
        ends = (s.latest(view) + self._longest[n] - 1 for n, s in self._stores.items() if s.count(view))
        return max(ends, default=-(2**63))

    def probe(self, keys: U64, lo: I64, hi: I64, view: View) -> Iterator[Hits]:
        """Find events with the same key hash that may have happened from ``lo`` to ``hi``, and some that end before.

        O(m log n) per class and run.
        """
        for number, store in self._stores.items():
            if store.count(view):
                yield from store.probe(keys, lo - (self._longest[number] - 1), hi, view)

    def within(self, keys: U64, lo: I64, hi: I64, view: View) -> Iterator[Hits]:
        """Find events with the same key hash that surely happened from ``lo`` to ``hi``, though not all of them."""
        for number, store in self._stores.items():
            if store.count(view):
                last = np.maximum(hi - (self._longest[number] - 1), lo - 1)
                yield from store.probe(keys, lo, last, view)

    def purge(self, floor: int) -> None:
        """Drop committed events that ended before ``floor``, or soon after it has moved on."""
        for number, store in list(self._stores.items()):
            # By the longest of the class there may be: events longer than all before may begin below what was purged.
            store.purge(floor - (2 * 4**number - 2))
            if not store.count(View.ALL):
                del self._stores[number], self._longest[number]

    def oldest(self) -> int | None:
        """No committed event begins before this; None when there is none."""
        return min((o for s in self._stores.values() if (o := s.oldest()) is not None), default=None)

    def events(self) -> tuple[U64, I64]:
        """Keys and references of all committed events."""
        parts = [s.events() for s in self._stores.values()]
        if not parts:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        return np.concatenate([keys for keys, _ in parts]), np.concatenate([refs for _, refs in parts])

    def keep(self, wanted: I64) -> I64:
        """Drop the committed events whose references are not in ``wanted`` (ascending); return those of the dropped."""
        gone = [np.zeros(0, np.int64)]
        for number, store in list(self._stores.items()):
            gone.append(store.keep(wanted))
            if not store.count(View.ALL):
                del self._stores[number], self._longest[number]
        return np.concatenate(gone)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self._stores.values())

    def dump(self) -> dict[str, Any]:
        """Committed state as plain data."""
        return {"stores": [(n, self._longest[n], s.dump()) for n, s in self._stores.items()]}

    def load(self, state: dict[str, Any]) -> None:
        for number, longest, saved in state["stores"]:
            store = self._stores[number] = self._make(self.layout)
            store.load(saved)
            self._longest[number] = longest

    def _check(self) -> None:
        """Assert every invariant."""
        assert set(self._stores) == set(self._longest)
        for number, store in self._stores.items():
            store._check()
            assert 4**number // 2 <= self._longest[number] < 2 * 4**number, f"class {number}: {self._longest[number]}"
