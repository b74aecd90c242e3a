"""Keys of messages, made of the columns that a pipeline's input names: so that events meet in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from latecomer.connectors.kafka.config_values import Place
from latecomer.connectors.kafka.formats import Shape, json_reader, read_all

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline
    from latecomer.connectors.kafka.config_parts import Input


class KeyOf:
    """The keys of lines for one input; None where it names no columns, or where a line cannot be read.

    One column's value is the key as text; several are a JSON list.
    """

    def __init__(self, given: Input, pipeline: Pipeline) -> None:
        roles = {"type": given.type, "id": given.id, "source": given.source}
        places = [roles.get(name) or given.fields.get(name) or Place(field=name) for name in given.key]
        self._paths = [tuple(place.value.split(".")) for place in places if place.kind == "field"]
        self._shape = Shape.of(dict.fromkeys(self._paths, Any)) if self._paths else None

    def __call__(self, lines: Sequence[bytes]) -> list[bytes | None]:
        """The key of each line."""
        if self._shape is None:
            return [None] * len(lines)
        rows, refused = read_all(json_reader(self._shape), lines)
        if refused:
            rows = [self._shape.struct() if row is None else row for row in rows]
        columns = [self._shape.column(rows, path) for path in self._paths]
        return [_key(values) for values in zip(*columns, strict=True)]


def _key(values: Sequence[Any]) -> bytes | None:
    if len(values) > 1:
        return msgspec.json.encode(values)
    [value] = values
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
