"""The demo of ``latecomer serve``: a year of flights as a live stream, and one query at three levels side by side.

The stream is that of ``latecomer demo`` (:mod:`latecomer.demo.flights`): event time is the schedule, a flight arrives
when it leaves, and airports are the sources. The query finds delays that did not spread: a flight left an hour late or
more, and the next one of the same carrier from the same airport left on time. Whatever was scheduled between the two
and leaves late itself makes the answer wrong, and is known late: so answers are taken back.

It starts on a day full of delays, with the hours before given at once, so that there is something to see. Nights, in
which nothing leaves, are cut short.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.demo.flights import STREAM, arrivals, read
from latecomer.errors import ConfigError
from latecomer.query.query import Query
from latecomer.stream import Stream

TEXT = """
    PATTERN SEQ(Late a, !Late x, !Delayed y, !OnTime z, OnTime b)
    WHERE   [carrier, origin]
    WITHIN  2 hours
    RETURN  a.carrier AS carrier, a.origin AS airport, a.dep_delay AS minutes_late
    """
LEVELS = (KSlack("3 hours"), Conservative(), Aggressive(max_delay="22 hours"))

#: Where the replay starts (UTC), and how many minutes before it are given at once.
START, BEFORE = "2013-03-19 15:00", 9 * 60
#: Minutes without an event after which the replay goes on at once.
NIGHT = 10
#: Seconds between two batches.
BEAT = 0.1


def setting() -> tuple[Stream, list[Query]]:
    """The stream, with airports as sources, and the query at each level."""
    stream = replace(STREAM, source="origin")
    return stream, [Query(TEXT, name=f"recovered-{type(level).__name__.lower()}", level=level) for level in LEVELS]


def reel(*, speed: float = 600.0, start: str | None = None) -> Iterator[tuple[pa.Table, float]]:
    """The year, ``speed`` times as fast as it happened: see :func:`beats`.

    ``start``: where in the year to begin, like ``2013-03-08 12:00`` (UTC). Raises at once, not at the first batch:
    ConfigError for values that make no sense, MissingDependency where the data are not installed.
    """
    if not 0 < speed < float("inf"):
        raise ConfigError(f"speed={speed!r}: a number above 0 is needed, like 600 for ten minutes in a second")
    begin = minute_of(start or START)
    return beats(named(arrivals(read())), begin, speed * BEAT / 60)


def play(film: Iterator[tuple[pa.Table, float]], submit: Callable[[pa.Table], object], stop: threading.Event) -> None:
    """Give ``submit`` batch by batch, each at its time; returns at the end, or soon after ``stop`` is set."""
    for batch, pause in film:
        if stop.wait(pause):
            return
        submit(batch)


def named(stream: pa.Table) -> pa.Table:
    """The stream with short ids whose time is UTC like all times of the page: ``EV4681 EWR 19 Mar 17:10``."""
    when = pc.strftime(stream["scheduled"], "%d %b %H:%M")
    flight = pc.binary_join_element_wise(stream["carrier"], pc.cast(stream["flight"], pa.string()), "")
    return stream.set_column(0, "id", pc.binary_join_element_wise(flight, stream["origin"], when, " "))


def minute_of(text: str) -> int:
    """Minutes since 1970 of a date and time, UTC.

    >>> minute_of("1970-01-02"), minute_of("1970-01-01 12:30")
    (1440, 750)
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"start={text!r}: a date is needed, like '2013-03-08' or '2013-03-08 12:00' (UTC)") from None
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()) // 60


def beats(stream: pa.Table, begin: int, step: float) -> Iterator[tuple[pa.Table, float]]:
    """Batches, and the seconds to wait before each: first each minute from :data:`BEFORE` minutes before ``begin``
    without waiting, then ``step`` minutes (fractions add up) per beat.

    Batches are never of more than a minute, or a step where that is longer, so that levels that correct themselves are
    seen doing it.
    """
    arrived = np.asarray(stream["arrived"].to_numpy())
    first, last = int(arrived[0]), int(arrived[-1])
    if not first <= begin <= last:
        raise ConfigError(f"start: the flights are between {_told(first)} and {_told(last)}")
    return _beats(stream, arrived, begin, step)


def _beats(
    stream: pa.Table, arrived: npt.NDArray[np.int64], begin: int, step: float
) -> Iterator[tuple[pa.Table, float]]:
    minutes = np.unique(arrived[arrived >= begin - BEFORE])
    row = int(np.searchsorted(arrived, begin - BEFORE))
    reached, behind = float(begin), 0.0
    for minute in minutes.tolist():
        end = int(np.searchsorted(arrived, minute, side="right"))
        if minute > begin:
            behind += min(minute - reached, NIGHT) / step * BEAT
            reached = minute
        if behind >= BEAT or minute <= begin:
            yield stream.slice(row, end - row), behind
            row, behind = end, 0.0
    if row < stream.num_rows:
        yield stream.slice(row), behind


def _told(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%d %H:%M")
