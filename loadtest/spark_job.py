"""The same query as a Spark job on Kafka: ``python loadtest/spark_job.py PIPELINE READY CACHE``.

It reads the pipeline's input topic as a stream and writes changes and late events to the pipeline's topics, so the
load test does not know the difference. Spark's connector for Kafka comes from Maven Central into the folder CACHE. The
file READY is made when the stream has started. SIGTERM ends it.

A broken message becomes a late row (``malformed``), not a dead letter: leave ``--poison`` at 0.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from latecomer.connectors.kafka.config import load
from latecomer.connectors.sinks.kafka import KafkaSink
from latecomer.connectors.spark import PatternSink
from latecomer.stream import Stream
from latecomer.testing.jars import fetch

#: What lets Spark read Kafka; of the same release as PySpark.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
#: Buckets of the job, and partitions of its shuffle.
BUCKETS = 2
_SCHEMA = "id string, type string, ts long, key string, source string"


def main(pipeline_file: str, ready: str, cache: str) -> None:
    """Run until SIGTERM, or until the stream fails."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import pyspark
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, from_json

    pipeline = load(pipeline_file)
    state = Path(pipeline.state.uri)
    jars = fetch([f"{CONNECTOR}:{pyspark.__version__}"], cache)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", str(BUCKETS))
        .config("spark.sql.warehouse.dir", str(state / "warehouse"))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -Djava.net.preferIPv4Stack=true")
        .getOrCreate()
    )
    servers = str(pipeline.consumer_config()["bootstrap.servers"])
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", ",".join(pipeline.topics))
        .option("startingOffsets", "latest")
        .load()
    )
    events = messages.select(from_json(col("value").cast("string"), _SCHEMA).alias("e"), "offset", "timestamp")
    stream = Stream(type="type", ts="ts", id="id", source="source", unit="ms")
    output = pipeline.output
    assert output.changes is not None and output.late is not None, "the load test's pipeline has both"
    sink = KafkaSink(servers, changes=output.changes.topic, matches=None, late=output.late.topic)
    detect = PatternSink(
        stream, pipeline.queries, state=state / "spark", sinks=[sink], buckets=BUCKETS, arrival="timestamp"
    )
    query = (
        events.select("e.*", "timestamp")
        .writeStream.foreachBatch(detect)
        .option("checkpointLocation", str(state / "checkpoint"))
        .start()
    )
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    while query.lastProgress is None and query.isActive and not stopped.wait(0.1):
        pass  # the first, empty, micro-batch fixes the offsets from which it reads
    Path(ready).touch()
    while query.isActive and not stopped.wait(0.2):
        pass
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        raise SystemExit(str(failure))


if __name__ == "__main__":
    main(*sys.argv[1:])
