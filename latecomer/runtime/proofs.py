"""Proofs: all promises together, for types, sources and single keys, as lanes ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from latecomer.consistency.bounds import Bounds
from latecomer.consistency.keybounds import KeyBounds
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, hash_columns
from latecomer.storage.log import EventLog


class Proofs:
    """What is proven now. ``names`` are the columns that keyed punctuation speaks of (``Stream(of_key=…)``)."""

    def __init__(self, types: int, sources: int, names: Sequence[str], log: EventLog) -> None:
        self.bounds = Bounds(types, sources)
        self.keys = KeyBounds(types)
        self.names = tuple(names)
        self.keys_moved = False  # a key was closed since the lanes last acted
        self._log = log

    @property
    def keyed(self) -> bool:
        """Whether anything is promised of single keys."""
        return len(self.keys) > 0

    def bound(self, type: int) -> int:
        """The type's bound, whatever the key."""
        return self.bounds.bound(type)

    def least(self, types: Iterable[int]) -> int:
        """The bound that holds for all of ``types``, whatever the key."""
        return self.bounds.least(types)

    def at(self, type: int, refs: I64) -> I64:
        """The bound of a type for the keys of the given events."""
        types = np.full(len(refs), type)
        return np.maximum(self.keys.at(types, self._hashes(refs)), self.bounds.bound(type))

    def own(self, types: I64, refs: I64) -> I64:
        """For each event the bound of its own type and key."""
        whole = np.array([self.bounds.bound(t) for t in range(self.bounds.types)])[types]
        return np.maximum(whole, self.keys.at(types, self._hashes(refs))) if self.keyed else whole

    def _hashes(self, refs: I64) -> U64:
        return hash_columns([self._log.take(name, refs) for name in self.names])
