"""``Runtime(workers=n)`` against one worker: what more cores give, with the same answers.

Rule: wall time, since that is what more cores are for; processor time of all processes beside it. The state is filled
unmeasured, all take turns, and each answer must be the offline program's. Whatever else runs on the machine takes a
core from two workers and hardly anything from one, so the load at the time stands in the results.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import latecomer as lc
from benchmarks import answers, harness
from benchmarks.harness import Report, table
from benchmarks.shapes import MAX_DELAY, WORKLOADS
from benchmarks.speed import FEW
from benchmarks.workloads import STREAM, batches

NAMES, BATCHES, EVENTS = ("W1", "W2", "W6"), (8_192, 65_536), 2_000_000


def run(repeats: int = 3, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """One worker and two, on three workloads; raises Disqualified when an answer is wrong."""
    counts = (1, 2) if quick else sorted({1, 2, min(os.cpu_count() or 1, 8)})
    report = Report("workers", {"late": 0.1, "quick": quick, "repeats": repeats, "level": "aggressive"})
    for name in NAMES[:1] if quick else NAMES:
        for batch in BATCHES[:1] if quick else BATCHES:
            report.rows += measure(name, batch, counts, FEW if quick else EVENTS, repeats)
            say("\n".join(shown(report.rows[-len(counts) :]).splitlines()[2:]))
    return report


def measure(name: str, batch: int, counts: list[int] | tuple[int, ...], n: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each number of workers."""
    workload = WORKLOADS[name]
    events = workload.events(n, 0.1)
    filling, measured = batches(events.slice(0, workload.fill), 65_536), batches(events.slice(workload.fill), batch)
    level = lc.Aggressive(max_delay=MAX_DELAY)
    right = answers.truth(events, workload.shapes)

    opened: list[lc.Runtime] = []

    def filled(workers: int) -> tuple[lc.Runtime, list[Any]]:
        while opened:
            opened.pop().close()
        queries = [lc.Query(s.text, name=s.name, level=level) for s in workload.shapes]
        runtime = lc.Runtime(STREAM, queries, workers=workers) if workers > 1 else lc.Runtime(STREAM, queries)
        opened.append(runtime)
        return runtime, [runtime.process(part).changes for part in filling]

    def play(given: tuple[lc.Runtime, list[Any]]) -> list[Any]:
        runtime, changes = given
        return changes + [runtime.process(part).changes for part in measured]

    for workers in counts:
        runtime, changes = filled(workers)
        changes = [*play((runtime, changes)), runtime.finish().changes]
        answers.check(f"{name}, {workers} workers", answers.net(changes, workload.shapes)[0], right, workload.shapes)
    timings = harness.take_turns(
        {str(workers): play for workers in counts},
        repeats,
        warmups=0,
        prepare={str(workers): lambda workers=workers: filled(workers) for workers in counts},
    )
    opened.pop().close()
    one = timings["1"]
    return [
        {
            "workload": name,
            "batch": batch,
            "workers": workers,
            "events_per_s_wall": (n - workload.fill) / timings[str(workers)].best,
            "scaling": one.best / timings[str(workers)].best,
            "scaling_median": one.as_dict()["median_s"] / timings[str(workers)].as_dict()["median_s"],
            "timing": timings[str(workers)].as_dict(),
        }
        for workers in counts
    ]


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return table(
        ["workload", "batch", "workers", "events per s of wall", "× one worker", "of medians"],
        [
            [
                r["workload"],
                f"{r['batch']:,}",
                str(r["workers"]),
                f"{r['events_per_s_wall']:,.0f}",
                f"{r['scaling']:.2f}",
                f"{r['scaling_median']:.2f}",
            ]
            for r in rows
        ],
    )
