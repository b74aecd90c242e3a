"""PatternSink on a real local Spark: same answers as the embedded runtime, after restarts, replays and failures too."""

import os
import random
import warnings

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import latecomer as lc
from latecomer.connectors.duckdb import DuckDBSink
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.versions import VersionStore
from latecomer.consistency.generators import SourcesInOrder
from tests import spark_fixture

pytestmark = pytest.mark.spark
spark = spark_fixture.spark

STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s", punctuation="PUNCT")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("at", pa.int64()),
        ("of", pa.string()),
        ("tag", pa.string()),
        ("x", pa.float64()),
        ("place", pa.int64()),
    ]
)
GAP = "PATTERN SEQ(A a, !B b, C c) WHERE [tag] AND c.x > 0.2 WITHIN 20 s RETURN a.x AS x, c.tag AS tag"
OVERDUE = "PATTERN SEQ(A a, !C c) WHERE [tag] WITHIN 15 s"
LEVELS = {
    "kslack": lc.KSlack("12 s"),
    "conservative": lc.Conservative(),
    "at once": lc.Aggressive("30 s"),
    "patient": lc.Aggressive("30 s", patience="5 s"),
}


def queries(**texts):
    texts = texts or {"gap": GAP, "overdue": OVERDUE}
    return [lc.Query(t, name=f"{n} {label}", level=v) for n, t in texts.items() for label, v in LEVELS.items()]


def stream(n=600, seed=1, late=40):
    """Events in order of arrival, some of them far out of order, with honest and with broken punctuation."""
    pick = random.Random(seed)
    at = sorted(pick.randrange(n) for _ in range(n))
    delayed = sorted((t + (pick.randrange(late) if pick.random() < 0.3 else 0), i, t) for i, t in enumerate(at))
    rows = []
    for place, (moment, i, t) in enumerate(delayed):
        kind = pick.choice("AABCCD")
        tag = None if pick.random() < 0.05 else f"tag{pick.randrange(7)}"
        rows.append({"id": i, "kind": kind, "at": t, "of": None, "tag": tag, "x": pick.random(), "place": place})
        if place % 20 == 19:
            of = pick.choice(["A", "B", "C", None])
            rows.append(
                {"kind": "PUNCT", "of": of, "at": moment - late // (2 if place % 100 == 99 else 1), "place": place}
            )
    for bad in ({"id": 9001, "kind": "A", "at": None}, {"id": 9002, "kind": None, "at": 5}, {"kind": "C", "at": 7}):
        rows.insert(pick.randrange(len(rows)), bad)
    rows.insert(len(rows) // 2, dict(rows[len(rows) // 3]))  # a duplicate
    return pa.Table.from_pylist(rows, SCHEMA)


def embedded(events, asked):
    """Net matches per query and late rows, from one runtime in this process."""
    runtime = lc.Runtime(STREAM, asked)
    outs = [runtime.process(events), runtime.finish()]
    return pa.concat_tables([o.changes for o in outs]), pa.concat_tables([o.late for o in outs])


def net(changes):
    """Matches that hold, as (query, match_id); fails where a match is inserted or deleted twice in a row."""
    held = set()
    for op, query, match in zip(*(changes[c].to_pylist() for c in ("op", "query", "match_id")), strict=True):
        assert (op == "delete") == ((query, match) in held), (op, query, match)
        held ^= {(query, match)}
    return held


def rows_of(late):
    """Late rows, without the two columns that tell what the event would have changed as far as that is still known."""
    return sorted(map(repr, late.drop_columns(["missed", "wrong"]).to_pylist()))


class Files:
    """A folder that Spark reads one file per micro-batch from, in the order in which they were added."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0
        folder.mkdir()

    def add(self, *tables):
        for table in tables:
            path = self.folder / f"{self.count:04d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (self.count, self.count))
            self.count += 1

    def read(self, spark):
        kinds = "id long, kind string, at long, of string, tag string, x double, place long"
        return spark.readStream.schema(kinds).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


class Collect:
    """A sink that keeps everything, batch by batch; ``fail`` is a batch at which it breaks, once."""

    def __init__(self, fail=None):
        self.batches = []
        self.fail = fail

    def __call__(self, batch_id, changes, late):
        self.batches.append((batch_id, changes, late))
        if batch_id == self.fail:
            self.fail = None
            raise RuntimeError("the sink is down")

    @property
    def changes(self):
        return pa.concat_tables([c for _, c, _ in self.batches])

    @property
    def late(self):
        return pa.concat_tables([late for _, _, late in self.batches])


def cut(table, pieces):
    size = -(-table.num_rows // pieces)
    return [table.slice(i * size, size) for i in range(pieces)]


def play(spark, files, sink, checkpoint):
    """Run the stream until no file is left."""
    writer = files.read(spark).writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def frame(spark, table):
    return spark.createDataFrame(table)


def test_all_levels_give_what_the_embedded_runtime_gives(spark, tmp_path):
    """Two queries at four levels, three buckets, five micro-batches: changes and late rows are those of one process."""
    events = stream()
    expected, late = embedded(events, queries())
    files, seen = Files(tmp_path / "in"), Collect()
    files.add(*cut(events, 5))
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=[seen], buckets=3)
    play(spark, files, sink, tmp_path / "checkpoint")
    sink.finish(spark)
    assert net(seen.changes) == net(expected)
    assert len(net(expected)) > 200
    assert rows_of(seen.late) == rows_of(late)
    reasons = set(late["reason"].to_pylist())
    assert {"after_k", "after_max_delay", "after_punctuation", "malformed"} <= reasons
    assert [b for b, _, _ in seen.batches] == [0, 1, 2, 3, 4, 5]
    held = {row["match_id"]: row for row in expected.to_pylist() if row["op"] == "insert"}
    for row in seen.changes.to_pylist():
        if row["op"] == "insert" and row["match_id"] in held:
            assert row == held[row["match_id"]]


def test_kslack_stays_in_order_over_buckets(spark, tmp_path):
    files, seen = Files(tmp_path / "in"), Collect()
    files.add(*cut(stream(seed=2), 4))
    asked = [q for q in queries() if q.name.endswith("kslack")]
    sink = PatternSink(STREAM, asked, state=tmp_path / "state", sinks=seen, buckets=4)
    play(spark, files, sink, tmp_path / "checkpoint")
    sink.finish(spark)
    assert set(seen.changes["op"].to_pylist()) == {"insert"}
    for name, column in (("gap kslack", "last_ts"), ("overdue kslack", "first_ts")):
        times = seen.changes.filter(pc.equal(seen.changes["query"], name))[column].to_pylist()
        assert len(times) > 30
        assert times == sorted(times)


def test_restart_in_the_middle(spark, tmp_path):
    """A new process goes on from checkpoint and state; the whole equals one uninterrupted run."""
    events = stream(seed=3)
    expected, late = embedded(events, queries())
    files, pieces = Files(tmp_path / "in"), cut(events, 6)
    all_seen = Collect()
    for part in (pieces[:2], pieces[2:3], pieces[3:]):
        files.add(*part)
        sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=[all_seen], buckets=3)
        play(spark, files, sink, tmp_path / "checkpoint")
    sink.finish(spark)
    assert [b for b, _, _ in all_seen.batches] == list(range(7))
    assert net(all_seen.changes) == net(expected)
    assert rows_of(all_seen.late) == rows_of(late)


def test_a_batch_that_failed_in_a_sink_is_replayed(spark, tmp_path):
    """The batch runs again from the version before it: same changes; a sink that has it skips it."""
    events = stream(seed=4)
    expected, late = embedded(events, queries())
    files, seen = Files(tmp_path / "in"), Collect(fail=2)
    files.add(*cut(events, 4))
    table = DuckDBSink(tmp_path / "results.duckdb")

    def make():
        return PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=[table, seen], buckets=3)

    with pytest.raises(Exception, match="the sink is down"):
        play(spark, files, make(), tmp_path / "checkpoint")
    sink = make()
    play(spark, files, sink, tmp_path / "checkpoint")
    sink.finish(spark)
    assert [b for b, _, _ in seen.batches] == [0, 1, 2, 2, 3, 4]
    first, again = seen.batches[2], seen.batches[3]
    assert first[1].equals(again[1])
    assert first[2].equals(again[2])
    log = table.table("SELECT op, query, match_id FROM changes ORDER BY batch_id, seq")
    assert net(log) == net(expected)
    current = table.table("SELECT query, match_id FROM matches").to_pylist()
    assert sorted((r["query"], r["match_id"]) for r in current) == sorted(net(expected))
    assert sorted(table.table("SELECT late_id FROM late")["late_id"].to_pylist()) == sorted(late["late_id"].to_pylist())


def test_the_same_batch_id_gives_the_same_changes_and_the_same_state(spark, tmp_path):
    pieces = cut(stream(seed=5), 4)
    plain, replayed = Collect(), Collect()
    once = PatternSink(STREAM, queries(), state=tmp_path / "once", sinks=plain, buckets=2)
    twice = PatternSink(STREAM, queries(), state=tmp_path / "twice", sinks=replayed, buckets=2)
    for number, piece in enumerate(pieces):
        once(frame(spark, piece), number)
        twice(frame(spark, piece), number)
        if number in (0, 2):
            twice(frame(spark, piece), number)
            assert replayed.batches[-1][1].equals(replayed.batches[-2][1])
    distinct = {b: (c, late) for b, c, late in replayed.batches}
    for batch_id, changes, late in plain.batches:
        assert distinct[batch_id][0].equals(changes)
        assert distinct[batch_id][1].equals(late)
    assert states(tmp_path / "once", 3) == states(tmp_path / "twice", 3)


def states(folder, batch):
    """The state of all buckets after a batch."""
    store = VersionStore(folder)
    return {bucket: [*map(store.get, state.residues)] for bucket, state in store.buckets(batch).items()}


def test_attempts_that_do_not_count_do_no_harm(spark, tmp_path):
    """What a killed or doubled task leaves behind is never read, and is deleted with the next version."""
    pieces = cut(stream(seed=6), 4)
    seen = Collect()
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=seen, buckets=2)
    store = sink._store
    for number, piece in enumerate(pieces):
        if number:
            lost = store.attempts()().put([b"half a state"])[0]
        sink(frame(spark, piece), number)
        if number:
            assert not (tmp_path / "state" / lost[0]).exists()
    sink.finish(spark)
    assert net(seen.changes) == net(embedded(pa.concat_tables(pieces), queries())[0])
    assert store.batches() == [2, 3, 4]


def test_promises_of_single_sources_mean_the_same_in_every_bucket(spark, tmp_path):
    """The bound of a type follows the sources of the whole stream, also those that a bucket has not seen yet."""
    sourced = lc.Stream(type="kind", ts="at", id="id", unit="s", source="device", punctuation="PUNCT")
    asked = [lc.Query(t, name=n, level=lc.Conservative()) for n, t in (("gap", GAP), ("overdue", OVERDUE))]
    pick = random.Random(11)
    rows = stream(400, seed=11).to_pylist()
    for place, row in enumerate(rows):  # each tag has its source; they appear one after another, and promise later
        known = place // 50 if row["kind"] != "PUNCT" else max(place - 40, 0) // 50
        row["device"] = f"d{min(known, int((row['tag'] or 'tag0')[3:]))}"
        if row["kind"] == "PUNCT":
            row |= {"of": None, "device": f"d{pick.randrange(known + 1)}"}
    events = pa.Table.from_pylist(rows, SCHEMA.append(pa.field("device", pa.string())))
    runtime = lc.Runtime(sourced, asked)
    sink = PatternSink(sourced, asked, state=tmp_path / "state", sinks=(seen := Collect()), buckets=4)
    outs = []
    for number, piece in enumerate(cut(events, 6)):
        outs.append(runtime.process(piece))
        sink(frame(spark, piece), number)
        assert net(seen.changes) == net(pa.concat_tables([o.changes for o in outs])), number
    assert len(net(seen.changes)) > 20
    assert rows_of(seen.late) == rows_of(pa.concat_tables([o.late for o in outs]))
    assert "after_punctuation" in seen.late["reason"].to_pylist()


def test_steps_give_the_log_of_small_batches(spark, tmp_path):
    """One micro-batch in steps says what micro-batches of the steps' length would say; without steps less is said."""
    rows = stream(seed=8).to_pylist()
    for row in rows:
        row["place"] = (row["place"] or 0) // 4
    events = pa.Table.from_pylist(sorted(rows, key=lambda r: r["place"]), SCHEMA)
    asked = [q for q in queries() if isinstance(q.level, lc.Aggressive)]
    runtime = lc.Runtime(STREAM, asked)
    last = events["place"][-1].as_py() // 5
    pieces = [events.filter(pc.equal(pc.divide(events["place"], 5), n)) for n in range(last + 1)]
    small = pa.concat_tables([runtime.process(p).changes for p in pieces] + [runtime.finish().changes])

    def log_of(step, buckets):
        sink = PatternSink(
            STREAM,
            asked,
            state=tmp_path / f"{step} {buckets}",
            sinks=(seen := Collect()),
            buckets=buckets,
            arrival="place",
            step=step,
        )
        sink(frame(spark, events), 0)
        sink.finish(spark)
        return seen.changes

    said = log_of("5 s", 1)
    assert words(said) == words(small)
    assert words(said).count("delete") > 10
    whole = log_of(None, 3)
    assert words(whole).count("delete") == 0
    parts = log_of("5 s", 3)
    assert words(parts).count("delete") > 10
    assert net(whole) == net(parts) == net(small)


def words(changes):
    """What was said of each match, in order: a list of ``match, op, op, …`` sorted by match."""
    told = {}
    for op, query, match in zip(*(changes[c].to_pylist() for c in ("op", "query", "match_id")), strict=True):
        told.setdefault((query, match), []).append(op)
    return [word for key in sorted(told) for word in (key, *told[key])]


def test_the_clock_of_the_stream_reaches_every_bucket(spark, tmp_path):
    """A match of one key leaves because events of another key move the clock, within the batch and without own rows."""
    asked = [lc.Query(GAP, name="gap", level=lc.KSlack("10 s"))]
    seen = Collect()
    sink = PatternSink(STREAM, asked, state=tmp_path / "state", sinks=seen, buckets=8)

    def batch(*rows):
        full = [dict.fromkeys(SCHEMA.names) | {"x": 1.0} | row for row in rows]
        return frame(spark, pa.Table.from_pylist(full, SCHEMA))

    sink(batch({"id": 1, "kind": "A", "at": 100, "tag": "p"}, {"id": 2, "kind": "C", "at": 105, "tag": "p"}), 0)
    assert seen.changes.num_rows == 0
    others = [{"id": 10 + i, "kind": "A", "at": 108 + i, "tag": f"q{i}"} for i in range(8)]
    sink(batch(*others), 1)
    assert seen.changes["events"].to_pylist() == [[1, 2]]
    # Too late by the stream's clock (115), though its own bucket may have seen nothing since 105.
    sink(batch({"id": 30, "kind": "A", "at": 104, "tag": "p"}), 2)
    late = seen.late.to_pylist()
    assert [(r["id"], r["reason"], r["late_by"]) for r in late] == [(30, "after_k", 1)]
    assert sink.explain()["clock"] == 115


def test_an_empty_batch_runs_every_bucket(spark, tmp_path):
    """Also one without partitions in which a clock could be told: Spark makes that of a filter that nothing passes."""
    seen = Collect()
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=seen, buckets=5)
    rows = frame(spark, stream(50))
    sink(rows, 0)
    sink(spark.createDataFrame([], rows.schema), 1)
    nothing = rows.where("false")
    assert nothing.rdd.getNumPartitions() == 0
    sink(nothing, 2)
    for number in (1, 2):
        assert set(VersionStore(tmp_path / "state").buckets(number)) == set(range(5))
        assert seen.batches[number][1].num_rows == 0
        assert seen.batches[number][1].schema == seen.batches[0][1].schema


def test_an_arrival_column_orders_rows_of_several_partitions(spark, tmp_path):
    events = stream(seed=7, late=10)
    asked = [lc.Query(t, name=n, level=lc.Aggressive("60 s")) for n, t in (("gap", GAP), ("overdue", OVERDUE))]
    expected, _ = embedded(events, asked)
    seen = Collect()
    sink = PatternSink(STREAM, asked, state=tmp_path / "state", sinks=seen, buckets=3, arrival="place")
    for number, piece in enumerate(cut(events, 3)):
        sink(frame(spark, piece).repartition(5, "x"), number)
    sink.finish(spark)
    assert net(seen.changes) == net(expected)


def test_one_bucket_where_queries_share_no_key(spark, tmp_path):
    text = "PATTERN SEQ(A a, !B b, C c) WITHIN 5 s"
    asked = [
        lc.Query(text, name="any", level=lc.Aggressive("60 s")),
        lc.Query(GAP, name="gap", level=lc.KSlack("60 s")),
    ]
    with pytest.warns(UserWarning, match="no parallel work"):
        sink = PatternSink(STREAM, asked, state=tmp_path / "state", sinks=(seen := Collect()))
    events = stream(200)
    for number, piece in enumerate(cut(events, 2)):
        sink(frame(spark, piece), number)
    sink.finish(spark)
    assert sink.explain()["buckets"] == 1
    assert net(seen.changes) == net(embedded(events, asked)[0])


def test_finish_again_and_not_further(spark, tmp_path):
    pieces = cut(stream(100), 2)
    table = DuckDBSink(tmp_path / "results.duckdb")
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=[seen := Collect(), table], buckets=2)
    sink(frame(spark, pieces[0]), 0)
    sink.finish(spark)
    sink.finish(spark)
    assert [b for b, _, _ in seen.batches] == [0, 1, 1]
    assert seen.batches[1][1].equals(seen.batches[2][1])
    assert table.table("SELECT count(*) AS n FROM changes")["n"].to_pylist() == [
        seen.batches[0][1].num_rows + seen.batches[1][1].num_rows
    ]
    with pytest.raises(lc.StateError, match="finished after batch 0"):
        sink(frame(spark, pieces[1]), 1)


def test_a_state_folder_that_does_not_fit_is_refused(spark, tmp_path):
    asked = queries()
    piece = frame(spark, stream(60))
    PatternSink(STREAM, asked, state=tmp_path / "state", buckets=2)(piece, 0)
    other = [lc.Query(OVERDUE, name="gap kslack", level=lc.KSlack("1 s"))]
    moved = lc.Stream(type="kind", ts="place", id="id", unit="s", punctuation="PUNCT")
    for stream_, queries_, buckets, says in (
        (STREAM, asked, 3, "buckets 2, and now buckets is 3"),
        (STREAM, other, 2, "made with queries 'gap kslack'"),
        (moved, asked, 2, "made with stream 'ts' \"at\", and now stream 'ts' is \"place\""),
    ):
        with pytest.raises(lc.StateError, match=says):
            PatternSink(stream_, queries_, state=tmp_path / "state", buckets=buckets)(piece, 1)


def test_checkpoint_and_state_belong_together(spark, tmp_path):
    files = Files(tmp_path / "in")
    files.add(*cut(stream(60), 2))

    def run(state, checkpoint):
        play(spark, files, PatternSink(STREAM, queries(), state=tmp_path / state, buckets=2), tmp_path / checkpoint)

    run("state", "checkpoint")
    with pytest.raises(Exception, match="checkpoint was replaced"):
        run("state", "another checkpoint")
    files.add(stream(60))
    with pytest.raises(Exception, match="holds no version to go on from"):
        run("another state", "checkpoint")
    run("state", "checkpoint")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"stream": lc.Stream(type="kind", ts="at", unit="s")}, lc.ConfigError, "needs Stream.id="),
        ({"queries": []}, lc.ConfigError, "at least one query"),
        ({"buckets": 0}, lc.ConfigError, "at least 1"),
        ({"key": ["x"]}, lc.ConfigError, "torn apart"),
        ({"key": []}, lc.ConfigError, "give names of attributes"),
        ({"key": 5}, lc.ConfigError, "give names of attributes"),
        ({"step": "5 s"}, lc.ConfigError, "needs arrival="),
        (
            {"stream": lc.Stream(type="kind", ts="at", id="id", source="tag", unit="s", clock="source")},
            lc.ConfigError,
            "needs buckets=1",
        ),
        (
            {"stream": lc.Stream(type="kind", ts="at", id="id", source="tag", unit="s", quorum=2)},
            lc.ConfigError,
            "quorum=2 needs buckets=1",
        ),
        (
            {"stream": lc.Stream(type="kind", ts="at", id="id", source="tag", unit="s", promises=[SourcesInOrder()])},
            lc.ConfigError,
            "promises=.* needs buckets=1",
        ),
        (
            {"queries": [lc.Query("PATTERN SEQ(A a, C c) WITHIN 5 s", level=lc.KSlack(1))], "buckets": 4},
            lc.ConfigError,
            "there is none",
        ),
        ({"sinks": [3]}, lc.ConfigError, "no sink"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, error, says):
    given = {"stream": STREAM, "queries": queries(), "state": tmp_path / "state"} | options
    with pytest.raises(error, match=says), warnings.catch_warnings():
        warnings.simplefilter("error")
        PatternSink(given.pop("stream"), given.pop("queries"), **given)


@pytest.mark.parametrize(
    ("drop", "options", "says"),
    [("at", {}, "'at'"), ("x", {}, "'x'"), ("tag", {}, "'tag'"), ("place", {"arrival": "place"}, "order rows by")],
)
def test_a_missing_column_is_named_before_anything_runs(spark, tmp_path, drop, options, says):
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state", **options)
    with pytest.raises(lc.SchemaError, match=says):
        sink(frame(spark, stream(20)).drop(drop), 0)
    assert VersionStore(tmp_path / "state").batches() == []


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["*", "x AS tag"], "two columns are called 'tag'"),
        (["*", "x AS `tag.no`"], "'tag.no' has a dot"),
        (["*", "INTERVAL 3 MONTH AS m"], "a type that Spark does not hand to Python"),
    ],
)
def test_a_column_that_spark_does_not_hand_to_python(spark, tmp_path, columns, says):
    sink = PatternSink(STREAM, queries(), state=tmp_path / "state")
    with pytest.raises(lc.SchemaError, match=says):
        sink(frame(spark, stream(20)).selectExpr(*columns), 0)
