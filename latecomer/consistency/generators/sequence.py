"""Sequence numbers without gaps: a source numbers what it sends, so the receiver sees what is still on its way."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import BEGINNING, I64
from latecomer.consistency.generators.base import Generator, Promises, Setting, generator
from latecomer.errors import ConfigError, SchemaError, options
from latecomer.units import Duration, DurationLike


@generator
@dataclass(frozen=True, init=False)
class SequenceNumbers(Generator):
    """Every source numbers its events one after another, in order of their times, whatever their types.

    When all numbers up to ``m`` have arrived, and ``m`` has the time ``ts``, nothing of that source at or below
    ``ts - 1`` can follow. A gap holds the promise until it is filled. Numbers that were counted before say nothing, and
    rows without a number are not waited for.

    Args:
        column: the column with the numbers, whole numbers.
        first: the first number of each source; None: whichever arrives first, and nothing lower is waited for.
        strict: a source never sends two events with equal times, so ``ts`` itself is closed too.
        timeout: give a gap up after so long: what is missing counts as lost, and is late if it comes after all.
            None: wait for ever.
        by: whether the timeout counts by the stream's ``"clock"`` or by the wall clock, ``"now"``.

    >>> SequenceNumbers("seq", timeout="10 min").columns
    ('seq',)
    """

    column: str
    first: int | None
    strict: bool
    timeout: Duration | None
    by: Literal["clock", "now"]

    def __init__(
        self,
        column: str,
        *,
        first: int | None = 0,
        strict: bool = False,
        timeout: DurationLike | None = None,
        by: Literal["clock", "now"] = "clock",
    ) -> None:
        if not isinstance(column, str) or not column:
            raise ConfigError(f"SequenceNumbers(column={column!r}): the name of the column with the numbers is needed")
        if by not in ("clock", "now"):
            raise ConfigError(f"SequenceNumbers(by={by!r}): allowed are {options(['clock', 'now'])}")
        object.__setattr__(self, "column", column)
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "strict", strict)
        object.__setattr__(self, "timeout", None if timeout is None else Duration.of(timeout))
        object.__setattr__(self, "by", by)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def start(self, setting: Setting) -> SequenceLogic:
        timeout = None if self.timeout is None else self.timeout.units(setting.unit)
        return SequenceLogic(self.column, self.first, 0 if self.strict else 1, timeout, self.by == "now")


class SequenceLogic:
    """Per source the next number, and the runs of numbers that wait beyond gaps.

    A source that sends in order costs no loop over its events; only those around gaps are looked at one by one.
    """

    def __init__(self, column: str, first: int | None, back: int, timeout: int | None, by_now: bool) -> None:
        self._column, self._first, self._back = column, first, back
        self._timeout, self._by_now = timeout, by_now
        self._next: dict[int, int] = {}
        self._waiting: dict[int, Runs] = {}
        self._now: int | None = None

    def observe(self, arrivals: Arrivals) -> Promises:
        said = _Said()
        if self._by_now and arrivals.now is not None and arrivals.now != self._now:
            self._hear(arrivals.now, said)
        rows, numbers = self._numbers(arrivals)
        order = arrivals.sources[rows].argsort(kind="stable")
        rows, numbers = rows[order], numbers[order]
        smooth, rough = self._smooth(arrivals.sources[rows], numbers)
        for source, own in rough:
            self._walk(source, rows[own], numbers[own], arrivals, said)
        for source in self._waiting.keys() - {source for source, _ in rough}:
            self._give_up(source, 0, len(arrivals), arrivals, said)
        rows = rows[smooth]
        in_turn = Promises.of(rows, arrivals.ts[rows] - self._back, source=arrivals.sources[rows])
        return Promises.join((in_turn, said.promises(self._back)))

    def _smooth(self, sources: I64, numbers: I64) -> tuple[npt.NDArray[np.bool_], list[tuple[int, slice]]]:
        """Count the numbers of sources that go on without a gap, and mark their rows; the other sources and their rows.
        The rows come by source.
        """
        if not len(sources):
            return np.zeros(0, bool), []
        starts = np.flatnonzero(np.append(True, sources[1:] != sources[:-1]))
        lengths = np.diff(np.append(starts, len(sources)))
        names = sources[starts].tolist()
        for source, number in zip(names, numbers[starts].tolist(), strict=True):
            if source not in self._next:
                self._next[source] = number if self._first is None else self._first
        expected = np.repeat([self._next[source] for source in names], lengths)
        fits = numbers == expected + np.arange(len(numbers)) - np.repeat(starts, lengths)
        smooth = np.logical_and.reduceat(fits, starts) & [source not in self._waiting for source in names]
        rough = []
        for source, start, length, good in zip(names, starts.tolist(), lengths.tolist(), smooth.tolist(), strict=True):
            if good:
                self._next[source] += length
            else:
                rough.append((source, slice(start, start + length)))
        return np.repeat(smooth, lengths), rough

    def _numbers(self, arrivals: Arrivals) -> tuple[I64, I64]:
        """The rows that have a number, and their numbers."""
        if not len(arrivals):
            none = np.zeros(0, np.int64)
            return none, none
        column = arrivals.column(self._column)
        if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
            raise SchemaError(f"column {self._column!r} holds {column.type}: sequence numbers must be whole numbers")
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        return rows, column.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)

    def _walk(self, source: int, rows: I64, numbers: I64, arrivals: Arrivals, said: _Said) -> None:
        """One event after another, around gaps."""
        ts, clock = arrivals.ts[rows].tolist(), arrivals.clock[rows].tolist()
        before = 0
        for row, number, time, at in zip(rows.tolist(), numbers.tolist(), ts, clock, strict=True):
            self._give_up(source, before, row, arrivals, said)
            before = row
            runs = self._waiting.get(source)
            if number > self._next[source]:
                if runs is None:
                    runs = self._waiting[source] = Runs()
                runs.add(number, time, None if self._by_now else at)
            elif number == self._next[source]:
                self._next[source] += 1
                said.add(row, source, time)
                if runs is not None and runs.starts[0] == number + 1:
                    self._absorb(source, row, said)
        self._give_up(source, before, len(arrivals), arrivals, said)

    def _absorb(self, source: int, position: int, said: _Said) -> None:
        """Count the first waiting run; the gap before it is filled, or given up."""
        runs = self._waiting[source]
        self._next[source], bound = runs.pop()
        said.add(position, source, bound)
        if not runs.starts:
            del self._waiting[source]

    def _give_up(self, source: int, begin: int, end: int, arrivals: Arrivals, said: _Said) -> None:
        """Skip the gaps of a source whose time runs out, by the stream's clock, at one of the arrivals begin … end - 1.

        Behind the last arrival the clock may also have been moved from elsewhere.
        """
        if self._timeout is None or self._by_now:
            return
        while source in self._waiting:
            deadline = self._waiting[source].since() + self._timeout
            position = begin + int(arrivals.clock[begin:end].searchsorted(deadline))
            if position >= end:
                if end < len(arrivals) or arrivals.reached < deadline:
                    return
                position = len(arrivals) - 1
            self._absorb(source, position, said)
            begin = position

    def _hear(self, now: int, said: _Said) -> None:
        """Wait by the wall clock: a run counts from the first ``now`` after it came, so that no wait is too short."""
        self._now = now
        for source in list(self._waiting):
            self._waiting[source].stamp(now)
            while (
                self._timeout is not None
                and source in self._waiting
                and self._waiting[source].since() + self._timeout <= now
            ):
                self._absorb(source, -1, said)

    def dump(self) -> dict[str, Any]:
        return {
            "next": list(self._next.items()),
            "waiting": [(source, runs.dump()) for source, runs in self._waiting.items()],
            "now": self._now,
        }

    def load(self, state: dict[str, Any]) -> None:
        self._next = dict(state["next"])
        self._waiting = {source: Runs(*map(list, runs)) for source, runs in state["waiting"]}
        self._now = state["now"]


class _Said:
    """Promises collected one by one."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def add(self, position: int, source: int, ts: int) -> None:
        self._rows.append((position, source, ts))

    def promises(self, back: int) -> Promises:
        if not self._rows:
            return Promises.none()
        position, source, ts = np.array(self._rows, np.int64).T
        return Promises.of(position, ts - back, source=source)


class Runs:
    """Numbers that came before their turn, as runs ``starts[i] … ends[i] - 1`` that do not touch, in order.

    Each run has the largest of its times and the clock at its first arrival (None: not stamped yet).
    """

    def __init__(
        self,
        starts: list[int] | None = None,
        ends: list[int] | None = None,
        bounds: list[int] | None = None,
        stamps: list[int | None] | None = None,
    ) -> None:
        self.starts, self._ends, self._bounds, self._stamps = starts or [], ends or [], bounds or [], stamps or []

    def add(self, number: int, ts: int, stamp: int | None) -> None:
        """Take in a number; one that is there already changes nothing."""
        at = bisect_right(self.starts, number)
        if at and number < self._ends[at - 1]:
            return
        self.starts.insert(at, number)
        self._ends.insert(at, number + 1)
        self._bounds.insert(at, ts)
        self._stamps.insert(at, stamp)
        if at + 1 < len(self.starts) and self.starts[at + 1] == number + 1:
            self._merge(at)
        if at and self._ends[at - 1] == number:
            self._merge(at - 1)

    def _merge(self, at: int) -> None:
        """Make one run of two neighbours."""
        self._ends[at] = self._ends.pop(at + 1)
        del self.starts[at + 1]
        self._bounds[at] = max(self._bounds[at], self._bounds.pop(at + 1))
        stamps = [stamp for stamp in (self._stamps[at], self._stamps.pop(at + 1)) if stamp is not None]
        self._stamps[at] = min(stamps, default=None)

    def pop(self) -> tuple[int, int]:
        """Take the first run out: the number after it, and the largest of its times."""
        del self.starts[0], self._stamps[0]
        return self._ends.pop(0), self._bounds.pop(0)

    def since(self) -> int:
        """When the first gap was noticed: when the earliest of the runs began to wait."""
        return min((stamp for stamp in self._stamps if stamp is not None), default=-BEGINNING)

    def stamp(self, now: int) -> None:
        self._stamps = [now if stamp is None else stamp for stamp in self._stamps]

    def dump(self) -> list[list[Any]]:
        return [self.starts, self._ends, self._bounds, self._stamps]

    def _check(self) -> None:
        """The invariants: runs in order, none empty, none touching the next."""
        assert len(self.starts) == len(self._ends) == len(self._bounds) == len(self._stamps), self.dump()
        assert all(a < b for a, b in zip(self.starts, self._ends, strict=True)), self.dump()
        assert all(b < a for b, a in zip(self._ends, self.starts[1:], strict=False)), self.dump()
