"""Writing tables to a file bit by bit. The file appears under its name only when it is complete.

CSV has no lists, so they are written as JSON text there; times are written as ``2013-01-31 05:15:00`` with the fraction
that the column's unit has.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from latecomer.connectors.files.reading import format_of
from latecomer.errors import ConfigError, StateError


class _Sink(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class EventWriter:
    """Writes tables of one schema to ``path``; use it as a context manager.

    All is written to a temporary file beside ``path``, which takes its place when the block ends well and is removed
    when it does not. The format follows from the extension: Parquet, CSV, TSV or JSON lines.

    Raises:
        ConfigError: an unknown extension, a folder that does not exist, or the name of a folder.
        StateError: a table whose columns differ from the first one's.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "changes.csv"
    >>> with EventWriter(path) as writer:
    ...     writer.write(pa.table({"op": ["insert"], "events": [["a", "b"]]}))
    >>> print(path.read_text().strip())
    "op","events"
    "insert","[""a"", ""b""]"
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.rows = 0
        self._format = format_of(self.path)
        if self.path.suffix == ".gz":
            raise ConfigError(f"{self.path.name!r}: packed files are read, not written: leave out '.gz'")
        if not self.path.parent.is_dir():
            raise ConfigError(f"there is no folder {str(self.path.parent)!r} to write {self.path.name!r} into")
        if self.path.is_dir():
            raise ConfigError(f"{str(self.path)!r} is a folder, so no file can have that name: give another one")
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._schema: pa.Schema | None = None
        self._sink: _Sink | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sink is None and kind is None:
            self.write(pa.table({}))
        if self._sink is not None:
            self._sink.close()
        if kind is None:
            os.replace(self._partial, self.path)
        else:
            self._partial.unlink(missing_ok=True)

    def write(self, table: pa.Table) -> None:
        """Append the table's rows. The first table settles the columns, even when it has no rows."""
        if self._schema is None:
            self._schema = table.schema
            self._sink = self._open(_flat(table).schema if self._format in ("csv", "tsv") else table.schema)
        elif not table.schema.equals(self._schema):
            raise StateError(
                f"{self.path.name!r} has the columns {_columns(self._schema)} and cannot take "
                f"{_columns(table.schema)}: write those to another file"
            )
        if table.num_rows:
            assert self._sink is not None
            self._sink.write_table(_flat(table) if self._format in ("csv", "tsv") else table)
            self.rows += table.num_rows

    def _open(self, schema: pa.Schema) -> _Sink:
        if self._format == "parquet":
            sink: _Sink = pq.ParquetWriter(self._partial, schema, compression="zstd")
        elif self._format == "jsonl":
            sink = _JsonLines(self._partial)
        else:
            delimiter = "\t" if self._format == "tsv" else ","
            sink = pyarrow.csv.CSVWriter(
                self._partial, schema, write_options=pyarrow.csv.WriteOptions(delimiter=delimiter)
            )
        return sink


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write_table(self, table: pa.Table) -> None:
        for row in _spelled(table).to_pylist():
            self._file.write(json.dumps(row, ensure_ascii=False, default=str, allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


def _spelled(table: pa.Table) -> pa.Table:
    """Times as text (Python's own have no nanoseconds) and numbers that JSON lacks as null."""
    for at, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type) and not pa.types.is_duration(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
        elif pa.types.is_duration(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
        elif pa.types.is_floating(field.type):
            finite = pc.is_finite(table.column(at))
            table = table.set_column(at, field.name, pc.if_else(finite, table.column(at), None))
    return table


def _flat(table: pa.Table) -> pa.Table:
    """Lists and the like as JSON text, durations as whole numbers of their unit."""
    for at, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            values = table.column(at).to_pylist()
            texts = [None if v is None else json.dumps(v, ensure_ascii=False, default=str) for v in values]
            table = table.set_column(at, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_duration(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.int64()))
        elif pa.types.is_null(field.type):
            table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
    return table


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
