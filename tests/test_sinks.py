"""What holds for every sink, on the real thing: each change once in the log, and the matches are its net content,
whatever is delivered again, and wherever the job died."""

import pickle
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.sinks import (
    DeltaSink,
    DuckDBSink,
    KafkaSink,
    ParquetSink,
    PostgresSink,
    Sink,
    SQLiteSink,
    as_sink,
    deliver,
    parquet,
)
from latecomer.connectors.sinks.tables import TableSink, usual
from tests import postgres_fixture, sinks_kit
from tests.sinks_kit import changes, late

postgres, database = postgres_fixture.postgres, postgres_fixture.database

KINDS = ("duckdb", "sqlite", "parquet", "delta", "postgres", "kafka")
FILES = {"duckdb": sinks_kit.DuckDB, "sqlite": sinks_kit.SQLite, "parquet": sinks_kit.Parquet, "delta": sinks_kit.Delta}


@pytest.fixture(params=KINDS)
def case(request, tmp_path):
    if request.param == "postgres":
        return sinks_kit.Postgres(request.getfixturevalue("database"))
    if request.param == "kafka":
        return sinks_kit.Kafka(request.getfixturevalue("kafka").bootstrap)
    return FILES[request.param](tmp_path)


def random_batches(seed, n=10, names="abcdef"):
    """Batches of changes as an engine says them, and what holds after all of them."""
    pick = random.Random(seed)
    held, batches = set(), []
    for _ in range(n):
        words = []
        for _ in range(pick.randrange(6)):
            name = pick.choice(names)
            words.append(("-" if name in held else "+") + name)
            held ^= {name}
        batches.append(words)
    return batches, sorted(held)


def test_log_current_matches_and_late_rows(case):
    sink = case.opened()
    assert isinstance(sink, Sink)
    sink.apply(0, changes("+a", "+b"), late("l1"))
    sink.apply(1, changes("-a", "+c"), late())
    sink.apply(2, changes(), late("l2"))
    sink.apply(3, changes(), late())
    sink.close()
    assert case.current() == ["b", "c"]
    assert case.log() == [(0, "+a"), (0, "+b"), (1, "-a"), (1, "+c")]
    assert case.late() == [(0, "l1"), (2, "l2")]
    [row] = [r for r in case.rows("matches") if r["match_id"] == "b"]
    assert {k: row[k] for k in ("query", "match_id", "events", "first_ts", "last_ts")} == {
        "query": "q",
        "match_id": "b",
        "events": ["b", "x"],
        "first_ts": 1,
        "last_ts": 2,
    }


def test_random_changes_with_repeats_and_restarts(case):
    batches, held = random_batches(7)
    pick = random.Random(8)
    sink = case.opened()
    for number, words in enumerate(batches):
        for _ in range(pick.randint(1, 3)):
            sink.apply(number, changes(*words), late(f"late {number}"))
        if pick.random() < 0.3:
            sink.close()
            sink = case.opened()
            sink.apply(number, changes(*words), late(f"late {number}"))
    sink.close()
    assert case.current() == held
    assert case.log() == [(n, w) for n, words in enumerate(batches) for w in words]
    assert case.late() == [(n, f"late {n}") for n in range(len(batches))]


def test_the_same_match_may_come_and_go_within_a_batch(case):
    sink = case.opened()
    sink.apply(0, changes("+a", "-a", "+b"), late())
    sink.apply(1, changes("+a", "-b", "+b"), late())
    sink.close()
    assert case.current() == ["a", "b"]
    assert len(case.log()) == 6


def test_values_of_all_types(case):
    """Each type that a field of RETURN or an attribute may have reaches the other side, and the edges too."""
    rows = changes("+a", "+b", "+c")
    more = {
        "text": pa.array(["quote '\"\\ , \n\x00end", "", None]),
        "dictionary": pa.array(["x", None, "x"]).dictionary_encode(),
        "whole": pa.array([2**63 - 1, -(2**63), None], pa.int64()),
        "small": pa.array([1, None, 3], pa.uint8()),
        "real": pa.array([1.5, float("nan"), None]),
        "yes": pa.array([True, False, None]),
        "when": pa.array([datetime(2024, 2, 29, 1, 2, 3, 456789), None, datetime(1969, 1, 1)], pa.timestamp("ns")),
        "zoned": pa.array([datetime(2024, 1, 1, tzinfo=UTC), None, None], pa.timestamp("ms", "America/New_York")),
        "far": pa.array([-(2**62), 2**62, None], pa.timestamp("s", "UTC")),
        "day": pa.array([date(2024, 2, 29), None, None]),
        "took": pa.array([timedelta(seconds=61, microseconds=1), None, timedelta(-1)], pa.duration("us")),
        "money": pa.array([Decimal("12.34"), None, Decimal("-0.01")]),
        "nothing": pa.nulls(3),
        "Job": pa.array(["clerk", "driver", None]),
    }
    table = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)) | more)
    sink = case.opened()
    sink.apply(0, table, late())
    sink.apply(1, table.filter(pa.array([False, False, True])).set_column(0, "op", pa.array(["delete"])), late())
    sink.close()
    found = {r["match_id"]: r for r in case.rows("matches")}
    assert sorted(found) == ["a", "b"]
    a, b = found["a"], found["b"]
    zero = "\x00" if isinstance(sink, ParquetSink) else "\ufffd"
    assert a["text"] == f"quote '\"\\ , \n{zero}end"
    assert b["text"] == ""
    assert (a["dictionary"], a["whole"], b["whole"], a["small"], a["real"]) == ("x", 2**63 - 1, -(2**63), 1, 1.5)
    assert b["real"] is None or b["real"] != b["real"]
    assert (bool(a["yes"]), bool(b["yes"])) == (True, False)
    assert str(a["when"]).replace("T", " ")[:26] == "2024-02-29 01:02:03.456789"
    assert "2024-01-01" in str(a["zoned"]) or "2023-12-31" in str(a["zoned"])
    assert str(a["day"]) == "2024-02-29"
    took = getattr(a["took"], "nanoseconds", a["took"])  # DuckDB's lengths of time have months, days and these
    assert took in (timedelta(seconds=61, microseconds=1), 61_000_001, 61_000_001_000)
    assert str(a["money"]) == "12.34"
    assert [b[k] for k in ("dictionary", "small", "when", "zoned", "day", "took", "money", "nothing")] == [None] * 8
    assert a["Job_attribute"] == "clerk"
    assert len(case.log()) == 4


def test_columns_that_come_later_and_columns_named_like_the_sinks_own(case):
    sink = case.opened()
    sink.apply(0, changes("+a"), late("l0"))
    wider = changes("+b").append_column("till", pa.array(["t1"])).append_column("seq", pa.array([2.5]))
    sink.apply(1, wider, late("l1").append_column("job", pa.array(["clerk"])))
    sink.apply(2, changes("+c", "-a"), late())
    sink.close()
    found = {r["match_id"]: (r.get("till"), r.get("seq_attribute")) for r in case.rows("matches")}
    assert found == {"b": ("t1", 2.5), "c": (None, None)}
    assert [r.get("job_attribute") for r in case.rows("late")] == [None, "clerk"]
    assert case.log() == [(0, "+a"), (1, "+b"), (2, "+c"), (2, "-a")]


def test_names_that_databases_take_for_the_same(case):
    table = changes("+a").append_column("tag", pa.array([1])).append_column("Tag", pa.array([2]))
    table = table.append_column("Match_ID", pa.array(["x"])).append_column('a`b "c" 日', pa.array([3]))
    given = late("l0").append_column("Reason", pa.array(["mine"])).append_column("", pa.array([4]))
    sink = case.opened()
    sink.apply(0, table, given)
    sink.apply(1, table.set_column(2, "match_id", pa.array(["b"])), given)
    sink.close()
    for row in case.rows("matches"):
        assert [row[name] for name in ("tag", "Tag_attribute", "Match_ID_attribute")] == [1, 2, "x"]
        assert row['a`b "c" 日'] == 3
    assert [(r["reason"], r["Reason_attribute"], r["_attribute"]) for r in case.rows("late")] == [
        ("after_k", "mine", 4)
    ] * 2


def test_a_column_that_was_made_for_another_type(case):
    """Is refused with a sentence by those whose columns have types; nothing of the batch is in."""
    sink = case.opened()
    sink.apply(0, changes("+a").append_column("till", pa.array([1], pa.int32())), late())
    sink.close()
    for column in (pa.array(["text"]), pa.array([2**40])):
        sink, after = case.opened(), changes("+b").append_column("till", column)
        takes_any = isinstance(sink, (SQLiteSink, KafkaSink)) or (
            isinstance(sink, ParquetSink) and column[0].as_py() == 2**40
        )
        if takes_any:
            sink.apply(1, after, late())
        else:
            with pytest.raises(lc.StateError, match=r"(?s)column has another type than before.*another name with AS"):
                sink.apply(1, after, late())
        sink.close()
        assert case.current() == (["a", "b"] if takes_any else ["a"])


def test_a_sink_travels_before_it_is_opened_and_shows_no_password(case):
    sink = pickle.loads(pickle.dumps(case.make()))
    sink.open("job")
    sink.apply(0, changes("+a"), late())
    again = pickle.loads(pickle.dumps(sink))
    sink.close()
    again.apply(0, changes("+a"), late())
    again.apply(1, changes("+b"), late())
    again.close()
    assert case.current() == ["a", "b"]
    assert len(case.log()) == 2
    assert "password" not in repr(PostgresSink("host=db user=u password=password dbname=plant"))


def test_apply_before_open_is_refused(case):
    with pytest.raises(lc.StateError, match="before open"):
        case.make().apply(0, changes(), late())


# --- crashes: a sink dies at any of its steps, the job starts again and delivers the batch again ----------------------


class Crash(BaseException):
    """As if the process had died here."""


#: What each sink does one after another with a batch: the places where it may die, before or after.
STEPS = {
    "duckdb": ["_note", "_append", "_replace", "_shape"],
    "sqlite": ["_note", "_append", "_replace", "_write"],
    "postgres": ["_note", "_append", "_replace", "_shape"],
    "parquet": ["_write", "_place", "compact"],
    "delta": ["_append", "_merge"],
    "kafka": ["_produce", "_messages"],
}

#: How often a step is taken, where that is more than once.
CALLS = {"_append": 2, "_write": 2, "_place": 2, "_shape": 3, "_produce": 4}


def dying(sink, step, number, after):
    """Let the sink die at the ``number``-th call of ``step``: before it, or after it."""
    whole, calls = getattr(sink, step), iter(range(1_000_000))

    def wrapped(*args, **options):
        last = next(calls) == number
        if last and not after:
            raise Crash
        result = whole(*args, **options)
        if last:
            raise Crash
        return result

    setattr(sink, step, wrapped)


def test_a_crash_at_any_step_leaves_each_change_once(case, request):
    batches, held = random_batches(3, n=9)
    steps = STEPS[request.node.callspec.params["case"]]
    pick = random.Random(5)
    crashes = 0
    for number, words in enumerate(batches):
        for step in steps:
            sink = case.opened()
            dying(sink, step, pick.randrange(CALLS.get(step, 1)), pick.random() < 0.5)
            try:
                sink.apply(number, changes(*words), late(f"l{number}"))
            except Crash:
                crashes += 1  # nothing is closed: as a dead process would leave it
        sink = case.opened()
        sink.apply(number, changes(*words), late(f"l{number}"))
        sink.close()
    assert crashes > 5
    assert case.current() == held
    assert case.log() == [(n, w) for n, words in enumerate(batches) for w in words]
    assert case.late() == [(n, f"l{n}") for n in range(len(batches))]


def test_a_crash_after_the_commit(case):
    """The batch is in, and nobody knows: it is skipped when it comes again, by a sink that is new."""
    case.opened().apply(0, changes("+a", "+b"), late("l"))
    sink = case.opened()
    sink.apply(0, changes("+a", "+b"), late("l"))
    sink.apply(1, changes("-a"), late())
    sink.close()
    assert (case.current(), case.log(), case.late()) == (["b"], [(0, "+a"), (0, "+b"), (1, "-a")], [(0, "l")])


class Flaky:
    """A sink around a sink that fails every other time: half of these before it has written, half after."""

    def __init__(self, sink):
        self.sink, self.calls = sink, 0
        self.open, self.close = sink.open, sink.close

    def apply(self, *batch):
        self.calls += 1
        if self.calls % 4 == 1:
            raise RuntimeError("down before it wrote")
        self.sink.apply(*batch)
        if self.calls % 4 == 3:
            raise RuntimeError("down before it could say that it wrote")


def test_two_sinks_with_one_that_fails_every_other_time(case, tmp_path):
    other = sinks_kit.SQLite(tmp_path)
    other.path = tmp_path / "other.sqlite"
    sinks = [Flaky(case.make()), other.make()]
    batches, held = random_batches(11)
    for sink in sinks:
        sink.open("job")
    failures = 0
    for number, words in enumerate(batches):
        for attempt in range(3):
            try:
                deliver(sinks, number, changes(*words), late())
            except RuntimeError as error:
                failures += 1
                assert f"batch {number} did not get into" in error.__notes__[0]
                assert attempt < 2
            else:
                break
    for sink in sinks:
        sink.close()
    assert failures == len(batches)
    for place in (case, other):
        assert place.current() == held
        assert place.log() == [(n, w) for n, words in enumerate(batches) for w in words]


def test_several_sinks_that_fail_are_all_named():
    def down(batch_id, changes, late):
        raise RuntimeError("down")

    seen = []
    sinks = [as_sink(down), as_sink(lambda *batch: seen.append(batch)), as_sink(down)]
    with pytest.raises(ExceptionGroup, match="batch 4 did not get into 2 of 3 sinks") as caught:
        deliver(sinks, 4, changes("+a"), late())
    assert len(caught.value.exceptions) == 2
    assert len(seen) == 1


# --- an engine in front, no Spark -------------------------------------------------------------------------------------


def test_an_embedded_runtime_writes_what_it_finds(case):
    query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s RETURN a.k AS k", name="gap", level=lc.Aggressive("9 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", schema={"k": pa.string()}), query)
    sink = case.opened("embedded")
    batches = [
        [{"id": 1, "type": "A", "ts": 1, "k": "u"}, {"id": 2, "type": "C", "ts": 5, "k": "v"}],
        [{"id": 3, "type": "B", "ts": 3, "k": "w"}, {"id": 4, "type": "A", "ts": 4, "k": "x"}],
        [{"id": 5, "type": "C", "ts": 30, "k": "y"}, {"id": 6, "type": "A", "ts": 7, "k": "z"}],
    ]
    for number, batch in enumerate(batches):
        out = runtime.process(batch)
        for _ in range(2):
            sink.apply(number, out.changes, out.late)
    sink.close()
    assert [r["op"] for r in case.rows("changes")] == ["insert", "delete", "insert"]
    [match] = case.rows("matches")
    assert (match["events"], match["k"]) == ([4, 2], "x")
    assert [r["id"] for r in case.rows("late")] == [6]


# --- each sink's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_batches_of_another_job_are_other_batches(tmp_path, kind):
    other_job_too(FILES[kind](tmp_path))


def test_batches_of_another_job_are_other_batches_in_servers(database, kafka, tmp_path):
    for case in (sinks_kit.Postgres(database), sinks_kit.Kafka(kafka.bootstrap), sinks_kit.Delta(tmp_path)):
        other_job_too(case)


def other_job_too(case):
    case.opened("one").apply(0, changes("+a"), late())
    two = case.opened("two")
    two.apply(0, changes("+a", "+b"), late())
    two.close()
    assert len(case.log()) == 3
    assert case.current() == ["a", "b"]


def test_a_parquet_folder_belongs_to_one_job(tmp_path):
    ParquetSink(tmp_path / "log").open("one")
    ParquetSink(tmp_path / "log").open("one")
    with pytest.raises(lc.StateError, match="holds the log of job 'one', and this is job 'two'"):
        ParquetSink(tmp_path / "log").open("two")


def test_compaction_leaves_few_files_and_the_same_content(tmp_path):
    batches, held = random_batches(21, n=40)
    case = sinks_kit.Parquet(tmp_path, compact=None)
    sink = case.opened()
    for number, words in enumerate(batches):
        sink.apply(number, changes(*words), late())
        if number == 25:
            sink.compact()
    before = case.log()
    sink.compact(before=38)
    sink.apply(12, changes(*batches[12]), late())  # comes again though it is long merged
    files = sorted(p.name for p in (tmp_path / "parquet" / "changes").iterdir())
    assert len(files) <= 4
    assert files[0].startswith("0000000000-00000000")
    assert len(list((tmp_path / "parquet" / "matches").iterdir())) == 1
    assert (case.log(), case.current()) == (before, held)


class Disk:
    """A file system that dies at the n-th file that it moves or deletes."""

    def __init__(self, inner, n):
        self._inner, self._left = inner, n

    def __getattr__(self, name):
        if name in ("move", "delete_file"):
            self._left -= 1
            if self._left < 0:
                raise Crash
        return getattr(self._inner, name)


def test_a_crash_within_compaction_doubles_nothing(tmp_path, monkeypatch):
    case = sinks_kit.Parquet(tmp_path, compact=None)
    monkeypatch.setattr(parquet, "_in_steps", lambda file_system: True)
    sink = case.opened()
    words = ["+a", "+b", "-a", "+c", "+d", "-b"]
    for number, word in enumerate(words):
        sink.apply(number, changes(word), late(f"l{number}"))
        if number == 2:
            sink.compact()
    crashes = 0
    for n in range(20):
        broken = case.opened()
        broken._fs = Disk(broken._fs, n)
        try:
            broken.compact()
        except Crash:
            crashes += 1
        assert case.log() == list(enumerate(words)), n
        assert case.late() == [(i, f"l{i}") for i in range(len(words))]
        assert case.current() == ["c", "d"]
    assert crashes >= 4
    case.opened()
    files = [len(list((tmp_path / "parquet" / t).iterdir())) for t in ("changes", "late", "matches")]
    assert files == [2, 2, 1]


def test_delta_tables_stay_small_and_are_what_they_were(tmp_path):
    batches, held = random_batches(31, n=12)
    case = sinks_kit.Delta(tmp_path)
    sink = case.opened()
    for number, words in enumerate(batches):
        sink.apply(number, changes(*words), late())
    before = case.log()
    sink.compact(vacuum_hours=168)
    assert (case.log(), case.current()) == (before, held)
    from deltalake import DeltaTable

    assert len(DeltaTable(str(tmp_path / "delta" / "changes")).file_uris()) == 1


def test_postgres_goes_on_after_the_server_was_killed():
    server = postgres_fixture.Postgres()
    try:
        server.start()
        case = sinks_kit.Postgres(server.dsn())
        sink = case.opened()
        sink.apply(0, changes("+a"), late())
        server.kill()
        with pytest.raises(Exception, match=r"server|connection|terminat"):
            sink.apply(1, changes("-a", "+b"), late())
        with pytest.raises(lc.StateError, match="cannot be reached"):
            sink.apply(1, changes("-a", "+b"), late())
        server.start()
        sink.apply(1, changes("-a", "+b"), late())
        sink.close()
        assert (case.current(), len(case.log())) == (["b"], 3)
    finally:
        server.close()


def test_postgres_keeps_its_own_schema_and_a_prefix_keeps_pipelines_apart(database):
    for prefix, word in (("shop_", "+a"), ("", "+b")):
        sink = PostgresSink(database, schema="alarms", prefix=prefix)
        sink.open("job")
        sink.apply(0, changes(word), late())
        assert sink.select(f"SELECT match_id FROM {prefix}matches WHERE query = %s", ["q"]) == [(word[1:],)]
        sink.close()
    sink = PostgresSink(database)
    names = sink.select("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'alarms'")
    sink.close()
    assert names == [(8,)]


def test_kafka_keeps_the_order_of_a_match_and_says_where_a_message_came_from(kafka):
    case = sinks_kit.Kafka(kafka.bootstrap)
    sink = case.opened("theft")
    sink.apply(0, changes("+a", "+b"), late())
    sink.apply(1, changes("-a", "+c"), late())
    sink.apply(2, changes("+a"), late())
    sink.close()
    of_a = [m for m in case.messages("changes") if m.key() == b"a"]
    assert [dict(m.headers())["batch_id"] for m in of_a] == [b"0", b"1", b"2"]
    assert dict(of_a[0].headers())["job"] == b"theft"
    values = [m.value() for m in case.messages("matches") if m.key() == b"a"]
    assert [v is None for v in values] == [False, True, False]


def test_kafka_fences_off_a_job_that_was_thought_dead(kafka):
    case = sinks_kit.Kafka(kafka.bootstrap)
    old = case.opened()
    old.apply(0, changes("+a"), late())
    new = case.opened()
    with pytest.raises(lc.StateError, match="another one has taken the job over, and this one is fenced off"):
        old.apply(1, changes("+zombie"), late())
    new.apply(1, changes("+b"), late())
    new.close()
    assert case.current() == ["a", "b"]
    assert case.log() == [(0, "+a"), (1, "+b")]


def test_usual_times_stay_within_the_calendar():
    column = pa.chunked_array([pa.array([-(2**62), 0, None, 2**62], pa.timestamp("s"))])
    drawn = usual(column).to_pylist()
    assert drawn == [datetime(1, 1, 1), datetime(1970, 1, 1), None, datetime(9999, 12, 31, 23, 59, 59)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SQLiteSink(":memory:"), "in memory"),
        (lambda: SQLiteSink("x", prefix='a"'), "plain"),
        (lambda: PostgresSink("host=db", schema="a b"), "plain"),
        (lambda: PostgresSink("this is no dsn"), "cannot read its dsn"),
        (lambda: PostgresSink(None), "cannot read its dsn"),
        (lambda: ParquetSink("x", compact=1), "at least 2"),
        (lambda: ParquetSink("nowhere://x"), "cannot be opened"),
        (lambda: KafkaSink(""), "address of a broker"),
        (lambda: KafkaSink("b:1", changes="x", matches="x"), "no two may be the same"),
        (lambda: KafkaSink("b:1", changes=None, matches=None, late=None), "at least one"),
    ],
)
def test_options_that_make_no_sense(make, says):
    with pytest.raises(lc.ConfigError, match=says):
        make()


@pytest.mark.parametrize("kind", [SQLiteSink, ParquetSink, DeltaSink, DuckDBSink])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, kind):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(lc.StateError, match=r"cannot be made.*give the sink a folder"):
        kind(tmp_path / "file" / "below" / "it").open("job")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "text.sqlite"
    path.write_text("this is no database, but long enough to look like a file of some kind" * 100)
    with pytest.raises(lc.StateError, match="cannot be opened"):
        SQLiteSink(path).open("job")


def test_a_sink_without_its_package_says_which(monkeypatch):
    import builtins

    real = builtins.__import__

    def missing(name, *args, **options):
        if name.split(".")[0] in ("psycopg", "deltalake", "confluent_kafka", "duckdb"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    for make, extra in (
        (lambda: PostgresSink("host=db"), "postgres"),
        (lambda: DeltaSink("x"), "delta"),
        (lambda: KafkaSink("b:1"), "kafka"),
        (lambda: sinks_kit.DuckDBSink("x"), "duckdb"),
    ):
        with pytest.raises(lc.MissingDependency, match=rf"latecomer\[{extra}\]"):
            make()


def test_table_sinks_are_sinks():
    assert issubclass(TableSink, Sink)
