"""The id index: which event ids have been seen within the retained horizon, so that each counts once.

An open-addressing hash table of (32-bit mark of the id's hash, event-log reference), filled and read a whole batch at a
time. It proposes; the caller compares the real ids in the event log. An entry is one word, the mark above 32 bits of
the reference, so that entering an id waits for memory once.

Entries are forgotten, and room is made, by a *hand* that goes once around the table and takes out what is there, a
stretch with each few ids that are entered, so that no batch pays for all of it. What is still wanted it puts back where
it was taken from, or, where the table is too short or too long for it, into a new one. The order of homes is that of
marks, whatever a table's size; so a mark's home in the old table tells in which of the two it is.

An entry takes 8 bytes; where references lie further apart than 32 bits tell, the others are kept in an array beside, 4
bytes more. A table is from 1.6 to 4 times as long as it has entries: 13 to 32 bytes of memory for each. What the hand
has passed on the way to a new table goes back.

Invariants (``_check``): no more than ten sixteenths of the table are full; every entry can be found from its mark; the
place where the hand began was free then; where there is a new table, no entry's home lies behind the hand in the old.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.storage import kernels
from latecomer.storage.columns import I64, Array
from latecomer.storage.hashing import U64
from latecomer.storage.room import Room

Marks = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]
#: Which entries are to be kept: those whose references are at least so much, or are marked.
Keep = int | Callable[[I64], Bools]

_FREE = np.uint64(0)
_S32 = np.uint64(32)
_SMALLEST = 4_096
#: Size over count of a new table: a batch's probes take as many rounds as the longest chain has links.
_SPARSE = 3
#: A table stays where one that is not so many times as long or as short would do: what large batches tell of the length
#: differs from time to time, and memory that is new costs more than what lies there to be used again.
_SUITS = 4 / 3
#: The hand begins once so many sixteenths of the table are full, and is around before so many are.
_BEGIN, _END = 9, 10
_STEP = 1 << 11  # places that the hand goes at least, so that its calls cost little for each
_STRETCH = 1 << 15  # places that it goes at once where it goes all the way: what it carries takes memory
_NARROW = 1 << 32  # references that lie closer together than this are kept in 32 bits
_NONE = np.zeros(0, np.int64)


class _Table:
    """``size`` places for entries."""

    __slots__ = ("_rooms", "highs", "words")

    def __init__(self, size: int, wide: bool) -> None:
        self._rooms = [Room(size, np.dtype(np.uint64)), Room(size if wide else 0, np.dtype(np.uint32))]
        self.words: U64 = self._rooms[0].array  # marks, and references without their high bits
        self.highs: Array = self._rooms[1].array  # these; of narrow references nobody needs them

    def __len__(self) -> int:
        return len(self.words)

    @property
    def wide(self) -> bool:
        return len(self.highs) > 0

    @property
    def width(self) -> int:
        """Bytes for a place."""
        return sum(room.array.itemsize for room in self._rooms if len(room.array))

    def widen(self, base: int) -> None:
        """Make room for references of 64 bits; those that are here are at least ``base``."""
        at = self.taken()
        refs = self.refs(at, base)
        self._rooms[1] = Room(len(self), np.dtype(np.uint32))
        self.highs = self._rooms[1].array
        self.highs[at] = kernels.highs_of(refs)

    def refs(self, places: I64, base: int) -> I64:
        """The references at these places; narrow ones are at least ``base``."""
        return kernels.refs_at(self.words, self.highs, places, base)

    def refer(self, places: I64, refs: I64) -> None:
        """Give the entries at these places other references."""
        self.words[places] = kernels.words_of(self.marks(places), refs)
        if self.wide:
            self.highs[places] = kernels.highs_of(refs)

    def marks(self, places: I64) -> Marks:
        return (self.words.take(places) >> _S32).astype(np.uint32)

    def walk(self, wanted: Marks) -> tuple[I64, I64]:
        """Pairs (row, place) of all entries with the rows' marks."""
        rows = np.arange(len(wanted))
        at = kernels.homes(wanted, len(self))
        found_rows, found_places = [_NONE], [_NONE]
        while len(rows):
            here = self.words.take(at)
            same = (here >> _S32 == wanted).nonzero()[0]
            if len(same):
                found_rows.append(rows.take(same))
                found_places.append(at.take(same))
            on = (here != _FREE).nonzero()[0]
            rows, wanted, at = rows.take(on), wanted.take(on), at.take(on) + 1
            at[at == len(self)] = 0
        return np.concatenate(found_rows), np.concatenate(found_places)

    def taken(self, begin: int = 0, end: int | None = None) -> I64:
        """The places from ``begin`` to ``end`` that hold entries."""
        at = self.words[begin:end].nonzero()[0]
        at += begin
        return at

    def free_from(self, place: int) -> int:
        """The first free place from here on, beyond the end counted on from the beginning."""
        while self.words[place % len(self)]:
            place += 1
        return place

    def give_back(self, begin: int, end: int) -> None:
        for room in self._rooms:
            room.give_back(end, begin)

    @property
    def nbytes(self) -> int:
        return sum((len(room.array) - room.given) * room.array.itemsize for room in self._rooms)


class IdIndex:
    """Maps id hashes to references. Several entries may share a mark: a probe yields each in turn."""

    def __init__(self) -> None:
        self._table = _Table(_SMALLEST, wide=False)
        self._count = 0
        self._base = self._last = 0  # references are from here to there
        self._going = False  # whether the hand is under way
        self._next: _Table | None = None  # where it carries entries; None: they stay in this table
        self._first = self._done = 0  # where the hand began, and how many homes it has passed
        self._pace = self._due = 0  # places that the hand goes for each entry, and that it has yet to go
        self._next_base = 0  # the least reference that the hand has carried over, or that was entered meanwhile

    def __len__(self) -> int:
        return self._count

    # --- entries -----------------------------------------------------------------------------------------------------

    def find(self, hashes: U64) -> tuple[I64, I64]:
        """Pairs (row, ref): for each probing row all entries with its mark. Expected O(1) per row."""
        found = [(rows, self._at(table, places)) for table, rows, places in self._walk(kernels.marks_of(hashes))]
        if len(found) == 1:
            return found[0]
        return np.concatenate([rows for rows, _ in found]), np.concatenate([refs for _, refs in found])

    def _walk(self, wanted: Marks) -> list[tuple[_Table, I64, I64]]:
        """For each table the pairs (row, place) of all entries with the rows' marks."""
        if self._next is None:
            return [(self._table, *self._table.walk(wanted))]
        over = kernels.gone_over(wanted, len(self._table), self._first, self._done)
        parts = []
        for table, own in ((self._table, ~over), (self._next, over)):
            at = own.nonzero()[0]
            rows, places = table.walk(wanted.take(at))
            parts.append((table, at.take(rows), places))
        return parts

    def _at(self, table: _Table, places: I64) -> I64:
        """The references at these places."""
        return table.refs(places, self._base)

    def enter(self, hashes: U64, refs: I64) -> I64:
        """Enter the rows whose mark is new; of rows with one mark the first. References ascend. Expected O(1) per row.

        Returns the rows that found their mark taken and were *not* entered, in order. There must be room for all.
        """
        if not len(refs):
            return _NONE
        self._reach(int(refs[0]), int(refs[-1]))
        return self._put(hashes, refs, unique=True)

    def entering(self, first: int, n: int) -> tuple[int, tuple[U64, Array, U64, Array, int, int, int]]:
        """Where compiled code may enter ``n`` rows, or more, with the references from ``first`` on, as :meth:`enter`
        does: how many before it has to ask again, and the tables. :meth:`entered` is to be told how many it has. There
        must be room for ``n``.
        """
        n = max(n, self._before_due())
        self._reach(first, first + n - 1)
        old, new = self._table, self._next or self._table
        return n, (old.words, old.highs, new.words, new.highs, self._first, self._done, self._base)

    def entered(self, n: int) -> None:
        """So many rows have been entered."""
        self._count += n
        self._due += n * self._pace

    def add(self, hashes: U64, refs: I64) -> None:
        """Enter ``refs`` under ``hashes``, whatever is there already."""
        self._span(refs)
        self._put(hashes, refs, unique=False)

    def move(self, hashes: U64, refs: I64, to: I64) -> None:
        """Give the entries of ``hashes`` with ``refs`` the references ``to``."""
        self._span(to)
        for table, rows, places in self._walk(kernels.marks_of(hashes)):
            own = (self._at(table, places) == refs.take(rows)).nonzero()[0]
            table.refer(places.take(own), to.take(rows.take(own)))

    def _put(self, hashes: U64, refs: I64, unique: bool) -> I64:
        old, new = self._table, self._next or self._table
        left, entered = kernels.put(
            old.words, old.highs, new.words, new.highs, self._first, self._done, hashes, refs, unique
        )
        self.entered(entered)
        return left

    def _span(self, refs: I64) -> None:
        """Make the tables wide enough for these references, in any order."""
        if len(refs):
            self._reach(int(np.minimum.reduce(refs)), int(np.maximum.reduce(refs)))

    def _reach(self, first: int, last: int) -> None:
        """Make the tables wide enough for references from ``first`` to ``last``."""
        if not self._count:
            self._base = self._last = self._next_base = first
        base, self._last = min(first, self._base), max(last, self._last)
        self._next_base = min(first, self._next_base)
        if self._last - base >= _NARROW and not self._table.wide:
            for table in (self._table, self._next):
                if table is not None:
                    table.widen(self._base)
        self._base = base

    def refs(self) -> I64:
        """The references of all entries, in no order."""
        return np.concatenate([self._at(table, table.taken()) for table in self._tables()])

    def _tables(self) -> list[_Table]:
        return [self._table] if self._next is None else [self._table, self._next]

    def _entries(self) -> tuple[Marks, I64]:
        tables = self._tables()
        places = [table.taken() for table in tables]
        marks = [table.marks(at) for table, at in zip(tables, places, strict=True)]
        refs = [self._at(table, at) for table, at in zip(tables, places, strict=True)]
        return np.concatenate(marks), np.concatenate(refs)

    # --- the hand ----------------------------------------------------------------------------------------------------

    def due(self, n: int) -> bool:
        """Whether :meth:`tend` must be called before ``n`` more entries are entered."""
        return n > self._before_due()

    def _before_due(self) -> int:
        """How many entries may be entered before :meth:`tend` must be called."""
        if not self._going:
            return _BEGIN * len(self._table) // 16 - self._count
        return min(_END * len(self._table) // 16 - self._count, (_STEP - 1 - self._due) // self._pace)

    def _full(self, n: int) -> bool:
        """Whether ``n`` more entries would be more than the table takes."""
        return 16 * (self._count + n) > _END * len(self._table)

    def tend(self, n: int, keep: Keep) -> bool:
        """Make room for ``n`` more entries, and forget some of those that ``keep`` does not name; whether the hand
        has begun to go around.
        """
        begun = False
        while self.due(n):
            if not self._going:
                coming = max(_END * len(self._table) // 16 - self._count, 0)
                self._begin(n, self._count if begun else self._wanted(keep), coming)
                begun = True
            elif self._full(n):
                self._finish(keep)
            else:
                self._carry(self._due + n * self._pace, keep)
                break
        return begun

    def rebuild(self, keep: Keep) -> None:
        """Forget all entries that ``keep`` does not name; the others decide how long the table is."""
        self._finish(keep)
        self._begin(0, self._wanted(keep), 0)
        self._finish(keep)
        if self._full(0):  # more were kept than a first stretch had told
            self._begin(0, self._count, 0)
            self._finish(keep)

    def _wanted(self, keep: Keep) -> int:
        """About how many entries would be kept: told from a first stretch, since marks are in no order of time."""
        some = self._at(self._table, self._table.taken(0, _STEP))
        gone = len(some) - int(np.count_nonzero(some >= keep if isinstance(keep, int) else keep(some)))
        return self._count - self._count * gone // max(len(some), 1)

    def _begin(self, n: int, kept: int, meanwhile: int) -> None:
        """Begin to go around, so that there is room for ``n`` more and those that come until then (``meanwhile``)."""
        old, size = self._table, len(self._table)
        least = self._count + meanwhile + n + 1  # there is room for all, whatever is kept
        places = max(_SMALLEST, int(_SPARSE * (kept + meanwhile + n)), least)
        if size < least or not places / _SUITS <= size <= places * _SUITS:
            self._next = _Table(places, wide=old.wide)
        self._going = True
        self._first, self._done = old.free_from(0) % size, 0
        self._pace, self._due = -(-size // max(meanwhile - n, 1)), 0
        self._next_base = self._last

    def _finish(self, keep: Keep) -> None:
        while self._going:
            self._carry(_STRETCH, keep)

    def _carry(self, places: int, keep: Keep) -> None:
        """Let the hand go on by so many places, and to the next free one."""
        old, size = self._table, len(self._table)
        # Entries at a place have their homes there or before, back to the last free place; the hand stops at free ones.
        # So what is put back comes to lie where something was taken out, and no entry beyond is looked for from there.
        begin = self._first + self._done
        end = old.free_from(min(begin + places, self._first + size))
        self._done = min(end - self._first, size)
        for start, stop in ((begin, min(end, size)), (max(begin - size, 0), end - size)):
            if start >= stop:
                continue
            if isinstance(keep, int):
                self._sift(start, stop, keep)
                continue
            hashes, refs = kernels.take_out(old.words, old.highs, start, stop, self._base)
            self._count -= len(refs)
            kept = keep(refs).nonzero()[0]
            if len(kept) < len(refs):
                hashes, refs = hashes.take(kept), refs.take(kept)
            if len(refs):
                self._next_base = min(self._next_base, int(np.minimum.reduce(refs)))
            self._put(hashes, refs, unique=False)
        if self._next is not None:
            # Entries with homes before the one where the hand began may have come to lie beyond it since.
            old.give_back(old.free_from(self._first), min(self._first + self._done, size))
        self._due = 0
        if self._done == size:
            self._table, self._next, self._base = self._next or old, None, self._next_base
            self._going = False
            self._first = self._done = self._pace = 0

    def _sift(self, start: int, stop: int, least: int) -> None:
        """Carry over the entries at these places whose references are at least ``least``."""
        old, new = self._table, self._next or self._table
        tables = old.words, old.highs, new.words, new.highs
        taken, put, lowest = kernels.carry(*tables, self._first, self._done, start, stop, self._base, least)
        self._count -= taken
        self.entered(put)
        self._next_base = min(self._next_base, lowest)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes in use: a new table is written to from the beginning on."""
        new = 0 if self._next is None else self._next.nbytes * self._done // len(self._table)
        return self._table.nbytes + new

    def growth(self, n: int) -> int:
        """About how many bytes ``n`` more entries may take: the way to a new table takes memory as it goes."""
        size = len(self._table)
        if self._next is not None:
            return self._next.nbytes * min(self._due + n * self._pace, size - self._done) // size
        if not (self._full(n) if self._going else self.due(n)):
            return 0
        meanwhile = max(_END * size // 16 - self._count, n)
        return int(_SPARSE * (self._count + meanwhile + n)) * self._table.width * n // max(meanwhile - n, n)

    def dump(self) -> dict[str, Any]:
        """The entries as plain data."""
        marks, refs = self._entries()
        return {"marks": marks, "refs": refs}

    def part(self, hashes: U64, refs: I64) -> dict[str, Any]:
        """Those of :meth:`dump` that are the entries of ``hashes`` with ``refs``, without a look at all others."""
        marks, found = kernels.marks_of(hashes), [_NONE]
        for table, rows, places in self._walk(marks):
            own = (self._at(table, places) == refs.take(rows)).nonzero()[0]
            found.append(rows.take(own))
        rows = np.concatenate(found)
        return {"marks": marks.take(rows), "refs": refs.take(rows)}

    def load(self, state: dict[str, Any]) -> None:
        order = state["marks"].argsort()  # so that filling goes through memory in order
        self._table = _Table(max(_SMALLEST, int(_SPARSE * len(order))), wide=False)
        self.add(state["marks"].take(order).astype(np.uint64) << np.uint64(32), state["refs"].take(order))

    def _check(self) -> None:
        assert not self._full(0), (len(self._table), self._count)
        marks, refs = self._entries()
        assert len(refs) == self._count
        assert self._base <= min(refs.tolist(), default=self._base) and max(refs.tolist(), default=0) <= self._last
        rows, found = self.find(marks.astype(np.uint64) << np.uint64(32))
        assert set(zip(rows.tolist(), found.tolist(), strict=True)) >= set(enumerate(refs.tolist()))
        if self._next is not None:
            left = self._table.marks(self._table.taken())
            assert not kernels.gone_over(left, len(self._table), self._first, self._done).any()
