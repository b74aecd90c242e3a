"""What was wanted, what was reached, and by which command: from the results that are kept.

Rule: a goal is reached when it is on *every* workload that it speaks of. Nothing is rounded in its favour; a goal
without results says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Results = dict[str, dict[str, Any]]
Values = dict[str, float]

#: The verdict on a goal without results.
UNKNOWN = "not measured"

#: The workloads that most goals speak of.
FOUR = ("W1", "W2", "W3", "W4")


@dataclass(frozen=True, slots=True)
class Goal:
    """``values(results)`` gives the figure of each workload or size; the goal is ``>=`` or ``<=`` ``wanted``."""

    text: str
    wanted: float
    command: str
    values: Callable[[Results], Values]
    at_most: bool = False
    form: str = ".1f"

    def reached(self, values: Values) -> bool:
        if self.at_most:
            return all(v <= self.wanted for v in values.values())
        return all(v >= self.wanted for v in values.values())


def table_rows(results: Results) -> list[list[str]]:
    """Goal, figures, verdict, command."""
    rows = []
    for goal in goals():
        try:
            values = goal.values(results)
        except (KeyError, StopIteration):
            values = {}
        told = ", ".join(f"{name} {value:{goal.form}}".strip() for name, value in values.items())
        verdict = UNKNOWN if not values else "yes" if goal.reached(values) else "no"
        rows.append([goal.text, told, verdict, f"`{goal.command}`"])
    return rows


def goals() -> list[Goal]:
    """All of them, in the order of the table."""
    fast, small = "Latecomer, batches of 8,192", "Latecomer, batches of 256"
    peers, speed, more = "make bench-peers", "make bench-speed", "make bench-"
    numpy = "make bench-speed-numpy"
    return [
        Goal("At least 50 × Flink CEP, batches of 8,192", 50, peers, _over(fast, "Flink CEP", MAX)),
        Goal("At least 10 × Esper on input sorted for it, batches of 8,192", 10, peers, _over(fast, "Esper", "sorted")),
        Goal("At least 10 × Flink CEP, batches of 256", 10, peers, _over(small, "Flink CEP", MAX)),
        Goal("At least 4 × Esper, batches of 256", 4, peers, _over(small, "Esper", "sorted")),
        Goal("No slower than DuckDB on the finished file", 1, peers, _over(fast, "DuckDB", ""), form=".2f"),
        Goal("0.5 of NumPy on the whole file, without the compiled kernel", 0.5, numpy, _ratio(True), form=".2f"),
        Goal("Faster than NumPy on the whole file, with the compiled kernel", 1, speed, _ratio(False), form=".2f"),
        Goal(
            "One event at a time, without the compiled kernel: 5,000 a second", 5_000, numpy, _single(True), form=",.0f"
        ),
        Goal(
            "One event at a time, with the compiled kernel: 50,000 a second", 50_000, speed, _single(False), form=",.0f"
        ),
        Goal("30 % late costs at most 1.5 × 0 %", 1.5, speed, _lateness, True, ".2f"),
        Goal("Ten queries over one stream cost at most 4 × one", 4, more + "speed-W6", _ten, True),
        Goal("An event costs at most 2 × from 10^5 to 10^7 stored", 2, more + "growth", _growth, True),
        Goal("At most 64 bytes per stored event beyond its payload", 64, more + "growth", _bytes, True, ",.0f"),
        Goal("p99 from arrival to change at most 5 ms, at 50,000 events/s", 5, more + "latency", _late("p99"), True),
        Goal("p99.9 at most 20 ms", 20, more + "latency", _late("p99.9"), True),
        Goal("Two workers at least 1.7 × one", 1.7, more + "workers", _workers, form=".2f"),
    ]


MAX = "bound 5000 ms"


def _over(ours: str, theirs: str, which: str) -> Callable[[Results], Values]:
    """Our speed over that of the engine whose name holds both texts; where there are two, the faster one counts."""

    def values(results: Results) -> Values:
        found = {}
        for name in FOUR:
            rows = results[f"peers-{name}-10"]["rows"]
            own = next(r["events_per_s"] for r in rows if r["engine"] == ours)
            found[name] = own / max(r["events_per_s"] for r in rows if theirs in r["engine"] and which in r["engine"])
        return found

    return values


def _cell(results: Results, part: str, **wanted: Any) -> dict[str, Any]:
    wanted = {"batch": 8_192, "late": 0.1, "level": "aggressive", **wanted}
    return next(r for r in results[part]["rows"] if all(r.get(k) == v for k, v in wanted.items()) and "query" not in r)


def _of(results: Results, name: str, numpy: bool, **wanted: Any) -> dict[str, Any]:
    return _cell(results, "speed-numpy" if numpy else f"speed-{name}", workload=name, **wanted)


def _ratio(numpy: bool) -> Callable[[Results], Values]:
    return lambda results: {name: _of(results, name, numpy)["ratio"] for name in FOUR}


def _single(numpy: bool) -> Callable[[Results], Values]:
    return lambda results: {name: _of(results, name, numpy, batch=1)["events_per_s"] for name in FOUR}


def _lateness(results: Results) -> Values:
    speed = {(n, late): _of(results, n, False, late=late)["events_per_s"] for n in FOUR for late in (0.0, 0.3)}
    return {name: speed[name, 0.0] / speed[name, 0.3] for name in FOUR}


def _ten(results: Results) -> Values:
    together = _of(results, "W6", False)["events_per_s"]
    alone = [1 / r["events_per_s"] for r in results["speed-W6"]["rows"] if "query" in r]
    return {"mean of the ten": 1 / together / (sum(alone) / len(alone)), "dearest": 1 / together / max(alone)}


def _growth(results: Results) -> Values:
    rows = {r["wanted"]: r["us_per_event"] for r in results["growth"]["rows"]}
    return {"10^6:": rows[1_000_000] / rows[100_000], "10^7:": rows[10_000_000] / rows[100_000]}


def _bytes(results: Results) -> Values:
    return {f"{r['stored']:,}:": r["beyond_payload"] for r in results["growth"]["rows"] if r["wanted"] >= 100_000}


def _late(quantile: str) -> Callable[[Results], Values]:
    return lambda results: {"": results["latency"]["rows"][0]["changes"][quantile]}


def _workers(results: Results) -> Values:
    rows = [r for r in results["workers"]["rows"] if r["workers"] == 2]
    return {f"{r['workload']}/{r['batch'] // 1024}k": r["scaling"] for r in rows}
