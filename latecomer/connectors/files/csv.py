"""CSV files: a header, then one record per line; see ``records`` for quotes and ``types`` for cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from latecomer.connectors.files import types
from latecomer.connectors.files.reading import EventFile, check_names, settle
from latecomer.connectors.files.records import Chunk, Reject, blocks, csv_records, show
from latecomer.errors import SchemaError


class CsvFile(EventFile):
    """A CSV file with a header; ``delimiter`` is one character."""

    def __init__(self, path: Path, time: str | None, declared: Mapping[str, str], *, delimiter: str) -> None:
        self._path = path
        self._delimiter = delimiter
        self._names = self._header()
        kinds = types.parse_types(declared)
        guesses = {name: types.guess_for(name, time, kinds) for name in self._names}
        for table, _, _ in self._texts():
            for name, guess in guesses.items():
                guess.see_all(table.column(name))
        self.schema = pa.schema([(name, guess.type) for name, guess in guesses.items()])

    def blocks(self) -> Iterator[Chunk]:
        for table, records, rejects in self._texts():
            chunk = settle(table, records, self.schema)
            yield Chunk(chunk.table, rejects + chunk.rejects)

    def _header(self) -> list[str]:
        record = next(csv_records(self._path, self._delimiter.encode()), None)
        if record is None:
            raise SchemaError(f"{self._path.name!r} is empty: the first line must name the columns")
        try:
            text = record.text if isinstance(record, Reject) else record.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SchemaError(f"{self._path.name!r} is not UTF-8 text: {error.reason}") from error
        names = next(csv.reader([text], delimiter=self._delimiter))
        check_names(self._path, names)
        return names

    def _texts(self) -> Iterator[tuple[pa.Table, list[bytes], list[Reject]]]:
        """Blocks of cells as text, the rows' records, and what could not be taken apart."""
        records = islice(csv_records(self._path, self._delimiter.encode()), 1, None)
        for lot, rejects in blocks(records):
            table, wrong = self._parse(lot)
            kept = [record for number, record in enumerate(lot) if number not in wrong] if wrong else lot
            rejects += [Reject(show(lot[number]), detail) for number, detail in wrong.items()]
            table, kept, undecodable = _decode(table, kept)
            yield table, kept, rejects + undecodable

    def _parse(self, lot: list[bytes]) -> tuple[pa.Table, dict[int, str]]:
        """Cells as bytes, and by number the records with too few or too many of them."""
        wrong: dict[int, str] = {}

        def note(row: pyarrow.csv.InvalidRow) -> str:
            wrong[row.number - 1] = f"{row.actual_columns} values where the header names {row.expected_columns}"
            return "skip"

        if not lot:
            return pa.table({name: pa.array([], pa.binary()) for name in self._names}), wrong
        table = pyarrow.csv.read_csv(
            io.BytesIO(b"\n".join(lot) + b"\n"),
            # Without threads the handler is told the number of the row.
            read_options=pyarrow.csv.ReadOptions(column_names=self._names, use_threads=False, block_size=1 << 30),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return table, wrong


def _decode(table: pa.Table, records: list[bytes]) -> tuple[pa.Table, list[bytes], list[Reject]]:
    """Cells of bytes as text; rows that are not UTF-8 apart."""
    try:
        return table.cast(pa.schema([(name, pa.string()) for name in table.column_names])), records, []
    except pa.ArrowInvalid:
        bad = np.array([not _is_text(row) for row in table.to_pylist()])
    rejects = [Reject(show(records[row]), "not UTF-8 text") for row in np.flatnonzero(bad).tolist()]
    table = table.filter(pa.array(~bad))
    kept = [record for record, wrong in zip(records, bad, strict=True) if not wrong]
    return *_decode(table, kept)[:2], rejects


def _is_text(row: Mapping[str, bytes | None]) -> bool:
    try:
        for cell in row.values():
            if cell is not None:
                cell.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
