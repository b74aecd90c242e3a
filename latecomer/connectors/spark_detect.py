"""Detect: the function that runs where the buckets are, after the shuffle.

It puts a bucket's rows in order, reads the bucket's state, gives rows and clocks to the engine, and writes the new
state as a new attempt. What it tells the driver fits any queries: Arrow streams in binary cells.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.connectors.spark_cells import CLOCK, NO_CLOCK, Ints, pack, unpack, unpack_cells
from latecomer.connectors.spark_progress import Meter
from latecomer.connectors.versions import VersionStore
from latecomer.runtime import Output, Runtime
from latecomer.stream import Stream

#: What Detect gives to the driver: parts of the changes and late rows, then one ``state`` row per bucket.
RESULT_SCHEMA = "bucket int, seq int, kind string, data binary"

#: Rows of one cell of results; keeps a cell far below Spark's limit of 2 GiB.
_ROWS_PER_RESULT = 65_536


@dataclass(frozen=True, slots=True)
class Buckets:
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
        """What one bucket gives back, in rows of ``RESULT_SCHEMA``."""
        raise NotImplementedError

    def _outputs(self, runtime: Runtime, rows: pa.Table | None, clock: int | None) -> Iterator[Output]:
        """What the engine says, piece by piece, so that a batch with very many matches fits memory."""
        # Where sources have clocks of their own there is one bucket, which sees them all.
        one_clock = self.stream.clock == "stream" and self.stream.quorum == 1
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
class Detect(Buckets):
    """Buckets whose states are files of a version store.

    Attributes:
        store: where states are.
        batch: number of the micro-batch, under which new states are written.
        files: bucket -> the state to go on from.
        key: the attributes that decide the bucket.
    """

    store: VersionStore
    batch: int
    files: dict[int, str]
    key: tuple[str, ...] = ()

    def _bucket(self, bucket: int, cells: pa.Table) -> Iterator[pa.RecordBatch]:
        name = self.files.get(bucket)
        runtime = Runtime.restore(self.fresh if name is None else self.store.get(name))
        meter = Meter(runtime)
        rows, clock = unpack_cells(cells, self.arrival)
        changes, late = Parcel(bucket, "changes"), Parcel(bucket, "late")
        for output in self._outputs(runtime, rows, clock):
            yield from changes.add(output.changes)
            yield from late.add(output.late)
        yield from changes.rest()
        yield from late.rest()
        state = runtime.snapshot()
        name = self.store.put(self.batch, bucket, state)
        report = {"file": name, "clock": runtime.clock, "load": meter.report(rows, self.key, len(state))}
        yield _result(bucket, 0, "state", json.dumps(report).encode())


class Parcel:
    """Collects one kind of output rows into cells of a fair size; there is at least one, which tells the columns."""

    def __init__(self, bucket: int, kind: str) -> None:
        self._bucket, self._kind = bucket, kind
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
            yield _result(self._bucket, self._sent, self._kind, pack(pa.concat_tables(self._held)))
            self._sent += 1
        self._held, self._rows = [], 0


@dataclass(frozen=True, slots=True)
class Result:
    """What all buckets gave back: their changes and late rows in order of bucket, their new states, the clock, and
    what each bucket reports of its load."""

    changes: pa.Table
    late: pa.Table
    files: dict[int, str]
    clock: int | None
    loads: dict[int, dict[str, Any]]


def gather(table: pa.Table) -> Result:
    """Put together what Detect gave to the driver, in an order that does not depend on which task was first."""
    parts: dict[str, list[pa.Table]] = {"changes": [], "late": []}
    files: dict[int, str] = {}
    loads: dict[int, dict[str, Any]] = {}
    clocks: list[int] = []
    ordered = table.sort_by([("bucket", "ascending"), ("seq", "ascending")])
    for bucket, kind, data in zip(ordered["bucket"], ordered["kind"], ordered["data"], strict=True):
        if kind.as_py() != "state":
            parts[kind.as_py()].append(unpack(data.as_buffer()))
            continue
        report = json.loads(data.as_py())
        files[bucket.as_py()], loads[bucket.as_py()] = report["file"], report["load"]
        if report["clock"] is not None:
            clocks.append(report["clock"])
    changes, late = (pa.concat_tables(parts[kind]) for kind in ("changes", "late"))
    return Result(changes, late, files, max(clocks, default=None), loads)


def _result(bucket: int, seq: int, kind: str, data: bytes) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "bucket": pa.array([bucket], pa.int32()),
            "seq": pa.array([seq], pa.int32()),
            "kind": pa.array([kind], pa.string()),
            "data": pa.array([data], pa.binary()),
        }
    )
