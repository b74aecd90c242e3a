"""The wire: the fleet's events as messages to Kafka, and the pipeline's answers from there.

Rules: a sender keeps the order of its events, and blocks rather than drop one when the client's queue is full; the
reader sees committed messages only, from where the topics ended when it was made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from latecomer.connectors.kafka.config import Pipeline
from latecomer.errors import ConfigError
from loadtest.outbox import Events
from loadtest.truth import LONE

#: Names of the parts of a story, as the query calls them.
TYPES = ("Start", "Cancel", "End", "Start")
#: What a broken message looks like: JSON that ends in the middle of a text.
BROKEN = b'{"id": "%d", "type": "Sta'
_ID_OF_BROKEN = re.compile(rb'^\{"id": "(\d+)"')
#: Messages that are handed to the client at one time, so that other greenlets get their turn.
AT_ONCE = 2_000


def now_ms() -> int:
    """The wall clock: events are stamped with it."""
    return time.time_ns() // 1_000_000


def messages(events: Events, source: int) -> list[dict[str, bytes]]:
    """Key and value of each event."""
    told = []
    for _, ts, number, poison in events.tolist():
        story, part = number >> 2, number & 3
        key = b"%s%d" % (b"n" if part == LONE else b"k", story)
        if poison:
            value = BROKEN % number
        else:
            value = b'{"id":"%d","type":"%s","ts":%d,"key":"%s","source":"s%d"}' % (
                number,
                TYPES[part].encode(),
                ts,
                key,
                source,
            )
        told.append({"key": key, "value": value})
    return told


class Sender:
    """One connection to the cluster, which belongs to one source."""

    def __init__(self, pipeline: Pipeline, source: int) -> None:
        self._topic, self._source = pipeline.topics[0], source
        # librdkafka sends what has come together after 5 ms; a source's own queue holds a few seconds of events
        self._producer = Producer(
            pipeline.producer_config(
                **{"linger.ms": 5, "queue.buffering.max.messages": 200_000, "enable.idempotence": True}
            )
        )

    def send(self, events: Events) -> int:
        """Hand over events in order; returns how many bytes. Waits where the client's queue is full."""
        size = 0
        for begin in range(0, len(events), AT_ONCE):
            rest = messages(events[begin : begin + AT_ONCE], self._source)
            size += sum(len(m["value"]) for m in rest)
            while rest:
                taken = self._producer.produce_batch(self._topic, rest)
                self._producer.poll(0)
                if taken < len(rest):  # those without room say so; they are in order
                    rest = [{"key": m["key"], "value": m["value"]} for m in rest if "_error" in m]
                    time.sleep(0.005)
                else:
                    break
        self._producer.poll(0)
        return size

    def close(self, seconds: float = 10.0) -> int:
        """Wait for what is on its way; returns how many messages are not confirmed."""
        return int(self._producer.flush(seconds))


class Change(msgspec.Struct):
    """A change, as far as it matters here."""

    op: str
    events: list[str]


@dataclass(slots=True)
class Answers:
    """What was read at ``at`` (ms): changes in order, ids told late, ids in dead letters."""

    at: int = 0
    inserted: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)

    def take(self, change: Change) -> None:
        """One more change."""
        self.inserted.append(change.op == "insert")
        self.starts.append(int(change.events[0]))
        self.ends.append(int(change.events[-1]))


def late_ids(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """The ids of the events that these late rows say were not used."""
    unused = (row for row in rows if str(row["reason"]).startswith("after_") or row["reason"] == "ahead")
    return [int(row["id"]) for row in unused if row.get("id") is not None]


def broken_ids(texts: Iterable[bytes]) -> list[int]:
    """The ids in broken messages."""
    return [int(number) for text in texts for number in _ID_OF_BROKEN.findall(text)[:1]]


class Cluster:
    """A pipeline under test, reached by its topics."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def sender(self, source: int) -> Sender:
        """A connection of its own for a source."""
        return Sender(self.pipeline, source)

    def reader(self) -> Reader:
        """Whoever reads the answers."""
        return Reader(self.pipeline)


class Reader:
    """Reads changes, late events and dead letters, all partitions, without a consumer group."""

    def __init__(self, pipeline: Pipeline) -> None:
        output = pipeline.output
        if output.changes is None:
            raise ConfigError(f"{pipeline.name}: a load test reads the topic of changes: name it in [output]")
        self._changes, self._dead = output.changes.topic, output.dead_letters
        self._late = None if output.late is None else output.late.topic
        settings = {"group.id": f"loadtest-{time.time_ns()}", "enable.auto.commit": False, "fetch.wait.max.ms": 20}
        self._consumer = Consumer(pipeline.consumer_config(**{**settings, "isolation.level": "read_committed"}))
        spots = []
        for topic in filter(None, (self._changes, self._late, self._dead)):
            found = self._consumer.list_topics(topic, 10).topics[topic]
            if not found.partitions:
                raise ConfigError(f"topic {topic!r}: {found.error or 'it has no partitions'}: create it first")
            for number in found.partitions:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), 10)
                spots.append(TopicPartition(topic, number, end))
        self._consumer.assign(spots)
        self._change, self._told = msgspec.json.Decoder(Change), msgspec.json.Decoder(dict[str, Any])

    def read(self, seconds: float = 0.05) -> Answers:
        """What has come, at most a few thousand messages; waits up to so long for the first."""
        got = self._consumer.consume(2_000, seconds)
        return self.decode(got, now_ms())

    def decode(self, got: Sequence[object], at: int) -> Answers:
        """Messages as answers."""
        answers = Answers(at)
        for message in got:
            if message.error() is not None:  # type: ignore[attr-defined]
                continue
            topic, value = message.topic(), message.value()  # type: ignore[attr-defined]
            if topic == self._changes:
                answers.take(self._change.decode(value))
            elif topic == self._dead:
                answers.dead += broken_ids([value or b""])
            else:
                answers.late += late_ids([self._told.decode(value)])
        return answers

    def close(self) -> None:
        self._consumer.close()
