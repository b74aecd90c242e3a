"""What a reader of a topic finds."""

import time
import uuid

from confluent_kafka import Consumer, TopicPartition


def read(brokers, topic, isolation="read_committed", seconds=60):
    """All messages of a topic that such a reader sees, partition by partition, once every transaction that has been
    begun is decided.

    To a reader of committed messages a partition ends, for the time being, before the first transaction that is still
    open. One that a dead process has left stays so until the brokers give it up; what others have committed since then
    lies behind it. So the ends are asked for as a reader of everything, and all before them has to come.
    """
    config = {"bootstrap.servers": brokers, "enable.auto.commit": False, "log_level": 0}
    everything = Consumer({**config, "group.id": uuid.uuid4().hex, "isolation.level": "read_uncommitted"})
    reader = Consumer(
        {**config, "group.id": uuid.uuid4().hex, "isolation.level": isolation, "enable.partition.eof": True}
    )
    found, until = [], time.monotonic() + seconds
    try:
        parts = sorted(everything.list_topics(topic, 30).topics[topic].partitions)
        ends = {p: everything.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in parts}
        reader.assign([TopicPartition(topic, p, 0) for p in parts])
        while ends:
            assert time.monotonic() < until, f"{topic}: not all can be read within {seconds} s: a transaction is open"
            for message in reader.consume(1000, 0.1):
                if message.error() is None:
                    found.append(message)
                elif message.offset() >= ends.get(message.partition(), message.offset() + 1):
                    del ends[message.partition()]
    finally:
        reader.close()
        everything.close()
    return sorted(found, key=lambda m: m.partition())
