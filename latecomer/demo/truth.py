"""What is true: the matches of the demo's two queries in the complete, sorted year.

Written straight from the meaning of the queries, with sorted lists and bisection, and without any part of the
engine, so that the comparison means something. A match is the tuple of its flights' ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

#: Windows of the two queries, in minutes.
CASCADE_WINDOW, RECOVERY_WINDOW = 180, 120

Match = tuple[str, ...]


class Flights(NamedTuple):
    """Flights of one type, carrier and airport in order of schedule: times in minutes, and ids."""

    times: list[int]
    ids: list[str]


def matches(events: pa.Table) -> dict[str, set[Match]]:
    """The true matches of ``cascade`` and ``recovery`` among ``events`` (columns id, type, scheduled, carrier, "
    "origin)."""
    found: dict[str, set[Match]] = {"cascade": set(), "recovery": set()}
    for flights in _by_carrier_and_origin(events):
        late, on_time = flights["Late"], flights["OnTime"]
        found["cascade"].update(_cascades(late, on_time))
        found["recovery"].update(_recoveries(late, on_time))
    return found


def _cascades(late: Flights, on_time: Flights) -> Iterator[Match]:
    """SEQ(Late a, !OnTime, Late b, !OnTime, Late c) within 3 hours."""
    for a, start in enumerate(late.times):
        near = _scheduled(late, start, start + CASCADE_WINDOW)
        for b in near:
            if _none_between(on_time, start, late.times[b]):
                for c in near:
                    if late.times[c] > late.times[b] and _none_between(on_time, late.times[b], late.times[c]):
                        yield late.ids[a], late.ids[b], late.ids[c]


def _recoveries(late: Flights, on_time: Flights) -> Iterator[Match]:
    """SEQ(Late a, !Late, OnTime b) within 2 hours."""
    for a, start in enumerate(late.times):
        for b in _scheduled(on_time, start, start + RECOVERY_WINDOW):
            if _none_between(late, start, on_time.times[b]):
                yield late.ids[a], on_time.ids[b]


def _scheduled(flights: Flights, after: int, until: int) -> range:
    """Positions of the flights scheduled later than ``after`` and not later than ``until``."""
    return range(bisect_right(flights.times, after), bisect_right(flights.times, until))


def _none_between(flights: Flights, start: int, end: int) -> bool:
    """No flight is scheduled later than ``start`` and earlier than ``end``."""
    return bisect_right(flights.times, start) >= bisect_left(flights.times, end)


def _by_carrier_and_origin(events: pa.Table) -> Iterator[dict[str, Flights]]:
    """The flights of each type, for each carrier and airport."""
    groups: dict[tuple[str, str], dict[str, Flights]] = defaultdict(lambda: defaultdict(lambda: Flights([], [])))
    in_order = events.sort_by("scheduled")
    times = in_order["scheduled"].cast(pa.int64()).to_pylist()
    columns = (in_order[name].to_pylist() for name in ("carrier", "origin", "type", "id"))
    for time, carrier, origin, type_, id_ in zip(times, *columns, strict=True):
        flights = groups[carrier, origin][type_]
        flights.times.append(time // 60_000_000)
        flights.ids.append(id_)
    yield from groups.values()
