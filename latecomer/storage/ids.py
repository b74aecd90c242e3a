"""The id index: which event ids have been seen within the retained horizon, so that each counts once.

An open-addressing hash table of (32-bit mark of the id's hash, event-log reference), filled and read a whole batch at a
time. It proposes; the caller compares the real ids in the event log. Entries are forgotten when the table is rebuilt,
and only if the caller's floor allows it.

Invariants (``_check``): the table's size is a power of two and at least twice its count; every entry can be found from
its mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.storage.columns import I64, every
from latecomer.storage.hashing import U64

Marks = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

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
        rows, places = self._walk(_marks(hashes))
        return rows, self._refs.take(places)

    def _walk(self, wanted: Marks) -> tuple[I64, I64]:
        """Pairs (row, place) of all entries with the rows' marks."""
        mask = len(self._refs) - 1
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
            rows, wanted, at = rows.take(on), wanted.take(on), (at.take(on) + 1) & mask
        return np.concatenate(found_rows), np.concatenate(found_places)

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
        own = (self._refs.take(places) == refs.take(rows)).nonzero()[0]
        self._refs[places.take(own)] = to.take(rows.take(own))

    def _put(self, wanted: Marks, refs: I64, unique: bool) -> I64:
        mask = len(self._refs) - 1
        marks, table = self._marks, self._refs
        open_rows = [_NONE]
        at = self._homes(wanted)
        rows: I64 | None = None  # the rows still under way; None: all
        while len(at):
            free = marks.take(at) == _FREE
            here = free.nonzero()[0]
            places, own = at.take(here), refs.take(here)
            # Several rows may want one place: written backwards, so that the first row's entry is the one that stays.
            marks[places[::-1]] = wanted.take(here)[::-1]
            table[places[::-1]] = own[::-1]
            lost = (table.take(places) != own).nonzero()[0]
            self._count += len(here) - len(lost)
            if len(lost):
                free[here.take(lost)] = False
            on = (~free).nonzero()[0]
            rows = on if rows is None else rows.take(on)
            wanted, refs, at = wanted.take(on), refs.take(on), at.take(on)
            if unique and len(on):
                other = marks.take(at) != wanted
                if not every(other):
                    open_rows.append(rows[~other])
                    on = other.nonzero()[0]
                    rows, wanted, refs, at = rows.take(on), wanted.take(on), refs.take(on), at.take(on)
            at = (at + 1) & mask
        return np.sort(np.concatenate(open_rows)) if len(open_rows) > 1 else _NONE

    def refs(self) -> I64:
        """The references of all entries, in no order."""
        refs: I64 = self._refs.take((self._marks != _FREE).nonzero()[0])
        return refs

    def rebuild(self, keep: Callable[[I64], Bools], more: int = 0) -> None:
        """Forget the entries whose references ``keep`` does not mark, and make room for ``more``."""
        at = (self._marks != _FREE).nonzero()[0]
        kept = keep(self._refs.take(at)).nonzero()[0]
        at = at.take(kept)
        self._fill(self._marks.take(at), self._refs.take(at), more)

    def _fill(self, marks: Marks, refs: I64, more: int) -> None:
        """Lay out these entries afresh: in order of home, each at its home or right behind the one before it."""
        size = _SMALLEST
        while size < _SPARSE * (len(refs) + more):
            size *= 2
        self._marks, self._refs, self._count = np.zeros(size, np.uint32), np.empty(size, np.int64), 0
        homes = self._homes(marks)
        order = homes.argsort(kind="stable")  # entries of a table come nearly in this order: linear
        number = np.arange(len(order))
        places = np.maximum.accumulate(homes.take(order) - number) + number
        inside = int(places.searchsorted(size))
        self._marks[places[:inside]] = marks.take(order[:inside])
        self._refs[places[:inside]] = refs.take(order[:inside])
        self._count = inside
        over = order[inside:]  # behind the end, where probing goes on at the beginning
        self._put(marks.take(over), refs.take(over), unique=False)

    def _homes(self, marks: Marks) -> I64:
        """Where to look first: the mark's high bits, so that the order of homes is that of marks whatever the size."""
        homes: I64 = (marks >> np.uint32(33 - len(self._refs).bit_length())).astype(np.int64)
        return homes

    @property
    def nbytes(self) -> int:
        return self._marks.nbytes + self._refs.nbytes

    def dump(self, only: I64 | None = None) -> dict[str, Any]:
        """The entries (whose references are among ``only``) as plain data."""
        at = (self._marks != _FREE).nonzero()[0]
        if only is not None:
            at = at[np.isin(self._refs.take(at), only)]
        return {"marks": self._marks.take(at), "refs": self._refs.take(at)}

    def load(self, state: dict[str, Any]) -> None:
        self._fill(state["marks"], state["refs"], 0)

    def _check(self) -> None:
        size = len(self._refs)
        assert size & (size - 1) == 0 and size >= 2 * self._count, (size, self._count)
        marks, refs = self.dump().values()
        assert len(refs) == self._count
        rows, found = self.find(marks.astype(np.uint64) << np.uint64(32))
        assert set(zip(rows.tolist(), found.tolist(), strict=True)) >= set(enumerate(refs.tolist()))


def _marks(hashes: U64) -> Marks:
    """The high half of each hash; 0 means a free place, so 1 stands for it."""
    marks: Marks = np.maximum(hashes >> np.uint64(32), np.uint64(1)).astype(np.uint32)
    return marks
