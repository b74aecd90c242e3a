"""The properties of ``test_levels`` on new random runs, for as long as asked: ``python -m tests.fuzz --minutes 5``.

Two thirds of the runs are plainly random, one third come from Hypothesis. Prints how many runs were made. The first
failure is printed as small as it can be made, and ends the search with exit code 1.
"""

import argparse
import random
import sys
import time
import traceback
from dataclasses import replace

from hypothesis import given, seed, settings

import tests.conftest  # noqa: F401  (registers the profiles)
from tests.strategies import ATTRIBUTES, PUNCTUATION, wild
from tests.test_levels import PROPERTIES

PLAIN = {name: values[0] for name, values in ATTRIBUTES.items()} | {"source": "north"}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def failure(check, case):
    """The error that ``check`` raises on ``case``, or None."""
    try:
        check(case)
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is the finding)
        return error
    return None


def smaller(case):
    """Cases that are simpler than this one in one respect."""
    for at in range(len(case.asked)):
        if len(case.asked) > 1:
            yield replace(case, asked=case.asked[:at] + case.asked[at + 1 :])
    for size in (8, 4, 2, 1):
        for at in range(0, len(case.steps), size):
            steps = case.steps[:at] + case.steps[at + size :]
            cuts = frozenset(c if c < at else max(at, c - size) for c in case.cuts)
            yield replace(case, steps=steps, cuts=cuts)
    for at, asked in enumerate(case.asked):
        less = [replace(asked, returns="")] if asked.returns else []
        less += [replace(asked, where=asked.where[:i] + asked.where[i + 1 :]) for i in range(len(asked.where))]
        less += [replace(asked, pattern=asked.pattern[:i] + asked.pattern[i + 1 :]) for i in range(len(asked.pattern))]
        for query in less:
            yield replace(case, asked=(*case.asked[:at], query, *case.asked[at + 1 :]))
    for cut in case.cuts:
        yield replace(case, cuts=case.cuts - {cut})
    for at, step in enumerate(case.steps):
        if step[0] == "row" and step[1]["type"] != PUNCTUATION:
            for name, value in PLAIN.items():
                if repr(step[1][name]) != repr(value):
                    row = ("row", {**step[1], name: value})
                    yield replace(case, steps=(*case.steps[:at], row, *case.steps[at + 1 :]))
    if case.squeeze:
        yield replace(case, squeeze="")
    if case.clock != "stream":
        yield replace(case, clock="stream", declared=())


def minimise(check, case):
    """The smallest case found, by dropping one thing after another, on which ``check`` still fails in the same way."""
    kind = type(failure(check, case))
    found = True
    while found:
        found = False
        for candidate in smaller(case):
            if type(failure(check, candidate)) is kind:
                case, found = candidate, True
                break
    return case


def report(name, check, case):
    case = minimise(check, case)
    say(f"\n{name} fails on\n\n{case}\n")
    error = failure(check, case)
    if error is not None:
        say("".join(traceback.format_exception(error)[-3:]))


def wild_run(name, check, options, runs):
    for number in runs:
        case = wild(number, **options)
        if failure(check, case) is not None:
            report(f"{name} (seed {number})", check, case)
            return False
    return True


def hypothesis_run(name, check, strategy, number, examples):
    count = 0

    @seed(number)
    @settings(settings.get_profile("fuzz"), max_examples=examples)
    @given(strategy)
    def run(case):
        nonlocal count
        count += 1
        check(case)

    try:
        run()
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is the finding)
        say(f"\n{name} fails\n")
        say("".join(traceback.format_exception(error)[-6:]) + "\n".join(getattr(error, "__notes__", [])))
        return False, count
    return True, count


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=0.0, help="instead of minutes")
    parser.add_argument("--seed", type=int, default=None, help="repeat an earlier search")
    parser.add_argument("--only", default="", help="only properties with this in their name")
    options = parser.parse_args(arguments)
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    chosen = {name: p for name, p in PROPERTIES.items() if options.only in name}
    say(f"seed {first}: {', '.join(n.removeprefix('test_') for n in chosen)}")
    end, count, number, turn = time.monotonic() + (options.seconds or options.minutes * 60), 0, first, 0
    while time.monotonic() < end:
        for name, (check, strategy, wishes) in chosen.items():
            if turn % 3 < 2:  # every other time with longer streams
                longer = {"most": 60} if turn % 3 else {}
                ok, made = wild_run(name, check, wishes | longer, range(number, number + 50)), 50
            else:
                ok, made = hypothesis_run(name, check, strategy, number, 50)
            number, count = number + 50, count + made
            if not ok:
                return 1
            if time.monotonic() > end:
                break
        turn += 1
    say(f"{count:,} runs, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
