"""A job that goes on with other queries, other cores or another number of buckets: what stays says what it would have
said, and what does not fit is refused."""

import os
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors import spark as spark_module
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_detect import Heard
from latecomer.connectors.spark_keys import buckets_of, in_use
from latecomer.connectors.spark_stream import OneBucket, _Asked, detect
from latecomer.connectors.versions import VersionStore
from tests import oracle, sinks_kit, spark_fixture, spark_job
from tests.test_spark import STREAM, Collect, Files, cut, embedded, frame, net, queries, rows_of, stream
from tests.test_spark_stream import PROVIDER, ROCKSDB, collected

pytestmark = pytest.mark.spark
spark = spark_fixture.spark

OTHER = "PATTERN SEQ(B b, !A a, C c) WHERE [tag] WITHIN 25 s RETURN c.place AS place"


def query(name, text=spark_job.TEXT, level=spark_job.LEVELS[1]):
    return lc.Query(text, name=name, level=level)


class Dies(VersionStore):
    """A driver that dies at some steps of its batches."""

    pick = random.Random(1)

    def write(self, version, *states):
        if Dies.pick.random() < 0.3:
            raise RuntimeError("died")
        super().write(version, *states)
        if Dies.pick.random() < 0.3:
            raise RuntimeError("died")


def answer(asked, pieces):
    rows = sorted(pa.concat_tables(pieces).to_pylist(), key=lambda r: r["at"])
    return sorted(
        tuple(m) for m in oracle.matches(asked.plan, [r | {"type": r["kind"], "ts": r["at"]} for r in rows], "s")
    )


def test_queries_come_and_go_while_drivers_die(spark, tmp_path, monkeypatch):
    """Each new driver may come with the next queries. A batch that ran before keeps those that it had."""
    first, patient, sorted_, other, last = (
        query("first"),
        query("patient", level=spark_job.LEVELS[2]),
        query("sorted", level=spark_job.LEVELS[0]),
        query("other", OTHER),
        query("last", OTHER, spark_job.LEVELS[2]),
    )
    sets = [[first, patient, sorted_], [first, sorted_, other], [sorted_, first, last], [last, first]]
    pieces, case, pick = cut(spark_job.events(21, 300), 6), sinks_kit.SQLite(tmp_path), random.Random(5)
    Dies.pick = random.Random(2)
    number = turn = died = mixed = 0
    lived = {}  # name -> the batches that it was run with
    while number < len(pieces):
        turn = min(turn + (pick.random() < 0.5), number // 2)
        sink = PatternSink(spark_job.STREAM, sets[turn], state=tmp_path / "state", sinks=case.make(), buckets=8)
        sink._store = Dies(tmp_path / "state")
        monkeypatch.setattr(spark_module, "_cores", lambda _, n=number: n)
        before = sink._store.read(number).settings["queries"] if number in sink._store.batches() else None
        try:
            sink(frame(spark, pieces[number]), number)
        except RuntimeError:
            died += 1
        else:
            ran = sink._store.read(number).settings["queries"]
            mixed += before is not None and {q.name for q in sets[turn]} != set(before)
            assert before is None or before == ran
            for name in ran:
                lived.setdefault(name, []).append(number)
            number += 1
        sink.close()
    sink = PatternSink(spark_job.STREAM, sets[-1], state=tmp_path / "state", sinks=case.make(), buckets=8)
    sink.finish(spark)
    sink.close()
    assert died > 2 and mixed > 0
    matches, changes = case.rows("matches"), case.rows("changes")
    for asked in (first, patient, sorted_, other, last):
        batches = lived[asked.name]
        assert batches == list(range(batches[0], batches[-1] + 1))
        seen = pieces[batches[0] : batches[-1] + 1]
        held = sorted(tuple(r["events"]) for r in matches if r["query"] == asked.name)
        if batches[-1] == len(pieces) - 1 and asked in sets[-1]:
            assert held == answer(asked, seen)
        else:  # it was removed: its matches stay as they were
            runtime = lc.Runtime(spark_job.STREAM, asked)
            if batches[0]:
                runtime.process(pieces[0].slice(0, 0))
                runtime.observe(max(max(p["at"].to_pylist()) for p in pieces[: batches[0]]))
            outputs = [runtime.process(piece).changes for piece in seen]
            assert sorted(r["match_id"] for r in matches if r["query"] == asked.name) == sorted(
                match for _, match in net(pa.concat_tables(outputs))
            )
        assert len(held) > 2
        log = [(r["op"], r["match_id"]) for r in changes if r["query"] == asked.name]
        assert len(log) == len(set(log)) or asked.level.patience is not None
    assert {len(lived[q.name]) for q in (first, patient)} != {len(pieces)}


def test_buckets_are_halved_when_cores_are_added(spark, tmp_path, monkeypatch):
    """Two queries at four levels, some of whose matches wait while buckets are parted; the batch that does it is run
    twice."""
    events = stream(seed=31)
    expected, late = embedded(events, queries())
    seen, used = Collect(), []
    for number, (piece, cores) in enumerate(zip(cut(events, 5), (1, 1, 4, 4, 16), strict=True)):
        monkeypatch.setattr(spark_module, "_cores", lambda _, n=cores: n)
        for _ in range(2 if number == 2 else 1):
            sink = PatternSink(STREAM, queries(), state=tmp_path / "state", sinks=seen, buckets=40)
            sink(frame(spark, piece), number)
        used.append(sink.explain()["in_use"])
    sink.finish(spark)
    assert used == [8, 8, 16, 16, 32]
    again = seen.batches.pop(3)
    assert again[0] == 2 and again[1].equals(seen.batches[2][1]) and again[2].equals(seen.batches[2][2])
    assert net(seen.changes) == net(expected)
    assert rows_of(seen.late) == rows_of(late)
    assert sum(held for held in sink.progress_of(4).held.values()) > 0


def test_rebucket_between_two_runs(spark, tmp_path, monkeypatch):
    """By another process; the job goes on with more buckets, and the whole equals one uninterrupted run."""
    events = stream(seed=32)
    expected, late = embedded(events, queries())
    seen, pieces = Collect(), cut(events, 4)
    state = tmp_path / "state"

    def sink(buckets):
        return PatternSink(STREAM, queries(), state=state, sinks=seen, buckets=buckets)

    for number in (0, 1):
        sink(2)(frame(spark, pieces[number]), number)
    with pytest.raises(lc.StateError, match=r"buckets 2, and now buckets is 16.*state rebucket"):
        sink(16)(frame(spark, pieces[2]), 2)

    def rebucket(*options):
        command = [sys.executable, "-m", "latecomer", "state", "rebucket", str(state), *options]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"}, check=False)

    before = VersionStore(state).read(1)
    refused = rebucket("--buckets", "16")
    assert (
        refused.returncode == 4 and f"process {os.getpid()} on" in refused.stderr and "may be at work" in refused.stderr
    )
    refused = rebucket("--buckets", "1", "--force")
    assert refused.returncode == 4 and "2 buckets are in use" in refused.stderr
    assert VersionStore(state).read(1) == before
    done = rebucket("--buckets", "16", "--force")
    assert done.returncode == 0, done.stderr
    assert "up to 16 buckets, before up to 2; 2 in use" in done.stdout
    monkeypatch.setattr(spark_module, "_cores", lambda _: 16)
    with pytest.raises(lc.StateError, match="buckets 16, and now buckets is 2"):
        sink(2)(frame(spark, pieces[2]), 2)
    for number in (1, 2, 3):  # the last batch before comes again, as after a crash
        last = sink(16)
        last(frame(spark, pieces[number]), number)
    assert last.explain()["in_use"] == 16
    last.finish(spark)
    assert seen.batches[1][1].equals(seen.batches[2][1]) or seen.batches[1][1].num_rows == seen.batches[2][1].num_rows
    del seen.batches[2]
    assert net(seen.changes) == net(expected)
    assert rows_of(seen.late) == rows_of(late)


def test_rebucket_dies_at_any_operation_and_can_be_repeated(tmp_path):
    """The version is the old one or the new one, whole; the same command makes it the new one."""
    from latecomer.connectors.versions import BucketState, Version

    store = VersionStore(tmp_path / "state")
    store.open(0, {"buckets": 2})
    attempt = store.attempts()()
    states = {n: BucketState((slot,)) for n, slot in enumerate(attempt.put([b"one", b"two"]))}
    store.write(Version(0, 7, {"buckets": 2}), states, attempt.sizes)
    for after in range(40):
        again = VersionStore(tmp_path / "state")
        files, left = again._folder.files, [after]

        def dying(name, files=files, left=left):
            call = getattr(type(files), name)

            def one(*given):
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(5, "died")
                return call(files, *given)

            return one

        for name in ("write", "publish", "delete", "secure"):
            if hasattr(type(files), name):
                object.__setattr__(files, name, dying(name))
        try:
            again.rebucket(4 + after, force=True)
        except (lc.StateError, OSError):
            now = VersionStore(tmp_path / "state")
            assert now.read(0).settings["buckets"] in (2, 4 + after, 3 + after)
        else:
            break
    now = VersionStore(tmp_path / "state")
    assert after > 3 and now.read(0) == Version(0, 7, {"buckets": 4 + after})
    assert [now.get(*state.residues) for _, state in sorted(now.buckets(0).items())] == [b"one", b"two"]


@pytest.fixture
def rocks(spark):
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    spark.conf.unset(PROVIDER)


def test_detect_goes_on_with_other_queries_and_refuses_what_does_not_fit(rocks, tmp_path):
    events = stream(seed=33)
    pieces = cut(events, 3)
    asked = queries()[2:7]  # of two texts, at three levels
    first, then = asked[:4], asked[2:]
    files, told = Files(tmp_path / "in"), []
    for some, of in ((pieces[:1], first), (pieces[1:], then)):
        files.add(*some)
        told += collected(detect(files.read(rocks), STREAM, of, buckets=2), tmp_path / "checkpoint")
    changes = pa.concat_tables([rows for _, rows in told], promote_options="permissive")
    runtime, added = lc.Runtime(STREAM, asked[2:4]), lc.Runtime(STREAM, asked[4:])
    outputs = [runtime.process(pieces[0]).changes]
    added.process(pieces[0].slice(0, 0))
    added.observe(runtime.clock)
    outputs += [one.process(piece).changes for piece in pieces[1:] for one in (runtime, added)]
    expected = net(pa.concat_tables(outputs, promote_options="permissive"))
    stayed = {q.name for q in then}
    assert {row for row in net(changes) if row[0] in stayed} == expected
    assert {name for name, _ in expected} == stayed
    files.add(pieces[2])
    changed = [lc.Query(asked[2].text.replace("15", "16"), name=asked[2].name), *then[1:]]
    with pytest.raises(Exception, match=f"made with queries '{asked[2].name}'"):
        collected(detect(files.read(rocks), STREAM, changed, buckets=2), tmp_path / "checkpoint")


def test_the_state_of_detect_knows_what_it_was_made_with():
    asked, piece = queries()[:2], stream(50)
    moved = lc.Stream(type="kind", ts="place", id="id", unit="s", punctuation="PUNCT")

    def bucket(stream_, queries_, **options):
        given = {"buckets": 2, "key": None, "arrival": None, "step": None, "default": 32} | options
        made = _Asked(stream_, queries_, **given)
        runtime = lc.Runtime(stream_, queries_)
        runtime.process(piece.slice(0, 0))
        return OneBucket(
            fresh=runtime.snapshot(),
            settings=made._settings(made.queries),
            schema=piece.schema,
            stream=stream_,
            arrival=None,
            step=None,
            finish=False,
        )

    state = bucket(STREAM, asked).go_on(None, None, None)[1]
    assert bucket(STREAM, asked[:1]).go_on(state, None, None)[0] == []
    for stream_, options, says in (
        (moved, {}, "stream 'ts' \"at\", and now stream 'ts' is \"place\""),
        (STREAM, {"buckets": 3}, "buckets 2, and now buckets is 3"),
    ):
        with pytest.raises(lc.StateError, match=f"the state in this checkpoint was made with {says}"):
            bucket(stream_, asked, **options).go_on(state, None, None)


def test_memory_bounds_what_a_task_holds(spark, tmp_path):
    """With a budget far below the state the answers are the same, and the state is read from the folder."""
    pieces, long = cut(stream(2000, seed=34), 4), lc.Aggressive("2000 s")
    asked = [lc.Query(spark_job.TEXT, name="gap", level=long)]
    seen = {}
    for memory in (None, "1 MiB"):
        sink = PatternSink(
            STREAM, asked, state=tmp_path / f"{memory}", sinks=(kept := Collect()), buckets=2, memory=memory
        )
        for number, piece in enumerate(pieces):
            sink(frame(spark, piece), number)
        seen[memory] = net(kept.changes)
    assert seen[None] == seen["1 MiB"] != set()
    with pytest.raises(lc.ConfigError, match="at least 1 MiB"):
        PatternSink(STREAM, asked, state=tmp_path / "none", memory="10 kB")


def test_a_late_row_that_is_no_querys_is_told_once_and_by_whom_it_may_be():
    def late(*ids):
        return pa.table({"late_id": [i for i, _ in ids], "query": pa.array([q for _, q in ids], pa.string())})

    heard = Heard()
    first = late(("a", None), ("a", None), ("b", "q"))
    assert heard.new(first).equals(first)
    heard.next()
    assert (
        heard.new(late(("a", None), ("b", "q"), ("c", None))).to_pylist() == late(("b", "q"), ("c", None)).to_pylist()
    )
    assert heard.new(late(("c", None))).num_rows == 1


def test_buckets_are_made_of_whole_ones():
    keys = [pa.array([None, *range(5000)]), pa.array([None, *map(str, range(5000))])]
    for of in (keys, keys[:1], keys[1:]):
        for few, factor in ((1, 7), (2, 2), (5, 8), (40, 64)):
            many, own = buckets_of(of, few * factor), buckets_of(of, few)
            assert (many // factor == own).all()
            assert np.bincount(own, minlength=few).min() > 0.5 * 5000 / few
    assert in_use(256, 0, 1) == 8 and in_use(256, 8, 100) == 256 and in_use(3, 0, 100) == 3
