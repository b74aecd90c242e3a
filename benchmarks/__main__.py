"""``python -m benchmarks [PART …]``: run parts, print their tables, keep their results as JSON.

Parts: ``speed`` (the workloads W1 to W6 against the offline limit), ``levels`` (what each level makes of each kind of
disorder), ``promises`` (what punctuation and purging cost), ``spill`` (what a memory budget, versions and restoring
cost), ``intervals`` (matching over uncertain times, against points), ``spark`` (the sink against an empty job, needs
Java).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pyarrow as pa

from benchmarks import harness, intervals, levels, promises, spark, speed, spill
from benchmarks.profiling import profile
from benchmarks.shapes import WORKLOADS

PARTS = {
    "speed": speed.run,
    "levels": levels.run,
    "promises": promises.run,
    "spill": spill.run,
    "intervals": intervals.run,
    "spark": spark.run,
}
#: What runs when no part is named; the others take minutes and fetch data.
DEFAULT = ("speed",)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when every answer is right, 1 when one is not (its figure is not shown)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"which parts, of: {', '.join(PARTS)} (default: {', '.join(DEFAULT)})"
    )
    parser.add_argument("--quick", action="store_true", help="fewer events and repeats: does it run, is it right")
    parser.add_argument("--repeats", type=int, help="how many measured runs (default 3; 1 with --quick)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS, help="folder for the JSON results")
    parser.add_argument(
        "--profile", type=int, metavar="BATCH", help="show where time goes at this batch size, measure nothing"
    )
    parser.add_argument("--workload", default="W2", choices=list(WORKLOADS), help="with --profile: which one")
    options = parser.parse_args(arguments)
    unknown = [p for p in options.parts if p not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
    # One core: the ratio compares programs, not thread pools.
    pa.set_cpu_count(1)
    if options.profile:
        print(profile(options.profile, workload=options.workload, quick=options.quick))
        return 0
    about = harness.machine()
    versions = f"Python {about['python']}, NumPy {about['numpy']}, PyArrow {about['pyarrow']}"
    print(f"{about['cpu']}, {about['cores']} cores, {versions}")
    failed = 0
    for name in options.parts or DEFAULT:
        repeats = options.repeats or (1 if options.quick else 3)
        try:
            report = PARTS[name](repeats, quick=options.quick)
        except harness.Disqualified as problem:
            print(f"\nDISQUALIFIED: {name}: {problem}", file=sys.stderr)
            failed += 1
            continue
        print(f"\nresults: {report.save(options.out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
