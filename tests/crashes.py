"""Processes that are killed while their state is in a folder, and go on: ``python -m tests.crashes --points 1000``.

A *life* is a child process that opens the folder (or begins), processes batches, writes what each changes to a file, as
an idempotent sink would, and a version after some of them. It ends by SIGKILL: right before one of the calls by which
it changes files, or at any moment. The next life goes on from the last version. At the end the net of all files is that
of a run in memory, and the folder is whole.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

import latecomer as lc
from latecomer.runtime import memory, runtime
from latecomer.storage.folder import StateFolder
from latecomer.storage.upkeep import verify

BATCHES, ROWS = 24, 60
#: The calls by which state reaches a disk.
CALLS = ("write", "fsync", "replace", "unlink", "mkdir", "open")
LONGEST = 60  # seconds that a life may take
QUERY = "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND c.x >= a.x WITHIN 20 RETURN a.x AS x"
LEVELS = {"aggressive": lc.Aggressive(200), "kslack": lc.KSlack(200), "conservative": lc.Conservative()}


def batches(seed):
    """Batches in order of arrival: ten percent of the events are late, by up to 200 units, and some come twice."""
    rng = np.random.default_rng(seed)
    n = BATCHES * ROWS
    ts = np.arange(n) // 2
    arrival = ts + np.where(rng.random(n) < 0.1, rng.integers(0, 200, n), 0)
    order = np.argsort(arrival, kind="stable")
    order[n // 2 :: 37] = order[: n // 2 : 37][: len(order[n // 2 :: 37])]  # copies
    columns = {"id": np.arange(n), "type": rng.choice(list("ABC"), n), "ts": ts, "k": rng.integers(0, 9, n)}
    table = pa.table({name: values[order] for name, values in columns.items()} | {"x": rng.integers(0, 5, n)[order]})
    return [table.slice(at, ROWS) for at in range(0, n, ROWS)]


def begin(folder, level, options):
    query = lc.Query(QUERY, name="q", level=LEVELS[level])
    return lc.Runtime(
        lc.Stream(id="id", unit="s"), [query], **({"spill": lc.Spill(folder, **options)} if folder else {})
    )


def told(out):
    return [[r["op"], r["match_id"], r["events"]] for r in out.changes.to_pylist()]


def proven(engine, level, number):
    """What a conservative level hears: nothing older than the latest delay will come."""
    return told(engine.punctuate(number * ROWS // 2 - 210)) if level == "conservative" else []


def live(home, seed, level, options, chance, kill_at):
    """One life; returns when all batches are done."""
    if kill_at:
        count = 0

        def deadly(call):
            def counted(*args, **kwargs):
                nonlocal count
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return counted

        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
    folder, choose = home / "state", random.Random()
    spill = lc.Spill(folder, **options)
    known = folder.exists() and StateFolder(folder).versions()
    engine = lc.Runtime.open(spill) if known else begin(folder, level, options)
    given = batches(seed)
    for number in range(engine.note.get("done", 0), len(given)):
        changes = told(engine.process(given[number])) + proven(engine, level, number)
        (home / f"{number:04d}.json").write_text(json.dumps(changes))
        if choose.random() < chance:
            engine.checkpoint({"done": number + 1})
    (home / "9999.json").write_text(json.dumps(told(engine.finish())))
    (home / "done").touch()


def squeezed(stack, budget):
    """Little memory: most of the state is in the folder, and versions carry little themselves."""
    make = runtime.Spilling

    def small(pager, _=None, *rest):
        return make(pager, budget, *rest)

    stack.enter_context(mock.patch.object(runtime, "Spilling", small))
    stack.enter_context(mock.patch.object(memory, "_CARRIED", 2_000))


def in_child(action):
    """The process number of a child that does ``action`` and ends with 0, or with 1 and the traceback."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001  (the parent must hear of anything)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def ended(child, after=None):
    """How the child ended, by itself or killed ``after`` seconds; it may not live longer than :data:`LONGEST`."""
    limit = time.monotonic() + (LONGEST if after is None else after)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert after is not None, f"a life took more than {LONGEST} s"
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)


def net(changes):
    """The matches that are left; each is inserted once more than it is deleted, or as often."""
    left = {}
    for op, name, events in changes:
        left[name] = left.get(name, 0) + (1 if op == "insert" else -1)
        assert left[name] in (0, 1), f"{events}: {op} twice"
    return {name for name, count in left.items() if count}


def story(points, seed):
    """A state that survives ``points`` kills; returns how many of them there were."""
    choose = random.Random(seed)
    home = Path(tempfile.mkdtemp(prefix="latecomer-crashes-"))
    level = choose.choice(sorted(LEVELS))
    options = {"batch": choose.choice([0, 5, 1000]), "wait": choose.choice([0, 50, 1000])}
    budget, chance = choose.choice([0, 60_000, None]), choose.choice([0.3, 1.0])
    kills = 0
    try:
        while not (home / "done").exists():
            last = kills >= points
            kill_at = 0 if last else choose.choice([0, choose.randrange(1, 400), choose.randrange(1, 40)])
            after = choose.uniform(0.0, 1.5) if not last and not kill_at else None
            with contextlib.ExitStack() as stack:
                squeezed(stack, budget)
                child = in_child(lambda kill_at=kill_at: live(home, seed, level, options, chance, kill_at))
            code = ended(child, after)
            assert code in (0, -signal.SIGKILL), f"a life ended with {code}"
            kills += code != 0
        assert not verify(StateFolder(home / "state")).damages
        plain, expected = begin(None, level, {}), []
        for number, batch in enumerate(batches(seed)):
            expected += told(plain.process(batch)) + proven(plain, level, number)
        expected += told(plain.finish())
        parts = sorted(home.glob("*.json"))
        found = [change for part in parts for change in json.loads(part.read_text())]
        assert net(found) == net(expected), f"{level}, {options}, budget {budget}: not the matches of a run in memory"
        assert net(expected), "there is nothing to find"
    except BaseException:
        sys.stderr.write(f"seed {seed}, after {kills} kills; the folder is kept: {home}\n")
        raise
    shutil.rmtree(home)
    return kills


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000, help="kills, in stories of up to 25")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    done = 0
    while done < options.points:
        done += story(min(25, options.points - done), seed)
        seed += 1
    sys.stdout.write(f"{done:,} kills, nothing lost and nothing twice\n")


if __name__ == "__main__":
    main()
