"""Tasks, state versions and partitions, without a broker: what a crash at any point leaves behind is enough to go on as
if nothing had happened."""

import json
import random
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.connectors.kafka import loop
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.encode import Encoder, plain
from latecomer.connectors.kafka.merging import PromisesOfPartitions
from latecomer.connectors.kafka.partitions import ForwardTask
from latecomer.connectors.kafka.places import POSITION
from latecomer.connectors.kafka.state import StateKeeper
from latecomer.connectors.kafka.task import Mark, MatchTask
from latecomer.errors import StateError
from tests import oracle
from tests.test_kafka_formats import Fake

DAY = 86_400_000

PIPELINE = """
name = "p"
[kafka]
brokers = "127.0.0.1:1"
[columns]
k = "int"
[stream]
{stream}
[[input]]
topic = "in"
format = "json"
id = "id"
{input}
[[query]]
name = "q"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN {within} RETURN a.k AS k"
level = "{level}"
[output]
changes = "changes"
late = "late"
dead_letters = "dead"
[state]
uri = "{state}"
{more}
"""


def pipeline(state, level="aggressive(max_delay = 30 ms)", stream="", input="", more="", within="20 ms"):
    return loads(PIPELINE.format(state=state, level=level, stream=stream, input=input, more=more, within=within))


def messages_of(rng, count):
    """Events, late by up to 30 ms and sometimes by more, some of them twice, and now and then something else."""
    found, events = [], []
    for offset in range(count):
        ts = offset * 2 - rng.choice([0, 0, 0, rng.randrange(30), 50])
        event = {"id": f"e{offset}", "type": rng.choice("ABC"), "ts": ts, "k": rng.randrange(2)}
        if events and rng.random() < 0.1:
            event = rng.choice(events[-10:])  # once more
        events.append(event)
        found.append(Fake(b"{" if rng.random() < 0.05 else json.dumps(event).encode(), offset + offset // 7))
    return found  # offsets have gaps, as transactions leave them


class Process:
    """What survives a crash (offset and mark, versions, what was committed), and a task on top of it."""

    def __init__(self, pipeline, keeper, fine=False):
        self.pipeline, self.keeper, self.fine = pipeline, keeper, fine
        self.offset, self.mark, self.log, self.pending = 0, Mark(), [], []
        self.open()

    def open(self):
        self.pending = []
        runtime, at, until = self.keeper.fresh("in-3"), self.offset, -1
        if self.mark.state is not None:
            runtime, _ = self.keeper.load("in-3", self.mark.state)
            at, until = self.mark.at, self.offset
        decoders = {"in": Decoder(self.pipeline.inputs[0], self.pipeline)}
        self.task = MatchTask("in-3", decoders, Encoder(self.pipeline), runtime, {("in", 3): at})
        self.task.version, self.task.at, self.task.until = self.mark.state, self.mark.at, until
        if self.fine:
            self.task.fine = 10**9

    @property
    def position(self):
        (position,) = self.task.positions.values()
        return position

    def take(self, messages):
        """The messages that follow the position, up to the end of ``messages``."""
        fresh = [m for m in messages if m.offset() >= self.position]
        out = list(self.task.take({("in", 3): fresh})) if fresh else []
        (self.log if self.fine else self.pending).extend(out)

    def commit(self, version):
        if self.task.replaying:
            return
        if self.task.saving is not None:
            self.task.saved()  # of an earlier position
        if self.task.needs_version:
            self.task.freeze(self.keeper)
            self.task.saved()
        ((_, self.offset, self.mark),) = self.task.marks()
        self.log += self.pending
        self.pending = []
        if version:
            self.task.freeze(self.keeper)  # the next commit names it


def told(log):
    """Changes in order, late ids and dead letters."""
    changes = [json.loads(m.value) for m in log if m.topic == "changes"]
    late = [m.key for m in log if m.topic == "late"]
    dead = [plain(m.headers)["latecomer.offset"] for m in log if m.topic == "dead"]
    return changes, late, dead


def alive(changes):
    """The matches that hold in the end; each may only be inserted where it is not, and deleted where it is."""
    held = {}
    for change in changes:
        assert (change["match_id"] in held) == (change["op"] == "delete"), change
        if change["op"] == "insert":
            held[change["match_id"]] = tuple(change["events"])
        else:
            del held[change["match_id"]]
    return set(held.values())


def wanted(given, messages):
    """By the oracle and by one runtime in one go."""
    rows = [json.loads(m.value()) for m in messages if m.value() != b"{"]
    out = lc.Runtime(given.stream, given.queries).process(rows)
    late = out.late.to_pylist()
    once = {}
    for row in rows:
        once.setdefault(row["id"], row)  # of two copies the first decides
    first = lc.Runtime(given.stream, given.queries).process(list(once.values()))
    gone = set(first.late.column("id").to_pylist())
    plan = given.queries[0].plan
    events = {r["id"]: r for r in rows if r["id"] not in gone}
    return set(map(tuple, oracle.matches(plan, list(events.values()), "ms"))), late


@pytest.mark.parametrize("seed", range(30))
def test_crashes_at_any_point(tmp_path, seed):
    given, rng = pipeline(tmp_path), random.Random(seed)
    messages = messages_of(rng, 90)
    process, seen = Process(given, StateKeeper(given)), 0
    for step in rng.choices(["take", "commit", "version", "crash"], [5, 3, 1, 2], k=30):
        if step == "take":
            seen = min(seen + rng.randrange(1, 12), len(messages))
            process.take(messages[:seen])
        elif step == "crash":
            process.open()
        else:
            process.commit(step == "version")
    process.take(messages)
    process.commit(False)
    assert not process.task.replaying
    changes, late, dead = told(process.log)
    matches, late_rows = wanted(given, messages)
    assert alive(changes) == matches
    assert sorted(late) == sorted(row["late_id"].encode() for row in late_rows)
    assert dead == [str(m.offset()) for m in messages if m.value() == b"{"]


@pytest.mark.parametrize("seed", [0, 5])
def test_crashes_with_state_that_is_mostly_on_disk(tmp_path, seed):
    """Events late by up to three days in windows of minutes: after a crash little of the state has been read again."""
    given, rng = pipeline(tmp_path, level="aggressive(max_delay = 3 days)", within="10 minutes"), random.Random(seed)
    messages, now, event = [], 20 * DAY, None
    for offset in range(6000):
        now += rng.randrange(2000)
        late = rng.random() < 0.2
        delay = int(3 * DAY * rng.random() ** 4 * 0.99) if late else 0
        if rng.random() < 0.005:
            delay = 3 * DAY + 600_000 + rng.randrange(DAY)
        fresh = {"id": f"e{offset}", "type": rng.choice("AABCC"), "ts": now - delay, "k": rng.randrange(20)}
        event = event if event and rng.random() < 0.02 else fresh
        messages.append(Fake(json.dumps(event).encode(), offset))
    process = Process(given, StateKeeper(given))
    while process.position < len(messages):
        process.take(messages[: process.position + rng.randrange(1, 100)])
        chance = rng.random()
        if chance < 0.5:
            process.commit(version=rng.random() < 0.4)
        elif chance < 0.53:
            process.open()
    process.commit(False)
    in_one_go = lc.Runtime(given.stream, given.queries).process([json.loads(m.value()) for m in messages])
    held = Counter()
    for change in in_one_go.changes.to_pylist():
        held[tuple(change["events"])] += 1 if change["op"] == "insert" else -1
    assert alive(told(process.log)[0]) == set(+held)


@pytest.mark.parametrize("seed", range(30))
def test_crashes_where_all_is_seen_at_once(tmp_path, seed):
    """At least once: what a reader has seen is corrected after a crash, though the batches are cut in other places."""
    given, rng = pipeline(tmp_path), random.Random(seed)
    messages = messages_of(rng, 90)
    process, seen = Process(given, StateKeeper(given), fine=True), 0
    for step in rng.choices(["take", "commit", "crash"], [5, 2, 2], k=30):
        if step == "take":
            seen = min(seen + rng.randrange(1, 12), len(messages))
            process.take(messages[:seen])
        elif step == "crash":
            process.open()
        else:
            process.commit(False)
    process.take(messages)
    last = {}
    changes, late, _ = told(process.log)
    for change in changes:
        last[tuple(change["events"])] = change["op"]
    matches, late_rows = wanted(given, messages)
    assert {events for events, op in last.items() if op == "insert"} == matches
    assert set(late) == {row["late_id"].encode() for row in late_rows}


def test_a_task_that_was_told_the_time_writes_a_version(tmp_path):
    given = pipeline(tmp_path, stream='idle_timeout = "1 s"')
    process = Process(given, StateKeeper(given))
    process.take(messages_of(random.Random(1), 5))
    process.commit(False)
    assert not process.task.needs_version
    list(process.task.advance(10**6))
    assert process.task.needs_version
    before = process.mark
    process.commit(False)
    assert process.mark != before and not process.task.needs_version


# --- state versions --------------------------------------------------------------------------------------------------


def test_a_version_is_never_taken_for_another(tmp_path):
    given = pipeline(tmp_path)
    keeper = StateKeeper(given)
    first = keeper.save(keeper.fresh("in-3"), {"who": 1})
    assert keeper.load("in-3", first)[1]["who"] == 1
    with pytest.raises(StateError, match="another one of that number"):
        keeper.load("in-3", first[:-1] + ("0" if first[-1] != "0" else "1"))
    with pytest.raises(StateError, match="before, or begin under another name"):
        keeper.load("in-3", first.replace("/1-", "/2-"))
    other = StateKeeper(given)
    second = other.save(other.fresh("in-3"), {"who": 2})  # both began without a committed offset
    assert [keeper.load("in-3", name)[1]["who"] for name in (first, second)] == [1, 2]
    keeper.settle("in-3", second)
    assert keeper.load("in-3", second)
    with pytest.raises(StateError):
        keeper.load("in-3", first)


def test_who_has_lost_a_partition_does_no_harm(tmp_path):
    """It opened the state, slept, and wakes up after its successor has committed a version."""
    given = pipeline(tmp_path)
    asleep, awake = StateKeeper(given), StateKeeper(given)
    first = asleep.save(asleep.fresh("in-3"), {})
    runtime, _ = awake.load("in-3", first)
    committed = awake.save(runtime, {})
    zombie, _ = asleep.load("in-3", first)  # it read the offset before the other one committed
    wrong = asleep.save(zombie, {})
    with pytest.raises(StateError):
        awake.save(runtime, {})  # the owner is shut out, joins anew, and finds what it had committed
    again, _ = awake.load("in-3", committed)
    assert awake.save(again, {}) not in (committed, wrong)
    with pytest.raises(StateError):
        asleep.save(zombie, {})
    awake.load("in-3", committed)


def test_the_state_of_another_pipeline_is_refused(tmp_path):
    given = pipeline(tmp_path)
    keeper = StateKeeper(given)
    name = keeper.save(keeper.fresh("in-3"), {})
    with pytest.raises(StateError, match="query 'q' differs"):
        StateKeeper(pipeline(tmp_path, level="kslack(1 s)")).load("in-3", name)
    with pytest.raises(StateError, match="the stream differs"):
        StateKeeper(pipeline(tmp_path, stream='max_ahead = "1 h"')).load("in-3", name)


def test_marks():
    assert Mark.of(Mark("0000000001-ab", 5).text()) == Mark("0000000001-ab", 5)
    assert Mark.of("something else") == Mark.of("") == Mark.of(None) == Mark()
    with pytest.raises(StateError, match="another release"):
        Mark.of('{"latecomer": 2, "state": "x"}')


# --- repartition -----------------------------------------------------------------------------------------------------

FORWARD = '[repartition]\ntopic = "inner"\npartitions = {}'


def forward(given, messages, by=("k",)):
    task = ForwardTask("in-3", Decoder(given.inputs[0], given), Encoder(given), given, by, 0)
    return list(task.take({("in", 3): messages})), task


def test_forwarding_keeps_messages_and_brings_keys_together(tmp_path):
    given = pipeline(tmp_path, more=FORWARD.format(4))
    messages = [
        Fake(json.dumps({"id": f"e{n}", "type": "A", "ts": n, "k": n % 10}).encode(), n, more=[("trace", b"\xff")])
        for n in range(50)
    ]
    out, task = forward(given, [*messages, Fake(b"{", 50)])
    assert task.positions == {("in", 3): 51}
    assert [m.kind for m in out] == ["forward"] * 50 + ["dead"]
    partitions = {}
    for message, sent in zip(messages, out, strict=False):
        assert (sent.topic, sent.value, sent.key, sent.timestamp) == ("inner", message.content, b"key", message.time[1])
        assert sent.headers == [("trace", b"\xff"), (POSITION, f"3-{message.number}-in".encode())]
        partitions.setdefault(json.loads(sent.value)["k"], set()).add(sent.partition)
    assert all(len(found) == 1 for found in partitions.values())
    assert len(set.union(*partitions.values())) > 1
    one, _ = forward(pipeline(tmp_path, more=FORWARD.format(1)), messages, by=())
    assert {m.partition for m in one} == {0}


def test_punctuation_reaches_all_partitions(tmp_path):
    given = pipeline(tmp_path, input='punctuation = { type = "DONE" }', more=FORWARD.format(3))
    out, _ = forward(given, [Fake(b'{"type": "DONE", "ts": 5, "of": "B"}', 1)])
    assert [m.partition for m in out] == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.sampled_from([None, "A"])), max_size=15))
def test_a_promise_holds_once_every_partition_has_made_it(rows):
    merge, said = PromisesOfPartitions(3, "P", sources=False), {}
    reached = {}
    for partition, ts, of in rows:
        said.setdefault(of, {}).setdefault(partition, []).append(ts)
        wanted = min(max(x) for x in said[of].values()) if len(said[of]) == 3 else None
        batch = pa.RecordBatch.from_pylist(
            [{"type": "P", "ts": ts, "of": of}, {"type": "A", "ts": 1, "of": None}],
            pa.schema([("type", pa.string()), ("ts", pa.int64()), ("of", pa.string())]),
        )
        found, kept = merge.apply(batch, [("t", partition)] * 2)
        assert found.column("type").to_pylist()[-1] == "A" and kept.tolist()[-1] == 1
        if found.num_rows == 2:
            reached[of] = found.column("ts").to_pylist()[0]
        assert reached.get(of) == wanted
        saved, merge = merge.dump(), PromisesOfPartitions(3, "P", sources=False)
        merge.load(json.loads(json.dumps(saved)))


def test_promises_of_sources_that_are_partitions_need_no_other(tmp_path):
    merge = PromisesOfPartitions(2, "P", sources=True)
    row = {"type": "P", "ts": 4, "of": None, "source": "in-1"}
    assert merge.apply(pa.RecordBatch.from_pylist([row]), [("in", 1)])[0].num_rows == 1


def test_several_partitions_are_mixed_fairly(tmp_path):
    """Of two topics in one batch neither runs ahead, which would make the other's events late."""
    given = loads(
        PIPELINE.format(
            state=tmp_path, level="aggressive(max_delay = 5 ms)", stream="", input="", more="", within="20 ms"
        ).replace('topic = "in"', 'topic = ["in", "other"]')
    )
    batches = {}
    for topic, kind in (("in", "A"), ("other", "C")):
        events = [{"id": f"{topic}{n}", "type": kind, "ts": n * 2, "k": 1} for n in range(100)]
        batches[topic, 3] = [Fake(json.dumps(e).encode(), n) for n, e in enumerate(events)]
    decoders = dict.fromkeys(("in", "other"), Decoder(given.inputs[0], given))
    runtime = lc.Runtime(given.stream, given.queries)
    task = MatchTask("3", decoders, Encoder(given), runtime, {("in", 3): 0, ("other", 3): 0})
    out = list(task.take(batches))
    assert not [m for m in out if m.topic == "late"]
    assert task.positions == {("in", 3): 100, ("other", 3): 100}
    marks = [SimpleNamespace(offset=offset, mark=mark) for _, offset, mark in task.marks()]
    assert all(one.mark.state == two.mark.state for one, two in pairwise(marks))
    assert task.needs_version


def test_several_partitions_tell_their_changes_one_by_one_for_a_while(tmp_path):
    given = loads(
        PIPELINE.format(
            state=tmp_path, level="aggressive(max_delay = 1 s)", stream="", input="", more="", within="20 ms"
        ).replace('topic = "in"', 'topic = ["in", "other"]')
    )
    events = [("A", 0), ("C", 5), ("B", 2)]
    messages = [
        Fake(json.dumps({"id": kind, "type": kind, "ts": ts, "k": 1}).encode(), n)
        for n, (kind, ts) in enumerate(events)
    ]
    decoders = dict.fromkeys(("in", "other"), Decoder(given.inputs[0], given))
    ops = []
    for fine in (0, 2):
        runtime = lc.Runtime(given.stream, given.queries)
        task = MatchTask("3", decoders, Encoder(given), runtime, {("in", 3): 0, ("other", 3): 0})
        task.fine_count = fine
        changes, _, _ = told(task.take({("in", 3): messages}))
        ops.append([change["op"] for change in changes])
        assert (task.fine_count > 0) is False
    assert ops == [[], ["insert", "delete"]]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(0, 12))
def test_messages_that_were_fetched_again_are_left_out(offsets, position):
    kept = [message.offset() for message in loop._from([Fake(b"", offset) for offset in offsets], position)]
    wanted = []
    for offset in offsets:
        if offset >= position and (not wanted or offset > wanted[-1]):
            wanted.append(offset)
    assert kept == wanted
