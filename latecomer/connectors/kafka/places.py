"""What a message says besides its value: headers, key, timestamp, and where it was first written.

The rule: a message that went through the internal topic of a repartition still has the position that it had in the
input topic, so ids, sources and dead letters are the same with and without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from latecomer.connectors.kafka.formats import Unreadable
from latecomer.units import UNITS

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config_values import Place

#: The header in which the internal topic keeps a message's first position.
POSITION = "latecomer.position"
#: No time beyond this can be told from "never"; the engine's own limit is higher.
_MOST = 2**62

_partition, _offset = methodcaller("partition"), methodcaller("offset")


class Message(Protocol):
    """A message as the consumer gives it, one that is no error."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def error(self) -> Any: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Origins:
    """Where messages were first written: all in one topic. ``forwarded``: they came through the internal one."""

    topic: str
    forwarded: bool = False

    def places(self, messages: Sequence[Message]) -> Iterable[tuple[int, int]]:
        """Partition and offset of each."""
        if self.forwarded:
            return [position_of(message)[1:] for message in messages]
        return zip(map(_partition, messages), map(_offset, messages), strict=True)


def position_header(topic: str, partition: int, offset: int) -> tuple[str, bytes]:
    """The header that keeps a position.

    >>> position_header("orders", 3, 17)
    ('latecomer.position', b'3-17-orders')
    """
    return POSITION, f"{partition}-{offset}-{topic}".encode()


def position_of(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset at which the message was first written."""
    for name, value in message.headers() or ():
        if name == POSITION and value is not None:
            partition, offset, topic = value.decode().split("-", 2)
            return topic, int(partition), int(offset)
    return message.topic(), message.partition(), message.offset()


def from_record(place: Place, messages: Sequence[Message], origins: Origins) -> list[Any]:
    """The values at a place outside the message's value; None where there is none."""
    topic = origins.topic
    if place.kind == "constant":
        return [place.value] * len(messages)
    if place.kind == "header":
        return [_header(message, place) for message in messages]
    match place.value:
        case "timestamp":
            return [t[1] if t[0] else None for t in (message.timestamp() for message in messages)]
        case "key":
            return [_text(message.key()) for message in messages]
        case "topic":
            return [topic] * len(messages)
        case "partition":
            return [f"{topic}-{partition}" for partition, _ in origins.places(messages)]
        case "offset":
            return [offset for _, offset in origins.places(messages)]
    return [f"{topic}-{partition}-{offset}" for partition, offset in origins.places(messages)]


def _header(message: Message, place: Place) -> Any:
    text = next((_text(value) for name, value in message.headers() or () if name == place.value), None)
    if text is None or place.unit is None:
        return text
    try:
        found = datetime.fromisoformat(text) if place.unit == "iso" else int(text)
    except ValueError:
        return text  # whoever reads a time finds that it is none, and says so
    return text if isinstance(found, int) and abs(found) > _MOST else found


def _text(value: bytes | str | None) -> str | None:
    """Bytes as text; what is no UTF-8 shows as replacement signs, since keys and headers only name things."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def whole_units(values: Sequence[Any], unit: str, wanted: str, reason: str, bad: dict[int, Unreadable]) -> pa.Array:
    """Times in whole ``wanted`` units; ``unit`` is theirs, or ``iso`` for datetimes.

    What is finer than ``wanted`` is cut off downwards. But a number that counts in ``wanted`` itself must be whole: a
    fraction says that another unit was meant. A value that is no time, or beyond all time, becomes null with a note in
    ``bad``.

    >>> whole_units([1500, None, 2999], "ms", "s", "bad_timestamp", {}).to_pylist()
    [1, None, 2]
    """
    if unit == "iso":
        try:
            column = pa.array(values, pa.timestamp("us", "UTC")).cast(pa.int64())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            column = pa.array([_micros(v, r, reason, bad) for r, v in enumerate(values)], pa.int64())
        unit = "us"
    else:
        whole = _integers(values)
        if whole is None:
            return pa.array([_scaled(v, unit, wanted, r, reason, bad) for r, v in enumerate(values)], pa.int64())
        column = whole
    given, target = UNITS[unit], UNITS[wanted]
    if given == target:
        return column
    numbers = (column.fill_null(0) if column.null_count else column).to_numpy()
    if target > given:
        scaled = numbers // (target // given)
    else:
        factor = given // target
        beyond = np.abs(numbers) > _MOST // factor
        for row in np.flatnonzero(beyond).tolist():
            bad.setdefault(row, Unreadable(reason, f"time {numbers[row]} {unit} is beyond all time"))
        scaled = np.where(beyond, 0, numbers) * factor
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(scaled, pa.int64(), mask=nulls)


def _integers(values: Sequence[Any]) -> pa.Array | None:
    """The values as a column, if each is a whole number of 64 bits or none at all."""
    if not set(map(type, values)) <= {int, type(None)}:
        return None
    try:
        return pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return None


def _micros(value: Any, row: int, reason: str, bad: dict[int, Unreadable]) -> int | None:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if value is not None:
        bad.setdefault(row, Unreadable(reason, f"{value!r} is no ISO 8601 time"))
    return None


def _scaled(value: Any, unit: str, wanted: str, row: int, reason: str, bad: dict[int, Unreadable]) -> int | None:
    """One time that may have a fraction, or be none."""
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST:
        whole, part = divmod(value, 1)
        if part and unit == wanted:
            bad.setdefault(row, Unreadable(reason, f"{value!r} is no whole number of {unit}"))
            return None
        found = int(whole) * UNITS[unit] // UNITS[wanted] + int(part * UNITS[unit]) // UNITS[wanted]
        if abs(found) < _MOST:
            return found
    bad.setdefault(row, Unreadable(reason, f"{value!r} is no time in {unit}"))
    return None
