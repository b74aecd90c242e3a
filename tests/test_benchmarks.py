"""The benchmarks' own parts: a wrong yardstick would make every figure wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import figures, harness, limit, workloads
from latecomer.disorder import measure


def brute(kind: Any, key: Any, ts: Any, ids: Any, window: int) -> set[tuple[int, int]]:
    events = list(zip(kind.tolist(), key.tolist(), ts.tolist(), ids.tolist(), strict=True))
    return {
        (a, c)
        for ka, qa, ta, a in events
        for kc, qc, tc, c in events
        if (ka, kc) == (0, 2) and qa == qc and ta < tc <= ta + window
        if not any(kb == 1 and qb == qa and ta < tb < tc for kb, qb, tb, _ in events)
    }


@pytest.mark.parametrize("seed", range(60))
def test_the_offline_limit_is_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    kind, key, ts = (rng.integers(low, high, n) for low, high in ((0, 4), (0, 3), (-30, 30)))
    window = int(rng.integers(0, 40))
    a, c = limit.seq_neg(kind, key, ts, np.arange(n), window)
    assert len(a) == len(set(zip(a.tolist(), c.tolist(), strict=True)))
    assert set(zip(a.tolist(), c.tolist(), strict=True)) == brute(kind, key, ts, np.arange(n), window)


@pytest.mark.parametrize("text_keys", [False, True])
def test_the_workload_is_what_it_says(text_keys: bool) -> None:
    events = workloads.keyed(30_000, text_keys=text_keys)
    assert events.equals(workloads.keyed(30_000, text_keys=text_keys))
    found = measure(events["ts"])
    assert found.share_late == pytest.approx(0.1, abs=0.01) and found.max_lateness <= 5_000
    assert sorted(events["id"].to_pylist()) == list(range(30_000))
    assert pa.types.is_integer(events["key"].type) != text_keys
    a, c = limit.seq_neg(*limit.columns(events), 10_000)
    other = limit.seq_neg(*limit.columns(workloads.keyed(30_000, text_keys=not text_keys)), 10_000)
    assert set(zip(a.tolist(), c.tolist(), strict=True)) == set(zip(*(x.tolist() for x in other), strict=True))
    assert len(a) > 100
    parts = workloads.batches(events, 256)
    assert {len(p) for p in parts[:-1]} == {256} and pa.Table.from_batches(parts).equals(events)


def test_programs_take_turns_and_every_run_counts(tmp_path: Path) -> None:
    calls: list[str] = []
    timings = harness.take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmups=1)
    assert calls == ["a", "b"] * 3
    assert {name: len(t.wall) for name, t in timings.items()} == {"a": 2, "b": 2}
    timing = harness.Timing([2.0, 1.5, 4.5], [2.0, 1.0, 4.0])
    assert (timing.best, timing.best_cpu) == (1.5, 1.0)
    kept = timing.as_dict()
    assert (kept["median_s"], kept["median_cpu_s"], kept["spread"]) == (2.0, 2.0, 3.0)
    path = harness.Report("part", {"seed": 1}, rows=[{"x": 1}]).save(tmp_path)
    kept = json.loads(path.read_text())
    assert kept["rows"] == [{"x": 1}] and kept["machine"]["numpy"] == np.__version__


def test_tables_are_markdown() -> None:
    assert harness.table(["what", "n"], [["a", "1"], ["bcd", "1,000"]]).splitlines() == [
        "| what |     n |",
        "|------|------:|",
        "| a    |     1 |",
        "| bcd  | 1,000 |",
    ]


def test_figures_never_round_up_to_perfect() -> None:
    assert [figures.percent(x) for x in (0.0, 0.00001, 0.5, 0.99999, 1.0)] == [
        "0 %",
        "0.01 %",
        "50.00 %",
        "99.99 %",
        "100 %",
    ]
    assert [figures.duration(x, "ms") for x in (0, 1_500, 200_000, 7_200_000, None)] == [
        "0.0 s",
        "1.5 s",
        "3.3 min",
        "2.0 h",
        "only at the end",
    ]
