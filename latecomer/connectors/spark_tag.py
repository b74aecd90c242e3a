"""Tag: the function that runs where Spark reads the rows, before the shuffle.

It sees rows in order, so it computes the running maximum of event time, the stream's clock, and packs the rows of
each bucket, with their clocks, into few large cells. Punctuation goes to every bucket, at its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from latecomer.connectors.spark_cells import CLOCK, NO_CLOCK, Bools, Ints, by_arrival, make_cells, pack
from latecomer.connectors.spark_keys import buckets_of
from latecomer.runtime.given import to_arrow
from latecomer.runtime.intake import OTHER, PUNCTUATION, Intake
from latecomer.runtime.schema import fix_schema
from latecomer.stream import Stream

#: Rows that are packed at once: large enough that a cell of one of 64 buckets is worth its Arrow header.
_ROWS_PER_PACK = 65_536

#: An event type that nobody asks for.
_NOBODY = "__latecomer_nobody"


@dataclass(frozen=True, slots=True)
class Tag:
    """Packs rows into cells per bucket, each row with the stream's clock as of its arrival.

    Attributes:
        buckets: how many there are.
        key: the attributes that decide the bucket.
        stream: the meaning of the columns.
        arrival: the column that orders rows, if any.
        clock: the stream's clock as of the end of the previous batch.
    """

    buckets: int
    key: tuple[str, ...]
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
            table, times, proof, bucket = self._announced(table, *self._read(table))
            clocks = np.maximum(np.maximum.accumulate(times), clock)
            clock = int(clocks[-1])
            yield self._cells(table, clocks, proof, bucket, part, seq)
            seq += 1
        yield make_cells(range(self.buckets), part, seq, clock, None)

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

    def _read(self, table: pa.Table) -> tuple[Ints, Bools, Ints]:
        """Event times (``NO_CLOCK`` for what is no event), which rows are punctuation, and the bucket of each row, by
        its key as the engine reads it."""
        rows, wrong = to_arrow(table, None)
        batch = Intake(self.stream, (), fix_schema(self.stream, rows.schema, (), by_row=False)).read(rows, wrong)
        bucket = np.zeros(len(batch), np.int64)
        if self.buckets > 1:
            bucket = buckets_of([batch.columns[name] for name in self.key], self.buckets)
        return np.where(batch.types == OTHER, batch.ts, NO_CLOCK), batch.types == PUNCTUATION, bucket

    def _announced(
        self, table: pa.Table, times: Ints, proof: Bools, bucket: Ints
    ) -> tuple[pa.Table, Ints, Bools, Ints]:
        """With a row to all buckets before the first event of each source.

        What all sources have promised depends on which sources there are, and a bucket sees the events of some
        only. The row is punctuation about a type that does not exist, so it promises nothing, but makes the source
        known.
        """
        stream = self.stream
        if stream.source is None or stream.punctuation is None or stream.sources is not None or self.buckets == 1:
            return table, times, proof, bucket
        events = np.flatnonzero(times != NO_CLOCK)
        sources = table[stream.source].combine_chunks().take(pa.array(events)).dictionary_encode()
        codes, places = np.unique(np.asarray(sources.indices.fill_null(-1).to_numpy()), return_index=True)
        first = events[places[codes >= 0]]
        if stream.of not in table.column_names:
            table = table.append_column(stream.of, pa.nulls(table.num_rows, pa.string()))
        rows = table.take(pa.array(first))
        for column, value in ((stream.type, stream.punctuation), (stream.of, _NOBODY)):
            kind = table.schema.field(column).type
            said = pa.array([value] * len(first), pa.string()).cast(kind)
            rows = rows.set_column(rows.column_names.index(column), column, said)
        order = np.argsort(np.concatenate((np.arange(len(times)) * 2 + 1, first * 2)), kind="stable")
        both = pa.concat_tables([table, rows]).take(pa.array(order))
        nothing = np.full(len(first), NO_CLOCK)
        pairs = (times, nothing), (proof, nothing == NO_CLOCK), (bucket, bucket[first])
        more_times, more_proof, more_buckets = (np.concatenate(pair)[order] for pair in pairs)
        return both, more_times, more_proof, more_buckets

    def _cells(self, table: pa.Table, clocks: Ints, proof: Bools, bucket: Ints, part: int, seq: int) -> pa.RecordBatch:
        rows = table.append_column(CLOCK, pa.array(clocks))
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
        return make_cells(buckets, part, seq, int(clocks[-1]), cells)
