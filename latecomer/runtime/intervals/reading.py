"""Reading: the interval of each row of a batch, and the distribution over it, as columns.

Rules:

* an event's time, for all that is ordered by time, is the *lower* end of its interval; the upper end and the
  distribution travel as columns of their own (:data:`HIDDEN`), beside those of the user;
* intervals are cut to where their own weights are positive, so an event may really have happened at either end;
* a row whose interval or weights make no sense is malformed, and says why;
* a promise speaks of lower ends. One that was made about time stamps, or about upper ends, is put in terms of lower
  ones: as much earlier as an interval reaches back at most. That is the strongest promise that follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError
from latecomer.storage.columns import I64
from latecomer.stream import Stream
from latecomer.uncertainty import F64, Intervals

#: The columns of an event's interval besides its lower end. No column of a user's has such a name.
UPPER, SHAPE, WEIGHTS = "\0upper", "\0shape", "\0weights"
HIDDEN: dict[str, pa.DataType] = {UPPER: pa.int64(), SHAPE: pa.int64(), WEIGHTS: pa.binary()}

_WHOLE = 2.0**52  # sums of whole weights up to here are exact, and so are sums of two such
#: The shape of an event that brings its own weights.
OWN = -1

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class IntervalReader:
    """Reads the intervals of one stream, in its unit of time."""

    def __init__(self, stream: Stream, intervals: Intervals, unit: str) -> None:
        self._stream, self._unit, self.intervals = stream, unit, intervals

    @property
    def hidden(self) -> dict[str, pa.DataType]:
        """The hidden columns that say something: shapes where there are several, weights where events bring them."""
        own = self._stream.pmf is not None
        needed = (UPPER, *([SHAPE] if own or len(self.intervals.shapes) > 1 else []), *([WEIGHTS] if own else []))
        return {name: HIDDEN[name] for name in needed}

    def promised(self, ts: int, source: Any) -> int:
        """A promise about the time stamps of ``source`` (None: of all), as one about lower ends."""
        if source is None:
            return ts - self.intervals.shift
        kind = self.intervals.sources.index(source) + 1 if source in self.intervals.sources else 0
        return ts - int(self.intervals.before[kind])

    def read(
        self,
        columns: dict[str, pa.Array],
        ts: I64,
        upper: I64 | None,
        promises: Bools,
        bad: Bools,
        details: dict[int, str],
    ) -> I64:
        """Add the hidden columns and return the lower ends; for ``promises`` (rows of punctuation) their bounds.

        ``ts``: time stamps, or lower ends where ``upper`` holds the others. Rows that make no sense are marked in
        ``bad``.
        """
        kinds = self._kinds(columns, len(ts))
        if upper is None:
            lower, upper = ts - self.intervals.before[kinds], ts + self.intervals.after[kinds]
            if self._stream.source is not None:
                anybody = promises & columns[self._stream.source].is_null().to_numpy(zero_copy_only=False)
                lower = np.where(anybody, ts - self.intervals.shift, lower)
        else:
            lower = ts
            self._check(lower, upper, ~promises & ~bad, bad, details)
        upper = np.where(promises | bad, lower, upper)
        shape = np.where(upper > lower, self.intervals.shape[kinds], 0)
        weights = pa.nulls(len(ts), pa.binary())
        if self._stream.pmf is not None:
            column = columns[self._stream.pmf]
            given = column.is_valid().to_numpy(zero_copy_only=False) & ~promises & ~bad
            if given.any():
                lower, upper, shape, weights = self._weighed(column, given, lower, upper, shape, bad, details)
        columns[UPPER], columns[SHAPE], columns[WEIGHTS] = pa.array(upper), pa.array(shape), weights
        return np.where(bad, 0, lower)

    def _kinds(self, columns: Mapping[str, pa.Array], n: int) -> I64:
        """For each row the class of its source."""
        if not self.intervals.sources or self._stream.source is None:
            return np.zeros(n, np.int64)
        column = columns[self._stream.source]
        if pa.types.is_null(column.type):  # nobody has said who they are so far
            return np.zeros(n, np.int64)
        try:
            sources = pa.array(self.intervals.sources, column.type)
        except (pa.ArrowException, TypeError, ValueError):
            named = ", ".join(map(repr, self.intervals.sources))
            holds = f"{self._stream.source!r} holds {column.type}"
            raise ConfigError(
                f"uncertainty= or distribution= names the sources {named}, but {holds}: name them by values of its type"
            ) from None
        found: I64 = pc.index_in(column, value_set=sources, skip_nulls=True).fill_null(-1).to_numpy().astype(np.int64)
        return found + 1

    def _check(self, lower: I64, upper: I64, rows: Bools, bad: Bools, details: dict[int, str]) -> None:
        names, length = (self._stream.lower, self._stream.upper), upper - lower
        for row in np.flatnonzero(rows & (length < 0)).tolist():
            details[row] = f"{names[0]}={lower[row]} comes after {names[1]}={upper[row]}"
        for row in np.flatnonzero(rows & (length > self.intervals.longest)).tolist():
            allowed = f"Stream(longest={str(self._stream.longest)!r})"
            details[row] = f"{names[0]} to {names[1]} is {length[row]} {self._unit} long, more than {allowed} allows"
        bad |= rows & ((length < 0) | (length > self.intervals.longest))

    def _weighed(
        self, column: pa.Array, given: Bools, lower: I64, upper: I64, shape: I64, bad: Bools, details: dict[int, str]
    ) -> tuple[I64, I64, I64, pa.Array]:
        """Intervals cut to the events' own weights, shapes, and the weights."""
        starts, ends, values = _lists(column)
        name, units = self._stream.pmf, upper - lower + 1
        counts = ends - starts
        broken = _counted(~(np.isfinite(values) & (values >= 0)), starts, ends)
        positive = _counted(values > 0, starts, ends)
        problems = {
            "length": given & (counts != units),
            "broken": given & (counts == units) & (broken > 0),
            "empty": given & (counts == units) & (broken == 0) & (positive == 0),
        }
        for row in np.flatnonzero(problems["length"]).tolist():
            details[row] = f"{name} has {counts[row]} weights for an interval of {units[row]} {self._unit}"
        for row in np.flatnonzero(problems["broken"]).tolist():
            details[row] = f"{name} holds a weight that is negative or no number"
        for row in np.flatnonzero(problems["empty"]).tolist():
            details[row] = f"{name} holds no weight above 0"
        for wrong in problems.values():
            bad |= wrong
        rows = np.flatnonzero(given & ~bad)
        if not len(rows):
            return lower, upper, shape, pa.nulls(len(lower), pa.binary())
        some = np.flatnonzero(values > 0)
        first = some[some.searchsorted(starts[rows])]
        last = some[some.searchsorted(ends[rows]) - 1]
        lower, upper, shape = lower.copy(), upper.copy(), shape.copy()
        upper[rows] = lower[rows] + (last - starts[rows])
        lower[rows] += first - starts[rows]
        flat, begins = _stretches(values, first, last - first + 1)
        level = np.maximum.reduceat(flat, begins) == np.minimum.reduceat(flat, begins)
        shape[rows] = np.where(level, 0, OWN)
        rows, first, last = rows[~level], first[~level], last[~level]
        return lower, upper, shape, _packed(len(lower), rows, values, first, last - first + 1)


def _lists(column: pa.Array) -> tuple[I64, I64, F64]:
    """Of a column of lists where each begins and ends, and the values of all; null values are NaN."""
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.values.cast(pa.float64())
    return offsets[:-1], offsets[1:], values.fill_null(np.nan).to_numpy(zero_copy_only=False)


def _counted(mask: Bools, starts: I64, ends: I64) -> I64:
    """How many are marked from each start to its end."""
    sums = np.append(0, np.cumsum(mask))
    return np.asarray(sums[ends] - sums[starts])


def _stretches(values: F64, first: I64, counts: I64) -> tuple[F64, I64]:
    """Stretches of ``values``, one after another, and where each begins."""
    begins = np.cumsum(counts) - counts
    at = (first - begins).repeat(counts) + np.arange(int(counts.sum()))
    return values[at], begins


def _packed(n: int, rows: I64, values: F64, first: I64, counts: I64) -> pa.Array:
    """For ``rows`` of ``n`` their weights as bytes of float64 numbers: whole ones as they are, others with sum 1."""
    if not len(rows):
        return pa.nulls(n, pa.binary())
    flat, begins = _stretches(values, first, counts)
    largest = np.maximum.reduceat(flat, begins)  # first by that: no sum of large weights is infinite
    broken = (np.maximum.reduceat(flat != np.rint(flat), begins) > 0) | (largest * counts > _WHOLE)
    flat = flat / np.where(broken, largest, 1.0).repeat(counts)
    flat = flat / np.where(broken, np.add.reduceat(flat, begins), 1.0).repeat(counts)
    lengths = np.zeros(n + 1, np.int64)
    lengths[rows + 1] = 8 * counts
    offsets = np.cumsum(lengths).astype(np.int32)
    valid = np.zeros(n, bool)
    valid[rows] = True
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), n, [bits, pa.py_buffer(offsets), pa.py_buffer(flat)])


def unpacked(column: pa.Array) -> list[F64 | None]:
    """The weights of each event, None where it has no own ones."""
    return [None if data is None else np.frombuffer(data, np.float64) for data in column.to_pylist()]
