"""Room for large arrays: reserved ahead, taken from the system as it is written to, and given back piece by piece.

Rule: an array with room to grow costs only what was written to it. Where the system can take memory back (``madvise``
on Linux), what is no longer needed costs nothing either, and nobody has to copy the rest for that. Where it can move
memory to another address (``mremap``, on Linux too), an array goes to a larger room without a copy, so that there are
never two of it. Elsewhere, and for small arrays, room is plain memory: :meth:`Room.give_back` does nothing, and
:meth:`Room.take_over` copies.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Bytes; smaller rooms are plain memory.
_LARGE = 1 << 18
#: Bytes; larger rooms ask for huge pages, since gathers all over them then miss fewer address translations.
_HUGE = 1 << 24
#: Bytes that are given back together; from a huge page, all of it.
_PIECE, _HUGE_PAGE = 1 << 16, 1 << 21
_GIVES = sys.platform == "linux" and hasattr(mmap.mmap, "madvise")


def _mover() -> Callable[..., int | None] | None:
    """The system's ``mremap(old address, old size, new size, flags, new address)``."""
    move = getattr(ctypes.CDLL(None), "mremap", None) if _GIVES else None
    if move is not None:
        move.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
        move.restype = ctypes.c_void_p
    return move


_move = _mover()
#: MREMAP_MAYMOVE, MREMAP_FIXED and MREMAP_DONTUNMAP (Linux 5.7): to this address, and the old one stays ours, empty.
_TO_THERE = 1 | 2 | 4


class Room:
    """An ``array`` of ``n`` values of a type, all of them 0.

    >>> room = Room(4, np.dtype(np.int64)); room.array.tolist()
    [0, 0, 0, 0]
    """

    __slots__ = ("_given", "_memory", "_piece", "_seams", "array", "given")

    def __init__(self, n: int, dtype: np.dtype[Any]) -> None:
        self._memory: mmap.mmap | None = None
        self._given, self._piece = 0, 0
        self._seams: list[int] = []  # bytes at which parts meet that the system moves one by one
        #: How many values were given back.
        self.given = 0
        size = n * dtype.itemsize
        if _GIVES and size >= _LARGE:
            try:
                self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._piece = _PIECE
                if size >= _HUGE:
                    self._memory.madvise(mmap.MADV_HUGEPAGE)
                    self._piece = _HUGE_PAGE
            except OSError:  # a limit on what may be reserved, or a kernel without huge pages
                pass
        self.array: Array = np.zeros(n, dtype) if self._memory is None else np.frombuffer(self._memory, dtype)

    @property
    def piece(self) -> int:
        """How many values are given back together; 0: none ever."""
        return self._piece // self.array.itemsize

    def give_back(self, end: int, begin: int = 0) -> None:
        """Nobody needs the values from ``begin`` to ``end`` any more; ``end`` grows from call to call. They stay as
        they are as long as somebody looks at a part of the array; its owner is taken to have one reference to it.
        """
        if self._memory is None:
            return
        width = self.array.itemsize
        begin = max(self._given, -(-begin * width // self._piece) * self._piece)
        end = end * width // self._piece * self._piece
        if end > begin and not self.seen:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            self._given = end
            self.given += (end - begin) // width

    @property
    def seen(self) -> bool:
        """Whether anybody but its owner looks at a part of the array."""
        return self._references() != _OWN

    @property
    def movable(self) -> bool:
        """Whether another room could take over what is here without a copy: not while somebody looks at a part of the
        array.
        """
        return _move is not None and self._memory is not None and not self.seen

    def take_over(self, other: Room, begin: int, end: int) -> int:
        """Let the values of ``other`` from ``begin`` to ``end`` be here, where nobody has written yet, and no longer
        there; returns at which place. They are of the same type.
        """
        width = self.array.itemsize
        first = begin * width // mmap.PAGESIZE * mmap.PAGESIZE
        last = -(-end * width // mmap.PAGESIZE) * mmap.PAGESIZE
        old, new, shift = other.array.ctypes.data, self.array.ctypes.data, 0
        if self._piece == _HUGE_PAGE:  # a huge page stays one only at an address that is as far beyond a multiple of it
            shift = (old + first - new) % _HUGE_PAGE
        if self._memory is None or not other.movable or shift + last - first > self.array.nbytes:
            self.array[: end - begin] = other.array[begin:end]
            return 0
        for start, stop in pairwise(sorted({first, last, *(s for s in other._seams if first < s < last)})):
            at = start - first + shift
            if not _moved(old + start, new + at, stop - start):
                ctypes.memmove(new + at, old + start, stop - start)
            self._seams += [at, at + stop - start]
        if self._piece == _HUGE_PAGE:
            self._memory.madvise(mmap.MADV_HUGEPAGE, shift, last - first)
        return (shift + begin * width - first) // width

    def _references(self) -> int:
        return sys.getrefcount(self.array)


def _moved(old: int, new: int, size: int) -> bool:
    """Whether the system has moved the memory at an address to another one."""
    global _move
    if _move is not None and _move(old, size, size, _TO_THERE, new) == new:
        return True
    _move = None  # a system that cannot, so that nobody counts on it again
    return False


def _unseen() -> int:
    """References to an array that only its room and its owner have, as this Python counts them."""
    room = Room(1, np.dtype(np.int64))
    owner = room.array
    count = room._references()
    del owner
    return count


_OWN = _unseen()
