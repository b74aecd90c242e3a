"""The id index: which event ids have been seen within the retained horizon, so that each counts once.

An open-addressing hash table of (32-bit mark of the id's hash, event-log reference), filled and read a whole batch at a
time. It proposes; the caller compares the real ids in the event log. Entries are forgotten when the table is rebuilt,
and only if the caller's floor allows it.

Invariants (``_check``): the table's size is a power of two and at least twice its count; every entry can be found from
its mark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64

Marks = npt.NDArray[np.uint32]

_FREE = np.uint32(0)
_SMALLEST = 4_096
#: Size over count after a rebuild: a batch's probes take as many rounds as the longest chain has links.
_SPARSE = 4
_NONE = np.zeros(0, np.int64)


class IdIndex:
    """Maps id hashes to references. Several entries may share a mark: a probe yields each in turn."""

    def __init__(self) -> None:
        self._marks: Marks = np.zeros(_SMALLEST, np.uint32)
        self._refs: I64 = np.empty(_SMALLEST, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: U64) -> tuple[I64, I64]:
        """Pairs (row, ref): for each probing row all entries with its mark. Expected O(1) per row."""
        wanted = _marks(hashes)
        mask = len(self._refs) - 1
        rows = np.arange(len(wanted))
        at = self._homes(wanted)
        found_rows, found_refs = [_NONE], [_NONE]
        while len(rows):
            here = self._marks[at]
            same = here == wanted
            if same.any():
                found_rows.append(rows[same])
                found_refs.append(self._refs[at[same]])
            on = here.nonzero()[0]
            rows, wanted, at = rows[on], wanted[on], (at[on] + 1) & mask
        return np.concatenate(found_rows), np.concatenate(found_refs)

    def room_for(self, n: int) -> bool:
        """Whether ``n`` more entries fit without a rebuild."""
        return 2 * (self._count + n) <= len(self._refs)

    def enter(self, hashes: U64, refs: I64) -> tuple[I64, I64]:
        """Enter the rows whose mark is new; of rows with one mark the first. Expected O(1) per row.

        Returns (open, places): the rows that found their mark taken and were *not* entered, in order; and each row's
        place in the table, for :meth:`move` (without meaning for open rows). There must be :meth:`room_for` all.
        """
        return self._put(_marks(hashes), refs, unique=True)

    def add(self, hashes: U64, refs: I64) -> None:
        """Enter ``refs`` under ``hashes``, whatever is there already."""
        self._put(_marks(hashes), refs, unique=False)

    def move(self, places: I64, refs: I64) -> None:
        """Give the entries at ``places`` other references."""
        self._refs[places] = refs

    def _put(self, wanted: Marks, refs: I64, unique: bool) -> tuple[I64, I64]:
        mask = len(self._refs) - 1
        table = self._marks
        places = np.empty(len(refs), np.int64)
        open_rows = [_NONE]
        rows = np.arange(len(refs))
        at = self._homes(wanted)
        while len(rows):
            free = table[at] == _FREE
            here = free.nonzero()[0]
            # Several rows may want one place: written backwards, so that the first row's entry is the one that stays.
            back = here[::-1]
            table[at[back]] = wanted[back]
            self._refs[at[back]] = refs[back]
            won = here[self._refs[at[here]] == refs[here]]
            places[rows[won]] = at[won]
            self._count += len(won)
            if len(won) == len(rows):
                break
            free[here] = False
            free[won] = True
            on = (~free).nonzero()[0]
            rows, wanted, refs, at = rows[on], wanted[on], refs[on], at[on]
            if unique:
                same = table[at] == wanted
                if same.any():
                    open_rows.append(rows[same])
                    on = (~same).nonzero()[0]
                    rows, wanted, refs, at = rows[on], wanted[on], refs[on], at[on]
            at = (at + 1) & mask
        return (np.sort(np.concatenate(open_rows)) if len(open_rows) > 1 else _NONE), places

    def entries(self) -> tuple[Marks, I64]:
        """All entries as (marks, refs), in the order in which :meth:`rebuild` expects its own marks."""
        used = self._marks.nonzero()[0]
        return self._marks[used], self._refs[used]

    def rebuild(self, keep: Any, more: int = 0) -> None:
        """Forget the entries not marked in ``keep`` (one mark per entry) and make room for ``more``."""
        marks, refs = self.entries()
        self._fill(marks[keep], refs[keep], more)

    def _fill(self, marks: Marks, refs: I64, more: int) -> None:
        """Lay out these entries afresh: in order of home, each at its home or right behind the one before it."""
        size = _SMALLEST
        while size < _SPARSE * (len(refs) + more):
            size *= 2
        self._marks, self._refs, self._count = np.zeros(size, np.uint32), np.empty(size, np.int64), 0
        homes = self._homes(marks)
        order = homes.argsort(kind="stable")  # entries of a table come nearly in this order: linear
        number = np.arange(len(order))
        places = np.maximum.accumulate(homes[order] - number) + number
        inside = int(places.searchsorted(size))
        self._marks[places[:inside]] = marks[order[:inside]]
        self._refs[places[:inside]] = refs[order[:inside]]
        self._count = inside
        over = order[inside:]  # behind the end, where probing goes on at the beginning
        self._put(marks[over], refs[over], unique=False)

    def _homes(self, marks: Marks) -> I64:
        """Where to look first: the mark's high bits, so that the order of homes is that of marks whatever the size."""
        homes: I64 = (marks >> np.uint32(33 - len(self._refs).bit_length())).astype(np.int64)
        return homes

    @property
    def nbytes(self) -> int:
        return self._marks.nbytes + self._refs.nbytes

    def dump(self) -> dict[str, Any]:
        marks, refs = self.entries()
        return {"marks": marks, "refs": refs}

    def load(self, state: dict[str, Any]) -> None:
        self._fill(state["marks"], state["refs"], 0)

    def _check(self) -> None:
        size = len(self._refs)
        assert size & (size - 1) == 0 and size >= 2 * self._count, (size, self._count)
        marks, refs = self.entries()
        assert len(refs) == self._count
        rows, found = self.find(marks.astype(np.uint64) << np.uint64(32))
        assert set(zip(rows.tolist(), found.tolist(), strict=True)) >= set(enumerate(refs.tolist()))


def _marks(hashes: U64) -> Marks:
    """The high half of each hash; 0 means a free place, so 1 stands for it."""
    marks: Marks = np.maximum(hashes >> np.uint64(32), np.uint64(1)).astype(np.uint32)
    return marks
