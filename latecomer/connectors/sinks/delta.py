"""DeltaSink: the log of changes and the matches that hold now as Delta Lake tables.

The rule: every commit carries Delta's own transaction mark, ``(job, batch_id)``, and a table whose last mark of the job
is that batch, or a later one, skips it. The three tables are written one after the other (late rows, log, matches),
each all or nothing; a batch that failed between them comes again and is written where it is not yet.

It writes with delta-rs (package ``deltalake``): the rows are in Arrow on the driver already, so they need no JVM, no
jars that fit the Spark release, and no Spark at all in an embedded runtime. The tables are Delta tables like any
others, for Spark with ``delta-spark``, Trino, DuckDB, and so on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from latecomer.connectors.sinks.tables import (
    CHANGES,
    LATE,
    MATCHES,
    last_changes,
    misfit,
    renamed,
    stamped,
    unusable,
    usual,
)
from latecomer.errors import MissingDependency, StateError


class DeltaSink:
    """Writes Delta tables ``changes``, ``matches`` and ``late`` into ``folder``: a local path, or a URI that delta-rs
    opens (``s3://…``, ``abfss://…``, ``gs://…``), with its ``storage_options``.

    ``matches`` is kept by MERGE on ``match_id``: what a batch takes back is deleted, what it says is inserted or
    updated. The rows of ``changes`` and ``late`` begin with ``job``, ``batch_id`` and ``seq``. A column that a later
    batch brings along is added. Times are in microseconds, lengths of time are whole microseconds.

    Every batch adds files and versions: call :meth:`compact` from time to time.

    >>> import tempfile
    >>> sink = DeltaSink(tempfile.mkdtemp())
    >>> changes = pa.table({"op": ["insert"], "query": ["theft"], "match_id": ["00f1"], "tag": ["milk"]})
    >>> sink.open("job")
    >>> for attempt in range(2):
    ...     sink.apply(0, changes, pa.table({"late_id": pa.array([], pa.string())}))
    >>> sink.table("matches").to_pylist()
    [{'query': 'theft', 'match_id': '00f1', 'tag': 'milk'}]
    """

    def __init__(self, folder: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        _deltalake()
        self.folder = os.fspath(folder)
        if "://" not in self.folder:
            self.folder = str(Path(self.folder).absolute())
        self._options = dict(storage_options) if storage_options else None
        self._job: str | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({self.folder!r})"

    def open(self, job: str) -> None:
        """Remember the job's name. Tables are made with the first batch, which tells their columns. StateError for a
        local folder that cannot be made."""
        if "://" not in self.folder:
            try:
                os.makedirs(self.folder, exist_ok=True)
            except OSError as error:
                raise unusable(self.folder, error) from error
        self._job = job

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Write one batch, into those of the tables that do not have it."""
        if self._job is None:
            raise StateError("DeltaSink.apply was called before open: sink.open('name of the job') first")
        changes, late = renamed(changes), renamed(late)
        self._append(LATE, batch_id, stamped(late, self._job, batch_id))
        self._append(CHANGES, batch_id, stamped(changes, self._job, batch_id))
        self._merge(batch_id, last_changes(changes))

    def close(self) -> None:
        """Nothing to let go of."""

    def table(self, name: str) -> pa.Table:
        """The content of ``changes``, ``matches`` or ``late``; the log in its order."""
        dataset = self._table(name)
        rows: pa.Table = pa.table({}) if dataset is None else pa.table(dataset.to_pyarrow_table())
        keys = ("job", "batch_id", "seq")
        return rows.sort_by([(key, "ascending") for key in keys]) if name != MATCHES and rows.num_columns else rows

    def compact(self, *, vacuum_hours: int | None = None) -> None:
        """Merge small files; with ``vacuum_hours`` also delete files that no version of the last so many hours needs.
        Delta itself refuses less than a week (168)."""
        for name in (LATE, CHANGES, MATCHES):
            table = self._table(name)
            if table is not None:
                table.optimize.compact()
                if vacuum_hours is not None:
                    table.vacuum(vacuum_hours, dry_run=False)

    def _append(self, name: str, batch_id: int, rows: pa.Table) -> None:
        table = self._table(name)
        if not rows.num_rows or self._has(table, batch_id):
            return
        rows = _known_to_delta(rows)
        self._fits(table, rows, batch_id)
        _deltalake().write_deltalake(
            self._uri(name) if table is None else table,
            rows,
            mode="append",
            schema_mode="merge",
            storage_options=self._options,
            commit_properties=self._mark(batch_id),
        )

    def _merge(self, batch_id: int, net: pa.Table) -> None:
        table = self._table(MATCHES)
        if not net.num_rows or self._has(table, batch_id):
            return
        net = _known_to_delta(net)
        self._fits(table, net, batch_id)
        if table is None:
            shape = pa.schema(field for field in net.schema if field.name != "op")
            table = _deltalake().DeltaTable.create(
                self._uri(MATCHES), schema=shape, mode="ignore", storage_options=self._options
            )
        names = [name.replace("`", "``") for name in net.column_names if name != "op"]
        new = {f"`{name}`": f"s.`{name}`" for name in names}
        merge = table.merge(
            net,
            "t.match_id = s.match_id",
            source_alias="s",
            target_alias="t",
            merge_schema=True,
            commit_properties=self._mark(batch_id),
        )
        merge = merge.when_matched_delete("s.op = 'delete'").when_matched_update(new, "s.op = 'insert'")
        merge.when_not_matched_insert(new, "s.op = 'insert'").execute()

    def _fits(self, table: Any, rows: pa.Table, batch_id: int) -> None:
        """StateError where a column of the table was made for another type."""
        for field in () if table is None else pa.schema(table.schema().to_arrow()):
            if field.name in rows.column_names and field.type != rows.schema.field(field.name).type:
                try:
                    rows[field.name].cast(field.type)
                except pa.ArrowNotImplementedError:
                    continue  # delta-rs knows more ways
                except pa.ArrowInvalid as error:
                    raise misfit(self, batch_id, error) from error

    def _has(self, table: Any, batch_id: int) -> bool:
        """Whether the batch is in the table. Batches come in order, so the last mark is enough."""
        last = None if table is None else table.transaction_version(self._job)
        return last is not None and last >= batch_id

    def _mark(self, batch_id: int) -> Any:
        lake = _deltalake()
        return lake.CommitProperties(app_transactions=[lake.Transaction(self._job, batch_id)])

    def _table(self, name: str) -> Any:
        lake, uri = _deltalake(), self._uri(name)
        if not lake.DeltaTable.is_deltatable(uri, self._options):
            return None
        return lake.DeltaTable(uri, storage_options=self._options)

    def _uri(self, name: str) -> str:
        return f"{self.folder.rstrip('/')}/{name}"


def _known_to_delta(rows: pa.Table) -> pa.Table:
    """Columns in types that Delta Lake has."""
    return pa.table({name: _known(usual(rows[name])) for name in rows.column_names})


def _known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    t, kind = pa.types, column.type
    if t.is_duration(kind):
        return column.cast(pa.int64())
    if t.is_unsigned_integer(kind):
        return column.cast(pa.int64())
    if t.is_float16(kind):
        return column.cast(pa.float32())
    if t.is_time(kind):
        return column.cast(pa.string())
    return column


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise MissingDependency("deltalake", "delta", "DeltaSink") from error
    return deltalake
