"""The notebooks of ``examples/spark`` on real servers: what they write is what one process finds in the same events."""

import importlib.util
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.sinks import DeltaSink, DuckDBSink
from latecomer.testing.jars import fetch
from tests import kafka_fixture, postgres_fixture, spark_fixture

pytestmark = pytest.mark.spark
spark = spark_fixture.spark
postgres, database = postgres_fixture.postgres, postgres_fixture.database

EXAMPLES = Path(__file__).parent.parent / "examples" / "spark"


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def net(stream, queries, events):
    """The matches that hold at the end, in one process: (query, events)."""
    runtime, held = lc.Runtime(stream, queries), {}
    for out in (runtime.process(events), runtime.finish()):
        for row in out.changes.to_pylist():
            if row["op"] == "insert":
                held[row["match_id"]] = row["query"], tuple(row["events"])
            else:
                del held[row["match_id"]]
    return sorted(held.values())


def test_alarms_into_postgres(spark, tmp_path, database):
    example = load("alarms_into_postgres")
    events = example.reports(openings=120)
    example.write(tmp_path / "in", events, files=3)
    example.run(spark, tmp_path, database)
    with psycopg.connect(database) as db:
        found = db.execute("SELECT query, events FROM cold_store.matches").fetchall()
        story = dict(db.execute(example.STORY).fetchall())
        assert len(db.execute(example.ALARMS).fetchall()) == 5
    assert sorted((q, tuple(e)) for q, e in found) == net(example.STREAM, example.LEFT_OPEN, events)
    assert story["insert"] - story["delete"] == len(found) > 15
    assert story["delete"] > 0


def test_backfill_then_live(spark, tmp_path, monkeypatch):
    example = load("backfill_then_live")
    monkeypatch.setattr(example, "MONTHS", 2)
    monkeypatch.setattr(example, "HOURS", 2)
    monkeypatch.setattr(example, "YEAR", 40 * example.HOUR)
    events = example.events(n=900)
    example.backfill_then_live(spark, tmp_path, events)
    results = DuckDBSink(tmp_path / "pumps.duckdb")
    found = results.table("SELECT query, events FROM matches").to_pylist()
    assert sorted((r["query"], tuple(r["events"])) for r in found) == net(example.STREAM, example.QUERIES, events)
    batches = results.table("SELECT batch_id, op FROM changes").to_pylist()
    assert {r["batch_id"] for r in batches} >= {0, 1, 2}
    assert {r["op"] for r in batches} == {"insert", "delete"}
    over = "SELECT count(*) AS n FROM matches WHERE dropped < 144000 AND hot >= 144000"
    assert results.table(over)["n"].to_pylist() > [0], "a match that began in the history ended live"


def test_kafka_to_delta(spark, tmp_path, kafka):
    example = load("kafka_to_delta")
    jars = fetch([example.CONNECTOR], kafka_fixture.CACHE.parent / "spark-kafka")
    needed = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    for path in sorted(jars.glob("*.jar")):
        if path.name.startswith(needed):
            spark.sql(f"ADD JAR '{path}'")
    topic = kafka.topic(1)
    messages = example.messages(parcels=150)
    example.send(kafka.bootstrap, topic, messages)
    example.run(spark, kafka.bootstrap, topic, tmp_path)
    parcels = DeltaSink(tmp_path / "parcels")
    found = parcels.table("matches").to_pylist()
    events = pa.Table.from_pylist([m | {"id": f"{topic}-0-{n}"} for n, m in enumerate(messages)])
    expected = net(example.STREAM, example.UNSORTED, events)
    assert sorted((r["query"], tuple(r["events"])) for r in found) == expected
    assert len(expected) > 5
    assert {"insert", "delete"} == set(parcels.table("changes")["op"].to_pylist())
