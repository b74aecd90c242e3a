"""SQLiteSink: the tables of :mod:`latecomer.connectors.sinks.tables` in a SQLite file; needs nothing but Python."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from latecomer.connectors.sinks.rows import values
from latecomer.connectors.sinks.tables import BATCHES, MATCHES, TableSink, last_changes, unusable, usual_table
from latecomer.errors import ConfigError, StateError


class SQLiteSink(TableSink):
    """Writes into the SQLite file ``path``, which is made when it does not exist: tables ``changes``, ``matches``,
    ``late`` and ``batches``, with ``prefix`` before their names. Other programs may read while a batch is written.

    SQLite has few types: times are text as in ISO 8601 (in UTC, where they have a zone), lists (like ``events``) and
    structs are JSON, truth values are 0 and 1, decimals are text, lengths of time are microseconds.

    >>> import tempfile
    >>> sink = SQLiteSink(tempfile.mkdtemp() + "/results.sqlite")
    >>> changes = pa.table({"op": ["insert"], "query": ["theft"], "match_id": ["00f1"], "tag": ["milk"]})
    >>> sink.open("job")
    >>> for attempt in range(2):
    ...     sink.apply(0, changes, pa.table({"late_id": pa.array([], pa.string())}))
    >>> sink.select("SELECT query, tag FROM matches")
    [('theft', 'milk')]
    >>> sink.close()
    """

    batch_columns = """job TEXT, batch_id INTEGER, changes INTEGER, late INTEGER,
        written_at TEXT DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (job, batch_id)"""

    def __init__(self, path: str | os.PathLike[str], *, prefix: str = "") -> None:
        super().__init__(prefix)
        if os.fspath(path) == ":memory:":
            raise ConfigError("SQLiteSink needs a file: a table in memory would be gone before anyone could read it")
        self.path = os.path.abspath(os.fspath(path))
        self._db: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        return f"SQLiteSink({self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_db": None}

    def open(self, job: str) -> None:
        """Remember the job's name; make the file and the table of batches. StateError if the file cannot be opened."""
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        except OSError as error:
            raise unusable(os.path.dirname(self.path), error) from error
        super().open(job)

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def select(self, sql: str, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query on the file gives; ``given`` stand for the ``?`` in it."""
        with self._transaction() as db:
            return db.execute(sql, given).fetchall()

    def _note(self, db: sqlite3.Connection, job: str, batch_id: int, changes: int, late: int) -> bool:
        insert = f"INSERT OR IGNORE INTO {self._name(BATCHES)} (job, batch_id, changes, late) VALUES (?, ?, ?, ?)"
        return db.execute(insert, (job, batch_id, changes, late)).rowcount == 1

    def _append(self, db: sqlite3.Connection, table: str, rows: pa.Table) -> None:
        self._write(db, "INSERT", table, rows)

    def _replace(self, db: sqlite3.Connection, changes: pa.Table) -> None:
        net = last_changes(changes)
        self._shape(db, MATCHES, changes.drop_columns(["op"]))
        op = net["op"].to_pylist()
        gone = [(match,) for match, o in zip(net["match_id"].to_pylist(), op, strict=True) if o == "delete"]
        db.executemany(f"DELETE FROM {self._name(MATCHES)} WHERE match_id = ?", gone)
        self._write(db, "REPLACE", MATCHES, net.filter(pa.array([o == "insert" for o in op], pa.bool_())))

    def _write(self, db: sqlite3.Connection, verb: str, table: str, rows: pa.Table) -> None:
        if table == MATCHES:
            rows = rows.drop_columns(["op"])
        self._shape(db, table, rows)
        if not rows.num_rows:
            return
        rows = usual_table(rows)
        names = ", ".join(map(_quoted, rows.column_names))
        marks = ", ".join("?" * rows.num_columns)
        lists = [[_stored(v) for v in values(column)] for column in rows.columns]
        db.executemany(f"{verb} INTO {self._name(table)} ({names}) VALUES ({marks})", zip(*lists, strict=True))

    def _shape(self, db: sqlite3.Connection, table: str, rows: pa.Table) -> None:
        """Make the table, or add the columns that it lacks."""
        name = self._name(table)
        columns = {f.name: f"{_quoted(f.name)} {_type(f.type)}" for f in rows.schema}
        unique = ", PRIMARY KEY (match_id)" if table == MATCHES else ""
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns.values())}{unique})")
        known = {row[1].lower() for row in db.execute(f"PRAGMA table_info({name})")}
        for column, declared in columns.items():
            if column.lower() not in known:
                db.execute(f"ALTER TABLE {name} ADD COLUMN {declared}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._db is None:
                # No thread of Spark's calls a sink twice at once, but not always the same one does.
                self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
                self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            self.close()
            raise StateError(
                f"the SQLite file {self.path!r} cannot be opened for writing: another program holds it, or it is no "
                f"SQLite file. Close it there, or give the sink another path ({error})"
            ) from error
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            self.close()  # which rolls back
            raise


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _type(kind: pa.DataType) -> str:
    if pa.types.is_uint64(kind):
        return "TEXT"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_duration(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    return "TEXT"


def _stored(value: Any) -> Any:
    """A value as SQLite keeps it."""
    if isinstance(value, datetime):
        at = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return at.isoformat(" ", "microseconds")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, default=lambda v: v.hex() if isinstance(v, bytes) else _stored(v))
    return value
