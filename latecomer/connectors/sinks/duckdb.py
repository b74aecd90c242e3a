"""DuckDBSink: the tables of :mod:`latecomer.connectors.sinks.tables` in an embedded, columnar database file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from latecomer.connectors.sinks.tables import BATCHES, MATCHES, TableSink, last_changes, unusable, usual
from latecomer.errors import ConfigError, MissingDependency, StateError


class DuckDBSink(TableSink):
    """Writes into the DuckDB file ``path``, which is made when it does not exist: tables ``changes``, ``matches``,
    ``late`` and ``batches``, with ``prefix`` before their names.

    The file is open only while a batch is written, so other programs can read it in between; with ``keep_open`` it
    stays open until ``close``, which saves some tenths of a second per batch.

    >>> import tempfile
    >>> sink = DuckDBSink(tempfile.mkdtemp() + "/results.duckdb")
    >>> changes = pa.table({"op": ["insert"], "query": ["theft"], "match_id": ["00f1"], "tag": ["milk"]})
    >>> sink.open("job")
    >>> for attempt in range(2):
    ...     sink.apply(0, changes, pa.table({"late_id": pa.array([], pa.string())}))
    >>> sink.table("SELECT query, tag FROM matches").to_pylist()
    [{'query': 'theft', 'tag': 'milk'}]
    """

    batch_columns = """job VARCHAR, batch_id BIGINT, changes BIGINT, late BIGINT, written_at TIMESTAMPTZ DEFAULT now(),
        PRIMARY KEY (job, batch_id)"""

    def __init__(self, path: str | os.PathLike[str], *, prefix: str = "", keep_open: bool = False) -> None:
        super().__init__(prefix)
        self.path = os.path.abspath(os.fspath(path))
        if os.fspath(path).startswith(":memory:"):
            raise ConfigError("DuckDBSink needs a file: a table in memory would be gone before anyone could read it")
        self._keep_open = keep_open
        self._kept: Any = None
        _duckdb()

    def __repr__(self) -> str:
        return f"DuckDBSink({self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    def open(self, job: str) -> None:
        """Remember the job's name; make the file and the table of batches. StateError if the file cannot be opened."""
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        except OSError as error:
            raise unusable(os.path.dirname(self.path), error) from error
        super().open(job)

    def close(self) -> None:
        """Close the file, if it is still open."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def table(self, sql: str, values: Sequence[Any] = ()) -> pa.Table:
        """The result of a query on the file as an Arrow table; ``values`` stand for the ``?`` in it."""
        with self._connect() as db:
            return db.sql(sql, params=list(values)).to_arrow_table()

    def _note(self, db: Any, job: str, batch_id: int, changes: int, late: int) -> bool:
        insert = f"INSERT INTO {self._name(BATCHES)} (job, batch_id, changes, late) VALUES (?, ?, ?, ?)"
        return bool(
            db.execute(f"{insert} ON CONFLICT DO NOTHING RETURNING 1", [job, batch_id, changes, late]).fetchall()
        )

    def _append(self, db: Any, table: str, rows: pa.Table) -> None:
        rows = _usual(rows)
        self._shape(db, table, rows)
        db.register("incoming", rows)
        db.execute(f"INSERT INTO {self._name(table)} BY NAME SELECT * FROM incoming")
        db.unregister("incoming")

    def _misfits(self) -> tuple[type[Exception], ...]:
        return (_duckdb().ConversionException,)

    def _replace(self, db: Any, changes: pa.Table) -> None:
        """What the batch touched goes out, what it left standing comes in."""
        net = _usual(last_changes(changes))
        name = self._name(MATCHES)
        self._shape(db, MATCHES, net.drop_columns(["op"]))
        db.register("net", net)
        db.execute(f"DELETE FROM {name} WHERE match_id IN (SELECT match_id FROM net)")
        db.execute(f"INSERT INTO {name} BY NAME SELECT * EXCLUDE (op) FROM net WHERE op = 'insert'")
        db.unregister("net")

    def _shape(self, db: Any, table: str, rows: pa.Table) -> None:
        """Make the table, or add the columns that it lacks."""
        name = self._name(table)
        db.register("shape", rows.slice(0, 0))
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} AS SELECT * FROM shape")
        known = {row[0].lower() for row in db.execute(f"DESCRIBE {name}").fetchall()}
        for column, kind, *_ in db.execute("DESCRIBE SELECT * FROM shape").fetchall():
            if column.lower() not in known:
                quoted = column.replace('"', '""')
                db.execute(f'ALTER TABLE {name} ADD COLUMN "{quoted}" {kind}')
        db.unregister("shape")

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._connect() as db:
            db.begin()
            try:
                yield db
                db.commit()
            except BaseException:
                with suppress(_duckdb().Error):
                    db.rollback()
                raise

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        db = self._kept if self._kept is not None else self._opened()
        if self._keep_open and self._job is not None:
            self._kept = db
        try:
            yield db
        finally:
            if db is not self._kept:
                db.close()

    def _opened(self) -> Any:
        try:
            return _duckdb().connect(self.path)
        except _duckdb().IOException as error:
            raise StateError(
                f"the DuckDB file {self.path!r} cannot be opened: another program holds it, or it is no DuckDB file. "
                f"Close it there, or give the sink another path ({error})"
            ) from error


def _usual(rows: pa.Table) -> pa.Table:
    """Columns in types that any database has, but for nanoseconds, which DuckDB has too."""
    fine = {name for name in rows.column_names if rows[name].type == pa.timestamp("ns")}
    return pa.table({name: rows[name] if name in fine else usual(rows[name]) for name in rows.column_names})


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency("duckdb", "duckdb", "DuckDBSink") from error
    return duckdb
