"""Partitions on a real broker: several topics, messages under another key than the query's, queries without a key,
punctuation and idle partitions."""

import json
import time

import pytest

from latecomer.connectors.kafka import loop
from latecomer.connectors.kafka.config import load
from latecomer.connectors.kafka.operation.watch import NullWatch
from latecomer.errors import ConfigError, StateError
from tests.kafka_pipelines import DAY, Member, Scenario

#: Partitions that are read after each other are up to half an hour apart in these scenarios.
LESS = {"disorder": 2 * DAY}


def test_topics_that_are_partitioned_alike(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, topics=2, partitions=2)
    # A key's events are in one topic here; what counts is that both feed one runtime under rebalances and kills.
    with Member(scenario) as one:
        one.wait_for("opened", times=2)
        scenario.send(1500, **LESS)
        with Member(scenario) as two:
            two.wait_for("opened")
            scenario.send(300, **LESS)
            two.kill()
        one.wait_for("opened", times=4)
        scenario.send(300, **LESS)
        scenario.drain(members=[one])
        one.stop()
    assert scenario.check(late=False)["insert"] > 50
    assert not scenario.read(scenario.late)


@pytest.mark.parametrize("partitions", [3, 1])
def test_repartition(kafka, tmp_path, partitions):
    """The messages' own key says nothing here: only the internal topic brings a key's events together."""
    text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND c.x >= a.x WITHIN 10 minutes RETURN a.k AS k, c.x - a.x AS more"
    if partitions == 1:
        text = "PATTERN SEQ(A a, !B b, C c) WHERE a.k <> c.k AND c.x > a.x + 1 WITHIN 15 s RETURN a.k AS k, c.x AS more"
    more = f'[repartition]\ntopic = "{{}}"\npartitions = {partitions}'
    internal = kafka.topic(partitions=partitions)
    scenario = Scenario(
        kafka,
        tmp_path,
        topics=2,
        partitions=2,
        key="",
        text=text,
        more=more.format(internal),
        top='instance = "i"',
        scatter=True,
    )
    for _ in range(2):
        with Member(scenario) as member:
            member.wait_for("opened", times=partitions)
            scenario.send(500, **LESS)
            time.sleep(0.1)
            member.kill()
    with Member(scenario) as member:
        member.wait_for("opened", times=partitions)  # all may have been done before
        scenario.drain(members=[member])
        scenario.drain_internal(internal, partitions, member)
        member.stop()
    assert scenario.check(late=False)["insert"] > 20
    assert not scenario.read(scenario.late)


def test_partitions_that_are_not_independent_are_refused(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=2, key="")
    with pytest.raises(ConfigError, match="repartition"):
        loop.run(scenario.pipeline, NullWatch())
    unequal = Scenario(kafka, tmp_path, partitions=2, topics=2)
    more = kafka.topic(partitions=3)
    text = unequal.file.read_text().replace(f'"{unequal.inputs[1]}"', f'"{more}"')
    unequal.file.write_text(text)
    with pytest.raises(ConfigError, match="equally many"):
        loop.run(load(unequal.file), NullWatch())
    gone = text.replace(f'"{more}"', '"nowhere"')
    unequal.file.write_text(gone)
    with pytest.raises(ConfigError, match="does not exist"):
        loop.run(load(unequal.file), NullWatch())


@pytest.mark.parametrize("repartition", [False, True])
def test_punctuation_releases_what_waits(kafka, tmp_path, repartition):
    internal = kafka.topic(partitions=2)
    more = f'[repartition]\ntopic = "{internal}"\npartitions = 2\n' if repartition else ""
    scenario = Scenario(
        kafka,
        tmp_path,
        partitions=2,
        level="conservative",
        key="" if repartition else 'key = ["k"]',
        input='punctuation = { header = "done" }',
        more=more,
    )
    topic = scenario.inputs[0]

    def promise(partition):
        value = json.dumps({"ts": scenario.now + DAY}).encode()
        scenario.producer.produce(topic, None, b"p", partition, headers=[("done", value)])
        scenario.sent.append((topic, partition, None, None))
        scenario.flush()

    scenario.send(300, poison=0)
    with Member(scenario) as member:
        scenario.drain(members=[member])
        promise(0)
        scenario.drain(members=[member])
        time.sleep(0.3)
        first = len(scenario.read(scenario.changes))
        promise(1)
        scenario.drain(members=[member])
        until = time.monotonic() + 20
        while (found := len(scenario.read(scenario.changes))) < len(scenario.expected()[0]):
            assert time.monotonic() < until, f"{found} changes, {first} after the first promise"
            time.sleep(0.1)
        member.stop()
    # Without the internal topic a partition's promise is enough for its own matches; with it all must have promised.
    assert (first == 0) == repartition and found > first
    scenario.check()


def test_an_overdue_alarm_comes_though_nothing_arrives(kafka, tmp_path):
    """All partitions are idle: the wall clock takes over. The alarm is not given twice after a kill."""
    scenario = Scenario(
        kafka,
        tmp_path,
        partitions=2,
        text="PATTERN SEQ(A a, !C c) WHERE [k] WITHIN 1 s RETURN a.k AS k",
        level="aggressive(max_delay = 1 min)",
        input='source = { record = "partition" }',
        more='[stream]\nclock = "source"\nidle_timeout = "300 ms"\n',
    )
    now = time.time_ns() // 1_000_000
    for partition, key in enumerate(("one", "two")):
        event = {"id": key, "kind": "A", "at": now, "k": key, "x": 0.0}
        scenario.send_to(partition, event)
    with Member(scenario) as member:
        until = time.monotonic() + 20
        while len(scenario.read(scenario.changes)) < 2:
            assert member.running and time.monotonic() < until, member.said()
            time.sleep(0.1)
        member.kill()
    with Member(scenario) as member:
        member.wait_for("opened", times=2)
        time.sleep(1)
        scenario.send_to(0, {"id": "c", "kind": "C", "at": now + 500, "k": "one", "x": 0.0})
        scenario.drain(members=[member])
        member.stop()
    changes = [json.loads(m.value()) for m in scenario.read(scenario.changes)]
    assert sorted((c["op"], c["events"][0]) for c in changes) == [
        ("delete", "one"),
        ("insert", "one"),
        ("insert", "two"),
    ]


def test_messages_that_were_removed_before_they_were_read_are_an_error(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=1)
    scenario.send(200)
    with Member(scenario) as member:
        scenario.drain(members=[member])
        member.stop()
    scenario.send(100)
    remove(kafka, scenario.inputs[0], 250)
    with pytest.raises(StateError, match="removed before they were read"):
        loop.run(scenario.pipeline, NullWatch())


def remove(kafka, topic, offset):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(20)
