"""Streams and queries that break engines: each must stay within a time and a memory limit, or end with an error.

Rule: each case runs in a process of its own with an address space of :data:`MEMORY` beyond what Python and its
libraries take, and is ended after :data:`SECONDS` of processor time. What is kept of it is the outcome: right answer,
wall and processor time, peak of memory; or what error it ended with. A case that hangs or is killed, or whose answer is
wrong, fails the run. ``python -m benchmarks.adversarial hot`` runs one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import latecomer as lc
from benchmarks import answers
from benchmarks.harness import Disqualified, Report, table
from benchmarks.shapes import MAX_DELAY, Shape
from benchmarks.workloads import KINDS, STREAM

#: Bytes that a case may take beyond those at its start, seconds of processor time, and seconds by the clock on the
#: wall, which are more, since other work on the machine is not the case's fault.
MEMORY, SECONDS, WAIT = 3 << 30, 120, 900

_GAP = Shape("gap", ("A", "!B", "C"))
_THREE = Shape("three", ("A", "B", "C"))


def _events(n: int, key: Any, ts: Any, kind: Any = None) -> pa.Table:
    rng = np.random.default_rng(11)
    kinds = rng.integers(0, len(KINDS), n) if kind is None else kind
    columns = {"key": np.broadcast_to(key, n), "ts": np.broadcast_to(ts, n)}
    arrays = {name: pa.array(np.ascontiguousarray(c, dtype=np.int64)) for name, c in columns.items()}
    return pa.table({"id": np.arange(n), "kind": pa.array(KINDS).take(pa.array(kinds)), **arrays})


def _random_keys(n: int, keys: int = 10_000) -> Any:
    return np.random.default_rng(12).integers(0, keys, n)


def hot(n: int) -> dict[str, Any]:
    """One key has all events."""
    return replay(_GAP, _events(n, 7, 100_000 + np.arange(n)))


def instant(n: int) -> dict[str, Any]:
    """All events happen at one time: none follows another."""
    return replay(_GAP, _events(n, _random_keys(n), 100_000))


def exploding(n: int) -> dict[str, Any]:
    """``SEQ(A, B, C)`` where every A, B and C match, read in pieces."""
    third = n // 3
    kind = np.repeat(np.arange(3), third)
    events = _events(3 * third, 7, 100_000 + np.arange(3 * third), kind)
    return replay(_THREE, events, pieces=True, count=third**3)


def exploding_table(n: int) -> dict[str, Any]:
    """The same, asked for as one table of more than memory holds."""
    third = n // 3
    kind = np.repeat(np.arange(3), third)
    return replay(_THREE, _events(3 * third, 7, 100_000 + np.arange(3 * third), kind), count=third**3)


def endless(n: int) -> dict[str, Any]:
    """The window holds everything, so nothing is ever forgotten."""
    ts = 100_000 + np.arange(n) // 5
    return replay(Shape("gap", _GAP.parts, window=10**9), _events(n, _random_keys(n), ts))


def reversed_(n: int) -> dict[str, Any]:
    """Every event but the first is late, in time: stretches of 5 s come backwards."""
    size = MAX_DELAY * 5
    order = np.arange(n).reshape(-1, size)[:, ::-1].ravel() if n % size == 0 else np.arange(n)[::-1]
    return replay(_GAP, _events(n, _random_keys(n), 100_000 + order // 5))


def too_late(n: int) -> dict[str, Any]:
    """Every event but the first breaks the promise: all of them go to the late output."""
    ts = 100_000 + np.arange(n) // 5
    ts[0] = 10**9
    kind = np.arange(n) % 3  # no query asks for a D, so none is told as late
    return replay(_GAP, _events(n, _random_keys(n), ts, kind), count=0, late=n - 1)


def many_keys(n: int) -> dict[str, Any]:
    """A key for each event."""
    return replay(_GAP, _events(n, np.arange(n), 100_000 + np.arange(n) // 5))


#: The cases, with how many events each has.
CASES: dict[str, tuple[Callable[[int], dict[str, Any]], int, int]] = {
    "hot": (hot, 1_000_000, 20_000),
    "instant": (instant, 1_000_000, 20_000),
    "exploding": (exploding, 1_200, 300),
    "exploding-table": (exploding_table, 1_200, 300),
    "endless": (endless, 2_000_000, 20_000),
    "reversed": (reversed_, 1_000_000, 25_000),
    "too-late": (too_late, 1_000_000, 20_000),
    "many-keys": (many_keys, 1_000_000, 20_000),
}

#: Cases that are asked for more than memory holds, and so may end with an error, but with a clear one.
MAY_FAIL = {"exploding-table"}


def replay(
    shape: Shape, events: pa.Table, *, pieces: bool = False, count: int | None = None, late: int = 0
) -> dict[str, Any]:
    """Feed the events, 8,192 at a time, and check the answer: the offline program's, or so many matches."""
    query = lc.Query(shape.text, name=shape.name, level=lc.Aggressive(max_delay=MAX_DELAY))
    engine = lc.Runtime(STREAM, query)
    outs, told, found = [], 0, 0
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in events.to_batches(max_chunksize=8_192):
        for out in engine.stream_pieces(batch) if pieces else iter([engine.process(batch)]):
            told += out.late.num_rows
            found += out.changes.num_rows
            if count is None:
                outs.append(out.changes)
    outs.append(engine.finish().changes)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if count is None:
        net, _ = answers.net(outs, [shape])
        found = answers.check("adversarial", net, answers.truth(events, [shape]), [shape])
    elif found != count:
        raise Disqualified(f"{found:,} matches where there are {count:,}")
    if told != late:
        raise Disqualified(f"{told:,} events told as late where {late:,} are")
    return {"events": events.num_rows, "matches": found, "late": told, "wall_s": wall, "cpu_s": cpu}


def alone(name: str, quick: bool) -> dict[str, Any]:
    """Run a case in a process of its own, within the limits."""
    command = [sys.executable, "-m", "benchmarks.adversarial", name, *(["--quick"] if quick else [])]
    root = Path(__file__).resolve().parent.parent
    row: dict[str, Any] = {"case": name, "what": (CASES[name][0].__doc__ or "").split("\n")[0].replace("``", "`")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, cwd=root)
    except subprocess.TimeoutExpired:
        return {**row, "outcome": f"ended after {WAIT} s", "fine": False}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return {**row, "outcome": "right", "fine": True, **json.loads(lines[-1])}
    problem = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
    refused = done.returncode == 1 and ("MemoryError" in problem or problem.startswith("latecomer.errors."))
    return {**row, "outcome": problem[:200], "fine": refused and name in MAY_FAIL, "code": done.returncode}


def run(repeats: int = 1, *, quick: bool = False, say: Callable[[str], None] = print) -> Report:
    """All cases; raises Disqualified when one hangs, is killed, or is wrong."""
    report = Report("adversarial", {"memory": MEMORY, "seconds": SECONDS, "quick": quick})
    for name in CASES:
        report.rows.append(alone(name, quick))
        say(shown(report.rows[-1:]).splitlines()[-1])
    if bad := [f"{r['case']}: {r['outcome']}" for r in report.rows if not r["fine"]]:
        raise Disqualified("; ".join(bad))
    return report


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""

    def cells(row: dict[str, Any]) -> Iterator[str]:
        yield row["case"]
        yield row["what"]
        for name, form in (("events", ",.0f"), ("matches", ",.0f"), ("wall_s", ".1f"), ("cpu_s", ".1f")):
            yield format(row[name], form) if name in row else ""
        yield f"{row['peak_bytes'] / 2**20:,.0f}" if "peak_bytes" in row else ""
        yield row["outcome"].removeprefix("latecomer.errors.").split(" (")[0]  # of an error what has happened

    heads = ["case", "what", "events", "matches", "wall, s", "CPU, s", "peak beyond start, MiB", "outcome"]
    return table(heads, [list(cells(r)) for r in rows])


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells there counts the parent's memory too
        return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str] | None = None) -> int:
    """Run one case here and print its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversarial")
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    case, n, few = CASES[options.case]
    used = Path("/proc/self/statm")
    taken = int(used.read_text().split()[0]) * resource.getpagesize() if used.exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    before = _peak()
    outcome = case(few if options.quick else n)
    print(json.dumps({**outcome, "peak_bytes": _peak() - before}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
