"""What an event costs as the state grows from 10^4 to 10^7 events, and how many bytes each stored event takes.

Rule: window, delay and number of keys grow together, so that every event finds as many partners whatever the size; then
what grows is the cost of a larger state and nothing else. The state is filled unmeasured; what is measured is the
processor time of ``Runtime.process`` on the events that follow, in parts, of which the least and the median are kept.
The net answer must be the offline program's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import latecomer as lc
from benchmarks import answers
from benchmarks.harness import Report, table
from benchmarks.shapes import Shape
from benchmarks.workloads import KINDS, STREAM

SIZES, FEW = (10_000, 100_000, 1_000_000, 10_000_000), (10_000, 100_000)
BATCH, PER_MS, LATE = 8_192, 5, 0.1

#: Batches that are measured, and parts they are told in.
MEASURED, PARTS = 60, 5

#: Bytes of what the engine has to keep of an event whatever it does: id, time and key, eight each.
PAYLOAD = 24


def chunk(first: int, n: int, delay: int, keys: int) -> pa.RecordBatch:
    """The events that arrive as number ``first`` and following: one in ten late by up to ``delay`` ms, none older than
    the stream. The same for the same ``first``.
    """
    rng = np.random.default_rng((7, first))
    now = np.arange(first, first + n) // PER_MS
    back = (rng.random(n) * np.minimum(delay, now)).astype(np.int64) * (rng.random(n) < LATE)
    return pa.record_batch(
        {
            "id": pa.array(np.arange(first, first + n)),
            "kind": pa.array(KINDS).take(pa.array(rng.integers(0, len(KINDS), n))),
            "key": pa.array(rng.integers(0, keys, n)),
            "ts": pa.array(100_000 + now - back),
        }
    )


def measure(stored: int) -> dict[str, Any]:
    """One size; raises Disqualified when the answer is wrong. Three of four types are stored."""
    span = stored * 4 // 3 // PER_MS
    window, delay = span * 2 // 3, span - span * 2 // 3
    shape = Shape("gap", ("A", "!B", "C"), window=window)
    level = lc.Aggressive(max_delay=f"{delay} ms")
    engine = lc.Runtime(STREAM, lc.Query(shape.text, name=shape.name, level=level))
    filling = -(-span * PER_MS // BATCH)
    seconds, given, changes = [], [], []
    for number in range(filling + MEASURED):
        batch = chunk(number * BATCH, BATCH, delay, max(window, 1))
        given.append(batch)
        began = time.process_time()
        out = engine.process(batch)
        seconds.append(time.process_time() - began)
        changes.append(out.changes.select(["op", "query", "events"]))
    held = engine.explain()
    changes.append(engine.finish().changes)
    net, _ = answers.net(changes, [shape])
    events = pa.Table.from_batches(given)
    matches = answers.check(f"{stored:,} stored", net, answers.truth(events, [shape]), [shape])
    each = np.array(seconds[filling:]).reshape(PARTS, -1).mean(axis=1) / BATCH * 1e6
    per_event = held["bytes"] / held["events"]
    return {
        "wanted": stored,
        "stored": held["events"],
        "matches": matches,
        "us_per_event": float(each.min()),
        "us_per_event_median": statistics.median(each.tolist()),
        "spread": float((each.max() - each.min()) / each.min()),
        "slowest_batch_ms": max(seconds[filling:]) * 1e3,
        "bytes_per_event": per_event,
        "beyond_payload": per_event - PAYLOAD,
    }


def run(repeats: int = 1, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """All sizes; ``repeats`` is of no use here, since each run is told in parts."""
    report = Report("growth", {"batch": BATCH, "late": LATE, "payload": PAYLOAD, "quick": quick})
    for stored in FEW if quick else SIZES:
        report.rows.append(measure(stored))
        say(shown(report.rows[-1:]).splitlines()[-1])
    return report


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    heads = ["stored events", "µs per event", "median", "spread", "slowest batch, ms", "B per event", "beyond payload"]
    return table(
        heads,
        [
            [
                f"{r['stored']:,}",
                f"{r['us_per_event']:.2f}",
                f"{r['us_per_event_median']:.2f}",
                f"{r['spread']:.0%}",
                f"{r['slowest_batch_ms']:.0f}",
                f"{r['bytes_per_event']:.0f}",
                f"{r['beyond_payload']:.0f}",
            ]
            for r in rows
        ],
    )
