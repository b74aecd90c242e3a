"""The DuckDB sink: the log holds each change once, ``matches`` is its net content, whatever is delivered again."""

import random

import duckdb
import pyarrow as pa
import pytest

from latecomer.connectors.duckdb import DuckDBSink, last_changes
from latecomer.connectors.sinks import Sink, as_sink
from latecomer.errors import ConfigError, StateError

SCHEMA = pa.schema(
    [
        ("op", pa.string()),
        ("query", pa.string()),
        ("match_id", pa.string()),
        ("events", pa.list_(pa.string())),
        ("first_ts", pa.int64()),
        ("last_ts", pa.int64()),
    ]
)
LATE = pa.schema([("late_id", pa.string()), ("query", pa.string()), ("reason", pa.string())])


def changes(*words):
    """``"+a"`` inserts match a, ``"-a"`` takes it back."""
    rows = [
        {"op": "insert" if w[0] == "+" else "delete", "query": "q", "match_id": w[1:], "events": [w[1:], "x"]}
        | {"first_ts": 1, "last_ts": 2}
        for w in words
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def late(*ids):
    return pa.Table.from_pylist([{"late_id": i, "query": "q", "reason": "after_k"} for i in ids], LATE)


def sink_in(folder, job="job"):
    sink = DuckDBSink(folder / "results.duckdb")
    sink.open(job)
    return sink


def current(sink):
    return sorted(sink.table("SELECT match_id FROM matches")["match_id"].to_pylist())


def log(sink):
    rows = sink.table("SELECT batch_id, op, match_id FROM changes ORDER BY job, batch_id, seq").to_pylist()
    return [(r["batch_id"], ("+" if r["op"] == "insert" else "-") + r["match_id"]) for r in rows]


def test_log_and_current_matches(tmp_path):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a", "+b"), late("l1"))
    sink.apply(1, changes("-a", "+c"), late())
    assert current(sink) == ["b", "c"]
    assert log(sink) == [(0, "+a"), (0, "+b"), (1, "-a"), (1, "+c")]
    assert sink.table("SELECT batch_id, late_id, reason FROM late").to_pylist() == [
        {"batch_id": 0, "late_id": "l1", "reason": "after_k"}
    ]
    assert sink.table("SELECT events FROM matches WHERE match_id = 'b'")["events"].to_pylist() == [["b", "x"]]


def test_a_batch_that_comes_again_changes_nothing(tmp_path):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a"), late("l1"))
    sink.apply(1, changes("-a", "+b"), late())
    before = log(sink)
    again = sink_in(tmp_path)
    again.apply(1, changes("-a", "+b"), late())
    again.apply(0, changes("+a"), late("l1"))
    assert (log(again), current(again)) == (before, ["b"])
    assert again.table("SELECT count(*) AS n FROM late")["n"].to_pylist() == [1]


def test_batches_of_another_job_are_other_batches(tmp_path):
    sink_in(tmp_path, "one").apply(0, changes("+a"), late())
    two = sink_in(tmp_path, "two")
    two.apply(0, changes("+a", "+b"), late())
    assert len(log(two)) == 3
    assert current(two) == ["a", "b"]


def test_insert_and_delete_of_one_match_in_one_batch(tmp_path):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a", "-a", "+b"), late())
    assert current(sink) == ["b"]
    sink.apply(1, changes("+a", "-b", "+b"), late())
    assert current(sink) == ["a", "b"]


def test_random_changes_with_repeats_leave_the_net_content(tmp_path):
    pick = random.Random(7)
    held, batches = set(), []
    for _ in range(12):
        words = []
        for _ in range(pick.randrange(6)):
            name = pick.choice("abcdef")
            words.append(("-" if name in held else "+") + name)
            held ^= {name}
        batches.append(words)
    sink = sink_in(tmp_path)
    for number, words in enumerate(batches):
        for _ in range(pick.randint(1, 3)):
            sink.apply(number, changes(*words), late())
    assert current(sink) == sorted(held)
    assert log(sink) == [(n, w) for n, words in enumerate(batches) for w in words]


def test_a_batch_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a"), late())
    append = DuckDBSink._append

    def fails_at_late(self, db, table, rows):
        if table == "late":
            raise RuntimeError("disk full")
        append(self, db, table, rows)

    with monkeypatch.context() as patch:
        patch.setattr(DuckDBSink, "_append", fails_at_late)
        with pytest.raises(RuntimeError, match="disk full"):
            sink.apply(1, changes("-a", "+b"), late("l1"))
    assert (log(sink), current(sink)) == ([(0, "+a")], ["a"])
    sink.apply(1, changes("-a", "+b"), late("l1"))
    assert (log(sink), current(sink)) == ([(0, "+a"), (1, "-a"), (1, "+b")], ["b"])


def test_columns_that_come_later(tmp_path):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a"), late())
    more = changes("+b").append_column("till", pa.array(["t1"])).append_column("Price", pa.array([2.5]))
    sink.apply(1, more, late())
    sink.apply(2, changes("+c"), late())
    rows = sink.table("SELECT match_id, till, Price FROM matches ORDER BY match_id").to_pylist()
    assert rows == [
        {"match_id": "a", "till": None, "Price": None},
        {"match_id": "b", "till": "t1", "Price": 2.5},
        {"match_id": "c", "till": None, "Price": None},
    ]


def test_the_file_is_free_between_batches(tmp_path):
    sink = sink_in(tmp_path)
    sink.apply(0, changes("+a"), late())
    with duckdb.connect(sink.path, read_only=True) as db:
        assert db.execute("SELECT match_id FROM matches").fetchall() == [("a",)]
    sink.apply(1, changes("+b"), late())
    assert current(sink) == ["a", "b"]


def test_a_file_kept_open_is_free_after_close(tmp_path):
    sink = DuckDBSink(tmp_path / "results.duckdb", keep_open=True)
    sink.open("job")
    for number, words in enumerate((["+a"], ["-a", "+b"], ["+c"])):
        sink.apply(number, changes(*words), late())
        sink.apply(number, changes(*words), late())
    assert current(sink) == ["b", "c"]
    sink.close()
    with duckdb.connect(sink.path, read_only=True) as db:
        assert db.execute("SELECT count(*) FROM changes").fetchall() == [(4,)]
    assert current(sink_in(tmp_path)) == ["b", "c"]


def test_prefix_keeps_two_pipelines_apart(tmp_path):
    for prefix, word in (("shop_", "+a"), ("", "+b")):
        sink = DuckDBSink(tmp_path / "results.duckdb", prefix=prefix)
        sink.open("job")
        sink.apply(0, changes(word), late())
    assert sink.table("SELECT match_id FROM shop_matches")["match_id"].to_pylist() == ["a"]
    assert sink.table("SELECT match_id FROM matches")["match_id"].to_pylist() == ["b"]


def test_last_changes_keep_their_order():
    kept = last_changes(changes("+a", "+b", "-a", "+c", "+a"))
    assert list(zip(kept["op"].to_pylist(), kept["match_id"].to_pylist(), strict=True)) == [
        ("insert", "b"),
        ("insert", "c"),
        ("insert", "a"),
    ]
    assert last_changes(changes()).num_rows == 0


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="in memory"):
        DuckDBSink(":memory:")
    with pytest.raises(ConfigError, match="plain"):
        DuckDBSink(tmp_path / "x.duckdb", prefix='a"; DROP')
    with pytest.raises(StateError, match="before open"):
        DuckDBSink(tmp_path / "x.duckdb").apply(0, changes(), late())
    (tmp_path / "text.duckdb").write_text("this is no database, but long enough to look like a file of some kind" * 100)
    with pytest.raises(StateError, match="cannot be opened"):
        DuckDBSink(tmp_path / "text.duckdb").open("job")


def test_a_function_is_a_sink():
    seen = []
    sink = as_sink(lambda batch_id, changes, late: seen.append((batch_id, changes.num_rows, late.num_rows)))
    assert isinstance(sink, Sink)
    sink.open("job")
    sink.apply(3, changes("+a"), late("l"))
    sink.close()
    assert seen == [(3, 1, 1)]


@pytest.mark.parametrize("wrong", [None, 3, "results.duckdb", DuckDBSink])
def test_what_is_no_sink(wrong):
    with pytest.raises(ConfigError, match="no sink"):
        as_sink(wrong)
