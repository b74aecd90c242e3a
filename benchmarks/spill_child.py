"""What runs in a process of its own for the part ``spill``: ``python -m benchmarks.spill_child '{"do": "stream", …}'``.

Resident memory is a property of a process, so whatever is told about it is measured in one that did nothing else. The
events are made batch by batch, always the same ones, so that no process holds more of them than its engine does. The
result is one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import latecomer as lc
from latecomer.storage.hashing import hash_column

BATCH = 8_192
PER_MS, LATE = 5, 0.05
QUERY = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN {window} ms"
STREAM = lc.Stream(type="kind", ts="ts", id="id", unit="ms")

_KINDS = pa.array(["A", "B", "C"])
_PLACES = pa.array([f"aisle {i:02d}" for i in range(100)])
_START = 10**9  # ms


@dataclass(frozen=True, slots=True)
class Spec:
    """``state``: how many events the retention covers; ``window``: of the query, in ms; ``events``: how many to stream;
    ``memory``: bytes, or None for no limit; ``folder``: of the state; ``wait`` (ms) and ``batch``: how long late events
    wait for frames on disk, None: by default; ``marks``: numbers of stored events at which the time per batch is told.
    """

    do: str
    state: int
    window: int
    events: int = 0
    memory: int | None = None
    folder: str | None = None
    wait: int | None = None
    batch: int | None = None
    marks: tuple[int, ...] = ()
    checkpoint: bool = False

    @property
    def max_delay(self) -> int:
        """How late events may be, in ms, so that this and the window cover ``state`` events."""
        return max(self.state // PER_MS - self.window, 1)

    @property
    def keys(self) -> int:
        """So many that a window holds five events of each."""
        return self.window

    def runtime(self) -> lc.Runtime:
        level = lc.Aggressive(max_delay=self.max_delay)
        query = lc.Query(QUERY.format(window=self.window), name="pairs", level=level)
        if self.folder is None:
            return lc.Runtime(STREAM, query)
        chosen = {"wait": self.wait, "batch": self.batch}
        spill = lc.Spill(self.folder, **{name: value for name, value in chosen.items() if value is not None})
        return lc.Runtime(STREAM, query, memory=self.memory, spill=spill)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, self.events, BATCH):
            yield events(first, min(BATCH, self.events - first), self.max_delay, self.keys)


def events(first: int, n: int, max_delay: int, keys: int) -> pa.RecordBatch:
    """The events that arrive as number ``first`` to ``first + n``: a share of 5 % is late by up to ``max_delay`` ms,
    evenly, but none is older than the stream.
    """
    rng = np.random.default_rng((1, first))
    now = np.arange(first, first + n) // PER_MS
    late = rng.random(n) < LATE
    delay = (rng.random(n) * np.minimum(max_delay, now)).astype(np.int64) * late
    return rows(_START + now - delay, np.arange(first, first + n), keys, rng)


def rows(ts: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], keys: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Events at these times: of three types and so many keys, with a text and a price."""
    n = len(ts)
    return pa.record_batch(
        {
            "id": pa.array(ids),
            "kind": _KINDS.take(pa.array(rng.integers(0, 3, n))),
            "key": pa.array(rng.integers(0, keys, n)),
            "ts": pa.array(ts),
            "place": _PLACES.take(pa.array(rng.integers(0, 100, n))),
            "price": pa.array(rng.uniform(1, 500, n).round(2)),
        }
    )


class Answer:
    """The net answer in a few bytes: the sum of the hashes of all matches that left and were not taken back."""

    def __init__(self) -> None:
        self.matches = self.deletions = self.late = self._sum = 0

    def add(self, out: lc.Output) -> None:
        changes = out.changes
        hashes = hash_column(changes["match_id"].combine_chunks()) if changes.num_rows else np.zeros(0, np.uint64)
        deleted = np.array([op == "delete" for op in changes["op"].to_pylist()], np.bool_)
        self.matches += len(hashes) - 2 * int(deleted.sum())
        self.deletions += int(deleted.sum())
        self.late += out.late.num_rows
        self._sum += int(hashes[~deleted].sum()) - int(hashes[deleted].sum())

    def as_dict(self) -> dict[str, Any]:
        return {
            "matches": self.matches,
            "deletions": self.deletions,
            "late": self.late,
            "answer": f"{self._sum % 2**64:016x}",
        }


def stream(spec: Spec) -> dict[str, Any]:
    """Feed ``spec.events`` events; tell time, memory and the answer, and how long a batch took at each mark."""
    runtime, answer = spec.runtime(), Answer()
    wall, cpu = [], []
    payload = 0
    for batch in spec.batches():
        payload += batch.nbytes
        began, began_cpu = time.perf_counter(), time.process_time()
        out = runtime.process(batch)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        answer.add(out)
    explained = runtime.explain()
    result = {
        "wall_s": sum(wall),
        "cpu_s": sum(cpu),
        "resident": resident("VmRSS"),
        "stored": explained["events"],
        "bytes": explained["bytes"],
        "memory": explained.get("memory"),
        "payload": payload / spec.events,
        "marks": [_around(mark, wall, cpu) for mark in spec.marks],
    }
    if spec.checkpoint:
        began = time.perf_counter()
        runtime.checkpoint(note={"events": spec.events})
        result["checkpoint_s"] = time.perf_counter() - began
    else:
        began, began_cpu = time.perf_counter(), time.process_time()
        answer.add(runtime.finish())
        result["finish_s"], result["finish_cpu_s"] = time.perf_counter() - began, time.process_time() - began_cpu
        # Late events may still wait for frames on disk; what that costs counts, too.
        result["wall_s"] += result["finish_s"]
        result["cpu_s"] += result["finish_cpu_s"]
    peak = max(resident("VmHWM"), result["resident"])  # the kernel counts both roughly
    return {**result, **answer.as_dict(), "peak": peak}


def _around(mark: int, wall: list[float], cpu: list[float]) -> dict[str, float]:
    """Mean milliseconds per batch over the last fifth of the events until so many are stored."""
    end = min(mark // BATCH, len(wall))
    start = min(int(end * 0.8), end - 1)
    return {
        "stored": end * BATCH,
        "wall_ms": float(np.mean(wall[start:end])) * 1e3,
        "cpu_ms": float(np.mean(cpu[start:end])) * 1e3,
    }


def reopen(spec: Spec) -> dict[str, Any]:
    """Open a state and answer 256 events that are on time."""
    ts = _START + np.arange(spec.events, spec.events + 256) // PER_MS
    batch = rows(ts, np.arange(256) + 2**40, spec.keys, np.random.default_rng(0))
    began = time.perf_counter()
    runtime = lc.Runtime.open(spec.folder, memory=spec.memory)
    opened = time.perf_counter() - began
    answer = Answer()
    answer.add(runtime.process(batch))
    answered = time.perf_counter() - began
    explained = runtime.explain()
    return {"open_s": opened, "answer_s": answered, "stored": explained["events"], **answer.as_dict()}


def versions(spec: Spec) -> dict[str, Any]:
    """Write a version of everything, then, five times, late events into 1 % of the retained time, and a version each.

    Without a budget, so that nothing was written before.
    """
    assert spec.folder is not None
    folder, runtime = Path(spec.folder), spec.runtime()
    for batch in spec.batches():
        runtime.process(batch)
    before = _files(folder)
    began = time.perf_counter()
    runtime.checkpoint(note={})
    full_s, after = time.perf_counter() - began, _files(folder)
    full = sum(size for _, size, _ in after - before)
    changed = []
    for turn in range(5):
        past = spec.max_delay // 6 * (turn + 1)  # ms ago
        rng = np.random.default_rng(turn)
        ts = _START + spec.events // PER_MS - past + rng.integers(0, max(spec.max_delay // 100, 1), 64)
        runtime.process(rows(ts, np.arange(64) + 2**40 + turn * 64, spec.keys, rng))
        before = after
        began = time.perf_counter()
        runtime.checkpoint(note={})
        seconds, after = time.perf_counter() - began, _files(folder)
        changed.append({"s": seconds, "bytes": sum(size for _, size, _ in after - before)})
    return {"stored": runtime.explain()["events"], "full": {"s": full_s, "bytes": full}, "changed": changed}


def _files(folder: Path) -> set[tuple[str, int, int]]:
    """Name, size and time of every file below."""
    found = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {(str(path), about.st_size, about.st_mtime_ns) for path, about in found}


def resident(name: str) -> int:
    """Bytes of resident memory of this process: now (``VmRSS``) or at most so far (``VmHWM``)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status tells no {name}: this part needs Linux")


def main(argument: str) -> None:
    """Do what the JSON says, print the result."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the process that asked
    pa.set_cpu_count(1)
    given = json.loads(argument)
    spec = Spec(**{**given, "marks": tuple(given.get("marks", ()))})
    print(json.dumps({"stream": stream, "reopen": reopen, "versions": versions}[spec.do](spec)))


if __name__ == "__main__":
    main(sys.argv[1])
