"""Changes, late rows and dead letters as messages.

The rules:

* The append topic holds the full log: one message per change, ``match_id`` as key.
* The compacted topic holds exactly the current matches: ``match_id`` as key, an insertion is a value, a deletion a
  tombstone. All messages of one match go to one partition, in order, since they have one key.
* A late row has its ``late_id`` as key. So whoever reads any of these topics twice can tell.
* A dead letter is the message as it was (key, value, headers) with headers that say where it came from and why it is
  here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from latecomer.connectors.kafka.formats import Unreadable
from latecomer.connectors.kafka.places import POSITION, Message, position_of
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from latecomer.connectors.kafka.config import Pipeline

#: What is left of a dead letter that is too large to be written whole.
TRUNCATED = 64 * 1024

Headers = list[tuple[str, bytes | None]]


class Outgoing(NamedTuple):
    """A message to be written. ``partition`` −1: by the key; ``timestamp`` 0: now. ``kind`` says what it is."""

    topic: str
    key: bytes | None
    value: bytes | None
    kind: str
    headers: Headers | None = None
    partition: int = -1
    timestamp: int = 0


#: Rows of an Arrow table as values of messages to this topic.
EncodeRows = Callable[[pa.Table], list[bytes]]


class Encoder:
    """Writes the outputs of one pipeline as messages."""

    def __init__(self, pipeline: Pipeline, registry: SchemaRegistryClient | None = None) -> None:
        output = pipeline.output
        self._changes, self._matches, self._late = (
            None if topic is None else (topic.topic, encoder(topic.format, topic.topic, name, registry))
            for topic, name in ((output.changes, "Change"), (output.matches, "Match"), (output.late, "Late"))
        )
        self._dead: str = output.dead_letters

    def changes(self, table: pa.Table) -> Iterator[Outgoing]:
        """The messages that these changes become, in their order."""
        if not table.num_rows:
            return
        keys = [key.encode() for key in table.column("match_id").to_pylist()]
        if self._changes is not None:
            topic, encode = self._changes
            for key, value in zip(keys, encode(table), strict=True):
                yield Outgoing(topic, key, value, "change")
        if self._matches is not None:
            topic, encode = self._matches
            values = encode(table.drop_columns(["op"]))
            for key, op, value in zip(keys, table.column("op").to_pylist(), values, strict=True):
                yield Outgoing(topic, key, value if op == "insert" else None, "match")

    def late(self, table: pa.Table) -> Iterator[Outgoing]:
        """The messages that these late rows become."""
        if table.num_rows and self._late is not None:
            topic, encode = self._late
            for key, value in zip(table.column("late_id").to_pylist(), encode(table), strict=True):
                yield Outgoing(topic, None if key is None else str(key).encode(), value, "late")

    def dead_letter(self, message: Message, problem: Unreadable) -> Outgoing:
        """The message as a dead letter."""
        topic, partition, offset = position_of(message)
        timestamp = message.timestamp()[1] if message.timestamp()[0] else 0
        headers: Headers = [header for header in message.headers() or () if header[0] != POSITION]
        headers += told(
            reason=problem.reason,
            detail=str(problem)[:200],
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp=timestamp,
        )
        return Outgoing(self._dead, message.key(), message.value(), "dead", headers, timestamp=max(timestamp, 0))

    def too_large(self, message: Outgoing) -> Outgoing:
        """What is written instead of a message that is refused for its size: a dead letter, cut short; if that is
        refused as well, half of it, without what is not ours."""
        value, headers = message.value or b"", list(message.headers or ())
        if message.kind == "cut":
            own = [header for header in headers if header[0].startswith("latecomer.")]
            return message._replace(value=value[: len(value) // 2], key=None, headers=own)
        if message.kind != "dead":
            headers += told(reason="output_too_large", detail=f"{len(value)} bytes", topic=message.topic)
        headers += told(truncated=len(value))
        cut = value[:TRUNCATED]
        return Outgoing(self._dead, message.key, cut, "cut", headers, timestamp=message.timestamp)


def told(**facts: object) -> Headers:
    """Facts as headers.

    >>> told(reason="oversized")
    [('latecomer.reason', b'oversized')]
    """
    return [(f"latecomer.{name}", str(value).encode()) for name, value in facts.items()]


def encoder(format: str, topic: str, name: str, registry: SchemaRegistryClient | None) -> EncodeRows:
    """The encoder of a topic's format; raises ConfigError for Avro without a schema registry."""
    if format == "json":
        return lambda table: list(map(msgspec.json.Encoder().encode, table.to_pylist()))
    if format == "msgpack":
        return lambda table: list(map(msgspec.msgpack.Encoder().encode, table.to_pylist()))
    if registry is None:
        raise ConfigError(f"topic {topic!r} is to be Avro, which needs a schema registry: add [schema_registry]")
    return avro_encoder(f"{topic}-value", name, registry)


def avro_encoder(subject: str, name: str, registry: SchemaRegistryClient) -> EncodeRows:
    """Rows as framed Avro records. The schema follows from the table's and is registered when it is first needed."""
    import io

    import fastavro
    from confluent_kafka.schema_registry import Schema

    known: dict[bytes, tuple[bytes, Any]] = {}

    def prepare(schema: pa.Schema) -> tuple[bytes, Any]:
        record = avro_schema(name, schema)
        text = msgspec.json.encode(record)
        if text not in known:
            number = registry.register_schema(subject, Schema(text.decode(), "AVRO"))
            known[text] = b"\0" + number.to_bytes(4, "big"), fastavro.parse_schema(record)
        return known[text]

    def encode(table: pa.Table) -> list[bytes]:
        frame, schema = prepare(table.schema)
        values = []
        for row in table.to_pylist():
            buffer = io.BytesIO()
            buffer.write(frame)
            fastavro.schemaless_writer(buffer, schema, row)
            values.append(buffer.getvalue())
        return values

    return encode


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_schema(name: str, schema: pa.Schema) -> dict[str, Any]:
    """An Avro record for the rows of an Arrow schema; every field may be null.

    >>> avro_schema("Change", pa.schema([("price", pa.float64())]))["fields"]
    [{'name': 'price', 'type': ['null', 'double'], 'default': None}]
    """
    wrong = [field.name for field in schema if not _NAME.fullmatch(field.name)]
    if wrong:
        raise ConfigError(
            f"field {wrong[0]!r} cannot be written as Avro, whose names have letters, digits and _ only: rename it "
            "with AS, or choose JSON or msgpack"
        )
    fields = [{"name": f.name, "type": ["null", _avro_type(f.type)], "default": None} for f in schema]
    return {"type": "record", "name": name, "namespace": "latecomer", "fields": fields}


def _avro_type(kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type)]}
    if t.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    tests: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
        (t.is_boolean, "boolean"),
        (t.is_integer, "long"),
        (t.is_duration, "long"),
        (t.is_floating, "double"),
        (t.is_binary, "bytes"),
    )
    return next((name for test, name in tests if test(kind)), "string")


def plain(headers: Sequence[tuple[str, bytes | None]] | None) -> Mapping[str, str]:
    """Headers as texts, the last of a name: for people and tests.

    >>> plain(told(offset=3))
    {'latecomer.offset': '3'}
    """
    return {name: (value or b"").decode(errors="replace") for name, value in headers or ()}
