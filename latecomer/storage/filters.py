"""Filters: whether a key can be in a set, at about 19 bits of memory per key.

Rule: a filter never says no to a key that is in it; to one that is not it says yes once in 65,536 times. It is built
once, from all its keys, and cannot change.

It is a binary fuse filter (Graf and Lemire 2022) with cells of 16 bits, built and probed a whole array at a time. Each
key has three cells, in three neighbouring segments, and the filter says yes where these three, XORed, give the key's
fingerprint. To build it, keys are *peeled*: a key that is alone in one of its cells can be served by that cell,
whatever the others hold, so it is set aside and its cells are freed of it, which leaves other keys alone, and so on;
then cells are written in the opposite order. Here all keys that are alone somewhere are peeled at once. What cannot be
peeled (keys that agree in all three cells) is kept in a list beside the cells, so that building cannot fail.

Many keys are split into *shards* of some 50,000, each with cells of its own, so that building takes the memory of one.

Measured, one core: building takes 100 to 200 ns per key; a probe of 8,192 keys 0.06 ms where the filter is in the
processor's second cache (up to some 10^5 keys), 0.2 ms at 10^6 and 0.3 ms at 10^7. A key takes 19.4 to 20.1 bits from
10^5 to 10^7 keys, 20.5 at 10^4 and 23 at 10^3. A Bloom filter whose keys each set bits in one word is built in 25 to
40 ns and probed as fast, but says a wrong yes to 0.4 % at 16 bits: 250 times as often, and each costs a read.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from latecomer.errors import StateError
from latecomer.storage import kernels
from latecomer.storage.hashing import U64, mix

Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.uint16]

_MARK = 0x4C43_4655_5345_0001  # "LCFUSE", format 1
_MARK_ANY = 0x4C43_4655_5345_FFFF  # of the filter that rules nothing out
_TAIL = 6  # words: shard bits, segment bits, span, keys, stash, mark
_SHARD = 16  # bits; at most 2^16 keys are expected in a shard: about 5 MB while it is built
_SEGMENT = 11  # bits; longer segments do not pay at the shards' size
_FEW = 16  # keys left over by the peeling that are not worth another attempt
_ATTEMPTS = 12


class Probe:
    """Keys to ask about, prepared once for any number of filters."""

    __slots__ = ("mixed",)

    def __init__(self, keys: U64, *, mixed: bool = False) -> None:
        """``mixed``: the keys have gone through :func:`~latecomer.storage.hashing.mix` already."""
        self.mixed = keys if mixed else mix(keys)


class Filter:
    """A static set of 64-bit keys that can only be asked whether a key *may* be in it.

    Low or high bits that are equal in all keys do no harm. ``words`` is the whole filter, as it is stored.

    >>> f = Filter.of(np.array([3 << 32, 5 << 32], np.uint64)); f.maybe(np.array([5 << 32], np.uint64)).tolist()
    [True]
    >>> Filter(f.words).maybe(Probe(np.array([3 << 32], np.uint64))).tolist()
    [True]
    """

    __slots__ = ("_cells", "_segment_bits", "_shard_bits", "_span", "_stash", "any", "keys", "words")

    def __init__(self, words: U64) -> None:
        """The filter that ``words`` holds, without a copy. Raises StateError when they are no filter."""
        self.any = len(words) == 1 and int(words[0]) == _MARK_ANY  #: whether it rules nothing out
        if self.any:
            self.words, self.keys = words, 0
            self._stash = words[:0]
            self._cells: Cells = words[:0].view(np.uint16)
            self._shard_bits = self._segment_bits = self._span = 0
            return
        if len(words) < _TAIL or int(words[-1]) != _MARK:
            raise StateError("these words are no filter of this format: restore an older version of the state")
        self._shard_bits, self._segment_bits, self._span, keys, stash = (int(word) for word in words[-_TAIL:-1])
        cells = len(words) - _TAIL - stash
        self.words = words
        #: How many different keys the filter was built from.
        self.keys = keys
        self._stash = words[cells : cells + stash]
        self._cells = words[:cells].view(np.uint16)

    @classmethod
    def of(cls, keys: U64) -> Filter:
        """The filter of these keys, in any order; repeats count once. O(n log n), some 130 ns per key."""
        builder = Builder(len(keys))
        builder.add(np.sort(mix(keys)))
        return builder.finish()

    @classmethod
    def of_any(cls) -> Filter:
        """The filter that says yes to every key, for where a real one is not worth its memory.

        >>> Filter.of_any().maybe(np.array([7], np.uint64)).tolist()
        [True]
        """
        return cls(np.array([_MARK_ANY], np.uint64))

    def maybe(self, keys: U64 | Probe) -> Bools:
        """For each key whether it may be among those of the filter. O(1) per key."""
        if self.any:
            return np.ones(len(keys.mixed) if isinstance(keys, Probe) else len(keys), np.bool_)
        probe = keys if isinstance(keys, Probe) else Probe(keys)
        if not self.keys:
            return np.zeros(len(probe.mixed), np.bool_)
        result = kernels.fuse(probe.mixed, self._cells, self._span, self._shard_bits, self._segment_bits)
        if len(self._stash):
            at = np.minimum(self._stash.searchsorted(probe.mixed), len(self._stash) - 1)
            result |= self._stash.take(at) == probe.mixed
        return result

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def _check(self) -> None:
        if self.any:
            return
        shard = self._span + (2 << self._segment_bits)
        assert len(self._cells) == shard << self._shard_bits, (len(self._cells), shard, self._shard_bits)
        assert self._span % (1 << self._segment_bits) == 0, (self._span, self._segment_bits)
        assert (self._stash[1:] > self._stash[:-1]).all(), self._stash


class Builder:
    """Makes a filter from keys that come in ascending order, piece by piece, holding on to one shard at a time.

    Keys are *mixed* ones: those that are asked about go through :func:`~latecomer.storage.hashing.mix`. So they spread
    evenly over the shards, and the first shard tells how large all must be.
    """

    def __init__(self, expected: int) -> None:
        """``expected``: about how many keys there will be; it decides upon the number of shards only."""
        self._shard_bits = max(math.ceil(math.log2(max(expected, 1))) - _SHARD, 0)
        shard = max(expected >> self._shard_bits, 2)
        self._segment_bits = min(max(int(math.log(shard) / math.log(3.33) + 2.25), 2), _SEGMENT)
        self._waiting: list[U64] = []
        self._built = 0  # shards
        self._span = 0
        self._stash: list[U64] = []
        self._keys = 0
        self._words = np.zeros(0, np.uint64)  # grows in place

    def add(self, mixed: U64) -> None:
        """The next keys: ascending, none below those that came before."""
        if not len(mixed):
            return
        self._waiting.append(mixed)
        last = int(mixed[-1]) >> (64 - self._shard_bits)
        if last > self._built:
            self._build_until(last)

    def finish(self) -> Filter:
        """The filter of all keys that were added."""
        self._build_until(1 << self._shard_bits)
        stash = np.concatenate([np.zeros(0, np.uint64), *self._stash])
        about = (self._shard_bits, self._segment_bits, self._span, self._keys, len(stash), _MARK)
        tail = np.concatenate((stash, np.array(about, np.uint64)))
        self._grow(len(tail))[:] = tail
        return Filter(self._words)

    def _build_until(self, end: int) -> None:
        """Build the shards up to ``end``, whose keys have all come."""
        keys = np.concatenate([np.zeros(0, np.uint64), *self._waiting])
        for shard in range(self._built, end):
            n = len(keys)
            if shard + 1 < 1 << self._shard_bits:
                n = int(keys.searchsorted(np.uint64(shard + 1 << 64 - self._shard_bits)))
            own, keys = keys[:n], keys[n:]
            fresh = np.ones(n, np.bool_)
            np.not_equal(own[1:], own[:-1], out=fresh[1:])
            self._build(own[fresh])
        self._waiting = [keys]

    def _build(self, keys: U64) -> None:
        """Build the next shard from its keys (ascending, different)."""
        n, length = len(keys), 1 << self._segment_bits
        # Shards differ in size as random numbers do. Those behind the first must do with what was enough for it.
        most = n + (4 * math.sqrt(2 * n) if self._shard_bits else 0)
        size = most * max(1.125, 0.875 + 0.25 * math.log(1e6) / math.log(max(n, 2)))
        segments = max(math.ceil(size / length) - 2, 1)
        marks = kernels.fuse_marks(keys)
        for attempt in range(1, _ATTEMPTS + 1):
            span = self._span or segments * length
            whole = span + 2 * length
            cells = kernels.fuse_cells(keys, span, self._shard_bits, self._segment_bits)
            for cell in cells:
                cell -= self._built * whole
            content, placed = kernels.fuse_build(*cells, marks, whole)
            if n - np.count_nonzero(placed) <= _FEW or attempt == _ATTEMPTS or self._span:
                break
            segments += max(segments // 24, 1)
        self._grow(whole // 4).view(np.uint16)[:] = content
        self._stash.append(keys[~placed])
        self._keys += n
        self._span = span
        self._built += 1

    def _grow(self, n: int) -> U64:
        """``n`` more words at the end, all 0."""
        self._words.resize(len(self._words) + n, refcheck=False)
        return self._words[len(self._words) - n :]
