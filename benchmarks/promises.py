"""What promises cost: punctuation from many sources, and purging by proof what cannot be purged.

Wanted: punctuation every 100 events from 1,000 sources costs at most half of the throughput without any; the cost of
purging does not grow with the state that it cannot purge (a purge runs whenever state has doubled). Answers are
compared: both programs find the same matches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

import latecomer as lc
from benchmarks.harness import Disqualified, Report, table, take_turns
from benchmarks.workloads import batches, keyed

SOURCES, EVERY, SIZE = 1_000, 100, 8_192
QUERY = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN 10 seconds"
STREAM = lc.Stream(
    type="kind",
    ts="ts",
    id="id",
    source="device",
    unit="ms",
    punctuation="PUNCT",
    sources=[f"device {i:04d}" for i in range(SOURCES)],
)


def events(n: int) -> pa.Table:
    """``n`` events in order of arrival, 10 % of them late, each from one of the sources."""
    rng = np.random.default_rng(5)
    names = pa.array(list(STREAM.sources or ()))
    whole = keyed(n).append_column("device", names.take(pa.array(rng.integers(0, SOURCES, n))))
    return whole.append_column("of", pa.nulls(n, pa.string()))


def punctuated(whole: pa.Table) -> pa.Table:
    """A row of punctuation after every 100 events, the sources in turn: all that the source will send is later."""
    n = len(whole)
    ts = whole["ts"].to_numpy()
    device = whole["device"].combine_chunks().dictionary_encode()
    number, names = device.indices.to_numpy(), device.dictionary.to_pylist()
    after = np.arange(EVERY, n, EVERY)
    rows, bounds, speakers = [], [], []
    for turn, name in enumerate(names):  # per source the least time still to come at each of its turns
        at = after[turn::SOURCES]
        own = np.flatnonzero(number == turn)
        least = np.minimum.accumulate(np.append(ts[own], 2**40)[::-1])[::-1]
        rows.append(at)
        bounds.append(least[own.searchsorted(at)] - 1)
        speakers += [name] * len(at)
    at, bound = np.concatenate(rows), np.minimum(np.concatenate(bounds), int(ts.max()))
    punctuation = pa.table(
        {
            "id": pa.nulls(len(at), pa.int64()),
            "kind": pa.array(["PUNCT"] * len(at)),
            "key": pa.nulls(len(at), pa.int64()),
            "ts": pa.array(bound),
            "place": pa.nulls(len(at), pa.string()),
            "price": pa.nulls(len(at), pa.float64()),
            "device": pa.array(speakers),
            "of": pa.nulls(len(at), pa.string()),
        }
    )
    place = np.concatenate((np.arange(n), at - 0.5))
    return pa.concat_tables([whole, punctuation]).take(pa.array(place.argsort(kind="stable"))).combine_chunks()


def replay(prepared: list[pa.RecordBatch]) -> set[str]:
    """The ids of all matches."""
    runtime = lc.Runtime(STREAM, lc.Query(QUERY, level=lc.Conservative()))
    outs = [runtime.process(batch) for batch in prepared] + [runtime.finish()]
    if any(out.late.num_rows for out in outs):
        raise Disqualified("an event was late for a promise that was true")
    return set(pa.concat_tables(out.changes for out in outs)["match_id"].to_pylist())


def unpurgeable(n: int) -> list[float]:
    """Microseconds per event over stretches that each double the state: the A's are never promised, so nothing goes."""
    runtime = lc.Runtime(STREAM, lc.Query(QUERY, level=lc.Conservative()))
    prepared = batches(events(n), SIZE)
    spent = []
    for batch in prepared:
        start = time.process_time()
        runtime.process(batch)
        reached = runtime.clock or 0
        for kind in ("B", "C"):
            runtime.punctuate(reached - 6_000, type=kind)
        spent.append((time.process_time() - start) / batch.num_rows * 1e6)
    ends = [len(spent) >> halvings for halvings in (4, 3, 2, 1, 0)]
    return [float(np.mean(spent[start:end])) for start, end in itertools.pairwise(ends)]


def run(repeats: int = 3, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """Measure both; raises Disqualified when an answer is wrong."""
    n = 100_000 if quick else 500_000
    whole = events(n)
    bare, told = batches(whole, SIZE), batches(punctuated(whole), SIZE)
    if replay(bare) != replay(told):
        raise Disqualified("punctuation changed the answer")
    timings = take_turns({"without": lambda: replay(bare), "with": lambda: replay(told)}, repeats, warmups=0)
    speed = {name: n / timing.best_cpu for name, timing in timings.items()}
    report = Report("promises", {"query": QUERY, "sources": SOURCES, "every": EVERY, "batch": SIZE, "events": n})
    report.rows.append({"events_per_s": speed, "ratio": speed["with"] / speed["without"]})
    say(f"\n{QUERY}, conservative, {SOURCES:,} sources, punctuation every {EVERY} events, batches of {SIZE:,}")
    cells = [[name, f"{value:,.0f}", f"{value / speed['without']:.2f}"] for name, value in speed.items()]
    say(table(["punctuation", "events/s", "ratio (wanted 0.5)"], cells))
    stretches = unpurgeable(n)
    report.rows.append({"unpurgeable_us_per_event": stretches})
    say("\nstate that cannot be purged: µs per event, over stretches that each double the state")
    say(table([f"to {n >> halvings:,}" for halvings in (3, 2, 1, 0)], [[f"{s:.2f}" for s in stretches]]))
    return report
