"""Room for large arrays: reserved ahead, taken from the system as it is written to, and given back piece by piece.

Rule: an array with room to grow costs only what was written to it. Where the system can take memory back (``madvise``
on Linux), what is no longer needed costs nothing either, and nobody has to copy the rest for that. Elsewhere, and for
small arrays, room is plain memory, and :meth:`Room.give_back` does nothing.
"""

from __future__ import annotations

import mmap
import sys
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


class Room:
    """An ``array`` of ``n`` values of a type, all of them 0.

    >>> room = Room(4, np.dtype(np.int64)); room.array.tolist()
    [0, 0, 0, 0]
    """

    __slots__ = ("_given", "_memory", "_piece", "array", "given")

    def __init__(self, n: int, dtype: np.dtype[Any], huge: int = _HUGE) -> None:
        self._memory: mmap.mmap | None = None
        self._given, self._piece = 0, 0
        #: How many values were given back.
        self.given = 0
        size = n * dtype.itemsize
        if _GIVES and size >= _LARGE:
            try:
                self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._piece = _PIECE
                if size >= huge:
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
        if end > begin and self._references() == _OWN:
            self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            self._given = end
            self.given += (end - begin) // width

    def _references(self) -> int:
        return sys.getrefcount(self.array)


def _unseen() -> int:
    """References to an array that only its room and its owner have, as this Python counts them."""
    room = Room(1, np.dtype(np.int64))
    owner = room.array
    count = room._references()
    del owner
    return count


_OWN = _unseen()
