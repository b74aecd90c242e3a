"""The yardstick for state on disk: its events, its answers, its arithmetic, and that wrong answers give no figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import limit, spill, spill_child
from benchmarks.harness import Disqualified
from benchmarks.spill_child import BATCH, Spec, events


def test_the_events_are_late_as_told_and_the_same_each_time() -> None:
    parts = [events(first, BATCH, max_delay=4_000, keys=50) for first in range(0, 20 * BATCH, BATCH)]
    whole = pa.Table.from_batches(parts)
    assert parts[3].equals(events(3 * BATCH, BATCH, max_delay=4_000, keys=50)) and not parts[3].equals(parts[4])
    assert whole["id"].to_pylist() == list(range(20 * BATCH))
    ts = whole["ts"].to_numpy()
    delay = np.arange(len(ts)) // spill_child.PER_MS + ts[0] - ts
    assert (delay > 0).mean() == pytest.approx(spill_child.LATE, abs=0.003)
    assert delay.max() < 4_000 and ts.min() == ts[0]
    late = delay[4 * BATCH :][delay[4 * BATCH :] > 0]
    assert np.quantile(late, [0.25, 0.5, 0.75]) == pytest.approx([1_000, 2_000, 3_000], rel=0.06)


def test_a_child_finds_all_matches_and_tells_its_memory() -> None:
    spec = {"state": 100_000, "window": 2_000, "events": 50_000}
    result = spill.child("stream", **spec, marks=[20_000, 40_000])
    whole = pa.Table.from_batches(Spec("", **spec).batches())
    truth, _ = limit.seq_neg(*limit.columns(whole), 2_000)
    assert result["matches"] == len(truth) > 100 and result["late"] == 0
    assert result["stored"] == 50_000 and result["bytes"] > 50_000 * result["payload"]
    assert result["peak"] >= result["resident"] > result["bytes"]
    assert [mark["stored"] for mark in result["marks"]] == [2 * BATCH, 4 * BATCH]
    other = spill.child("stream", **{**spec, "events": 49_999})
    with pytest.raises(Disqualified, match="answer without a budget"):
        spill.same_answer(result, other)


def test_a_child_that_fails_gives_no_figures() -> None:
    with pytest.raises(Disqualified, match="reopen failed with 1"):
        spill.child("reopen", state=100, window=5, folder="/nowhere")


def pretended(wrong: str = "") -> Any:
    """A child that does nothing, but knows what to say."""
    turns = iter(range(1, 100))

    def start(do: str, **spec: Any) -> dict[str, Any]:
        answer = {"answer": "1f", "matches": 5, "late": 0}
        if do == "versions":
            return {
                "stored": 9,
                "full": {"s": 2.0, "bytes": 1_000},
                "changed": [{"s": 0.02, "bytes": b} for b in (10, 30, 90)],
            }
        if do == "reopen":
            return {
                **answer,
                "stored": spec["state"] - (wrong == "reopen"),
                "open_s": 0.1,
                "answer_s": 0.5 * next(turns),
            }
        if spec.get("checkpoint"):
            marks = [{"stored": m, "wall_ms": 2.0 * (i + 1), "cpu_ms": 1.0} for i, m in enumerate(spec["marks"])]
            return {**answer, "stored": 10, "marks": marks}
        if spec.get("memory"):
            if wrong == "answer":
                answer["answer"] = "2f"
            assert spec["memory"] == (200 if spec["state"] == spill.QUICK.state else 1 << 20)
            return {**answer, "stored": 20, "bytes": 190, "wall_s": 3.0, "cpu_s": 2.0, "peak": 1_000}
        return {
            **answer,
            "stored": 20,
            "bytes": 2_000,
            "payload": 49.0,
            "wall_s": 2.0,
            "cpu_s": 1.0,
            "peak": 3_000,
            "resident": 800,
        }

    return start


def test_the_figures_are_what_they_say() -> None:
    said: list[str] = []
    report = spill.run(2, quick=True, say=said.append, start=pretended())
    assert report.rows[0]["figures"] == {
        "time, state 10 times the budget / no budget": 1.5,
        "peak resident memory / (budget + interpreter)": 1.0,
        "memory per event beyond its payload, bytes": 51.0,
        "time per batch, most events stored / fewest": 2.0,
        "from opening a state to the first answer, s": 0.5,
        "a version with 1 % changed / a full one": 0.03,
    }
    runs = ["interpreter", "no budget", "no budget", "budget", "budget", "growth", "opening", "opening", "versions"]
    assert [row["run"] for row in report.rows[1:]] == runs + ["waits"] * len(spill._WAITS)
    slow = {**report.rows[0]["figures"], "from opening a state to the first answer, s": 2.1}
    assert spill.shown(slow).count("✗") == 1
    (shown,) = [text for text in said if text.startswith("| figure")]
    assert "✗" not in shown and shown.count("✓") == len(spill.WANTED)
    assert sum(text.startswith(("stream:", "reopen:", "versions:")) for text in said) == 9 + 1 + len(spill._WAITS)


def test_parts_are_measured_alone() -> None:
    for part, figures in (("versions", 1), ("growth", 2), ("budget", 3), ("waits", 0)):
        report = spill.run(1, quick=True, say=lambda _: None, start=pretended(), parts=[part])
        assert len(report.rows[0]["figures"]) == figures
        assert report.notes


@pytest.mark.parametrize(("wrong", "message"), [("answer", "with one: 2f"), ("reopen", "not the one that was written")])
def test_wrong_answers_disqualify(wrong: str, message: str) -> None:
    with pytest.raises(Disqualified, match=message):
        spill.run(1, quick=True, say=lambda _: None, start=pretended(wrong))
