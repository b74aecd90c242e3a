"""The id index: which event ids have been seen within the retained horizon, so that each counts once.

An open-addressing hash table of (32-bit mark of the id's hash, event-log reference), filled and read a whole batch at a
time. It proposes; the caller compares the real ids in the event log. Entries are forgotten when the table is rebuilt,
and only if the caller's floor allows it.

An entry takes 8 bytes: references are kept relative to the least one, in 32 bits unless they lie further apart. The
table is from two to four times as long as it has entries: 16 to 32 bytes of memory for each.

Invariants (``_check``): the table is at least twice as long as its count; every entry can be found from its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.storage import kernels
from latecomer.storage.columns import I64, Array
from latecomer.storage.hashing import U64

Marks = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

_FREE = np.uint32(0)
_SMALLEST = 4_096
#: Size over count after a rebuild: a batch's probes take as many rounds as the longest chain has links.
_SPARSE = 4
_PIECE = 1 << 16  # places that a rebuild looks at together, so that it takes little memory of its own
_NARROW = 1 << 32  # references that lie closer together than this are kept in 32 bits
_NONE = np.zeros(0, np.int64)


class IdIndex:
    """Maps id hashes to references. Several entries may share a mark: a probe yields each in turn."""

    def __init__(self) -> None:
        self._marks: Marks = np.zeros(_SMALLEST, np.uint32)
        self._refs: Array = np.empty(_SMALLEST, np.uint32)  # relative to
        self._base = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: U64) -> tuple[I64, I64]:
        """Pairs (row, ref): for each probing row all entries with its mark. Expected O(1) per row."""
        rows, places = self._walk(_marks(hashes))
        return rows, self._at(places)

    def _at(self, places: I64) -> I64:
        """The references at these places."""
        refs = self._refs.take(places).astype(np.int64)
        refs += self._base
        return refs

    def _walk(self, wanted: Marks) -> tuple[I64, I64]:
        """Pairs (row, place) of all entries with the rows' marks."""
        rows = np.arange(len(wanted))
        at = self._homes(wanted)
        found_rows, found_places = [_NONE], [_NONE]
        while len(rows):
            here = self._marks.take(at)
            same = (here == wanted).nonzero()[0]
            if len(same):
                found_rows.append(rows.take(same))
                found_places.append(at.take(same))
            on = (here != _FREE).nonzero()[0]
            rows, wanted, at = rows.take(on), wanted.take(on), self._next(at.take(on))
        return np.concatenate(found_rows), np.concatenate(found_places)

    def _next(self, at: I64) -> I64:
        """The places behind these, which are overwritten."""
        at += 1
        at[at == len(self._marks)] = 0
        return at

    def room_for(self, n: int) -> bool:
        """Whether ``n`` more entries fit without a rebuild."""
        return 2 * (self._count + n) <= len(self._refs)

    def enter(self, hashes: U64, refs: I64) -> I64:
        """Enter the rows whose mark is new; of rows with one mark the first. Expected O(1) per row.

        Returns the rows that found their mark taken and were *not* entered, in order. There must be room for all.
        """
        return self._put(_marks(hashes), refs, unique=True)

    def add(self, hashes: U64, refs: I64) -> None:
        """Enter ``refs`` under ``hashes``, whatever is there already."""
        self._put(_marks(hashes), refs, unique=False)

    def move(self, hashes: U64, refs: I64, to: I64) -> None:
        """Give the entries of ``hashes`` with ``refs`` the references ``to``."""
        rows, places = self._walk(_marks(hashes))
        own = (self._at(places) == refs.take(rows)).nonzero()[0]
        moved = to.take(rows.take(own))
        self._widen(moved)
        self._refs[places.take(own)] = moved - self._base

    def _widen(self, refs: I64) -> None:
        """Make the table wide enough for these references."""
        if not len(refs):
            return
        first, last = int(np.minimum.reduce(refs)), int(np.maximum.reduce(refs))
        if not self._count:
            self._base = first
        if self._refs.dtype == np.uint32 and not 0 <= first - self._base <= last - self._base < _NARROW:
            self._refs = self._refs.astype(np.int64) + self._base
            self._base = 0

    def _put(self, wanted: Marks, refs: I64, unique: bool) -> I64:
        self._widen(refs)
        left, entered = kernels.put(self._marks, self._refs, wanted, refs, self._base, unique)
        self._count += entered
        return left

    def refs(self) -> I64:
        """The references of all entries, in no order."""
        return self._at((self._marks != _FREE).nonzero()[0])

    def rebuild(self, keep: Callable[[I64], Bools], more: int = 0) -> None:
        """Forget the entries whose references ``keep`` does not mark, and make room for ``more``."""
        pieces: list[tuple[Marks, I64]] = []
        strays: list[tuple[Marks, I64]] = []  # entries behind the table's end, where probing goes on at the beginning
        for at in self._stretches():
            refs = self._at(at)
            kept = keep(refs).nonzero()[0]
            at, refs = at.take(kept), refs.take(kept)
            marks = self._marks.take(at)
            stray = self._homes(marks) > at
            if not pieces and stray.any():
                strays.append((marks[stray], refs[stray]))
                marks, refs = marks[~stray], refs[~stray]
            pieces.append((marks, refs))
        self._fill(pieces, strays, more)

    def _stretches(self) -> Iterator[I64]:
        """The places that are taken, stretch by stretch; before and behind each stretch is a free place, so marks
        ascend from stretch to stretch."""
        start, size = 0, len(self._marks)
        while start < size:
            end = min(start + _PIECE, size)
            while end < size and self._marks[end] != _FREE:
                end += 1
            at = (self._marks[start:end] != _FREE).nonzero()[0]
            at += start
            yield at
            start = end

    def _fill(self, pieces: Sequence[tuple[Marks, I64]], strays: Sequence[tuple[Marks, I64]], more: int) -> None:
        """Lay out these entries afresh: in order of home, each at its home or right behind the one before it. Marks
        ascend from piece to piece.
        """
        everything = [*pieces, *strays]
        size = max(_SMALLEST, _SPARSE * (sum(len(marks) for marks, _ in everything) + more))
        ends = [(int(refs.min()), int(refs.max())) for _, refs in everything if len(refs)]
        first, last = min((e[0] for e in ends), default=0), max((e[1] for e in ends), default=0)
        narrow = last - first < _NARROW // 2  # half of it is left for what comes
        self._base = first if narrow else 0
        self._refs = np.empty(0, np.uint32)  # the old table goes before the new one comes
        self._marks = np.zeros(size, np.uint32)
        self._refs = np.empty(size, np.uint32 if narrow else np.int64)
        self._count, start = 0, 0
        if kernels.COMPILED:  # entries come in order of home, so going from place to place stays in the cache
            for marks, refs in everything:
                self._put(marks, refs, unique=False)
            return
        left = list(strays)
        for marks, refs in pieces:
            if not len(marks):
                continue
            homes = self._homes(marks)
            order = homes.argsort(kind="stable")  # entries of a table come nearly in this order: linear
            number = np.arange(len(order))
            places = homes.take(order) - number
            places[0] = max(int(places[0]), start)
            places = np.maximum.accumulate(places) + number
            start = int(places[-1]) + 1
            if start > size:
                inside = int(places.searchsorted(size))
                left.append((marks.take(order[inside:]), refs.take(order[inside:])))
                places, order = places[:inside], order[:inside]
            self._marks[places] = marks.take(order)
            self._refs[places] = refs.take(order) - self._base
            self._count += len(order)
        for marks, refs in left:
            self._put(marks, refs, unique=False)

    def _homes(self, marks: Marks) -> I64:
        return kernels.homes(marks, len(self._marks))

    @property
    def nbytes(self) -> int:
        return self._marks.nbytes + self._refs.nbytes

    def dump(self, only: I64 | None = None) -> dict[str, Any]:
        """The entries (whose references are among ``only``) as plain data."""
        at = (self._marks != _FREE).nonzero()[0]
        refs = self._at(at)
        if only is not None:
            own = np.isin(refs, only)
            at, refs = at[own], refs[own]
        return {"marks": self._marks.take(at), "refs": refs}

    def load(self, state: dict[str, Any]) -> None:
        order = state["marks"].argsort()
        self._fill([(state["marks"].take(order), state["refs"].take(order))], [], 0)

    def _check(self) -> None:
        size = len(self._refs)
        assert len(self._marks) == size >= 2 * self._count, (size, self._count)
        marks, refs = self.dump().values()
        assert len(refs) == self._count
        rows, found = self.find(marks.astype(np.uint64) << np.uint64(32))
        assert set(zip(rows.tolist(), found.tolist(), strict=True)) >= set(enumerate(refs.tolist()))


def _marks(hashes: U64) -> Marks:
    """The high half of each hash; 0 means a free place, so 1 stands for it."""
    marks: Marks = np.maximum(hashes >> np.uint64(32), np.uint64(1)).astype(np.uint32)
    return marks
