"""Bodies of requests as events: JSON lines, a JSON document, or an Arrow stream.

The rules: what a body becomes depends on nothing but the body, the number of its first line and the time at which it
came, so the journal keeps bodies as they are and reads them once more after a crash. Lines, and the rows of an Arrow
stream, stand each for itself: what is no event becomes a dead letter and costs its neighbours nothing. A JSON document
is one thing: it is taken whole or refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.connectors.kafka.config_values import Place
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.formats import Unreadable
from latecomer.connectors.kafka.places import Origins, whole_units
from latecomer.errors import LatecomerError
from latecomer.serve.arrow import table_of
from latecomer.serve.config import HTTP
from latecomer.serve.letters import DeadLetter

if TYPE_CHECKING:
    from latecomer.serve.config import Served

#: How a body may be written.
Form = Literal["lines", "json", "arrow"]
_ORIGINS = Origins(HTTP)
#: Columns of whole units of event time.
_TIMES = ("ts", "upper")
_MARK = b"\xef\xbb\xbf"


class Refused(LatecomerError):
    """A body that is refused whole; ``problems`` says what is wrong with which of its elements."""

    def __init__(self, problem: str, problems: Sequence[DeadLetter] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a body holds: events in order, dead letters, and how many lines that were."""

    table: pa.Table
    letters: tuple[DeadLetter, ...] = ()
    lines: int = 0


#: Reads a body: its form, its bytes, the number of its first line, the time at which it came (ms).
ReadBody = Callable[[Form, bytes, int, int], Parsed]


class _Line:
    """A line in the place of a message: ``number`` is its position, ``at`` the time at which it came."""

    __slots__ = ("_at", "_number", "_value")

    def __init__(self, value: bytes | None, number: int, at: int) -> None:
        self._value, self._number, self._at = value, number, at

    def topic(self) -> str:
        return HTTP

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._number

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, self._at

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value or b"")


class BodyReader(Decoder):
    """Reads bodies for one pipeline."""

    def __init__(self, pipeline: Served) -> None:
        super().__init__(pipeline.inputs[0], pipeline)
        self._unit_at = pipeline.unit_of

    def __call__(self, form: Form, body: bytes, number: int, at: int) -> Parsed:
        """What the body holds; raises Refused for what is refused whole."""
        if form == "arrow":
            return self._arrow(body, number, at)
        if form == "json":
            return self._document(body, number, at)
        lines = body.removeprefix(_MARK).split(b"\n")
        places = [place for place, line in enumerate(lines) if line and not line.isspace()]
        return self._lines(lines if len(places) == len(lines) else [lines[p] for p in places], places, number, at)

    def _lines(self, lines: Sequence[bytes], places: Sequence[int], number: int, at: int) -> Parsed:
        decoded = self.decode([_Line(line, n, at) for n, line in enumerate(lines, number)], _ORIGINS)
        letters = tuple(
            DeadLetter(places[n] + 1, problem.reason, str(problem)[:500], lines[n].removesuffix(b"\r"), at)
            for n, problem in sorted(decoded.poison.items())
        )
        return Parsed(pa.Table.from_batches([decoded.batch]), letters, len(lines))

    def _document(self, body: bytes, number: int, at: int) -> Parsed:
        body = body.removeprefix(_MARK).strip()
        elements = [body]
        try:
            if body[:1] == b"[":
                elements = [bytes(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw])]
        except (msgspec.DecodeError, ValueError, RecursionError) as problem:
            raise Refused(f"the body is no JSON: {problem}") from problem
        parsed = self._lines(elements, range(len(elements)), number, at)
        if parsed.letters:
            first = parsed.letters[0]
            raise Refused(f"element {first.line} of the document is no event: {first.detail}", parsed.letters)
        return parsed

    # --- Arrow -------------------------------------------------------------------------------------------------------

    def _arrow(self, body: bytes, number: int, at: int) -> Parsed:
        try:
            table = table_of(body)
        except ValueError as problem:
            raise Refused(f"the body is no Arrow stream that can be taken: {problem}") from problem
        bad: dict[int, Unreadable] = {}
        arrays: dict[str, pa.Array] = {}
        for field in self.schema:
            place = self._places.get(field.name)
            if place is None:
                arrays[field.name] = pa.nulls(len(table), field.type)
            elif place.kind == "field":
                arrays[field.name] = self._column(field, place, table, bad)
            else:
                arrays[field.name] = self._made(field, place, len(table), number, at)
        self._judge(arrays, bad)
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=self.schema)
        rows = len(table)
        letters: tuple[DeadLetter, ...] = ()
        if bad:
            keep = np.ones(rows, bool)
            keep[list(bad)] = False
            order = sorted(bad)
            shown = table.take(pa.array(order)).to_pylist()
            letters = tuple(
                DeadLetter(row + 1, bad[row].reason, str(bad[row])[:500], _as_json(told), at)
                for row, told in zip(order, shown, strict=True)
            )
            batch = batch.filter(pa.array(keep))
        return Parsed(pa.Table.from_batches([batch]), letters, rows)

    def _column(self, field: pa.Field, place: Place, table: pa.Table, bad: dict[int, Unreadable]) -> pa.Array:
        """A column as the schema has it; raises Refused where its type does not fit."""
        head, *path = str(place.value).split(".")
        if head not in table.column_names:
            return pa.nulls(len(table), field.type)
        column = table.column(head).combine_chunks()
        try:
            for name in path:
                column = pc.struct_field(column, name)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if pa.types.is_null(column.type):
                return pa.nulls(len(table), field.type)
            if field.name in _TIMES:
                return self._time(column, self._unit_at(place), bad)
            return _cast(column, field.type)
        except (pa.ArrowException, TypeError) as problem:
            told = f"column {place.value!r} holds {column.type}, and {field.type} is needed: {problem}"
            raise Refused(told) from problem

    def _time(self, column: pa.Array, unit: str, bad: dict[int, Unreadable]) -> pa.Array:
        if pa.types.is_timestamp(column.type):
            unit, column = str(column.type.unit), column.cast(pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise TypeError("numbers or timestamps are needed")
        if unit == "iso":
            raise TypeError("timestamps are needed, since times in JSON are texts")
        # The same road as for lines: numbers of one type go through NumPy.
        return whole_units(column.to_pylist(), unit, self._unit, "bad_timestamp", bad)

    def _made(self, field: pa.Field, place: Place, rows: int, number: int, at: int) -> pa.Array:
        """A column that is in no body: the same for every row, or made of its position."""
        if place.kind == "constant":
            return pa.array([place.value] * rows, field.type)
        if place.value == "timestamp":
            if field.name in _TIMES:
                return whole_units([at] * rows, "ms", self._unit, "bad_timestamp", {})
            return pa.array([at * 1_000] * rows, pa.int64()).cast(field.type)
        offsets = pa.array(range(number, number + rows), pa.int64())
        if place.value == "offset":
            return offsets.cast(field.type)
        return pc.binary_join_element_wise(f"{HTTP}-0", offsets.cast(pa.string()), "-")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in another type, where that loses nothing."""
    given = column.type
    text = pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given)
    if pa.types.is_string(kind) and not (text or pa.types.is_integer(given)):
        raise TypeError("texts or whole numbers are needed")
    if text and not pa.types.is_string(kind):
        raise TypeError("texts stand for nothing else")
    if pa.types.is_boolean(kind) != pa.types.is_boolean(given):
        raise TypeError("true and false are no numbers")
    return column.cast(kind)


def _as_json(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row, enc_hook=str)
