"""Show what holds now: read a topic of matches from its start and keep the last value of each key.

    python matches.py --brokers 127.0.0.1:9092

A value under a match's id says that the match holds; a null (a tombstone) that it was taken back. That is all that a
compacted topic keeps, so any consumer can build its own table from it.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def current(brokers: str, topic: str, seconds: float = 60.0) -> dict[str, dict[str, Any]]:
    """The matches that hold, by their id: everything that was committed up to now."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": f"look-{uuid.uuid4()}", "isolation.level": "read_committed",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found: dict[str, dict[str, Any]] = {}
    open_ones, until = set(partitions), time.monotonic() + seconds
    while open_ones and time.monotonic() < until:
        for message in consumer.consume(1000, 0.5):
            if message.error() is not None:
                open_ones.discard(message.partition())  # its end
            elif message.value() is None:
                found.pop(message.key().decode(), None)
            else:
                found[message.key().decode()] = json.loads(message.value())
    consumer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Show the matches that hold now.")
    parser.add_argument("--brokers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="flights-matches")
    given = parser.parse_args()
    found = current(given.brokers, given.topic)
    for query in sorted({match["query"] for match in found.values()}):
        own = [match for match in found.values() if match["query"] == query]
        print(
            f"{query}: {len(own):,} matches; the last one: {' → '.join(max(own, key=lambda m: m['last_ts'])['events'])}"
        )


if __name__ == "__main__":
    main()
