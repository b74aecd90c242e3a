"""``SEQ(A a, !B b, C c)`` on 10,000 keys within 10 s, one event in ten late by up to 5 s, at the aggressive level.

Rule: the engine gets Arrow record batches in order of arrival and its net output (insertions minus deletions) must be
the very pairs that the offline limit finds on the same events. Both start from the same Arrow columns; the limit's time
includes reading them into integers. The headline has integer keys and ids; the variant with text keys is shown beside
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks import limit
from benchmarks.harness import Disqualified, Report, table, take_turns
from benchmarks.workloads import STREAM, batches, keyed
from latecomer.consistency.levels import Level

WINDOW_MS = 10_000
MAX_DELAY_MS = 5_000
QUERY = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN 10 s"
SIZES = (256, 2_048, 8_192, 65_536)
#: The least share of the limit's speed that each batch size is meant to reach.
WANTED = {256: 0.05, 8_192: 0.3}


#: Events of a run, and of a quick one.
EVENTS, FEW = 1_000_000, 100_000


def runtime(level: Level | None = None) -> lc.Runtime:
    """A fresh engine with the one query, aggressive unless told otherwise."""
    query = lc.Query(QUERY, name="gap", level=level or lc.Aggressive(max_delay=MAX_DELAY_MS))
    return lc.Runtime(STREAM, [query])


def replay(prepared: list[pa.RecordBatch]) -> tuple[lc.Runtime, list[pa.Table]]:
    """Feed all batches to a fresh engine; the end of the stream is not measured, since the limit has no such thing."""
    engine = runtime()
    changes = [engine.process(batch).changes for batch in prepared]
    return engine, changes


def offline(events: pa.Table) -> tuple[limit.IntArray, limit.IntArray]:
    """The limit, from the same Arrow columns."""
    return limit.seq_neg(*limit.columns(events), WINDOW_MS)


def net_pairs(changes: list[pa.Table]) -> tuple[limit.IntArray, int]:
    """Net matches as sorted codes (id of a, id of c in one integer), and how many deletions it took."""
    whole = pa.concat_tables(c.select(["op", "events"]) for c in changes if c.num_rows).combine_chunks()
    ids = np.asarray(pc.list_flatten(whole["events"]).cast(pa.int64())).reshape(-1, 2)
    sign = np.where(np.asarray(pc.equal(whole["op"], "insert")), 1, -1)
    pairs, at = np.unique(_code(ids[:, 0], ids[:, 1]), return_inverse=True)
    total = np.bincount(at, weights=sign)
    if not np.isin(total, (0, 1)).all():
        raise Disqualified("a match was inserted twice or taken back twice")
    return pairs[total == 1], int((sign < 0).sum())


def _code(a: limit.IntArray, c: limit.IntArray) -> limit.IntArray:
    return a << 32 | c


def verify(changes: list[pa.Table], events: pa.Table, engine: lc.Runtime) -> tuple[int, int]:
    """(net matches, deletions); raises Disqualified unless the engine's net answer is the limit's."""
    a, c = offline(events)
    truth = np.sort(_code(a, c))
    found, deletions = net_pairs(changes)
    if not np.array_equal(found, truth):
        missing, wrong = len(np.setdiff1d(truth, found)), len(np.setdiff1d(found, truth))
        raise Disqualified(
            f"of {len(truth):,} matches {missing:,} are missing, and {wrong:,} are wrong; {engine.counters}"
        )
    return len(truth), deletions


def run(repeats: int = 5, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """Measure all batch sizes with integer and with text keys; raises Disqualified when any answer is wrong."""
    report = Report(
        "seq_neg",
        {
            "query": QUERY,
            "level": f"aggressive, {MAX_DELAY_MS} ms",
            "late": 0.1,
            "keys": 10_000,
            "repeats": repeats,
            "quick": quick,
        },
    )
    for text_keys in (False, True):
        events = keyed(FEW if quick else EVENTS, text_keys=text_keys)
        for size in SIZES:
            report.rows.append(_measure(events, size, text_keys, repeats))
        say(f"\n{QUERY}\naggressive level, 10 % of events late, {'text' if text_keys else 'integer'} keys")
        say(shown([r for r in report.rows if r["keys"] == ("text" if text_keys else "integer")]))
    return report


def _measure(events: pa.Table, size: int, text_keys: bool, repeats: int) -> dict[str, Any]:
    prepared = batches(events, size)
    engine, changes = replay(prepared)
    matches, deletions = verify(changes, events, engine)
    state = state_of(engine)
    del engine, changes
    timings = take_turns({"engine": lambda: replay(prepared), "limit": lambda: offline(events)}, repeats)
    ours, best = timings["engine"], timings["limit"]
    ratio = best.best_cpu / ours.best_cpu
    return {
        "keys": "text" if text_keys else "integer",
        "batch": size,
        "events": events.num_rows,
        "matches": matches,
        "deletions": deletions,
        "events_per_s": events.num_rows / ours.best_cpu,
        "limit_events_per_s": events.num_rows / best.best_cpu,
        "ratio": ratio,
        "ratio_wall": best.best / ours.best,
        "wanted": WANTED.get(size),
        "reached": size not in WANTED or ratio >= WANTED[size],
        **state,
        "engine": ours.as_dict(),
        "limit": best.as_dict(),
    }


def state_of(engine: lc.Runtime) -> dict[str, float]:
    """Events held at the end of the stream, and bytes of state for each: columns, indexes and reserve, all told."""
    found = engine.explain()
    return {"stored": found["events"], "bytes_per_event": found["bytes"] / max(found["events"], 1)}


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return table(
        ["batch", "events/s", "median", "spread", "limit", "ratio", "wanted", "state, B/event"],
        [
            [
                f"{r['batch']:,}",
                f"{r['events_per_s']:,.0f}",
                f"{r['events'] / r['engine']['median_cpu_s']:,.0f}",
                f"{r['engine']['spread']:.0%}",
                f"{r['limit_events_per_s']:,.0f}",
                f"{r['ratio']:.3f}",
                "" if r["wanted"] is None else f"{r['wanted']} {'✓' if r['reached'] else '✗'}",
                f"{r['bytes_per_event']:.0f}",
            ]
            for r in rows
        ],
    )
