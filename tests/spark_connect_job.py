"""A PatternSink through Spark Connect, in a process of its own: ``python -m tests.spark_connect_job FOLDER``.

Reads ``FOLDER/in`` twice over with a restart in between, and then with another checkpoint, which is to be refused.
Tells what came of it on stdout.
"""

import collections
import json
import os
import sys
from pathlib import Path

from latecomer.connectors.sinks import SQLiteSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_stream import detect
from tests import spark_java
from tests.spark_job import COLUMNS, QUERIES, STREAM, tell

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def started(writer):
    """Start a query. The server gives its Python worker ten seconds, which on a busy machine may be too few."""
    for _ in range(20):
        try:
            return writer.start()
        except Exception as error:
            if "waiting for the Python worker" not in str(error):
                raise
    return writer.start()


def detected(spark, root):
    """Tell what both roads of ``detect`` find: the stream, batch by batch, and the finished files."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
    changes = detect(rows, STREAM, QUERIES, buckets=2, arrival="place")
    writer = changes.writeStream.format("parquet").option("checkpointLocation", str(root / "detected"))
    query = started(writer.option("path", str(root / "changes")).trigger(availableNow=True))
    query.awaitTermination()
    tell("streaming", json.dumps(net(spark.read.parquet(str(root / "changes")).toArrow())))
    finished = spark.read.schema(COLUMNS).parquet(str(root / "in"))
    tell("static", json.dumps(net(detect(finished, STREAM, QUERIES, buckets=2, arrival="place").toArrow())))


def net(changes):
    """The matches that hold after all changes: (query, events), sorted."""
    held = collections.Counter()
    for row in changes.to_pylist():
        held[row["query"], tuple(row["events"])] += 1 if row["op"] == "insert" else -1
    assert set(held.values()) <= {0, 1}
    return sorted(match for match, times in held.items() if times)


def main(root):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = "120"  # seconds; 15 are few on a busy machine
    from pyspark.sql import SparkSession

    settings = spark_java.SETTINGS | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.driver.extraJavaOptions": spark_java.options(),
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tell("session", type(spark).__module__, spark.version)

    def run(checkpoint):
        sink = PatternSink(STREAM, QUERIES, state=root / "state", sinks=SQLiteSink(root / "results.sqlite"), buckets=2)
        events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
        writer = events.writeStream.foreachBatch(sink).option("checkpointLocation", str(root / checkpoint))
        query = started(writer.trigger(availableNow=True))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sink

    run("checkpoint")
    for path in sorted((root / "later").iterdir()):
        path.rename(root / "in" / path.name)
    sink = run("checkpoint")
    try:
        run("another checkpoint")
        tell("refused", "not")
    except Exception as error:  # noqa: BLE001 - told, and looked at by the test
        tell("refused", str(error).replace("\n", " "))
    sink.finish(spark)
    sink.close()
    detected(spark, root)
    tell("done")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
