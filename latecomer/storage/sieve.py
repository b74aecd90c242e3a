"""Sieves: whether a key can be in any of many runs, asked once for all of them, at a byte of memory per key.

Rule: a sieve never says no to a key that was added; to one that was not it says yes in some 4 % of cases. Keys are
added as they come and never taken out, so a sieve is for keys that go at about the same time.

It is a Bloom filter whose keys each set three bits of one word (Putze, Sanders and Singler 2007, "blocked"): a key
costs one look into memory, and a batch one call. So the filters of the runs are asked about the few keys
that pass, and cost next to nothing however many runs there are.
"""

from __future__ import annotations

import numpy as np

from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64


class Sieve:
    """Room for ``capacity`` keys; more make it say yes more often. Keys are hashes, all of whose bits count.

    >>> sieve, keys = Sieve(100), np.array([7 << 60, 9 << 50], np.uint64)
    >>> sieve.add(keys[:1]); sieve.passing(keys).tolist()
    [0]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._words = np.zeros(max(capacity // 8, 1), np.uint64)

    def add(self, mixed: U64) -> None:
        """Enter keys. O(1) per key."""
        kernels.sow(mixed, self._words)
        self.count += len(mixed)

    def passing(self, mixed: U64) -> I64:
        """Which keys may have been added, by number. O(1) per key."""
        return kernels.sift(mixed, self._words)

    @property
    def nbytes(self) -> int:
        return self._words.nbytes
