"""How long a change takes from the arrival of its event, at a steady rate, embedded, at the aggressive level.

Rule: every event has an *intended* time of arrival, which does not move when the engine is late; latency counts from
there until the call that holds the event has returned. So a pause is charged to all events that it delays. The loop
takes what is due and hands it over as one batch, as a program that drains a queue would; nothing due, it waits.
Garbage collection and the merging of runs happen when they happen. The state is filled beforehand, unmeasured. The net
answer must be the offline program's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks import answers
from benchmarks.harness import Report, table
from benchmarks.limit import IntArray
from benchmarks.shapes import MAX_DELAY, W2
from benchmarks.workloads import STREAM, batches, keyed

RATE = 50_000
#: Seconds that fill the state (window and largest delay), and that are measured.
FILL, SECONDS, FEW = 15, 40, 3

#: Upper ends of the histogram's bins, in ms.
BINS = tuple(float(f"{x:.3g}") for x in np.geomspace(0.1, 1_000, 41))


def run(repeats: int = 1, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """Run once; raises Disqualified when the answer is wrong. ``repeats`` is of no use: one run has enough events."""
    fill, seconds = (1, FEW) if quick else (FILL, SECONDS)
    report = Report("latency", {"rate": RATE, "query": W2.shapes[0].text, "seconds": seconds, "quick": quick})
    report.rows.append(measure(RATE, fill, seconds))
    say(shown(report.rows))
    return report


def measure(rate: int, fill: int, seconds: int) -> dict[str, Any]:
    """Offer ``rate`` events a second for ``seconds``, behind ``fill`` seconds' worth that are not measured."""
    shape = W2.shapes[0]
    events = keyed(rate * (fill + seconds), keys=2 * rate, per_ms=rate // 1_000, late=0.1, most=MAX_DELAY)
    level = lc.Aggressive(max_delay=MAX_DELAY)
    engine = lc.Runtime(STREAM, lc.Query(shape.text, name=shape.name, level=level))
    first = rate * fill
    outs = [engine.process(batch).changes for batch in batches(events.slice(0, first), 8_192)]
    offered = events.slice(first).combine_chunks().to_batches()[0]
    ends, done, live = play(engine, offered, rate)
    held = engine.explain()["events"]
    net, deletions = answers.net([*outs, *live, engine.finish().changes], [shape])
    matches = answers.check("latency", net, answers.truth(events, [shape]), [shape])
    of_events = late(ends, done, rate)
    of_changes = np.concatenate([np.zeros(0), *_changes(live, done, events, first, rate)])
    edges = np.array([0.0, *BINS, np.inf])
    return {
        "rate": rate,
        "stored": held,
        "matches": matches,
        "deletions": deletions,
        "calls": len(ends),
        "events_per_call": offered.num_rows / len(ends),
        "changes": _quantiles(of_changes),
        "events": _quantiles(of_events),
        "bins_ms": list(BINS),
        "histogram": np.histogram(of_changes, edges)[0].tolist(),
    }


def play(engine: lc.Runtime, offered: pa.RecordBatch, rate: int) -> tuple[IntArray, Any, list[pa.Table]]:
    """Hand over what is due: (end of each call's events, seconds at which it was done, its changes)."""
    n, at = offered.num_rows, 0
    ends, done, outs = [], [], []
    clock = time.perf_counter
    began = clock()
    while at < n:
        due = min(int((clock() - began) * rate) + 1, n)
        if due <= at:
            time.sleep(max(began + at / rate - clock(), 0))
            continue
        outs.append(engine.process(offered.slice(at, due - at)).changes)
        done.append(clock() - began)
        ends.append(due)
        at = due
    return np.array(ends), np.array(done), outs


def late(ends: IntArray, done: Any, rate: int) -> Any:
    """Milliseconds of every event from its intended arrival until its call was done."""
    intended = np.arange(ends[-1]) / rate
    return (np.repeat(done, np.diff(ends, prepend=0)) - intended) * 1e3


def _changes(live: list[pa.Table], done: Any, events: pa.Table, first: int, rate: int) -> list[Any]:
    """Milliseconds of every insertion, from the intended arrival of its latest event, for each call."""
    at = np.empty(events.num_rows, np.int64)
    at[np.asarray(events["id"])] = np.arange(events.num_rows)
    found = []
    for changes, end in zip(live, done, strict=True):
        inserted = changes.filter(pc.equal(changes["op"], "insert")) if changes.num_rows else changes
        if inserted.num_rows:
            ids = np.asarray(pc.list_flatten(inserted["events"]).cast(pa.int64())).reshape(inserted.num_rows, -1)
            found.append((end - (at[ids].max(axis=1) - first) / rate) * 1e3)
    return found


def _quantiles(ms: Any) -> dict[str, float]:
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    values = np.quantile(ms, list(names.values())) if len(ms) else np.full(len(names), np.nan)
    return {"count": len(ms), **dict(zip(names, values.tolist(), strict=True))}


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    heads = ["events/s offered", "of", "count", "p50, ms", "p90", "p99", "p99.9", "max", "events per call"]
    return table(
        heads,
        [
            [f"{r['rate']:,}", what, f"{r[key]['count']:,}"]
            + [f"{r[key][p]:.1f}" for p in ("p50", "p90", "p99", "p99.9", "max")]
            + [f"{r['events_per_call']:.0f}"]
            for r in rows
            for what, key in (("changes", "changes"), ("all events", "events"))
        ],
    )
