"""State beyond memory: what a budget costs, and what versions and restoring cost.

Six figures, each a ratio within one run or a bound: the time with state ten times the budget against the time without
any budget; peak resident memory against the budget; memory per event beyond its payload; the time per batch as state
grows a hundredfold; the time from opening a state to the first answer; a version after few changes against a full one.
Everything is measured in processes of its own (``spill_child.py``). With and without a budget the answer must be the
same, else the figures are disqualified. ``python -m benchmarks.spill budget growth`` measures these parts alone (of
``budget``, ``growth``, ``versions`` and ``waits``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Disqualified, Report, table
from benchmarks.spill_child import BATCH, LATE, PER_MS, QUERY

Result = dict[str, Any]
Child = Callable[..., Result]

#: How late events wait: for the retention divided by this, and in pages of so many; None: by default.
_WAITS = ((None, None), (64, None), (16, None), (4, None), (2, None), (None, 256), (None, 65_536))
#: A child that takes longer has hung.
_PATIENCE_S = 1_800
_ROOT = Path(__file__).resolve().parent.parent
PARTS = ("budget", "growth", "versions", "waits")


@dataclass(frozen=True, slots=True)
class Sizes:
    """``window``: of the query, in ms. How many events are stored: with a budget of a tenth of that, as state grows,
    for versions, and to see how long late events should wait.
    """

    window: int
    state: int
    marks: tuple[int, ...]
    versions: int
    waiting: int
    growing_budget: int  # bytes


FULL = Sizes(10_000, 4_000_000, (100_000, 1_000_000, 10_000_000), 2_000_000, 1_000_000, 256 << 20)
QUICK = Sizes(2_000, 200_000, (20_000, 200_000), 100_000, 50_000, 8 << 20)

#: What was asked for, by figure: the most that it may be.
WANTED: Mapping[str, float] = {
    "time, state 10 times the budget / no budget": 2.0,
    "peak resident memory / (budget + interpreter)": 1.2,
    "memory per event beyond its payload, bytes": 64.0,
    "time per batch, most events stored / fewest": 3.0,
    "from opening a state to the first answer, s": 2.0,
    "a version with 1 % changed / a full one": 0.05,
}


def child(do: str, **spec: Any) -> Result:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.spill_child", json.dumps({"do": do, **spec})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, cwd=_ROOT, check=False)
    if done.returncode:
        raise Disqualified(f"{do} failed with {done.returncode}:\n{done.stderr[-2_000:]}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def run(
    repeats: int = 3,
    *,
    quick: bool = False,
    say: Callable[[str], None] = print,
    start: Child = child,
    parts: Sequence[str] = PARTS,
) -> Report:
    """Measure all six, or those of ``parts``; raises Disqualified when an answer is wrong or a measurement fails."""
    sizes = QUICK if quick else FULL
    query = QUERY.format(window=sizes.window)
    settings = {"query": query, "late": LATE, "batch": BATCH, "repeats": repeats, "quick": quick, **asdict(sizes)}
    report = Report("spill", settings)
    figures: dict[str, float] = {}

    def told(do: str, **spec: Any) -> Result:
        """Tells of each run as soon as it is over: all together they take long."""
        began = time.monotonic()
        result = start(do, **spec)
        budget = f", budget {spec['memory'] / 2**20:,.0f} MiB" if spec.get("memory") else ""
        found = ", ".join(
            f"{name} {result[name] / size:,.2f} {unit}"
            for name, size, unit in (
                ("wall_s", 1, "s"),
                ("cpu_s", 1, "s"),
                ("peak", 2**20, "MiB"),
                ("answer_s", 1, "s"),
            )
            if name in result
        )
        took = time.monotonic() - began
        say(f"{do}: {spec['events']:,} events, {spec['state']:,} of them kept{budget}: {took:,.0f} s ({found})")
        return result

    measures = dict(zip(PARTS, (_budget, _growth_and_opening, _versions, _waits), strict=True))
    for part in parts:
        found, raw = measures[part](sizes, repeats, told)
        figures |= found
        report.rows += raw
    report.rows.insert(0, {"figures": figures, "wanted": dict(WANTED)})
    say(f"\n{query}, aggressive, {LATE:.0%} of events late over the whole retention, batches of {BATCH:,}")
    say(shown(figures))
    for line in _remarks(report.rows):
        report.notes.append(line)
        say(line)
    return report


def shown(figures: Mapping[str, float]) -> str:
    """The figures against what was wanted, as a Markdown table."""
    cells = [
        [name, f"{figures[name]:.3g}", f"{most:.3g}", "✓" if figures[name] <= most else "✗"]
        for name, most in WANTED.items()
        if name in figures
    ]
    return table(["figure", "found", "at most", ""], cells)


def _budget(sizes: Sizes, repeats: int, start: Child) -> tuple[dict[str, float], list[Result]]:
    """The first three: runs without and with a budget in turns, over twice the events that are stored."""
    common = {"state": sizes.state, "window": sizes.window, "events": 2 * sizes.state}
    interpreter = start("stream", **{**common, "events": BATCH})  # one batch: all that is loaded, no state
    free, bound = [], []
    budget = 0
    for _ in range(repeats):
        free.append(start("stream", **common))
        budget = budget or free[0]["bytes"] // 10
        with _folder() as folder:
            bound.append(start("stream", **common, memory=budget, folder=folder))
    for result in bound:
        same_answer(free[0], result)
    figures = {
        "time, state 10 times the budget / no budget": _least(bound, "wall_s") / _least(free, "wall_s"),
        "peak resident memory / (budget + interpreter)": max(r["peak"] for r in bound)
        / (budget + interpreter["resident"]),
        "memory per event beyond its payload, bytes": free[0]["bytes"] / free[0]["stored"] - free[0]["payload"],
    }
    rows = [{"run": "interpreter", **interpreter}]
    rows += [{"run": "no budget", **result} for result in free]
    return figures, rows + [{"run": "budget", "budget": budget, **result} for result in bound]


def _growth_and_opening(sizes: Sizes, repeats: int, start: Child) -> tuple[dict[str, float], list[Result]]:
    """The fourth and fifth: one long run under a budget that leaves a state behind, which others then open."""
    most = max(sizes.marks)
    common = {"state": most, "window": sizes.window, "events": most + most // 10, "memory": sizes.growing_budget}
    with _folder() as folder:
        grown = start("stream", **common, folder=folder, marks=list(sizes.marks), checkpoint=True)
        opened = [start("reopen", **common, folder=folder) for _ in range(repeats)]
    for result in opened:
        if result["late"] or result["stored"] < most:  # what is forgotten already leaves memory bit by bit
            raise Disqualified(f"the state that was opened is not the one that was written: {result} after {grown}")
    figures = {
        "time per batch, most events stored / fewest": grown["marks"][-1]["wall_ms"] / grown["marks"][0]["wall_ms"],
        "from opening a state to the first answer, s": _least(opened, "answer_s"),
    }
    return figures, [{"run": "growth", **grown}, *({"run": "opening", **result} for result in opened)]


def _versions(sizes: Sizes, repeats: int, start: Child) -> tuple[dict[str, float], list[Result]]:
    """The sixth: bytes and time of a version after changes in 1 % of the frames; the larger share of the two counts."""
    with _folder() as folder:
        common = {"state": sizes.versions, "window": sizes.window, "events": sizes.versions}
        found = start("versions", **common, folder=folder)
    shares = [
        statistics.median(changed[unit] for changed in found["changed"]) / found["full"][unit]
        for unit in ("s", "bytes")
    ]
    return {"a version with 1 % changed / a full one": max(shares)}, [{"run": "versions", "shares": shares, **found}]


def _waits(sizes: Sizes, repeats: int, start: Child) -> tuple[dict[str, float], list[Result]]:
    """No figure that was asked for: what it costs to let late events wait for shorter or longer than by default."""
    retention = sizes.waiting // PER_MS
    common = {"state": sizes.waiting, "window": max(sizes.window // 4, 2_000), "events": 2 * sizes.waiting}
    free = start("stream", **common)
    rows = []
    memory = max(free["bytes"] // 10, 1 << 20)
    for part, batch in _WAITS:
        wait = None if part is None else retention // part
        with _folder() as folder:
            bound = start("stream", **common, memory=memory, folder=folder, wait=wait, batch=batch)
        same_answer(free, bound)
        ratio = bound["cpu_s"] / free["cpu_s"]
        rows.append({"run": "waits", "part": part, "batch": batch, "ratio_cpu": ratio, **bound})
    return {}, rows


def same_answer(one: Result, other: Result) -> None:
    """Raises Disqualified unless two runs over the same events ended with the same matches."""
    for name in ("answer", "matches", "late"):
        if one[name] != other[name]:
            raise Disqualified(f"{name} without a budget: {one[name]}; with one: {other[name]}")


def _least(results: list[Result], name: str) -> float:
    return float(min(result[name] for result in results))


def _remarks(rows: list[Result]) -> Iterator[str]:
    """What lies behind the figures, one line each."""
    by_run: dict[str, list[Result]] = {}
    for row in rows:
        by_run.setdefault(row.get("run", ""), []).append(row)
    if bound := by_run.get("budget", []):
        free, first = by_run["no budget"], bound[0]
        yield (
            f"{first['stored']:,} events stored, {free[0]['bytes'] / 2**20:,.0f} MiB without a budget, budget "
            f"{first['budget'] / 2**20:,.0f} MiB; by processor time the ratio is "
            f"{_least(bound, 'cpu_s') / _least(free, 'cpu_s'):.2f}"
        )
        yield (
            f"peak {max(r['peak'] for r in bound) / 2**20:,.0f} MiB, without a budget "
            f"{free[0]['peak'] / 2**20:,.0f} MiB, the interpreter alone "
            f"{by_run['interpreter'][0]['resident'] / 2**20:,.0f} MiB"
        )
    for growth in by_run.get("growth", []):
        yield "per batch: " + ", ".join(
            f"{mark['wall_ms']:.1f} ms ({mark['cpu_ms']:.1f} of processor time) at {mark['stored']:,} events"
            for mark in growth["marks"]
        )
        opening = min(by_run["opening"], key=lambda result: float(result["answer_s"]))
        yield (
            f"{opening['stored']:,} events opened in {opening['open_s']:.2f} s, "
            f"answer after {opening['answer_s']:.2f} s"
        )
    for found in by_run.get("versions", []):
        full, changed = found["full"], found["changed"]
        after = ", ".join(f"{c['bytes'] / 2**20:.2f} MiB in {c['s']:.3f} s" for c in changed)
        yield (
            f"a full version of {found['stored']:,} events: {full['bytes'] / 2**20:,.1f} MiB in {full['s']:.2f} s; "
            f"after changes: {after}"
        )
    if waits := by_run.get("waits", []):
        yield "late events wait at most, and time against no budget: " + ", ".join(
            ("default" if row["part"] is None else f"retention/{row['part']}")
            + ("" if row["batch"] is None else f" and {row['batch']:,} together")
            + f": {row['ratio_cpu']:.1f}"
            for row in waits
        )


@contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="latecomer-spill-") as folder:
        yield str(Path(folder) / "state")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spill", description="What a memory budget costs.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which figures: {', '.join(PARTS)} (default: all)")
    chosen = parser.parse_args().parts or PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    run(parts=chosen)
