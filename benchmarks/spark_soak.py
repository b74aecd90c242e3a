"""A long run of ``PatternSink``: is the time per micro-batch flat, and memory bounded?

``python -m benchmarks.spark_soak --events 100000000`` generates events inside Spark (``rate-micro-batch``: nothing to
download, nothing on disk), 50,000 per second of event time on 10,000 keys, one in ten late by up to 5 s, and runs
``SEQ(A a, !B b, C c)`` with few matches over them on ``local[2]``. After each micro-batch it prints its seconds, the
events of state, and the memory (RSS) of the driver's Python, of its Java, and of the largest Python worker.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.spark import FEW_MATCHES, STREAM, Stopwatch, _forget, _query, session
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_progress import Progress

#: Events per millisecond of event time.
PER_MS = 50

#: What is made of a running number: all of it by hashes, so that a batch that runs again has the same events.
COLUMNS = {
    "id": "value",
    "kind": "substring('ABCD', cast(pmod(xxhash64(value, 1), 4) + 1 as int), 1)",
    "key": "pmod(xxhash64(value, 2), 10000)",
    "ts": f"value div {PER_MS} - if(pmod(xxhash64(value, 3), 10) = 0, pmod(xxhash64(value, 4), 5000), 0)",
    "place": "concat('place ', pmod(xxhash64(value, 5), 20))",
    "price": "cast(pmod(xxhash64(value, 6), 50000) as double) / 100",
}


def memory() -> tuple[float, float, float]:
    """Megabytes of the driver's Python, of Java, and of the largest Python worker."""
    me = psutil.Process()
    java = workers = 0
    for child in me.children(recursive=True):
        try:
            size, is_java = child.memory_info().rss, "java" in child.name()
        except psutil.NoSuchProcess:
            continue
        java, workers = (java + size, workers) if is_java else (java, max(workers, size))
    return me.memory_info().rss / 1e6, java / 1e6, workers / 1e6


def run(events: int, size: int, seconds: float) -> None:
    """Run until so many events have gone through, or so many seconds have passed."""
    spark = session()
    seen: list[tuple[float, int, float, float, float]] = []

    def show(progress: Progress) -> None:
        seen.append((progress.seconds, progress.state_events, *memory()))
        took, held, *sizes = seen[-1]
        shown = ", ".join(f"{name} {mb:,.0f} MB" for name, mb in zip(("driver", "java", "worker"), sizes, strict=True))
        print(f"batch {progress.batch}: {took:.2f} s, state {held:,} events, {shown}", flush=True)

    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        state = Path(folder) / "state"
        sink = PatternSink(STREAM, _query(FEW_MATCHES), state=state, sinks=_forget, arrival="id", progress=show)
        source: Any = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size)
        rows = source.option("startTimestamp", 0).load().selectExpr(*(f"{sql} as {c}" for c, sql in COLUMNS.items()))
        writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(Path(folder) / "checkpoint"))
        query, end = writer.start(), time.monotonic() + seconds
        try:
            while query.isActive and len(seen) * size < events and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            query.stop()
        if query.exception() is not None:
            raise query.exception()
    spark.stop()
    told = seen[3:]
    tenth = max(len(told) // 10, 1)
    print(f"{len(seen) * size:,} events in {watch.wall:,.0f} s ({watch.cpu:,.0f} s of processor time)")
    for number, name in enumerate(("seconds per batch", "events of state", "driver MB", "java MB", "worker MB")):
        first, last = (statistics.median(s[number] for s in part) for part in (told[:tenth], told[-tenth:]))
        most = max(s[number] for s in told)
        print(f"{name}: {first:,.2f} in the first tenth, {last:,.2f} in the last, {most:,.2f} most")


def main() -> None:
    parser = argparse.ArgumentParser(description="A long run: is the time per micro-batch flat, and memory bounded?")
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--size", type=int, default=2_000_000, help="rows per micro-batch")
    parser.add_argument("--seconds", type=float, default=3600, help="the longest that it may take")
    options = parser.parse_args()
    run(options.events, options.size, options.seconds)


if __name__ == "__main__":
    main()
