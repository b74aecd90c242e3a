"""PostgresSink: the tables of :mod:`latecomer.connectors.sinks.tables` in PostgreSQL.

A batch is one transaction: the row ``(job, batch_id)`` first, which makes a second delivery wait for the first and then
skip; a binary COPY of its changes into a temporary table; from there into the log, and as deletions and upserts
(``INSERT … ON CONFLICT (match_id) DO UPDATE``) into the matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.connectors.sinks.rows import values
from latecomer.connectors.sinks.tables import BATCHES, CHANGES, LATE, MATCHES, TableSink, usual_table
from latecomer.errors import ConfigError, MissingDependency, StateError

if TYPE_CHECKING:
    from psycopg import Connection


class PostgresSink(TableSink):
    """Writes into the PostgreSQL database that ``dsn`` names (``postgresql://user@host/database``, or ``host=…
    dbname=…``): tables ``changes``, ``matches``, ``late`` and ``batches`` in ``schema``, with ``prefix`` before their
    names. What does not exist is made.

    ``matches`` has ``match_id`` as primary key, ``changes`` and ``late`` have ``(job, batch_id, seq)``. Times are
    ``timestamp`` or ``timestamptz`` in microseconds, ``events`` is an array, structs are ``jsonb``. More indexes, views
    and grants are yours to add.

    The connection stays open from batch to batch; after an error the next batch makes a new one. Raises ConfigError
    for a dsn that is none, StateError when the server cannot be reached.

    Example::

        sink = PostgresSink("postgresql://alarms@db/plant", schema="alarms")
        runtime = lc.Runtime(stream, [theft])
        sink.open("theft job")
        sink.apply(0, *runtime.process(events))
    """

    batch_columns = """job text, batch_id bigint, changes bigint, late bigint, written_at timestamptz DEFAULT now(),
        PRIMARY KEY (job, batch_id)"""

    def __init__(self, dsn: str, *, schema: str = "latecomer", prefix: str = "") -> None:
        super().__init__(prefix)
        if not isinstance(schema, str) or not schema.isidentifier():
            raise ConfigError(f"schema={schema!r}: the name of a schema must stay plain, use letters, digits and _")
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise MissingDependency("psycopg", "postgres", "PostgresSink") from error
        try:
            facts = conninfo_to_dict(dsn)
        except (ProgrammingError, AttributeError) as error:
            raise ConfigError(
                f"PostgresSink cannot read its dsn ({error}): give 'postgresql://user@host:5432/database' or "
                "'host=… port=… user=… dbname=…'"
            ) from None
        self._dsn, self._schema = dsn, schema
        self._where = ", ".join(f"{k}={facts[k]}" for k in ("host", "port", "dbname") if k in facts)
        self._db: Connection[Any] | None = None
        self._known: dict[str, set[str]] = {}

    def __repr__(self) -> str:
        return f"PostgresSink({self._where})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_db": None, "_known": {}}

    def open(self, job: str) -> None:
        """Connect, make the schema and the table of batches; StateError when the server cannot be reached."""
        with self._transaction() as db:
            # IF NOT EXISTS asks for the right to create even where the schema is there.
            if not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._schema]).fetchall():
                db.execute(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
        super().open(job)

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()
        self._db, self._known = None, {}

    def select(self, sql: Any, given: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query gives, with the sink's schema first in the search path; ``given`` is for its ``%s``."""
        with self._transaction() as db:
            db.execute(f'SET LOCAL search_path TO "{self._schema}", public')
            rows: list[tuple[Any, ...]] = db.execute(sql, given or None).fetchall()
            return rows

    def _name(self, table: str) -> str:
        return f'"{self._schema}"."{self._prefix}{table}"'

    def _note(self, db: Any, job: str, batch_id: int, changes: int, late: int) -> bool:
        insert = f"INSERT INTO {self._name(BATCHES)} (job, batch_id, changes, late) VALUES (%s, %s, %s, %s)"
        return bool(db.execute(f"{insert} ON CONFLICT DO NOTHING", (job, batch_id, changes, late)).rowcount)

    def _append(self, db: Any, table: str, rows: pa.Table) -> None:
        rows = usual_table(rows)
        self._shape(db, table, rows)
        if not rows.num_rows:
            return
        target = self._name(table)
        if table == CHANGES:  # they are needed twice: for the log, and to bring the matches up to date
            target = "pg_temp.incoming"
            db.execute("DROP TABLE IF EXISTS pg_temp.incoming")
            columns = ", ".join(f"{_quoted(f.name)} {_type(f.type)}" for f in rows.schema)
            db.execute(f"CREATE TEMPORARY TABLE incoming ({columns}) ON COMMIT DROP")
        names = ", ".join(map(_quoted, rows.column_names))
        with db.cursor() as cursor, cursor.copy(f"COPY {target} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types([_type(f.type) for f in rows.schema])
            for row in zip(*map(_values, rows.columns), strict=True):
                copy.write_row(row)
        if table == CHANGES:
            db.execute(f"INSERT INTO {self._name(CHANGES)} ({names}) SELECT * FROM incoming")

    def _misfits(self) -> tuple[type[Exception], ...]:
        from psycopg import DataError
        from psycopg.errors import DatatypeMismatch

        return DataError, DatatypeMismatch

    def _replace(self, db: Any, changes: pa.Table) -> None:
        """The last word of the batch about each match: deletions go out, the others come in, whether or not they are
        there."""
        self._shape(db, MATCHES, usual_table(changes.drop_columns(["op"])))
        if not changes.num_rows:
            return
        matches = self._name(MATCHES)
        net = "SELECT DISTINCT ON (match_id) * FROM incoming ORDER BY match_id, seq DESC"
        db.execute(f"DELETE FROM {matches} m USING ({net}) c WHERE c.op = 'delete' AND m.match_id = c.match_id")
        columns = [_quoted(name) for name in changes.column_names if name != "op"]
        names = ", ".join(columns)
        new = ", ".join(f"{name} = excluded.{name}" for name in columns)
        db.execute(
            f"INSERT INTO {matches} ({names}) SELECT {names} FROM ({net}) c WHERE op = 'insert' "
            f"ON CONFLICT (match_id) DO UPDATE SET {new}"
        )

    def _shape(self, db: Any, table: str, rows: pa.Table) -> None:
        """Make the table, or add the columns that it lacks."""
        if set(rows.column_names) <= self._known.get(table, set()):
            return
        key = {CHANGES: "job, batch_id, seq", LATE: "job, batch_id, seq", MATCHES: "match_id"}[table]
        columns = {f.name: f"{_quoted(f.name)} {_type(f.type)}" for f in rows.schema}
        name = self._name(table)
        db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns.values())}, PRIMARY KEY ({key}))")
        known = {row[0] for row in db.execute(_COLUMNS, (self._schema, self._prefix + table)).fetchall()}
        for column, declared in columns.items():
            if column not in known:
                db.execute(f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS {declared}")
        self._known[table] = known | set(columns)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        import psycopg

        if self._db is None or self._db.closed:
            self.close()
            try:
                self._db = psycopg.connect(self._dsn)
            except psycopg.OperationalError as error:
                raise StateError(
                    f"PostgreSQL at {self._where} cannot be reached: check the server, the address and the password "
                    f"({error})"
                ) from error
        try:
            yield self._db
            self._db.commit()
        except BaseException:
            self.close()  # which rolls back; the connection may be the trouble
            raise


_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _type(kind: pa.DataType) -> str:
    """The type in PostgreSQL of a column in its usual type."""
    t = pa.types
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        inner = _type(kind.value_type)
        return "jsonb" if inner == "jsonb" or inner.endswith("[]") else f"{inner}[]"
    if t.is_timestamp(kind):
        return "timestamptz" if kind.tz is not None else "timestamp"
    if t.is_decimal(kind) or t.is_uint64(kind):
        return "numeric"
    for belongs, name in _TYPES:
        if belongs(kind):
            return name
    return "text" if not t.is_nested(kind) else "jsonb"


_TYPES = (
    (pa.types.is_boolean, "bool"),
    (lambda kind: pa.types.is_integer(kind) and kind.bit_width <= 16 and kind != pa.uint16(), "int2"),
    (lambda kind: pa.types.is_integer(kind) and kind.bit_width <= 32 and kind != pa.uint32(), "int4"),
    (pa.types.is_integer, "int8"),
    (pa.types.is_floating, "float8"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_duration, "interval"),
    (lambda k: pa.types.is_binary(k) or pa.types.is_large_binary(k) or pa.types.is_fixed_size_binary(k), "bytea"),
)


def _values(column: pa.ChunkedArray) -> list[Any]:
    found = values(column)
    if _type(column.type) == "jsonb":
        from psycopg.types.json import Jsonb

        return [None if value is None else Jsonb(value) for value in found]
    return found
