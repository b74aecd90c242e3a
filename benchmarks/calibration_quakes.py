"""``python -m benchmarks.calibration_quakes``: confidences on earthquakes whose times are known to ± ε.

The times that the US Geological Survey published are taken for the truth. The engine is told each of them shifted at
random by up to ε either way, as ``Stream(uncertainty=…)`` says; so often anew that chance does not decide. Other than
with rounded departures (:mod:`benchmarks.calibration`) the errors are what the engine believes them to be. What it
does not know is that quakes are not evenly spread in time: a confidence is a probability given the intervals alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks.calibration import Reliability, answers, draw, table
from benchmarks.data import earthquakes
from latecomer.units import Duration

QUERIES = {
    "light, then strong": "PATTERN SEQ(Light a, Strong b) WITHIN 10 min",
    "no light one between": "PATTERN SEQ(Light a, !Light n, Strong b) WITHIN 10 min",
    "weak, weak, light": "PATTERN SEQ(Weak a, Weak b, Light c) WITHIN 5 min",
}
EPSILONS = ("30 s", "5 min")
TIMES = 20
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "intervals-calibration-quakes.svg"


def reliability(quakes: pa.Table, text: str, epsilon: str, times: int) -> Reliability:
    """What the confidences of a query are worth, judged by its answer on the exact times."""
    within = Duration.of(epsilon).units("s")
    exact = answers(quakes, lc.Stream(type="kind", ts="second", id="id", unit="s"), text)
    truth = set(exact["match_id"].to_pylist())
    stream = lc.Stream(type="kind", ts="told", id="id", unit="s", uncertainty=epsilon)
    confidences, trues, missed = [], [], 0
    for seed in range(times):
        shift = np.random.default_rng(seed).integers(-within, within + 1, quakes.num_rows)
        given = answers(quakes.append_column("told", pc.add(quakes["second"], pa.array(shift))), stream, text)
        found = given["match_id"].to_pylist()
        confidences.append(np.asarray(given["confidence"].to_numpy()))
        trues.append(np.fromiter((one in truth for one in found), bool, len(found)))
        missed += len(truth - set(found))
    return Reliability.of(np.concatenate(confidences), np.concatenate(trues), missed)


def main(times: int = TIMES, figure: Path | None = FIGURE) -> int:
    """Returns 1 when a true match was not found."""
    quakes = earthquakes.load()
    quakes = quakes.append_column("second", pc.divide(quakes["ts"], 1000))
    every: dict[str, Reliability] = {}
    for epsilon in EPSILONS:
        results = {name: reliability(quakes, text, epsilon, times) for name, text in QUERIES.items()}
        every |= {f"± {epsilon}: {name}": result for name, result in results.items()}
        print(f"\n{quakes.num_rows:,} earthquakes, ± {epsilon}, {times} times\n\n{table(results)}", flush=True)
    if figure is not None:
        draw(every, figure)
    return 1 if any(r.missed for r in every.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
