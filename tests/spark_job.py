"""A driver process with several pattern jobs in it, for tests that kill it.

Each job reads ``FOLDER/<n>/in``, one file per micro-batch, from its own checkpoint and state, into two sinks. It tells
on stdout what it is about to do, so that whoever kills it knows that it is at work, and ``done`` at the end.
"""

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import latecomer as lc
from latecomer.connectors.sinks import DeltaSink, DuckDBSink, ParquetSink, SQLiteSink
from latecomer.connectors.spark import PatternSink
from tests import spark_java

STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s")
TEXT = "PATTERN SEQ(A a, !B b, C c) WHERE [tag] AND c.x > 0.2 WITHIN 20 s RETURN a.x AS x, c.tag AS tag"
LEVELS = [lc.KSlack("40 s"), lc.Aggressive("40 s"), lc.Aggressive("40 s", patience="5 s")]
QUERIES = [lc.Query(TEXT, name=f"gap {n}", level=level) for n, level in enumerate(LEVELS)]
COLUMNS = "id long, kind string, at long, tag string, x double, place long"


def sinks_of(folder, number):
    """Two of the sinks that are files, in turns."""
    kinds = [
        lambda: SQLiteSink(folder / "results.sqlite"),
        lambda: ParquetSink(folder / "parquet", compact=2),
        lambda: DuckDBSink(folder / "results.duckdb"),
        lambda: DeltaSink(folder / "delta"),
    ]
    return [kinds[number % 4](), kinds[(number + 1) % 4]()]


def log_of(sink):
    """The sink's log: (query, match_id, op) in order."""
    order = "SELECT query, match_id, op FROM changes ORDER BY batch_id, seq"
    if isinstance(sink, SQLiteSink):
        sink.open("reader")
        rows = sink.select(order)
        sink.close()
        return rows
    table = sink.table(order) if isinstance(sink, DuckDBSink) else None
    if table is None:
        table = sink.changes() if isinstance(sink, ParquetSink) else sink.table("changes")
    return list(zip(*(table[c].to_pylist() for c in ("query", "match_id", "op")), strict=True))


def matches_of(sink):
    """The matches that hold now, as the sink says: (query, events)."""
    if isinstance(sink, SQLiteSink):
        sink.open("reader")
        rows = [(q, tuple(json.loads(e))) for q, e in sink.select("SELECT query, events FROM matches")]
        sink.close()
        return rows
    if isinstance(sink, DuckDBSink):
        table = sink.table("SELECT query, events FROM matches")
    else:
        table = sink.matches() if isinstance(sink, ParquetSink) else sink.table("matches")
    return [(q, tuple(e)) for q, e in zip(table["query"].to_pylist(), table["events"].to_pylist(), strict=True)]


def late_of(sink):
    """The ids of the events that the sink was told were late."""
    if isinstance(sink, SQLiteSink):
        sink.open("reader")
        rows = sink.select("SELECT id FROM late")
        sink.close()
        return rows
    if isinstance(sink, DuckDBSink):
        return sink.table("SELECT id FROM late")["id"].to_pylist()
    table = sink.late() if isinstance(sink, ParquetSink) else sink.table("late")
    return table["id"].to_pylist() if table.num_columns else []


def write_input(folder, pieces):
    (folder / "in").mkdir(parents=True)
    for number, piece in enumerate(pieces):
        path = folder / "in" / f"{number:04d}.parquet"
        pq.write_table(piece, path)
        os.utime(path, (number, number))


def tell(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(root, master):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    settings = spark_java.SETTINGS | {
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.driver.extraJavaOptions": spark_java.options(),
        "spark.executor.extraJavaOptions": spark_java.options(),
        "spark.executor.memory": "512m",
    }
    builder = SparkSession.builder.master(master).appName("job under test")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    jobs = []
    for folder in sorted(path for path in root.iterdir() if (path / "in").is_dir()):
        number = int(folder.name)
        sinks = [lambda batch, changes, late, n=number: tell("sinks", n, batch), *sinks_of(folder, number)]
        # A driver that dies at the wrong moment makes Spark put two files into the next micro-batch, in any order.
        sink = PatternSink(STREAM, QUERIES, state=folder / "state", sinks=sinks, buckets=2, arrival="place")

        def batch(rows, number, sink=sink, job=number):
            tell("batch", job, number)
            sink(rows, number)

        events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        writer = events.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "checkpoint"))
        jobs.append((sink, writer.trigger(availableNow=True).start()))
    for sink, query in jobs:
        query.awaitTermination()
        sink.finish(spark)
        sink.close()
    tell("done")
    spark.stop()


def events(seed, n=240):
    """Events in order of arrival, some of them late but none beyond what the levels allow."""
    import random

    pick = random.Random(seed)
    at = sorted(pick.randrange(n) for _ in range(n))
    order = sorted((t + (pick.randrange(40) if pick.random() < 0.3 else 0), i, t) for i, t in enumerate(at))
    rows = [
        {"id": i, "kind": pick.choice("AABCCD"), "at": t, "tag": f"tag{pick.randrange(5)}", "x": pick.random()}
        for _, i, t in order
    ]
    kinds = [("id", pa.int64()), ("kind", pa.string()), ("at", pa.int64()), ("tag", pa.string()), ("x", pa.float64())]
    table = pa.Table.from_pylist(rows, pa.schema(kinds))
    return table.append_column("place", pa.array(range(n)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
