"""Messages as events: one record batch per batch of messages, and apart from it the messages that are none.

The rule: every message is either a row of the batch or a piece of poison with a reason, never both and never neither,
and what happens to one does not depend on the others. The rows keep the order of the messages.

A batch has the columns ``type``, ``ts`` (whole units), ``id``, where they are mapped ``source`` and ``of``, then the
declared columns. Punctuation is a row like any other, whether it came as a message type or in a header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.connectors.kafka import formats
from latecomer.connectors.kafka.config_values import Place
from latecomer.connectors.kafka.formats import Int64, Path, Shape, Unreadable
from latecomer.connectors.kafka.places import Message, Origins, from_record, whole_units
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from latecomer.connectors.kafka.config import Pipeline
    from latecomer.connectors.kafka.config_parts import Input

#: What a missing or wrong value in the columns that every event needs is called.
_ROLES = {
    "type": "unknown_type", "ts": "bad_timestamp", "id": "no_id", "source": "bad_value", "of": "bad_value",
    "upper": "bad_timestamp", "pmf": "bad_value",
}  # fmt: skip
#: Columns of whole units of event time, whose places may have units of their own.
_TIMES = ("ts", "upper")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch of events; ``numbers``: for each row the number of its message; ``poison``: number -> what is wrong."""

    batch: pa.RecordBatch
    numbers: np.ndarray[Any, Any]
    poison: Mapping[int, Unreadable]


class _Promise(msgspec.Struct):
    """Punctuation in a header."""

    ts: Int64 | str
    type: str | None = None
    source: str | Int64 | None = None


class Decoder:
    """Reads the messages of one input."""

    def __init__(self, entry: Input, pipeline: Pipeline, registry: SchemaRegistryClient | None = None) -> None:
        self.entry = entry
        self.schema: pa.Schema = pipeline.schema
        self._unit: str = pipeline.stream_options.unit
        self._punctuation = pipeline.punctuation_type
        self._limit: int = pipeline.limits.max_message
        self._places = _places(entry, self.schema)
        self._units = {name: pipeline.unit_of(self._places[name]) for name in _TIMES if name in self._places}
        wanted: dict[Path, Any] = {}
        for name, place in self._places.items():
            if place.kind == "field":
                path = tuple(place.value.split("."))
                unit = self._units.get(name, place.unit)
                kind = _kind(name, self.schema.field(name).type, unit)
                wanted[path] = wanted[path] | kind if path in wanted else kind
        self._reasons = {p.value: _ROLES[n] for n, p in self._places.items() if n in _ROLES and p.kind == "field"}
        self._shape = Shape.of(wanted)
        self._read = _reader(entry, self._shape, registry)

    def decode(self, messages: Sequence[Message], origins: Origins) -> Decoded:
        """Events and poison among ``messages``; ``origins`` says where these were first written."""
        values = list(map(methodcaller("value"), messages))
        poison: dict[int, Unreadable] = {}
        promised = self._promises(messages, poison) if self.entry.punctuation is not None else {}
        rows, refused = formats.read_all(self._read, values)
        for number, problem in refused.items():
            if number not in promised and number not in poison:
                poison[number] = self._refusal(values[number], problem)
        if None in values or max(map(len, values), default=0) > self._limit:
            for number, value in enumerate(values):
                if value is not None and len(value) > self._limit and number not in promised:
                    detail = f"{len(value)} bytes, allowed are {self._limit}"
                    poison.setdefault(number, Unreadable("oversized", detail))
        apart = {**poison, **promised}
        numbers = np.arange(len(values))
        if apart:
            numbers = np.delete(numbers, list(apart))
            rows = [rows[n] for n in numbers.tolist()]
            messages = [messages[n] for n in numbers.tolist()]
        batch, numbers = self._columns(rows, messages, origins, numbers, poison)
        if promised:
            batch, numbers = self._with_promises(batch, numbers, promised)
        return Decoded(batch, numbers, poison)

    # --- columns -----------------------------------------------------------------------------------------------------

    def _columns(
        self,
        rows: Sequence[Any],
        messages: Sequence[Message],
        origins: Origins,
        numbers: np.ndarray[Any, Any],
        poison: dict[int, Unreadable],
    ) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """The batch of these rows, without those that turn out to be no events."""
        bad: dict[int, Unreadable] = {}
        arrays = {}
        for field in self.schema:
            place = self._places.get(field.name)
            if place is None:
                arrays[field.name] = pa.nulls(len(rows), field.type)
                continue
            if place.kind == "field":
                values: Sequence[Any] = self._shape.column(rows, tuple(place.value.split(".")))
            else:
                values = from_record(place, messages, origins)
            arrays[field.name] = self._array(field, place, values, bad)
        self._judge(arrays, bad)
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=self.schema)
        if not bad:
            return batch, numbers
        poison.update((int(numbers[row]), problem) for row, problem in bad.items())
        keep = np.ones(len(rows), bool)
        keep[list(bad)] = False
        return batch.filter(pa.array(keep)), numbers[keep]

    def _array(self, field: pa.Field, place: Place, values: Sequence[Any], bad: dict[int, Unreadable]) -> pa.Array:
        """One column; values that do not fit make their row bad."""
        reason = _ROLES.get(field.name, "bad_value")
        if field.name in self._units:
            return whole_units(values, self._units[field.name], self._unit, reason, bad)
        if pa.types.is_timestamp(field.type):
            return whole_units(values, place.unit or "iso", "us", reason, bad).cast(field.type)
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            as_text = pa.types.is_string(field.type) and (field.name in _ROLES or place.kind != "field")
            kept = []
            for row, value in enumerate(values):
                try:
                    kept.append(_fitted(value, field.type, as_text, from_text=place.kind == "header"))
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
                    bad.setdefault(row, Unreadable(reason, f"{field.name}: {problem}"))
                    kept.append(None)
            return pa.array(kept, field.type)

    def _judge(self, arrays: dict[str, pa.Array], bad: dict[int, Unreadable]) -> None:
        """Rows without a type, time or id are no events, nor are those of types that the input does not list."""
        types = arrays["type"]
        punctuation = np.zeros(len(types), bool)
        mark = None if self.entry.punctuation is None else self.entry.punctuation.type
        if mark is not None:
            punctuation = pc.equal(types, mark).fill_null(False).to_numpy(zero_copy_only=False)
            if mark != self._punctuation:
                arrays["type"] = pc.if_else(pa.array(punctuation), self._punctuation, types)
        for name in ("type", "ts", "id", "upper"):
            if name in arrays and arrays[name].null_count:
                missing = arrays[name].is_null().to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(missing if name in ("type", "ts") else missing & ~punctuation).tolist():
                    bad.setdefault(row, Unreadable(_ROLES[name], f"no {name}"))
        if self.entry.types:
            known = pc.is_in(types, pa.array(self.entry.types, pa.string())).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(~(known | punctuation)).tolist():
                allowed = ", ".join(self.entry.types)
                bad.setdefault(row, Unreadable("unknown_type", f"type {types[row]}, this input has {allowed}"))

    # --- punctuation in headers ---------------------------------------------------------------------------------------

    def _promises(self, messages: Sequence[Message], poison: dict[int, Unreadable]) -> dict[int, Any]:
        """Messages with a punctuation header: number -> type, ts, source."""
        assert self.entry.punctuation is not None
        name = self.entry.punctuation.header
        if name is None:
            return {}
        found: dict[int, Any] = {}
        for number, message in enumerate(messages):
            value = next((v for k, v in message.headers() or () if k == name), None)
            if value is None:
                continue
            wrong: dict[int, Unreadable] = {}
            try:
                promise = msgspec.json.decode(value, type=_Promise)
                moment = datetime.fromisoformat(promise.ts) if isinstance(promise.ts, str) else promise.ts
                unit = "iso" if isinstance(promise.ts, str) else self._unit
                ts = whole_units([moment], unit, self._unit, "bad_punctuation", wrong)
            except (ValueError, TypeError) as problem:
                poison[number] = Unreadable("bad_punctuation", f"header {name}: {problem}")
                continue
            if wrong:
                poison[number] = wrong[0]
            else:
                found[number] = (promise.type, ts[0].as_py(), None if promise.source is None else str(promise.source))
        return found

    def _with_promises(
        self, batch: pa.RecordBatch, numbers: np.ndarray[Any, Any], promised: Mapping[int, Any]
    ) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """The batch with punctuation rows, all in the order of their messages."""
        rows = [
            {"type": self._punctuation, "of": of, "ts": ts, "source": source} for of, ts, source in promised.values()
        ]
        more = pa.RecordBatch.from_pylist(rows, schema=self.schema)
        both = np.concatenate([numbers, list(promised)])
        order = np.argsort(both, kind="stable")
        return pa.concat_batches([batch, more]).take(pa.array(order)), both[order]

    def _refusal(self, value: bytes | None, problem: Exception) -> Unreadable:
        if value is None:
            return Unreadable("null_payload", "the message has no value")
        return formats.explain(problem, self._reasons)


def _fitted(value: Any, kind: pa.DataType, as_text: bool, from_text: bool) -> Any:
    """The value as a column of this type holds it; raises where it cannot. ``as_text``: numbers may stand for names.
    ``from_text``: texts may stand for numbers."""
    if value is not None and as_text and not isinstance(value, str):
        value = str(value)
    if from_text and isinstance(value, str) and not pa.types.is_string(kind):
        return pa.scalar(value).cast(kind).as_py()
    return pa.scalar(value, kind).as_py()


def _places(entry: Input, schema: pa.Schema) -> dict[str, Place]:
    """Where each column of the schema is found in a message."""
    found: dict[str, Place | None] = {"type": entry.type, "ts": entry.time, "id": entry.id, "source": entry.source}
    found |= {"upper": entry.upper or entry.time, "pmf": entry.pmf}  # without an upper end the time is exact
    if entry.punctuation is not None:
        found["of"] = entry.punctuation.of
    for name in schema.names:
        if name not in _ROLES:
            found[name] = entry.fields.get(name) or Place(field=name)
    return {name: place for name, place in found.items() if place is not None and name in schema.names}


def _kind(name: str, kind: pa.DataType, unit: str | None) -> Any:
    """The Python type that a field must have in the message to fill a column."""
    t = pa.types
    if name in _TIMES or t.is_timestamp(kind):
        return datetime if unit in (None, "iso") else Int64 | float
    if name in ("id", "source"):
        return str | Int64
    if t.is_list(kind):
        return list[float]
    for test, found in ((t.is_string, str), (t.is_integer, Int64), (t.is_floating, float), (t.is_boolean, bool)):
        if test(kind):
            return found
    raise ConfigError(f"column {name!r} holds {kind}: allowed are bool, float, int, text and time")


def _reader(entry: Input, shape: Shape, registry: SchemaRegistryClient | None) -> Callable[[bytes], Any]:
    """The reader of the input's format."""
    if entry.format == "json":
        return formats.json_reader(shape)
    if entry.format == "msgpack":
        return formats.msgpack_reader(shape)
    if entry.format == "csv":
        assert entry.csv is not None
        return formats.csv_reader(shape, entry.csv.columns, entry.csv.delimiter, entry.csv.null)
    if registry is None:
        raise ConfigError(f"format {entry.format!r} needs a schema registry: add [schema_registry] with its url")
    from latecomer.connectors.kafka import registry as framed

    if entry.format == "avro":
        return framed.avro_reader(shape, registry)
    if entry.message is None:
        raise ConfigError("format 'protobuf' needs message = 'package.module:Class', the class made by protoc")
    return framed.protobuf_reader(shape, registry, entry.message)
