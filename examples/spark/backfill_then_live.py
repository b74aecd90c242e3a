"""Backfill a year, then go on live: one query, one checkpoint, one state.

A pump that runs dry shows it: pressure drops, no valve was moved, and the motor gets hot. The history lies in one file
per month; the live stream brings a file every hour. The job reads the history first, in micro-batches of a month, and
goes on live where it ends; a match that begins in the one and ends in the other is found like any other.

    python backfill_then_live.py
"""

# %% Events: a year of history in twelve files, and the first hours of the live stream.
from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import latecomer as lc
from latecomer.connectors.sinks import DuckDBSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_progress import LiveLine

HOUR, MONTHS, HOURS = 3600, 12, 5
YEAR = 365 * 24 * HOUR
COLUMNS = "id long, kind string, at long, pump string, arrived long"


def events(n: int = 20_000, seed: int = 1) -> pa.Table:
    """A year and some hours of events, one in five of them late by up to half an hour, in order of arrival."""
    pick = random.Random(seed)
    moments = sorted(pick.randrange(YEAR + HOURS * HOUR) for _ in range(n))
    rows = []
    for number, at in enumerate(moments):
        kind = pick.choice(["PressureDrop", "PressureDrop", "ValveMoved", "MotorHot"])
        late = pick.randrange(1800) if pick.random() < 0.2 else 0
        rows.append({"id": number, "kind": kind, "at": at, "pump": f"pump {pick.randrange(3)}", "arrived": at + late})
    return pa.Table.from_pylist(rows).sort_by("arrived")


def between(table: pa.Table, start: float, end: float) -> pa.Table:
    arrived = table["arrived"].to_numpy()
    return table.filter(pa.array((arrived >= start) & (arrived < end)))


def add(folder: Path, number: int, table: pa.Table) -> None:
    """A new file for Spark, which reads files by age."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:04d}.parquet"
    pq.write_table(table, path)
    os.utime(path, (number, number))


# %% The query, at two levels: one that may correct itself, and one that waits and is final.
STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s")
TEXT = """
    PATTERN SEQ(PressureDrop d, !ValveMoved v, MotorHot m)
    WHERE   [pump]
    WITHIN  2 hours
    RETURN  d.pump AS pump, d.at AS dropped, m.at AS hot
    """
QUERIES = [
    lc.Query(TEXT, name="dry, at once", level=lc.Aggressive(max_delay="30 minutes")),
    lc.Query(TEXT, name="dry, for sure", level=lc.KSlack("30 minutes")),
]


# %% The job. `step` lets the engine take a month's micro-batch hour by hour, so the log of answers and corrections is
# the one that a live job would have written. Backfill and live run are the same call: Spark's checkpoint and the
# state folder know where it stands.
def run(spark, folder: Path, trigger: dict, show=()) -> PatternSink:
    sink = PatternSink(
        STREAM,
        QUERIES,
        state=folder / "state",
        sinks=[DuckDBSink(folder / "pumps.duckdb")],
        buckets=3,
        arrival="arrived",
        step="1 hour",
        progress=show,
    )
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(**trigger).start()
    query.processAllAvailable() if "processingTime" in trigger else query.awaitTermination()
    query.stop()
    return sink


# %% A year at full speed, then hour by hour.
def backfill_then_live(spark, folder: Path, table: pa.Table, show=()) -> None:
    for month in range(MONTHS):
        add(folder / "in", month, between(table, month * YEAR / MONTHS, (month + 1) * YEAR / MONTHS))
    run(spark, folder, {"availableNow": True}, show).close()
    for hour in range(HOURS):  # someone else's work: the live stream goes on
        last = float("inf") if hour == HOURS - 1 else YEAR + (hour + 1) * HOUR
        add(folder / "in", MONTHS + hour, between(table, YEAR + hour * HOUR, last))
    sink = run(spark, folder, {"processingTime": "0 seconds"}, show)  # a real one: "1 minute", and no end
    sink.finish(spark)
    sink.close()


def main() -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    with tempfile.TemporaryDirectory() as work:
        backfill_then_live(spark, Path(work), events(), LiveLine())
        results = DuckDBSink(Path(work) / "pumps.duckdb")
        print()
        print(results.table("SELECT query, op, count(*) AS n FROM changes GROUP BY ALL ORDER BY ALL").to_pandas())
        print(results.table("SELECT query, count(*) AS hold FROM matches GROUP BY ALL ORDER BY ALL").to_pandas())
    spark.stop()


if __name__ == "__main__":
    main()
