"""What one core makes of the steps of a micro-batch, without Spark: ``python -m benchmarks spark-cores``.

Rule: what Spark runs in its tasks is called here, in this process, on the rows of ``SEQ(A a, !B b, C c)`` with few
matches, and only its processor time counts. These are the figures that ``docs/scaling.md`` reckons with.

* ``tag``: rows into cells by bucket, with the clock at each row;
* ``detect``: cells, state in, joins, state out, with so many rows per bucket and micro-batch;
* ``idle``: a bucket without rows in a micro-batch that moves the clock.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Report, table
from benchmarks.spark import FEW_MATCHES, _query
from benchmarks.workloads import STREAM, keyed
from tests.spark_local import Local

#: Buckets that rows are put into, and micro-batches (rows, buckets) that are detected in.
TAGGED = (8, 64, 256)
DETECTED = ((400_000, 8), (128_000, 8), (102_400, 64))


def run(repeats: int, *, quick: bool = False) -> Report:
    """Rows per second of processor time of each step, bytes per row and per event, seconds per idle bucket."""
    report = Report("spark-cores", {"quick": quick, "repeats": repeats})
    shrink = 40 if quick else 1
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (rows, buckets) in enumerate(dict.fromkeys([*DETECTED, *((400_000, n) for n in TAGGED)])):
            found = _steps(Path(folder) / str(number), rows // shrink, buckets, repeats)
            report.rows.append({"rows": rows // shrink, "buckets": buckets, **found})
            figures = [f"{found[step]:,.0f}" for step in ("tag", "detect")]
            sizes = [f"{found[size]:.0f}" for size in ("cell_bytes", "state_bytes")]
            each = f"{rows // shrink // buckets:,}"
            shown.append([f"{buckets}", each, *figures, *sizes, f"{found['idle'] * 1000:.1f}"])
    heads = ["buckets", "rows in each", "tag, rows/s", "detect, rows/s", "B/row, cells", "B/event, state", "idle, ms"]
    print("\nOne core, processor time")
    print(table(heads, shown), flush=True)
    return report


class _Timed(Local):
    """Adds up the processor time of its tasks."""

    def __init__(self, folder: Path, buckets: int) -> None:
        super().__init__(STREAM, _query(FEW_MATCHES), state=folder, buckets=buckets)
        self.seconds: dict[str, float] = {}

    def cells(self, *given: Any, **more: Any) -> pa.Table:
        began = time.process_time()
        found = super().cells(*given, **more)
        self.seconds["tag"] = time.process_time() - began
        return found

    def task(self, *given: Any) -> list[pa.RecordBatch]:
        began = time.process_time()
        said = super().task(*given)
        self.seconds["detect"] = self.seconds.get("detect", 0.0) + time.process_time() - began
        return said


def _steps(folder: Path, rows: int, buckets: int, repeats: int) -> dict[str, float]:
    """The best of so many micro-batches, after one that warms up."""
    events = keyed(rows * (repeats + 1))
    job, best = _Timed(folder, buckets), {"tag": 0.0, "detect": 0.0}
    for number in range(repeats + 1):
        job.seconds = {}
        part = events.slice(number * rows, rows)
        job.take(number, part, tasks=1)
        if number:
            best = {step: max(best[step], rows / job.seconds[step]) for step in best}
    size = job.cells(part, None).nbytes / rows
    loads = [state.load for state in job._store.buckets(repeats).values()]
    stored = sum(load["bytes"] for load in loads) / sum(load["events"] for load in loads)
    # One event moves the clock by a tenth of a second: its bucket has a row, and the others none.
    tick = part.slice(0, 1).set_column(3, "ts", pa.array([pc.max(events["ts"]).as_py() + 100]))
    job.seconds = {}
    job.take(repeats + 1, tick, tasks=1)
    return {**best, "cell_bytes": size, "state_bytes": stored, "idle": job.seconds["detect"] / buckets}
