"""A known schedule: a finite set of expected events, each of which arrives or is cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import I64
from latecomer.consistency.generators.base import Generator, Promises, Setting, generator
from latecomer.consistency.generators.marks import rows_of, scaled
from latecomer.consistency.punctuation import ANY
from latecomer.errors import ConfigError
from latecomer.units import canonical_unit

#: How many expected events are looked at together when the frontier moves.
_BLOCK = 4096


@generator
@dataclass(frozen=True, init=False)
class Schedule(Generator):
    """What is expected is known beforehand: nothing can follow below the earliest event that is still outstanding.

    An arriving event takes the entry with its id off the list, else (only entries without id) an entry of its type and
    time, else one of its time that names no type. Events that are on no list are not waited for.

    Args:
        ts: times of the expected events (n,): whole numbers, datetimes, or an Arrow array.
        types: their types, None where that is not known beforehand; leave it out when none is.
        ids: their ids, None where there is none. Entries that share type and time should have ids if events may arrive
            twice.
        unit: the unit of whole numbers; None: the stream's.
        key: column with the id that the schedule knows; None: the stream's own id column.
        cancelled: type of the rows which say that the entry with their id will not come.
        speaks_of: types for which the schedule is complete; None: those that it names, or all when an entry names none.
        complete_to: the schedule lists everything up to this time; None: up to its last entry.

    >>> Schedule([100, 200, 300], ids=["LH1", "LH2", "LH3"], cancelled="Cancelled").complete_to
    300
    """

    ts: tuple[int, ...]
    types: tuple[str | None, ...] | None
    ids: tuple[Any, ...] | None
    unit: str | None
    key: str | None
    cancelled: str | None
    speaks_of: tuple[str, ...] | None
    complete_to: int

    def __init__(
        self,
        ts: Iterable[Any],
        types: Iterable[str | None] | None = None,
        ids: Iterable[Any] | None = None,
        *,
        unit: str | None = None,
        key: str | None = None,
        cancelled: str | None = None,
        speaks_of: Iterable[str] | None = None,
        complete_to: Any = None,
    ) -> None:
        times, found_unit = _read_times(ts)
        unit = found_unit if unit is None else canonical_unit(unit)
        named = None if types is None else tuple(_plain_list(types))
        known = None if ids is None else tuple(_plain_list(ids))
        for name, values in (("types", named), ("ids", known)):
            if values is not None and len(values) != len(times):
                raise ConfigError(f"Schedule has {len(times)} times and {len(values)} {name}: give one for each time")
        some = [i for i in known or () if i is not None]
        if len(set(some)) < len(some):
            twice = Counter(some).most_common(1)[0][0]
            raise ConfigError(f"Schedule has the id {twice!r} twice: each expected event needs its own")
        if complete_to is None:
            if not times:
                raise ConfigError("a Schedule without events needs complete_to=: up to which time is nothing expected?")
            complete_to = max(times)
        elif isinstance(complete_to, datetime):
            (complete_to,), end_unit = _read_times([complete_to])
            if end_unit != unit:
                raise ConfigError("complete_to is a datetime, but the times of the Schedule are not: give both alike")
        elif isinstance(complete_to, bool) or not isinstance(complete_to, int):
            raise ConfigError(f"complete_to={complete_to!r}: give a whole number or a datetime, like the times")
        object.__setattr__(self, "ts", times)
        object.__setattr__(self, "types", named)
        object.__setattr__(self, "ids", known)
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "cancelled", cancelled)
        object.__setattr__(self, "speaks_of", None if speaks_of is None else tuple(speaks_of))
        object.__setattr__(self, "complete_to", complete_to)

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.key is None else (self.key,)

    def start(self, setting: Setting) -> ScheduleLogic:
        key = self.key if self.key is not None else setting.stream.id
        if key is None and (self.cancelled is not None or any(i is not None for i in self.ids or ())):
            raise ConfigError("Schedule has ids, but the stream has no id column: Stream(id='…'), or Schedule(key='…')")
        return ScheduleLogic(self, key, setting)


class ScheduleLogic:
    """Which entries are done; the frontier of each type is the first one, in order of time, that is not."""

    def __init__(self, config: Schedule, key: str | None, setting: Setting) -> None:
        self._type_column, self._key, self._cancelled = setting.stream.type, key, config.cancelled
        ts = scaled(np.array([*config.ts, config.complete_to], np.int64), config.unit or setting.unit, setting.unit)
        self._ts, self._end = ts[:-1], int(ts[-1])
        names = config.types or (None,) * len(self._ts)
        self._by_id = {i: entry for entry, i in enumerate(config.ids or ()) if i is not None}
        with_id = set(self._by_id.values())
        self._by_time: dict[tuple[str | None, int], list[int]] = {}
        for entry, (name, time) in enumerate(zip(names, self._ts.tolist(), strict=True)):
            if entry not in with_id:
                self._by_time.setdefault((name, time), []).append(entry)
        self._done = np.zeros(len(self._ts), bool)
        self._lists = [
            _List(number, self._ts, np.array([e for e, name in enumerate(names) if name in (None, of)], np.int64))
            for of, number in _spoken_of(config, names, setting)
        ]

    def observe(self, arrivals: Arrivals) -> Promises:
        when = {}  # entry -> the arrival that took it off
        for position, entry in self._found(arrivals):
            if entry not in when and not self._done[entry]:
                when[entry] = position
        entries = np.array(list(when), np.int64)
        self._done[entries] = True
        positions = np.full(len(self._ts), -1) if len(when) else np.zeros(0, np.int64)
        positions[entries] = list(when.values())
        return Promises.join(self._promise(one, positions) for one in self._lists)

    def _found(self, arrivals: Arrivals) -> Iterator[tuple[int, int]]:
        """The arrivals that take an entry off, and the entry."""
        if not len(arrivals):
            return
        gone: set[int] = set()
        if self._cancelled is not None:
            gone = set(rows_of(arrivals, self._type_column, self._cancelled).tolist())
        ids = (
            arrivals.column(self._key).to_pylist() if self._by_id and self._key is not None else [None] * len(arrivals)
        )
        names = arrivals.column(self._type_column).to_pylist() if self._by_time else [None] * len(arrivals)
        for position, (i, name, time) in enumerate(zip(ids, names, arrivals.ts.tolist(), strict=True)):
            entry = self._by_id.get(i)
            if entry is not None:
                yield position, entry
            elif position not in gone:
                for place in ((name, time), (None, time)):
                    open_entries = self._by_time.get(place)
                    if open_entries:
                        yield position, open_entries.pop(0)
                        break

    def _promise(self, one: _List, positions: I64) -> Promises:
        """Move one frontier over all that is done; ``positions`` says when each entry was, -1 for before."""
        moved, ts = [np.array([-1])], [np.array([self._bound(one, one.frontier)])]
        last = -1
        while one.frontier < len(one.entries):
            block = one.entries[one.frontier : one.frontier + _BLOCK]
            done = self._done[block]
            count = len(block) if done.all() else int(done.argmin())
            if count:
                passed = np.maximum.accumulate(positions[block[:count]] if len(positions) else np.full(count, -1))
                passed = np.maximum(passed, last)
                last = int(passed[-1])
                following = one.ts[one.frontier + 1 : one.frontier + count + 1] - 1
                ts.append(np.append(following, self._end)[:count])
                moved.append(passed)
            one.frontier += count
            if count < len(block):
                break
        return Promises.of(np.concatenate(moved), np.concatenate(ts), type=one.type)

    def _bound(self, one: _List, frontier: int) -> int:
        return int(one.ts[frontier]) - 1 if frontier < len(one.ts) else self._end

    def dump(self) -> dict[str, Any]:
        return {"done": np.flatnonzero(self._done)}

    def load(self, state: dict[str, Any]) -> None:
        self._done[:] = False
        self._done[state["done"]] = True
        for place, entries in self._by_time.items():
            self._by_time[place] = [entry for entry in entries if not self._done[entry]]
        for one in self._lists:
            one.frontier = 0


class _List:
    """The expected events that hold the promise of one type, in order of time."""

    def __init__(self, type: int, ts: I64, entries: I64) -> None:
        self.type = type
        self.entries = entries[ts[entries].argsort(kind="stable")]
        self.ts = ts[self.entries]
        self.frontier = 0


def _spoken_of(config: Schedule, names: Sequence[str | None], setting: Setting) -> Iterator[tuple[str | None, int]]:
    """The types that the schedule promises something of, and their numbers."""
    spoken = config.speaks_of
    if spoken is None and (config.types is None or set(names) == {None}):
        yield None, ANY
        return
    if spoken is None:
        spoken = tuple(setting.types) if None in names else tuple(dict.fromkeys(n for n in names if n is not None))
    for name in spoken:
        number = setting.number(name)
        if number is not None:
            yield name, number


def _plain_list(values: Iterable[Any]) -> list[Any]:
    return values.to_pylist() if isinstance(values, (pa.Array, pa.ChunkedArray)) else list(values)


def _read_times(values: Iterable[Any]) -> tuple[tuple[int, ...], str | None]:
    """Whole numbers, and their unit when they are timestamps."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        array = values if isinstance(values, pa.Array) else pa.array(list(values))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"the times of a Schedule must be whole numbers or datetimes: {error}") from None
    if array.null_count:
        raise ConfigError("an expected event of the Schedule has no time: give each one")
    kind = array.type
    if pa.types.is_timestamp(kind):
        return tuple(array.view(pa.int64()).to_pylist()), str(kind.unit)
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return tuple(array.to_pylist()), None
    raise ConfigError(f"the times of a Schedule are {kind}: give whole numbers or datetimes")
