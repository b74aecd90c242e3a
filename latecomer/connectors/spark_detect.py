"""Detect: the function that runs where the buckets are, after the shuffle.

It puts a bucket's rows in order, reads the bucket's residues, gives rows and clocks to the engine, which reads of the
rest what it needs, and writes what has changed. Pages of a bucket in which much has changed go into a file of their
own, the residues of all buckets of a task into one. What it tells the driver fits any queries: Arrow streams in binary
cells.

A bucket for which there is neither a row nor news of the clock is not even looked at: nothing can change in it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.connectors.spark_cells import CLOCK, NO_CLOCK, Bools, Ints, pack, unpack, unpack_cells
from latecomer.connectors.spark_keys import buckets_of
from latecomer.connectors.spark_progress import Meter, idle, together
from latecomer.connectors.versions import BucketState
from latecomer.runtime import Output, Runtime
from latecomer.storage.attempts import Attempt
from latecomer.storage.shelf import Slot
from latecomer.stream import Stream

#: What Detect gives to the driver: parts of the changes and late rows, then per bucket a row
#: ``state``, or ``idle`` where it stays as it was.
RESULT_SCHEMA = "bucket int, seq int, kind string, data binary"

#: Rows of one cell of results; keeps a cell far below Spark's limit of 2 GiB.
_ROWS_PER_RESULT = 65_536


@dataclass(frozen=True, slots=True)
class Buckets(ABC):
    """Takes cells bucket by bucket, in order, and runs the engine over them; where its state lives, the heirs say.

    Attributes:
        fresh: the state to go on from for a bucket that has none.
        stream: the meaning of the columns.
        arrival: the column that orders rows, if any.
        step: how much of that column the engine takes in at once; None: the whole batch.
        finish: whether the stream ends here.
    """

    fresh: bytes
    stream: Stream
    arrival: str | None
    step: int | None
    finish: bool

    @abstractmethod
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the buckets of these cells give back, in rows of ``RESULT_SCHEMA``."""

    def _by_bucket(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
        """Each bucket's number and cells."""
        cells = [b for b in batches if b.num_rows]
        if not cells:
            return
        order = [("bucket", "ascending"), ("part", "ascending"), ("seq", "ascending")]
        table = pa.Table.from_batches(cells).sort_by(order)
        buckets = np.asarray(table["bucket"].to_numpy())
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(buckets)), strict=True):
            yield int(buckets[start]), table.slice(start, end - start)

    @property
    def one_clock(self) -> bool:
        """Whether the stream's clock is the same for all. Where sources have clocks of their own there is one bucket,
        which sees them all."""
        return self.stream.clock == "stream" and self.stream.quorum == 1

    def _outputs(self, runtime: Runtime, rows: pa.Table | None, clock: int | None) -> Iterator[Output]:
        """What the engine says, piece by piece, so that a batch with very many matches fits memory."""
        one_clock = self.one_clock
        if rows is not None:
            clocks = rows[CLOCK].to_numpy() if one_clock else None
            yield from runtime.stream_pieces(rows.drop_columns([CLOCK]), clocks=clocks, cuts=self._cuts(rows))
        yield runtime.observe(NO_CLOCK if clock is None or not one_clock else clock)
        if self.finish:
            yield runtime.finish()

    def _cuts(self, rows: pa.Table) -> list[int]:
        """Where the arrival column passes a multiple of ``step``. A step without events adds to the next."""
        if self.step is None or self.arrival is None:
            return []
        arrived = rows[self.arrival].cast(pa.int64())
        latest = pc.max(arrived).as_py() or 0  # rows without a value are last
        number: Ints = np.asarray(pc.fill_null(arrived, latest).to_numpy()) // self.step
        proof = pc.fill_null(pc.equal(rows[self.stream.type], self.stream.punctuation or ""), False)
        filled = np.unique(number[~np.asarray(proof.to_numpy())])
        ends: list[int] = np.searchsorted(number, filled, "right").tolist()
        return ends[:-1]


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a bucket that ran leaves: its residues, one slot of each file with pages of it, its clock, and its load."""

    number: int
    residues: list[bytes]
    pages: dict[str, Slot]
    clock: int | None
    load: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Detect(Buckets):
    """Buckets whose states are in a state folder; ``fresh`` is a residue, too, of the queries that begin now (empty:
    none does).

    Attributes:
        begin: makes the shelf of one attempt.
        residues: bucket -> the residues to go on from: one for each set of queries that began together.
        clocks: bucket -> the clock that it knows of.
        clock: the stream's clock as of the end of the previous batch.
        asked: the names of all queries; what else a residue has is dropped.
        key: the attributes that decide the bucket.
        parted: into how many buckets the stream is split from now on, where residues are those of larger ones.
        anew: whether every bucket has to run, since something of this has changed.
        memory: bytes of state that a task may have in memory; None: as much as its events ask for.
    """

    begin: Callable[[], Attempt]
    residues: Mapping[int, tuple[Slot, ...]]
    clocks: Mapping[int, int | None]
    clock: int | None
    asked: frozenset[str]
    key: tuple[str, ...] = ()
    parted: int | None = None
    anew: bool = False
    memory: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shelf = self.begin()
        ran: list[_Ran] = []
        for number, cells in self._by_bucket(batches):
            yield from self._on(shelf, number, cells, ran)
        places = iter(shelf.put([residue for bucket in ran for residue in bucket.residues]))
        shelf.secure()
        for bucket in ran:
            residues = list(islice(places, len(bucket.residues)))
            pages = list(bucket.pages.values())
            sizes = {name: shelf.sizes[name] for name, _, _ in (*residues, *pages) if name in shelf.sizes}
            report = {"residues": residues, "pages": pages, "sizes": sizes, "clock": bucket.clock, "load": bucket.load}
            yield _result(bucket.number, 0, "state", json.dumps(report).encode())

    def _on(self, shelf: Attempt, number: int, cells: pa.Table, ran: list[_Ran]) -> Iterator[pa.RecordBatch]:
        rows, clock = unpack_cells(cells, self.arrival)
        # The first bucket runs in any case: what it gives tells the columns.
        runs = self.anew or self.finish or not number or number not in self.residues or rows is not None
        if not runs and clock in (None, self.clocks[number]):
            yield _result(number, 0, "idle", b"")
            return
        residues: list[bytes] = []
        pages: dict[str, Slot] = {}
        loads: list[dict[str, Any]] = []
        reached: int | None = None
        heard = Heard()
        for runtime in self._runtimes(number, shelf):
            meter = Meter(runtime)
            changes, late = (Parcel(number, kind, len(residues)) for kind in ("changes", "late"))
            for output in self._outputs(runtime, rows, clock):
                yield from changes.add(output.changes)
                yield from late.add(heard.new(output.late))
            yield from changes.rest()
            yield from late.rest()
            residue, slots = runtime.residue()
            loads.append(meter.report(rows, self.key, len(residue) + sum(length for _, _, length in slots)))
            residues.append(residue)
            pages |= {slot[0]: slot for slot in slots}
            reached = runtime.clock
            heard.next()
        ran.append(_Ran(number, residues, pages, reached, together(loads)))

    def _runtimes(self, number: int, shelf: Attempt) -> Iterator[Runtime]:
        """One after the other, the runtimes that a bucket's state consists of; at least one."""
        for slot in self.residues.get(number, ()):
            runtime = self._resumed(shelf.get(slot), shelf)
            gone = {query.name for query in runtime.queries} - self.asked
            if len(gone) == len(runtime.queries):
                continue
            runtime.drop(gone)
            if self.parted is not None:
                runtime.narrow(self.key, partial(_in_bucket, number, self.parted))
            yield runtime
        if self.fresh:
            runtime = self._resumed(self.fresh, shelf)
            if self.clock is not None and self.one_clock:
                runtime.observe(self.clock)
            yield runtime

    def _resumed(self, residue: bytes, shelf: Attempt) -> Runtime:
        # Nothing waits for its page: a batch is the time to read it once, for all that needs it.
        return Runtime.resume(residue, shelf, memory=self.memory, batch=0)


def _in_bucket(number: int, buckets: int, columns: list[pa.Array]) -> Bools:
    """Which keys are those of a bucket."""
    chosen: Bools = buckets_of(columns, buckets) == number
    return chosen


class Heard:
    """Late rows that are no query's, like malformed ones: each runtime of a bucket tells them, and once is enough."""

    def __init__(self) -> None:
        self._before: list[str] = []  # their ids, of the runtimes before this one,
        self._now: list[str] = []  # and of this one

    def next(self) -> None:
        """Another runtime speaks from now on."""
        self._before += self._now
        self._now = []

    def new(self, late: pa.Table) -> pa.Table:
        """The late rows that no runtime before has told."""
        if not late.num_rows or not late["query"].null_count:
            return late
        common = pc.is_null(late["query"])
        self._now += late["late_id"].filter(common).to_pylist()
        if not self._before:
            return late
        known = pc.is_in(late["late_id"], pa.array(self._before, pa.string()))
        return late.filter(pc.invert(pc.and_(common, known)))


class Parcel:
    """Collects one kind of output rows into cells of a fair size; there is at least one, which tells the columns.
    ``number``: which of the bucket's runtimes they are of."""

    def __init__(self, bucket: int, kind: str, number: int = 0) -> None:
        self._bucket, self._kind, self._first = bucket, kind, number << 20
        self._held: list[pa.Table] = []
        self._rows = 0
        self._sent = 0

    def add(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        for start in range(0, max(table.num_rows, not self._held), _ROWS_PER_RESULT):
            part = table.slice(start, _ROWS_PER_RESULT)
            self._held.append(part)
            self._rows += part.num_rows
            if self._rows >= _ROWS_PER_RESULT:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows or not self._sent:
            data = pack(pa.concat_tables(self._held))
            yield _result(self._bucket, self._first + self._sent, self._kind, data)
            self._sent += 1
        self._held, self._rows = [], 0


@dataclass(frozen=True, slots=True)
class Result:
    """What all buckets gave back: their changes and late rows in order of bucket, their states, the files (name to
    size) that were written for them, and the clock."""

    changes: pa.Table
    late: pa.Table
    buckets: dict[int, BucketState]
    files: dict[str, int]
    clock: int | None


def gather(table: pa.Table, before: Mapping[int, BucketState]) -> Result:
    """Put together what Detect gave to the driver, in an order that does not depend on which task was first.

    ``before``: the states that the batch went on from; those of idle buckets stay.
    """
    parts: dict[str, list[pa.Table]] = {"changes": [], "late": []}
    buckets: dict[int, BucketState] = {}
    files: dict[str, int] = {}
    ordered = table.sort_by([("bucket", "ascending"), ("seq", "ascending")])
    for bucket, kind, data in zip(ordered["bucket"].to_pylist(), ordered["kind"], ordered["data"], strict=True):
        if kind.as_py() == "idle":
            buckets[bucket] = replace(before[bucket], load=idle(before[bucket].load))
        elif kind.as_py() == "state":
            report = json.loads(data.as_py())
            pages = tuple(tuple(slot) for slot in report["pages"])
            residues = tuple(tuple(slot) for slot in report["residues"])
            buckets[bucket] = BucketState(residues, pages, report["clock"], report["load"])
            files |= report["sizes"]
        else:
            parts[kind.as_py()].append(unpack(data.as_buffer()))
    # Queries that began at different times may tell different columns.
    changes, late = (pa.concat_tables(parts[kind], promote_options="permissive") for kind in ("changes", "late"))
    clock = max((state.clock for state in buckets.values() if state.clock is not None), default=None)
    return Result(changes, late, buckets, files, clock)


def _result(bucket: int, seq: int, kind: str, data: bytes) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "bucket": pa.array([bucket], pa.int32()),
            "seq": pa.array([seq], pa.int32()),
            "kind": pa.array([kind], pa.string()),
            "data": pa.array([data], pa.binary()),
        }
    )
