"""A user's events, made ready to arrive in any order: one table in order of time, with an id in every row.

Left out is what takes part in no answer, whatever the order: rows without a time, type or id, and rows of the stream's
punctuation type (punctuation is true for one order only, so each order gets its own). Refused is what depends on the
order by right: one id with two contents, since the first to arrive counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError, SchemaError
from latecomer.query import Query
from latecomer.runtime.engine import attributes_of
from latecomer.runtime.given import to_arrow
from latecomer.runtime.schema import plain_type
from latecomer.stream import Stream
from latecomer.testing.orders import Timed
from latecomer.units import UNITS

#: The column that numbers events which have no ids, by their place in what the user gave.
NUMBER = "event_number"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Events in order of time. ``ids`` and ``timed`` go along with the rows of ``table``; ``unit`` is that of times."""

    stream: Stream
    table: pa.Table
    unit: str
    ids: list[Any]
    timed: Timed

    def mark(self, number: int) -> str:
        """How messages name an event: id, type and time."""
        return f"{self.ids[number]}({self.timed.types[number]}@{self.timed.ts[number]})"

    @property
    def everyone(self) -> set[Any] | None:
        """All sources; None where the stream names none."""
        return None if self.stream.source is None else set(self.timed.sources)


def prepare(query: Query, events: Any, stream: Stream | None) -> Prepared:
    """Raises SchemaError for columns that are missing or wrong, ConfigError for ids that conflict."""
    table = as_table(events, stream)
    if not isinstance(events, (pa.Table, pa.RecordBatch)):  # keys that no dict has are nulls, as for a Runtime
        for missing in sorted(attributes_of([query.plan]) - set(table.column_names)):
            table = table.append_column(missing, pa.nulls(table.num_rows))
    if stream is None:
        id, source = (name if name in table.column_names else None for name in ("id", "source"))
        stream = Stream(id=id, source=source)
    for name in (stream.type, stream.ts, stream.id, stream.source):
        if name is not None and name not in table.column_names:
            raise SchemaError(
                f"the events have no column {name!r}: they have {', '.join(table.column_names)}; say with stream= "
                "which column holds what, as for a Runtime"
            )
    # Orders are tried that the stream's generators know nothing of; punctuation that is true of each takes their place.
    stream = replace(stream, promises=())
    if stream.id is None:
        number = NUMBER
        while number in table.column_names:
            number += "_"
        table = table.append_column(number, pa.array(range(table.num_rows), pa.int64()))
        stream = replace(stream, id=number)
    kinds = table.column(stream.type)
    keep = pc.and_(kinds.is_valid(), table.column(stream.ts).is_valid())
    if stream.punctuation is not None:
        keep = pc.and_(keep, pc.fill_null(pc.not_equal(kinds.cast(pa.string()), stream.punctuation), False))
    table = table.filter(pc.and_(keep, table.column(stream.id).is_valid()))
    unit = stream.unit_for(table.column(stream.ts).type)
    times = _times(table.column(stream.ts), unit, stream.ts)
    order = sorted(range(len(times)), key=times.__getitem__)
    table = table.take(pa.array(order, pa.int64()))
    ids = table.column(stream.id).to_pylist()
    _check_ids(table, ids)
    sources = [None] * len(ids) if stream.source is None else table.column(stream.source).to_pylist()
    timed = Timed([times[i] for i in order], table.column(stream.type).to_pylist(), sources)
    return Prepared(stream, table, unit, ids, timed)


def as_table(events: Any, stream: Stream | None) -> pa.Table:
    """Events in any form as one table, in the types that a runtime keeps."""
    batch, details = to_arrow(events, None if stream is None else stream.declared)
    if details:
        row, problem = next(iter(details.items()))
        raise SchemaError(f"event {row}: {problem}; a test needs events that a runtime would accept")
    return pa.Table.from_batches([batch]).cast(pa.schema([f.with_type(plain_type(f.type)) for f in batch.schema]))


def _times(column: pa.ChunkedArray, unit: str, name: str) -> list[int]:
    kind = column.type
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("s")), pa.timestamp("s")
    try:
        values: list[int] = column.cast(pa.int64()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise SchemaError(f"column {name!r} holds {kind}: whole numbers or Arrow timestamps are needed") from problem
    if not pa.types.is_timestamp(kind):
        return values
    return [v * UNITS[kind.unit] // UNITS[unit] for v in values]


def _check_ids(table: pa.Table, ids: list[Any]) -> None:
    if len(set(ids)) == len(ids):
        return
    first: dict[Any, str] = {}
    for id, row in zip(ids, map(repr, table.to_pylist()), strict=True):  # by repr NaN is like NaN
        if first.setdefault(id, row) != row:
            raise ConfigError(
                f"id {id!r} occurs with two contents, so the answer depends on which comes first:\n  {first[id]}\n"
                f"  {row}\nGive each event its own id, or leave one of the two out"
            )
