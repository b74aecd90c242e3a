"""Alarms into PostgreSQL, with corrections applied.

A cold store must be closed within five minutes after it was opened. An alarm that waits until every door has reported
comes too late; so it leaves at once, and is taken back when the report that the door was closed arrives late.

    python alarms_into_postgres.py postgresql://me@localhost/plant
"""

# %% Events: what the doors report, in order of arrival. Radio holes delay one report in ten by up to twenty minutes.
from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import latecomer as lc
from latecomer.connectors.sinks import PostgresSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_progress import LiveLine

FILES = 6


def reports(openings: int = 400, seed: int = 1) -> pa.Table:
    pick = random.Random(seed)
    rows = []
    for opening in range(openings):
        door, opened = f"door {pick.randrange(20)}", opening * 60 + pick.randrange(60)
        closed = opened + pick.choice([60, 120, 240, 290, 900])
        for kind, at in (("Opened", opened), ("Closed", closed)):
            late = pick.randrange(1200) if pick.random() < 0.1 else 0
            rows.append({"id": f"{opening} {kind}", "kind": kind, "at": at, "door": door, "arrived": at + late})
    return pa.Table.from_pylist(rows).sort_by("arrived")


def write(folder: Path, table: pa.Table, files: int = FILES) -> None:
    folder.mkdir(parents=True)
    size = -(-table.num_rows // files)
    for number in range(files):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table.slice(number * size, size), path)
        os.utime(path, (number, number))  # Spark reads files by age


# %% The query: opened, and not closed within five minutes. `aggressive` speaks as soon as the clock has passed the
# five minutes, and takes back what a late report proves wrong for half an hour.
STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s")
LEFT_OPEN = lc.Query(
    """
    PATTERN SEQ(Opened o, !Closed c)
    WHERE   [door]
    WITHIN  5 minutes
    RETURN  o.door AS door, o.at AS opened
    CONSISTENCY aggressive(max_delay = 30 minutes)
    """,
    name="left open",
)


# %% The job. `matches` in PostgreSQL always holds what is true now; `changes` holds the whole story.
def run(spark, folder: Path, dsn: str, show=()):
    sink = PatternSink(
        STREAM,
        LEFT_OPEN,
        state=folder / "state",
        sinks=[PostgresSink(dsn, schema="cold_store")],
        buckets=4,
        arrival="arrived",
        step="5 minutes",  # this replay is to tell the story that the live job would have told
        progress=show,
    )
    columns = "id string, kind string, at long, door string, arrived long"
    events = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    writer = events.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()  # a live job: trigger(processingTime="10 seconds")
    sink.finish(spark)
    sink.close()


# %% What a dashboard asks.
ALARMS = "SELECT door, opened FROM cold_store.matches ORDER BY opened DESC LIMIT 5"
STORY = "SELECT op, count(*) FROM cold_store.changes GROUP BY op ORDER BY op"


def main(dsn: str) -> None:
    import psycopg
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as work:
        write(Path(work) / "in", reports())
        run(spark, Path(work), dsn, LiveLine())
    with psycopg.connect(dsn) as db:
        print("\nalarms that hold:", *db.execute(ALARMS).fetchall(), sep="\n  ")
        print("the story:", dict(db.execute(STORY).fetchall()))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
