"""``python -m benchmarks.calibration``: are confidences right on real data? A plot for ``docs/intervals.md``.

Departures from New York City are known to the minute. Here the engine is told only the hour: their times are rounded
down and become intervals of 60 minutes. Every match that it finds is then looked up in the answer on the exact times:
of the matches of confidence 0.8, about 80 % should be true, and every true match must have been found.

The model behind confidences says that each departure is equally likely at each minute of its hour, whatever the others
do. Real departures crowd at some minutes of the hour, and do not leave at the same minute from one runway; what
that costs is what the plot shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks import harness
from benchmarks.data import flights

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "intervals-calibration.svg"
DAYS = 30
BINS = 10
LEVEL = lc.Conservative()

#: By name: a query, and the windows (minutes) whose matches count together, so that all confidences occur.
QUERIES = {
    "two late ones": ("PATTERN SEQ(Late a, Late b) WHERE [carrier, origin] WITHIN {} min", range(30, 121, 10)),
    "none merely delayed between": (
        "PATTERN SEQ(Late a, !Delayed b, Late c) WHERE [carrier, origin] WITHIN {} min",
        range(30, 121, 10),
    ),
    "punctual, delayed, late: the next each time": (
        "PATTERN SEQ(OnTime a, Delayed b, Late c) WHERE [carrier, origin] WITHIN {} min STRATEGY skip-till-next-match",
        [60, 90],
    ),
}

Bools = npt.NDArray[np.bool_]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reliability:
    """Matches by bin of confidence: ``mean`` confidence, ``true`` share and ``count``, each (bins,)."""

    mean: F64
    true: F64
    count: npt.NDArray[np.int64]
    missed: int

    @classmethod
    def of(cls, confidence: F64, true: Bools, missed: int) -> Reliability:
        bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        count = np.bincount(bins, minlength=BINS)
        some = np.maximum(count, 1)
        mean = np.bincount(bins, confidence, BINS) / some
        return cls(mean, np.bincount(bins, true, BINS) / some, count, missed)

    @property
    def error(self) -> float:
        """The mean distance of the share of true matches from the confidence, over all matches."""
        return float((np.abs(self.mean - self.true) * self.count).sum() / max(self.count.sum(), 1))


def departures(days: int) -> pa.Table:
    """Departures in order, at their exact minute (``minute``) and rounded down to the hour (``hour``)."""
    rows = flights.load()
    minute = np.asarray(rows["arrival"].to_numpy())
    rows = rows.filter(pa.array(minute < minute[0] + days * 1440))
    rows = rows.append_column("minute", rows["arrival"])
    return rows.append_column("hour", pc.multiply(pc.divide(rows["arrival"], 60), 60))


def answers(rows: pa.Table, stream: lc.Stream, text: str) -> pa.Table:
    """All matches of a query over the whole table."""
    runtime = lc.Runtime(stream, lc.Query(text, name="q", level=LEVEL))
    parts = [runtime.process(rows).changes, runtime.finish().changes]
    return pa.concat_tables(parts)


def reliability(rows: pa.Table, text: str, windows: Iterable[int]) -> Reliability:
    """What the confidences of a query over hours are worth, judged by its answers over minutes."""
    confidences, truths, missed = [], [], 0
    for window in windows:
        query = text.format(window)
        exact = answers(rows, lc.Stream(type="kind", ts="minute", id="id", unit="min"), query)
        rounded = answers(rows, lc.Stream(type="kind", ts="hour", id="id", unit="min", granularity="1 h"), query)
        truth = set(exact["match_id"].to_pylist())
        found = rounded["match_id"].to_pylist()
        truths.append(np.fromiter((one in truth for one in found), bool, len(found)))
        confidences.append(np.asarray(rounded["confidence"].to_numpy()))
        missed += len(truth.difference(found))
    return Reliability.of(np.concatenate(confidences), np.concatenate(truths), missed)


def draw(results: dict[str, Reliability], path: Path) -> None:
    """The plot: share of true matches against confidence; the diagonal is perfect."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "latecomer"
    figure, axes = plt.subplots(figsize=(6, 5))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="perfect")
    for name, result in results.items():
        able = result.count >= 30
        axes.plot(result.mean[able], result.true[able], marker="o", markersize=4, label=name)
    axes.set_xlabel("confidence (mean of the bin)")
    axes.set_ylabel("share of the matches that are true")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.legend(loc="upper left", fontsize="small")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def table(results: dict[str, Reliability]) -> str:
    """The same as a Markdown table."""
    lines = ["| confidence | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for i in range(BINS):
        cells = [f"{r.true[i]:.0%} of {r.count[i]:,}" if r.count[i] else "–" for r in results.values()]
        lines.append(f"| {i / BINS:.1f} to {(i + 1) / BINS:.1f} | " + " | ".join(cells) + " |")
    lines.append("| all, mean error | " + " | ".join(f"{r.error:.3f}" for r in results.values()) + " |")
    lines.append("| true, not found | " + " | ".join(str(r.missed) for r in results.values()) + " |")
    return "\n".join(lines)


def main(days: int = DAYS, figure: Path | None = FIGURE) -> int:
    """Returns 1 when a true match was not found."""
    rows = departures(days)
    print(f"{rows.num_rows:,} departures of {days} days")
    results = {name: reliability(rows, *query) for name, query in QUERIES.items()}
    print(table(results))
    if figure is not None:
        draw(results, figure)
        kept = {n: {"error": r.error, "missed": r.missed, "matches": int(r.count.sum())} for n, r in results.items()}
        path = harness.RESULTS / "calibration.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if any(r.missed for r in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
