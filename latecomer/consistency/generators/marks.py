"""Promises that travel as events: heartbeats, and the end of a source's input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import END, FAR, I64
from latecomer.consistency.generators.base import Generator, Promises, Setting, Stateless, generator
from latecomer.errors import ConfigError, SchemaError
from latecomer.units import UNITS


@generator
@dataclass(frozen=True)
class Heartbeats(Generator):
    """Events of one type say: all that my source had to send up to this time has been sent.

    Where the stream names no sources, a heartbeat speaks for the whole stream. Like every event it moves the clock.

    Args:
        type: the event type of heartbeats.
        time: column with the time up to which all has been sent, a time or a whole number of the stream's units; rows
            where it is null say nothing. Without one, the heartbeat's own event time.

    >>> Heartbeats("Alive", time="complete_to").columns
    ('complete_to',)
    """

    type: str
    time: str | None = None

    def __post_init__(self) -> None:
        _check_type(self.type, "Heartbeats")

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.time is None else (self.time,)

    def start(self, setting: Setting) -> MarkLogic:
        return MarkLogic(setting, self.type, self.time, None)


@generator
@dataclass(frozen=True)
class EndOfInput(Generator):
    """Events of one type say that their source has ended: it sends nothing any more and holds nothing back.

    Where the stream names no sources, the whole stream has ended. The end of all input needs no event: it is
    ``runtime.finish()``.

    >>> EndOfInput("Closed")
    EndOfInput(type='Closed')
    """

    type: str

    def __post_init__(self) -> None:
        _check_type(self.type, "EndOfInput")

    def start(self, setting: Setting) -> MarkLogic:
        return MarkLogic(setting, self.type, None, END)


class MarkLogic(Stateless):
    """Finds the rows that are marks and repeats what they say."""

    def __init__(self, setting: Setting, type: str, time: str | None, always: int | None) -> None:
        self._column, self._unit = setting.stream.type, setting.unit
        self._type, self._time, self._always = type, time, always

    def observe(self, arrivals: Arrivals) -> Promises:
        if not len(arrivals):
            return Promises.none()
        rows = rows_of(arrivals, self._column, self._type)
        if self._always is not None:
            return Promises.of(rows, np.full(len(rows), self._always), source=arrivals.sources[rows])
        if self._time is None or not len(rows):
            return Promises.of(rows, arrivals.ts[rows], source=arrivals.sources[rows])
        said = arrivals.column(self._time).take(pa.array(rows))
        rows = rows[said.is_valid().to_numpy(zero_copy_only=False)]
        ts = times_of(said.drop_null(), self._unit, self._time)
        return Promises.of(rows, ts, source=arrivals.sources[rows])


def rows_of(arrivals: Arrivals, column: str, type: str) -> I64:
    """The positions of the events of one type, whether or not a query asks for it."""
    return np.flatnonzero(pc.equal(arrivals.column(column), type).fill_null(False).to_numpy(zero_copy_only=False))


def times_of(values: pa.Array, unit: str, name: str) -> I64:
    """The times of a column without nulls, in the stream's units; raises SchemaError for a column of anything else."""
    kind = values.type
    given = unit
    if pa.types.is_timestamp(kind):
        given = kind.unit
        values = values.view(pa.int64())
    elif pa.types.is_date(kind):
        given = "s"
        values = values.cast(pa.timestamp("s")).view(pa.int64())
    elif not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise SchemaError(f"column {name!r} holds {kind}: times must be whole numbers or Arrow timestamps")
    if pa.types.is_uint64(kind):
        values = pc.min_element_wise(values, pa.scalar(FAR, pa.uint64()))
    numbers: I64 = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return scaled(numbers, given, unit)


def scaled(numbers: I64, given: str, unit: str) -> I64:
    """Times from one unit to another, rounded down, cut off at the ends of all time."""
    if UNITS[given] > UNITS[unit]:
        factor = UNITS[given] // UNITS[unit]
        return np.clip(numbers, -(FAR // factor), FAR // factor) * factor
    return np.clip(numbers // (UNITS[unit] // UNITS[given]), -FAR, FAR)


def _check_type(type: str, name: str) -> None:
    if not isinstance(type, str) or not type:
        raise ConfigError(f"{name}(type={type!r}): the name of an event type is needed, like {name}('Alive')")
