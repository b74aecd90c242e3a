"""JSON lines: one object per line.

Numbers and booleans have their types; texts that are all times become times; objects and lists inside an event are kept
as JSON text, since an attribute is one value, but for a column that is declared as weights.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from latecomer.connectors.files import types
from latecomer.connectors.files.reading import EventFile, check_names, settle
from latecomer.connectors.files.records import Chunk, Reject, blocks, json_records, show
from latecomer.errors import ConfigError, SchemaError

#: Blocks of this many records or fewer are not halved further but read one by one.
_ONE_BY_ONE = 32

_WHOLE_RANGE = range(-(2**63), 2**63)


class JsonLinesFile(EventFile):
    """A file with one JSON object per line."""

    def __init__(self, path: Path, time: str | None, declared: Mapping[str, str]) -> None:
        self._path = path
        first = next(json_records(path), b"")
        if first.lstrip()[:1] == b"[":
            raise ConfigError(f"{path.name!r} holds a JSON array: give JSON lines, one object per line")
        kinds = types.parse_types(declared)
        natives = self._natives()
        if not natives:
            raise SchemaError(f"{path.name!r} holds no event: give JSON lines, one object per line")
        for name, allowed in kinds.items():
            # A declared type decides over what the values look like: they become text first, and then fit it or not.
            if name in natives and natives[name] not in allowed:
                natives[name] = types.WEIGHTS if types.WEIGHTS in allowed else types.TEXT
        check_names(path, list(natives))
        #: How the JSON reader hands out each column, before texts become what they are.
        self._raw = pa.schema(list(natives.items()))
        guesses = {
            name: types.guess_for(name, time, kinds, otherwise=types.TIMES)
            for name, native in natives.items()
            if native == types.TEXT
        }
        if guesses:
            for table, _, _ in self._cells():
                for name, guess in guesses.items():
                    guess.see_all(table.column(name))
        self.schema = pa.schema([(name, guesses[name].type if name in guesses else natives[name]) for name in natives])

    def blocks(self) -> Iterator[Chunk]:
        for table, records, rejects in self._cells():
            chunk = settle(table, records, self.schema)
            yield Chunk(chunk.table, rejects + chunk.rejects)

    def _retype(self, name: str, kind: pa.DataType, *, raw: bool = False) -> None:
        at = self.schema.get_field_index(name)
        self.schema = self.schema.set(at, pa.field(name, kind))
        if raw:
            self._raw = self._raw.set(at, pa.field(name, kind))

    def _natives(self) -> dict[str, pa.DataType]:
        """Each column's type by JSON's own values, in order of appearance."""
        found: dict[str, pa.DataType] = {}
        for lot, _ in blocks(json_records(self._path)):
            for name, kind in _native_types(lot):
                found[name] = _join(found.get(name, pa.null()), kind)
        # A column of nulls alone says nothing; as text it can be compared with anything a query may write.
        return {name: types.TEXT if pa.types.is_null(kind) else kind for name, kind in found.items()}

    def _cells(self) -> Iterator[tuple[pa.Table, list[bytes], list[Reject]]]:
        """Blocks of rows with raw types, the rows' records, and the records that are no such rows."""
        for lot, _ in blocks(json_records(self._path)):
            tables: list[pa.Table] = []
            records: list[bytes] = []
            rejects: list[Reject] = []
            self._parse(lot, tables, records, rejects)
            yield pa.concat_tables(tables), records, rejects

    def _parse(self, lot: list[bytes], tables: list[pa.Table], records: list[bytes], rejects: list[Reject]) -> None:
        if len(lot) <= _ONE_BY_ONE:
            rows = []
            for record in lot:
                try:
                    rows.append(self._row(record))
                    records.append(record)
                except ValueError as error:
                    rejects.append(Reject(show(record), str(error)))
            tables.append(pa.Table.from_pylist(rows, self._raw))
            return
        try:
            table = pyarrow.json.read_json(
                io.BytesIO(b"\n".join(lot)),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 30),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=self._raw, unexpected_field_behavior="error"),
            )
            if table.num_rows == len(lot):
                tables.append(table)
                records += lot
                return
        except (pa.ArrowInvalid, UnicodeDecodeError):
            pass
        middle = len(lot) // 2
        self._parse(lot[:middle], tables, records, rejects)
        self._parse(lot[middle:], tables, records, rejects)

    def _row(self, record: bytes) -> dict[str, Any]:
        """One record as a row of the raw types; raises ValueError that says why it is none."""
        found = _object(record)
        return {field.name: _fit(field.name, found.get(field.name), field.type) for field in self._raw}


def _object(record: bytes) -> dict[str, Any]:
    try:
        found = json.loads(record)
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("not JSON: nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(found, dict):
        raise ValueError(f"a JSON {_kind_name(found)} where an object is expected")
    return found


def _fit(column: str, value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if kind == types.TEXT:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    fits = {
        types.WHOLE: type(value) is int and value in _WHOLE_RANGE,
        types.REAL: type(value) in (int, float),
        types.TRUTH: type(value) is bool,
        types.WEIGHTS: types.is_weights(value),
    }
    if not fits[kind]:
        raise ValueError(types.misfit(column, value, kind))
    return float(value) if kind == types.REAL else value


def _native_types(lot: list[bytes]) -> Iterator[tuple[str, pa.DataType]]:
    """The columns of a block and their types, as far as its records can be read."""
    try:
        schema = pyarrow.json.read_json(
            io.BytesIO(b"\n".join(lot)), read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 30)
        ).schema
    except (pa.ArrowInvalid, UnicodeDecodeError):
        yield from _native_types_one_by_one(lot)
        return
    for field in schema:
        known = field.type in (types.WHOLE, types.REAL, types.TRUTH) or pa.types.is_null(field.type)
        yield field.name, field.type if known else types.TEXT


def _native_types_one_by_one(lot: list[bytes]) -> Iterator[tuple[str, pa.DataType]]:
    for record in lot:
        try:
            found = _object(record)
        except ValueError:
            continue
        for name, value in found.items():
            yield name, _native_type(value)


def _native_type(value: object) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return types.TRUTH
    if isinstance(value, int):
        return types.WHOLE if value in _WHOLE_RANGE else types.REAL
    return types.REAL if isinstance(value, float) else types.TEXT


def _join(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    return types.REAL if {a, b} == {types.WHOLE, types.REAL} else types.TEXT


def _kind_name(value: object) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "text"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "number"
