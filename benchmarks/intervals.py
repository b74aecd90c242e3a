"""Interval timestamps: what matching and confidences cost by length of interval, window, key and strategy.

Rule: the rival is the point-based framework of Zhang 2010: each interval is expanded to one event for each instant, an
engine for certain times (ours) matches the points, and what it finds is collapsed to one match for each list of
events. Both programs get the same events and must find the same matches with the same confidences. ``matching`` is the
interval program without confidences, ``runtime`` is all of it through :class:`latecomer.Runtime`. All are measured from
columns in memory to answers in memory, in batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import latecomer as lc
from benchmarks.harness import Disqualified, Report, table, take_turns
from latecomer.errors import MissingDependency
from latecomer.query.plan import Plan
from latecomer.runtime.evaluate import Times, compile_truth
from latecomer.runtime.intervals.matcher import IntervalMatcher
from latecomer.runtime.intervals.pattern import IntervalPattern
from latecomer.runtime.intervals.reading import SHAPE, UPPER
from latecomer.runtime.intervals.spans import SpanStore
from latecomer.runtime.intervals.timing import LogTiming
from latecomer.runtime.pattern import Tester
from latecomer.runtime.selection import Selector
from latecomer.storage.log import EventLog
from latecomer.storage.store import CodeLayout

KINDS = ("A", "B", "C")
SEQUENCE = "PATTERN SEQ(A a, B b, C c) WHERE [key] WITHIN {window}"
NEGATION = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN {window}"
NEXT = "skip-till-next-match"
_BATCH = 4096
_PROGRAMS = ("intervals", "matching", "runtime", "points")

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "intervals-speed.svg"

#: Confidence by the numbers of a match's events.
Found = dict[tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Load:
    """``n`` events, one in each unit of time, of three types and ``keys`` keys, known to within some ``length`` units
    (1 to twice that, evenly; exactly ``length`` where it is 1 or ``even``).
    """

    n: int
    length: int
    keys: int
    even: bool = False
    shares: tuple[float, ...] | None = None  # of the types; None: alike

    def columns(self) -> dict[str, Any]:
        rng = np.random.default_rng(5)
        plain = self.even or self.length == 1
        lengths = np.full(self.n, self.length) if plain else rng.integers(1, 2 * self.length, self.n)
        # The middle of the interval is when it is taken to have happened: then sparse and dense loads are alike.
        lower = np.arange(self.n) - lengths // 2
        kind, key = rng.choice(len(KINDS), self.n, p=self.shares), rng.integers(0, self.keys, self.n)
        order = lower.argsort(kind="stable")
        return {"kind": kind, "key": key, "lower": lower[order], "upper": (lower + lengths - 1)[order]}


class Core:
    """The interval operator between columns and answers: event log, span stores, matcher."""

    def __init__(self, plan: Plan, longest: int) -> None:
        times = Times("s", pa.int64())
        self._log = EventLog({"key": pa.int64(), UPPER: pa.int64(), SHAPE: pa.int64()})
        self._window = plan.window.units("s")
        self._keep = self._window + longest
        self._pattern = IntervalPattern(plan, self._window, {"key": pa.int64()}, times)
        layout = CodeLayout.for_reach(self._keep)
        self._stores = {s: SpanStore(layout) for s in sorted(self._pattern.selections(), key=repr)}
        self._conditions = {c: compile_truth(c, times) for s in self._stores for c in s.filter}
        self._numbers = {kind: i for i, kind in enumerate(KINDS)}
        tester, timing = Tester(self._log, self._pattern), LogTiming(self._log)
        self._matcher = IntervalMatcher(
            self._pattern, self._stores.__getitem__, layout, timing, tester, plan.confidence, steps=1e9
        )

    def run(self, columns: dict[str, Any], assess: bool) -> Found:
        """The net answer; without ``assess`` candidates are found and counted, but have no confidence."""
        found: Found = {}
        for start in range(0, len(columns["lower"]), _BATCH):
            part = {name: values[start : start + _BATCH] for name, values in columns.items()}
            self._stage(part)
            if assess:
                for revision in self._matcher.step():
                    refs = zip(*(revision.rows.ref(i).tolist() for i in self._pattern.positives), strict=True)
                    if revision.insert:
                        found.update(zip(refs, revision.confidence.tolist(), strict=True))
                    else:
                        for match in refs:
                            del found[match]
            else:
                for rows in self._matcher.candidates():
                    found[len(found),] = len(rows)
            floor = int(part["lower"][-1]) - self._keep
            for store in self._stores.values():
                store.commit()
                store.purge(floor)
        return found

    def _stage(self, part: dict[str, Any]) -> None:
        lower, n = part["lower"], len(part["lower"])
        columns = {"key": pa.array(part["key"]), UPPER: pa.array(part["upper"]), SHAPE: pa.array(np.zeros(n, np.int64))}
        refs = self._log.end + np.arange(n)
        self._log.append(lower, part["kind"], np.zeros(n, np.uint64), columns)
        selector = Selector(part["kind"], self._numbers, lower, columns, self._conditions)
        for selection, store in self._stores.items():
            at, hashes = selector.select(selection)
            store.stage(hashes, lower[at], part["upper"][at], refs[at])


def points(text: str, columns: dict[str, Any]) -> Found:
    """The point-based framework: expand, match with certain times, collapse. Without negation, as in the paper."""
    variables = "abc"
    fields = ", ".join(f"{v}.event AS {v}" for v in variables)
    query = lc.Query(f"{text} RETURN {fields}", level=lc.Aggressive(0))
    runtime = lc.Runtime(lc.Stream(type="kind", ts="ts", unit="s"), [query])
    lengths = columns["upper"] - columns["lower"] + 1
    event = np.arange(len(lengths)).repeat(lengths)
    ts = columns["lower"][event] + np.arange(len(event)) - (lengths.cumsum() - lengths)[event]
    order = ts.argsort(kind="stable")
    event, ts = event[order], ts[order]
    kinds = pa.array(KINDS)
    sums: dict[int, int] = {}
    n = len(lengths)
    for start in range(0, len(event), _BATCH):
        at, now = event[start : start + _BATCH], pa.array(ts[start : start + _BATCH])
        kind = kinds.take(pa.array(columns["kind"][at]))
        batch = pa.table({"kind": kind, "key": columns["key"][at], "ts": now, "event": at})
        for changes in runtime.stream_pieces(batch):
            a, b, c = (changes.changes[v].to_numpy() for v in variables)
            matches, counts = np.unique((a * n + b) * n + c, return_counts=True)
            for match, count in zip(matches.tolist(), counts.tolist(), strict=True):
                sums[match] = sums.get(match, 0) + count
    found = {}
    for match, count in sums.items():
        events = (match // n // n, match // n % n, match % n)
        found[events] = count / float(np.prod(lengths[list(events)], dtype=np.float64))
    return found


def whole(text: str, columns: dict[str, Any], longest: int) -> int:
    """The same through the front door: a runtime, from tables to changes; returns the matches in the end."""
    query = lc.Query(text, level=lc.Aggressive(0))
    stream = lc.Stream(type="kind", lower="lower", upper="upper", longest=longest, id="id", unit="s")
    runtime, matches = lc.Runtime(stream, query), 0
    kinds = pa.array(KINDS).take(pa.array(columns["kind"]))
    events = pa.table({**columns, "kind": kinds, "id": np.arange(len(columns["kind"]))})
    for batch in events.to_batches(_BATCH):
        counts = runtime.process(batch).changes["op"].value_counts().to_pylist()
        matches += sum(c["counts"] * (1 if c["values"] == "insert" else -1) for c in counts)
    return matches


def check(name: str, one: Found, other: Found) -> None:
    """Raise where two answers differ."""
    if set(one) != set(other):
        raise Disqualified(
            f"{name}: {len(one)} and {len(other)} matches, {len(set(one) ^ set(other))} of one side only"
        )
    worst = max((abs(one[match] - other[match]) for match in one), default=0.0)
    if worst > 1e-9:
        raise Disqualified(f"{name}: confidences differ by {worst}")


def cases(quick: bool) -> Iterator[tuple[str, str, str, int, Load, bool]]:
    """(group, text, strategy, window, load, whether points can be expected to end)."""
    n = 20_000 if quick else 200_000
    any_ = "skip-till-any-match"
    lengths = (1, 10, 100) if quick else (1, 10, 100, 300, 1000)
    for length in lengths:
        yield "length", SEQUENCE, any_, 500, Load(n if length <= 100 else n // 5, length, 2000), False
        yield "length, negation", NEGATION, any_, 500, Load(n if length <= 100 else n // 10, length, 2000), False
    for window in (100, 1000) if quick else (100, 1000, 10_000):
        yield "window", SEQUENCE, any_, window, Load(n, 10, 5000), False
    for keys in (200, 2000) if quick else (100, 300, 1000, 3000, 10_000):
        yield "selectivity", SEQUENCE, any_, 300, Load(n, 10, keys), False
    for shares in ((0.49, 0.49, 0.02), (0.02, 0.49, 0.49), (0.49, 0.02, 0.49)):
        rare = "ABC"[shares.index(0.02)]
        yield f"{rare} is rare", SEQUENCE, any_, 300, Load(n, 10, 100, shares=shares), False
    for keys in (20, 200):
        yield "strategy", SEQUENCE, NEXT, 300, Load(n // 10, 10, keys), False
    for length in (1, 10, 30) if quick else (1, 10, 30, 100):
        rows = {1: 20_000, 10: 20_000, 30: 6000, 100: 1500}[length]
        yield "points", SEQUENCE, any_, 500, Load(rows, length, 600, even=True), True


def run(repeats: int, *, quick: bool = False) -> Report:
    """Measure all cases; raises Disqualified where an answer is wrong."""
    report = Report("intervals", {"batch": _BATCH, "repeats": repeats, "quick": quick})
    for group, text, strategy, window, load, rival in cases(quick):
        plan = replace(lc.Query(text.format(window=window), level=lc.Aggressive(0)).plan, strategy=strategy)
        columns, answers = load.columns(), {}
        longest = int((columns["upper"] - columns["lower"]).max()) + 1

        def intervals(assess: bool = True, plan: Plan = plan, longest: int = longest) -> None:
            answers[assess] = Core(plan, longest).run(columns, assess)  # noqa: B023  (called before the next case)

        programs = {"intervals": intervals, "matching": lambda: intervals(False)}
        if group.startswith("length"):

            def front_door(text: str = text.format(window=window), longest: int = longest) -> None:
                answers["runtime"] = whole(text, columns, longest)  # noqa: B023

            programs["runtime"] = front_door
        if rival:

            def expanded(text: str = text.format(window=window)) -> None:
                answers["points"] = points(text, columns)  # noqa: B023

            programs["points"] = expanded
        timings = take_turns(programs, repeats, warmups=0 if load.length >= 100 else 1)
        if rival:
            check(f"{group}, length {load.length}", answers[True], answers["points"])
        if answers.get("runtime", len(answers[True])) != len(answers[True]):
            raise Disqualified(f"{group}, length {load.length}: the runtime finds {answers['runtime']} matches")
        row: dict[str, Any] = {"group": group, "length": load.length, "window": window, "keys": load.keys}
        row |= {"n": load.n, "strategy": strategy, "matches": len(answers[True])}
        row |= {"candidates": sum(map(int, answers[False].values()))}
        row |= {name: load.n / timing.best_cpu for name, timing in timings.items()}
        report.rows.append(row)
        print(_line(row), flush=True)
    print(shown(report.rows))
    return report


def _line(row: dict[str, Any]) -> str:
    speeds = ", ".join(f"{name} {row[name]:,.0f}/s" for name in _PROGRAMS if name in row)
    return f"{row['group']}: length {row['length']}, window {row['window']}, keys {row['keys']}: {speeds}"


def shown(rows: list[dict[str, Any]]) -> str:
    """All rows as a table."""
    headers = ["", "length", "window", "keys", "events", "candidates", "matches", *_PROGRAMS, "times"]
    cells = []
    for row in rows:
        numbers = [row[name] for name in ("length", "window", "keys", "n", "candidates", "matches")]
        speeds = [f"{row[name]:,.0f}" if name in row else "" for name in _PROGRAMS]
        times = f"{row['intervals'] / row['points']:,.1f}" if "points" in row else ""
        cells.append([row["group"], *(f"{n:,}" for n in numbers), *speeds, times])
    return table(headers, cells)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots of speed against interval length, window and matches, on logarithmic scales."""
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "drawing the plots") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "latecomer", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
    lines = [
        (0, "length", "length", "matching", "matching alone"),
        (0, "length", "length", "intervals", "SEQ(A, B, C)"),
        (0, "length, negation", "length", "intervals", "SEQ(A, !B, C)"),
        (0, "points", "length", "points", "point by point"),
        (1, "window", "window", "intervals", "SEQ(A, B, C)"),
        (2, "selectivity", "matches", "intervals", "SEQ(A, B, C)"),
    ]
    for place, group, along, program, label in lines:
        mine = sorted((r for r in rows if r["group"] == group), key=lambda r: r[along])
        axes[place].loglog([r[along] for r in mine], [r[program] for r in mine], marker="o", markersize=3, label=label)
    for axis, title in zip(axes, ("interval length", "window (length 10)", "matches (length 10)"), strict=True):
        axis.set_xlabel(title)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("events per second of processor time")
    axes[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    import sys

    quick = "--quick" in sys.argv
    measured = run(1 if quick else 3, quick=quick)
    measured.save()
    if not quick:
        draw(measured.rows, FIGURE)
