"""``PatternSink`` in Spark: against an empty shuffle of the same rows, and against what one can write in Spark itself.

Rule: all roads read the same Parquet files in one session, in turns, and those that find patterns must find the same
ones. Figures are rows per second of wall time and, as other work on the machine disturbs these least, of processor time
of the whole process tree (driver, JVM, Python workers).

* ``large``: micro-batches of a million rows, few matches: the sink beside ``repartition + mapInArrow`` of nothing.
* ``small``: micro-batches of a thousand rows with a million events of state.
* ``joins``: ``SEQ(A, B, C)`` as two stream-stream self joins with watermarks, and by hand in
  ``applyInPandasWithState``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import latecomer as lc
from benchmarks.harness import Disqualified, Report, table
from benchmarks.workloads import STREAM, keyed
from latecomer.connectors.spark import PatternSink

WINDOW_S, DELAY_S = 10, 5
THREE = f"PATTERN SEQ(A a, B b, C c) WHERE [key] WITHIN {WINDOW_S} s"
FEW_MATCHES = f"PATTERN SEQ(A a, !B b, C c) WHERE [key] AND c.price > a.price + 480 WITHIN {WINDOW_S} s"
COLUMNS = "id long, kind string, key long, ts long, place string, price double"

#: The columns that the joins, and so all roads beside them, read of each file.
NEEDED = ("id", "kind", "key", "ts")

#: Numbers of buckets that may be in use.
BUCKETS = (256,)

#: Least share of the empty shuffle's speed, and most seconds for a small batch, that are wanted.
WANTED_SHARE, WANTED_SECONDS = 0.5, 1.0


class Stopwatch:
    """Wall time, and processor time of this process and all its children, of what runs inside."""

    def __enter__(self) -> Stopwatch:
        self._cpu, self._wall = _tree_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = _tree_seconds() - self._cpu


class Warm:
    """Measures from the end of the first micro-batch on, so that neither the start of a query nor the compiling of its
    plan is in the figures; to be called after each micro-batch."""

    def __init__(self) -> None:
        self.watch: Stopwatch | None = None

    def __call__(self) -> None:
        if self.watch is None:
            self.watch = Stopwatch().__enter__()


def _tree_seconds() -> float:
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def session() -> Any:
    """A session as ``docs/spark.md`` recommends it for one machine."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run(repeats: int, *, quick: bool = False) -> Report:
    """All three parts, as tables."""
    report = Report("spark", {"window_s": WINDOW_S, "max_delay_s": DELAY_S, "quick": quick, "repeats": repeats})
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        for part in (large, small, joins):
            part(spark, Path(folder) / part.__name__, report, repeats, quick)
    spark.stop()
    return report


def large(spark: Any, folder: Path, report: Report, repeats: int, quick: bool) -> None:
    """Micro-batches of 1 M rows: sink and empty shuffle take turns on each of them."""
    size, count = (100_000, 2) if quick else (1_000_000, repeats + 1)
    frames = _frames(spark, folder, keyed(size * count), size)
    shown = []
    for buckets in BUCKETS:
        sink = PatternSink(
            STREAM, [_query(FEW_MATCHES)], state=folder / f"state {buckets}", sinks=_forget, buckets=buckets
        )
        times: dict[str, list[Stopwatch]] = {"sink": [], "empty": []}
        for number, rows in enumerate(frames):
            for name in ("empty", "sink"):
                with Stopwatch() as watch:
                    if name == "empty":
                        _empty(rows)
                    else:
                        sink(rows, number)
                if number:  # the first one warms up
                    times[name].append(watch)
        best = {name: (size / min(w.wall for w in ws), size / min(w.cpu for w in ws)) for name, ws in times.items()}
        wall, cpu = (best["sink"][i] / best["empty"][i] for i in (0, 1))
        report.rows.append(
            {"part": "large", "buckets": buckets, "rows": size, "share_wall": wall, "share_cpu": cpu, **best}
        )
        speeds = [f"{best[name][i]:,.0f}" for name in ("empty", "sink") for i in (0, 1)]
        shown.append([str(buckets), *speeds, f"{wall:.2f}", f"{cpu:.2f}"])
    heads = ["buckets", "empty, wall", "empty, cpu", "sink, wall", "sink, cpu", "share, wall", "share, cpu"]
    print(f"\nMicro-batches of {size:,} rows, few matches: rows/s (wanted: a share of {WANTED_SHARE})")
    print(table(heads, shown), flush=True)


def small(spark: Any, folder: Path, report: Report, repeats: int, quick: bool) -> None:
    """Micro-batches of 1,000 rows with much state: seconds per batch."""
    # A quarter of the events are of a type that nobody asks for, so 10^6 of them are stored.
    state, size, count = (50_000 if quick else 1_320_000), 1_000, 4 * max(repeats, 2)
    events = keyed(state + size * count)
    [first] = _frames(spark, folder / "first", events.slice(0, state), state)
    frames = _frames(spark, folder / "then", events.slice(state), size)
    shown = []
    for buckets in BUCKETS:
        query = lc.Query(FEW_MATCHES, name="gap", level=lc.Aggressive(max_delay="1 d"))  # nothing is forgotten
        sink = PatternSink(STREAM, [query], state=folder / f"state {buckets}", sinks=_forget, buckets=buckets)
        sink(first, 0)
        watches = []
        for number, rows in enumerate(frames, 1):
            with Stopwatch() as watch:
                sink(rows, number)
            watches.append(watch)
        assert sink.progress is not None
        held = sink.progress.state_events
        wall, cpu = (statistics.median(getattr(w, what) for w in watches[2:]) for what in ("wall", "cpu"))
        report.rows.append(
            {"part": "small", "buckets": buckets, "rows": size, "state": held, "wall_s": wall, "cpu_s": cpu}
        )
        shown.append([str(buckets), f"{held:,}", f"{wall:.2f}", f"{cpu:.2f}"])
    print(f"\nMicro-batches of {size:,} rows: median seconds (wanted: {WANTED_SECONDS})")
    print(table(["buckets", "events of state", "wall", "cpu"], shown), flush=True)


def joins(spark: Any, folder: Path, report: Report, repeats: int, quick: bool) -> None:
    """``SEQ(A, B, C)`` in three ways over streams of files; the matches must be the same. The hand-written road is so
    slow that it gets micro-batches of a tenth of the rows, and fewer of them."""
    size, count, few = (20_000, 3, 2) if quick else (250_000, 9, 5)
    _frames(spark, folder / "all" / "in", keyed(size * count), size)
    _frames(spark, folder / "few" / "in", keyed(size // 10 * few), size // 10)
    found: dict[str, set[Any]] = {}
    shown = []
    roads = [
        ("PatternSink", _by_sink, "all"),
        ("stream-stream joins", _by_joins, "all"),
        ("PatternSink, a tenth", _by_sink, "few"),
        ("applyInPandasWithState, a tenth", _by_hand, "few"),
    ]
    for name, road, which in roads:
        warm = Warm()
        found[name] = road(spark, folder / which, warm)
        assert warm.watch is not None
        watch = warm.watch
        watch.__exit__()
        rows = size * (count - 1) if which == "all" else size // 10 * (few - 1)
        report.rows.append({"part": "joins", "road": name, "wall": rows / watch.wall, "cpu": rows / watch.cpu})
        shown.append([name, f"{rows / watch.wall:,.0f}", f"{rows / watch.cpu:,.0f}", f"{len(found[name]):,}"])
    for (one, _, _), (other, _, _) in zip(roads[::2], roads[1::2], strict=True):
        if found[one] != found[other]:
            raise Disqualified(f"{other}: {len(found[other])} matches, and {one}: {len(found[one])}")
    sizes = f"micro-batches of {size:,} rows, or of a tenth of that"
    print(f"\nSEQ(A, B, C) within {WINDOW_S} s, {sizes}: rows/s from the end of the first one to the end of the query")
    print(table(["road", "wall", "cpu", "matches"], shown), flush=True)


def _query(text: str) -> lc.Query:
    return lc.Query(text, name="pattern", level=lc.Aggressive(max_delay=f"{DELAY_S} s"))


def _forget(batch_id: int, changes: pa.Table, late: pa.Table) -> None:
    """A sink that keeps nothing."""


def _frames(spark: Any, folder: Path, events: pa.Table, size: int) -> list[Any]:
    """The events as files of ``size`` rows, one static DataFrame for each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, start in enumerate(range(0, events.num_rows, size)):
        paths.append(folder / f"{number:04d}.parquet")
        pq.write_table(events.slice(start, size), paths[-1])
        os.utime(paths[-1], (number, number))
    return [spark.read.parquet(str(path)) for path in paths]


def _empty(rows: Any) -> None:
    """All rows through the shuffle and into Python, and nothing done there."""

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 0)

    rows.repartition(2).mapInArrow(nothing, rows.schema).toArrow()


def _played(spark: Any, folder: Path, start: Callable[[Any], Any]) -> None:
    """Run a streaming query over all files, one per micro-batch."""
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = start(rows)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _by_sink(spark: Any, folder: Path, warm: Warm) -> set[Any]:
    found: set[Any] = set()

    def keep(batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        ids = changes["events"].combine_chunks().flatten().to_pylist()
        found.update(zip(ids[::3], ids[1::3], ids[2::3], strict=True))
        warm()

    sink = PatternSink(STREAM, [_query(THREE)], state=folder / "state", sinks=keep)
    writer = lambda rows: rows.writeStream.foreachBatch(sink)  # noqa: E731
    _played(spark, folder, lambda rows: _started(writer(rows.select(*NEEDED)), folder / "sink"))
    return found


def _started(writer: Any, checkpoint: Path) -> Any:
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def _by_joins(spark: Any, folder: Path, warm: Warm) -> set[Any]:
    """Two inner joins of the stream with itself, as Spark's own guide has them: key, and a range of event time."""
    from pyspark.sql import functions as F

    found: set[Any] = set()

    def keep(batch: Any, number: int) -> None:
        rows = batch.toArrow()
        found.update(zip(*(rows[c].to_pylist() for c in ("a", "b", "c")), strict=True))
        warm()

    def start(rows: Any) -> Any:
        def of(kind: str, name: str) -> Any:
            columns = {"key": F.col("key"), "at": F.timestamp_millis("ts"), "ts": F.col("ts"), "": F.col("id")}
            chosen = [column.alias(f"{name}_{what}".rstrip("_")) for what, column in columns.items()]
            return rows.where(F.col("kind") == kind).select(*chosen).withWatermark(f"{name}_at", f"{DELAY_S} seconds")

        window = F.expr(f"INTERVAL {WINDOW_S} SECONDS")
        a, b, c = of("A", "a"), of("B", "b"), of("C", "c")
        after_a = (F.col("b_at") > F.col("a_at")) & (F.col("b_at") <= F.col("a_at") + window)
        # A stream may have one column of event time: that of b goes on.
        two = a.join(b, (F.col("a_key") == F.col("b_key")) & after_a).drop("a_at")
        after_b = (F.col("c_at") > F.col("b_at")) & (F.col("c_at") <= F.col("b_at") + window)
        within = F.col("c_ts") <= F.col("a_ts") + WINDOW_S * 1000
        three = two.join(c, (F.col("b_key") == F.col("c_key")) & after_b & within)
        return _started(three.writeStream.foreachBatch(keep), folder / "joins")

    _played(spark, folder, start)
    return found


def _by_hand(spark: Any, folder: Path, warm: Warm) -> set[Any]:
    """What one writes for lack of a pattern operator: per key a list of the last events, matched in plain Python."""
    import pickle

    from pyspark.sql import functions as F
    from pyspark.sql.streaming.state import GroupStateTimeout

    kept, window = (WINDOW_S + DELAY_S) * 1000, WINDOW_S * 1000

    def match(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd

        held = pickle.loads(state.get[0]) if state.exists else []
        out = []
        for frame in frames:
            for fresh in zip(frame["id"], frame["kind"], frame["ts"], strict=True):
                held.append(fresh)
                of = {kind: [e for e in held if e[1] == kind] for kind in "ABC"}
                of[fresh[1]] = [fresh]
                for a in of["A"]:
                    for b in of["B"]:
                        if a[2] < b[2] <= a[2] + window:
                            out += [(a[0], b[0], c[0]) for c in of["C"] if b[2] < c[2] <= a[2] + window]
        newest = max((e[2] for e in held), default=0)
        held = [e for e in held if e[2] >= newest - kept]
        state.update((pickle.dumps(held),))
        yield pd.DataFrame(out, columns=["a", "b", "c"]).astype("int64")

    found: set[Any] = set()

    def keep(batch: Any, number: int) -> None:
        rows = batch.toArrow()
        found.update(zip(*(rows[c].to_pylist() for c in ("a", "b", "c")), strict=True))
        warm()

    def start(rows: Any) -> Any:
        wanted = rows.where(F.col("kind").isin("A", "B", "C")).select(*NEEDED)
        matches = wanted.groupBy("key").applyInPandasWithState(
            match, "a long, b long, c long", "held binary", "append", GroupStateTimeout.NoTimeout
        )
        return _started(matches.writeStream.foreachBatch(keep).outputMode("append"), folder / "hand")

    _played(spark, folder, start)
    return found
