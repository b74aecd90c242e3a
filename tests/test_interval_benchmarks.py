"""The programs that the interval benchmark compares give the same answer, and a wrong one is found out."""

from pathlib import Path

import pytest

import latecomer as lc
from benchmarks import intervals
from benchmarks.harness import Disqualified


@pytest.mark.parametrize("length", [1, 8])
def test_all_programs_find_the_same(length):
    text = intervals.SEQUENCE.format(window=40)
    columns = intervals.Load(1500, length, 20, even=True).columns()
    plan = lc.Query(text, level=lc.Aggressive(0)).plan
    found, expanded = intervals.Core(plan, length).run(columns, True), intervals.points(text, columns)
    assert len(found) > 50
    intervals.check("same", found, expanded)
    assert intervals.whole(text, columns, length) == len(found)
    assert sum(intervals.Core(plan, length).run(columns, False).values()) >= len(found)
    match = next(iter(found))
    for wrong in ({**expanded, match: found[match] + 1e-6}, {k: v for k, v in expanded.items() if k != match}):
        with pytest.raises(Disqualified):
            intervals.check("other", found, wrong)


def test_plots_are_the_same_for_the_same_figures(tmp_path: Path):
    rows = [
        {"group": g, "length": n, "window": n, "matches": n, "intervals": 9.0 * n, "matching": 10.0 * n, "points": 1.0}
        for g in ("length", "length, negation", "points", "window", "selectivity")
        for n in (1, 10)
    ]
    for name in ("one.svg", "two.svg"):
        intervals.draw(rows, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
