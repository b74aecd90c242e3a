"""The benchmarks' framework: workloads, the offline program, answers, peers in Python, and wrong answers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import __main__ as front
from benchmarks import (
    adversarial,
    answers,
    byhand,
    goals,
    growth,
    harness,
    jvm,
    latency,
    limit,
    offline,
    pages,
    peers,
    speed,
    stages,
)
from benchmarks.harness import Disqualified
from benchmarks.shapes import WORKLOADS, Shape
from latecomer.errors import ConfigError
from latecomer.storage import kernels

SINGLE = ("W1", "W2", "W3", "W4", "W5")
BLOCKS = ("goals", "speed", "numpy", "peers", "stages", "growth", "latency", "workers", "adversarial")


def brute(events: list[dict[str, Any]], shape: Shape) -> set[tuple[int, ...]]:
    """The matches by trying all combinations."""
    kinds = shape.positives
    found = set()
    for chosen in combinations(sorted(events, key=lambda e: e["ts"]), len(kinds)):
        first, last = chosen[0], chosen[-1]
        if tuple(e["kind"] for e in chosen) != kinds or last["ts"] - first["ts"] > shape.window:
            continue
        if any(x["ts"] >= y["ts"] for x, y in pairwise(chosen)):
            continue
        if shape.keyed and len({e["key"] for e in chosen}) > 1:
            continue
        if shape.rise and not last["price"] > first["price"]:
            continue
        if shape.above is not None and any(e["price"] <= shape.above for e in chosen):
            continue
        if not any(_broken(events, shape, chosen, at) for at, p in enumerate(shape.parts) if p.startswith("!")):
            found.add(tuple(e["id"] for e in chosen))
    return found


def _broken(events: list[dict[str, Any]], shape: Shape, chosen: Any, at: int) -> bool:
    before = sum(not p.startswith("!") for p in shape.parts[:at])
    low = chosen[before - 1]["ts"]
    high = chosen[before]["ts"] if before < len(chosen) else chosen[0]["ts"] + shape.window + 1
    return any(
        e["kind"] == shape.parts[at][1:] and low < e["ts"] < high and (not shape.keyed or e["key"] == chosen[0]["key"])
        for e in events
    )


def few(seed: int) -> pa.Table:
    """A few events, no two of one key at one time, in any order."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 26))
    return pa.table(
        {
            "id": rng.permutation(n),
            "kind": pa.array(["A", "B", "C", "D"]).take(pa.array(rng.integers(0, 4, n))),
            "key": rng.integers(0, 2, n),
            "ts": rng.permutation(40)[:n] + 100,
            "price": rng.uniform(1, 500, n).round(2),
        }
    )


SHAPES = [replace(s, window=15) for name in ("W1", "W2", "W3", "W4", "W5", "W6") for s in WORKLOADS[name].shapes]


@pytest.mark.parametrize("seed", range(12))
def test_the_offline_program_finds_what_brute_force_finds(seed: int) -> None:
    events = few(seed)
    for shape, found in zip(SHAPES, limit.matches(events, SHAPES), strict=True):
        assert len(found) == len({tuple(row) for row in found.tolist()})
        assert {tuple(row) for row in found.tolist()} == brute(events.to_pylist(), shape), shape


@pytest.mark.parametrize("name", SINGLE)
def test_python_peers_find_what_brute_force_finds(name: str) -> None:
    shape = replace(WORKLOADS[name].shapes[0], window=15)
    for seed in range(40):
        by_peers(name, shape, few(100 + seed))
    assert byhand.able(shape) == (name != "W5")


def by_peers(name: str, shape: Shape, events: pa.Table) -> None:
    right = np.array(sorted(brute(events.to_pylist(), shape)), np.int64).reshape(-1, len(shape.positives))
    programs = [offline.duckdb(events, shape), offline.polars(events, shape)]
    if byhand.able(shape):
        programs.append(lambda: byhand.matches(byhand.rows(events), shape))
    for program in programs:
        peers.exact(name, program(), shape, np.sort(answers.coded(right)))


@pytest.mark.parametrize("level", speed.LEVELS)
def test_every_workload_is_measured_and_its_answer_checked(level: str) -> None:
    for name in ("W1", "W2", "W3", "W4", "W5", "W6"):
        workload = replace(WORKLOADS[name], fill=3_000)
        setting = speed.Setting(workload, batch=512, late=0.3, level=level, events=9_000)
        [row] = speed.measure([setting], repeats=2)
        assert row["matches"] > 0 or name == "W3"
        assert row["events"] == 6_000 and row["engine"]["min_cpu_s"] > 0
        assert len(row["engine"]["cpu_s"]) == len(row["limit"]["cpu_s"]) == 2
        assert (row["deletions"] > 0) <= (level == "aggressive")
        assert json.loads(json.dumps(row)) == row


def test_workloads_are_what_they_say() -> None:
    for workload in WORKLOADS.values():
        events = workload.events(20_000, 0.1)
        assert events.equals(workload.events(20_000, 0.1)) and not events.equals(workload.events(20_000, 0.3))
        pairs = set(zip(events["key"].to_pylist(), events["ts"].to_pylist(), strict=True))
        assert len(pairs) == 20_000, "engines order ties differently"
    w3 = WORKLOADS["W3"]
    events = w3.events(50_000, 0.0)
    rare, all_ = (len(x) for x in limit.matches(events, [*w3.shapes, *WORKLOADS["W2"].shapes]))
    assert 0 < rare < all_ / 500


def changes(*rows: tuple[str, list[int]]) -> pa.Table:
    return pa.table(
        {
            "op": pa.array([op for op, _ in rows], pa.string()),
            "query": pa.array(["gap"] * len(rows), pa.string()),
            "events": pa.array([ids for _, ids in rows], pa.list_(pa.int64())),
        }
    )


def test_wrong_answers_are_told_from_right_ones() -> None:
    (shape,) = WORKLOADS["W2"].shapes
    right = [np.sort(answers.coded(np.array([[1, 2], [3, 4]])))]
    taken_back = [changes(("insert", [1, 2]), ("insert", [5, 6])), changes(("delete", [5, 6]), ("insert", [3, 4]))]
    found, deletions = answers.net(taken_back, [shape])
    assert deletions == 1 and answers.check("us", found, right, [shape]) == 2
    assert peers.decoded(found[0], 2).tolist() == [[1, 2], [3, 4]]
    for wrong in ([[1, 2]], [[1, 2], [3, 4], [5, 6]], [[1, 2], [4, 3]], []):
        ids = np.array(wrong, np.int64).reshape(-1, 2)
        with pytest.raises(Disqualified, match="of 2 matches"):
            answers.check("us", [np.sort(answers.coded(ids))], right, [shape])
        with pytest.raises(Disqualified):
            peers.exact("them", ids, shape, right[0])
    for twice in (("insert", "insert"), ("delete",)):
        with pytest.raises(Disqualified, match="twice"):
            answers.net([changes(*((op, [1, 2]) for op in twice))], [shape])
    half = answers.accuracy([np.sort(answers.coded(np.array([[1, 2], [7, 8], [9, 9]])))], right)
    assert (half.precision, half.recall) == (1 / 3, 1 / 2)
    with pytest.raises(ValueError, match="do not fit"):
        answers.coded(np.array([[1 << 40, 1]]))


def test_a_wrong_engine_is_disqualified(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def deaf(workload: Any, level: str, make: Any = speed.runtime) -> Any:
        return make(replace(workload, shapes=(replace(workload.shapes[0], window=9_000),)), level)

    assert speed.main(["W2", "--events", "110000", "--batch", "8192", "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 3 and "W2" in shown
    monkeypatch.setattr(speed, "runtime", deaf)
    assert speed.main(["W2", "--events", "110000", "--batch", "8192", "--repeats", "1"]) == 1
    shown = capsys.readouterr()
    assert "DISQUALIFIED" in shown.err and "are missing" in shown.err and "W2" not in shown.out
    monkeypatch.setattr(speed, "FEW", 105_000)
    assert front.main(["speed-W2", "--quick"]) == 1
    assert "DISQUALIFIED: speed-W2" in capsys.readouterr().err


def test_parts_are_named_whole_or_by_their_start() -> None:
    assert front.chosen(["latency"]) == ["latency"]
    assert front.chosen(["peers-W1"]) == ["peers-W1-10", "peers-W1-30", "peers-W1-50", "peers-W1-0"]
    assert not any(part.startswith(("peers", "spark")) for part in front.chosen([]))
    with pytest.raises(ValueError, match="no part sped: there are speed-W1"):
        front.chosen(["sped"])


def test_preparations_are_not_measured_and_warm_ups_do_not_count() -> None:
    seen: list[Any] = []
    made = iter(range(10))
    timings = harness.take_turns({"a": seen.append, "b": seen.append}, 2, 1, prepare={"a": lambda: next(made)})
    assert seen == [0, None, 1, None, 2, None] and len(timings["a"].wall) == len(timings["b"].cpu) == 2


def test_the_machine_is_described_without_names_of_hosts_or_folders() -> None:
    told = json.dumps(harness.machine())
    assert {"cpu", "cores", "load", "python", "numpy", "kernel", "commit"} <= set(harness.machine())
    assert "/" not in told.replace(harness.machine()["cpu"], "")


def test_latency_counts_from_the_intended_arrival() -> None:
    row = latency.measure(rate=5_000, fill=1, seconds=1)
    assert row["changes"]["count"] == sum(row["histogram"]) > 10
    assert 0 < row["changes"]["p50"] <= row["changes"]["p99"] <= row["changes"]["max"] < 60_000
    assert row["events"]["count"] == 5_000

    class Slow:
        """Pauses once; what was due meanwhile must be charged with it."""

        paused = False

        def process(self, batch: Any) -> Any:
            if not self.paused:
                self.paused = True
                latency.time.sleep(0.1)
            return type("Out", (), {"changes": None})

    offered = pa.record_batch({"id": np.arange(200)})
    ends, done, _ = latency.play(Slow(), offered, 1_000)  # type: ignore[arg-type]
    late = latency.late(ends, done, 1_000)
    assert ends[-1] == 200 and (late > 0).all()
    assert late[:50].min() > 40, "the events behind the pause waited for it"
    assert latency.late(np.array([1, 3]), np.array([0.5, 2.0]), 2).tolist() == [500, 1_500, 1_000]
    events = pa.table({"id": [4, 0, 3, 1, 2]})
    told = changes(("insert", [0, 3]), ("delete", [4, 3]), ("insert", [3, 1]))
    # two events came before; the matches' last ones are the first and the second of those that are offered
    assert latency._changes([told], np.array([2.0]), events, 2, 10)[0].tolist() == [2_000, 1_900]


def test_every_stage_of_a_batch_has_a_clock_and_functions_are_put_back() -> None:
    plain = [getattr(owner, name) for own in stages.STAGES.values() for owner, name in own]
    replay = speed.Replay(speed.Setting(WORKLOADS["W2"], 4_096, events=120_000), WORKLOADS["W2"].events(120_000, 0.1))
    runtime, _ = replay.filled()
    with stages.clocked() as clocks:
        runtime.process(replay.measured[0])
        runtime._engine.express.step = lambda _: None  # so that it goes from stage to stage
        runtime.process(replay.measured[1])
    assert [getattr(owner, name) for own in stages.STAGES.values() for owner, name in own] == plain
    seconds = {stage: spent for stage, spent in clocks.seconds.items() if stage != stages.REST}
    compiled = [seconds.pop("joins"), seconds.pop("a step, from rows to joins")]
    assert all(seconds.values()) and list(map(bool, compiled)) == [kernels.COMPILED] * 2, (seconds, compiled)
    assert not clocks.seconds[stages.REST], "no clock was started outside of a stage"


def test_state_grows_as_told() -> None:
    row = growth.measure(10_000)
    assert row["stored"] == pytest.approx(10_000, rel=0.1) and row["matches"] > 1_000
    assert row["beyond_payload"] == row["bytes_per_event"] - growth.PAYLOAD


def test_adversarial_cases_end(monkeypatch: pytest.MonkeyPatch) -> None:
    case = adversarial.alone("too-late", quick=True)
    assert case["fine"] and case["late"] == case["events"] - 1 and case["peak_bytes"] > 0
    for name in ("hot", "instant", "exploding", "endless", "reversed", "many-keys"):
        run, _, small = adversarial.CASES[name]
        assert run(small)["events"] == small
    with pytest.raises(Disqualified, match="1,000 matches where there are 7"):
        kind = np.repeat(np.arange(3), 10)
        events = adversarial._events(30, 1, np.arange(30), kind)
        adversarial.replay(Shape("three", ("A", "B", "C")), events, count=7)
    monkeypatch.setattr(adversarial, "WAIT", 0.01)
    monkeypatch.setattr(adversarial, "CASES", {"hot": adversarial.CASES["hot"]})
    with pytest.raises(Disqualified, match="hot: ended after"):
        adversarial.run(quick=True, say=lambda _: None)


def test_queries_for_other_engines_are_made_from_the_shape() -> None:
    w1, w2, w5 = (WORKLOADS[name].shapes[0] for name in ("W1", "W2", "W5"))
    assert w2.text == "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN 10000 ms"
    assert jvm.epl(w2) == (
        "select a.id as a, c.id as c from pattern [every a=E(kind='A') -> ((every c=E(kind='C', key=a.key) and not "
        "E(kind='B', key=a.key)) where timer:within(10001 msec))]"
    )
    assert "every b=E(kind='B', key=a.key)) -> (every c=" in jvm.epl(w1)
    assert "timer:interval(10001 msec) and not E(kind='B', key=a.key)" in jvm.epl(w5)
    assert "price>a.price" in jvm.epl(WORKLOADS["W4"].shapes[0])


def test_a_jar_that_is_not_what_was_pinned_is_refused(tmp_path: Path) -> None:
    pinned = (jvm.ROOT / "java" / "checksums.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  \S+\.jar", line) for line in pinned)
    other = tmp_path / pinned[0].split()[1]
    other.write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"has the checksum .* is pinned"):
        jvm.checked([other])


def test_waits_are_what_a_clock_behind_adds() -> None:
    events = pa.table({"id": [0, 1, 2, 3], "ts": [0, 10, 30, 20]})
    shape = Shape("s", ("A", "C"), window=100)
    ids = np.array([[0, 1], [1, 3]])
    # the first match is complete at 10 and leaves at 10 + 5 + 1; the second, when its last event comes, at once
    assert peers.waits(events, shape, ids[:1], 5) == (6.0, 6.0)
    assert peers.waits(events, shape, ids[1:], 5) == (0.0, 0.0)
    assert peers.waits(events, shape, ids[1:], 50) == (41.0, 41.0)


def kept(part: str, rows: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    return {"part": part, "machine": harness.machine(), "settings": settings, "rows": rows}


def test_pages_are_written_between_their_marks_and_goals_judged(tmp_path: Path) -> None:
    page = "".join(f"before {n}\n<!-- begin {n} -->\nold\n<!-- end {n} -->\n" for n in BLOCKS)
    docs, results = tmp_path / "docs", tmp_path / "results"
    docs.mkdir()
    results.mkdir()
    (docs / "performance.md").write_text(page)
    rows = [
        {
            **dict.fromkeys(("us_per_event_median", "spread", "slowest_batch_ms", "bytes_per_event"), 1.0),
            "wanted": size,
            "stored": size,
            "us_per_event": cost,
            "beyond_payload": 60.0,
        }
        for size, cost in ((100_000, 1.0), (1_000_000, 1.5), (10_000_000, 2.5))
    ]
    (results / "growth.json").write_text(json.dumps(kept("growth", rows)))
    pages.write(results, docs)
    text = (docs / "performance.md").read_text()
    assert text.count("\nold\n") == len(BLOCKS) - 2 and "10,000,000" in text
    told = {row[0]: row for row in goals.table_rows(pages.load(results))}
    cost = told["An event costs at most 2 × from 10^5 to 10^7 stored"]
    assert cost[1:3] == ["10^6: 1.5, 10^7: 2.5", "no"]
    assert told["At most 64 bytes per stored event beyond its payload"][2] == "yes"
    assert told["Two workers at least 1.7 × one"][1:3] == ["", "not measured"]
    pages.write(results, docs)
    assert (docs / "performance.md").read_text() == text
    (results / "growth.json").unlink()
    shares = {"workload": "W2", "batch": 8_192, "workers": 2, "events_per_s_wall": 1.0, "scaling_median": 1.0}
    (results / "workers.json").write_text(json.dumps(kept("workers", [{**shares, "scaling": 1.25}])))
    pages.write(results, docs)
    later = (docs / "performance.md").read_text()
    assert "W2/8k 1.25" in later and "10^6: 1.5, 10^7: 2.5" in later, "what was not run is left as it is"
    (docs / "performance.md").write_text("no marks")
    with pytest.raises(ValueError, match="no marks <!-- begin goals -->"):
        pages.write(results, docs)


def test_the_page_of_the_project_has_all_marks() -> None:
    text = (Path(__file__).parent.parent / "docs" / "performance.md").read_text()
    for name in BLOCKS:
        assert pages.replaced(text, name, "x").count(f"<!-- begin {name} -->\nx\n<!-- end {name} -->") == 1


@pytest.mark.parametrize(
    ("main", "given", "said"),
    [
        (front.main, ["--profile", "0"], "--profile 0: give how many events"),
        (speed.main, ["W2", "--batch", "0,256"], "--batch 0: give whole numbers from 1 to"),
        (speed.main, ["W2", "--late", "200"], "--late 200: give whole numbers from 0 to 100"),
        (speed.main, ["W2", "--late", "x"], "--late x: give whole numbers from 0 to 100"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_runs(main, given, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
