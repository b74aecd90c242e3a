"""Our engine against the offline limit, on any workload, batch size, lateness and level.

``python -m benchmarks.speed W2 --batch 8192 --late 10`` answers within seconds; lists, as in ``W1,W2 --batch
256,8192 --late 0,30 --level aggressive,kslack``, are run one by one.

Rule: the engine is fed record batches in order of arrival. The first events fill the state unmeasured; what is measured
is ``Runtime.process`` on the rest, with the output tables that it makes, so small batches are measured with as much
state as large ones. Then the stream is ended, unmeasured, and the net answer must be the limit's on the same events.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import latecomer as lc
from benchmarks import answers, harness, limit
from benchmarks.harness import Disqualified, Report, Timing, table
from benchmarks.shapes import MAX_DELAY, WORKLOADS, Workload
from benchmarks.workloads import batches
from latecomer.consistency.levels import Level

#: What a whole run covers; see :func:`grid`.
BATCHES = (1, 64, 256, 2_048, 8_192, 65_536)
LATE = (0.0, 0.1, 0.3, 0.5)
LEVELS = ("aggressive", "kslack", "conservative")

#: Events of a run and of a quick one, and most calls that are measured.
EVENTS, FEW, CALLS = 1_000_000, 150_000, 4_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the grid."""

    workload: Workload
    batch: int = 8_192
    late: float = 0.1
    level: str = "aggressive"
    events: int = EVENTS

    @property
    def measured(self) -> int:
        """How many events are measured, behind those that fill the state."""
        return max(min(self.events - self.workload.fill, self.batch * CALLS), self.batch)


def runtime(workload: Workload, level: str) -> lc.Runtime:
    """A fresh engine with the workload's queries, which promise what the events keep."""
    levels: dict[str, Level] = {
        "aggressive": lc.Aggressive(max_delay=MAX_DELAY),
        "kslack": lc.KSlack(MAX_DELAY),
        "conservative": lc.Conservative(),
    }
    promises = [lc.BoundedDelay(f"{MAX_DELAY} ms")] if level == "conservative" else []
    stream = lc.Stream(type="kind", ts="ts", id="id", unit="ms", promises=promises)
    return lc.Runtime(stream, [lc.Query(s.text, name=s.name, level=levels[level]) for s in workload.shapes])


class Replay:
    """The engine on prepared batches: filled, measured, checked."""

    def __init__(self, setting: Setting, events: pa.Table) -> None:
        fill, n = setting.workload.fill, setting.measured
        self.setting, self.events = setting, events.slice(0, fill + n)
        self.filling = batches(events.slice(0, fill), 65_536)
        self.measured = batches(events.slice(fill, n), setting.batch)

    def filled(self) -> tuple[lc.Runtime, list[pa.Table]]:
        """A fresh engine that has seen the first events, and what it put out."""
        engine = runtime(self.setting.workload, self.setting.level)
        return engine, [engine.process(batch).changes for batch in self.filling]

    def run(self, engine: lc.Runtime) -> list[pa.Table]:
        """What is measured."""
        return [engine.process(batch).changes for batch in self.measured]

    def verify(self) -> dict[str, Any]:
        """What came out and what is held; raises Disqualified unless the net answer is the limit's."""
        shapes = self.setting.workload.shapes
        engine, changes = self.filled()
        changes += self.run(engine)
        held = engine.explain()
        changes.append(engine.finish().changes)
        found, deletions = answers.net(changes, shapes)
        who = f"{self.setting.workload.name}, {self.setting.level}, {self.setting.late:.0%} late"
        count = answers.check(who, found, answers.truth(self.events, shapes), shapes)
        return {
            "matches": count,
            "deletions": deletions,
            "stored": held["events"],
            "bytes_per_event": held["bytes"] / max(held["events"], 1),
        }


class Cell:
    """One row of a table: the engine and the limit. Raises Disqualified when the answer is wrong."""

    def __init__(self, setting: Setting, events: pa.Table) -> None:
        self._setting, self._events = setting, events
        self._replay = Replay(setting, events)
        self._facts = self._replay.verify()  # the verified run and the truth are the warm-up
        self._engine, self._limit = Timing([], []), Timing([], [])

    def take_turn(self) -> None:
        """Measure each of the two once more."""
        timings = harness.take_turns(
            {
                "engine": self._replay.run,
                "limit": lambda _: limit.matches(self._events, self._setting.workload.shapes),
            },
            1,
            warmups=0,
            prepare={"engine": lambda: self._replay.filled()[0]},
        )
        self._engine.add(timings["engine"])
        self._limit.add(timings["limit"])

    def row(self) -> dict[str, Any]:
        setting = self._setting
        speed, possible = _speed(setting.measured, self._engine), _speed(setting.events, self._limit)
        return {
            "workload": setting.workload.name,
            "batch": setting.batch,
            "late": setting.late,
            "level": setting.level,
            "events": setting.measured,
            "events_per_s": speed,
            "limit_events_per_s": possible,
            "ratio": speed / possible,
            **self._facts,
            "engine": self._engine.as_dict(),
            "limit": self._limit.as_dict(),
        }


def measure(settings: Sequence[Setting], repeats: int = 3) -> list[dict[str, Any]]:
    """A row for each setting. All take turns: so when the machine is slow for a while, none is slow each time."""
    wanted = {(s.workload.events, s.events, s.late) for s in settings}
    streams = {(source, n, late): source(n, late) for source, n, late in wanted}
    cells = [Cell(s, streams[s.workload.events, s.events, s.late]) for s in settings]
    for _ in range(repeats):
        for cell in cells:
            cell.take_turn()
    return [cell.row() for cell in cells]


def _speed(events: int, timing: Timing) -> float:
    return events / timing.best_cpu


def grid(name: str, quick: bool) -> list[Setting]:
    """The cells of a whole run of one workload: each axis in turn around batches of 8,192, 10 % late, aggressive."""
    workload, n = WORKLOADS[name], FEW if quick else EVENTS
    if quick:
        return [Setting(workload, batch, events=n) for batch in (256, 8_192)]
    settings = [Setting(workload, batch, events=n) for batch in BATCHES]
    settings += [Setting(workload, late=late, events=n) for late in LATE if late != 0.1]
    return settings + [Setting(workload, level=level, events=n) for level in LEVELS[1:]]


def run(name: str, repeats: int = 3, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """Measure one workload; raises Disqualified when any answer is wrong."""
    queries = [shape.text for shape in WORKLOADS[name].shapes]
    what = {"queries": queries, "max_delay_ms": MAX_DELAY, "repeats": repeats, "quick": quick}
    report = Report(f"speed-{name}", what)
    workload, settings = WORKLOADS[name], grid(name, quick)
    single = workload.shapes if len(workload.shapes) > 1 else ()  # what ten of them together save
    alone = [Setting(replace(workload, shapes=(query,)), events=settings[0].events) for query in single]
    report.rows = measure([*settings, *alone], repeats)
    for row, query in zip(report.rows[len(settings) :], single, strict=True):
        row["query"] = query.name
    say("\n".join(shown(report.rows).splitlines()[2:]))
    return report


def numpy_kernel(repeats: int = 3, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """The engine as it runs where there was no compiler, in a process of its own, at the goals' settings."""
    command = [sys.executable, "-m", "benchmarks.speed", "W1,W2,W3,W4", "--batch", "1,256,8192", "--json"]
    command += ["--repeats", str(repeats), "--events", str(FEW if quick else EVENTS)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env={**os.environ, "LATECOMER_KERNEL": "numpy"}, timeout=900
    )
    if done.returncode:
        raise Disqualified(done.stderr.strip()[-500:])
    report = Report("speed-numpy", {"kernel": "numpy", "repeats": repeats, "quick": quick}, json.loads(done.stdout))
    say("\n".join(shown(report.rows).splitlines()[2:]))
    return report


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return table(
        ["workload", "level", "late", "batch", "events/s", "median", "spread", "limit", "ratio", "state, B/event"],
        [
            [
                r["workload"] + (f", {r['query']}" if "query" in r else ""),
                r["level"],
                f"{r['late']:.0%}",
                f"{r['batch']:,}",
                f"{r['events_per_s']:,.0f}",
                f"{r['events'] / r['engine']['median_cpu_s']:,.0f}",
                f"{r['engine']['spread']:.0%}",
                f"{r['limit_events_per_s']:,.0f}",
                f"{r['ratio']:.3f}",
                f"{r['bytes_per_event']:.0f}",
            ]
            for r in rows
        ],
    )


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 when an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="?", default=",".join(WORKLOADS), help="like W1,W2 (default: all)")
    parser.add_argument("--batch", default="8192", help="like 1,256 (default 8192)")
    parser.add_argument("--late", default="10", help="per cent, like 0,30 (default 10)")
    parser.add_argument("--level", default="aggressive", help=f"of {', '.join(LEVELS)}, or all")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(arguments)
    for option, given, allowed in (
        ("workload", options.workloads, WORKLOADS),
        ("--level", options.level, [*LEVELS, "all"]),
    ):
        if unknown := [name for name in given.split(",") if name not in allowed]:
            parser.error(f"{option} {', '.join(unknown)}: there are {', '.join(allowed)}")
    for option, given, least, most in (("--batch", options.batch, 1, 1 << 24), ("--late", options.late, 0, 100)):
        if wrong := [part for part in given.split(",") if not (part.isdecimal() and least <= int(part) <= most)]:
            parser.error(f"{option} {', '.join(wrong)}: give whole numbers from {least} to {most}")
    pa.set_cpu_count(1)
    levels = LEVELS if options.level == "all" else options.level.split(",")
    settings = [
        Setting(WORKLOADS[name], int(batch), float(late) / 100, level, options.events)
        for name in options.workloads.split(",")
        for level in levels
        for late in options.late.split(",")
        for batch in options.batch.split(",")
    ]
    try:
        rows = measure(settings, options.repeats)
    except Disqualified as problem:
        print(f"DISQUALIFIED: {problem}", file=sys.stderr)
        return 1
    print(json.dumps(rows) if options.json else shown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
