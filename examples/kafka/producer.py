"""Replay the flights that left New York in 2013, in the order in which they left: with their real disorder.

Event time is the schedule. A flight becomes known when it leaves, so one that is three hours late comes three hours
after its time, behind flights that were scheduled later. Punctuation ("no OnTime flight scheduled up to 14:45 will
follow") goes to every partition, since each is worked on by itself.

    python producer.py --brokers 127.0.0.1:9092 --months 1 --hours-per-second 24
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from latecomer.demo import flights


def arrivals(months: int) -> pa.Table:
    """The rows that become known in the first months, in order; see :func:`latecomer.demo.flights.arrivals`."""
    rows = flights.arrivals(flights.read())
    end = int(datetime(2013 + months // 12, months % 12 + 1, 1, tzinfo=UTC).timestamp()) // 60
    return rows.filter(pc.less(rows["arrived"], end))


def messages(rows: pa.Table) -> Iterator[tuple[int, str | None, dict[str, Any]]]:
    """The minute in which each row becomes known, its key (None: for all partitions), and its fields."""
    for batch in rows.to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            minute, kind, of = row.pop("arrived"), row.pop("type"), row.pop("of")
            row |= {"kind": kind, "scheduled": f"{row['scheduled']:%Y-%m-%dT%H:%M:%SZ}"}
            if kind == "PUNCT":
                yield minute, None, {"kind": kind, "scheduled": row["scheduled"], "of": of}
            else:
                yield minute, f"{row['carrier']} {row['origin']}", row


def replay(brokers: str, topic: str, months: int, hours_per_second: float) -> int:
    """Send everything; returns how many flights there were. ``hours_per_second`` 0 means as fast as possible."""
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20})
    partitions = range(len(producer.list_topics(topic, timeout=30).topics[topic].partitions))
    count, began, first = 0, time.monotonic(), None
    for minute, key, fields in messages(arrivals(months)):
        first = minute if first is None else first
        if hours_per_second:
            wait = began + (minute - first) / 60 / hours_per_second - time.monotonic()
            if wait > 0:
                producer.poll(wait)
        value = json.dumps(fields)
        count += key is not None
        for partition in partitions if key is None else [-1]:  # -1: the one that the key decides
            while True:
                try:
                    producer.produce(topic, value, key, partition)
                    break
                except BufferError:  # the queue is full: let some of it go first
                    producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    if left:
        raise SystemExit(f"{left} messages could not be delivered within a minute")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay the flights of 2013 with their real disorder.")
    parser.add_argument("--brokers", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--months", type=int, default=12, choices=range(1, 13), help="only the first ones")
    parser.add_argument("--hours-per-second", type=float, default=24.0, help="0: as fast as possible")
    given = parser.parse_args()
    print(f"{replay(given.brokers, given.topic, given.months, given.hours_per_second):,} flights sent")


if __name__ == "__main__":
    main()
