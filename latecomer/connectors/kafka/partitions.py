"""Which partitions belong together, and the internal topic that brings a key's events into one partition.

The rules:

* Partitions are independent of each other. Each has a runtime with its own clock, and what one says about time (a late
  event, punctuation) concerns no other. That is right where the message key is the query's key.
* Of inputs with several topics the partitions with the same number belong together (equal numbers of partitions and the
  same key on all topics are needed); they share a runtime and are assigned together.
* Otherwise messages go through an internal topic first, unchanged and in order, each to the partition of its key's
  hash, punctuation to all partitions. That is a task like any other, in the same processes and the same transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.encode import Encoder, Outgoing
from latecomer.connectors.kafka.places import Message, Origins, position_header
from latecomer.connectors.kafka.task import Counts, Mark, MatchTask, Partition
from latecomer.errors import ConfigError
from latecomer.storage.hashing import hash_columns

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from latecomer.connectors.kafka.config import Pipeline


class ForwardTask:
    """Messages of one input partition into the internal topic. It has no state but its position."""

    replaying = False
    needs_version = False
    runtime = None

    def __init__(
        self, name: str, decoder: Decoder, encoder: Encoder, pipeline: Pipeline, by: Sequence[str], position: int
    ) -> None:
        assert pipeline.repartition is not None
        topic, _, partition = name.rpartition("-")
        self.name = name
        self.partition: Partition = (topic, int(partition))
        self.positions = {self.partition: position}
        self.counts = Counts()
        self.taken = 0
        self._decoder = decoder
        self._encoder = encoder
        self._to = pipeline.repartition.topic
        self._count = pipeline.repartition.partitions
        self._by = tuple(by)
        self._punctuation = pipeline.punctuation_type

    def marks(self) -> Iterator[tuple[Partition, int, Mark]]:
        """What to commit."""
        yield self.partition, self.positions[self.partition], Mark()

    def take(self, batches: Mapping[Partition, Sequence[Message]]) -> Iterator[Outgoing]:
        """Take in messages; yields what is to be written. The position moves when the iterator has come to its end."""
        for messages in batches.values():
            decoded = self._decoder.decode(messages, Origins(self.partition[0]))
            targets = self._targets(decoded.batch).tolist()
            for number, target in zip(decoded.numbers.tolist(), targets, strict=True):
                yield from self._forward(messages[number], range(self._count) if target < 0 else (target,))
            for number, problem in sorted(decoded.poison.items()):
                self.counts.dead[problem.reason] = self.counts.dead.get(problem.reason, 0) + 1
                yield self._encoder.dead_letter(messages[number], problem)
            self.positions[self.partition] = messages[-1].offset() + 1
            self.taken += len(messages)
            self.counts.consumed += len(messages)
            self.counts.bytes += sum(map(len, messages))

    def advance(self, now: int) -> Iterator[Outgoing]:
        """Time means nothing here."""
        return iter(())

    def _targets(self, batch: Any) -> np.ndarray[Any, Any]:
        """For each row the partition of its key; −1: all."""
        if self._by and self._count > 1:
            hashes = hash_columns([batch.column(name) for name in self._by])
            targets = (hashes % np.uint64(self._count)).astype(np.int64)
        else:
            targets = np.zeros(batch.num_rows, np.int64)
        if self._punctuation is not None:
            targets[pc.equal(batch.column("type"), self._punctuation).to_numpy(zero_copy_only=False)] = -1
        return targets

    def _forward(self, message: Message, targets: Sequence[int]) -> Iterator[Outgoing]:
        headers = [*(message.headers() or ()), position_header(*self.partition, message.offset())]
        known, timestamp = message.timestamp()
        for target in targets:
            yield Outgoing(
                self._to, message.key(), message.value(), "forward", headers, target, max(timestamp, 0) if known else 0
            )


#: What is done with the messages of a partition.
Task = MatchTask | ForwardTask


def absent(known: Mapping[str, Any], topics: Iterable[str]) -> list[str]:
    """Those of the topics that are not among what brokers say they have."""
    return [topic for topic in topics if topic not in known or known[topic].error is not None]


def counts_of(admin: AdminClient, topics: Sequence[str]) -> dict[str, int]:
    """How many partitions each topic has; raises ConfigError for one that does not exist."""
    known = admin.list_topics(timeout=30).topics
    if missing := absent(known, topics):
        raise ConfigError(f"topic {missing[0]!r} does not exist: create it, or correct the pipeline's file")
    return {topic: len(known[topic].partitions) for topic in topics}


def prepare(admin: AdminClient, pipeline: Pipeline) -> dict[str, int]:
    """The partitions of all input topics; creates the internal topic where one is asked for and missing.

    Raises ConfigError for topics that do not exist or do not fit together.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    counts = counts_of(admin, pipeline.topics)
    internal = pipeline.repartition
    if internal is None:
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise ConfigError(
                f"topics that are read together need equally many partitions: {shown}. Make them equal, or let the "
                "pipeline mix them anew with [repartition]"
            )
        return counts
    if internal.topic not in admin.list_topics(timeout=30).topics:
        try:
            admin.create_topics([NewTopic(internal.topic, internal.partitions)])[internal.topic].result(30)
        except KafkaException as problem:
            if problem.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another process of the pipeline was first
                raise ConfigError(f"topic {internal.topic!r} cannot be created: {problem.args[0].str()}") from problem
        return counts
    found = counts_of(admin, [internal.topic])[internal.topic]
    if found != internal.partitions:
        raise ConfigError(
            f"the internal topic {internal.topic!r} has {found} partitions, and partitions = {internal.partitions}: a "
            "key would change its partition. Give the number that it has, or another topic"
        )
    return counts
