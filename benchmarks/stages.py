"""How much of a batch's time goes to which stage of its road, by size of batch.

Rule: the stages' own functions are wrapped in clocks, a handful of calls for each batch, so that what is measured is
hardly disturbed (a profiler charges every small call). Time within a stage counts for the innermost one; what no stage
takes is the rest: Python between the stages. The state is filled unmeasured, as for the speeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Report, table
from benchmarks.shapes import WORKLOADS
from benchmarks.speed import FEW, Replay, Setting
from latecomer.runtime import changes, engine, express, step, timekeeper
from latecomer.runtime.intake import Intake
from latecomer.storage import ids, kernels, store

NAMES, BATCHES, MOST_CALLS, EVENTS = ("W1", "W2"), (1, 256, 8_192), 2_000, 1_000_000

#: Stages in the order of a batch's road: what they are called, and the functions that do them.
STAGES: dict[str, list[tuple[Any, str]]] = {
    "a step, from rows to joins": [(step.Step, "take")],
    "columns, types, hashes": [(Intake, "read")],
    "clock, promises, lateness": [
        (timekeeper.Timekeeper, "pass_by"),
        (timekeeper.Timekeeper, "pass_to"),
        (timekeeper.Timekeeper, "read"),
        (engine.Engine, "_judge"),
    ],
    "ids": [(engine, "resolve"), (ids.IdIndex, "enter"), (ids.IdIndex, "tend")],
    "event log": [(engine.Engine, "log_rows"), (engine.Engine, "purge")],
    "stores: sort, merge, purge": [
        (express.Express, "_place"),
        (store.Store, "stage"),
        (store.Store, "commit"),
        (store.Store, "purge"),
    ],
    "joins": [(kernels, "follow_each"), (kernels, "follow"), (kernels, "resume")],
    "changes": [(changes.ChangeWriter, name) for name in ("take", "write_answer", "write")],
}
REST = "between them"


class Clocks:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys([*STAGES, REST], 0.0)
        self._within: list[str] = []
        self._since = 0.0

    def enter(self, stage: str) -> None:
        self._pass()
        self._within.append(stage)

    def leave(self) -> None:
        self._pass()
        self._within.pop()

    def _pass(self) -> None:
        now = time.perf_counter()
        if self._within:
            self.seconds[self._within[-1]] += now - self._since
        self._since = now

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            self.enter(stage)
            try:
                return function(*given, **named)
            finally:
                self.leave()

        return timed


@contextmanager
def clocked() -> Iterator[Clocks]:
    """The engine with clocks at its stages."""
    clocks = Clocks()
    plain = [(owner, name, getattr(owner, name)) for own in STAGES.values() for owner, name in own]
    try:
        for stage, own in STAGES.items():
            for owner, name in own:
                if getattr(owner, name) is not None:  # there is no compiled kernel
                    setattr(owner, name, clocks.around(stage, getattr(owner, name)))
        yield clocks
    finally:
        for owner, name, function in plain:
            setattr(owner, name, function)


def run(repeats: int = 3, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """The stages of each workload at each size: of ``repeats`` runs the shortest."""
    report = Report("stages", {"late": 0.1, "level": "aggressive", "quick": quick, "repeats": repeats})
    for name in NAMES[:1] if quick else NAMES:
        for size in BATCHES:
            setting = Setting(WORKLOADS[name], size, events=FEW if quick else EVENTS)
            replay = Replay(setting, setting.workload.events(setting.events, setting.late))
            replay.measured = replay.measured[:MOST_CALLS]
            runs = [_measure(replay) for _ in range(repeats)]
            report.rows.append({"workload": name, "batch": size, "us": min(runs, key=lambda us: sum(us.values()))})
    say(shown(report.rows))
    return report


def _measure(replay: Replay) -> dict[str, float]:
    """Microseconds of a batch, by stage."""
    runtime, _ = replay.filled()
    with clocked() as clocks:
        for batch in replay.measured:
            clocks.enter(REST)
            runtime.process(batch)
            clocks.leave()
    return {stage: seconds / len(replay.measured) * 1e6 for stage, seconds in clocks.seconds.items()}


def shown(rows: list[dict[str, Any]]) -> str:
    """The stages as a Markdown table: microseconds of a batch, and their share."""
    heads = ["µs of a batch", *[f"{r['workload']}, {r['batch']:,}" for r in rows]]
    whole = [sum(r["us"].values()) for r in rows]
    lines = [
        [stage, *[f"{r['us'][stage]:,.0f} ({r['us'][stage] / all:.0%})" for r, all in zip(rows, whole, strict=True)]]
        for stage in [*STAGES, REST]
    ]
    return table(heads, [*lines, ["together", *[f"{all:,.0f}" for all in whole]]])
