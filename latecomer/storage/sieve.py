"""Sieves: whether a key can be in any of many runs, asked once for all of them, at a byte of memory per key.

Rule: a sieve never says no to a key that was added; to one that was not it says yes in some 4 % of cases. Keys are
added as they come and never taken out, so a sieve is for keys that go at about the same time.

It is a Bloom filter whose keys each set three bits of one word (Putze, Sanders and Singler 2007, "blocked"): a key
costs one look into memory, and a batch a dozen NumPy calls. So the filters of the runs are asked about the few keys
that pass, and cost next to nothing however many runs there are.
"""

from __future__ import annotations

import numpy as np

from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64

_ONE = np.uint64(1)
_SIX, _TWELVE, _BIT = np.uint64(6), np.uint64(12), np.uint64(63)
_HALF = np.uint64(32)


def marks(mixed: U64) -> U64:
    """The bits that each key sets in its word; ``mixed`` are hashes, all of whose bits count."""
    bits = _ONE << (mixed & _BIT)
    bits |= _ONE << (mixed >> _SIX & _BIT)
    bits |= _ONE << (mixed >> _TWELVE & _BIT)
    return bits


class Sieve:
    """Room for ``capacity`` keys; more make it say yes more often.

    >>> sieve, keys = Sieve(100), np.array([7 << 60, 9 << 50], np.uint64)
    >>> sieve.add(keys[:1]); sieve.passing(keys, marks(keys)).tolist()
    [0]
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._words = np.zeros(max(capacity // 8, 1), np.uint64)

    def add(self, mixed: U64) -> None:
        """Enter keys. O(1) per key."""
        np.bitwise_or.at(self._words, self._places(mixed), marks(mixed))
        self.count += len(mixed)

    def passing(self, mixed: U64, wanted: U64) -> I64:
        """Which keys may have been added, by number; ``wanted`` are their :func:`marks`. O(1) per key."""
        found = self._words.take(self._places(mixed))
        found &= wanted
        at: I64 = (found == wanted).nonzero()[0]
        return at

    def _places(self, mixed: U64) -> I64:
        places = mixed >> _HALF
        places *= np.uint64(len(self._words))
        places >>= _HALF
        return places.view(np.int64)

    @property
    def nbytes(self) -> int:
        return self._words.nbytes
