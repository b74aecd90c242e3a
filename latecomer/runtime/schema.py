"""The one schema of a stream's batches: from its declaration and its first batch; what may stand for what.

Rule: a batch with a missing or wrongly typed column is refused whole, by name, before anything is processed. The first
batch fixes the schema, unless the stream declares it; a column that was all null so far may still find its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from latecomer.errors import SchemaError
from latecomer.stream import Stream

#: Weights of the units of an interval.
WEIGHTS_TYPE = pa.list_(pa.float64())

#: The id column of streams that have none: events are numbered in order of arrival.
NUMBER = "event_number"


def fix_schema(stream: Stream, given: pa.Schema, needed: Iterable[str], by_row: bool) -> pa.Schema:
    """The schema of a stream from its first batch (and its declaration); checks the columns that everything depends on.

    ``needed`` are the attributes that queries name. ``by_row``: events came as dicts, where a missing key is a null.
    """
    check_single(given)
    declared = stream.declared
    fields = {f.name: plain_type(f.type) for f in given}
    if declared is not None:
        fields |= {f.name: plain_type(f.type) for f in declared}
    if by_row and stream.pmf is not None:
        fields.setdefault(stream.pmf, pa.null())
    timed = "ts" if stream.lower is None else "lower"
    for purpose, name in (
        ("type", stream.type),
        (timed, stream.ts),
        ("upper", stream.upper),
        ("id", stream.id),
        ("source", stream.source),
        ("pmf", stream.pmf),
    ):
        if name is not None and name not in fields:
            raise SchemaError(
                f"no column {name!r}, which Stream({purpose}={name!r}) names: the batch has {_list(given.names)}"
            )
    for name in sorted(needed):
        if name not in fields:
            if not by_row:
                raise SchemaError(f"no column {name!r}, which a query asks for: the batch has {_list(given.names)}")
            fields[name] = pa.null()
    fields[stream.type] = _type_column(stream.type, fields[stream.type])
    fields[stream.ts] = _time_column(stream.ts, fields[stream.ts])
    if stream.upper is not None:
        fields[stream.upper] = _time_column(stream.upper, fields[stream.upper])
        for one, other in ((stream.ts, stream.upper), (stream.upper, stream.ts)):
            if pa.types.is_null(fields[one]):
                fields[one] = fields[other]
        if not castable(fields[stream.upper], fields[stream.ts]):
            raise SchemaError(
                f"column {stream.ts!r} holds {fields[stream.ts]} and {stream.upper!r} {fields[stream.upper]}: both "
                "ends of an interval must be of one kind"
            )
    if stream.pmf is not None:
        fields[stream.pmf] = _weights_column(stream.pmf, fields[stream.pmf])
    if stream.id is not None:
        fields[stream.id] = _id_column(stream.id, fields[stream.id])
    if stream.punctuation is not None:
        fields.setdefault(stream.of, pa.string())
        if not (pa.types.is_string(fields[stream.of]) or pa.types.is_null(fields[stream.of])):
            raise SchemaError(
                f"column {stream.of!r} holds {fields[stream.of]}: punctuation names an event type, as text"
            )
        fields[stream.of] = pa.string()
    return pa.schema(list(fields.items()))


def check_single(given: pa.Schema) -> None:
    """Raises SchemaError where two columns have one name, as after a join: nobody could tell which is meant."""
    if len(set(given.names)) < len(given.names):
        twice = sorted({name for name in given.names if given.names.count(name) > 1})
        raise SchemaError(f"the batch has two columns {twice[0]!r}: rename one, or leave it out")


def missing_columns(given: pa.Schema, schema: pa.Schema, needed: Iterable[str]) -> list[str]:
    """Columns that the runtime reads and a later batch lacks."""
    return [n for n in needed if n in schema.names and given.get_field_index(n) < 0]


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) if names else "no columns"


def _type_column(name: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return pa.string()
    raise SchemaError(f"column {name!r} holds {kind}: the event type must be text")


def _time_column(name: str, kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_timestamp(kind):
        return kind
    if t.is_date(kind):
        return pa.timestamp("s")
    if t.is_integer(kind) or t.is_floating(kind):
        return pa.int64()
    if t.is_null(kind):
        return kind  # no row has one, so none is usable; the type shows when one comes
    raise SchemaError(f"column {name!r} holds {kind}: event times must be whole numbers or Arrow timestamps")


def _weights_column(name: str, kind: pa.DataType) -> pa.DataType:
    if castable(kind, WEIGHTS_TYPE):
        return WEIGHTS_TYPE
    raise SchemaError(f"column {name!r} holds {kind}: weights are lists of numbers, one for each unit of the interval")


def _id_column(name: str, kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_string(kind) or t.is_binary(kind) or t.is_integer(kind) or t.is_null(kind):
        return kind
    if t.is_floating(kind):
        return pa.int64()
    raise SchemaError(
        f"column {name!r} holds {kind}: event ids must be text, whole numbers or bytes; cast it, say to "
        "pa.string(), or to pa.binary() where all are bytes of one length"
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which the engine keeps a column: encodings do not count."""
    t = pa.types
    if t.is_dictionary(kind) or t.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_large_binary(kind) or t.is_binary_view(kind):
        return pa.binary()
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return kind


def decoded(column: pa.Array) -> pa.Array:
    """The column without a dictionary."""
    if not pa.types.is_dictionary(column.type):
        return column
    return column.dictionary.cast(plain_type(column.type)).take(column.indices)


def castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type may stand for the other: same family, or nothing but nulls."""
    given, wanted = plain_type(given), plain_type(wanted)
    t = pa.types

    def family(kind: pa.DataType) -> object:
        if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
            return "number"
        if t.is_timestamp(kind) or t.is_date(kind):
            return "moment"
        if t.is_struct(kind) or t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
            # The moments in it are the same in any zone.
            parts = [kind.field(n) for n in range(kind.num_fields)]
            return kind.id, [(part.name if t.is_struct(kind) else "", in_nested(part.type)) for part in parts]
        return kind if not t.is_duration(kind) else "duration"

    def in_nested(kind: pa.DataType) -> object:
        if t.is_timestamp(kind):
            return kind.unit, kind.tz is None
        return family(kind) if t.is_nested(kind) else kind

    if wanted == WEIGHTS_TYPE and (t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)):
        return bool(t.is_null(given.value_type)) or family(given.value_type) == "number"
    return bool(t.is_null(given)) or family(given) == family(wanted)


def called(wanted: pa.DataType, value: Any) -> str:
    """What a value should have been, in words where that helps."""
    if pa.types.is_null(wanted):  # nothing in the column suggests a type
        return "whole number of 64 bits" if isinstance(value, int) else "value that a column can hold"
    fits = isinstance(value, int) or not pa.types.is_integer(wanted)
    return str(wanted) if fits else "whole number"
