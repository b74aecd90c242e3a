"""A sample from Kafka: the newest messages of a pipeline's input topics, read without joining its group.

Rules: what is read is decoded as the pipeline itself decodes it, and what it would call poison counts as unreadable.
Events arrive in the order of their records' timestamps; those of equal timestamps as they were read.
Nothing is committed, and nothing of the pipeline is disturbed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.advise.sample import Kept, Sample, take
from latecomer.connectors.kafka.clients import registry_client
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.places import Origins
from latecomer.errors import ConfigError, options
from latecomer.stream import Stream
from latecomer.units import UNITS

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

#: Columns that the sample gets besides the pipeline's own.
ARRIVAL, PARTITION = "latecomer_arrival", "latecomer_partition"
#: A cluster that says nothing for so many seconds has nothing more to say.
SILENCE = 15.0


def take_topics(pipeline: Pipeline, most: int, topic: str | None = None) -> Sample:
    """The newest messages, at most about ``most``, as a sample.

    Args:
        pipeline: the pipeline, whose queries may be replayed on the sample.
        topic: only this one of its input topics.

    Raises ConfigError where the topic is none of the pipeline's, or is not there; SchemaError where no event is found.
    """
    if topic is not None and topic not in pipeline.topics:
        raise ConfigError(f"{pipeline.name} does not read the topic {topic!r}: it reads {options(pipeline.topics)}")
    topics = pipeline.topics if topic is None else (topic,)
    registry = registry_client(pipeline)
    decoders = {name: Decoder(pipeline.input_of(name), pipeline, registry) for name in topics}
    parts: list[pa.Table] = []
    poison = rows = 0
    for messages in _read(pipeline, topics, most):
        for name in topics:
            own = [message for message in messages if message.topic() == name]
            if not own:
                continue
            decoded = decoders[name].decode(own, Origins(name))
            rows += len(own)
            poison += len(decoded.poison)
            kept = [own[number] for number in decoded.numbers.tolist()]
            parts.append(_with_record(pa.Table.from_batches([decoded.batch]), kept, pipeline.stream.unit or "ms"))
    if not parts:
        raise ConfigError(f"there is no message in {options(topics)}: nothing to measure")
    table = pa.concat_tables(parts).combine_chunks()
    if pipeline.punctuation_type is not None:
        table = table.filter(pc.not_equal(table["type"], pipeline.punctuation_type))
    named = "source" in table.column_names and table["source"].null_count < table.num_rows
    stream = Stream(type="type", ts="ts", id="id", source="source" if named else PARTITION, unit=pipeline.stream.unit)
    return take(
        Kept(table, rows - poison, poison, table.num_rows),
        stream,
        name=f"{pipeline.name}: {', '.join(topics)}",
        arrival=ARRIVAL,
    )


def _with_record(table: pa.Table, messages: Sequence[Any], unit: str) -> pa.Table:
    """The events with their records' time, in ``unit``, and partition."""
    came = np.array([message.timestamp()[1] for message in messages], np.int64)
    where = [f"{message.topic()}-{message.partition()}" for message in messages]
    table = table.append_column(ARRIVAL, pa.array(came * UNITS["ms"] // UNITS[unit]))
    return table.append_column(PARTITION, pa.array(where, pa.string()))


def _read(pipeline: Pipeline, topics: Sequence[str], most: int) -> Iterator[list[Any]]:
    """The newest messages in batches, up to where the partitions ended when it began."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    own: dict[str, Any] = {"group.id": f"{pipeline.name}-advice-{uuid.uuid4().hex[:8]}", "enable.partition.eof": True}
    consumer = Consumer(pipeline.consumer_config(**own))
    try:
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for topic in topics:
            found = consumer.list_topics(topic, 10).topics[topic]
            if not found.partitions:
                raise ConfigError(f"the topic {topic!r} cannot be read: {found.error or 'it has no partitions'}")
            for number in found.partitions:
                spans[topic, number] = consumer.get_watermark_offsets(TopicPartition(topic, number), 10)
        total = sum(high - low for low, high in spans.values())
        share = min(most / total, 1.0) if total else 0.0
        wanted = {part: (high - round(share * (high - low)), high) for part, (low, high) in spans.items()}
        waiting = {part for part, (low, high) in wanted.items() if high > low}
        consumer.assign([TopicPartition(*part, wanted[part][0]) for part in sorted(waiting)])
        heard = time.monotonic()
        while waiting and time.monotonic() < heard + SILENCE:
            batch = []
            for message in consumer.consume(5_000, 0.5):
                part = (str(message.topic()), int(message.partition() or 0))
                error, offset = message.error(), int(message.offset() or 0)
                if error is None:
                    if offset < wanted[part][1]:
                        batch.append(message)
                    if offset >= wanted[part][1] - 1:
                        waiting.discard(part)
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(part)
                elif not error.retriable():
                    raise KafkaException(error)
            if batch:
                heard = time.monotonic()
                yield batch
    except KafkaException as problem:
        raise ConfigError(f"{pipeline.name}: the cluster cannot be read: {problem.args[0]}") from problem
    finally:
        consumer.close()
