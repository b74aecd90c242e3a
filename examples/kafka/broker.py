"""A Kafka broker on this machine with the topics of the example, for a try: Java is needed, Docker is not.

    python broker.py

It prints its address and runs until Ctrl-C. The first start fetches Kafka (45 MB). Data is kept in ``kafka-data``.
"""

from __future__ import annotations

import signal
import threading

from confluent_kafka.admin import AdminClient

from latecomer.testing.kafka import Broker

#: Name, partitions, settings.
TOPICS = (
    ("flights", 4, {}),
    ("flights-changes", 4, {}),
    ("flights-matches", 4, {"cleanup_policy": "compact"}),
    ("flights-late", 1, {}),
    ("flights-dead", 1, {}),
)


def create_topics(broker: Broker) -> None:
    """Create the topics that the pipeline reads and writes, where they are not there from last time."""
    there = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    for name, partitions, settings in TOPICS:
        if name not in there:
            broker.topic(partitions, name, **settings)


def main() -> None:
    stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    with Broker("kafka-data") as broker:
        create_topics(broker)
        print(f"export BROKERS={broker.bootstrap}", flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
