"""DuckDBSink: changes into an embedded table: the log of all changes, the matches that hold now, and the late rows.

The rule: one transaction per batch writes ``changes``, ``matches``, ``late`` and a row of ``batches``; a batch whose
row is there already is skipped. So after any number of repeated deliveries each change is in the log once, and
``matches`` is the log's net content.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError, MissingDependency, StateError

_BATCHES = """(job VARCHAR, batch_id BIGINT, changes BIGINT, late BIGINT, written_at TIMESTAMPTZ,
    PRIMARY KEY (job, batch_id))"""


class DuckDBSink:
    """Writes into the DuckDB file ``path``, which is made when it does not exist.

    Tables (``prefix`` goes before each name):

    * ``changes``: one row per change, in order of ``(job, batch_id, seq)``: ``op`` (``insert`` or ``delete``),
      ``query``, ``match_id``, ``events``, ``first_ts``, ``last_ts`` and the fields of RETURN;
    * ``matches``: the matches that hold now, with the same columns except ``op``;
    * ``late``: the late rows, with their reasons;
    * ``batches``: the batches that are in.

    A column that a later batch brings along is added; older rows have null there. The file is open only while a batch
    is written, so other programs can read it in between; with ``keep_open`` it stays open until ``close``, which saves
    some tenths of a second per batch.

    >>> import tempfile
    >>> sink = DuckDBSink(tempfile.mkdtemp() + "/results.duckdb")
    >>> changes = pa.table({"op": ["insert"], "query": ["theft"], "match_id": ["00f1"], "tag": ["milk"]})
    >>> sink.open("job")
    >>> for attempt in range(2):
    ...     sink.apply(0, changes, pa.table({"late_id": pa.array([], pa.string())}))
    >>> sink.table("SELECT query, tag FROM matches").to_pylist()
    [{'query': 'theft', 'tag': 'milk'}]
    """

    def __init__(self, path: str | os.PathLike[str], *, prefix: str = "", keep_open: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        if os.fspath(path).startswith(":memory:"):
            raise ConfigError("DuckDBSink needs a file: a table in memory would be gone before anyone could read it")
        if prefix and not prefix.isidentifier():
            raise ConfigError(f"prefix={prefix!r}: table names must stay plain, use letters, digits and _")
        self._prefix = prefix
        self._job: str | None = None
        self._keep_open = keep_open
        self._kept: Any = None
        _duckdb()

    def open(self, job: str) -> None:
        """Remember the job's name; make the file and the table of batches. StateError if the file cannot be opened."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with self._connect() as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._name('batches')} {_BATCHES}")
        self._job = job

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Write one batch in one transaction; a batch that is in already is skipped."""
        if self._job is None:
            raise StateError("DuckDBSink.apply was called before open")
        job, batches = self._job, self._name("batches")
        with self._connect() as db:
            db.begin()
            try:
                seen = f"SELECT 1 FROM {batches} WHERE job = ? AND batch_id = ?"
                if not db.execute(seen, [job, batch_id]).fetchall():
                    self._append(db, "changes", _stamped(changes, job, batch_id))
                    self._replace(db, changes)
                    self._append(db, "late", _stamped(late, job, batch_id))
                    counts = [job, batch_id, changes.num_rows, late.num_rows]
                    db.execute(f"INSERT INTO {batches} VALUES (?, ?, ?, ?, now())", counts)
                db.commit()
            except BaseException:
                with suppress(_duckdb().Error):
                    db.rollback()
                raise

    def close(self) -> None:
        """Close the file, if it is still open."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def table(self, sql: str, values: Sequence[Any] = ()) -> pa.Table:
        """The result of a query on the file as an Arrow table; ``values`` stand for the ``?`` in it."""
        with self._connect() as db:
            return db.sql(sql, params=list(values)).to_arrow_table()

    def _replace(self, db: Any, changes: pa.Table) -> None:
        """Bring ``matches`` up to date: what the batch touched goes out, what it left standing comes in."""
        net = last_changes(changes)
        name = self._name("matches")
        self._table(db, "matches", net.drop_columns(["op"]))
        db.register("net", net)
        db.execute(f"DELETE FROM {name} WHERE match_id IN (SELECT match_id FROM net)")
        db.execute(f"INSERT INTO {name} BY NAME SELECT * EXCLUDE (op) FROM net WHERE op = 'insert'")
        db.unregister("net")

    def _append(self, db: Any, table: str, rows: pa.Table) -> None:
        self._table(db, table, rows)
        db.register("incoming", rows)
        db.execute(f"INSERT INTO {self._name(table)} BY NAME SELECT * FROM incoming")
        db.unregister("incoming")

    def _table(self, db: Any, table: str, rows: pa.Table) -> None:
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

    def _name(self, table: str) -> str:
        return f'"{self._prefix}{table}"'

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


def last_changes(changes: pa.Table) -> pa.Table:
    """The last change of each match in ``changes``, in their order: what the batch as a whole does to each match.

    >>> last_changes(pa.table({"op": ["insert", "insert", "delete"], "match_id": ["a", "b", "a"]})).to_pydict()
    {'op': ['insert', 'delete'], 'match_id': ['b', 'a']}
    """
    numbered = pa.table({"id": changes["match_id"], "row": pa.array(range(changes.num_rows), pa.int64())})
    last = numbered.group_by("id").aggregate([("row", "max")])["row_max"]
    return changes.take(last.take(pc.sort_indices(last)))


def _stamped(rows: pa.Table, job: str, batch_id: int) -> pa.Table:
    """``rows`` with the columns that say where they came from in front."""
    n = rows.num_rows
    front = {
        "job": pa.array([job] * n, pa.string()),
        "batch_id": pa.array([batch_id] * n, pa.int64()),
        "seq": pa.array(range(n), pa.int64()),
    }
    return pa.table({**front, **dict(zip(rows.column_names, rows.columns, strict=True))})


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency("duckdb", "duckdb", "DuckDBSink") from error
    return duckdb
