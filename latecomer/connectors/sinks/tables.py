"""Table sinks: what DuckDB, SQLite and PostgreSQL have in common.

The rule: one transaction per batch writes ``changes``, ``matches``, ``late`` and a row of ``batches``; a batch whose
row is there already is skipped. So after any number of repeated deliveries each change is in the log once, and
``matches`` is the log's net content.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError, StateError

#: Names of the tables; what a sink calls ``prefix`` goes before each.
CHANGES, MATCHES, LATE, BATCHES = "changes", "matches", "late", "batches"

#: The columns that say where a row came from: the job, its batch, the row's place in that.
STAMP = ("job", "batch_id", "seq")

#: The moments that Python's and SQL's calendars share, in microseconds from 1970.
_FIRST, _LAST = (
    round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000
    for moment in (datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class TableSink(ABC):
    """A sink that is a set of tables in a database with transactions.

    Tables (``prefix`` goes before each name):

    * ``changes``: one row per change, in order of ``(job, batch_id, seq)``: ``op`` (``insert`` or ``delete``),
      ``query``, ``match_id``, ``events``, ``first_ts``, ``last_ts`` and the fields of RETURN;
    * ``matches``: the matches that hold now, with the same columns except ``op``;
    * ``late``: the late rows, with their reasons;
    * ``batches``: the batches that are in.

    A column that a later batch brings along is added; older rows have null there.
    """

    #: The columns of ``batches`` in the database's own types.
    batch_columns: ClassVar[str]

    def __init__(self, prefix: str) -> None:
        if prefix and not prefix.isidentifier():
            raise ConfigError(f"prefix={prefix!r}: table names must stay plain, use letters, digits and _")
        self._prefix = prefix
        self._job: str | None = None

    def open(self, job: str) -> None:
        """Remember the job's name, and make the table of batches. StateError if the database cannot be opened."""
        with self._transaction() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._name(BATCHES)} ({self.batch_columns})")
        self._job = job

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Write one batch in one transaction; a batch that is in already is skipped. StateError where a column was made
        for another type."""
        if self._job is None:
            raise StateError(f"{type(self).__name__}.apply was called before open: sink.open('name of the job') first")
        job, changes, late = self._job, renamed(changes), renamed(late)
        try:
            with self._transaction() as db:
                if self._note(db, job, batch_id, changes.num_rows, late.num_rows):
                    self._append(db, CHANGES, stamped(changes, job, batch_id))
                    self._replace(db, changes)
                    self._append(db, LATE, stamped(late, job, batch_id))
        except self._misfits() as error:
            raise misfit(self, batch_id, error) from error

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """A connection in a transaction, which is committed at the end and rolled back by an exception."""

    @abstractmethod
    def _note(self, db: Any, job: str, batch_id: int, changes: int, late: int) -> bool:
        """Add the row of ``batches``; whether it was not there."""

    @abstractmethod
    def _append(self, db: Any, table: str, rows: pa.Table) -> None:
        """Add rows to a table, which is made, or made wider, where it must be."""

    def _misfits(self) -> tuple[type[Exception], ...]:
        """What the database raises for values that its columns cannot hold."""
        return ()

    @abstractmethod
    def _replace(self, db: Any, changes: pa.Table) -> None:
        """Bring ``matches`` up to date."""

    def _name(self, table: str) -> str:
        return f'"{self._prefix}{table}"'


def misfit(sink: object, batch_id: int, error: Exception) -> StateError:
    """What to raise for a batch with values that the columns, as they were made before, cannot hold."""
    return StateError(
        f"batch {batch_id} does not fit what {sink!r} holds: a column has another type than before ({error}). Give it "
        "another name with AS in RETURN, or give the sink another place"
    )


def unusable(folder: str, error: Exception) -> StateError:
    """What to raise for a folder that cannot be made."""
    return StateError(
        f"the folder {folder!r} cannot be made: give the sink a folder that this process may write to ({error})"
    )


def last_changes(changes: pa.Table) -> pa.Table:
    """The last change of each match in ``changes``, in their order: what the batch as a whole does to each match.

    >>> last_changes(pa.table({"op": ["insert", "insert", "delete"], "match_id": ["a", "b", "a"]})).to_pydict()
    {'op': ['insert', 'delete'], 'match_id': ['b', 'a']}
    """
    numbered = pa.table({"id": changes["match_id"], "row": pa.array(range(changes.num_rows), pa.int64())})
    last = numbered.group_by("id").aggregate([("row", "max")])["row_max"]
    return changes.take(last.take(pc.sort_indices(last)))


def stamped(rows: pa.Table, job: str, batch_id: int) -> pa.Table:
    """``rows`` with the columns that say where they came from in front.

    >>> stamped(pa.table({"op": ["insert"]}), "theft", 7).to_pylist()
    [{'job': 'theft', 'batch_id': 7, 'seq': 0, 'op': 'insert'}]
    """
    n = rows.num_rows
    front = [pa.array([job] * n, pa.string()), pa.array([batch_id] * n, pa.int64()), pa.array(range(n), pa.int64())]
    return pa.table([*front, *rows.columns], names=[*STAMP, *rows.column_names])


def renamed(rows: pa.Table) -> pa.Table:
    """``rows``, where a field of RETURN or an attribute gets ``_attribute`` appended, as in the late output, when its
    name is one of the sinks' own, differs from one before it in capital letters only, or is empty: most databases
    could not tell them apart.

    >>> renamed(pa.table({"id": [1], "ID": [2], "Seq": [3]})).column_names
    ['id', 'ID_attribute', 'Seq_attribute']
    """
    taken, names = {*STAMP, ""}, []
    for name in rows.column_names:
        while name.lower() in taken:
            name += "_attribute"
        taken.add(name.lower())
        names.append(name)
    return rows.rename_columns(names)


def usual_table(rows: pa.Table) -> pa.Table:
    """All columns in the types of :func:`usual`."""
    return pa.table({name: usual(rows[name]) for name in rows.column_names}) if rows.num_columns else rows


def usual(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in a type that any database has: no dictionaries, no views, times in microseconds of the years 1 to
    9999 (what is beyond is drawn in), text without the character 0, which SQL cannot hold.

    >>> usual(pa.chunked_array([pa.array(["a\\x00b"]).dictionary_encode()])).to_pylist()
    ['a\\ufffdb']
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return usual(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind):
        whole = column.cast(pa.int64())
        if kind.unit != "ns":  # nanoseconds do not reach that far
            first, last = (pa.scalar(moment // _MICROSECONDS[kind.unit]) for moment in (_FIRST, _LAST))
            whole = pc.min_element_wise(pc.max_element_wise(whole, first, skip_nulls=False), last, skip_nulls=False)
        zone = None if kind.tz is None else "UTC"  # the same moment, whatever the zone that it is shown in
        return whole.cast(pa.timestamp(kind.unit, zone)).cast(pa.timestamp("us", zone), safe=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pc.replace_substring(column.cast(pa.string()), "\x00", "\ufffd")
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_uint64(kind):
        return column.cast(pa.decimal128(20))
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("us"), safe=False)
    if pa.types.is_date64(kind):
        return column.cast(pa.date32())
    return column
