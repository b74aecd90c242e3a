"""The state of a PatternSink costs what changes: what a micro-batch writes and reads, and a batch that runs again.

Most tests call what runs in Spark's tasks in this process, so that they can see each blob that is read or written.
"""

import numpy as np
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_keys import buckets_of
from latecomer.storage.attempts import Attempt
from latecomer.storage.folder import StateFolder
from tests import spark_fixture
from tests.spark_local import Local

spark = spark_fixture.spark

STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s")
QUERY = lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [tag] WITHIN 20 s", name="gap", level=lc.Aggressive("40000 s"))
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("at", pa.int64()), ("tag", pa.int64())])
BUCKETS = 8

#: Of each bucket a tag that is in it.
TAGS = list(range(200))
IN = dict(zip(buckets_of([pa.array(TAGS)], BUCKETS).tolist(), TAGS, strict=True))


def events(n=160_000, seed=3):
    """Events in order; few of them match, all of them are kept."""
    pick = np.random.default_rng(seed)
    columns = [np.arange(n), pick.choice(np.array(list("ABC")), n), np.arange(n) // 5, pick.integers(0, 8_000, n)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def rows(*given):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


class Seen(Attempt):
    """Tells what it reads and writes."""

    reads, writes = [], []

    def get(self, slot):
        Seen.reads.append(slot)
        return super().get(slot)

    def put(self, blobs):
        slots = super().put(blobs)
        Seen.writes += slots
        return slots


class Job(Local):
    """A job whose tasks are :class:`Seen`."""

    def __init__(self, folder):
        super().__init__(STREAM, QUERY, state=folder, buckets=BUCKETS)
        self.store = self._store

    def begin(self):
        return Seen(self.store.uri, self.store._folder.writer)

    def batch(self, number, table):
        Seen.reads, Seen.writes = [], []
        return self.take(number, table, tasks=1)


def size(slots):
    return sum(length for _, _, length in slots)


def written(folder, number):
    """Bytes of the files that this version needs and the one before does not."""
    old, new = (StateFolder(folder).read(n).files for n in (number - 1, number))
    return sum(length for name, length in new.items() if name not in old)


@pytest.fixture
def job(tmp_path):
    """A job with much state after batch 0."""
    job = Job(tmp_path / "state")
    job.batch(0, events())
    assert size(Seen.writes) > 1_000_000
    states = job.store.buckets(0)
    assert set(states) == set(range(BUCKETS)) and all(state.pages for state in states.values())
    return job


def test_a_bucket_without_events_and_news_of_the_clock_is_left_alone(job):
    before, full = job.store.buckets(0), StateFolder(job.store.uri).read(0).nbytes
    job.batch(1, rows((-1, "A", 100, IN[3])))  # a late event of bucket 3
    after = job.store.buckets(1)
    assert {b for b in after if (after[b].residues, after[b].pages) != (before[b].residues, before[b].pages)} == {0, 3}
    assert after[5].load["events"] == before[5].load["events"] > 0 == after[5].load["rows"]
    assert written(job.store.uri, 1) < full / 20


def test_a_bucket_reads_what_its_events_touch(job):
    before = job.store.buckets(0)
    found = job.batch(1, rows((-1, "A", 1000, IN[3]), (-2, "C", 1001, IN[3])))
    assert found.changes["events"].to_pylist() == [[-1, -2]]
    residues = {slot for state in before.values() for slot in state.residues}
    pages = [slot for slot in Seen.reads if slot not in residues]
    of_bucket = {slot[0] for slot in before[3].pages}
    assert pages and {slot[0] for slot in pages} <= of_bucket
    whole = sum(StateFolder(job.store.uri).read(0).files[name] for name in of_bucket)
    assert size(pages) < whole / 4


def test_when_the_clock_moves_pages_stay_where_they_are(job):
    before, full = job.store.buckets(0), StateFolder(job.store.uri).read(0).nbytes
    job.batch(1, rows((-1, "A", 32_001, IN[3])))
    after = job.store.buckets(1)
    assert all(after[b].residues != before[b].residues and after[b].clock == 32_001 for b in range(BUCKETS))
    assert all(after[b].pages == before[b].pages for b in range(BUCKETS))
    residues = {slot for state in before.values() for slot in state.residues}
    assert residues <= set(Seen.reads)
    assert size(set(Seen.reads) - residues) < full / 20  # the neighbours of the one event
    assert written(job.store.uri, 1) < full / 10


def test_little_state_takes_one_file_a_task(tmp_path):
    job = Job(tmp_path / "state")
    for number in range(3):
        job.batch(number, events(200).slice(number * 50, 50))
        assert len({name for name, _, _ in Seen.writes}) == 1
    assert len(list((tmp_path / "state" / "blobs").iterdir())) == 6  # and the tables of buckets


def test_a_batch_that_runs_again_reads_the_version_before_it(job):
    """Also when its version, and later ones, are there; whoever runs it."""
    pieces = [
        rows((-1, "A", 1000, IN[3]), (-2, "C", 1001, IN[3]), (-9, "B", 40_000, IN[5])),
        rows((-3, "B", 1000, IN[3]), (-4, "A", 70, IN[2]), (-5, "C", 75, IN[2])),
    ]
    first = [job.batch(n, piece) for n, piece in enumerate(pieces, 1)]
    other = Job(job.store.uri)
    for n, piece in [(2, pieces[1]), (1, pieces[0]), (2, pieces[1])]:
        again = other.batch(n, piece)
        assert again.changes.equals(first[n - 1].changes) and again.changes.num_rows
        assert again.late.equals(first[n - 1].late)
        assert other.store.batches()[-1] == n


@pytest.mark.spark
def test_through_spark(spark, tmp_path):
    told = []

    def sink():
        return PatternSink(
            STREAM,
            QUERY,
            state=tmp_path / "state",
            sinks=lambda batch, changes, late: told.append((batch, changes)),
            buckets=BUCKETS,
        )

    def frame(table):
        return spark.createDataFrame(table)

    late = frame(rows((-1, "A", 1000, IN[3]), (-2, "C", 1001, IN[3])))
    first = sink()
    first(frame(events()), 0)
    first(late, 1)
    version = StateFolder(tmp_path / "state").read(1)
    assert written(tmp_path / "state", 1) < version.nbytes / 20
    assert told[1][1]["events"].to_pylist() == [[-1, -2]]
    second = sink()
    second(late, 1)
    assert told[2][0] == 1 and told[2][1].equals(told[1][1])
    with pytest.raises(lc.StateError, match="fenced"):
        first(late, 2)
