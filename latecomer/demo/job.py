"""The demo's Spark job: files in order of arrival, ``foreachBatch(PatternSink(…))``, changes into DuckDB.

Each file holds one week of arrivals and is one micro-batch, so a year takes 53 of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latecomer.connectors.duckdb import DuckDBSink
from latecomer.connectors.spark import PatternSink
from latecomer.demo.flights import STREAM
from latecomer.demo.queries import queries
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Minutes of arrival time in one file.
WEEK = 7 * 24 * 60

#: Buckets of the stream: one for each of the two cores, since in steps so short the calls cost more than the rows.
BUCKETS = 2

#: A week comes at once here, so it is taken in steps of the length that a live job's micro-batches would have.
#: Without, most answers would be corrected before anybody saw them.
STEP = "15 minutes"


def write_weeks(stream: pa.Table, folder: Path) -> int:
    """Write the stream as one Parquet file per week of arrivals; returns how many."""
    folder.mkdir(parents=True)
    arrived = np.asarray(stream["arrived"].to_numpy())
    ends = np.searchsorted(arrived, np.arange(arrived[0], arrived[-1] + WEEK, WEEK)[1:])
    starts = [0, *ends.tolist()]
    for number, start in enumerate(starts[:-1]):
        path = folder / f"week-{number:02d}.parquet"
        pq.write_table(stream.slice(start, starts[number + 1] - start), path)
        os.utime(path, (number, number))  # Spark's file source takes files in order of their modification times
    return len(starts) - 1


def detect(spark: SparkSession, folder: Path, results: DuckDBSink, progress: Callable[[int, int], None]) -> None:
    """Run all queries over the files in ``folder / "stream"`` until none is left, then finish the stream.

    ``progress`` is told the batch and the number of its changes.
    """
    source = folder / "stream"
    schema = spark.read.parquet(str(source)).schema
    sink = PatternSink(
        STREAM,
        queries(),
        state=folder / "state",
        sinks=[results, lambda batch_id, changes, late: progress(batch_id, changes.num_rows)],
        buckets=BUCKETS,
        arrival="arrived",
        step=STEP,
    )
    events = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = events.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    sink.finish(spark)
    sink.close()


@contextmanager
def session(log: Path) -> Iterator[SparkSession]:
    """A local Spark session on two cores that keeps the terminal quiet: what it says goes to the file ``log``.

    An active session is used, and left running. Raises ConfigError when there is no Java 17 or newer.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    _check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers take the first python3 that they find
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("latecomer demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _check_java() -> None:
    """Spark's own words about a missing or an old Java are no help."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    try:
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        told = ""
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < 17:
        what = f"{command!r} is older" if found else "there is none"
        raise ConfigError(
            f"Spark needs Java 17 or newer, and {what}: install it (Debian: openjdk-17-jre-headless) or point "
            "JAVA_HOME at one"
        )


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true",
}


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send file descriptor 2 to ``log``, for child processes that inherit it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
