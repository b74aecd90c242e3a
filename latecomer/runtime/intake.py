"""Intake: batches as columns of the stream's schema, with each row's fate so far.

Rule: a *row* that cannot be used (null type, time or id, a value that does not fit) is malformed and goes to the late
output; the others go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.clock import BEGINNING, FAR
from latecomer.errors import SchemaError
from latecomer.runtime.intervals.reading import IntervalReader
from latecomer.runtime.reading import Reading, RowReader
from latecomer.runtime.schema import NUMBER, WEIGHTS_TYPE, called, castable, decoded
from latecomer.storage import kernels
from latecomer.storage.columns import I64, some
from latecomer.storage.hashing import first_words, short_numbers
from latecomer.stream import Stream
from latecomer.units import UNITS

_NO_ROWS = np.zeros(0, np.int64)

#: Row codes besides the numbers of known event types.
OTHER, PUNCTUATION, MALFORMED, AHEAD = -1, -2, -3, -4


class Columns(Mapping[str, pa.Array]):
    """The columns of a record batch by name, each taken out when it is first asked for: that costs more than a row.

    ``numbered``: rows have no ids and get numbers from this one on, in a column more.
    """

    __slots__ = ("_given", "_numbered", "_taken")

    def __init__(self, given: pa.RecordBatch, numbered: int | None) -> None:
        self._given, self._numbered = given, numbered
        self._taken: dict[str, pa.Array] = {}

    def __getitem__(self, name: str) -> pa.Array:
        column = self._taken.get(name)
        if column is None:
            if name == NUMBER and self._numbered is not None:
                column = pa.array(np.arange(self._numbered, self._numbered + len(self._given)))
            else:
                column = self._given.column(name)
            self._taken[name] = column
        return column

    def __iter__(self) -> Iterator[str]:
        yield from self._given.schema.names
        if self._numbered is not None:
            yield NUMBER

    def __len__(self) -> int:
        return len(self._given.schema) + (self._numbered is not None)


@dataclass(slots=True)
class Batch:
    """n rows in order of arrival.

    Attributes:
        columns: Arrow arrays (n,) by column name, in the fixed schema.
        ts: event times in the stream's units (0 where malformed).
        types: number of the event type, or OTHER (no query asks for it), PUNCTUATION, MALFORMED, AHEAD (too far in the
            future).
        details: for malformed rows what is wrong, by row.
        malformed: the rows that are.
        reading: what was found out of the rows in one pass; None: nothing.
    """

    columns: Mapping[str, pa.Array]
    ts: I64
    types: I64
    details: dict[int, str] = field(default_factory=dict)
    malformed: I64 = field(default_factory=lambda: _NO_ROWS)
    reading: Reading | None = None

    def __len__(self) -> int:
        return len(self.ts)


class Intake:
    """Reads batches of one stream under one schema; ``types`` names the event types that queries ask for."""

    def __init__(self, stream: Stream, types: Sequence[str], schema: pa.Schema) -> None:
        self.stream = stream
        self.given = schema
        self._names = schema.names
        self.id_name = stream.id or NUMBER
        self.schema = schema if stream.id is not None else schema.append(pa.field(NUMBER, pa.int64()))
        timed = schema.field(stream.ts).type
        self.unit = "s" if pa.types.is_null(timed) and stream.unit is None else stream.unit_for(timed)
        #: How intervals come about and how they are read; None where times are exact.
        self.intervals = stream.intervals(self.unit)
        self.reader = None if self.intervals is None else IntervalReader(stream, self.intervals, self.unit)
        #: Columns of events that are not the user's.
        self.hidden: dict[str, pa.DataType] = {} if self.reader is None else self.reader.hidden
        self.next_number = 0
        self._known = len(types)
        names = [*types, *([stream.punctuation] if stream.punctuation is not None else [])]
        # A few short names are told apart by their first words, several times faster than by looking up texts.
        short = len(names) <= 8 and all(len(name.encode()) <= 8 for name in names)
        self._short = first_words(pa.array(names, pa.string())) if short else None
        self._type_names = pa.array(names, pa.string())
        self._lookup = pc.SetLookupOptions(value_set=self._type_names)
        #: Reads batches in one pass; None: it cannot be done.
        self.rows: RowReader | None = None

    def prepare(self, keys: Collection[str], kept: Collection[str]) -> None:
        """Hashes of the columns ``keys`` will be wanted, and the values of those that are ``kept``."""
        if kernels.read_rows is not None and self.reader is None:
            names = self._type_names
            self.rows = RowReader(self.stream, self.unit, self.given, names, self._known, keys, kept)

    def promised(self, ts: int, source: Any) -> int:
        """A promise about times of ``source`` (None: of all) as one about the times by which events are ordered."""
        return ts if self.reader is None else self.reader.promised(ts, source)

    @property
    def ts_type(self) -> pa.DataType:
        """The Arrow type of event times in the output."""
        return self.schema.field(self.stream.ts).type

    def read(self, given: pa.RecordBatch, details: dict[int, str]) -> Batch:
        """Bring a batch into the schema and sort out malformed rows."""
        n = given.num_rows
        as_usual = given.schema.equals(self.given)
        if self.rows is not None and as_usual and not details:
            reading = self.rows.read(given, self.next_number)
            if reading is not None:
                return self._batch(given, reading)
        bad = np.zeros(n, bool)
        if details:
            bad[list(details)] = True
        if as_usual:
            columns = dict(zip(self._names, given.columns, strict=True))
        else:
            columns = {column.name: self._read_column(given, column, bad, details) for column in self.given}
        if self.reader is None:
            ts = self._times(self.stream.ts, columns[self.stream.ts], bad, details)
        types = self._type_numbers(columns[self.stream.type], bad, details)
        if self.reader is not None:
            ts = self._intervals(self.reader, columns, types == PUNCTUATION, bad, details)
        if self.stream.id is None:
            columns[NUMBER] = pa.array(np.arange(self.next_number, self.next_number + n))
        self.count(n)
        if columns[self.id_name].null_count:
            _mark(columns[self.id_name], bad, details, f"{self.id_name} is null", types != PUNCTUATION)
        malformed = bad.nonzero()[0]
        types[malformed] = MALFORMED
        return Batch(columns, ts, types, details, malformed)

    def _batch(self, given: pa.RecordBatch, reading: Reading) -> Batch:
        """A batch whose rows were read in one pass."""
        numbered = self.next_number if self.stream.id is None else None
        self.count(given.num_rows)
        types = self._without_punctuation(reading.numbers)
        return Batch(Columns(given, numbered), reading.ts, types, {}, reading=reading)

    def count(self, n: int) -> None:
        """Give numbers to ``n`` more rows, where they have no ids."""
        if self.stream.id is None:
            self.next_number += n

    def _without_punctuation(self, numbers: I64) -> I64:
        """Numbers of types, in which that of punctuation has become PUNCTUATION."""
        if self.stream.punctuation is not None:
            numbers[numbers == self._known] = PUNCTUATION
        return numbers

    def _read_column(self, given: pa.RecordBatch, column: pa.Field, bad: Any, details: dict[int, str]) -> pa.Array:
        position = given.schema.get_field_index(column.name)
        if position < 0:
            return pa.nulls(given.num_rows, column.type)
        values = given.column(position)
        if values.type == column.type:
            return values
        return _cast(column.name, values, column.type, bad, details)

    def _intervals(
        self, reader: IntervalReader, columns: dict[str, pa.Array], promises: Any, bad: Any, details: dict[int, str]
    ) -> I64:
        """The lower ends; all else that is known of the intervals goes into hidden columns."""
        name = self.stream.upper
        if name is None:
            ts = self._times(self.stream.ts, columns[self.stream.ts], bad, details)
            return reader.read(columns, ts, None, promises, bad, details)
        lower = self._times(self.stream.ts, columns[self.stream.ts], bad, details, ~promises)
        upper = self._times(name, columns[name], bad, details, ~promises)
        if some(promises):  # a promise may speak of either end, or of both
            ends = [columns[end].is_valid().to_numpy(zero_copy_only=False) for end in (self.stream.ts, name)]
            of_lower = np.where(ends[0], lower, BEGINNING)
            of_upper = np.where(ends[1], upper - reader.intervals.longest, BEGINNING)
            for row in np.flatnonzero(promises & ~ends[0] & ~ends[1]).tolist():
                bad[row] = True
                details[row] = f"{self.stream.ts} and {name} are null"
            lower = np.where(promises, np.maximum(of_lower, of_upper), lower)
        return reader.read(columns, lower, upper, promises, bad, details)

    def _times(self, name: str, column: pa.Array, bad: Any, details: dict[int, str], among: Any = None) -> I64:
        _mark(column, bad, details, f"{name} is null", among)
        if pa.types.is_null(column.type):
            return np.zeros(len(column), np.int64)
        if pa.types.is_timestamp(column.type):
            per_value, per_unit = UNITS[column.type.unit], UNITS[self.unit]
            values: I64 = _filled(column.view(pa.int64()))
            if per_unit >= per_value:
                ts = values // (per_unit // per_value) if per_unit > per_value else values
            else:
                factor = per_value // per_unit
                most = FAR // factor
                fits = (values <= most) & (values >= -most)
                ts = np.where(fits, values, 0) * factor
                ts[~fits] = FAR + 1
        else:
            values = ts = _filled(column)
        if some(bad) or (len(ts) and (int(np.maximum.reduce(ts)) > FAR or int(np.minimum.reduce(ts)) < -FAR)):
            wrong = (ts > FAR) | (ts < -FAR)
            for row in np.flatnonzero(wrong & ~bad).tolist():
                details[row] = f"{name}={int(values[row])} ({column.type}) is beyond ±{FAR} {self.unit}"
            bad |= wrong
            ts = np.where(bad, 0, ts)
        return ts

    def _type_numbers(self, column: pa.Array, bad: Any, details: dict[int, str]) -> I64:
        _mark(column, bad, details, f"{self.stream.type} is null")
        if self._short is not None:
            numbers = short_numbers(column, self._short, OTHER)
        else:
            found = pc.index_in(column, options=self._lookup)
            numbers = (found.fill_null(OTHER) if found.null_count else found).to_numpy().astype(np.int64)
        return self._without_punctuation(numbers)


def _filled(column: pa.Array) -> I64:
    result: I64 = filled_as_is(column).astype(np.int64, copy=False)
    return result


def filled_as_is(column: pa.Array) -> Any:
    return (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)


def _mark(column: pa.Array, bad: Any, details: dict[int, str], detail: str, among: Any = None) -> None:
    """Mark the rows where ``column`` is null as malformed."""
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        if among is not None:
            missing = missing & among
        for row in np.flatnonzero(missing & ~bad).tolist():
            details[row] = detail
        bad |= missing


def _cast(name: str, values: pa.Array, wanted: pa.DataType, bad: Any, details: dict[int, str]) -> pa.Array:
    """Bring a column into its type; single values that do not fit make their rows malformed."""
    given = values.type
    if not castable(given, wanted):
        raise SchemaError(f"column {name!r} holds {given}, but the stream's schema says {wanted}: convert it before")
    if pa.types.is_run_end_encoded(given):
        values = pc.run_end_decode(values)
        if values.type == wanted:
            return values
    values = decoded(values)
    if wanted == WEIGHTS_TYPE:
        return values.cast(wanted, safe=False)
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        forced = values.cast(wanted, safe=False)
        same = pc.equal(forced.cast(values.type, safe=False), values)
        wrong = pc.invert(same).fill_null(False).to_numpy(zero_copy_only=False)
        if pa.types.is_integer(values.type) and pa.types.is_integer(wanted):  # a wrapped value comes back the same
            wrong = wrong | ((filled_as_is(forced) < 0) != (filled_as_is(values) < 0))
        for row in np.flatnonzero(wrong & ~bad).tolist():
            details[row] = f"{name}={values[row]} is no {called(wanted, values[row].as_py())}"
        bad |= wrong
        return pc.if_else(pa.array(wrong), pa.scalar(None, wanted), forced)
