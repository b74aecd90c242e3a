"""ParquetSink: the log of changes as Parquet files, in a folder or an object store.

The rule: one file per batch and table, under a name that follows from the batch's number, written aside and then moved
to its place. A batch that comes again replaces its file by the same rows, so there is nothing to keep count of::

    FOLDER/
      job.json                                     whose log this is
      changes/0000000000-0000000099.parquet        batches 0 to 99, compacted
      changes/0000000100-0000000100.parquet        batch 100
      late/…                                       the late rows, in the same way
      matches/0000000099.parquet                   the matches that hold after batch 99

Compaction merges the files of single batches into one and brings ``matches`` up to date. The new file is in its place
before the old ones go, and a file whose batches another one covers does not count: a crash in between does no harm, and
the next compaction removes what was left.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from latecomer.connectors.sinks.tables import (
    CHANGES,
    LATE,
    MATCHES,
    STAMP,
    last_changes,
    misfit,
    renamed,
    stamped,
    unusable,
    usual,
)
from latecomer.errors import ConfigError, StateError

_LOG_FILE = re.compile(r"(\d{10,})-(\d{10,})\.parquet")
_PART = re.compile(r".*\.part")
_MATCH_FILE = re.compile(r"(\d{10,})\.parquet")

#: A span of batches, and the file that holds them.
Span = tuple[int, int, str]


class ParquetSink:
    """Writes Parquet files into ``folder``: a local path, or any URI that ``pyarrow.fs`` opens. One folder holds the
    log of one job.

    Args:
        folder: where; made when it does not exist.
        compact: compact whenever so many batches have files of their own; None: only by :meth:`compact`.
        compression: of the files, as pyarrow names it.

    The rows of ``changes`` and ``late`` begin with ``job``, ``batch_id`` and ``seq``; a batch without rows has no file.
    Whoever reads the folder with another program in the moment of a compaction may see a batch twice, and tells by
    these three columns; :meth:`changes`, :meth:`matches` and :meth:`late` never do.

    >>> import tempfile
    >>> sink = ParquetSink(tempfile.mkdtemp())
    >>> changes = pa.table({"op": ["insert", "insert"], "query": ["theft"] * 2, "match_id": ["00f1", "00f2"]})
    >>> sink.open("job")
    >>> sink.apply(0, changes, pa.table({"late_id": pa.array([], pa.string())}))
    >>> sink.apply(1, pa.table({"op": ["delete"], "query": ["theft"], "match_id": ["00f1"]}), pa.table({}))
    >>> sink.matches()["match_id"].to_pylist(), sink.changes().num_rows
    (['00f2'], 3)
    """

    def __init__(self, folder: str | os.PathLike[str], *, compact: int | None = 100, compression: str = "zstd") -> None:
        if compact is not None and (not isinstance(compact, int) or isinstance(compact, bool) or compact < 2):
            raise ConfigError(f"compact={compact!r}: give a number of batches of at least 2, or None for never")
        self.folder = os.fspath(folder)
        if "://" not in self.folder:
            self.folder = str(Path(self.folder).absolute())
        self._every, self._compression = compact, compression
        self._job: str | None = None
        self._columns: dict[str, pa.Schema] = {}
        self._open()

    def __repr__(self) -> str:
        return f"ParquetSink({self.folder!r})"

    def _open(self) -> None:
        try:
            if "://" in self.folder:
                self._fs, self._root = fs.FileSystem.from_uri(self.folder)
            else:
                self._fs, self._root = fs.LocalFileSystem(), self.folder
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(
                f"the folder {self.folder!r} cannot be opened ({error}): give a local path or a URI like "
                "'s3://bucket/folder'"
            ) from error

    def open(self, job: str) -> None:
        """Take the folder for the job; StateError when it holds the log of another one, or cannot be made."""
        for table in (CHANGES, LATE, MATCHES):
            try:
                self._fs.create_dir(f"{self._root}/{table}", recursive=True)
            except OSError as error:
                raise unusable(self.folder, error) from error
            for left in self._names(table, _PART):
                self._fs.delete_file(f"{self._root}/{table}/{left[0]}")
        note = f"{self._root}/job.json"
        if self._fs.get_file_info(note).type == fs.FileType.NotFound:
            self._place(note, lambda out: out.write(json.dumps({"job": job}).encode()))
        with self._fs.open_input_stream(note) as file:
            owner = json.loads(file.read())["job"]
        if owner != job:
            raise StateError(
                f"the folder {self.folder!r} holds the log of job {owner!r}, and this is job {job!r}, whose batches "
                "have numbers of their own: give the sink another folder"
            )
        self._job = job

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Write one batch; what was written for it before is replaced. Late rows come first, changes last."""
        if self._job is None:
            raise StateError("ParquetSink.apply was called before open: sink.open('name of the job') first")
        for table, rows in ((LATE, late), (CHANGES, changes)):
            if rows.num_rows and not any(first <= batch_id <= last for first, last, _ in self._merged(table)):
                rows = _fit(stamped(renamed(rows), self._job, batch_id))
                self._extend(table, rows.schema, batch_id)
                self._write(f"{table}/{_name(batch_id, batch_id)}", rows)
        single = max(len(self._spans(table)) - len(self._merged(table)) for table in (CHANGES, LATE))
        if self._every is not None and single > self._every:
            self.compact(before=batch_id)

    def close(self) -> None:
        """Nothing to let go of."""

    def changes(self) -> pa.Table:
        """The log of all changes, in their order."""
        return self._read(CHANGES)

    def late(self) -> pa.Table:
        """All late rows, in their order."""
        return self._read(LATE)

    def matches(self) -> pa.Table:
        """The matches that hold now: those of the last compaction, and what the log says since."""
        upto, base = self._snapshot()
        return _after(base, self._read(CHANGES, after=upto))

    def compact(self, *, before: int | None = None) -> None:
        """Merge the files of single batches (those below ``before``; None: all) into one per table, and write the
        matches that hold after them. A batch that has been merged is not written again: call it for batches that the
        job has left behind.
        """
        for table in (LATE, CHANGES):
            spans = self._counting(table)
            single = [s for s in spans if s[0] == s[1] and (before is None or s[1] < before)]
            if len(single) > 1:
                # From the end of the last merged file, so that a batch without rows belongs to one as well.
                first = max((last + 1 for f, last, _ in spans if f != last and last < single[0][0]), default=0)
                self._write(f"{table}/{_name(first, single[-1][1])}", self._rows(table, single))
            counted = {name for _, _, name in self._counting(table)}
            for name in {name for _, _, name in self._spans(table)} - counted:
                self._fs.delete_file(f"{self._root}/{table}/{name}")
        upto, base = self._snapshot()
        fresh = [span for span in self._merged(CHANGES) if span[0] > upto]
        if fresh:
            last = fresh[-1][1]
            self._write(f"{MATCHES}/{last:010d}.parquet", _after(base, self._rows(CHANGES, fresh)))
            for old in self._names(MATCHES, _MATCH_FILE):
                if int(old[1]) < last:
                    self._fs.delete_file(f"{self._root}/{MATCHES}/{old[0]}")

    def _extend(self, table: str, schema: pa.Schema, batch_id: int) -> None:
        """Remember what columns the files have; StateError for one that cannot be read together with those before."""
        if table not in self._columns:
            spans = self._counting(table)
            self._columns[table] = self._content(f"{table}/{spans[-1][2]}").schema if spans else schema
        try:
            self._columns[table] = pa.unify_schemas([self._columns[table], schema], promote_options="permissive")
        except pa.ArrowTypeError as error:
            raise misfit(self, batch_id, error) from error

    def _snapshot(self) -> tuple[int, pa.Table]:
        """The matches after the last compaction, and the last batch in them; -1 and nothing before the first."""
        names = self._names(MATCHES, _MATCH_FILE)
        if not names:
            return -1, pa.table({})
        name = max(names, key=lambda m: int(m[1]))
        return int(name[1]), self._content(f"{MATCHES}/{name[0]}")

    def _read(self, table: str, after: int = -1) -> pa.Table:
        return self._rows(table, [s for s in self._counting(table) if s[1] > after])

    def _rows(self, table: str, spans: Sequence[Span]) -> pa.Table:
        return _joined([self._content(f"{table}/{s[2]}") for s in spans])

    def _content(self, name: str) -> pa.Table:
        with self._fs.open_input_file(f"{self._root}/{name}") as file:
            return pq.read_table(file)

    def _spans(self, table: str) -> list[Span]:
        """All files of the log, in order."""
        return sorted((int(m[1]), int(m[2]), m[0]) for m in self._names(table, _LOG_FILE))

    def _merged(self, table: str) -> list[Span]:
        return [s for s in self._spans(table) if s[0] != s[1]]

    def _counting(self, table: str) -> list[Span]:
        """The files that count: not those that lie within another one."""
        spans = self._spans(table)
        return [s for s in spans if not any(o[0] <= s[0] and s[1] <= o[1] and o != s for o in spans)]

    def _names(self, table: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        entries = self._fs.get_file_info(fs.FileSelector(f"{self._root}/{table}", allow_not_found=True))
        return [m for e in entries if (m := pattern.fullmatch(e.base_name))]

    def _write(self, name: str, rows: pa.Table) -> None:
        self._place(f"{self._root}/{name}", lambda out: pq.write_table(rows, out, compression=self._compression))

    def _place(self, path: str, write: Any) -> None:
        """Write a file in one step: an object store shows it when it is closed, a local folder when it is moved."""
        local = _in_steps(self._fs)
        aside = f"{path}.{uuid.uuid4().hex}.part" if local else path
        try:
            with self._fs.open_output_stream(aside) as out:
                write(out)
            if local:
                self._fs.move(aside, path)
        except BaseException:
            if local and self._fs.get_file_info(aside).type == fs.FileType.File:
                self._fs.delete_file(aside)
            raise


def _in_steps(file_system: fs.FileSystem) -> bool:
    """Whether others see a file before it is whole, so that it is to be written aside."""
    return isinstance(file_system, fs.LocalFileSystem)


def _name(first: int, last: int) -> str:
    return f"{first:010d}-{last:010d}.parquet"


def _fit(rows: pa.Table) -> pa.Table:
    """Seconds as microseconds: Parquet knows no seconds, and its milliseconds do not reach as far."""
    names = [f.name for f in rows.schema if pa.types.is_timestamp(f.type) and f.type.unit == "s"]
    for name in names:
        rows = rows.set_column(rows.column_names.index(name), name, usual(rows[name]))
    return rows


def _after(matches: pa.Table, log: pa.Table) -> pa.Table:
    """The matches that hold after the changes in ``log``, where ``matches`` held before."""
    if not log.num_columns:
        return matches
    net = last_changes(log)
    if matches.num_columns:
        matches = matches.filter(pc.invert(pc.is_in(matches["match_id"], net["match_id"].combine_chunks())))
    return _joined([matches, net.filter(pc.equal(net["op"], "insert")).drop_columns(["op", *STAMP])])


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    found = [t for t in tables if t.num_columns]
    return pa.concat_tables(found, promote_options="permissive") if found else pa.table({})
