"""``detect`` as a DataFrame: streaming, static, the sink and one process agree; Spark keeps the state over restarts."""

import random
import time

import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_stream import detect
from tests import spark_fixture
from tests.test_spark import LEVELS, STREAM, Collect, Files, cut, embedded, frame, net, rows_of, stream

pytestmark = pytest.mark.spark
spark = spark_fixture.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocks(spark):
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    spark.conf.unset(PROVIDER)


def random_queries(seed):
    """One query per level, each of another random pattern; all agree on the tag."""
    pick = random.Random(seed)
    found = []
    for name, level in LEVELS.items():
        parts = pick.choice(["A a, C c", "A a, !B b, C c", "A a, !C c", "!B b, A a, D d", "A a, B b, C c"])
        where = pick.choice(["", " AND a.x > 0.3", " AND a.x < 0.8"])
        window = pick.randrange(5, 25)
        text = f"PATTERN SEQ({parts}) WHERE [tag]{where} WITHIN {window} s RETURN a.x AS x, a.tag AS tag, a.id AS first"
        found.append(lc.Query(text, name=name, level=level))
    return found


def collected(changes, checkpoint):
    """Start a streaming query that keeps its rows, run it to the end of what is there, and give them in order."""
    seen = []
    writer = changes.writeStream.foreachBatch(lambda rows, number: seen.append((number, rows.toArrow())))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return seen


@pytest.mark.parametrize("seed", [1, 2])
def test_sink_stream_static_and_one_process_agree(rocks, tmp_path, seed):
    """On random queries; the last rows are far in the future, so that nothing waits at the end of the stream."""
    asked, events = random_queries(seed), stream(300, seed=seed)
    far = [{"kind": "D", "at": 5_000 + n, "tag": f"tag{n}", "x": 0.0, "id": 10_000 + n} for n in range(7)]
    far += [{"kind": "PUNCT", "at": 5_000}]
    events = pa.concat_tables([events, pa.Table.from_pylist(far, events.schema)])
    runtime = lc.Runtime(STREAM, asked)
    open_end = runtime.process(events)
    expected, late = embedded(events, asked)
    assert net(expected) == net(open_end.changes)
    assert len(net(expected)) > 30
    files = Files(tmp_path / "in")
    files.add(*cut(events, 3))

    streaming = collected(detect(files.read(rocks), STREAM, asked, buckets=3), tmp_path / "checkpoint")
    assert [number for number, _ in streaming] == [0, 1, 2]
    told = pa.concat_tables([rows for _, rows in streaming])
    assert net(told) == net(expected)
    static = detect(frame(rocks, events), STREAM, asked, buckets=4)
    assert net(static.toArrow()) == net(expected)
    seen = Collect()
    sink = PatternSink(STREAM, asked, state=tmp_path / "state", sinks=seen, buckets=2)
    for number, piece in enumerate(cut(events, 3)):
        sink(frame(rocks, piece), number)
    assert net(seen.changes) == net(expected)

    rows = {r["match_id"]: r for r in expected.to_pylist() if r["op"] == "insert"}
    for table in (told, static.toArrow()):
        assert table.schema.names == expected.schema.names
        for row in table.to_pylist():
            if row["op"] == "insert" and row["match_id"] in rows:
                assert row == rows[row["match_id"]]
    kept = detect(frame(rocks, events), STREAM, asked, buckets=4, output="late").toArrow()
    assert rows_of(kept) == rows_of(late)
    assert len(rows_of(late)) > 5


def test_a_streaming_result_goes_on_after_a_restart_and_can_be_filtered_and_joined(rocks, tmp_path):
    asked, events = random_queries(3), stream(240, seed=5)
    files, pieces = Files(tmp_path / "in"), cut(events, 4)
    names = rocks.createDataFrame([(f"tag{n}", f"shelf {n}") for n in range(7)], "tag string, place string")
    seen = []
    for some in (pieces[:1], pieces[1:]):
        files.add(*some)
        changes = detect(files.read(rocks), STREAM, asked, buckets=2).where("x > 0.5").join(names, "tag")
        seen += collected(changes, tmp_path / "checkpoint")
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    runtime = lc.Runtime(STREAM, asked)
    whole = pa.concat_tables([runtime.process(piece).changes for piece in pieces])
    expected = {(r["op"], r["match_id"]) for r in whole.to_pylist() if r["x"] > 0.5 and r["tag"] is not None}
    found = [r for _, rows in seen for r in rows.to_pylist()]
    assert {(r["op"], r["match_id"]) for r in found} == expected
    assert {r["place"][-1] == r["tag"][-1] for r in found} == {True}


def test_spark_times_and_other_types_come_out_as_they_went_in(rocks, tmp_path):
    """TIMESTAMP is a moment in any zone of the session; TIMESTAMP_NTZ has no zone; what is nested stays so."""
    rows = rocks.sql(
        """
        SELECT id, substring('AC', cast(id % 2 AS int) + 1, 1) AS kind, timestamp_seconds(1700000000 + id) AS at,
               timestamp_seconds(1700000000 + id)::timestamp_ntz AS plain, cast(id % 3 AS decimal(10, 2)) AS tag,
               named_struct('list', array(timestamp_seconds(id)), 'map', map('x', id)) AS nested
        FROM range(0, 60, 1, 1) UNION ALL
        SELECT 99, 'A', timestamp_seconds(1600000000), NULL, 1, NULL
        """
    )
    asked = lc.Query(
        "PATTERN SEQ(A a, C c) WHERE [tag] WITHIN 20 s RETURN a.plain AS plain, c.nested AS nested, a.at AS begin",
        name="pair",
        level=lc.Aggressive("30 s"),
    )
    moments = lc.Stream(type="kind", ts="at", id="id")
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    zone = rocks.conf.get("spark.sql.session.timeZone")
    rocks.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        runtime = lc.Runtime(moments, asked)
        expected = runtime.process(rows.toArrow())
        for output, one in (("changes", expected.changes), ("late", expected.late)):
            static = detect(rows, moments, asked, buckets=2, output=output)
            files = rocks.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
            streaming = detect(files, moments, asked, buckets=2, output=output)
            for found in (static.toArrow(), collected(streaming, tmp_path / output)[0][1]):
                assert sorted_rows(found) == sorted_rows(one)
            for told in (static, streaming):
                times = ["ts", "plain"] if output == "late" else ["first_ts", "plain", "begin"]
                kinds = [told.schema[name].dataType.typeName() for name in times]
                assert kinds == ["timestamp", "timestamp_ntz", "timestamp"][: len(times)]
    finally:
        rocks.conf.set("spark.sql.session.timeZone", zone)


def sorted_rows(table):
    """Rows as texts, without the two columns of late rows that are estimates."""
    assert table.num_rows
    return sorted(str({k: v for k, v in row.items() if k not in ("missed", "wrong")}) for row in table.to_pylist())


def test_a_timer_wakes_a_stream_whose_sources_fell_silent(rocks, tmp_path):
    """The last event waits for its window to pass; nothing comes any more, and the time of day decides."""
    silent = lc.Stream(type="kind", ts="at", id="id", unit="s", source="tag", clock="source", idle_timeout="1 s")
    overdue = lc.Query("PATTERN SEQ(A a, !C c) WITHIN 4 s", name="overdue", level=lc.KSlack("1 s"))
    now = int(time.time())
    files, seen = Files(tmp_path / "in"), []
    row = {"id": 1, "kind": "A", "at": now, "tag": "x"}
    files.add(pa.Table.from_pylist([row], stream(10).schema))
    changes = detect(files.read(rocks), silent, overdue, buckets=1)
    writer = changes.writeStream.foreachBatch(lambda rows, number: seen.extend(rows.toArrow().to_pylist()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        for _ in range(1200):
            if seen or query.exception() is not None:
                break
            time.sleep(0.1)
    finally:
        query.stop()
    assert [(r["op"], r["events"]) for r in seen] == [("insert", [1])]


def test_what_detect_refuses(spark, tmp_path):
    asked = random_queries(1)
    rows = frame(spark, stream(20))
    with pytest.raises(lc.ConfigError, match="'changes' or 'late'"):
        detect(rows, STREAM, asked, output="both")
    with pytest.raises(lc.ConfigError, match=r"this is a Table: for Arrow.*latecomer\.Runtime"):
        detect(stream(20), STREAM, asked)
    with pytest.raises(lc.ConfigError, match="at least one query"):
        detect(rows, STREAM, [])
    with pytest.raises(lc.SchemaError, match="'tag'"):
        detect(rows.drop("tag"), STREAM, asked)
    files = Files(tmp_path / "in")
    files.add(stream(20))
    spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(lc.ConfigError, match="RocksDB"):
            detect(files.read(spark), STREAM, asked)
    finally:
        spark.conf.unset(PROVIDER)
