"""Kafka in, Delta Lake out.

Parcels are weighed, sorted and loaded; one that is loaded without having been sorted went into the wrong truck. The
scanners' messages reach Kafka out of order. The alarms go into a Delta table that always holds what is true now, with
the log of all changes beside it.

    python kafka_to_delta.py localhost:9092
"""

# %% Messages: what the scanners say, as JSON, keyed by parcel, some of them late.
from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import latecomer as lc
from latecomer.connectors.sinks import DeltaSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_progress import LiveLine

#: Spark's connector to Kafka, of the same release as Spark.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def messages(parcels: int = 300, seed: int = 1) -> list[dict]:
    pick = random.Random(seed)
    found = []
    for parcel in range(parcels):
        at = parcel * 2_000
        for kind in ("Weighed", "Sorted", "Loaded"):
            at += pick.randrange(1_000, 30_000)
            late = pick.randrange(60_000) if pick.random() < 0.2 else 0
            if kind != "Sorted" or pick.random() < 0.9:
                found.append((at + late, {"kind": kind, "at": at, "parcel": f"parcel {parcel}"}))
    return [message for _, message in sorted(found, key=lambda f: f[0])]


def send(servers: str, topic: str, found: list[dict]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for message in found:
        producer.produce(topic, json.dumps(message), message["parcel"])
        producer.poll(0)
    producer.flush(60)


# %% The query. The id of an event is its place in Kafka: the same after every replay.
STREAM = lc.Stream(type="kind", ts="at", id="id", unit="ms")
UNSORTED = lc.Query(
    """
    PATTERN SEQ(Weighed w, !Sorted s, Loaded l)
    WHERE   [parcel]
    WITHIN  2 minutes
    RETURN  w.parcel AS parcel, l.at AS loaded
    CONSISTENCY aggressive(max_delay = 1 minute)
    """,
    name="unsorted",
)


# %% The job. `offset` orders the rows of a micro-batch; with several partitions take an ingest time instead.
def run(spark, servers: str, topic: str, folder: Path, show=()) -> None:
    from pyspark.sql import functions as F

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    rows = source.select(
        F.concat_ws("-", "topic", "partition", "offset").alias("id"),
        "offset",
        F.from_json(F.col("value").cast("string"), "kind string, at long, parcel string").alias("m"),
    ).select("id", "offset", "m.*")
    sink = PatternSink(
        STREAM,
        UNSORTED,
        state=folder / "state",
        sinks=[DeltaSink(folder / "parcels")],
        buckets=4,
        arrival="offset",
        progress=show,
    )
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()  # a live job: trigger(processingTime="10 seconds")
    sink.finish(spark)
    sink.close()


def main(servers: str) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.jars.packages", CONNECTOR).getOrCreate()
    with tempfile.TemporaryDirectory() as work:
        topic = f"scans-{os.getpid()}"
        send(servers, topic, messages())
        run(spark, servers, topic, Path(work), LiveLine())
        parcels = DeltaSink(Path(work) / "parcels")
        print("\nin the wrong truck:", parcels.table("matches").num_rows)
        print("said so, and took back:", parcels.table("changes")["op"].to_pylist().count("delete"))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
