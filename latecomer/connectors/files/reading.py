"""Reading files of events: settle the columns' types, then hand out chunks of rows in order.

Text formats share one road: records -> cells (text, or JSON's own values) -> columns of the settled types. A block of
records is parsed at once; where that fails, it is halved until the broken record stands alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latecomer.connectors.files import types
from latecomer.connectors.files.records import Chunk, Reject, show
from latecomer.errors import ConfigError, SchemaError, options

FORMATS: dict[str, str] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def format_of(path: Path) -> str:
    """The format that a file's name says; raises ConfigError for an extension that is none of ``FORMATS``."""
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    kind = FORMATS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise ConfigError(f"{path.name!r}: the format is told by the extension: allowed are {options(FORMATS)}")
    return kind


def open_events(
    path: str | Path,
    *,
    time: str | None = None,
    text: tuple[str, ...] = (),
    types: Mapping[str, str] | None = None,
) -> EventFile:
    """Open a file of events.

    Args:
        path: a Parquet, CSV, TSV or JSON lines file; text formats may be packed (``.csv.gz``).
        time: the column of event times: whole numbers or timestamps, whatever most of its values are.
        text: columns that are text whatever they look like, such as the events' type.
        types: declared types of further columns: ``int``, ``float``, ``bool``, ``text``, ``time``
            or ``weights`` (lists of numbers).

    Raises:
        ConfigError: no such file, an unknown extension, a declared type that does not exist.
        SchemaError: a file that cannot be read as what its name says, or with two columns of one name.
    """
    from latecomer.connectors.files.csv import CsvFile
    from latecomer.connectors.files.jsonl import JsonLinesFile

    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{str(path)!r} is a folder, where a file of events is needed: give one of its files")
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}")
    kind = format_of(path)
    declared = {**dict.fromkeys(text, "text"), **(types or {})}
    if kind == "parquet":
        return ParquetFile(path)
    if kind == "jsonl":
        return JsonLinesFile(path, time, declared)
    return CsvFile(path, time, declared, delimiter="\t" if kind == "tsv" else ",")


class EventFile(ABC):
    """A file of events whose columns' types are settled."""

    #: The columns and their types.
    schema: pa.Schema

    @abstractmethod
    def blocks(self) -> Iterator[Chunk]:
        """The file's rows in order, in whatever portions suit the format."""

    def chunks(self, size: int, *, arrival: str | None = None) -> Iterator[Chunk]:
        """The file's rows in portions of ``size``, in the file's order or sorted by the column ``arrival``.

        The sort is stable, puts nulls last, and holds the whole file in memory. Each row and each reject is handed out
        once.
        """
        if size < 1:
            raise ConfigError(f"a batch of {size} rows is none: give 1 or more")
        yield from _portions(self.blocks() if arrival is None else self._sorted(arrival), size, self.schema)

    def _sorted(self, arrival: str) -> Iterator[Chunk]:
        if arrival not in self.schema.names:
            raise SchemaError(f"there is no arrival column {arrival!r}: the file has {options(self.schema.names)}")
        every = list(self.blocks())
        table = pa.concat_tables([chunk.table for chunk in every]) if every else self.schema.empty_table()
        order = pc.sort_indices(table, sort_keys=[(arrival, "ascending", "at_end")])
        yield Chunk(table.take(order), [reject for chunk in every for reject in chunk.rejects])


def _portions(blocks: Iterator[Chunk], size: int, schema: pa.Schema) -> Iterator[Chunk]:
    """Cut and join blocks into portions of exactly ``size`` rows (the last may be smaller)."""
    held: list[pa.Table] = []
    rows = 0
    rejects: list[Reject] = []
    for block in blocks:
        rejects += block.rejects
        held.append(block.table)
        rows += block.table.num_rows
        if rows < size:
            continue
        table = pa.concat_tables(held)
        start = 0
        while rows - start >= size:
            yield Chunk(table.slice(start, size), rejects)
            rejects = []
            start += size
        held = [table.slice(start)]
        rows -= start
    if rows or rejects:
        yield Chunk(pa.concat_tables(held) if held else schema.empty_table(), rejects)


class ParquetFile(EventFile):
    """A Parquet file: states its own types, holds no broken records."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise SchemaError(f"{path.name!r} cannot be read as Parquet: {error}") from error
        self.schema = self._file.schema_arrow
        check_names(path, self.schema.names)

    def blocks(self) -> Iterator[Chunk]:
        for batch in self._file.iter_batches():
            yield Chunk(pa.Table.from_batches([batch], self.schema), [])


def check_names(path: Path, names: list[str]) -> None:
    """Raise SchemaError when two columns have one name or a column has none."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"{path.name!r} has more than one column {options(map(repr, twice))}: names must differ")
    if "" in names:
        raise SchemaError(f"{path.name!r} has a column without a name (number {names.index('') + 1}): name it")


def settle(table: pa.Table, records: list[bytes], schema: pa.Schema) -> Chunk:
    """Columns of text as the types of ``schema``; rows with a cell that does not fit become rejects.

    ``records`` are the rows as they stand in the file. Columns that have their type already are taken as they are.
    """
    columns = []
    bad = np.zeros(table.num_rows, dtype=bool)
    details: dict[int, str] = {}
    for field in schema:
        column = table.column(field.name).combine_chunks()
        if column.type == field.type:
            columns.append(column)
            continue
        settled, misfits = types.convert(column, field.type)
        columns.append(settled)
        bad |= misfits
        for row in np.flatnonzero(misfits).tolist():
            details.setdefault(row, types.misfit(field.name, column[row].as_py(), field.type))
    settled_table = pa.Table.from_arrays(columns, schema=schema)
    if not details:
        return Chunk(settled_table, [])
    rejects = [Reject(show(records[row]), details[row]) for row in sorted(details)]
    return Chunk(settled_table.filter(pa.array(~bad)), rejects)
