"""Each level on each kind of disorder, and on two real streams: precision, recall, matches taken back, added wait.

Rule: all levels see the same arrivals. "max" is the largest lateness of that very stream, known by hindsight, so
K-slack "max" and aggressive "max" hold their promise and must be exactly right, as must the conservative level with the
best punctuation there can be; anything else disqualifies the run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
import latecomer.disorder as ld
from benchmarks.data import earthquakes, flights
from benchmarks.harness import Disqualified, Report
from benchmarks.judge import Case, judge, max_lateness, truth
from latecomer.consistency.levels import Level

#: The kinds of disorder, on a stream of 200 s; every delay is of the order of 1 to 5 s unless the model says otherwise.
MODELS: dict[str, ld.Model] = {
    "ordered": ld.Ordered(),
    "uniform tail, 10 % late": ld.Delayed(0.1, ld.Uniform("5 s")),
    "uniform tail, 50 % late": ld.Delayed(0.5, ld.Uniform("5 s")),
    "exponential tail, 10 % late": ld.Delayed(0.1, ld.Exponential("2 s")),
    "Pareto tail, 10 % late": ld.Delayed(0.1, ld.Pareto("500 ms", shape=1.2, most="1 min")),
    "Pareto tail, 70 % late": ld.Delayed(0.7, ld.Pareto("500 ms", shape=1.2, most="1 min")),
    "outage of 20 s, then a burst": ld.Outage("20 s", at=0.4),
    "clocks off by up to 2 s, drifting": ld.ClockSkew("2 s", drift=0.005),
    "groups of 64 shuffled": ld.GroupShuffle(64),
    "10 % sent twice, 20 s replayed": ld.Chain(ld.Duplicates(0.1, ld.Uniform("2 s")), ld.Replay("20 s", at=0.6)),
    "one event from the future": ld.Chain(ld.Delayed(0.1, ld.Uniform("1 s")), ld.FromFuture("1 h", at=0.7)),
    "a straggler for each window": ld.Stragglers("10 s", grace="1 s"),
    "delay grows in mid-stream": ld.Shift(
        ld.Delayed(0.1, ld.Uniform("500 ms")), ld.Delayed(0.4, ld.Uniform("8 s")), at=0.4, over=0.2
    ),
}

_STREAM = lc.Stream(type="kind", ts="ts", id="id", source="device", unit="ms")


def made(name: str, model: ld.Model, n: int, seed: int = 3) -> Case:
    """A stream of ``n`` events, 100 a second, of 100 keys, four types and eight devices, sent through ``model``."""
    rng = np.random.default_rng(seed)
    events = pa.table(
        {
            "id": pa.array(np.arange(n)),
            "kind": pa.array(["A", "B", "C", "D"]).take(pa.array(rng.integers(0, 4, n))),
            "key": pa.array(rng.integers(0, 100, n)),
            "device": pa.array([f"device {i}" for i in range(8)]).take(pa.array(rng.integers(0, 8, n))),
            "ts": pa.array(1_000_000 + np.arange(n) * 10),
        }
    )
    arriving = ld.inject(events, model, _STREAM, seed=rng)
    query = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN 10 s"
    return Case(name, arriving, _STREAM, query, ("A", "B", "C"), ("key",), 10_000, step=200)


def january() -> Case:
    """Flights of January 2013: after a flight an hour late, the next ones of that carrier and airport leave on time."""
    events = flights.load()
    events = events.filter(pc.less(events["ts"], 22_661_580))  # the end of January in New York
    query = "PATTERN SEQ(Late a, !Late x, OnTime b) WHERE [carrier, origin] WITHIN 2 hours"
    keys = ("carrier", "origin")
    return Case("flights, January", events, flights.STREAM, query, ("Late", "Late", "OnTime"), keys, 120, step=5)


def quakes() -> Case:
    """A week of earthquakes: light ones within six hours of a strong one in that network, none strong between."""
    query = "PATTERN SEQ(Strong a, !Strong x, Light b) WHERE [net] WITHIN 6 hours"
    kinds = ("Strong", "Strong", "Light")
    return Case("earthquakes", earthquakes.load(), earthquakes.STREAM, query, kinds, ("net",), 21_600_000, step=600_000)


def levels(case: Case, slacks: tuple[str, str], patience: str) -> Iterator[tuple[str, Level, bool]]:
    """(name, level, whether its promise holds, so that it must be exact)."""
    most = max_lateness(case)
    for slack in slacks:
        yield f"K-slack {slack}", lc.KSlack(slack), False
    yield "K-slack max", lc.KSlack(most), True
    yield "conservative", lc.Conservative(), True
    yield f"aggressive {slacks[1]}", lc.Aggressive(max_delay=slacks[1]), False
    yield "aggressive max", lc.Aggressive(max_delay=most), True
    yield f"aggressive max, patience {patience}", lc.Aggressive(max_delay=most, patience=patience), True
    yield "K-slack for recall 99 %", lc.KSlack(recall=0.99, max=most), False
    yield "aggressive for 1 % taken back", lc.Aggressive(max_delay=most, retractions=0.01), True


def by_hindsight(case: Case, recall: float = 0.99) -> int:
    """The least fixed slack, of the quantiles of the stream's own lateness, that finds ``recall`` of the matches."""
    right = truth(case)
    shares = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 1.0)
    slacks = sorted(set(ld.measure(case.events[case.stream.ts], quantiles=shares).quantiles.values()))
    return slacks[bisect_left(slacks, True, key=lambda k: judge(case, lc.KSlack(k), right).recall >= recall)]


def run(repeats: int = 1, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """Judge every level on every case; ``repeats`` is of no use here, since nothing is timed."""
    report = Report("levels", {"quick": quick, "events": 4_000 if quick else 20_000})
    cases: list[tuple[Case, tuple[str, str], str]] = [
        (made(name, model, report.settings["events"]), ("1 s", "5 s"), "1 s") for name, model in MODELS.items()
    ]
    if not quick:
        cases += [(january(), ("1 h", "3 h"), "30 min"), (quakes(), ("1 h", "24 h"), "6 h")]
    for case, slacks, patience in cases:
        rows = [_row(case, *level) for level in levels(case, slacks, patience)]
        rows.append(_row(case, "K-slack for recall 99 %, by hindsight", lc.KSlack(by_hindsight(case)), False))
        report.rows += rows
        say(f"{case.name}: " + ", ".join(f"{r['level']} {r['recall']:.1%}/{r['taken_back']:.1%}" for r in rows))
    return report


def _row(case: Case, name: str, level: Level, exact: bool) -> dict[str, Any]:
    right = truth(case)
    verdict = judge(case, level, right)
    if exact and (verdict.precision, verdict.recall) != (1.0, 1.0):
        raise Disqualified(f"{name} keeps its promise on {case.name!r} but is not exact: {verdict}")
    found = ld.measure(case.events[case.stream.ts])
    return {
        "case": case.name,
        "unit": case.stream.unit,
        "share_late": found.share_late,
        "max_lateness": found.max_lateness,
        "level": name,
        **verdict.as_dict(),
    }
