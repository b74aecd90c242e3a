"""Our engine beside what a user could pick instead: the same events, the same run, checked answers.

``python -m benchmarks.peers W1 --late 10`` measures one cell; ``make bench-peers`` all of them.

Rule: every engine runs as a competent user would run it, on one core (see :mod:`benchmarks.jvm`,
:mod:`benchmarks.offline`, :mod:`benchmarks.byhand`). Those that run in this process take their turns before, between
and behind the others, so that a slow minute of the machine hits all alike. One that promises the exact answer is
disqualified by any difference, and its figure is not shown. Of those that lose events by design, precision and recall
are told. *Wait* is how much longer than necessary a match waits: from when it was known to be complete (its last event
has arrived, its window has passed) until it leaves, by the clock of the stream; what batches and threads add is not in
it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import latecomer as lc
from benchmarks import answers, byhand, harness, jvm, limit, offline
from benchmarks.harness import Disqualified, Report, Timing, table
from benchmarks.limit import IntArray
from benchmarks.shapes import MAX_DELAY, WORKLOADS, Shape, Workload
from benchmarks.workloads import STREAM, batches

#: The watermark bound of an engine that does not wait for the latest event, in ms.
SHORT = 1_000

#: Workloads that have one query; the drivers run one.
NAMES = ("W1", "W2", "W3", "W4", "W5")

#: Events of a run and of a quick one. In W4 the unfiltered Flink job takes seconds for ten thousand.
EVENTS, FEW = {"W4": 100_000}, {"W4": 10_000}
_EVENTS, _FEW = 400_000, 40_000

#: Runs of a driver that are measured, behind its warm-up: machines compile while they run, and the best run counts.
JVM_REPEATS = {"flink": 3, "esper": 5}


def run(name: str, late: float = 0.1, repeats: int = 3, *, quick: bool = False) -> Report:
    """One workload at one lateness; raises Disqualified when an exact answer is wrong."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    workload = WORKLOADS[name]
    n = FEW.get(name, _FEW) if quick else EVENTS.get(name, _EVENTS)
    events = workload.events(n, late)
    shape, right = workload.shapes[0], answers.truth(events, workload.shapes)
    settings = {"workload": name, "late": late, "events": n, "query": shape.text, "quick": quick, "repeats": repeats}
    report = Report(f"peers-{name}-{late * 100:.0f}", settings)
    programs = _in_process(workload, events)
    checked = {name: _checked(name, program(), workload, right) for name, program in programs.items()}
    machines = _machines(shape, events, right[0], 1 if quick else None)
    each = -(-repeats // (len(machines) + 1))  # turns before, between and behind the machines, which take minutes
    timings = harness.take_turns(programs, each, warmups=0)
    for measure in machines:
        report.rows.append(measure())
        for name, more in harness.take_turns(programs, each, warmups=0).items():
            timings[name].add(more)
    exact_ones = [_row(name, events, timing, *checked[name]) for name, timing in timings.items()]
    report.rows[:0] = [*exact_ones, _short(shape, events, right, batches(events, 8_192))]
    ours = next(r for r in report.rows if r["engine"] == "Latecomer, batches of 8,192")
    for row in report.rows:
        row["ours_is"] = ours["events_per_s"] / row["events_per_s"]
    return report


def _in_process(workload: Workload, events: pa.Table) -> dict[str, Callable[[], Any]]:
    """Ours, the limit, and the Python libraries; all of them exact."""
    shape = workload.shapes[0]
    programs: dict[str, Callable[[], Any]] = {
        f"Latecomer, batches of {size:,}": partial(
            _ours, shape, batches(events, size), lc.Aggressive(max_delay=MAX_DELAY)
        )
        for size in (8_192, 256)
    }
    programs["NumPy, whole file"] = lambda: limit.matches(events, workload.shapes)[0]
    if offline.able(shape):
        programs["DuckDB, whole file"] = offline.duckdb(events, shape)
        programs["Polars, whole file"] = offline.polars(events, shape)
    if byhand.able(shape):
        programs["plain Python, bisect"] = partial(byhand.matches, byhand.rows(events), shape)
    return programs


def _checked(
    name: str, found: Any, workload: Workload, right: list[IntArray]
) -> tuple[answers.Accuracy, Any, float | None]:
    """How accurate an exact program's answer is, how long its matches wait, and which part of them it took back."""
    wait = None if name.endswith("whole file") else (0.0, 0.0)
    if not name.startswith("Latecomer"):
        exact(name, found, workload.shapes[0], right[0])
        return answers.Accuracy(1.0, 1.0), wait, None
    net, deletions = answers.net(found, workload.shapes)
    answers.check(name, net, right, workload.shapes)
    return answers.Accuracy(1.0, 1.0), wait, deletions / max(deletions + len(net[0]), 1)


def _ours(shape: Shape, parts: Sequence[pa.RecordBatch], level: Any) -> list[pa.Table]:
    engine = lc.Runtime(STREAM, [lc.Query(shape.text, name=shape.name, level=level)])
    return [engine.process(batch).changes for batch in parts] + [engine.finish().changes]


def _short(shape: Shape, events: pa.Table, right: list[IntArray], parts: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """Ours with a slack as short as Flink's bound, to compare what is lost."""
    name = f"Latecomer, K-slack {SHORT} ms"
    timing = harness.take_turns({name: lambda: _ours(shape, parts, lc.KSlack(SHORT))}, 1, warmups=1)[name]
    net, _ = answers.net(_ours(shape, parts, lc.KSlack(SHORT)), [shape])
    ids = decoded(net[0], len(shape.positives))
    return _row(name, events, timing, answers.accuracy(net, right), waits(events, shape, ids, SHORT), None)


def _machines(shape: Shape, events: pa.Table, right: IntArray, repeats: int | None) -> list[Callable[[], Any]]:
    """What measures Flink and Esper: each where it must be exact, and each without waiting for the latest event."""
    flink, esper = (repeats or JVM_REPEATS[name] for name in ("flink", "esper"))

    def measure(name: str, run: Callable[[], tuple[Timing, IntArray]], bound: int, is_exact: bool) -> dict[str, Any]:
        timing, ids = run()
        if is_exact:
            exact(name, ids, shape, right)
        good = answers.accuracy([np.sort(answers.coded(ids))], [right])
        return _row(name, events, timing, good, waits(events, shape, ids, bound) if bound else (0.0, 0.0), None)

    def of_flink(bound: int, filtered: bool = True) -> Callable[[], dict[str, Any]]:
        name = f"Flink CEP {jvm.FLINK}, bound {bound} ms{'' if filtered else ', no filter in front'}"
        count = flink if filtered else min(flink, 2)
        run = partial(jvm.flink, shape, events, count, bound=bound, filtered=filtered)
        return partial(measure, name, run, bound, bound == MAX_DELAY)

    def of_esper(how: str, rows: pa.Table, bound: int) -> Callable[[], dict[str, Any]]:
        return partial(measure, f"Esper {jvm.ESPER}, {how}", partial(jvm.esper, shape, rows, esper), bound, bound > 0)

    unfiltered = [] if shape.keyed else [of_flink(MAX_DELAY, filtered=False)]
    espers = [of_esper("sorted for it", events.sort_by("ts"), MAX_DELAY), of_esper("as it arrives", events, 0)]
    return [of_flink(MAX_DELAY), of_flink(SHORT), *unfiltered, *espers]


def exact(name: str, found: Any, shape: Shape, right: IntArray) -> None:
    """Raises Disqualified unless these ids (rows of an array, or tuples of a set) are the true matches."""
    ids = found if isinstance(found, np.ndarray) else np.array(sorted(found), np.int64)
    answers.check(name, [np.sort(answers.coded(ids.reshape(-1, len(shape.positives))))], [right], [shape])


def decoded(codes: IntArray, parts: int) -> IntArray:
    """The ids that :func:`answers.coded` has put into codes."""
    bits = 63 // parts
    return np.column_stack([codes >> bits * (parts - 1 - i) & ((1 << bits) - 1) for i in range(parts)])


def waits(events: pa.Table, shape: Shape, ids: IntArray, bound: int) -> tuple[float, float]:
    """(median, 95 %) in ms of what waiting for a clock ``bound`` ms behind adds to these matches."""
    if not len(ids):
        return 0.0, 0.0
    number, ts = np.asarray(events["id"], np.int64), np.asarray(events["ts"], np.int64)
    at = np.empty(len(number), np.int64)
    at[number] = np.arange(len(number))
    clock = np.maximum.accumulate(ts)
    place = at[ids]
    complete = ts[place[:, 0]] + shape.window if shape.trailing else ts[place[:, -1]]
    known = np.maximum(clock[place.max(axis=1)], complete)
    added = np.maximum(complete + bound + 1 - known, 0)
    return float(np.median(added)), float(np.quantile(added, 0.95))


def _row(
    name: str,
    events: pa.Table,
    timing: Timing,
    good: answers.Accuracy,
    wait: tuple[float, float] | None,
    taken_back: float | None,
) -> dict[str, Any]:
    return {
        "engine": name,
        "events_per_s": events.num_rows / timing.best_cpu,
        "events_per_s_wall": events.num_rows / timing.best,
        "precision": good.precision,
        "recall": good.recall,
        "wait_ms": wait,
        "taken_back": taken_back,
        "timing": timing.as_dict(),
    }


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""

    def cells(row: dict[str, Any]) -> list[str]:
        n = row["events_per_s"] * row["timing"]["min_cpu_s"]
        wait = row["wait_ms"]
        return [
            row["engine"],
            f"{row['events_per_s']:,.0f}",
            f"{n / row['timing']['median_cpu_s']:,.0f}",
            f"{n / row['timing']['cpu_s'][0]:,.0f}",
            f"{row['events_per_s_wall']:,.0f}",
            f"{row['ours_is']:.3g}",
            f"{row['precision']:.3f}",
            f"{row['recall']:.3f}",
            "the whole file" if wait is None else f"{wait[0] / 1000:.1f} / {wait[1] / 1000:.1f} s",
            "" if row["taken_back"] is None else f"{row['taken_back']:.1%}",
        ]

    heads = [
        "engine",
        "events per CPU s",
        "median",
        "first run",
        "per s of wall",
        "ours is × as fast",
        "precision",
        "recall",
    ]
    return table([*heads, "wait, median / 95 %", "taken back"], [cells(row) for row in rows])


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 when an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="?", default=",".join(NAMES), help="like W1,W2 (default: all)")
    parser.add_argument("--late", default="10", help="per cent, like 0,30 (default 10)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.workloads.split(",") if name not in NAMES]:
        parser.error(f"workload {', '.join(unknown)}: there are {', '.join(NAMES)}")
    pa.set_cpu_count(1)
    for name in options.workloads.split(","):
        for late in options.late.split(","):
            try:
                report = run(name, float(late) / 100, options.repeats, quick=options.quick)
            except Disqualified as problem:
                print(f"DISQUALIFIED: {problem}", file=sys.stderr)
                return 1
            print(f"{name}, {late} % late: {report.settings['query']}\n{shown(report.rows)}")
            if not options.quick:
                report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
