"""The late output: events that broke a promise, and rows that could not be used, each with its reason.

Nothing is dropped without a row here or a count. Ids of late rows are stable hashes of query, reason and content, so
that they too can be written idempotently after a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from latecomer.runtime.changes import hex_ids
from latecomer.runtime.intake import Batch
from latecomer.storage.columns import I64
from latecomer.storage.hashing import combine, hash_column
from latecomer.stream import Stream

#: Fixed columns of the late output, in order.
FIXED = ("late_id", "query", "id", "type", "ts", "source", "reason", "late_by", "detail", "missed", "wrong")


class LateWriter:
    """Turns rows of a batch into rows of the late output.

    The attributes follow the fixed columns; one that has a fixed column's name gets ``_attribute`` appended.
    """

    def __init__(self, stream: Stream, schema: pa.Schema, id_name: str, ts_type: pa.DataType) -> None:
        self._stream, self._id = stream, id_name
        roles = {stream.type, stream.ts, id_name, stream.source}
        self._attributes = [f for f in schema if f.name not in roles]
        names = [f.name + "_attribute" if f.name in FIXED else f.name for f in self._attributes]
        source = schema.field(stream.source).type if stream.source is not None else pa.string()
        kinds = [pa.string(), pa.string(), schema.field(id_name).type, pa.string(), ts_type, source]
        kinds += [pa.string(), pa.int64(), pa.string(), pa.int64(), pa.int64()]
        fields = list(zip(FIXED, kinds, strict=True))
        self.schema = pa.schema(fields + [(n, f.type) for n, f in zip(names, self._attributes, strict=True)])

    def write(
        self,
        batch: Batch,
        rows: I64,
        reason: str,
        late_by: I64 | None = None,
        query: str | None = None,
        detail: Callable[[int], str] | None = None,
        effect: tuple[I64, I64] | None = None,
    ) -> pa.RecordBatch:
        """Late rows for the batch's ``rows``; ``late_by`` and ``detail`` where there is something to say. ``effect``:
        the matches missed and wrong without each event, -1 where that is not known.
        """
        n, at = len(rows), pa.array(rows)
        columns = {name: column.take(at) for name, column in batch.columns.items()}
        details = [detail(row) for row in rows.tolist()] if detail is not None else None
        texts = pa.nulls(n, pa.string()) if details is None else pa.array(details, pa.string())
        ts = columns[self._stream.ts]
        source = pa.nulls(n, self.schema.field("source").type)
        if self._stream.source is not None:
            source = columns[self._stream.source]
        arrays = [
            self._late_ids([*columns.values(), texts], query, reason, n),
            pa.nulls(n, pa.string()) if query is None else pa.repeat(query, n),
            columns[self._id],
            columns[self._stream.type],
            ts if ts.type == self.schema.field("ts").type else ts.cast(self.schema.field("ts").type),
            source,
            pa.repeat(reason, n),
            pa.nulls(n, pa.int64()) if late_by is None else pa.array(late_by),
            texts,
            *(_known(counts) for counts in effect or (np.full(n, -1), np.full(n, -1))),
            *(columns[f.name] for f in self._attributes),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def unreadable(self, lines: Sequence[tuple[str, str]]) -> pa.RecordBatch:
        """Malformed rows for texts that could not even be parsed: pairs (text, what is wrong)."""
        n = len(lines)
        details = pa.array([f"{problem}: {text}" for text, problem in lines], pa.string())
        arrays = [pa.nulls(n, f.type) for f in self.schema]
        arrays[0] = self._late_ids([details], None, "malformed", n)
        arrays[FIXED.index("reason")] = pa.repeat("malformed", n)
        arrays[FIXED.index("detail")] = details
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _late_ids(self, columns: Sequence[pa.Array], query: str | None, reason: str, n: int) -> pa.Array:
        halves = []
        for seed in (3, 4):
            said = hash_column(pa.array([f"{reason} {query or ''}"]), seed)
            result = np.repeat(said, n)
            for column in columns:
                result = combine(result, hash_column(column, seed))
            halves.append(result)
        return hex_ids(halves[0], halves[1])


def _known(counts: I64) -> pa.Array:
    """Counts as a column, null where they are negative."""
    return pa.array(counts, mask=counts < 0)
