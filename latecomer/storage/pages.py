"""Pages: the payload of events that left memory, by slice of event time.

An event's *reference* tells where it is without an index: the low :data:`SEQUENCE_BITS` bits are its number in order of
arrival, the high ones the slice of its event time (modulo 2**23; slices that share a number share a page, which costs
memory and nothing else). A page is a few immutable *chunks*, each with one blob per column, sorted by number of
arrival; whoever asks for one column reads that column alone.

Invariant (``_check``): the chunks of a page follow each other in order of arrival, and are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.storage.columns import I64
from latecomer.storage.pager import Outbox, Pager
from latecomer.storage.shelf import Slot

SEQUENCE_BITS = 40
SEQUENCE = (1 << SEQUENCE_BITS) - 1
_NUMBERS = (1 << (63 - SEQUENCE_BITS)) - 1

#: Chunks of a page beyond which small ones are written together: more cost more to read, fewer more to write.
_MOST = 6

#: The columns of every event: its number of arrival, and its time, type and content hash.
NUMBER, TS, TYPES, CONTENT = "#number", "#ts", "#types", "#content"


def reference(numbers: I64, slices: I64) -> I64:
    """References of events by number of arrival and slice of time."""
    return numbers | page_of(slices) << SEQUENCE_BITS


def page_of(slices: I64) -> I64:
    """The pages of slices."""
    return slices & _NUMBERS


@dataclass(slots=True)
class Chunk:
    """Events of one page that were written together: ``slots`` by column; ``last`` is the last number of arrival,
    ``latest`` the last time.
    """

    slots: dict[str, Slot]
    count: int
    last: int
    latest: int

    def dump(self) -> list[Any]:
        return [list(self.slots.items()), self.count, self.last, self.latest]

    @classmethod
    def of(cls, saved: list[Any]) -> Chunk:
        slots, count, last, latest = saved
        return cls({name: tuple(slot) for name, slot in slots}, count, last, latest)


class Page:
    """Chunks, and the columns of theirs that are in memory."""

    __slots__ = ("chunks", "columns", "touched")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.columns: dict[str, pa.Array] = {}
        self.touched = 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(column.nbytes for column in self.columns.values())


class Pages:
    """All pages of an event log; ``types`` are the types of its columns."""

    def __init__(self, pager: Pager, types: Mapping[str, pa.DataType]) -> None:
        self._pager = pager
        self.types = {**types, NUMBER: pa.int64(), TS: pa.int64(), TYPES: pa.int32(), CONTENT: pa.uint64()}
        self._pages: dict[int, Page] = {}

    def __len__(self) -> int:
        """Events in all pages."""
        return sum(chunk.count for page in self._pages.values() for chunk in page.chunks)

    def __bool__(self) -> bool:
        return bool(self._pages)

    def ends(self, pages: I64) -> I64:
        """For each page the number of arrival from which on its events are not in it; 0 where there is no page."""
        known = sorted(self._pages)
        numbers = np.array(known, np.int64)
        ends = np.array([self._pages[number].chunks[-1].last + 1 for number in known], np.int64)
        at = np.minimum(numbers.searchsorted(pages), len(known) - 1)
        return np.where(numbers.take(at) == pages, ends.take(at), 0)

    def save(self, number: int, columns: Mapping[str, pa.Array], outbox: Outbox) -> None:
        """Write a chunk of events of slice ``number`` that arrived after all events of its page; ``columns`` are
        ascending by number of arrival."""
        number &= _NUMBERS
        page = self._pages.get(number) or Page()
        count, merged = len(columns[NUMBER]), 0
        if len(page.chunks) >= _MOST:
            while merged < len(page.chunks) and page.chunks[-1 - merged].count < 2 * count:
                count += page.chunks[-1 - merged].count
                merged += 1
        old = page.chunks[len(page.chunks) - merged :]
        if old:
            columns = {
                name: pa.concat_arrays([*(self._read(chunk, name) for chunk in old), _typed(values, self.types[name])])
                for name, values in columns.items()
            }
        latest = max([int(np.asarray(columns[TS]).max()), *(chunk.latest for chunk in old)])
        chunk = Chunk({}, count, int(columns[NUMBER][-1].as_py()), latest)
        for name, values in columns.items():
            outbox.add(values, partial(chunk.slots.__setitem__, name))

        def done() -> None:
            page.chunks[len(page.chunks) - merged :] = [chunk]
            page.columns.clear()
            self._pages[number] = page
            self._pager.free(slot for gone in old for slot in gone.slots.values())

        outbox.after(done)

    def take(self, name: str, refs: I64) -> pa.Array:
        """Values of a column at ``refs``, all of which must be in pages."""
        numbers = refs >> SEQUENCE_BITS
        first = int(numbers[0])
        if (numbers == first).all():
            return self._column(first, name).take(pa.array(self._at(first, refs)))
        order = numbers.argsort(kind="stable")
        numbers = numbers[order]
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        parts = []
        for start, end in pairwise(edges):
            number = int(numbers[start])
            parts.append(self._column(number, name).take(pa.array(self._at(number, refs[order[start:end]]))))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_arrays(parts).take(pa.array(back))

    def holds(self, refs: I64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which events are in pages."""
        held = np.zeros(len(refs), bool)
        numbers = refs >> SEQUENCE_BITS
        for number in np.unique(numbers).tolist():
            if number in self._pages:
                at = np.flatnonzero(numbers == number)
                held[at] = np.isin(refs[at] & SEQUENCE, np.asarray(self._column(number, NUMBER)))
        return held

    def _at(self, number: int, refs: I64) -> I64:
        return np.asarray(self._column(number, NUMBER)).searchsorted(refs & SEQUENCE)

    def _column(self, number: int, name: str) -> pa.Array:
        page = self._pages[number]
        page.touched = self._pager.turn
        column = page.columns.get(name)
        if column is None:
            parts = [self._read(chunk, name) for chunk in page.chunks]
            column = page.columns[name] = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return column

    def _read(self, chunk: Chunk, name: str) -> pa.Array:
        return _typed(self._pager.load(chunk.slots[name]), self.types[name])

    def drop_before(self, floor: int) -> None:
        """Forget the pages all of whose events are earlier than ``floor``."""
        for number in [n for n, p in self._pages.items() if all(c.latest < floor for c in p.chunks)]:
            page = self._pages.pop(number)
            self._pager.free(slot for chunk in page.chunks for slot in chunk.slots.values())

    def latest(self) -> int:
        """No event in a page is later than this."""
        return max((chunk.latest for page in self._pages.values() for chunk in page.chunks), default=-(2**63))

    def cached(self) -> Iterable[tuple[int, Page]]:
        """The pages that are in memory, at least in part."""
        return [(n, p) for n, p in self._pages.items() if p.columns]

    def slots(self) -> Iterable[Slot]:
        """All that the pages need of the shelf."""
        return (slot for page in self._pages.values() for chunk in page.chunks for slot in chunk.slots.values())

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(page.nbytes for page in self._pages.values())

    def dump(self) -> list[Any]:
        """What chunks there are, as plain data."""
        return [[number, [chunk.dump() for chunk in page.chunks]] for number, page in self._pages.items()]

    def load(self, state: Sequence[Any]) -> None:
        for number, chunks in state:
            page = self._pages[number] = Page()
            page.chunks = [Chunk.of(chunk) for chunk in chunks]

    def _check(self) -> None:
        for number, page in self._pages.items():
            lasts = [chunk.last for chunk in page.chunks]
            assert lasts == sorted(lasts), f"page {number}: chunks end at {lasts}"
            counts = [chunk.count for chunk in page.chunks]
            assert len(counts) <= _MOST + max(counts).bit_length(), f"page {number}: sizes {counts}"
            numbers = np.asarray(self._column(number, NUMBER))
            assert (numbers[1:] > numbers[:-1]).all(), f"page {number}: not in order of arrival"


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column that was all null when it was written may have found its type since; texts are large in pages."""
    if pa.types.is_null(values.type) and not pa.types.is_null(kind):
        return values.cast(kind)
    return values
