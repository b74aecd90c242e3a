"""What a snapshot says of a runtime's stream and queries, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from latecomer.consistency.generators import from_plain, to_plain
from latecomer.query.query import Query
from latecomer.stream import Stream
from latecomer.units import Duration


@lru_cache(maxsize=256)
def saved_query(text: str, name: str) -> Query:
    """A saved query. Where many runtimes of the same queries go on, their texts are read once."""
    return Query(text, name=name)


def plain_stream(stream: Stream) -> dict[str, Any]:
    """A stream as plain data."""
    fields = {name: getattr(stream, name) for name in stream.__dataclass_fields__ if name not in ("schema", "promises")}
    options = {name: _plain_option(value) for name, value in fields.items()}
    return {**options, "promises": [to_plain(p) for p in stream.promises], "schema": schema_bytes(stream.schema)}


def saved_stream(plain: Mapping[str, Any]) -> Stream:
    """The stream that :func:`plain_stream` was told of."""
    promises = [from_plain(p) for p in plain["promises"]]
    return Stream(**{**plain, "schema": schema_of(plain["schema"]), "promises": promises})


def _plain_option(value: Any) -> Any:
    """A stream's option as plain data that ``Stream`` takes again."""
    if isinstance(value, Duration):
        return int(value.amount) if value.plain else str(value)
    return list(value) if isinstance(value, tuple) else value


def schema_bytes(schema: Any) -> bytes | None:
    return None if schema is None else schema.serialize().to_pybytes()


def schema_of(data: bytes | None) -> pa.Schema | None:
    return None if data is None else pa.ipc.read_schema(pa.py_buffer(data))
