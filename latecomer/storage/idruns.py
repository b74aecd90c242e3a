"""Runs of id entries on a shelf: sorted by mixed hash, immutable, cut into blocks.

Rule: a run is written from entries that come in order, piece by piece, and read the same way, so that runs of any
length take a bounded amount of memory while they are made or merged. What stays in memory of a run is its filter and,
per block, the first hash and the slot.

A blob holds the five columns of up to ``BLOCK`` entries; blobs of some blocks lie in one file. The filter's words are
blobs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.errors import StateError
from latecomer.storage.columns import I64
from latecomer.storage.filters import Builder, Filter, Probe
from latecomer.storage.hashing import U64
from latecomer.storage.packing import pack, unpack
from latecomer.storage.shelf import Shelf, Slot
from latecomer.storage.sieve import Sieve

I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
#: Which entries with these times and types still matter. It must be a floor per type that never falls: an entry is kept
#: if the floor of its type is at or below its time.
Keep = Callable[[I64, I32], Bools]

BLOCK = 2_048  # entries; some 50 kB. Smaller ones cost more to pack, larger ones more to read for one id
_TOGETHER = 16  # blocks in one file: about 1 MB
_AHEAD = 4  # blocks of each run that a merge reads at once
_SAMPLE = 64  # entries of a run that are kept in memory to tell how many are dead
_LAST = 2**63 - 1
_WORDS = 1 << 17  # of a filter in one blob
_ARROW_STREAM = b"\xff\xff\xff\xff"  # what blocks of earlier releases begin with
_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)  # blocks are too small to be handed around


class Columns(NamedTuple):
    """Entries, column by column."""

    mixed: U64
    ts: I64
    types: I32
    content: U64
    ids: pa.Array

    @classmethod
    def none(cls, kind: pa.DataType) -> Columns:
        """No entries, with ids of type ``kind``."""
        none = np.zeros(0, np.int64)
        return cls(none.view(np.uint64), none, none.astype(np.int32), none.view(np.uint64), pa.nulls(0, kind))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """At least one part, end to end."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.mixed for part in parts]),
            np.concatenate([part.ts for part in parts]),
            np.concatenate([part.types for part in parts]),
            np.concatenate([part.content for part in parts]),
            pa.concat_arrays([part.ids for part in parts]),
        )

    def take(self, at: I64) -> Columns:
        own = self.mixed.take(at), self.ts.take(at), self.types.take(at), self.content.take(at)
        return Columns(*own, self.ids.take(pa.array(at)))

    def cut(self, start: int, end: int) -> Columns:
        own = self.mixed[start:end], self.ts[start:end], self.types[start:end], self.content[start:end]
        return Columns(*own, self.ids.slice(start, end - start))

    def encode(self) -> bytes:
        """As a blob."""
        return pack(list(self), checked=False)

    @classmethod
    def decode(cls, blob: bytes) -> Columns:
        """What was encoded. Raises StateError when it is something else."""
        if blob[:4] == _ARROW_STREAM:
            return cls._decode_arrow(blob)
        try:
            columns = unpack(blob)
        except StateError as problem:
            raise StateError(f"a block of ids cannot be read: {problem}") from None
        if not isinstance(columns, list) or len(columns) != len(cls._fields):
            raise StateError(f"a block of ids does not hold the columns {list(cls._fields)}: restore an older version")
        return cls(*columns)

    @classmethod
    def _decode_arrow(cls, blob: bytes) -> Columns:
        """What earlier releases wrote: an Arrow stream of one batch."""
        try:
            with pa.ipc.open_stream(blob, options=_IN_THIS_THREAD) as stream:
                batch = stream.read_next_batch()
            if batch.schema.names != list(cls._fields):
                raise StateError(f"a block of ids has the columns {batch.schema.names}, not {list(cls._fields)}")
        except (pa.ArrowInvalid, OSError, StopIteration) as problem:
            raise StateError(f"a block of ids cannot be read ({problem}): restore an older version") from None
        mixed, ts, types, content = (column.to_numpy() for column in batch.columns[:4])
        return cls(mixed, ts, types, content, batch.column(4))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self)


@dataclass(slots=True)
class Run:
    """What is in memory of a run."""

    count: int
    #: The first mixed hash of each block.
    fences: U64
    #: Where each block is: number in ``files``, offset, length.
    files: list[str]
    file_of: I64
    offsets: I64
    lengths: I64
    filter_slots: list[Slot]
    #: The types among the entries, and the first and last time of each.
    types: I32
    low: I64
    high: I64
    sample_ts: I64
    sample_types: I32
    filter: Filter | None = None
    sieve: Sieve | None = None

    def slot(self, block: int) -> Slot:
        return self.files[int(self.file_of[block])], int(self.offsets[block]), int(self.lengths[block])

    def slots(self) -> list[Slot]:
        return [self.slot(block) for block in range(len(self.fences))] + self.filter_slots

    def blocks_of(self, wanted: U64) -> tuple[I64, I64]:
        """Pairs (number in ``wanted``, block): where a mixed hash must be, if it is here; in order of block."""
        # Equal hashes may lie on both sides of a fence that equals them.
        first = np.maximum(self.fences.searchsorted(wanted, "left") - 1, 0)
        asking, blocks = ranges(first, self.fences.searchsorted(wanted, "right"))
        order = blocks.argsort(kind="stable")
        return asking.take(order), blocks.take(order)

    def dead(self, keep: Keep) -> float:
        """The share of entries that are dead: an estimate, but 1.0 is certain."""
        if not keep(self.high, self.types).any():
            return 1.0
        alive = int(np.count_nonzero(keep(self.sample_ts, self.sample_types)))
        return 1 - max(alive, 1) / len(self.sample_ts)

    def known(self, shelf: Shelf) -> Filter:
        """The filter of its hashes; read at first use."""
        if self.filter is None:
            self.filter = Filter(np.concatenate([unpack(shelf.get(slot)) for slot in self.filter_slots]))
        return self.filter

    @property
    def nbytes(self) -> int:
        """Bytes in memory, but for what is the same for a run of any length."""
        blocks = self.fences.nbytes + self.file_of.nbytes + self.offsets.nbytes + self.lengths.nbytes
        return blocks + (self.filter.nbytes if self.filter else 0)

    def dump(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("filter", "sieve")}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Run:
        name = state["filter_slots"]
        return cls(**{**state, "filter_slots": [(file, offset, length) for file, offset, length in name]})

    def _check(self, shelf: Shelf) -> None:
        blocks = [read(shelf, self.slot(number)) for number in range(len(self.fences))]
        assert [block.mixed[0] for block in blocks] == self.fences.tolist(), "fences"
        whole = Columns.joined(blocks)
        assert len(whole.mixed) == self.count > 0, (len(whole.mixed), self.count)
        assert (whole.mixed[1:] >= whole.mixed[:-1]).all(), "run not sorted"
        assert self.known(shelf).maybe(Probe(whole.mixed, mixed=True)).all(), "the filter denies an entry"
        if self.sieve is not None:
            assert len(self.sieve.passing(whole.mixed)) == self.count, "the sieve denies an entry"
        assert set(self.types.tolist()) == set(whole.types.tolist()), (self.types, set(whole.types.tolist()))
        for kind, low, high in zip(self.types, self.low, self.high, strict=True):
            own = whole.ts[whole.types == kind]
            assert (own.min(), own.max()) == (low, high), (kind, low, high)


def read(shelf: Shelf, slot: Slot) -> Columns:
    """The entries of one block."""
    return Columns.decode(shelf.get(slot))


def write(shelf: Shelf, pieces: Iterable[Columns], expected: int) -> Run | None:
    """A run of the entries in ``pieces``, which come in order of mixed hash and are about ``expected``; None if none
    come. Raises StateError, and leaves nothing on the shelf, when that fails.
    """
    writer = _Writer(shelf, expected)
    try:
        for piece in pieces:
            writer.add(piece)
        return writer.finish()
    except BaseException:
        shelf.free(writer.slots)
        raise


def in_order(shelf: Shelf, runs: Sequence[Run], keep: Keep | None) -> Iterator[Columns]:
    """The entries of ``runs`` that ``keep`` marks (None: all), in order of mixed hash, in pieces of a few blocks."""
    cursors = [_Cursor(shelf, run) for run in runs]
    while True:
        for cursor in cursors:
            cursor.fill()
        held = [cursor for cursor in cursors if len(cursor.held.mixed)] if cursors else []
        if not held:
            return
        # What a run has not yet shown is at or above the last hash that it has.
        bounds = [cursor.held.mixed[-1] for cursor in held if cursor.more]
        piece = Columns.joined([cursor.leave(min(bounds) if bounds else None) for cursor in held])
        order = piece.mixed.argsort(kind="stable")  # a few sorted stretches: about linear
        if keep is not None:
            order = order[keep(piece.ts, piece.types).take(order)]
        yield piece.take(order)


class _Cursor:
    """A place in a run that is read from its beginning."""

    def __init__(self, shelf: Shelf, run: Run) -> None:
        self._shelf, self._run, self._next = shelf, run, 0
        self.held = read(shelf, run.slot(0)).cut(0, 0)

    @property
    def more(self) -> bool:
        return self._next < len(self._run.fences)

    def fill(self) -> None:
        """Hold entries, if there are any left."""
        if self.more and not len(self.held.mixed):
            end = min(self._next + _AHEAD, len(self._run.fences))
            slots = [self._run.slot(number) for number in range(self._next, end)]
            self.held = Columns.joined([read(self._shelf, slot) for slot in slots])
            self._next = end

    def leave(self, bound: np.uint64 | None) -> Columns:
        """The held entries up to ``bound`` (None: all), which are held no more."""
        n = len(self.held.mixed)
        end = n if bound is None else int(self.held.mixed.searchsorted(bound, "right"))
        left, self.held = self.held.cut(0, end), self.held.cut(end, n)
        return left


class _Writer:
    """Makes a run. ``slots`` is what it has put on the shelf so far."""

    def __init__(self, shelf: Shelf, expected: int) -> None:
        self.slots: list[Slot] = []
        self._shelf = shelf
        self._step = max(expected // _SAMPLE, 1)
        self._builder = Builder(expected)
        self._waiting: list[Columns] = []
        self._rows = 0  # of those that wait
        self._count = 0
        self._fences: list[int] = []
        self._extent: dict[int, tuple[int, int]] = {}
        self._sample: list[tuple[I64, I32]] = []

    def add(self, columns: Columns) -> None:
        n = len(columns.mixed)
        if not n:
            return
        self._builder.add(columns.mixed)
        self._widen(columns.ts, columns.types)
        at = np.arange(-self._count % self._step, n, self._step)
        self._sample.append((columns.ts.take(at), columns.types.take(at)))
        self._waiting.append(columns)
        self._count += n
        self._rows += n
        if self._rows >= BLOCK * _TOGETHER:
            whole = Columns.joined(self._waiting)
            end = self._rows - self._rows % (BLOCK * _TOGETHER)
            for start in range(0, end, BLOCK * _TOGETHER):
                self.slots += self._shelf.put(self._blobs(whole.cut(start, start + BLOCK * _TOGETHER)))
            self._waiting = [whole.cut(end, self._rows)]
            self._rows -= end

    def _widen(self, ts: I64, types: I32) -> None:
        """Let the extent of each type cover these times."""
        counts = np.bincount(types)
        lows, highs = np.full(len(counts), _LAST), np.full(len(counts), -_LAST)
        np.minimum.at(lows, types, ts)
        np.maximum.at(highs, types, ts)
        kinds = counts.nonzero()[0]
        for kind, low, high in zip(kinds.tolist(), lows[kinds].tolist(), highs[kinds].tolist(), strict=True):
            old_low, old_high = self._extent.get(kind, (low, high))
            self._extent[kind] = min(old_low, low), max(old_high, high)

    def _blobs(self, columns: Columns) -> list[bytes]:
        blobs = []
        for start in range(0, len(columns.mixed), BLOCK):
            block = columns.cut(start, min(start + BLOCK, len(columns.mixed)))
            self._fences.append(int(block.mixed[0]))
            blobs.append(block.encode())
        return blobs

    def finish(self) -> Run | None:
        if not self._count:
            return None
        built = self._builder.finish()
        words = [built.words[start : start + _WORDS] for start in range(0, len(built.words), _WORDS)]
        # The last blocks and the filter's first words share a file: a small run is one file.
        self.slots += self._shelf.put([*self._blobs(Columns.joined(self._waiting)), pack(words[0])])
        for part in words[1:]:
            self.slots += self._shelf.put([pack(part)])
        blocks, filter_slots = self.slots[: -len(words)], self.slots[-len(words) :]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(slot[0] for slot in blocks))}
        where = np.array([(numbers[file], offset, length) for file, offset, length in blocks], np.int64).T.copy()
        kinds = sorted(self._extent)
        return Run(
            count=self._count,
            fences=np.array(self._fences, np.uint64),
            files=list(numbers),
            file_of=where[0],
            offsets=where[1],
            lengths=where[2],
            filter_slots=filter_slots,
            types=np.array(kinds, np.int32),
            low=np.array([self._extent[kind][0] for kind in kinds], np.int64),
            high=np.array([self._extent[kind][1] for kind in kinds], np.int64),
            sample_ts=np.concatenate([ts for ts, _ in self._sample]),
            sample_types=np.concatenate([types for _, types in self._sample]),
            filter=built,
        )


def ranges(starts: I64, ends: I64) -> tuple[I64, I64]:
    """Pairs (row, i) for each row's i in ``range(start, end)``; none where the end is not above the start."""
    lengths = np.maximum(ends - starts, 0)
    rows = np.arange(len(starts)).repeat(lengths)
    return rows, np.arange(len(rows)) + (starts - (lengths.cumsum() - lengths)).take(rows)
