"""Batches of events as the live page needs them: a few columns, read with a few passes and without an error.

Whatever the columns are, the page must not stop the service: what cannot be drawn is counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError
from latecomer.serve.samples import clip
from latecomer.storage.columns import I64
from latecomer.stream import Stream
from latecomer.units import UNITS

#: Times beyond this are not drawn (nor believed by the engine).
_FAR = 2**62


def whole_units(column: Any, unit: str) -> tuple[I64, Any] | None:
    """Event times (n,) in ``unit`` and which of them are usable (n,); None for a column that holds no times."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    usable = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(column.type):
        values = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        per_value, per_unit = UNITS[column.type.unit], UNITS[unit]
        if per_unit >= per_value:
            return values // (per_unit // per_value), usable
        factor = per_value // per_unit
        usable = usable & (np.abs(values) < _FAR // factor)
        return np.where(usable, values, 0) * factor, usable
    if pa.types.is_integer(column.type):
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        usable = usable & (values < _FAR) & (values > -_FAR)
        return np.where(usable, values, 0).astype(np.int64), usable
    return None


def texts(column: Any) -> pa.Array:
    """A column as text; nulls where that is not possible."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        return pa.nulls(len(column), pa.string())


@dataclass(slots=True)
class Arrived:
    """The events of a batch, punctuation and what has no time or type left out.

    Attributes:
        rows: events in the batch, also those that cannot be drawn.
        ts: event times (n,) in units.
        seen: the largest event time seen, at the arrival of each (n,).
        types: (n,) text.
        sources: (n,) text, or None where the stream names no source.
        ids: (n,) text, or None where the stream has no ids.
    """

    rows: int
    ts: I64
    seen: I64
    types: pa.Array
    sources: pa.Array | None
    ids: pa.Array | None

    def judged(self, clock: int | None) -> I64:
        """The clock at the arrival of each event, given the one after the batch (None: the largest time seen)."""
        return self.seen if clock is None else np.minimum(self.seen, clock)


def read(batch: pa.Table | pa.RecordBatch, stream: Stream, unit: str | None, front: int | None) -> Arrived | None:
    """The events of a batch as the page needs them; None where there is nothing to draw. Never raises for odd columns.

    ``front``: the clock before the batch.
    """
    names = batch.schema.names
    if stream.type not in names or stream.ts not in names or not batch.num_rows:
        return None
    timed = batch.schema.field(stream.ts).type
    try:
        times = whole_units(batch.column(stream.ts), unit or stream.unit_for(timed))
    except ConfigError:
        return None
    if times is None:
        return None
    ts, usable = times
    types = texts(batch.column(stream.type))
    usable = usable & types.is_valid().to_numpy(zero_copy_only=False)
    rows = batch.num_rows
    if stream.punctuation is not None:
        promises = pc.equal(types, stream.punctuation).fill_null(False).to_numpy(zero_copy_only=False)
        rows -= int(np.count_nonzero(promises))
        usable &= ~promises
    at = pa.array(np.flatnonzero(usable))
    ts = ts[usable]
    seen = np.maximum.accumulate(ts) if len(ts) else ts
    return Arrived(
        rows=rows,
        ts=ts,
        seen=seen if front is None else np.maximum(seen, front),
        types=types.take(at),
        sources=_taken(batch, stream.source, at),
        ids=_taken(batch, stream.id, at),
    )


def _taken(batch: pa.Table | pa.RecordBatch, name: str | None, at: pa.Array) -> pa.Array | None:
    return None if name is None or name not in batch.schema.names else texts(batch.column(name)).take(at)


class Recent:
    """Times of the newest events by id, to tell when the events of a match happened and came; at most ``keep``."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._parts: list[tuple[pa.Array, I64, I64]] = []

    def add(self, ids: pa.Array, ts: I64, at: I64) -> None:
        """Events (n,): their ids, times, and the clock at their arrival."""
        if (drop := len(ids) - self._keep) > 0:  # copied, for a slice would hold on to the whole batch
            ids, ts, at = ids.take(pa.array(np.arange(drop, len(ids)))), ts[drop:].copy(), at[drop:].copy()
        self._parts.append((ids, ts, at))
        if len(self._parts) > 64:
            self._merge()

    def find(self, wanted: list[str]) -> dict[str, tuple[int, int]]:
        """Time and clock at arrival of those of the ``wanted`` ids that are still known; the newest of equal ids."""
        if not wanted or not self._parts:
            return {}
        self._merge()
        ids, ts, at = self._parts[0]
        codes = pc.index_in(ids, value_set=pa.array(wanted, pa.string()))
        rows = np.flatnonzero(codes.is_valid().to_numpy(zero_copy_only=False))
        found = codes.take(pa.array(rows)).to_numpy()
        return {
            wanted[code]: (time, clock)
            for code, time, clock in zip(found.tolist(), ts[rows].tolist(), at[rows].tolist(), strict=True)
        }

    def _merge(self) -> None:
        if len(self._parts) > 1:
            parts, self._parts = self._parts, []
            ids = pa.concat_arrays([part[0] for part in parts])
            ts, at = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
            self.add(ids, ts, at)


class Names:
    """The first few names of one kind, numbered; all others have number -1."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self._most = most
        self._true: list[str] = []
        self.shown: list[str] = []
        self._add(names)

    def codes(self, column: pa.Array) -> I64:
        """The number of each name (n,)."""
        if len(self._true) < self._most:
            codes = self._look_up(column)
            new = column.filter(pa.array(codes < 0)).slice(0, 4096)
            if len(new) == new.null_count:
                return codes
            self._add(pc.unique(new.drop_null()).to_pylist())
        return self._look_up(column)

    def _look_up(self, column: pa.Array) -> I64:
        found = pc.index_in(column, value_set=pa.array(self._true, pa.string()))
        codes: I64 = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return codes

    def _add(self, names: Sequence[str]) -> None:
        self._true += list(names)[: self._most - len(self._true)]
        self.shown = [clip(name, 32) for name in self._true]
