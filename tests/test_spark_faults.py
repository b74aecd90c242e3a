"""Faults around a PatternSink, in one session: afterwards the sinks hold what they would have held without."""

import errno
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors import spark_detect
from latecomer.connectors.sinks import DeltaSink, KafkaSink, ParquetSink, PostgresSink, SQLiteSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.versions import VersionStore
from latecomer.storage.attempts import Attempt
from latecomer.storage.files import failure
from tests import oracle, postgres_fixture, sinks_kit, spark_fixture, spark_job
from tests.test_sinks import Flaky
from tests.test_spark import Files, cut, frame, play

pytestmark = pytest.mark.spark
spark = spark_fixture.spark
postgres, database = postgres_fixture.postgres, postgres_fixture.database

STREAM, QUERIES = spark_job.STREAM, spark_job.QUERIES


def answer(events):
    """What the oracle says: (query, events of the match)."""
    found = [r | {"type": r["kind"], "ts": r["at"]} for r in sorted(events.to_pylist(), key=lambda r: r["at"])]
    return sorted((q.name, tuple(match)) for q in QUERIES for match in oracle.matches(q.plan, found, "s"))


def held(case):
    return sorted((r["query"], tuple(r["events"])) for r in case.rows("matches"))


def each_change_once(case):
    """The log inserts a match only while it is absent, and deletes it only while it is present."""
    present = set()
    for row in case.rows("changes"):
        key = row["query"], row["match_id"]
        assert (row["op"] == "delete") == (key in present), row
        present ^= {key}
    return len(present)


def read(files, spark):
    return spark.readStream.schema(spark_job.COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(files.folder))


class Input(Files):
    def read(self, spark):
        return read(self, spark)


def through(spark, tmp_path, pieces, make, most=20):
    """Run the job again and again until no micro-batch is left; returns how often it failed."""
    files = Input(tmp_path / "in")
    files.add(*pieces)
    for failures in range(most):
        sink = make()
        try:
            play(spark, files, sink, tmp_path / "checkpoint")
            sink.finish(spark)
        except Exception:  # noqa: BLE001 - whatever it was, the job starts again
            continue
        finally:
            sink.close()
        return failures
    raise AssertionError(f"the job did not come to its end in {most} runs")


def test_all_sinks_at_once_one_of_which_fails_every_other_time(spark, tmp_path, database, kafka):
    events = spark_job.events(7)
    cases = [
        sinks_kit.Parquet(tmp_path, compact=2),
        sinks_kit.Delta(tmp_path),
        sinks_kit.Postgres(database),
        sinks_kit.Kafka(kafka.bootstrap),
        sinks_kit.SQLite(tmp_path),
        sinks_kit.DuckDB(tmp_path),
    ]
    flaky = Flaky(cases[-1].make())

    def make():
        sinks = [flaky, *(case.make() for case in cases[:-1])]
        return PatternSink(STREAM, QUERIES, state=tmp_path / "state", sinks=sinks, buckets=2)

    assert through(spark, tmp_path, cut(events, 3), make) == 4  # three batches and the end
    expected = answer(events)
    assert len(expected) > 100
    for case in cases:
        assert held(case) == expected, case
        assert each_change_once(case) == len(expected), case
    assert {type(c.make()) for c in cases} >= {ParquetSink, DeltaSink, PostgresSink, KafkaSink, SQLiteSink}


class Doubled(spark_detect.Detect):
    """A task that speculation runs twice at the same time: both attempts write, one of them counts."""

    def __call__(self, batches):
        cells = list(batches)
        other = threading.Thread(target=lambda: list(spark_detect.Detect.__call__(self, iter(cells))))
        other.start()
        mine = list(spark_detect.Detect.__call__(self, iter(cells)))
        other.join()
        return iter(mine)


def test_a_task_that_runs_twice_at_once(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(spark_detect, "Detect", Doubled)
    events, case = spark_job.events(8), sinks_kit.SQLite(tmp_path)

    def make():
        return PatternSink(STREAM, QUERIES, state=tmp_path / "state", sinks=case.make(), buckets=3)

    assert through(spark, tmp_path, cut(events, 4), make) == 0
    assert held(case) == answer(events)
    assert each_change_once(case) == len(held(case))


class NoRoom(Attempt):
    """A shelf on a disk that is full."""

    def put(self, blobs):
        raise failure(OSError(errno.ENOSPC, "No space left on device"), self.shown, "blobs/page", "written")


class Full(VersionStore):
    """A state folder without room for the states of one batch, until someone makes room."""

    def attempts(self):
        if self.batches()[-1:] == [1] and not Path(self.uri + ".room").exists():
            return partial(NoRoom, self.uri, self._folder.writer)
        return super().attempts()


def test_a_state_folder_that_fills_up(spark, tmp_path):
    """The batch fails and says why; nothing is lost or doubled once there is room again."""
    events, case = spark_job.events(9), sinks_kit.SQLite(tmp_path)
    files = Input(tmp_path / "in")
    files.add(*cut(events, 4))

    def make():
        sink = PatternSink(STREAM, QUERIES, state=tmp_path / "state", sinks=case.make(), buckets=2)
        sink._store = Full(tmp_path / "state")
        return sink

    for _ in range(2):
        with pytest.raises(Exception, match="No space left on device"):
            play(spark, files, make(), tmp_path / "checkpoint")
    assert max(r["batch_id"] for r in case.rows("changes")) <= 1
    (tmp_path / "state.room").touch()
    sink = make()
    play(spark, files, sink, tmp_path / "checkpoint")
    sink.finish(spark)
    assert held(case) == answer(events)
    assert each_change_once(case) == len(held(case))


@pytest.mark.parametrize("moment", ["before the version", "after the version", "between the sinks"])
def test_a_batch_that_dies_at_each_of_its_steps(spark, tmp_path, moment):
    """Whatever the step, the batch runs again from the version before it, and the sinks end up as if it ran once."""
    events = spark_job.events(10)
    one, two = sinks_kit.SQLite(tmp_path), sinks_kit.Parquet(tmp_path)

    class Dies(VersionStore):
        left = 2

        def write(self, version, *states):
            if moment == "before the version" and Dies.left:
                Dies.left -= 1
                raise RuntimeError("died")
            super().write(version, *states)
            if moment == "after the version" and Dies.left:
                Dies.left -= 1
                raise RuntimeError("died")

    class Between:
        def open(self, job):
            pass

        def apply(self, *batch):
            if moment == "between the sinks" and Dies.left:
                Dies.left -= 1
                raise RuntimeError("died")

        def close(self):
            pass

    pieces = cut(events, 3)
    number = failed = 0
    while number < len(pieces):
        sink = PatternSink(
            STREAM, QUERIES, state=tmp_path / "state", sinks=[one.make(), Between(), two.make()], buckets=2
        )
        sink._store = Dies(tmp_path / "state")
        try:
            sink(frame(spark, pieces[number]), number)
        except RuntimeError:
            failed += 1
        else:
            number += 1
        sink.close()
    sink.finish(spark)
    sink.close()
    assert failed == 2
    for case in (one, two):
        assert held(case) == answer(events)
        assert each_change_once(case) == len(held(case))


def test_the_answers_are_not_empty():
    """Guards the comparisons above."""
    assert all(len(answer(spark_job.events(seed))) > 50 for seed in (7, 8, 9, 10))
    assert {type(q.level) for q in QUERIES} == {lc.KSlack, lc.Aggressive}
    assert isinstance(spark_job.events(7), pa.Table)
