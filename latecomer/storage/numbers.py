"""Numbers: an ascending set of whole numbers, and the place of each among them.

The event log asks for every reference whether it is in memory, and where. Numbers that lie close are kept as a bitmap
with the counts before each byte and each block of bytes: look-ups in a cache's reach, at two and a quarter bits for
each number between the first and the last. Numbers that lie far apart are kept as they are, and searched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.storage import kernels
from latecomer.storage.columns import I64

_APART = 28  # numbers further apart than this, on average, take less memory as they are
_BLOCK = 5  # 2**5 bytes are a block: a byte can count what is before it there
_COUNT = (np.arange(256)[:, None] >> np.arange(8) & 1).sum(axis=1).astype(np.uint8)  # set bits of a byte


class Numbers:
    """The set of ``numbers``, which ascend.

    >>> some = Numbers(np.array([3, 4, 9]))
    >>> some.hold(np.array([9, 5])).tolist(), some.places(np.array([9, 3])).tolist()
    ([True, False], [2, 0])
    """

    __slots__ = ("_base", "_blocks", "_bytes", "_count", "_plain", "_within")

    def __init__(self, numbers: I64) -> None:
        self._count = len(numbers)
        self._plain: I64 | None = numbers
        self._base = 0
        self._bytes = np.zeros(1, np.uint8)
        self._within = np.zeros(1, np.uint8)
        self._blocks = np.zeros(1, np.int64)
        if not len(numbers) or int(numbers[-1]) - int(numbers[0]) > _APART * len(numbers):
            return
        base = int(numbers[0]) - 8
        bits = np.zeros(int(numbers[-1]) - base + 1, bool)
        bits[numbers - base] = True
        self._be(np.packbits(bits, bitorder="little"), base)

    def _be(self, marks: npt.NDArray[np.uint8], base: int) -> None:
        """Be the set that these bits mark, from ``base`` on; the first 8 are not set."""
        self._plain, self._base = None, base
        # The first byte and the last are empty: what lies outside hits these.
        self._bytes = np.zeros((len(marks) + (1 << _BLOCK) >> _BLOCK) << _BLOCK, np.uint8)
        self._bytes[: len(marks)] = marks
        counts = _COUNT.take(self._bytes).reshape(-1, 1 << _BLOCK)
        self._within = (counts.cumsum(axis=1, dtype=np.uint16) - counts).astype(np.uint8).ravel()
        each = counts.sum(axis=1, dtype=np.int64)
        self._blocks = each.cumsum() - each

    def but(self, gone: I64, more: range) -> Numbers:
        """This set and ``more``, all of which are above it, without ``gone``, which are among them."""
        count = self._count + len(more) - len(gone)
        base = self._base if self._plain is None else more.start - 8
        if (self._count and self._plain is not None) or more.stop - base > _APART * count:
            every = np.concatenate([self.all(), np.arange(more.start, more.stop)])
            return Numbers(every[~np.isin(every, gone, assume_unique=True)])
        marks = np.zeros((more.stop - base >> 3) + 1, np.uint8)
        own = self._bytes[: len(marks)]  # behind these it is empty
        marks[: len(own)] = own
        (first, begin), (last, end) = divmod(more.start - base, 8), divmod(more.stop - base, 8)
        if more:
            marks[first + 1 : last] = 255
            marks[first] |= 255 << begin & 255 & ((1 << end) - 1 if first == last else 255)
            marks[last] |= (1 << end) - 1 if first < last else 0
        # Each bit is set, so that taking it away is what clears it, also where several are of one byte.
        np.subtract.at(marks, gone - base >> 3, (1 << (gone - base & 7)).astype(np.uint8))
        empty = max(int((marks != 0).argmax()) - 1, 0)
        found = Numbers(np.zeros(0, np.int64))
        found._count = count
        found._be(marks[empty:], base + 8 * empty)
        return found

    def __len__(self) -> int:
        return self._count

    def hold(self, wanted: I64) -> npt.NDArray[np.bool_]:
        """Which numbers are in the set. O(1) each, O(log n) where they lie apart."""
        if self._plain is not None:
            if not self._count:
                return np.zeros(len(wanted), bool)
            at = self._plain.searchsorted(wanted)
            same: npt.NDArray[np.bool_] = self._plain.take(at, mode="clip") == wanted
            return same
        return kernels.held(self._bytes, self._base, wanted)

    def places(self, wanted: I64) -> I64:
        """How many numbers are below each of ``wanted``, which are in the set."""
        if self._plain is not None:
            found: I64 = self._plain.searchsorted(wanted)
            return found
        return kernels.ranks(self._bytes, self._within, self._blocks, _BLOCK, self._base, wanted)

    def plain(self) -> tuple[Any, ...]:
        """How they are kept, as compiled kernels see it: the numbers, or the bytes of a bitmap, the counts within
        blocks and before them, the bits of a block's size in bytes, and the number of the first bit.
        """
        if self._plain is not None:
            return (self._plain,)
        return self._bytes, self._within, self._blocks, _BLOCK, self._base

    def between(self, begin: int, end: int) -> I64:
        """The numbers at these places, ascending."""
        if self._plain is not None:
            return self._plain[begin:end]
        first = int(self._blocks.searchsorted(begin, "right")) - 1
        last = int(self._blocks.searchsorted(end))
        within = np.unpackbits(self._bytes[first << _BLOCK : last << _BLOCK], bitorder="little").nonzero()[0]
        numbers: I64 = within[begin - int(self._blocks[first]) :][: end - begin]
        numbers += self._base + (first << _BLOCK + 3)
        return numbers

    def all(self) -> I64:
        """All numbers, ascending."""
        return self.between(0, self._count)

    @property
    def nbytes(self) -> int:
        return (
            self._bytes.nbytes + self._within.nbytes + self._blocks.nbytes
            if self._plain is None
            else self._plain.nbytes
        )
