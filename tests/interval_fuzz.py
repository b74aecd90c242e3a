"""The properties of ``test_interval_runtime`` on new random runs, as long as asked: ``python -m tests.interval_fuzz``.

Prints how many runs were made and of what kinds; the first failure is printed with its seed and ends the search with
exit code 1.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter

import latecomer as lc
from tests import interval_cases as cases
from tests import squeeze

LEVELS = {
    "kslack": lambda slack, pick: lc.KSlack(slack),
    "conservative": lambda slack, pick: lc.Conservative(),
    "at once": lambda slack, pick: lc.Aggressive(slack),
    "patient": lambda slack, pick: lc.Aggressive(slack, pick([1, 3, 6])),
    "in steps": lambda slack, pick: lc.Aggressive(slack, confidence_step=0.2),
}


def one(seed):
    """One run and what kind it was; raises AssertionError where it is wrong."""
    pick = random.Random(seed).choice
    slack, name = pick([0, 1, 2, 5, 9]), pick(list(LEVELS))
    level = LEVELS[name](slack, pick)
    keep = name == "conservative" or pick([True, True, False])
    forms = pick([["exact"], *[["ends", "shape", "stamp"]] * 5])
    promise = None if name == "conservative" else slack
    run = cases.make(pick, level, promise, most=pick([6, 6, 9]), keep=keep, forms=forms, declared=True)
    with squeeze.squeezed(pick(squeeze.KINDS)):
        changes, late = cases.play(run)
    expected = cases.wanted(run, run.events if name == "conservative" else cases.accepted(run, slack))
    cases.agree(cases.net(changes), expected, level.confidence_step if isinstance(level, lc.Aggressive) else 0)
    assert not (keep and late)
    taken_back = any(change["op"] == "delete" for change in changes)
    assert isinstance(level, lc.Aggressive) or not taken_back
    return [name, *["with matches"] * bool(expected), *["corrected"] * taken_back, *["with late events"] * bool(late)]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.interval_fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    options = parser.parse_args()
    end, kinds, runs = time.monotonic() + options.minutes * 60, Counter(), 0
    while time.monotonic() < end:
        try:
            kinds.update(one(options.seed + runs))
        except Exception:  # noqa: BLE001  (whatever goes wrong is the finding)
            traceback.print_exc()
            sys.stdout.write(f"seed {options.seed + runs}, after {runs} runs\n")
            return 1
        runs += 1
    sys.stdout.write(f"{runs} runs: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
