"""The event log: the payload of every event that state still refers to, once, in order of arrival.

Stores, sort buffers and held matches keep *references* that never change; columns are gathered only for candidates.
Rows leave from the front once nothing can refer to them any more. With pages, a reference also tells the slice of the
event's time, and whole slices may leave memory: rows of theirs are then gathered from their page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.storage import kernels
from latecomer.storage.columns import (
    I64,
    Buffer,
    BytesColumn,
    Column,
    FixedColumn,
    Plain,
    Raw,
    every,
    make_column,
    raw_of,
    some,
)
from latecomer.storage.hashing import U64
from latecomer.storage.numbers import Numbers
from latecomer.storage.pager import Outbox
from latecomer.storage.pages import CONTENT, NUMBER, SEQUENCE, TS, TYPES, Pages, page_of, reference
from latecomer.storage.slices import by_slice, counted

Bools = npt.NDArray[np.bool_]

_NOT_RAW: Mapping[str, Raw | None] = {}
_FIRST_LOOK = 1_024  # events; below this a look is not worth its call
_OFTEN = 128  # the log is looked at when it has grown by this part
_AT_ONCE = 1 << 16  # events that are looked at together where all of them are
_NONE = np.zeros(0, np.int64)


class Census(NamedTuple):
    """Events in memory, page by page, those of each in order of arrival: positions, slices and numbers (n,)."""

    at: I64
    slices: I64
    numbers: I64

    def take(self, which: I64 | Bools) -> Census:
        """Some of them."""
        if which.dtype == bool and every(which):
            return self
        return Census(self.at[which], self.slices[which], self.numbers[which])


class EventLog:
    """Columns ``names`` of ``types``, plus each event's time, type number and content hash.

    A reference is the event's number since the log began (with ``pages`` also the slice of its time). After a
    ``compact`` the log begins with a sparse stretch, whose numbers are listed; from ``_dense`` on every event is
    present.

    Args:
        types: the columns' types.
        pages: where slices of ``2**bits`` units go that leave memory; None: all stay.
        bits: see there.
    """

    def __init__(self, types: Mapping[str, pa.DataType], pages: Pages | None = None, bits: int = 0) -> None:
        self.pages, self._bits = pages, bits
        self.columns: dict[str, Column] = {name: make_column(kind) for name, kind in types.items()}
        self._ts = Buffer(np.dtype(np.int64))
        self._types = Buffer(np.dtype(np.int32))
        self._content = Buffer(np.dtype(np.uint64))
        self._sparse = Numbers(np.zeros(0, np.int64))
        self._dense = 0
        self._look_at = _FIRST_LOOK
        self.away_until = -(2**63)  #: all events later than this are in memory

    def __len__(self) -> int:
        return len(self._ts)

    @property
    def end(self) -> int:
        """The number that the next event will get."""
        return self._dense + len(self._ts) - len(self._sparse)

    @property
    def gapless(self) -> bool:
        """Whether all events are in memory, and follow one another from :attr:`dense` on."""
        return self.pages is None and not len(self._sparse)

    @property
    def dense(self) -> int:
        """The number from which on all events are present."""
        return self._dense

    @property
    def spans(self) -> tuple[Buffer, Buffer, Buffer]:
        """Times, types and contents."""
        return self._ts, self._types, self._content

    def coming(self, ts: I64) -> I64:
        """The references that events at ``ts`` will get if they are appended next."""
        numbers = np.arange(self.end, self.end + len(ts))
        return numbers if self.pages is None else reference(numbers, ts >> self._bits)

    def _at(self, refs: I64) -> I64:
        """Positions of events that are present."""
        if self.pages is not None:
            refs = refs & SEQUENCE
        positions = refs - (self._dense - len(self._sparse))
        if len(self._sparse):
            old = (refs < self._dense).nonzero()[0]
            positions[old] = self._sparse.places(refs.take(old))
        return positions

    def _places(self, refs: I64, others: I64) -> tuple[I64, I64, int]:
        """Positions of events that are present, and what they are too large by."""
        if self.pages is None and not len(self._sparse):
            return refs, others, self._dense
        return self._at(refs), self._at(others), 0

    def present(self, refs: I64) -> Bools:
        """Which events are in memory."""
        if self.pages is not None:
            refs = refs & SEQUENCE
        here = refs >= self._dense
        if len(self._sparse):
            here |= self._sparse.hold(refs)
        return here

    def reach(self, refs: I64, floors: I64) -> Bools:
        """Which events are in memory and not older than the floor of their type."""
        if self.pages is None and not len(self._sparse):
            return kernels.reached(refs, self._dense, self._ts.live(), self._types.live(), floors)
        found = self.present(refs)
        at = self._at(refs.take(found.nonzero()[0]))
        found[found] = self._ts.live().take(at) >= floors.take(self._types.live().take(at))
        return found

    def append(
        self,
        ts: I64,
        types: I64,
        content: U64,
        columns: Mapping[str, pa.Array],
        rows: I64 | None = None,
        raw: Mapping[str, Raw | None] = _NOT_RAW,
    ) -> None:
        """Add events; ``columns`` holds an array for each of the log's names, of which ``rows`` are the events' (None:
        all), and is not asked for those whose values are in ``raw``, as they lie in memory.
        """
        self._ts.append(ts)
        self._types.append(types)
        self._content.append(content)
        for name, column in self.columns.items():
            lies = raw.get(name)
            if isinstance(column, FixedColumn):
                if isinstance(lies, np.ndarray):
                    column.append_raw(lies if rows is None else lies.take(rows))
                else:
                    column.append(columns[name], rows)
            elif rows is not None:
                column.append(columns[name].take(pa.array(rows)))
            elif isinstance(lies, tuple) and isinstance(column, BytesColumn):
                column.append_raw(*lies)
            else:
                column.append(columns[name])

    def plain(self, names: Iterable[str]) -> tuple[Plain, ...]:
        """Columns of types that have a :func:`latecomer.storage.columns.plain_layout`, as compiled kernels see them: of
        the events in memory.
        """
        return tuple([cast("FixedColumn | BytesColumn", self.columns[name]).plain() for name in names])

    def places(self) -> tuple[Any, ...]:
        """Where in the columns events are: the bits of a reference that are its number, the number from which on all
        are there, how many lie before it, and these (:meth:`latecomer.storage.numbers.Numbers.plain`).
        """
        number = -1 if self.pages is None else SEQUENCE
        return number, self._dense, len(self._sparse), *self._sparse.plain()

    def _paged(self, refs: I64) -> Bools | None:
        """Which events are in pages and not in memory; None: none."""
        if not self.pages:
            return None
        gone = ~self.present(refs)
        return gone if some(gone) else None

    def ts(self, refs: I64) -> I64:
        return self._numbers(self._ts, TS, refs)

    def types(self, refs: I64) -> I64:
        return self._numbers(self._types, TYPES, refs)

    def content(self, refs: I64) -> U64:
        return self._numbers(self._content, CONTENT, refs)  # type: ignore[return-value]

    def _numbers(self, own: Buffer, name: str, refs: I64) -> I64:
        paged = self._paged(refs)
        if paged is None:
            return own.live().take(self._at(refs))
        assert self.pages is not None
        result = np.empty(len(refs), own.dtype)
        result[~paged] = own.live().take(self._at(refs[~paged]))
        result[paged] = self.pages.take(name, refs[paged])
        return result

    def take(self, name: str, refs: I64) -> pa.Array:
        """Values of a column at ``refs``, as an Arrow array (texts come as large_string)."""
        paged = self._paged(refs)
        if paged is None:
            return self.columns[name].take(self._at(refs))
        assert self.pages is not None
        if every(paged):
            return self.pages.take(name, refs)
        values = pa.concat_arrays([self.columns[name].take(self._at(refs[~paged])), self.pages.take(name, refs[paged])])
        order = np.empty(len(refs), np.int64)
        order[~paged] = np.arange(len(refs) - np.count_nonzero(paged))
        order[paged] = np.arange(len(refs) - np.count_nonzero(paged), len(refs))
        return values.take(pa.array(order))

    def raw(self, name: str, refs: I64) -> tuple[Raw, I64, int]:
        """Where in memory the values at ``refs`` of a column of integers, texts or byte strings lie: among which values
        (of texts offsets of 64 bits, and the bytes from the first of them on; whatever under nulls), at which places of
        these, and by how much the places are too large.
        """
        column = self.columns[name]
        if isinstance(column, (FixedColumn, BytesColumn)) and self._paged(refs) is None:
            values, offsets, _ = column.plain()
            places, _, shift = self._places(refs, refs)
            return values if offsets is None else (offsets, values), places, shift
        return raw_of(self.take(name, refs)), np.arange(len(refs)), 0

    def equal(self, name: str, refs: I64, other: str, other_refs: I64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the real values agree, row by row; False where either is null."""
        left, right = self.columns[name], self.columns[other]
        if left.type == right.type and self._paged(refs) is None and self._paged(other_refs) is None:
            if _plain_integers(left) and _plain_integers(right):
                a, b, shift = self._places(refs, other_refs)
                return kernels.equal_words(left.values.live(), a, shift, right.values.live(), b, shift)
            if _plain_texts(left) and _plain_texts(right):
                a, b, shift = self._places(refs, other_refs)
                return left.same(a, right, b, shift)
        result = pc.equal(self.take(name, refs), self.take(other, other_refs))
        if result.null_count:
            result = result.fill_null(False)
        return result.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    @property
    def looks(self) -> bool:
        """Whether :meth:`drop_before` would look for what to forget."""
        return self.pages is not None or len(self._ts) >= self._look_at

    def drop_before(self, floor: int) -> None:
        """Forget the longest prefix of events whose time is below ``floor``.

        Looks only after the log has grown by a part since it last looked, so that the cost per event stays constant.
        """
        if self.pages is not None:
            self.pages.drop_before(floor)
        if len(self._ts) < self._look_at:
            return
        n = kernels.below(self._ts.live(), floor)
        if n:
            for own in (self._ts, self._types, self._content):
                own.drop(n)
            for column in self.columns.values():
                column.drop(n)
            self._dense += max(n - len(self._sparse), 0)
            if len(self._sparse):
                self._sparse = Numbers(self._sparse.all()[n:])
        part = _OFTEN if not len(self._sparse) else 2  # those numbers are listed afresh
        self._look_at = len(self._ts) + max(_FIRST_LOOK, len(self._ts) // part)

    def marked(self, parts: Iterable[I64]) -> Bools:
        """By its position, whether each event in memory is among these references; others are let pass where there are
        pages.
        """
        mask = np.zeros(len(self), bool)
        for refs in parts:
            mask[self._at(refs if self.pages is None else refs[self.present(refs)])] = True
        return mask

    def compact(self, live: Bools) -> None:
        """Keep only the events that are marked, by position, in memory. O(n)."""
        numbers, end = self.numbers()[live], self.end
        self._sparse, self._dense = Numbers(numbers), end
        self._keep(live)

    def _keep(self, kept: Bools) -> None:
        """Drop the values of all other events."""
        for own in (self._ts, self._types, self._content):
            own.keep(kept)
        for column in self.columns.values():
            column.keep(kept)

    @property
    def held(self) -> int:
        """Events in memory or in pages, each once."""
        unpaged = self.unpaged()
        return len(self) if unpaged is None else len(self.pages or ()) + len(unpaged[0])

    # --- pages -------------------------------------------------------------------------------------------------------

    def numbers(self, begin: int = 0, end: int | None = None) -> I64:
        """The numbers of the events in memory at these positions."""
        end = len(self) if end is None else min(end, len(self))
        old, first = min(end, len(self._sparse)), self._dense - len(self._sparse)
        dense = np.arange(first + max(begin, old), first + max(end, old))
        return np.concatenate([self._sparse.between(begin, old), dense]) if begin < old else dense

    def _pieces(self) -> Iterator[tuple[int, I64]]:
        """The slices of the events in memory, some at a time, with the position of the first: whoever looks at all of
        them does so where memory is short.
        """
        ts = self._ts.live()
        for begin in range(0, len(ts), _AT_ONCE):
            yield begin, ts[begin : begin + _AT_ONCE] >> self._bits

    def counts(self, *, fresh: bool = False) -> dict[int, int]:
        """How many events of each slice are in memory; ``fresh``: that no page holds yet. O(n)."""
        found: Counter[int] = Counter()
        for begin, slices in self._pieces():
            if fresh:
                slices = slices[self._fresh(slices, self.numbers(begin, begin + len(slices)))]
            found.update(dict(zip(*map(np.ndarray.tolist, counted(slices)), strict=True)))
        return found

    def census(self, slices: I64) -> Census:
        """The events in memory that share their page with one of ``slices``. O(n)."""
        pages = page_of(slices)
        parts = [Census(_NONE, _NONE, _NONE)]
        for begin, own in self._pieces():
            at = by_slice(own, lambda some: np.isin(page_of(some), pages)).nonzero()[0]
            if len(at):
                numbers = self.numbers(begin, begin + len(own))
                parts.append(Census(at + begin, own.take(at), numbers.take(at)))
        found = Census(*map(np.concatenate, zip(*parts, strict=True)))
        by_page = page_of(found.slices)
        return found if every(by_page[1:] >= by_page[:-1]) else found.take(by_page.argsort(kind="stable"))

    def _fresh(self, slices: I64, numbers: I64) -> Bools:
        """Which events no page holds yet."""
        if not self.pages:
            return np.ones(len(slices), bool)
        pages = self.pages
        fresh: Bools = numbers >= by_slice(slices, lambda some: pages.ends(page_of(some)))
        return fresh

    def unsaved(self, census: Census) -> Census:
        """Those that no page holds yet."""
        return census.take(self._fresh(census.slices, census.numbers))

    def unpaged(self) -> tuple[I64, I64] | None:
        """Positions and numbers of the events in memory that no page holds yet; None: all, there are no pages."""
        if not self.pages:
            return None
        parts = [(_NONE, _NONE)]
        for begin, slices in self._pieces():
            numbers = self.numbers(begin, begin + len(slices))
            at = self._fresh(slices, numbers).nonzero()[0]
            parts.append((at + begin, numbers.take(at)))
        at, numbers = map(np.concatenate, zip(*parts, strict=True))
        return at, numbers

    def told(self, name: str, at: I64) -> tuple[I64, I64, U64, pa.Array]:
        """Times, types, content hashes and a column of the events at these positions."""
        own = self._ts.live().take(at), self._types.live().take(at), self._content.live().take(at)
        return *own, self.columns[name].take(at)

    def save(self, unsaved: Census, outbox: Outbox) -> None:
        """Write these events, all that is unsaved of their pages; they stay in memory."""
        if not len(unsaved.at):
            return
        assert self.pages is not None
        pages = page_of(unsaved.slices)
        edges = [0, *(np.flatnonzero(np.diff(pages)) + 1).tolist(), len(pages)]
        for start, end in pairwise(edges):
            rows = unsaved.at[start:end]
            columns = {name: column.take(rows) for name, column in self.columns.items()}
            columns[NUMBER] = pa.array(unsaved.numbers[start:end])
            columns[TS] = pa.array(self._ts.live()[rows])
            columns[TYPES] = pa.array(self._types.live()[rows])
            columns[CONTENT] = pa.array(self._content.live()[rows])
            self.pages.save(int(unsaved.slices[start]), columns, outbox)

    def evict(self, gone: Census) -> None:
        """Drop these events from memory, which must have been saved. The others stay where they are or move up, so that
        no copy of them is made where memory is short.
        """
        assert not some(self._fresh(gone.slices, gone.numbers)), "an event was to leave memory before it was saved"
        if not len(gone.at):
            return
        self.away_until = max(self.away_until, int(self._ts.live().take(gone.at).max()))
        kept = np.ones(len(self), bool)
        kept[gone.at] = False
        end = self.end
        self._sparse, self._dense = self._sparse.but(gone.numbers, range(self._dense, end)), end
        self._keep(kept)

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def hot_bytes(self) -> int:
        """Bytes of the events in memory, without copies of pages."""
        own = self._ts.nbytes + self._types.nbytes + self._content.nbytes + int(self._sparse.nbytes)
        return own + sum(c.nbytes for c in self.columns.values())

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.hot_bytes if self.pages is None else self.hot_bytes + self.pages.nbytes

    def dump(self, unpaged: tuple[I64, I64] | None) -> dict[str, Any]:
        """The events that no page holds, as :meth:`unpaged` says, and what pages there are."""
        at: I64 | slice
        if unpaged is None:
            at, columns = slice(None), {name: column.live() for name, column in self.columns.items()}
            sparse, dense = self._sparse.all(), self._dense
        else:
            (at, sparse), dense = unpaged, self.end
            columns = {name: column.take(at) for name, column in self.columns.items()}
        return {
            "dense": dense,
            "sparse": sparse,
            "ts": self._ts.live()[at],
            "types": self._types.live()[at],
            "content": self._content.live()[at],
            "columns": columns,
            "pages": None if self.pages is None else self.pages.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        columns = {
            name: saved.cast(self.columns[name].type) if pa.types.is_null(saved.type) else saved
            for name, saved in state["columns"].items()  # a column that was all null may have found its type since
        }
        self.append(state["ts"], state["types"], state["content"], columns)
        self._dense, self._sparse = state["dense"], Numbers(state["sparse"])
        if self.pages is not None:
            self.pages.load(state["pages"] or ())  # None: of a runtime without a shelf, which has seen no event
            self.away_until = self.pages.latest()


def _plain_integers(column: Column) -> TypeGuard[FixedColumn]:
    """Whether values may be compared as they lie in memory."""
    return isinstance(column, FixedColumn) and column.integers and column.no_nulls


def _plain_texts(column: Column) -> TypeGuard[BytesColumn]:
    return isinstance(column, BytesColumn) and column.no_nulls
