"""What a pipeline with brokers does, read from its topics: for readers of changes, and for the page.

The rule: what is shown is what any reader of committed messages sees, whichever process of the pipeline made it. The
topics are the logs; here are only the newest rows of each, in memory. A reader's place is the offset of each partition
(``0-17.1-4``), so it means the same after a restart; what is no longer here is in the topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from latecomer.connectors.kafka.clients import registry_client
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.places import Origins
from latecomer.serve.letters import DeadLetter
from latecomer.serve.outcome import Board

if TYPE_CHECKING:
    from latecomer.serve.config import KafkaPipeline
    from latecomer.serve.live import Live

log = logging.getLogger("latecomer.serve")

#: Rows of changes, and of other topics, that are kept.
CHANGES, OTHERS = 100_000, 2_000
#: Bytes of a feed's rows.
BYTES = 64 << 20
_encode = msgspec.json.Encoder(enc_hook=str).encode


class TopicFeed:
    """The newest rows of a topic, numbered as they were read; ``name`` and ``place`` translate to offsets."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: deque[tuple[bytes, str]] = deque()
        self._numbers: dict[str, int] = {}
        self._offsets: dict[int, int] = {}
        self._lock = threading.Lock()
        self._bytes = 0
        self.whole = False  # whether nothing of the topic was there before the rows that are here
        self.newest = 1  # a reader whose place is before all that is here has missed row 1

    @property
    def oldest(self) -> int:
        return self.newest - len(self._rows) + 1

    def append(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        """Add rows: partition, offset, content."""
        with self._lock:
            for partition, offset, row in rows:
                self._offsets[partition] = offset
                name = ".".join(f"{p}-{o}" for p, o in sorted(self._offsets.items()))
                self._rows.append((row, name))
                self._bytes += len(row)
                self.newest += 1
                self._numbers[name] = self.newest
            while len(self._rows) > self._most or (self._bytes > BYTES and len(self._rows) > 1):
                gone, name = self._rows.popleft()
                self._bytes -= len(gone)
                self._numbers.pop(name, None)
                self.whole = False

    def recent(self, after: int, limit: int) -> list[bytes] | None:
        """Up to ``limit`` rows behind a number; None where they are gone."""
        with self._lock:
            begin = self.newest - len(self._rows)
            if after < begin:
                return None
            return [row for row, _ in islice(self._rows, after - begin, after - begin + limit)]

    def read(self, after: int, limit: int) -> tuple[int, list[bytes]]:
        """Up to ``limit`` rows behind a number, and the number of the first."""
        with self._lock:
            begin = self.newest - len(self._rows)
            after = max(after, begin)
            return after + 1, [row for row, _ in islice(self._rows, after - begin, after - begin + limit)]

    def name(self, position: int) -> str:
        """The offsets up to and with a row."""
        with self._lock:
            begin = self.newest - len(self._rows)
            return self._rows[position - begin - 1][1] if begin < position <= self.newest else "0"

    def place(self, name: str) -> int:
        """The number of the row up to which a reader has seen all; 0 where rows behind it are gone. Raises ValueError
        for what is no place."""
        with self._lock:
            if name in self._numbers:
                return self._numbers[name]
            begin = self.newest - len(self._rows)
            before = begin if self.whole else 0
            if name == "0":
                return before
            seen = {int(p): int(o) for p, o in (part.split("-") for part in name.split("."))}
            for number, (_, here) in enumerate(self._rows):
                offsets = {int(p): int(o) for p, o in (part.split("-") for part in here.split("."))}
                if any(offset > seen.get(partition, -1) for partition, offset in offsets.items()):
                    return begin + number if number else before
            return self.newest


class Tail:
    """Reads all topics of a pipeline in a thread, from :meth:`start` to :meth:`stop`."""

    def __init__(self, pipeline: KafkaPipeline, live: Live | None, tell: Callable[[], None]) -> None:
        self._pipeline, self._live, self._tell = pipeline, live, tell
        self.feeds = {"changes": TopicFeed(CHANGES), "late": TopicFeed(OTHERS), "dead": TopicFeed(OTHERS)}
        self.board = Board(pipeline.serve.matches)
        output = pipeline.output
        changes = output.changes or output.matches
        assert changes is not None, "one of the two is there"
        self._compacted = output.changes is None
        self._changes, self._late, self._dead = changes.topic, output.late.topic, output.dead_letters
        self._read = {topic.topic: _reader(topic.format) for topic in (changes, output.late)}
        registry = registry_client(pipeline)
        self._decoders = {topic: Decoder(pipeline.input_of(topic), pipeline, registry) for topic in pipeline.topics}
        self._stopping = threading.Event()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="latecomer-tail", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        try:
            consumer = Consumer(
                self._pipeline.consumer_config(
                    **{
                        "group.id": f"{self._pipeline.group}-serve",
                        "auto.offset.reset": "latest",
                        "fetch.wait.max.ms": 50,
                    }
                )
            )
            try:
                consumer.assign(self._begin(consumer))
                while not self._stopping.is_set():
                    found = [m for m in consumer.consume(2_000, 0.1) if m.error() is None]
                    if found:
                        self._take(found)
                        self._tell()
            finally:
                consumer.close()
        except BaseException as problem:
            log.exception("the topics cannot be read")
            self.failed = problem

    def _begin(self, consumer: Consumer) -> list[TopicPartition]:
        """From where each partition is read: the inputs from their ends, others so that the newest rows are there."""
        self.feeds["changes"].whole = True
        wanted = {self._changes: CHANGES, self._late: OTHERS // 2, self._dead: OTHERS // 2}
        spots = []
        for topic in (*self._pipeline.topics, *wanted):
            partitions = consumer.list_topics(topic, 30).topics[topic].partitions
            each = wanted.get(topic, 0) // max(len(partitions), 1)
            for partition in partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
                begin = max(low, high - each)
                spots.append(TopicPartition(topic, partition, begin))
                if topic == self._changes:
                    self.feeds["changes"].whole &= begin == 0
        return spots

    def _take(self, messages: Sequence[Any]) -> None:
        by_topic: dict[str, list[Any]] = {}
        for message in messages:
            by_topic.setdefault(message.topic(), []).append(message)
        now = time.time()
        for topic, found in by_topic.items():
            if topic == self._changes:
                self._take_changes(found, now)
            elif topic == self._late:
                rows = [self._read[topic](m.value()) for m in found]
                self._add("late", found, rows)
                if self._live is not None:
                    self._live.answered(pa.table({}), pa.Table.from_pylist(rows), now, clock=None)
            elif topic == self._dead:
                letters = [_letter(message) for message in found]
                self._add("dead", found, [letter.plain() for letter in letters])
                if self._live is not None:
                    self._live.dead(letters, now)
            elif self._live is not None:
                batch = self._decoders[topic].decode(found, Origins(topic)).batch
                self._live.arrived(pa.Table.from_batches([batch]), now)

    def _take_changes(self, found: Sequence[Any], now: float) -> None:
        rows = []
        for message in found:
            value = message.value()
            if value is None:
                rows.append({"op": "delete", "match_id": (message.key() or b"").decode()})
            else:
                told = self._read[self._changes](value)
                rows.append({"op": "insert", **told} if self._compacted else told)
        encoded = self._add("changes", found, rows)
        self.board.see([row["op"] for row in rows], [row["match_id"] for row in rows], encoded)
        if self._live is not None:
            self._live.answered(pa.Table.from_pylist(rows), pa.table({}), now, clock=None)

    def _add(self, name: str, found: Sequence[Any], rows: Sequence[dict[str, Any]]) -> list[bytes]:
        encoded = [
            _encode({**_op_first(row), "partition": m.partition(), "offset": m.offset()})
            for m, row in zip(found, rows, strict=True)
        ]
        self.feeds[name].append([(m.partition(), m.offset(), row) for m, row in zip(found, encoded, strict=True)])
        return encoded


def _op_first(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its operation, if it has one, before everything else."""
    return {"op": row["op"], **row} if "op" in row else row


def _reader(format: str) -> Callable[[bytes], Any]:
    """Reads rows that the pipeline has written."""
    if format == "msgpack":
        return msgspec.msgpack.Decoder().decode
    if format == "json":
        return msgspec.json.Decoder().decode
    return lambda value: {"op": "insert", "match_id": "", "avro": len(value)}


def _letter(message: Any) -> DeadLetter:
    """A dead letter from its topic."""
    told = {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}
    detail = (
        f"{told.get('latecomer.topic', '')}-{told.get('latecomer.partition', '')}: {told.get('latecomer.detail', '')}"
    )
    line = told.get("latecomer.offset", "0")
    return DeadLetter(
        int(line) if line.isdigit() else 0,
        told.get("latecomer.reason", "unknown"),
        detail,
        message.value() or b"",
        max(message.timestamp()[1], 0),
    )
