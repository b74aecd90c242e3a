"""Cold ids: the ids of events that are no longer in memory, so that each still counts once, at 4 bytes per id.

Entries (id hash, time, type, content hash, and the id itself) lie on a shelf in runs (``idruns.py``); in memory is a
filter per run. So an id that was never seen costs no read but once in 65,536 times and run, and one that was seen costs
the read of the block that holds it. Before the filters is a *sieve* for many runs together: most new ids end there.

The whole is log-structured: entries that are added become a run, and runs of like size are merged once they are many,
up to a part of all: entries come about in order of time, and a run leaves whole, unread, when the last of them is dead.
Entries that are *dead* (the caller's ``keep`` says which) leave with their run when all of it is dead, when runs are
merged, and when more than half of everything is dead.

Hashes only propose: entries of different ids with one hash are all kept, and all found. Order is by mixed hash, so that
hashes that were cut out of something wider spread evenly over filters and blocks.

Invariants (``_check``): within a run hashes ascend over all blocks; its filter knows each of them; no run is empty; a
run's types and times are those of its entries; no slot is needed twice; only blocks of present runs are cached;
a run's sieve, if it has one, lets each of its hashes pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.storage.columns import I64
from latecomer.storage.filters import Probe
from latecomer.storage.hashing import U64, mix
from latecomer.storage.idruns import I32, Columns, Keep, Run, in_order, ranges, read, write
from latecomer.storage.shelf import Shelf, Slot
from latecomer.storage.sieve import Sieve

#: Bytes of blocks that stay in memory, unless there is a reason for less.
CACHE = 1 << 20
_GROWTH = 12  # so many runs of one size become one: writing an entry again costs more than probing some more filters
_PARTS = 64  # a run that holds this part of all is left alone: one more filter costs less than writing it again
_SMALL = 4_096  # runs below this count as if they had this size
_SIEVES = 3  # a sieve is for this part of all entries, and goes with the last of its runs
_FIRST = 1 << 16  # entries; smaller sieves save nothing


class Found(NamedTuple):
    """Entries, aligned with the rows that asked."""

    ts: I64
    types: I32
    content: U64
    ids: pa.Array


class ColdIds:
    """Ids of type ``kind`` on a ``shelf``; blocks that were read lately stay in memory, up to ``cache`` bytes.

    >>> from latecomer.storage.shelf import MemoryShelf
    >>> cold, one = ColdIds(MemoryShelf(), pa.string()), np.array([1], np.uint64)
    >>> cold.add(one, np.array([50]), np.array([0]), one, pa.array(["e1"]))
    >>> rows, found = cold.find(np.array([7, 1], np.uint64)); rows.tolist(), found.ids.to_pylist()
    ([1], ['e1'])
    """

    def __init__(self, shelf: Shelf, kind: pa.DataType, *, cache: int = CACHE) -> None:
        self._shelf = shelf
        self._kind = kind
        self._runs: list[Run] = []
        self._keep: Keep | None = None
        self._recent = _Recent(cache)
        self._sieve: Sieve | None = None  # the one that new runs go through

    def __len__(self) -> int:
        """How many entries there are, dead ones that have not left yet among them."""
        return sum(run.count for run in self._runs)

    def add(self, hashes: U64, ts: I64, types: npt.NDArray[Any], content: U64, ids: pa.Array) -> None:
        """Enter ids (n,), in any order, whatever is there already. Amortised O(log n) per id.

        Raises StateError, and enters nothing, when the shelf cannot be written or read.
        """
        if not len(hashes):
            return
        self._merge()
        if ids.type != self._kind:
            ids = ids.cast(self._kind)
        mixed = mix(hashes)
        columns = Columns(mixed, ts, types.astype(np.int32), content, ids).take(mixed.argsort())
        self._replace([], self._write([columns], len(hashes)))

    def find(self, hashes: U64) -> tuple[I64, Found]:
        """Pairs (row, entry): for each probing row all entries with its hash, in order of row.

        Dead entries may be among them. Reads each block at most once. Raises StateError when one cannot be read.
        """
        mixed = mix(hashes)
        asked = [np.zeros(0, np.int64)]
        parts = [Columns.none(self._kind)]
        for sieve, runs in self._by_sieve():
            passing = np.arange(len(mixed)) if sieve is None else sieve.passing(mixed)
            probe = Probe(mixed.take(passing), mixed=True)
            for run in runs if len(passing) else ():
                maybe = run.known(self._shelf).maybe(probe).nonzero()[0]
                for rows, block in self._entries(run, probe.mixed, maybe):
                    asked.append(passing.take(rows))
                    parts.append(block)
        found_rows = np.concatenate(asked)
        order = found_rows.argsort(kind="stable")
        return found_rows.take(order), Found(*Columns.joined(parts).take(order)[1:])

    def _entries(self, run: Run, mixed: U64, maybe: I64) -> Iterator[tuple[I64, Columns]]:
        """The entries of a run with the hashes at ``maybe``, block by block, with the place of each one's hash."""
        if not len(maybe):
            return
        wanted = mixed.take(maybe)
        asking, blocks = run.blocks_of(wanted)
        starts = np.append(True, blocks[1:] != blocks[:-1]).nonzero()[0].tolist() if len(blocks) else []
        for start, end in zip(starts, [*starts[1:], len(blocks)], strict=False):
            block = self._block(run.slot(int(blocks[start])))
            own = asking[start:end]
            values = wanted.take(own)
            of, at = ranges(block.mixed.searchsorted(values, "left"), block.mixed.searchsorted(values, "right"))
            if len(at):
                yield maybe.take(own.take(of)), block.take(at)

    def _by_sieve(self) -> Iterable[tuple[Sieve | None, list[Run]]]:
        """The runs that share a sieve; those that were loaded have none."""
        groups: dict[int, tuple[Sieve | None, list[Run]]] = {}
        for run in self._runs:
            groups.setdefault(id(run.sieve), (run.sieve, []))[1].append(run)
        return groups.values()

    def forget(self, keep: Keep) -> None:
        """Entries that ``keep`` does not mark are dead. O(runs); writes nothing."""
        self._keep = keep
        self._replace([run for run in self._runs if run.dead(keep) == 1], None)

    def tidy(self) -> None:
        """Write anew what is alive, when more than half of everything is dead. O(n) then, and O(runs) otherwise.

        Raises StateError, and loses nothing, when it cannot be written.
        """
        if self._keep is None:
            return
        shares = {id(run): run.dead(self._keep) for run in self._runs}
        if 2 * sum(shares[id(run)] * run.count for run in self._runs) > len(self):
            for run in list(self._runs):
                if shares[id(run)] > 0.5:
                    self._rewrite([run])

    def slots(self) -> list[Slot]:
        """All slots on the shelf that are needed."""
        return [slot for run in self._runs for slot in run.slots()]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        sieves = sum(sieve.nbytes for sieve, _ in self._by_sieve() if sieve is not None)
        return sum(run.nbytes for run in self._runs) + sieves + self._recent.nbytes

    def dump(self) -> list[dict[str, Any]]:
        """What :meth:`load` needs beside the shelf: some bytes per block, as plain data and arrays."""
        return [run.dump() for run in self._runs]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Be what was dumped. Reads nothing: filters come with the first probe."""
        self._runs = [Run.load(saved) for saved in state]
        self._recent.clear()

    def _merge(self) -> None:
        """Make one run of the smallest, if there are enough of them."""
        most = max(len(self) // _PARTS, _SMALL)
        runs = sorted((run for run in self._runs if run.count < most), key=lambda run: -run.count)
        sizes = np.array([max(run.count, _SMALL) for run in runs], np.int64)
        smaller = sizes.sum() - sizes.cumsum()
        due = (sizes * (_GROWTH - 1) <= smaller).nonzero()[0]
        if len(due):
            self._rewrite(runs[int(due[0]) :])
        elif len(runs) > 1 and sizes.sum() >= most > _SMALL:
            self._rewrite(runs)

    def _rewrite(self, runs: Sequence[Run]) -> None:
        """Put what is alive of ``runs`` into one."""
        pieces = in_order(self._shelf, runs, self._keep)
        self._replace(runs, self._write(pieces, sum(run.count for run in runs)))

    def _write(self, pieces: Iterable[Columns], expected: int) -> Run | None:
        """A run of these entries, whose hashes go through the sieve that is open."""
        sieve = self._sieve
        if sieve is None or sieve.count + expected > sieve.capacity:
            sieve = self._sieve = Sieve(max(len(self) // _SIEVES, expected, _FIRST))
        run = write(self._shelf, _sifted(pieces, sieve), expected)
        if run is not None:
            run.sieve = sieve
        return run

    def _replace(self, old: Sequence[Run], new: Run | None) -> None:
        gone = {id(run) for run in old}
        self._runs = [run for run in self._runs if id(run) not in gone] + ([new] if new else [])
        for run in old:
            slots = run.slots()
            self._recent.drop(slots)
            self._shelf.free(slots)

    def _block(self, slot: Slot) -> Columns:
        columns = self._recent.get(slot)
        if columns is None:
            columns = read(self._shelf, slot)
            self._recent.put(slot, columns)
        return columns

    def _check(self) -> None:
        slots = self.slots()
        assert len(set(slots)) == len(slots), "a slot is needed twice"
        self._recent._check(set(slots))
        for run in self._runs:
            run._check(self._shelf)


def _sifted(pieces: Iterable[Columns], sieve: Sieve) -> Iterator[Columns]:
    """These pieces, whose hashes the sieve lets pass from then on."""
    for piece in pieces:
        sieve.add(piece.mixed)
        yield piece


class _Recent:
    """The blocks that were used last, up to ``room`` bytes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._blocks: OrderedDict[Slot, Columns] = OrderedDict()
        self.nbytes = 0

    def get(self, slot: Slot) -> Columns | None:
        columns = self._blocks.get(slot)
        if columns is not None:
            self._blocks.move_to_end(slot)
        return columns

    def put(self, slot: Slot, columns: Columns) -> None:
        self._blocks[slot] = columns
        self.nbytes += columns.nbytes
        while self.nbytes > self._room:
            self.nbytes -= self._blocks.popitem(last=False)[1].nbytes

    def drop(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            columns = self._blocks.pop(slot, None)
            if columns is not None:
                self.nbytes -= columns.nbytes

    def clear(self) -> None:
        self._blocks.clear()
        self.nbytes = 0

    def _check(self, present: set[Slot]) -> None:
        assert set(self._blocks) <= present, "a block is cached that is gone"
        assert self.nbytes == sum(columns.nbytes for columns in self._blocks.values()) <= self._room
