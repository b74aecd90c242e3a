"""Whatever users hand over, as Arrow record batches: tables, data frames, lists of dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from latecomer.errors import SchemaError
from latecomer.runtime.schema import called, castable, decoded, plain_type


def to_arrow(given: Any, known: pa.Schema | None) -> tuple[pa.RecordBatch, dict[int, str]]:
    """One record batch of what a user hands over, and what is wrong with rows that could not be converted.

    Accepts Arrow tables and batches, pandas, Polars (or anything with Arrow's C stream interface) and lists of dicts.
    """
    rows = plain(given)
    return (rows, {}) if isinstance(rows, pa.RecordBatch) else _from_dicts(rows, known)


def plain(given: Any) -> pa.RecordBatch | Sequence[Mapping[str, Any]]:
    """What a user hands over, as a record batch if it has columns, each of one type; else as dicts."""
    if isinstance(given, pa.RecordBatch):
        return given
    if isinstance(given, pa.Table):
        return _one_batch(given)
    if type(given).__module__.split(".")[0] == "pandas" and hasattr(given, "columns"):
        try:
            return _one_batch(pa.Table.from_pandas(given, preserve_index=False))
        except (pa.ArrowException, TypeError):  # a column of objects that are not all of one kind
            whole = given.astype(object)
            records: list[dict[str, Any]] = whole.where(whole.notna(), None).to_dict("records")
            return records
    if hasattr(given, "__arrow_c_stream__"):
        return _one_batch(pa.table(given))
    if (
        isinstance(given, Sequence)
        and not isinstance(given, (str, bytes))
        and all(isinstance(r, Mapping) for r in given)
    ):
        return given
    raise SchemaError(
        f"cannot read events from {type(given).__name__}: give an Arrow table or record batch, a pandas or Polars "
        "data frame, or a list of dicts"
    )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    arrays = [c.combine_chunks() if c.num_chunks != 1 else c.chunk(0) for c in table.columns]
    arrays = [pa.concat_arrays(a.chunks) if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def differs_in_encoding(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether batches of one schema are those of the other but for how their texts are encoded: as data frames have
    them, which are read row by row otherwise.
    """
    t = pa.types
    others = t.is_dictionary, t.is_large_string, t.is_string_view, t.is_large_binary, t.is_binary_view
    texts = pa.string(), pa.binary()
    return (
        given.names == wanted.names
        and not given.equals(wanted)
        and all(
            own == kind or (kind in texts and plain_type(own) == kind and any(is_other(own) for is_other in others))
            for own, kind in zip(given.types, wanted.types, strict=True)
        )
    )


def encoded_as(given: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch with its texts encoded as in ``wanted``; as it is, where they are too long for that."""
    columns = zip(given.columns, wanted.types, strict=True)
    try:
        arrays = [column if column.type == kind else decoded(column).cast(kind) for column, kind in columns]
    except pa.ArrowInvalid:
        return given
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _from_dicts(rows: Sequence[Mapping[str, Any]], known: pa.Schema | None) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Columns over the union of the rows' keys; values that do not fit their column make their row malformed."""
    names = dict.fromkeys(name for row in rows for name in row)
    arrays: dict[str, pa.Array] = {}
    details: dict[int, str] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        wanted = known.field(name).type if known is not None and name in known.names else None
        if wanted is not None and pa.types.is_null(wanted):
            wanted = None
        arrays[name] = _column(name, values, wanted, details)
    return pa.RecordBatch.from_pydict(arrays), details


def _column(name: str, values: list[Any], wanted: pa.DataType | None, details: dict[int, str]) -> pa.Array:
    """A column of the wanted type (None: the one that the values suggest); values that do not fit become null."""
    try:
        column = _array(values)
        return column if wanted is None or column.type == wanted else _safely(column, wanted)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    if wanted is None:
        wanted = _common_type(values)
    kept: list[Any] = []
    for row, value in enumerate(values):
        try:
            # By way of the value's own type: Arrow would cut 1.5 to an integer without a word.
            kept.append(_safely(_array([value]), wanted)[0].as_py())
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            kept.append(None)
            details.setdefault(row, f"{name}={value!r} is no {called(wanted, value)}")
    return pa.array(kept, wanted)


def _array(values: list[Any]) -> pa.Array:
    """A column of the type that the values suggest. Arrow takes whole numbers for int64 and looks no further; those
    that only uint64 holds are that.
    """
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        if all(value is None or type(value) is int for value in values):
            return pa.array(values, pa.uint64())
        raise


def _safely(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column in another type of its family; raises ArrowInvalid when a value would change."""
    if not castable(column.type, wanted):
        raise pa.ArrowInvalid(f"{column.type} is no {wanted}")
    return column.cast(wanted)


def _common_type(values: list[Any]) -> pa.DataType:
    """The type that most values have, judged one by one; of equally many the first."""
    votes: dict[pa.DataType, int] = {}
    for value in values:
        if value is not None:
            try:
                kind = _array([value]).type
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                continue
            votes[kind] = votes.get(kind, 0) + 1
    return max(votes, key=lambda k: votes[k]) if votes else pa.null()
