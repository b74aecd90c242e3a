"""What a PatternSink tells of its progress: the figures are those of the batch, and the hot bucket has a name."""

import io
import time

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

import latecomer as lc
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_progress import BucketLoad, LiveLine, Progress, PrometheusProgress, listener
from tests import spark_fixture
from tests.test_spark import Collect, Files, cut, frame, play

pytestmark = pytest.mark.spark
spark = spark_fixture.spark

STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s", punctuation="PUNCT")
GAP = lc.Query(
    "PATTERN SEQ(A a, !B b, C c) WHERE [tag] WITHIN 20 s", name="gap", level=lc.Aggressive("30 s", patience="5 s")
)


def events(*words):
    """``"A3 x"``: an A at 3 with tag x; ids are given in order."""
    found = []
    for word in words:
        what, tag = word.split()
        found.append({"id": len(found), "kind": what[0], "at": int(what[1:]), "tag": tag})
    types = [("id", pa.int64()), ("kind", pa.string()), ("at", pa.int64()), ("of", pa.string()), ("tag", pa.string())]
    return pa.Table.from_pylist(found, pa.schema(types))


def test_figures_are_those_of_the_batch(spark, tmp_path):
    seen, shown, text = Collect(), [], io.StringIO()
    registry = CollectorRegistry()
    shows = [shown.append, LiveLine(text), PrometheusProgress("gaps", registry)]
    sink = PatternSink(STREAM, GAP, state=tmp_path / "state", sinks=seen, buckets=3, progress=shows)
    assert sink.progress is None
    assert sink.explain()["load"] == []
    first = events("A1 x", "A2 y", "C4 x", "C5 y", "A30 x", "D30 z")
    sink(frame(spark, first), 0)
    # B3 comes late and takes x's match back; C90 lets time pass; A2 is too late; C3's match waits no more.
    second = events("B3 x", "A40 y", "C41 y", "A90 z", "A2 z")
    second = second.set_column(0, "id", pa.array(range(100, 105)))
    sink(frame(spark, second), 1)
    one, two = shown
    assert [p.batch for p in shown] == [0, 1]
    assert sink.progress == two == sink.progress_of(1)
    assert (one.rows, two.rows) == (6, 5)
    assert (one.inserted, one.deleted) == ({"gap": 2}, {})
    assert (two.inserted, two.deleted) == ({"gap": 1}, {"gap": 1})
    assert two.late == {"gap": {"after_max_delay": 1}}
    assert one.held == two.held == {"gap": 0}
    assert two.lag == {"gap": 6.0}  # patience, and one unit
    assert one.state_events > 0
    assert two.state_bytes == sum(load.bytes for load in two.loads) > 0
    assert sum(load.rows for load in two.loads) == 5
    assert two.rows_per_second == pytest.approx(5 / two.seconds)
    ops = [r["op"] for _, c, _ in seen.batches for r in c.to_pylist()]
    assert sorted(ops) == ["delete", "insert", "insert", "insert"]
    assert text.getvalue().splitlines()[1] == two.line()
    assert "5 rows" in two.line()
    assert "1 late, 1 matches, 1 retracted" in two.line()

    def value(name, **labels):
        return registry.get_sample_value(f"latecomer_spark_{name}", {"job": "gaps"} | labels)

    assert value("rows_total") == 11
    assert value("batches_total") == 2
    assert value("late_events_total", query="gap", reason="after_max_delay") == 1
    assert value("matches_inserted_total", query="gap") == 3
    assert value("matches_deleted_total", query="gap") == 1
    assert value("horizon_lag_seconds", query="gap") == 6.0
    assert value("state_events") == two.state_events
    assert value("batch") == 1
    sink(frame(spark, second), 1)  # runs again: no counter counts it twice
    assert value("rows_total") == 11


def test_punctuation_that_goes_to_all_buckets_is_no_row(spark, tmp_path):
    sink = PatternSink(STREAM, GAP, state=tmp_path / "state", buckets=4)
    table = pa.concat_tables([events("A1 x", "C3 x"), events("P1 x").set_column(1, "kind", pa.array(["PUNCT"]))])
    sink(frame(spark, table), 0)
    assert sink.progress.rows == 2


def test_a_hot_key_is_named(spark, tmp_path):
    sink = PatternSink(STREAM, GAP, state=tmp_path / "state", buckets=16)
    words = ["A1 hot"] * 800 + [f"A1 tag{n}" for n in range(200)]
    sink(frame(spark, events(*words)), 0)
    told = sink.explain()
    [hot] = told["hot"]
    assert hot == told["load"][0]
    assert hot["key"] == "tag=hot"
    assert hot["rows"] == pytest.approx(0.8, abs=0.05)
    assert hot["key_share"] == pytest.approx(0.8)
    assert hot["bytes"] > 0.3
    assert "hot: bucket" in sink.progress.line()
    assert "key tag=hot is 80% of all rows" in sink.progress.line()
    shares = sink.progress.shares()
    assert len(shares) == 8
    for what in ("rows", "bytes", "seconds"):
        assert sum(s[what] for s in shares) == pytest.approx(1)
    even = PatternSink(STREAM, GAP, state=tmp_path / "even", buckets=16)
    even(frame(spark, events(*[f"A1 tag{n}" for n in range(4000)])), 0)
    assert max(s["rows"] for s in even.progress.shares()) < 0.15


def test_a_listener_hears_spark_and_the_sink(spark, tmp_path):
    files, heard = Files(tmp_path / "in"), []
    table = events(*[f"A{n} x" for n in range(10)], *[f"C{n} x" for n in range(5, 15)])
    table = table.append_column("x", pa.nulls(20, pa.float64())).append_column("place", pa.nulls(20, pa.int64()))
    files.add(*cut(table, 2))
    sink = PatternSink(STREAM, GAP, state=tmp_path / "state", buckets=2)
    ear = listener(sink, heard.append)
    spark.streams.addListener(ear)
    try:
        play(spark, files, sink, tmp_path / "checkpoint")
        for _ in range(200):  # Spark tells its listeners in its own time
            if len(heard) == 2:
                break
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(ear)
    assert [p.batch for p in heard] == [0, 1]
    assert [p.spark["numInputRows"] for p in heard] == [10, 10]
    assert heard[1].spark["durationMs"]["addBatch"] > 0
    assert heard[1].rows == 10


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_live_line_of_a_terminal_is_written_over():
    counts = {"late": {}, "inserted": {}, "deleted": {}, "held": {}, "lag": {}, "state_events": 0, "state_bytes": 0}
    screen = Terminal()
    show = LiveLine(screen)
    show(Progress(batch=0, rows=1_000_000, seconds=0.5, loads=(), **counts))
    show(Progress(batch=1, rows=1, seconds=0, loads=(), **counts))
    first, second = screen.getvalue().split("\r")[1:]
    assert len(second) == len(first)
    assert second.startswith("batch 1: 1 rows, 0 rows/s")
    assert "\n" not in screen.getvalue()


def test_a_batch_that_is_too_small_to_have_a_hot_bucket():
    counts = {"late": {}, "inserted": {}, "deleted": {}, "held": {}, "state_events": 2, "state_bytes": 2000}
    loads = tuple(BucketLoad(n, 2 * (n == 3), 2000, 0.01, "tag=a", 1.0) for n in range(8))
    told = Progress(batch=0, rows=2, seconds=1, loads=loads, lag={"gap": 1e-6}, **counts)
    assert told.hot() == []
    assert told.line().endswith("0 held, horizon 0 s behind, state 2 events, 2 kB")


@pytest.mark.parametrize("progress", [[3], 3, None, "line"])
def test_progress_takes_functions(tmp_path, progress):
    with pytest.raises(lc.ConfigError, match="functions of a Progress"):
        PatternSink(STREAM, GAP, state=tmp_path, progress=progress)


@pytest.mark.parametrize("queries", [None, "PATTERN SEQ(A a, B b) WITHIN 1 s", [3], 3])
def test_queries_are_queries(tmp_path, queries):
    for make in (lambda: PatternSink(STREAM, queries, state=tmp_path), lambda: lc.Runtime(STREAM, queries)):
        with pytest.raises(lc.ConfigError, match=r"give latecomer.Query\(text"):
            make()
