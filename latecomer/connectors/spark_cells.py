"""Cells: what goes through Spark's shuffle, and how a bucket's rows are put in order again.

A cell holds the rows of one bucket, from one place in the input, as an Arrow stream, so that Spark moves few large
values instead of many rows. The order of rows is: input partition, then position within it; or the arrival column,
where one is named.

Each row has with it the clock of the whole stream at its place in that order, and each input partition also tells
every bucket its last clock. So no answer depends on the number of buckets, all buckets end a batch with the same
clock, and none waits because its own rows are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.clock import BEGINNING

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: A column that travels with the user's rows; a user's column may not have such a name.
CLOCK = "__latecomer_clock"

#: Cells, as Spark sees them. A cell without rows only tells the clock, or nothing.
CELL_SCHEMA = "bucket int, part int, seq int, clock long, rows binary"

#: No clock yet.
NO_CLOCK = BEGINNING


def make_cells(buckets: Sequence[int], part: int, seq: int, clock: int, rows: list[bytes] | None) -> pa.RecordBatch:
    """One cell for each of ``buckets``, all from input partition ``part``; without ``rows`` they only tell the "
    "clock."""
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
