"""Purging by proof: which stored events can be in no match, and kill no match, that is still to come.

This is Liu 2012, Algorithm 2 (POG-Set-Purge), in the "none at or below" reading, for whole stores at once, with two
additions. An event is useless

* when some component before it, or after it, has no stored event left to be and none can come any more, taking the
  components in pattern order and always the earliest event possible, which leaves the most room for the next
  (Algorithm 2; one component alone is Algorithm 1);
* when of *no* other component an event can still come into its window: the matches around it were all found.

A negative is an element of the sequence like any other: the matches that it may kill have their events around it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latecomer.runtime.pattern import Pattern
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools, Store, View

#: The bound of a component's event type, for the keys of some events (by reference).
BoundOf = Callable[[int, I64], I64]


class ProofPurge:
    """Finds useless events of one query's components."""

    def __init__(self, pattern: Pattern, store_of: Callable[[Selection], Store], log: EventLog) -> None:
        self._pattern, self._store_of, self._log = pattern, store_of, log
        self._selections = {order.seed: order.selection for order in (*pattern.inserts, *pattern.deletes)}

    def selection(self, index: int) -> Selection:
        """The selection under which component ``index`` is kept by the pattern's key."""
        return self._selections[index]

    def needed(self, index: int, bound_of: BoundOf) -> I64:
        """References of the stored events of component ``index`` that may still matter."""
        keys, refs = self._store_of(self._selections[index]).events()
        ts = self._log.ts(refs)
        useless = self._found(index, ts, refs, bound_of)
        for before in (True, False):
            left = np.flatnonzero(~useless)
            if len(left):
                useless[left] = self._without_partner(index, keys[left], ts[left], refs[left], before, bound_of)
        return refs[~useless]

    def _found(self, index: int, ts: I64, refs: I64, bound_of: BoundOf) -> Bools:
        """Whether no event of another component can still come into the window."""
        window = self._pattern.window
        done = np.ones(len(ts), bool)
        for other in self._pattern.positives:
            if other != index:
                done &= bound_of(other, refs) >= (ts - 1 if other < index else ts + window)
        return done

    def _without_partner(self, index: int, keys: U64, ts: I64, refs: I64, before: bool, bound_of: BoundOf) -> Bools:
        """Algorithm 2 on one side of the events."""
        window = self._pattern.window
        low, high = (ts - window, ts - 1) if before else (ts + 1, ts + window)
        useless = np.zeros(len(ts), bool)
        for other in self._pattern.positives:
            if (other < index) != before or other == index:
                continue
            known = (bound_of(other, refs) >= high) & ~useless
            rows = np.flatnonzero(known)
            if len(rows):
                first = self._earliest(other, keys[rows], low[rows], high[rows])
                useless[rows[first > high[rows]]] = True
                low[rows] = first + 1
        return useless

    def _earliest(self, index: int, keys: U64, low: I64, high: I64) -> I64:
        """The earliest stored event of a component with the same key hash, from ``low`` to ``high``; beyond ``high``
        if none.

        Equal hashes of different keys only keep an event longer than needed.
        """
        first = high + 1
        for hit in self._store_of(self._selections[index]).probe(keys, low, high, View.OLD):
            rows = np.flatnonzero(hit.count)
            first[rows] = np.minimum(first[rows], hit.events(hit.first[rows])[1])
        return first
