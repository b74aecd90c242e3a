"""Values that name their schema by number: Avro and Protobuf in the framing of a schema registry.

The rule: an unknown number is the message's fault (a dead letter), an unreachable registry is nobody's (the messages
wait: ``RegistryUnavailable``). Schemas never change under a number, so each is asked for once; that a number is unknown
is believed for a minute.

The framing is a zero byte, four bytes of number, then for Protobuf the message's place in its file, then the payload.
"""

from __future__ import annotations

import importlib
import io
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import SerializationError

from latecomer.connectors.kafka.formats import ReadValue, RegistryUnavailable, Shape, Unreadable, object_reader
from latecomer.errors import ConfigError

_FRAME = 5
#: For how many seconds an unknown number stays unknown without asking again: a flood of such messages must not become
#: a flood of requests.
_DOUBT = 60.0
#: Properties of the client that it wants as numbers.
_NUMBERS = (
    "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.max.wait.ms", "retries.wait.ms", "timeout",
)  # fmt: skip


class Schemas:
    """Schemas by number, parsed by ``parse`` and kept.

    Raises RegistryUnavailable where the registry does not answer, Unreadable where it does not know the number.
    """

    def __init__(self, client: SchemaRegistryClient, parse: Callable[[Any], Any]) -> None:
        self._client = client
        self._parse = parse
        self._known: dict[int, Any] = {}
        self._unknown: dict[int, float] = {}

    def of(self, value: bytes) -> Any:
        """The parsed schema that ``value`` names."""
        if len(value) < _FRAME or value[0] != 0:
            raise Unreadable("unreadable", "no schema registry framing: a zero byte and four bytes of schema id")
        number = int.from_bytes(value[1:_FRAME], "big")
        found = self._known.get(number)
        return self._ask(number) if found is None else found

    def _ask(self, number: int) -> Any:
        now = time.monotonic()
        if self._unknown.get(number, now) > now:
            raise _unknown(number)
        try:
            schema = self._client.get_schema(number)
        except SchemaRegistryError as problem:
            if problem.http_status_code != 404:
                raise RegistryUnavailable(f"the schema registry refused schema {number}: {problem}") from problem
        except Exception as problem:  # the HTTP client's errors, which have no root that could be imported
            raise RegistryUnavailable(f"the schema registry cannot be reached: {problem}") from problem
        else:
            try:
                found = self._known[number] = self._parse(schema)
            except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as problem:
                raise Unreadable("unknown_schema", f"schema {number} cannot be used: {problem}") from problem
            return found
        if len(self._unknown) > 10_000:
            self._unknown.clear()
        self._unknown[number] = now + _DOUBT
        raise _unknown(number)


def _unknown(number: int) -> Unreadable:
    return Unreadable("unknown_schema", f"the schema registry knows no schema {number}")


def client_of(config: Mapping[str, Any]) -> SchemaRegistryClient:
    """A client of the registry; fails within seconds when nobody answers, since the caller tries again."""
    given = {name: int(value) if name in _NUMBERS else value for name, value in config.items()}
    return SchemaRegistryClient({"max.retries": 1, "timeout": 5, **given})


def avro_reader(shape: Shape, client: SchemaRegistryClient) -> ReadValue:
    """Reads framed Avro records, each by the schema that wrote it."""

    def parse(schema: Any) -> Any:
        return fastavro.parse_schema(json.loads(schema.schema_str), named_schemas=named(schema))

    def named(schema: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for reference in schema.references or ():
            other: Any = client.get_version(reference.subject, reference.version).schema
            found |= named(other)
            fastavro.parse_schema(json.loads(other.schema_str), named_schemas=found)
        return found

    schemas = Schemas(client, parse)
    read = fastavro.schemaless_reader

    def decode(value: bytes) -> Any:
        return read(io.BytesIO(value[_FRAME:]), schemas.of(value), None)

    return object_reader(shape, decode)


def protobuf_reader(shape: Shape, client: SchemaRegistryClient, message: str) -> ReadValue:
    """Reads framed Protobuf messages of one generated class, named like ``package.module:Class``."""
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    deserialize = ProtobufDeserializer(message_class(message), {"use.deprecated.format": False})
    schemas = Schemas(client, lambda schema: schema)

    def decode(value: bytes) -> Any:
        schemas.of(value)
        try:
            return deserialize(value)
        except SerializationError as problem:
            raise Unreadable("unreadable", str(problem)) from problem

    return object_reader(shape, decode)


def message_class(name: str) -> Any:
    """The generated class that ``name`` (``module:Class``) stands for; raises ConfigError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        return found if hasattr(found, "DESCRIPTOR") else _no_class(name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(
            f"message = {name!r}: no such Protobuf class ({problem}): give 'package.module:Class', made by protoc"
        ) from problem


def _no_class(name: str) -> Any:
    raise ConfigError(f"message = {name!r} is no Protobuf class: give one that protoc generated")
