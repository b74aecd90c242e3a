"""Punctuation for single keys: "this container is closed", so no event of the type with this key at or below a time
will follow.

A keyed promise speaks for all sources: it is a fact about the key. Keys are found by hash and told apart by value:
where two keys share a hash, neither's promise is used, which only waits longer. As with other bounds, what counts for
an event is what was promised before its arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.consistency.clock import BEGINNING, I64
from latecomer.consistency.punctuation import ANY

U64 = npt.NDArray[np.uint64]


class KeyBounds:
    """The largest bound per (type, key). ``types`` is how many event types there are.

    Invariant: hashes ascend; a hash stands for one key, or is listed as shared and bounds nothing.

    >>> keys = KeyBounds(1)
    >>> before = keys.apply(np.array([0]), np.array([0]), np.array([9]), np.array([77], np.uint64), [("c1",)])
    >>> keys.at(np.array([0, 0]), np.array([77, 78], np.uint64)).tolist()[0]
    9
    """

    def __init__(self, types: int) -> None:
        self._types = types
        self._hashes: U64 = np.zeros(0, np.uint64)
        self._bounds: I64 = np.zeros((types, 0), np.int64)
        self._values: dict[int, Any] = {}
        self._shared: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def at(self, types: I64, hashes: U64) -> I64:
        """The bound of each (type, key); BEGINNING where nothing was promised."""
        result = np.full(len(types), BEGINNING)
        if len(self._hashes) and len(types):
            at = np.minimum(self._hashes.searchsorted(hashes), len(self._hashes) - 1)
            known = self._hashes[at] == hashes
            result[known] = self._bounds[types[known], at[known]]
        return result

    def apply(self, position: I64, type: I64, ts: I64, hashes: U64, values: Sequence[Any]) -> KeyHistory:
        """Take in promises, in order of position: of ``type`` (or ANY) for the key with a hash and a value."""
        self._learn(hashes, values)
        history = KeyHistory(self)
        for kind in range(self._types):
            of = (type == ANY) | (type == kind)
            if of.any():
                history.add(kind, position[of], ts[of], hashes[of])
        for kind in range(self._types):
            of = (type == ANY) | (type == kind)
            np.maximum.at(self._bounds[kind], self._hashes.searchsorted(hashes[of]), ts[of])
        for shared in self._shared:
            self._bounds[:, self._hashes.searchsorted(np.uint64(shared))] = BEGINNING
        return history

    def _learn(self, hashes: U64, values: Sequence[Any]) -> None:
        for number, value in zip(hashes.tolist(), values, strict=True):
            if self._values.setdefault(number, value) != value:
                self._shared.add(number)
        everyone = np.union1d(self._hashes, hashes)
        if len(everyone) > len(self._hashes):
            bounds = np.full((self._types, len(everyone)), BEGINNING)
            bounds[:, everyone.searchsorted(self._hashes)] = self._bounds
            self._hashes, self._bounds = everyone, bounds

    def forget(self, least: int) -> None:
        """Drop keys that say no more than what is promised for all: every bound at or below ``least``."""
        keep = (self._bounds > least).any(axis=0)
        if not keep.all():
            gone = self._hashes[~keep].tolist()
            self._hashes, self._bounds = self._hashes[keep], self._bounds[:, keep]
            for number in gone:
                self._values.pop(number, None)
                self._shared.discard(number)

    def dump(self) -> dict[str, Any]:
        return {
            "hashes": self._hashes,
            "bounds": self._bounds.ravel(),
            "values": [[h, list(v)] for h, v in self._values.items()],
            "shared": sorted(self._shared),
        }

    def load(self, state: dict[str, Any]) -> None:
        self._hashes = state["hashes"]
        self._bounds = state["bounds"].reshape(self._types, -1)
        self._values = {h: tuple(v) for h, v in state["values"]}
        self._shared = set(state["shared"])


class KeyHistory:
    """What keyed promises held at each position of one batch."""

    def __init__(self, before: KeyBounds) -> None:
        self._hashes, self._bounds = before._hashes, before._bounds.copy()
        self._blocked = np.array(sorted(before._shared), np.uint64)
        self._steps: dict[int, tuple[U64, I64, I64]] = {}

    def add(self, kind: int, position: I64, ts: I64, hashes: U64) -> None:
        """Note a type's promises of the batch as a running maximum per key."""
        order = np.lexsort((position, hashes))
        hashes, position, ts = hashes[order], position[order], ts[order]
        values, rank = np.unique(ts, return_inverse=True)
        base = np.cumsum(np.append(True, hashes[1:] != hashes[:-1])) * len(values)
        self._steps[kind] = (hashes, position, values[np.maximum.accumulate(base + rank) - base])

    def at(self, types: I64, hashes: U64, positions: I64) -> I64:
        """The bound that was promised for each event's type and key before its position."""
        result = np.full(len(types), BEGINNING)
        if len(self._hashes):
            at = np.minimum(self._hashes.searchsorted(hashes), len(self._hashes) - 1)
            known = self._hashes[at] == hashes
            result[known] = self._bounds[types[known], at[known]]
        for kind, (keys, position, bounds) in self._steps.items():
            rows = np.flatnonzero(types == kind)
            for row in rows[np.isin(hashes[rows], keys)].tolist():
                first, last = keys.searchsorted(hashes[row]), keys.searchsorted(hashes[row], "right")
                before = int(position[first:last].searchsorted(positions[row]))
                if before:
                    result[row] = max(result[row], bounds[first + before - 1])
        result[np.isin(hashes, self._blocked)] = BEGINNING
        return result
