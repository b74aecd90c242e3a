"""Taking over partitions: their tasks as they were when their offsets were committed.

The rule: what a committed offset says is all that counts. Its metadata names the state version and the offset at which
that was written; a version that no offset names does not exist. Where a transaction of someone else is about to decide,
the brokers keep the offset back, and so does this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from latecomer.connectors.kafka.advice import partitioning
from latecomer.connectors.kafka.commit import attempt
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.encode import Encoder
from latecomer.connectors.kafka.merging import PromisesOfPartitions
from latecomer.connectors.kafka.partitions import ForwardTask, Task
from latecomer.connectors.kafka.state import StateKeeper
from latecomer.connectors.kafka.task import Mark, MatchTask, Partition
from latecomer.errors import StateError

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

log = logging.getLogger("latecomer.kafka.opening")
T = TypeVar("T")


class Opener:
    """Makes the tasks of partitions. ``inputs``: how many partitions each input topic has."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: Mapping[str, int],
        decoders: Mapping[str, Decoder],
        encoder: Encoder,
        keeper: StateKeeper,
        consumer: Consumer,
        alive: Callable[[], None],
    ) -> None:
        self.pipeline = pipeline
        self._inputs = inputs
        self._decoders = decoders
        self._encoder = encoder
        self._keeper = keeper
        self._consumer = consumer
        self._alive = alive
        self._from_end = str(pipeline.consumer_config()["auto.offset.reset"]) in ("latest", "end", "largest")

    def open(self, parts: list[TopicPartition]) -> list[Task]:
        """The tasks of these partitions, each at the position from which it has to be read."""
        groups: dict[str, list[TopicPartition]] = {}
        for part in self._committed(parts) if parts else ():
            groups.setdefault(self._name(part), []).append(part)
        return [self._task(name, group) for name, group in groups.items()]

    def _committed(self, parts: list[TopicPartition]) -> list[TopicPartition]:
        """The committed offsets and their metadata; waits for transactions of others that are about to decide."""

        def ask() -> list[TopicPartition]:
            found: list[TopicPartition] = self._consumer.committed(parts, 5)
            for part in found:
                if part.error is not None:
                    raise KafkaException(part.error)
            return found

        return self._patiently(ask)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """The answer to a question that changes nothing: it may be put again whatever went wrong."""

        def again() -> T:
            try:
                return ask()
            except KafkaException as problem:
                error = problem.args[0]
                raise KafkaException(KafkaError(error.code(), error.str(), retriable=True)) from problem

        return attempt(again, self._alive)

    def _task(self, name: str, parts: Sequence[TopicPartition]) -> Task:
        topic, partition = parts[0].topic, parts[0].partition
        began = {(part.topic, part.partition): self._begin_of(part) for part in parts}
        if self.pipeline.repartition is not None and topic != self.pipeline.repartition.topic:
            by = partitioning(self.pipeline).key
            return ForwardTask(name, self._decoders[topic], self._encoder, self.pipeline, by, began[topic, partition])
        return self._match(name, parts, began)

    def _match(self, name: str, parts: Sequence[TopicPartition], began: dict[Partition, int]) -> MatchTask:
        marks = {Mark.of(part.metadata) if part.offset >= 0 else Mark() for part in parts}
        versions = {mark.state for mark in marks}
        if len(versions) > 1:
            raise StateError(
                f"the committed offsets of {name} name different states {sorted(map(str, versions))}: they were changed"
                " from outside. Set them back, or begin under another name"
            )
        mark = marks.pop()
        merge = None
        if self.pipeline.repartition is not None:
            by_partition = all(i.source is not None and i.source.record == "partition" for i in self.pipeline.inputs)
            merge = PromisesOfPartitions(
                sum(self._inputs.values()), self.pipeline.punctuation_type, sources=by_partition
            )
        positions = dict(began)
        until = -1
        if mark.state is None:
            runtime = self._keeper.fresh(name)
        else:
            runtime, note = self._keeper.load(name, mark.state)
            if merge is not None:
                merge.load(note["promises"])
            if len(positions) == 1 and mark.at is not None:
                ((place, until),) = positions.items()
                positions[place] = mark.at
        task = MatchTask(name, self._decoders, self._encoder, runtime, positions, merge)
        task.version, task.at, task.until = mark.state, mark.at, until
        if self.pipeline.guarantee == "at-least-once":
            most = self.pipeline.limits.max_in_flight + self.pipeline.limits.batch
            if len(began) > 1:
                task.fine_count = most
            else:
                (committed,) = began.values()
                where = TopicPartition(parts[0].topic, parts[0].partition)
                _, high = self._patiently(lambda: self._consumer.get_watermark_offsets(where, 5))
                task.fine = min(high, committed + most)
        log.info("opened", extra={"fields": {"task": name, "state": mark.state, "offsets": began, "from": positions}})
        return task

    def _begin_of(self, part: TopicPartition) -> int:
        """The committed offset, or where a partition that has none begins."""
        if part.offset >= 0:
            return int(part.offset)
        place = TopicPartition(part.topic, part.partition)
        low, high = self._patiently(lambda: self._consumer.get_watermark_offsets(place, 5))
        return int(high if self._from_end else low)

    def _name(self, part: TopicPartition) -> str:
        return str(part.partition) if several(self.pipeline) else f"{part.topic}-{part.partition}"


def several(pipeline: Pipeline) -> bool:
    """Whether a task reads the partitions with one number of several topics."""
    return len(pipeline.topics) > 1 and pipeline.repartition is None
