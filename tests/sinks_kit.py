"""All sinks behind one face, for tests that hold for each: what the log says, which matches hold, which rows were late.

A case makes sinks onto one and the same place, again and again, as restarts of a job do.
"""

import json
import uuid
from abc import ABC, abstractmethod

import pyarrow as pa

from latecomer.connectors.sinks import DeltaSink, DuckDBSink, KafkaSink, ParquetSink, PostgresSink, SQLiteSink

SCHEMA = pa.schema(
    [
        ("op", pa.string()),
        ("query", pa.string()),
        ("match_id", pa.string()),
        ("events", pa.list_(pa.string())),
        ("first_ts", pa.int64()),
        ("last_ts", pa.int64()),
    ]
)
LATE = pa.schema([("late_id", pa.string()), ("query", pa.string()), ("reason", pa.string())])


def changes(*words):
    """``"+a"`` inserts match a, ``"-a"`` takes it back."""
    rows = [
        {"op": "insert" if w[0] == "+" else "delete", "query": "q", "match_id": w[1:], "events": [w[1:], "x"]}
        | {"first_ts": 1, "last_ts": 2}
        for w in words
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def late(*ids):
    return pa.Table.from_pylist([{"late_id": i, "query": "q", "reason": "after_k"} for i in ids], LATE)


class Case(ABC):
    """Where a sink writes to; ``make`` gives a new sink onto it."""

    @abstractmethod
    def make(self):
        """A new sink."""

    def opened(self, job="job"):
        sink = self.make()
        sink.open(job)
        return sink

    def log(self):
        """(batch, change) in the order of the log, without the job."""
        rows = self.rows("changes")
        return [(r["batch_id"], ("+" if r["op"] == "insert" else "-") + r["match_id"]) for r in rows]

    def current(self):
        return sorted(r["match_id"] for r in self.rows("matches"))

    def late(self):
        return [(r["batch_id"], r["late_id"]) for r in self.rows("late")]

    @abstractmethod
    def rows(self, table):
        """The rows of a table as dicts, logs in order of (batch, place)."""


class DuckDB(Case):
    def __init__(self, folder):
        self.path = folder / "results.duckdb"

    def make(self):
        return DuckDBSink(self.path)

    def rows(self, table):
        sink = self.make()
        if table not in sink.table("SELECT table_name AS t FROM information_schema.tables")["t"].to_pylist():
            return []
        order = "" if table == "matches" else " ORDER BY batch_id, seq"
        return sink.table(f"SELECT * FROM {table}{order}").to_pylist()


class SQLite(Case):
    def __init__(self, folder):
        self.path = folder / "results.sqlite"

    def make(self):
        return SQLiteSink(self.path)

    def rows(self, table):
        sink = self.make()
        sink.open("reader")
        try:
            names = [r[1] for r in sink.select(f"PRAGMA table_info({table})")]
            if not names:
                return []
            order = "" if table == "matches" else " ORDER BY batch_id, seq"
            rows = [dict(zip(names, r, strict=True)) for r in sink.select(f"SELECT * FROM {table}{order}")]
            return [r | {"events": json.loads(r["events"])} if r.get("events") else r for r in rows]
        finally:
            sink.close()


class Postgres(Case):
    def __init__(self, dsn):
        self.dsn = dsn

    def make(self):
        return PostgresSink(self.dsn)

    def rows(self, table):
        sink = self.make()
        try:
            names = [
                r[0]
                for r in sink.select(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = 'latecomer' "
                    "AND table_name = %s ORDER BY ordinal_position",
                    [table],
                )
            ]
            if not names:
                return []
            order = "" if table == "matches" else " ORDER BY batch_id, seq"
            return [dict(zip(names, r, strict=True)) for r in sink.select(f"SELECT * FROM {table}{order}")]
        finally:
            sink.close()


class Parquet(Case):
    def __init__(self, folder, compact=3):
        self.folder = folder / "parquet"
        self.compact = compact

    def make(self):
        return ParquetSink(self.folder, compact=self.compact)

    def rows(self, table):
        return getattr(self.make(), table)().to_pylist()


class Delta(Case):
    def __init__(self, folder):
        self.folder = folder / "delta"

    def make(self):
        return DeltaSink(self.folder)

    def rows(self, table):
        return self.make().table(table).to_pylist()


class Kafka(Case):
    def __init__(self, servers):
        self.servers = servers
        self.topic = uuid.uuid4().hex[:8]

    def make(self):
        topics = {t: f"{self.topic}-{t}" for t in ("changes", "matches", "late")}
        return KafkaSink(self.servers, **topics, partitions=2)

    def messages(self, table):
        """All committed messages of a topic, in order of partition and offset."""
        from tests import topics

        return topics.read(self.servers, f"{self.topic}-{table}")

    def rows(self, table):
        found = {} if table == "matches" else []
        for message in self.messages(table):
            stamp = {name: value.decode() for name, value in message.headers()}
            row = json.loads(message.value()) if message.value() is not None else None
            if table != "matches":
                found.append(row | {"batch_id": int(stamp["batch_id"]), "seq": int(stamp["seq"])})
            elif row is None:
                found.pop(message.key(), None)
            else:
                found[message.key()] = row
        if table == "matches":
            return list(found.values())
        return sorted(found, key=lambda r: (r["batch_id"], r["seq"]))
