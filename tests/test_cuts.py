"""Cuts: a large batch that gives the log of changes that small batches would have given."""

import random

import pytest

import latecomer as lc

PATTERNS = ["SEQ(A a, !B b, C c)", "SEQ(A a, C c, !B b)", "SEQ(!B b, A a, C c)", "SEQ(A a, !A x, C c)"]


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_batch_says_what_its_parts_would_have_said(seed):
    choose = random.Random(seed)
    pattern, patience = choose.choice(PATTERNS), choose.choice([0, 0, 4])
    level = lc.Aggressive(max_delay=6, patience=patience)
    rows = [
        {"id": i, "type": choose.choice("ABC"), "ts": i // 2 + choose.randint(-4, 0), "k": choose.choice("uv")}
        for i in range(60)
    ]
    cuts = sorted(choose.sample(range(1, 60), choose.randint(1, 8)))
    clocks = [max(row["ts"] for row in rows[: i + 1]) for i in range(60)] if choose.random() < 0.5 else None

    def start():
        query = lc.Query(f"PATTERN {pattern} WHERE [k] WITHIN 8 s", name="q", level=level)
        return lc.Runtime(lc.Stream(id="id", unit="s"), query)

    whole, parts = start(), start()
    told = whole.process(rows, clocks=clocks, cuts=cuts).changes.to_pylist()
    expected = []
    for begin, end in zip([0, *cuts], [*cuts, 60], strict=True):
        known = None if clocks is None else clocks[begin:end]
        expected += parts.process(rows[begin:end], clocks=known).changes.to_pylist()

    def log(changes):
        return [(row["op"], tuple(row["events"])) for row in changes]

    assert sorted(log(told)) == sorted(log(expected))
    assert sorted(log(whole.finish().changes.to_pylist())) == sorted(log(parts.finish().changes.to_pylist()))
    assert whole.counters["deleted"] == parts.counters["deleted"]


def test_a_final_level_needs_no_cuts():
    query = lc.Query("PATTERN SEQ(A a, C c) WITHIN 8 s", level=lc.KSlack(2))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    rows = [{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "C", "ts": 3}, {"id": 3, "type": "C", "ts": 9}]
    assert runtime.process(rows, cuts=[1, 2]).changes["events"].to_pylist() == [[1, 2]]
