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
        span = int(numbers[-1]) - int(numbers[0]) if len(numbers) else 0
        if not len(numbers) or span > _APART * len(numbers):
            return
        self._plain = None
        self._base = int(numbers[0]) - 8  # so that the first byte and the last are empty: what lies outside hits these
        bits = np.zeros((((span + 16 >> 3) + 1 >> _BLOCK) + 1) << _BLOCK + 3, bool)
        bits[numbers - self._base] = True
        self._bytes = np.packbits(bits, bitorder="little")
        counts = _COUNT.take(self._bytes).reshape(-1, 1 << _BLOCK)
        self._within = (counts.cumsum(axis=1, dtype=np.uint16) - counts).astype(np.uint8).ravel()
        each = counts.sum(axis=1, dtype=np.int64)
        self._blocks = each.cumsum() - each

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

    def all(self) -> I64:
        """All numbers, ascending."""
        if self._plain is not None:
            return self._plain
        at = self._bytes.nonzero()[0]
        bits = np.unpackbits(self._bytes.take(at), bitorder="little").nonzero()[0]
        numbers: I64 = (at << 3).take(bits >> 3)
        numbers += bits & 7
        numbers += self._base
        return numbers

    @property
    def nbytes(self) -> int:
        return (
            self._bytes.nbytes + self._within.nbytes + self._blocks.nbytes
            if self._plain is None
            else self._plain.nbytes
        )
