"""Advice: what was put into a sample is found in it, replays are judged rightly, and the page shows it."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv
from typer.testing import CliRunner

import latecomer as lc
import latecomer.disorder as ld
from latecomer.advise import advise, chunks_of, levels, replay, take, thin, words
from latecomer.advise import sample as sampling
from latecomer.advise.lateness import findings, histogram, own_order
from latecomer.advise.promises import promises
from latecomer.cli import app
from latecomer.connectors.files import Chunk, Reject
from tests import browser_fixture
from tests.oracle import matches

browser, page = browser_fixture.browser, browser_fixture.page

STREAM = lc.Stream(type="kind", ts="ts", id="id", source="device", unit="ms")
ABSENT = "PATTERN SEQ(A a, !B b, C c) WHERE [key] WITHIN 2 s"


def made(model, n=4_000, seed=1, keys=20, gap=10):
    """Events of three types, 20 keys and four devices, 10 ms apart, sent through a model."""
    rng = np.random.default_rng(seed)
    events = pa.table(
        {
            "id": pa.array(np.arange(n)),
            "kind": pa.array(["A", "B", "C"]).take(pa.array(rng.integers(0, 3, n))),
            "key": pa.array(rng.integers(0, keys, n)),
            "device": pa.array([f"d{i}" for i in range(4)]).take(pa.array(rng.integers(0, 4, n))),
            "ts": pa.array(1_000_000 + np.arange(n) * gap),
        }
    )
    return ld.inject(events, model, STREAM, seed=rng)


def sampled(table, stream=STREAM, arrival="arrival", **options):
    return take(thin(chunks_of(table), **options), stream, name="sample", arrival=arrival)


def query(text=ABSENT, name="gap", level=None):
    return lc.Query(text, name=name, level=level or lc.Conservative())


# --- the sample ------------------------------------------------------------------------------------------------------


def test_a_small_file_is_read_whole_and_a_large_one_in_even_stretches():
    chunks = [Chunk(pa.table({"n": [i] * 10}), [Reject("x", "y")]) for i in range(100)]
    assert thin(chunks, 1_000).table["n"].unique().to_pylist() == list(range(100))
    kept = thin(chunks, 130)
    assert (kept.rows, kept.rejected, kept.tail) == (1_000, 100, 160)
    found = kept.table["n"].unique().to_pylist()
    assert found == [*range(0, 84, found[1]), *range(84, 100)] and 225 <= kept.table.num_rows <= 290
    assert thin(iter(chunks), 130).table.equals(kept.table)


def test_a_thinned_sample_is_replayed_where_it_has_no_gaps(monkeypatch, quick):
    table = made(ld.Delayed(0.2, ld.Uniform("1 s")), n=20_000)
    monkeypatch.setattr(sampling, "STRETCH", 100)
    found = sampled(table, most=5_000)
    assert found.thinned and 5_000 < len(found) < 7_000 and len(found) - found.whole == 1_600
    assert [int(row) for row in found.table["id"][found.whole :]] == table["id"].to_pylist()[-1_600:]
    tried = levels.trial(found, query(), own=False)
    assert tried.stretch <= 17_000
    assert max(point.verdict.wait_95 for point in tried.points) < 2_000


def test_rows_that_cannot_be_used_are_counted():
    table = pa.table({"kind": ["A", None, "B", "C"], "ts": [1, 2, None, 4], "id": [1, 2, 3, 4], "device": ["x"] * 4})
    found = sampled(table, arrival=None)
    assert (len(found), found.rows, found.unplaced) == (2, 4, 2)
    with pytest.raises(lc.errors.SchemaError, match="no event with a type and a time"):
        sampled(table.slice(1, 2), arrival=None)
    with pytest.raises(lc.errors.SchemaError, match="no column 'came': it has 'kind', 'ts', 'id', 'device'"):
        sampled(table, arrival="came")


def test_rows_are_put_in_order_of_arrival_and_times_into_one_unit():
    came = pa.array([9_000_000, 2_000_000, 5_000_000], pa.timestamp("us"))
    table = pa.table({"kind": ["A", "B", "C"], "ts": pa.array([1, 2, 3], pa.timestamp("s")), "came": came})
    found = sampled(table, lc.Stream(type="kind", ts="ts", unit="ms"), arrival="came")
    assert found.ts.tolist() == [2_000, 3_000, 1_000]
    assert found.came.tolist() == [2_000, 5_000, 9_000]
    assert found.lateness.tolist() == [0, 0, 2_000]


def test_without_times_of_arrival_the_order_is_used_and_the_report_says_so():
    table = made(ld.Delayed(0.2, ld.Uniform("1 s"))).drop_columns(["arrival"])
    found = sampled(table, arrival=None)
    assert found.arrival is None and found.came.tolist() == found.clock.tolist()
    assert "no column of arrival times" in found.limits[0]
    assert findings(found)["all"]["delays"] is None


@pytest.mark.parametrize("at", [0.0, 0.3, 0.99])
def test_one_event_from_the_future_is_set_aside_and_no_other(at):
    table = made(ld.Chain(ld.Delayed(0.2, ld.Pareto("200 ms", shape=1.2)), ld.FromFuture("1 h", at=at)))
    found = sampled(table)
    honest = 1_000_000 + 10 * np.asarray(table["id"])
    [wrong] = np.asarray(table["ts"])[np.asarray(table["ts"]) > honest].tolist()
    assert [ts for ts, _, _ in found.ahead] == [wrong]
    assert len(found) == len(table) - 1


@pytest.mark.parametrize(
    "model", [ld.Ordered(), ld.Delayed(0.7, ld.Pareto("200 ms", shape=1.1)), ld.Outage("20 s"), ld.ClockSkew("5 s")]
)
def test_delay_outage_and_skew_are_no_future(model):
    assert sampled(made(model)).ahead == []


# --- lateness --------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_measure():
    table = made(ld.Delayed(0.3, ld.Exponential("500 ms")))
    found = findings(sampled(table))
    whole = ld.measure(table["ts"], source=table["device"])
    assert found["all"]["quantiles"] == {str(q): v for q, v in whole.quantiles.items()}
    assert {n: g["max_lateness"] for n, g in found["sources"].items()} == {
        n: d.max_lateness for n, d in whole.per_source.items()
    }
    assert sum(g["events"] for g in found["types"].values()) == len(table)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=50))
def test_the_histogram_holds_every_event(lateness):
    told = histogram(np.array(lateness))
    assert told["on_time"] + sum(told["counts"]) == len(lateness)
    for low, high, count in zip(told["edges"], told["edges"][1:], told["counts"], strict=False):
        assert count == sum(low < value <= high for value in lateness)


def test_periods_hold_every_event_and_their_quantiles():
    found = sampled(made(ld.Delayed(0.3, ld.Uniform("1 s"))))
    told = findings(found)["over_time"]
    assert sum(p["events"] for p in told) == len(found)
    assert max(p["max"] for p in told) == found.lateness.max()
    assert 30 < len(told) <= 60


def test_an_outage_is_a_burst_of_its_source():
    table = made(ld.Outage("10 s", at=0.5, source=2))
    found = findings(sampled(table))
    name = list(dict.fromkeys(made(ld.Ordered())["device"].to_pylist()))[2]
    held = int(((np.asarray(table["arrival"]) > np.asarray(table["ts"])) & (np.asarray(table["device"]) == name)).sum())
    [burst] = found["bursts"]
    assert burst["source"] == name and 0.7 * held <= burst["events"] <= held
    assert 9_900 <= burst["max_lateness"] <= 10_000 and burst["took"] == 0


def test_independent_delays_are_no_bursts():
    for late in (0.05, 0.3, 0.7):
        for tail in (ld.Exponential("500 ms"), ld.Uniform("1 s")):
            assert findings(sampled(made(ld.Delayed(late, tail))))["bursts"] == []


@pytest.mark.parametrize("seed", range(4))
def test_a_source_that_is_always_behind_is_no_burst(seed):
    assert findings(sampled(made(ld.ClockSkew("5 s"), seed=seed)))["bursts"] == []


def test_copies_break_no_promise():
    told = promises(sampled(made(ld.Duplicates(0.1, ld.Uniform("3 s")))))
    assert told["slack"]["k"]["1.0"] == 0 and told["order"]["strict"]
    assert all(slack["k"]["1.0"] == 0 for slack in told["delays"].values())


def test_copies_are_counted_and_conflicts_told():
    table = made(ld.Duplicates(0.1, ld.Uniform("3 s")))
    told = findings(sampled(table))["copies"]
    assert told["events"] == len(table) - 4_000 and told["conflicting"] == 0
    assert 0 < told["after"]["1.0"] <= 3_000
    ids = table["id"].to_pylist()
    second = next(i for i, one in enumerate(ids) if one in ids[:i])
    keys = table["key"].to_pylist()
    keys[second] += 1
    changed = table.set_column(table.column_names.index("key"), "key", pa.array(keys))
    assert findings(sampled(changed))["copies"]["conflicting"] == 1
    assert findings(sampled(table, lc.Stream(type="kind", ts="ts", unit="ms")))["copies"] is None


@pytest.mark.parametrize("arrival", ["arrival", None])
def test_a_clock_that_is_off_is_found(arrival):
    table = made(ld.Delayed(0.2, ld.Exponential("100 ms")))
    ts = np.asarray(table["ts"]) + np.where(np.asarray(table["device"]) == "d1", 3_000, 0)
    skewed = table.set_column(table.column_names.index("ts"), "ts", pa.array(ts))
    told = findings(sampled(skewed if arrival else skewed.drop_columns(["arrival"]), arrival=arrival))["skew"]
    assert abs(told["d1"]["offset"] - 3_000) <= 150
    assert all(abs(told[f"d{i}"]["offset"]) <= 150 for i in (0, 2, 3))


def test_drift_shows_in_the_thirds():
    quick, slow = ld.Delayed(0.3, ld.Uniform("100 ms")), ld.Delayed(0.3, ld.Uniform("5 s"))
    told = findings(sampled(made(ld.Shift(quick, slow))))["drift"]
    assert told["first"]["q99"] <= 100 < 3_000 < told["last"]["q99"]


def test_many_sources_are_told_as_a_hundred_and_the_others():
    table = made(ld.Ordered())
    names = pa.array([f"s{i % 250}" for i in range(len(table))])
    found = findings(sampled(table.set_column(table.column_names.index("device"), "device", names)))["sources"]
    assert len(found) == 101 and found["(others)"]["events"] == 150 * 16


# --- promises --------------------------------------------------------------------------------------------------------


def test_the_slack_told_keeps_the_share_told():
    found = sampled(made(ld.Delayed(0.3, ld.Exponential("500 ms"))))
    told = promises(found)["slack"]
    for share, k in told["k"].items():
        later = int((found.lateness > k).sum())
        assert told["later"][share] == later <= (1 - float(share)) * len(found)
        assert k == 0 or (found.lateness > k - 1).sum() > (1 - float(share)) * len(found)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2)), min_size=1, max_size=30))
def test_order_by_source_against_brute_force(pairs):
    ts, source = (np.array(column) for column in zip(*pairs, strict=True))
    back, equal = own_order(ts, source)
    for i, (time, who) in enumerate(pairs):
        before = [t for t, s in pairs[:i] if s == who]
        assert back[i] == any(t > time for t in before)
        assert equal[i] == (bool(before) and max(before) == time)


def test_an_outage_keeps_the_order_of_each_source_and_random_delay_does_not():
    kept = promises(sampled(made(ld.Outage("5 s"))))["order"]
    assert kept["kept"] and kept["strict"] and kept["sources_in_order"] == 4
    broken = promises(sampled(made(ld.Delayed(0.3, ld.Uniform("5 s")))))["order"]
    assert not broken["kept"] and broken["out_of_order"] > 100 and broken["worst"][0][1] > 0


def test_numbers_without_gaps():
    table = made(ld.Delayed(0.3, ld.Uniform("1 s")))
    number = np.zeros(len(table), int)
    by_time = np.argsort(np.asarray(table["ts"]))
    for name in ("d0", "d1", "d2", "d3"):
        own = by_time[np.asarray(table["device"])[by_time] == name]
        number[own] = np.arange(len(own))
    [told] = promises(sampled(table.append_column("seq", pa.array(number))))["sequences"]
    assert (told["column"], told["kept"], told["gaps"], told["steps"]) == ("seq", True, 0, len(table) - 4)
    lost = table.append_column("seq", pa.array(number)).filter(pa.array(number != 7))
    [told] = promises(sampled(lost))["sequences"]
    assert (told["kept"], told["gaps"]) == (False, 4)
    assert promises(sampled(table))["sequences"] == []


# --- replays ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Few and coarse batches over the whole sample."""
    monkeypatch.setattr(levels, "BATCHES", 60)
    monkeypatch.setattr(levels, "FINE", 0.1)


MODELS = {
    "delays": ld.Delayed(0.3, ld.Exponential("300 ms")),
    "copies": ld.Chain(ld.Delayed(0.2, ld.Uniform("1 s")), ld.Duplicates(0.1, ld.Uniform("2 s"))),
    "outage": ld.Outage("4 s"),
    "ordered": ld.Ordered(),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("text", [ABSENT, "PATTERN SEQ(A a, !B b) WHERE [key] WITHIN 1 s"])
def test_the_truth_is_the_oracles_and_levels_that_keep_their_promise_are_right(model, text, quick):
    table = made(model, n=500, keys=4)
    found = levels.trial(sampled(table), query(text), own=False)
    unique = {row["id"]: row for row in table.to_pylist()}
    events = [{**row, "type": row["kind"]} for row in unique.values()]
    assert found.truth == len(matches(query(text).plan, events, "ms")) > 0
    exact = [p for p in found.points if "99" not in p.name and p.family == "conservative"]
    exact += [[p for p in found.points if p.name.startswith(start)][-1] for start in ("k = ", "max_delay = ")]
    exact += [p for p in found.points if p.name.startswith("patience = ")]
    assert len(exact) >= 3
    for point in exact:
        assert (point.verdict.recall, point.verdict.precision) == (1.0, 1.0), point
    for point in found.points:
        if point.family != "aggressive":
            assert point.verdict.taken_back == 0
        assert point.verdict.wrong <= 1 and point.verdict.peak_events <= len(table)


def test_a_level_that_does_not_wait_misses_and_errs(quick):
    found = levels.trial(sampled(made(ld.Delayed(0.5, ld.Uniform("2 s")))), query(), own=False)
    by_name = {p.name: p.verdict for p in found.points}
    none = by_name["k = 0 s"]
    assert none.recall < 0.5 and none.late > 1_000 and none.wait_95 == 0
    most = max((p for p in found.points if p.name.startswith("k = ")), key=lambda p: p.level.k.units("ms"))
    assert most.verdict.recall == 1 and most.verdict.wait_95 >= 1_500
    at_once = [p.verdict for p in found.points if p.name.startswith("max_delay")][-1]
    assert at_once.recall == at_once.precision == 1 and at_once.wrong == at_once.taken_back > 0.05
    assert at_once.wait_95 == 0
    waits = [p.verdict for p in found.points if p.name.startswith("patience")]
    assert [v.wrong for v in waits] == sorted((v.wrong for v in waits), reverse=True) and waits[-1].wrong == 0


def test_the_wait_is_from_the_arrival_of_the_last_event_to_the_answer():
    """k = 100: the match of (10, 20) leaves when the clock is at 120, the row that arrives 500 after its last event."""
    rows = pa.table({"type": ["A", "C", "X", "X"], "ts": [10, 20, 119, 120], "id": [1, 2, 3, 4]})
    runtime = lc.Runtime(
        lc.Stream(id="id", unit="s"), [lc.Query("PATTERN SEQ(A a, C c) WITHIN 50", level=lc.KSlack(100))]
    )
    log = replay.replay(runtime, rows, [0, 1, 2, 3, 4])
    came = replay.last_arrival(log.changes["events"], pa.array([1, 2, 3, 4]))
    found = replay.verdict(log, np.zeros(len(came), int), np.array([0]), came, np.array([100, 200, 690, 700]))
    assert came.tolist() == [1] and (found.wait_median, found.recall, found.wrong) == (500.0, 1.0, 0.0)


def test_wrong_alarms_count_whether_taken_back_or_not():
    changes = pa.table(
        {"op": ["insert", "insert", "delete", "insert"], "match_id": list("abbc"), "events": [[1], [2], [2], [3]]}
    )
    log = replay.Log(changes, np.array([0, 0, 1, 2]), 3, 5, 6)
    found = replay.verdict(
        log, np.array([0, 1, 1, 2]), np.array([0, 7]), np.array([0, 0, 0, 1]), np.array([10, 20, 30])
    )
    assert (found.net, found.truth, found.precision, found.recall) == (2, 2, 0.5, 0.5)
    assert (found.wrong, found.taken_back) == (2 / 3, 1 / 3)
    assert (found.wait_median, found.late) == (5.0, 3)


def test_of_copies_that_differ_the_first_to_arrive_counts(quick):
    rows = {"kind": ["A", "C", "C"], "ts": [10, 15, 5], "id": [1, 2, 2], "key": [7, 7, 7], "device": ["x"] * 3}
    found = sampled(pa.table(rows | {"arrival": [10, 15, 20]}))
    assert levels.trial(found, query(), own=False).truth == 1


def test_a_part_of_the_keys_stands_for_all(monkeypatch, quick):
    found = sampled(made(ld.Delayed(0.3, ld.Uniform("1 s")), n=8_000, keys=200))
    whole = levels.trial(found, query(), own=False)
    monkeypatch.setattr(levels, "MOST_EVENTS", 2_000)
    part = levels.trial(found, query(), own=False)
    assert part.events < whole.events == part.of and 0.15 < part.share < 0.4
    for one, other in zip(whole.points, part.points, strict=True):
        assert one.name == other.name
        assert abs(one.verdict.recall - other.verdict.recall) < 0.06, one.name
        assert abs(one.verdict.wrong - other.verdict.wrong) < 0.06, one.name
        if one.verdict.wait_95 is not None:
            assert abs(one.verdict.wait_95 - other.verdict.wait_95) <= 3 * whole.step, one.name
        assert 0.6 < other.verdict.peak_events / one.verdict.peak_events < 1.6, one.name
    without_key = levels.trial(found, query("PATTERN SEQ(A a, !B b, C c) WITHIN 30 ms"), own=False)
    assert 1_000 < without_key.events <= 2_000 and without_key.share == 1


def test_a_part_is_judged_by_the_clock_of_the_whole(monkeypatch, quick):
    """Delays are short against the distance of the few events replayed, which by themselves would hardly be late."""
    found = sampled(made(ld.Delayed(0.5, ld.Uniform("60 ms")), keys=200))
    shares = []
    for most in (40_000, 400):
        monkeypatch.setattr(levels, "MOST_EVENTS", most)
        one = levels.trial(found, query(), own=False)
        [none] = [point.verdict for point in one.points if point.name == "k = 0 s"]
        shares.append(none.late / one.events)
    assert shares[0] > 0.25 and abs(shares[0] - shares[1]) < 0.1


def test_a_query_with_too_many_matches_is_replayed_on_less(monkeypatch, quick):
    monkeypatch.setattr(levels, "MOST_CHANGES", 3_000)
    monkeypatch.setattr(levels, "MOST_EVENTS", 4_000)
    many = query("PATTERN SEQ(A a, C c) WITHIN 300 ms")
    found = levels.trial(sampled(made(ld.Ordered())), many, own=False)
    assert found.truth <= 3_000 and found.events < 2_700


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_the_front_against_brute_force(points):
    def beats(a, b):
        return all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    assert levels.front([tuple(map(float, p)) for p in points]) == [
        not any(beats(q, p) for q in points) for p in points
    ]


@given(st.integers(0, 10**9), st.sampled_from(["ns", "ms", "s", "min", "h", "d"]))
def test_parameters_are_rounded_up_and_hardly(units, unit):
    found = levels.rounded(units, unit).exact(unit)
    assert units <= found <= units * 1.11 + 1


# --- words -----------------------------------------------------------------------------------------------------------


def told_point(name, family, wait, recall=1.0, wrong=0.0, promises=None):
    level = {"kslack": lc.KSlack(9), "aggressive": lc.Aggressive(9), "conservative": lc.Conservative()}[family]
    found = replay.Verdict(500, 500, 1.0, recall, wrong, wrong, wait, wait, 0, 10, 10)
    return levels.Point(name, family, level, f"CONSISTENCY {level}", promises, found)


def trial_of(*points, text=ABSENT):
    return levels.Trial(query(text), "ms", 2_000, 10, 10, 1.0, 10, 1, 500, points)


def test_the_recommendation_weighs_wait_against_wrong_alarms():
    slow, at_once = told_point("slow", "kslack", 5_000.0), told_point("at once", "aggressive", 0.0, wrong=0.2)
    patient, lossy = told_point("patient", "aggressive", 900.0, wrong=0.01), told_point("lossy", "kslack", 1.0, 0.9)
    said = words.recommend(trial_of(slow, at_once, patient, lossy), 0.99, 0.05)
    assert [c.point.name for c in said.choices] == ["patient", "slow"]
    said = words.recommend(trial_of(slow, at_once, patient, lossy), 0.99, 0.3)
    assert [c.point.name for c in said.choices] == ["at once", "slow"]
    said = words.recommend(trial_of(slow, patient, lossy), 0.8, 0.3)
    assert [c.point.name for c in said.choices] == ["lossy", "patient"] and "hardly longer" in said.why


def test_what_is_known_by_hindsight_is_never_recommended():
    best = told_point("best", "conservative", 0.0, promises="")
    said = words.recommend(trial_of(best, told_point("slow", "kslack", 5_000.0)), 0.99, 0.05)
    assert [c.point.name for c in said.choices] == ["slow"]
    assert words.recommend(trial_of(best), 0.99, 0.05).choices == ()


def test_the_clause_to_paste_is_one(quick):
    found = advise(sampled(made(MODELS["delays"])), [query()])
    for point in found.trials[0][0].points:
        assert lc.Query(f"{ABSENT} {point.clause}").level == point.level
        if point.promises:
            promised = eval(f"[{point.promises}]", vars(lc.consistency.generators))
            lc.Stream(source="device", promises=promised)


# --- the page and the command ----------------------------------------------------------------------------------------


@pytest.fixture
def events_file(tmp_path, quick):
    model = ld.Chain(MODELS["copies"], ld.Outage("4 s"), ld.FromFuture("1 h"))
    table = made(model, n=2_000)
    names = pa.array([f"<b>{n}</b>" for n in table["device"].to_pylist()])
    pq.write_table(table.set_column(table.column_names.index("device"), "device", names), tmp_path / "shop.parquet")
    return tmp_path / "shop.parquet"


def call(*arguments):
    return CliRunner().invoke(app, ["advise", *map(str, arguments)])


COLUMNS = ("--type", "kind", "--id", "id", "--source", "device", "--unit", "ms", "--arrival", "arrival")


def test_the_page_opens_in_a_browser_and_shows_every_part(events_file, tmp_path, page):
    target = tmp_path / "page.html"
    own = "PATTERN SEQ(A x, C y) WHERE [key] WITHIN 1 s CONSISTENCY kslack(77 ms)"
    done = call(events_file, *COLUMNS, "-q", ABSENT, "-q", own, "-o", target)
    assert done.exit_code == 0, done.output
    assert f"The page is {target}" in done.stdout.replace("\n", "")
    page.goto(target.as_uri())
    assert page.wrong == [] and page.asked == [target.as_uri()]
    for part in ("short", "lateness", "types", "sources", "time", "bursts", "copies", "skew", "promises", "reading"):
        assert page.locator(f"#{part}").count() == 1, part
    assert page.locator("section.query").count() == 2
    assert page.locator("svg.chart").count() == 2 + 2 * 3
    assert page.locator(".choice.first pre").first.inner_text().startswith("CONSISTENCY ")
    assert page.locator("#query-2 tr", has_text="kslack(77 ms) (yours)").count() == 1
    assert page.locator("#sources + div tbody td").first.inner_text().startswith("<b>d")
    assert page.locator("b").count() == 0
    overflow = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.evaluate(overflow) <= 0
    labels = page.eval_on_selector_all("svg[role=img]", "all => all.map(one => one.getAttribute('aria-label'))")
    assert all(labels)
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", target.read_text())


def test_the_same_sample_gives_the_same_page_and_json(events_file, tmp_path):
    told = []
    for name in ("one", "two"):
        done = call(events_file, *COLUMNS, "-q", ABSENT, "--json", "-o", tmp_path / f"{name}.html")
        assert done.exit_code == 0, done.output
        told.append(json.loads(done.stdout) | {"page": ""})
    assert told[0] == told[1]
    assert (tmp_path / "one.html").read_text() == (tmp_path / "two.html").read_text()
    assert told[0]["lateness"]["ahead"]["set_aside"] == 1
    assert told[0]["lateness"]["copies"]["events"] > 100
    assert {level["family"] for level in told[0]["queries"][0]["levels"]} == {"kslack", "conservative", "aggressive"}


def test_text_files_and_no_queries(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("type,ts\nA,1\nB,5\nbroken\nA,3\n")
    done = call("log.csv", "--unit", "s", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["sample"]["rejected"] == 1 and told["lateness"]["all"]["late"] == 1
    assert (
        told["page"] == "log-advice.html" and "1 record could not be read" in (tmp_path / "log-advice.html").read_text()
    )


def test_every_format_gives_the_same_figures(tmp_path):
    table = made(ld.Delayed(0.2, ld.Uniform("1 s")), n=1_000)
    times = {name: table[name].cast(pa.timestamp("ms")) for name in ("ts", "arrival")}
    table = table.drop_columns(list(times))
    for name, column in times.items():
        table = table.append_column(name, column)
    pq.write_table(table, tmp_path / "events.parquet")
    csv.write_csv(table, tmp_path / "events.csv")
    lines = [json.dumps(row, default=lambda moment: moment.isoformat()) for row in table.to_pylist()]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    found = []
    for name in ("events.parquet", "events.csv", "events.jsonl"):
        done = call(tmp_path / name, *COLUMNS, "--json", "-o", tmp_path / "page.html")
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        found.append((told["lateness"], told["promises"]["slack"], told["promises"]["delays"]))
    assert found[0] == found[1] == found[2] and found[0][0]["all"]["late"] > 100


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.csv",), 2, "there is no file 'none.csv'"),
        (("log.csv", "--source", "device"), 3, "has no column 'device'"),
        (("log.csv", "-q", "PATTERN SEQ(A a, B b) WHERE a.x = 1 WITHIN 5 s"), 2, "x"),
        (("log.csv", "-o", "log.csv"), 2, "is the sample itself"),
        (("empty.csv",), 3, "empty.csv has no event that can be read"),
        (("log.csv", "--kafka", "exits"), 2, "--kafka picks a topic of a pipeline"),
    ],
)
def test_mistakes_are_told(tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("type,ts\nA,1\nB,5\n")
    (tmp_path / "empty.csv").write_text("type,ts\n")
    done = call(*arguments, "--unit", "s")
    assert done.exit_code == code and message in done.output


def test_without_a_match_nothing_is_recommended(tmp_path, monkeypatch, quick):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("type,ts\n" + "".join(f"A,{n}\n" for n in range(300)))
    done = call("log.csv", "--unit", "s", "-q", "PATTERN SEQ(A a, !X x, B b) WITHIN 5 s")
    assert done.exit_code == 0, done.output
    assert "has no match in what was replayed" in " ".join(done.stdout.split()) and "CONSISTENCY" not in done.stdout


def test_a_file_of_one_event(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("type,ts\nA,1\n")
    done = call("log.csv", "--unit", "s", "-q", "PATTERN SEQ(A a, !B b) WITHIN 5 s")
    assert done.exit_code == 0, done.output
    assert "Every event arrived in order" in done.stdout


def test_the_sampling_constants_are_as_documented():
    assert sampling.MOST_ROWS == 1_000_000 and levels.MOST_EVENTS == 40_000 and levels.BATCHES == 600
