"""Interval streams on a real local Spark: buckets find what one runtime finds, with the same confidences."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import latecomer as lc
from latecomer.connectors.sinks.duckdb import DuckDBSink
from latecomer.connectors.spark import PatternSink
from tests import spark_fixture

pytestmark = pytest.mark.spark
spark = spark_fixture.spark

STREAM = lc.Stream(lower="from", upper="to", longest="4 s", pmf="weights", id="id", unit="s", punctuation="PUNCT")
STAMPED = lc.Stream(ts="from", source="by", uncertainty={"x": 1, None: 3}, distribution="normal", id="id", unit="s")
KINDS = "id long, type string, from long, to long, weights array<double>, of string, tag string, by string, place long"
TYPES = {
    "id": pa.int64(),
    "type": pa.string(),
    "from": pa.int64(),
    "to": pa.int64(),
    "weights": pa.list_(pa.float64()),
    "of": pa.string(),
    "tag": pa.string(),
    "by": pa.string(),
    "place": pa.int64(),
}
GAP = "PATTERN SEQ(A a, !B b, C c) WHERE [tag] WITHIN 9 s RETURN earliest(a), confidence() CONFIDENCE >= 0.2"
NEXT = "PATTERN SEQ(A a, C c) WHERE [tag] WITHIN 9 s STRATEGY skip-till-next-match"
LEVELS = {"kslack": lc.KSlack("6 s"), "conservative": lc.Conservative(), "at once": lc.Aggressive("6 s")}
QUERIES = [
    lc.Query(t, name=f"{n} {k}", level=v) for n, t in {"gap": GAP, "next": NEXT}.items() for k, v in LEVELS.items()
]


def events(n=300, seed=5):
    """In an order in which most keep the promise of six seconds, with punctuation and some rows that make no sense."""
    pick = random.Random(seed)
    rows = []
    for i in range(n):
        lower, length = pick.randrange(n // 2), pick.choice([0, 0, 1, 2, 4])
        weights = [pick.randrange(1, 5) for _ in range(length + 1)] if pick.random() < 0.3 else None
        row = {"id": i, "type": pick.choice("AABC"), "from": lower, "to": lower + length, "weights": weights}
        rows.append((lower + pick.choice([0, 3, 9, 14]), row | {"tag": pick.choice("uvwxyz"), "by": pick.choice("xy")}))
    rows.sort(key=lambda pair: pair[0])
    told = []
    for n, (moment, row) in enumerate(rows):
        told.append(row)
        if n % 25 == 24:
            told.append({"type": "PUNCT", "of": pick.choice(["B", None]), "to": moment - 14})
    told.insert(40, {"id": 9001, "type": "A", "from": 20, "to": 19, "tag": "u"})
    told.insert(50, {"id": 9002, "type": "A", "from": 20, "to": 21, "weights": [1.0], "tag": "u"})
    return pa.Table.from_pylist([r | {"place": i} for i, r in enumerate(told)], pa.schema(TYPES))


def net(changes):
    held = {}
    for row in changes.to_pylist():
        key = row["query"], row["match_id"]
        if row["op"] == "insert":
            assert key not in held
            held[key] = row
        else:
            assert held.pop(key) == row | {"op": "insert"}
    return held


@pytest.mark.parametrize("stream", [STREAM, STAMPED], ids=["ends", "stamps"])
def test_buckets_find_what_one_runtime_finds(spark, tmp_path, stream):
    table = events()
    if stream is STAMPED:
        table = table.filter(pa.compute.not_equal(table["type"], "PUNCT"))
    runtime = lc.Runtime(stream, QUERIES)
    alone = [runtime.process(table), runtime.finish()]
    expected = net(pa.concat_tables([o.changes for o in alone]))
    late = pa.concat_tables([o.late for o in alone])

    (tmp_path / "in").mkdir()
    for i in range(3):
        size = -(-table.num_rows // 3)
        pq.write_table(table.slice(i * size, size), tmp_path / "in" / f"{i}.parquet")
        os.utime(tmp_path / "in" / f"{i}.parquet", (i, i))  # Spark reads files in the order of their times
    seen, database = [], tmp_path / "found.duckdb"
    sink = PatternSink(
        stream,
        QUERIES,
        state=tmp_path / "state",
        sinks=[lambda batch_id, changes, late: seen.append((changes, late)), DuckDBSink(str(database))],
        buckets=2,
        arrival="place",
    )
    rows = spark.readStream.schema(KINDS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    sink.finish(spark)

    found = net(pa.concat_tables([changes for changes, _ in seen]))
    assert found == expected
    assert len(found) > 100
    assert len({row["confidence"] for row in found.values()}) > 10
    told = pa.concat_tables([rows for _, rows in seen])
    assert sorted(zip(*(told[c].to_pylist() for c in ("query", "id", "reason")), strict=True), key=repr) == sorted(
        zip(*(late[c].to_pylist() for c in ("query", "id", "reason")), strict=True), key=repr
    )
    assert "after_k" in told["reason"].to_pylist()

    import duckdb

    with duckdb.connect(str(database)) as base:
        kept = base.sql("select query, match_id, confidence, latest from matches").fetchall()
    assert {(q, m): (c, t) for q, m, c, t in kept} == {k: (r["confidence"], r["latest"]) for k, r in expected.items()}
