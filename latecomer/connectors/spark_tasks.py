"""What runs in Spark's Python workers: two functions over Arrow batches, one on each side of the shuffle.

``Tag`` runs where the rows are read. It knows the order of its rows, so it computes the running maximum of event
time, the stream's clock, and packs the rows of each bucket, with their clocks, into few large cells. Punctuation
goes to every bucket. ``Detect`` runs where the buckets are. It puts a bucket's cells in order, reads the bucket's
state, gives rows and clocks to the engine, and writes the new state as a new attempt.

The order of rows is: input partition, then position within it; or the arrival column, where one is named. Because
every row brings the clock of the whole stream at its place in that order, no answer depends on the number of
buckets. Each input partition also tells every bucket its last clock, so that all buckets end a batch with the same
clock, and none waits because its own rows are few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.connectors.versions import VersionStore
from latecomer.consistency.clock import BEGINNING
from latecomer.runtime import Output, Runtime
from latecomer.runtime.batches import OTHER, PUNCTUATION, Intake, fix_schema, to_arrow
from latecomer.stream import Stream

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Columns that travel with the user's rows; a user's column may not have such a name.
BUCKET, CLOCK = "__latecomer_bucket", "__latecomer_clock"

#: What Tag gives to the shuffle. A cell without rows only tells the clock.
CELL_SCHEMA = "bucket int, part int, seq int, clock long, rows binary"

#: What Detect gives to the driver: parts of the changes and late rows as Arrow streams, then one ``state`` row per
#: bucket.
RESULT_SCHEMA = "bucket int, seq int, kind string, data binary"

#: Rows that Tag packs at once: large enough that a cell of one of 64 buckets is worth its Arrow header.
_ROWS_PER_PACK = 65_536

#: Rows of one cell of results; keeps a cell far below Spark's limit of 2 GiB.
_ROWS_PER_RESULT = 65_536

#: No clock yet.
NO_CLOCK = BEGINNING


@dataclass(frozen=True, slots=True)
class Tag:
    """Packs rows into cells per bucket, each row with the stream's clock as of its arrival.

    Attributes:
        buckets: how many there are.
        stream: the meaning of the columns.
        arrival: the column that orders rows, if any.
        clock: the stream's clock as of the end of the previous batch.
    """

    buckets: int
    stream: Stream
    arrival: str | None
    clock: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        clock = NO_CLOCK if self.clock is None else self.clock
        seq = 0
        for table in self._packs(batches):
            times, proof = self._read(table)
            clocks = np.maximum(np.maximum.accumulate(times), clock)
            clock = int(clocks[-1])
            yield self._cells(table, clocks, proof, part, seq)
            seq += 1
        yield _cells(range(self.buckets), part, seq, clock, None)

    def _packs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Tables of at least ``_ROWS_PER_PACK`` rows; one of all rows, sorted, if there is an arrival column."""
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
                rows += batch.num_rows
            if rows >= _ROWS_PER_PACK and self.arrival is None:
                yield pa.Table.from_batches(held)
                held, rows = [], 0
        if held:
            table = pa.Table.from_batches(held)
            yield table if self.arrival is None else by_arrival(table, self.arrival)

    def _read(self, table: pa.Table) -> tuple[Ints, Bools]:
        """Event times (``NO_CLOCK`` for what is no event), and which rows are punctuation."""
        rows, wrong = to_arrow(table.drop_columns([BUCKET]), None)
        batch = Intake(self.stream, (), fix_schema(self.stream, rows.schema, (), by_row=False)).read(rows, wrong)
        return np.where(batch.types == OTHER, batch.ts, NO_CLOCK), batch.types == PUNCTUATION

    def _cells(self, table: pa.Table, clocks: Ints, proof: Bools, part: int, seq: int) -> pa.RecordBatch:
        bucket = np.asarray(table[BUCKET].to_numpy())
        rows = table.drop_columns([BUCKET]).append_column(CLOCK, pa.array(clocks))
        to_all = np.flatnonzero(proof)
        own = np.flatnonzero(~proof)
        own = own[np.argsort(bucket[own], kind="stable")]
        ends = np.searchsorted(bucket[own], np.arange(self.buckets + 1))
        buckets, cells = [], []
        for b in range(self.buckets):
            mine = own[ends[b] : ends[b + 1]]
            if len(to_all):
                mine = np.sort(np.concatenate((mine, to_all)))
            if len(mine):
                buckets.append(b)
                cells.append(pack(rows.take(mine)))
        return _cells(buckets, part, seq, int(clocks[-1]), cells)


@dataclass(frozen=True, slots=True)
class Detect:
    """Runs the engine over the cells of each bucket.

    Attributes:
        store: where states are.
        batch: number of the micro-batch, under which new states are written.
        files: bucket -> the state to go on from.
        fresh: the state to go on from for a bucket that has none.
        arrival: the column that orders rows, if any.
        follow: whether the stream's clock, seen over all buckets, is the clock that counts (it is not where each source
            has its own; then there is one bucket, which sees everything).
        finish: whether the stream ends here.
    """

    store: VersionStore
    batch: int
    files: dict[int, str]
    fresh: bytes
    arrival: str | None
    follow: bool
    finish: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cells = [b for b in batches if b.num_rows]
        if not cells:
            return
        order = [("bucket", "ascending"), ("part", "ascending"), ("seq", "ascending")]
        table = pa.Table.from_batches(cells).sort_by(order)
        buckets = np.asarray(table["bucket"].to_numpy())
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], len(buckets)), strict=True):
            yield from self._bucket(int(buckets[start]), table.slice(start, end - start))

    def _bucket(self, bucket: int, cells: pa.Table) -> Iterator[pa.RecordBatch]:
        name = self.files.get(bucket)
        runtime = Runtime.restore(self.fresh if name is None else self.store.get(name))
        seq = 0
        for output in self._outputs(runtime, cells):
            for kind, found in (("changes", output.changes), ("late", output.late)):
                for start in range(0, found.num_rows, _ROWS_PER_RESULT):
                    yield _result(bucket, seq, kind, pack(found.slice(start, _ROWS_PER_RESULT)))
                    seq += 1
        for kind, found in (("changes", output.changes), ("late", output.late)):
            yield _result(
                bucket, seq, kind, pack(found.slice(0, 0))
            )  # tells the columns, whether or not there are rows
        file = self.store.put(self.batch, bucket, runtime.snapshot())
        report = {"file": file, "clock": runtime.clock}
        yield _result(bucket, seq, "state", json.dumps(report).encode())

    def _outputs(self, runtime: Runtime, cells: pa.Table) -> Iterator[Output]:
        """What the engine says to the bucket's rows, piece by piece, so that a batch with very many matches fits "
        "memory."""
        rows, clock = unpack_cells(cells, self.arrival)
        if rows is not None:
            clocks = rows[CLOCK].to_numpy() if self.follow else None
            yield from runtime.stream_pieces(rows.drop_columns([CLOCK]), clocks=clocks)
        yield runtime.observe(NO_CLOCK if clock is None or not self.follow else clock)
        if self.finish:
            yield runtime.finish()


def unpack_cells(cells: pa.Table, arrival: str | None) -> tuple[pa.Table | None, int | None]:
    """A bucket's rows in order, with the column of clocks, and the stream's clock after them.

    ``cells`` are those of one bucket, in order of input partition. In that order what a partition says at its end
    holds for the rows of the partitions after it; an arrival column mixes the partitions, so there it only holds at
    the end.
    """
    tables: list[pa.Table] = []
    reached = NO_CLOCK
    for clock, data in zip(cells["clock"].to_pylist(), cells["rows"], strict=True):
        if data.is_valid:
            rows = unpack(data.as_buffer())
            if arrival is None:
                clocks = np.maximum(np.asarray(rows[CLOCK].to_numpy()), reached)
                rows = rows.set_column(rows.column_names.index(CLOCK), CLOCK, pa.array(clocks))
            tables.append(rows)
        elif clock is not None:
            reached = max(reached, clock)
    table = pa.concat_tables(tables) if tables else None
    if table is not None and arrival is not None:
        table = by_arrival(table, arrival)
    return table, None if reached == NO_CLOCK else reached


@dataclass(frozen=True, slots=True)
class Result:
    """What all buckets gave back: their changes and late rows in order of bucket, their new states, and the clock."""

    changes: pa.Table
    late: pa.Table
    files: dict[int, str]
    clock: int | None


def gather(table: pa.Table) -> Result:
    """Put together what Detect gave to the driver, in an order that does not depend on which task was first."""
    parts: dict[str, list[pa.Table]] = {"changes": [], "late": []}
    files: dict[int, str] = {}
    clocks: list[int] = []
    ordered = table.sort_by([("bucket", "ascending"), ("seq", "ascending")])
    for bucket, kind, data in zip(ordered["bucket"], ordered["kind"], ordered["data"], strict=True):
        if kind.as_py() != "state":
            parts[kind.as_py()].append(unpack(data.as_buffer()))
            continue
        report = json.loads(data.as_py())
        files[bucket.as_py()] = report["file"]
        if report["clock"] is not None:
            clocks.append(report["clock"])
    changes, late = (pa.concat_tables(parts[kind]) for kind in ("changes", "late"))
    return Result(changes, late, files, max(clocks, default=None))


def by_arrival(table: pa.Table, arrival: str) -> pa.Table:
    """Rows in order of the arrival column; ties stay as they are, rows without a value come last."""
    return table.take(pc.sort_indices(table, sort_keys=[(arrival, "ascending")]))


def pack(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write(rows)
    return bytes(out.getvalue())


def unpack(data: Any) -> pa.Table:
    """What :func:`pack` packed."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _cells(buckets: Sequence[int], part: int, seq: int, clock: int, rows: list[bytes] | None) -> pa.RecordBatch:
    n = len(buckets)
    return pa.record_batch(
        {
            "bucket": pa.array(buckets, pa.int32()),
            "part": pa.array([part] * n, pa.int32()),
            "seq": pa.array([seq] * n, pa.int32()),
            "clock": pa.array([None if clock == NO_CLOCK else clock] * n, pa.int64()),
            "rows": pa.array([None] * n if rows is None else rows, pa.binary()),
        }
    )


def _result(bucket: int, seq: int, kind: str, data: bytes) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "bucket": pa.array([bucket], pa.int32()),
            "seq": pa.array([seq], pa.int32()),
            "kind": pa.array([kind], pa.string()),
            "data": pa.array([data], pa.binary()),
        }
    )
