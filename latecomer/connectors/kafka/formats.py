"""Values of messages as rows: one way to read each format, all of them into the same struct.

The rule: a value becomes a row whose fields have exactly the declared types, or it is refused with a reason; no value
is bent to fit, and one bad value never costs its neighbours anything. The struct holds only the fields that the
pipeline asks for, at any depth, so what a message says besides is skipped while parsing. A missing field is null.

JSON and msgpack are parsed straight into the struct (msgspec: 0.24 µs for a message of six fields; orjson 0.57 µs into
a dict, Arrow's own JSON reader 0.65 µs and then without telling which message was wrong). Avro and Protobuf go through
the objects that their libraries make, CSV through its texts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np

from latecomer.errors import ConfigError, LatecomerError

#: Whole numbers that an Arrow column can hold.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

#: What a time may look like in a message.
ISO = datetime
NUMBER = Int64 | float

#: A path into a value: the names of nested fields.
Path = tuple[str, ...]
#: Reads one value into a struct.
ReadValue = Callable[[bytes], Any]


class Unreadable(ValueError):
    """A value that cannot become a row. ``reason`` is one of a few words, the message says what exactly is wrong."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class RegistryUnavailable(LatecomerError):
    """The schema registry does not answer. The messages that need it are fine and must be read again later."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The struct into which values are read, and where each field is found in it.

    >>> shape = Shape.of({("id",): str, ("at", "ms"): Int64})
    >>> row = msgspec.json.decode(b'{"id": "e1", "at": {"ms": 5, "tz": 2}}', type=shape.struct)
    >>> shape.column([row], ("at", "ms"))
    [5]
    """

    struct: type[msgspec.Struct]
    places: Mapping[Path, tuple[str, ...]]

    @classmethod
    def of(cls, wanted: Mapping[Path, Any]) -> Shape:
        """The shape with these fields and their types; raises ConfigError when a field is a value and a parent too."""
        places: dict[Path, tuple[str, ...]] = {}
        return cls(_struct("Row", wanted, (), (), places), places)

    def column(self, rows: Sequence[Any], path: Path) -> list[Any]:
        """The values of one field, row by row."""
        place = self.places[path]
        try:
            return list(map(attrgetter(".".join(place)), rows))
        except AttributeError:  # a parent is null in some row
            return [_walk(row, place) for row in rows]


def _struct(
    name: str, wanted: Mapping[Path, Any], above: Path, place: tuple[str, ...], places: dict[Path, tuple[str, ...]]
) -> type[msgspec.Struct]:
    """The struct of the fields below ``above``; notes where each leaf is found."""
    fields, names = [], {}
    for number, head in enumerate(dict.fromkeys(path[0] for path in wanted)):
        attribute = f"f{number}"
        names[attribute] = head
        below = {path[1:]: kind for path, kind in wanted.items() if path[0] == head}
        if () in below and len(below) > 1:
            shown = ".".join((*above, head))
            raise ConfigError(f"field {shown!r} is used as a value and as a parent of others: it can only be one")
        if () in below:
            kind = below[()]
            places[(*above, head)] = (*place, attribute)
        else:
            kind = _struct(f"{name}_{number}", below, (*above, head), (*place, attribute), places)
        fields.append((attribute, kind | None, None))
    return msgspec.defstruct(name, fields, rename=names, gc=False)


def _walk(row: Any, place: Sequence[str]) -> Any:
    for attribute in place:
        if row is None:
            return None
        row = getattr(row, attribute)
    return row


# --- one reader per format -------------------------------------------------------------------------------------------


def json_reader(shape: Shape) -> ReadValue:
    """Reads JSON objects."""
    return msgspec.json.Decoder(shape.struct).decode


def msgpack_reader(shape: Shape) -> ReadValue:
    """Reads msgpack maps with text keys."""
    return msgspec.msgpack.Decoder(shape.struct).decode


def csv_reader(shape: Shape, columns: Sequence[str], delimiter: str = ",", null: str = "") -> ReadValue:
    """Reads one line of CSV per message; ``columns`` names its fields in order, ``null`` is how a missing one looks."""

    def read(value: bytes) -> Any:
        lines = list(csv.reader([value.decode()], delimiter=delimiter, strict=True))
        if len(lines) != 1 or len(lines[0]) != len(columns):
            found = len(lines[0]) if lines else 0
            raise Unreadable("unreadable", f"{found} fields instead of {len(columns)}")
        given = {name: text for name, text in zip(columns, lines[0], strict=True) if text != null}
        return msgspec.convert(given, shape.struct, strict=False)

    return read


def object_reader(shape: Shape, parse: Callable[[bytes], Any]) -> ReadValue:
    """Reads what ``parse`` makes of a value: a dict, or an object with attributes."""
    struct = shape.struct

    def read(value: bytes) -> Any:
        return msgspec.convert(parse(value), struct, from_attributes=True)

    return read


# --- many values -----------------------------------------------------------------------------------------------------

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


def read_all(read: ReadValue, values: Iterable[bytes | None]) -> tuple[list[Any], dict[int, Exception]]:
    """All values as rows, None where one is refused, and why, by number.

    >>> rows, refused = read_all(json_reader(Shape.of({("x",): Int64})), [b'{"x": 1}', b"{", b'{"x": 3}'])
    >>> len(rows), list(refused)
    (3, [1])
    """
    rows: list[Any] = []
    refused: dict[int, Exception] = {}
    results = map(read, values)  # type: ignore[arg-type]  # no reader takes None: that is refused like other values
    while True:
        try:
            rows.extend(results)  # what came before a failure stays in the list, and the iterator goes on after it
            return rows, refused
        except (ValueError, TypeError, RecursionError, csv.Error, EOFError, IndexError, KeyError) as problem:
            refused[len(rows)] = problem
            rows.append(None)


def explain(problem: Exception, roles: Mapping[str, str]) -> Unreadable:
    """Why a value was refused. ``roles``: dotted path -> reason, for fields whose failure has a name of its own."""
    if isinstance(problem, Unreadable):
        return problem
    text = str(problem) or type(problem).__name__
    found = _PATH.search(text)
    if isinstance(problem, msgspec.ValidationError) and found and found[1]:
        return Unreadable(roles.get(found[1], "bad_value"), text)
    return Unreadable("unreadable", text)


def good_rows(rows: Sequence[Any], refused: Mapping[int, Any]) -> tuple[Sequence[Any], np.ndarray[Any, Any] | None]:
    """The rows that were read, and their numbers; None: all of them."""
    if not refused:
        return rows, None
    keep = np.ones(len(rows), bool)
    keep[list(refused)] = False
    return [row for row in rows if row is not None], np.flatnonzero(keep)
