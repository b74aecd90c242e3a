"""``python -m benchmarks [PART …]``: run parts, print their tables, keep their results as JSON, write the pages.

A part is named whole (``speed-W2``) or by the start of its name (``speed``: all six workloads). Without a name all run
but those that fetch other systems: ``peers``, ``kafka`` and ``spark``.

* ``speed-W1`` to ``speed-W6``: our engine against the offline limit, by batch size, lateness and level
* ``speed-numpy``: the same without the compiled kernel, at the settings of the goals
* ``stages``: what a batch spends where on its road
* ``growth``: the cost of an event and its bytes, from 10^4 to 10^7 stored events
* ``latency``: from arrival to change at 50,000 events a second
* ``workers``: two processes against one
* ``adversarial``: streams and queries that break engines
* ``levels``: what each level makes of each kind of disorder
* ``promises``: what punctuation and purging cost
* ``spill``: what a memory budget, versions and restoring cost
* ``intervals``: matching over uncertain times, against points
* ``peers-W1-10`` and others: beside Flink CEP, Esper, DuckDB, Polars and plain Python (needs a JDK)
* ``kafka-speed``: pipelines from topic to topic, against programs that only read (needs Java)
* ``kafka-latency``: from a message to the change that it causes, at 50,000 messages a second (needs Java)
* ``spark-large``, ``spark-small``, ``spark-joins``: the sink against an empty job, in small micro-batches, and against
  stream-stream joins (needs Java)
* ``spark-flink``: the sink beside Flink CEP with two slots (needs a JDK)
* ``spark-cores``: what one core makes of the steps of a micro-batch, without Spark
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks import (
    adversarial,
    figures,
    growth,
    harness,
    intervals,
    kafka,
    kafka_latency,
    latency,
    levels,
    pages,
    peers,
    promises,
    spark,
    spark_cores,
    speed,
    spill,
    stages,
    workers,
)
from benchmarks.profiling import profile
from benchmarks.shapes import WORKLOADS
from latecomer.errors import LatecomerError

#: Workloads that are run beside the peers, with the share of late events in per cent.
PEERS = [(name, 10) for name in peers.NAMES] + [("W1", 30), ("W1", 50), ("W2", 30), ("W2", 50), ("W1", 0), ("W2", 0)]

PARTS: dict[str, Callable[..., harness.Report]] = {
    **{f"speed-{name}": partial(speed.run, name) for name in WORKLOADS},
    "speed-numpy": speed.numpy_kernel,
    "stages": stages.run,
    "growth": growth.run,
    "latency": latency.run,
    "workers": workers.run,
    "adversarial": adversarial.run,
    "levels": levels.run,
    "promises": promises.run,
    "spill": spill.run,
    "intervals": intervals.run,
    **{f"peers-{name}-{late}": partial(peers.run, name, late / 100) for name, late in PEERS},
    "kafka-speed": kafka.run,
    "kafka-latency": kafka_latency.run,
    **{f"spark-{part}": partial(spark.run, part) for part in spark.PARTS},
    "spark-cores": spark_cores.run,
}
#: What runs only when it is named: it fetches the engines that it compares with.
FETCHING = ("peers", "kafka", "spark")


def chosen(names: list[str]) -> list[str]:
    """The parts that are meant; raises ValueError for a name that means none."""
    if not names:
        return [part for part in PARTS if not part.startswith(FETCHING)]
    found = []
    for name in names:
        own = [part for part in PARTS if part == name or part.startswith(f"{name}-")]
        if not own:
            raise ValueError(f"no part {name}: there are {', '.join(PARTS)}")
        found += own
    return found


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when every answer is right, 1 when one is not (its figure is not shown)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="which parts, like speed-W2 or speed (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer events and repeats: does it run, is it right")
    parser.add_argument("--repeats", type=int, help="how many measured runs (default 3; 1 with --quick)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="folder for the JSON results")
    parser.add_argument("--pages", action="store_true", help="run nothing, write the pages from the results kept")
    parser.add_argument(
        "--profile", type=int, metavar="BATCH", help="show where time goes at this batch size, measure nothing"
    )
    parser.add_argument("--workload", default="W2", choices=list(WORKLOADS), help="with --profile: which one")
    options = parser.parse_args(arguments)
    try:
        parts = chosen(options.parts)
    except ValueError as problem:
        parser.error(str(problem))
    if options.profile is not None and options.profile < 1:
        parser.error(f"--profile {options.profile}: give how many events a batch has, 1 or more")
    if options.pages:
        return write(options.out)
    # One core: the ratio compares programs, not thread pools.
    pa.set_cpu_count(1)
    if options.profile is not None:
        print(profile(options.profile, workload=options.workload, quick=options.quick))
        return 0
    about = harness.machine()
    versions = f"Python {about['python']}, NumPy {about['numpy']}, PyArrow {about['pyarrow']}"
    print(f"{about['cpu']}, {about['cores']} cores, {versions}")
    failed = 0
    for name in parts:
        repeats = options.repeats or (1 if options.quick else 3)
        print(f"\n{name}", flush=True)
        try:
            report = PARTS[name](repeats, quick=options.quick)
        except harness.Disqualified as problem:
            print(f"DISQUALIFIED: {name}: {problem}", file=sys.stderr)
            failed += 1
            continue
        except LatecomerError as problem:
            print(f"NOT MEASURED: {name}: {problem}", file=sys.stderr)
            failed += 1
            continue
        if options.quick:
            continue  # too few events to be kept
        print(f"results: {report.save(options.out).name}")
    if not options.quick:
        write(options.out)
    return 1 if failed else 0


def write(results: Path) -> int:
    """Write the pages; returns 1 when there are no results at all."""
    pages.write(results)
    return figures.main(results) if (results / "levels.json").exists() else 0


if __name__ == "__main__":
    sys.exit(main())
