"""``PatternSink`` in Spark: against an empty shuffle of the same rows, against what one can write in Spark itself, and
against Flink.

Rule: all roads have the same events, and those that find patterns must find the same ones. Figures are rows per second
of wall time and, as other work on the machine disturbs these least, of processor time of the whole process tree
(driver, JVM, Python workers). Matches are kept as they come, and compared when no clock runs.

* ``large``: micro-batches of a million rows, few matches: the sink beside ``repartition + mapInArrow`` of nothing.
* ``small``: micro-batches of a thousand rows with a million events of state, beside the same two rounds of Python tasks
  and their shuffle with tasks that do nothing: what Spark itself takes.
* ``joins``: ``SEQ(A, B, C)`` as two stream-stream self joins with watermarks, and by hand in
  ``applyInPandasWithState``.
* ``flink``: ``SEQ(A, B, C)`` and ``SEQ(A, !B, C)`` in Flink CEP with two task slots, which has the events in memory.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import latecomer as lc
from benchmarks import jvm
from benchmarks.harness import Disqualified, Report, table
from benchmarks.limit import IntArray
from benchmarks.shapes import W1, W2, Shape
from benchmarks.workloads import STREAM, keyed
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_cells import CELL_SCHEMA, make_cells

WINDOW_S, DELAY_S = 10, 5
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


class Kept:
    """Keeps the matches of a streaming query, ids in rows, and measures from the end of its first micro-batch on, so
    that neither the start of a query nor the compiling of its plan is in the figures."""

    def __init__(self) -> None:
        self._ids: list[IntArray] = []
        self._signs: list[IntArray] = []
        self._watch: Stopwatch | None = None

    def __call__(self, ids: IntArray, signs: IntArray | None = None) -> None:
        """A micro-batch has given these (None), or given (1) and taken back (-1)."""
        self._ids.append(ids)
        self._signs.append(np.ones(len(ids), np.int64) if signs is None else signs)
        if self._watch is None:
            self._watch = Stopwatch().__enter__()

    def stop(self) -> Stopwatch:
        """The query has ended."""
        assert self._watch is not None
        self._watch.__exit__()
        return self._watch

    def matches(self) -> IntArray:
        """Those that hold at the end, sorted."""
        known, of = np.unique(np.concatenate(self._ids), axis=0, return_inverse=True)
        return known[np.bincount(of.ravel(), np.concatenate(self._signs)) > 0]


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


def run(part: str, repeats: int, *, quick: bool = False) -> Report:
    """One of :data:`PARTS`; raises Disqualified where two roads find different matches."""
    report = Report(f"spark-{part}", {"window_s": WINDOW_S, "max_delay_s": DELAY_S, "quick": quick, "repeats": repeats})
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        PARTS[part](spark, Path(folder), report, repeats, quick)
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
    """Micro-batches of 1,000 rows with much state: seconds per batch, of the sink and of Spark itself, in turns."""
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
        roads: dict[str, Callable[[Any, int], None]] = {"sink": sink, "idle": _idle}
        watches: dict[str, list[Stopwatch]] = {name: [] for name in roads}
        for number, rows in enumerate(frames, 1):
            for name, road in roads.items():
                with Stopwatch() as watch:
                    road(rows, number)
                watches[name].append(watch)
        assert sink.progress is not None
        held = sink.progress.state_events
        found = {
            f"{name}_{what}_s": statistics.median(getattr(w, what) for w in watches[name][2:])
            for name in roads
            for what in ("wall", "cpu")
        }
        report.rows.append({"part": "small", "buckets": buckets, "rows": size, "state": held, **found})
        shown.append([str(buckets), f"{held:,}", *(f"{seconds:.2f}" for seconds in found.values())])
    print(f"\nMicro-batches of {size:,} rows: median seconds (wanted: {WANTED_SECONDS})")
    print(table(["buckets", "events of state", "wall", "cpu", "Spark alone, wall", "cpu"], shown), flush=True)


def joins(spark: Any, folder: Path, report: Report, repeats: int, quick: bool) -> None:
    """``SEQ(A, B, C)`` in three ways over streams of files; the matches must be the same. The hand-written road is so
    slow that it gets micro-batches of a tenth of the rows, and fewer of them."""
    size, count, few = (20_000, 3, 2) if quick else (250_000, 9, 5)
    _frames(spark, folder / "all" / "in", keyed(size * count), size)
    _frames(spark, folder / "few" / "in", keyed(size // 10 * few), size // 10)
    found: dict[str, IntArray] = {}
    shown = []
    roads = [
        ("PatternSink", _by_sink, "all"),
        ("stream-stream joins", _by_joins, "all"),
        ("PatternSink, a tenth", _by_sink, "few"),
        ("applyInPandasWithState, a tenth", _by_hand, "few"),
    ]
    for name, road, which in roads:
        kept = Kept()
        road(spark, folder / which, kept)
        watch, found[name] = kept.stop(), kept.matches()
        rows = size * (count - 1) if which == "all" else size // 10 * (few - 1)
        report.rows.append({"part": "joins", "road": name, "wall": rows / watch.wall, "cpu": rows / watch.cpu})
        shown.append([name, f"{rows / watch.wall:,.0f}", f"{rows / watch.cpu:,.0f}", f"{len(found[name]):,}"])
    for (one, _, _), (other, _, _) in zip(roads[::2], roads[1::2], strict=True):
        _same(one, found[one], other, found[other])
    sizes = f"micro-batches of {size:,} rows, or of a tenth of that"
    print(f"\nSEQ(A, B, C) within {WINDOW_S} s, {sizes}: rows/s from the end of the first one to the end of the query")
    print(table(["road", "wall", "cpu", "matches"], shown), flush=True)


def flink(spark: Any, folder: Path, report: Report, repeats: int, quick: bool) -> None:
    """The sink beside Flink CEP with two task slots. Flink has the events as objects in memory and is warm; the sink
    reads them from files, in micro-batches of a million rows."""
    size, count = (50_000, 3) if quick else (1_000_000, 4)
    events = keyed(size * count)
    _frames(spark, folder / "in", events, size)
    shown = []
    for shape in (W1.shapes[0], W2.shapes[0]):
        kept, home = Kept(), folder / shape.name
        home.mkdir()
        (home / "in").symlink_to(folder / "in")
        _by_sink(spark, home, kept, shape)
        watch, rows = kept.stop(), size * (count - 1)
        timing, ids = jvm.flink(shape, events, min(repeats, 2), bound=DELAY_S * 1000, filtered=True, slots=2)
        _same("PatternSink", kept.matches(), "Flink CEP", np.unique(ids, axis=0))
        speeds = {
            "PatternSink": (rows / watch.wall, rows / watch.cpu),
            f"Flink CEP {jvm.FLINK}": (events.num_rows / timing.best, events.num_rows / timing.best_cpu),
        }
        for name, (wall, cpu) in speeds.items():
            report.rows.append({"part": "flink", "query": shape.text, "road": name, "wall": wall, "cpu": cpu})
            shown.append([shape.text, name, f"{wall:,.0f}", f"{cpu:,.0f}", f"{len(ids):,}"])
    print(f"\nMicro-batches of {size:,} rows beside Flink CEP with two slots: rows/s")
    print(table(["query", "road", "wall", "cpu", "matches"], shown), flush=True)


#: The parts by name.
PARTS = {"large": large, "small": small, "joins": joins, "flink": flink}


def _same(one: str, ones: IntArray, other: str, others: IntArray) -> None:
    if not np.array_equal(ones, others):
        raise Disqualified(f"{other}: {len(others)} matches, and {one}: {len(ones)}")


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


def _idle(rows: Any, number: int) -> None:
    """The rounds of a micro-batch of the sink, with tasks that do nothing."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield make_cells(range(8), 0, 0, 0, None)

    def hear(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for bucket in batch["bucket"].to_pylist():
                yield pa.record_batch({"bucket": pa.array([bucket], pa.int32())})

    rows.mapInArrow(tell, CELL_SCHEMA).repartition(2, "bucket").mapInArrow(hear, "bucket int").toArrow()


def _played(spark: Any, folder: Path, start: Callable[[Any], Any]) -> None:
    """Run a streaming query over all files, one per micro-batch."""
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = start(rows)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _by_sink(spark: Any, folder: Path, kept: Kept, shape: Shape = W1.shapes[0]) -> None:
    def keep(batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        ids = np.asarray(changes["events"].combine_chunks().flatten()).reshape(-1, len(shape.positives))
        kept(ids, np.where(pc.equal(changes["op"], "insert").to_numpy(), 1, -1))

    sink = PatternSink(STREAM, [_query(shape.text)], state=folder / "state", sinks=keep)

    def start(rows: Any) -> Any:
        return _started(rows.select(*NEEDED).writeStream.foreachBatch(sink), folder / "sink")

    _played(spark, folder, start)


def _started(writer: Any, checkpoint: Path) -> Any:
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def _keeping(kept: Kept) -> Callable[[Any, int], None]:
    """For ``foreachBatch`` on rows of ids ``a``, ``b``, ``c``."""

    def keep(batch: Any, number: int) -> None:
        rows = batch.toArrow()
        kept(np.column_stack([np.asarray(rows[c]) for c in ("a", "b", "c")]))

    return keep


def _by_joins(spark: Any, folder: Path, kept: Kept) -> None:
    """Two inner joins of the stream with itself, as Spark's own guide has them: key, and a range of event time."""
    from pyspark.sql import functions as F

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
        return _started(three.writeStream.foreachBatch(_keeping(kept)), folder / "joins")

    _played(spark, folder, start)


def _by_hand(spark: Any, folder: Path, kept: Kept) -> None:
    """What one writes for lack of a pattern operator: per key a list of the last events, matched in plain Python."""
    import pickle

    from pyspark.sql import functions as F
    from pyspark.sql.streaming.state import GroupStateTimeout

    stay, window = (WINDOW_S + DELAY_S) * 1000, WINDOW_S * 1000

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
        held = [e for e in held if e[2] >= newest - stay]
        state.update((pickle.dumps(held),))
        yield pd.DataFrame(out, columns=["a", "b", "c"]).astype("int64")

    def start(rows: Any) -> Any:
        wanted = rows.where(F.col("kind").isin("A", "B", "C")).select(*NEEDED)
        matches = wanted.groupBy("key").applyInPandasWithState(
            match, "a long, b long, c long", "held binary", "append", GroupStateTimeout.NoTimeout
        )
        return _started(matches.writeStream.foreachBatch(_keeping(kept)).outputMode("append"), folder / "hand")

    _played(spark, folder, start)
