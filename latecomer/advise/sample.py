"""The sample: events in order of arrival, as the analysis wants them.

Rules:

* every row is used, set aside for a reason that is counted, or left out by thinning, which is said;
* thinning is by stretches of neighbouring rows, spread evenly over the file, and depends on the file alone: sequences,
  bursts and matches need neighbours, and two runs must say the same;
* an event stamped far ahead of its neighbours (``ahead``) is set aside as a guard would do it, for with it the clock
  jumps, and everything after it would look late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from latecomer.connectors.files import Chunk
from latecomer.disorder.measure import IntArray, encoded
from latecomer.errors import SchemaError
from latecomer.stream import Stream
from latecomer.units import UNITS

#: Rows that are read into memory at most; the rest of a larger file is thinned out.
MOST_ROWS = 1_000_000
#: Rows of a stretch: long against the neighbourhoods that matter, short enough to spread.
STRETCH = 8_192
#: So many stretches at the end are read without gaps.
TAIL = 16
#: Name of a column that marks their rows, for as long as the sample is made.
_TAIL = "latecomer_tail"
#: An event is compared with blocks of so many neighbours.
BLOCK = 64
#: An event further ahead of its neighbours than this many times the usual lead is no part of them.
UNUSUAL = 10

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was read: rows in the file's order, how many the file has and how many more could not be read, and how many
    rows at the end of ``table`` are neighbours in the file, with none between them left out.
    """

    table: pa.Table
    rows: int
    rejected: int
    tail: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Events in order of arrival.

    Attributes:
        name: what it is called in the report.
        stream: the columns' meaning.
        table: the events' columns, as a runtime takes them.
        unit: the unit of all times.
        ts: event times (n,).
        arrival: times of arrival (n,), or None where only their order is known.
        kinds, kind: the names of the types, and the index of each event's own (n,).
        sources, source: the same for the senders; None where none are named.
        copy: events whose id had arrived before (n,); all False without an id.
        clock: the largest time so far at each event (n,), that event included.
        rows: rows of the file, of which ``rejected`` and ``unplaced`` (no type, time, id or arrival) could not be used.
        thinned: whether rows of the file were left out; ``whole``: from which event on none was.
        ahead: times and senders of the events set aside because they were far ahead of their neighbours.
        limits: sentences on what cannot be told from this sample.
    """

    name: str
    stream: Stream
    table: pa.Table
    unit: str
    ts: IntArray
    arrival: IntArray | None
    kinds: Sequence[str]
    kind: IntArray
    sources: Sequence[str | None] | None
    source: IntArray | None
    copy: Bools
    clock: IntArray
    rows: int
    rejected: int
    unplaced: int
    thinned: bool
    whole: int
    ahead: Sequence[tuple[int, str | None, int]]
    limits: Sequence[str] = field(default=())

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def lateness(self) -> IntArray:
        """How far each event is behind the clock (n,)."""
        return self.clock - self.ts

    @property
    def came(self) -> IntArray:
        """When each event arrived: its time of arrival, or else the clock, which is all that the order tells (n,)."""
        return self.clock if self.arrival is None else self.arrival


def thin(chunks: Iterable[Chunk], most: int = MOST_ROWS) -> Kept:
    """Read at most about ``most`` rows, as stretches spread evenly over all; all of them where there are not more. The
    last stretches are read in any case, since a replay needs a part without gaps.

    Whenever too much is held, every second stretch is dropped and of what follows only every second one is taken.

    >>> chunks = [Chunk(pa.table({"n": [i] * STRETCH}), []) for i in range(40)]
    >>> thin(chunks, 10 * STRETCH).table["n"].unique().to_pylist()[:8]
    [0, 4, 8, 12, 16, 20, 24, 25]
    """
    kept: list[tuple[int, pa.Table]] = []
    last: deque[tuple[int, pa.Table]] = deque(maxlen=TAIL)
    step, rows, rejected = 1, 0, 0
    for number, chunk in enumerate(chunks):
        rows += chunk.table.num_rows
        rejected += len(chunk.rejects)
        last.append((number, chunk.table))
        if number % step == 0:
            kept.append((number, chunk.table))
        while sum(table.num_rows for _, table in kept) > most and len(kept) > 1:
            kept, step = kept[::2], step * 2
    if not last:
        return Kept(pa.table({}), 0, 0, 0)
    parts = [table for number, table in kept if number < last[0][0]] + [table for _, table in last]
    return Kept(pa.concat_tables(parts).combine_chunks(), rows, rejected, sum(table.num_rows for _, table in last))


def take(kept: Kept, stream: Stream, *, name: str, arrival: str | None = None) -> Sample:
    """The sample of what was read.

    Args:
        kept: rows in the file's order.
        stream: names type and time, and where there are such columns id and source.
        arrival: the column that says when each event arrived; None: they arrived in the file's order.

    Raises SchemaError where a column is missing or is no time, and where no row can be used.
    """
    table = kept.table
    if not kept.table.num_rows:
        raise SchemaError(f"{name} has no event that can be read: there is nothing to measure")
    for column in (stream.type, stream.ts, stream.id, stream.source, arrival):
        if column is not None and column not in table.column_names:
            raise SchemaError(f"{name} has no column {column!r}: it has {', '.join(map(repr, table.column_names))}")
    limits: list[str] = []
    unit = stream.unit_for(table.schema.field(stream.ts).type)
    given = table.num_rows
    table = table.append_column(_TAIL, pa.array(np.arange(given) >= given - kept.tail))
    for column in (stream.type, stream.ts, stream.id, arrival):
        if column is not None:
            table = table.filter(pc.is_valid(table[column]))
    unplaced = given - table.num_rows
    if not table.num_rows:
        raise SchemaError(f"{name} has no event with a type and a time: there is nothing to measure")
    ts = moments(table[stream.ts], unit, stream.ts)
    came = None
    thinned = given < kept.rows
    if arrival is not None:
        came = moments(table[arrival], unit, arrival)
        if (came[1:] < came[:-1]).any():
            order = np.argsort(came, kind="stable")
            table, ts, came = table.take(pa.array(order)), ts[order], came[order]
            if thinned:
                limits.append(
                    "The file is not in order of arrival and was thinned: neighbours in arrival may be missing, so "
                    "lateness is a little underestimated. Sort the file by arrival, or give a smaller one."
                )
    else:
        limits.append(
            "There is no column of arrival times, so the order of the rows is taken as the order of arrival: delays in "
            "wall-clock time, clock skew apart from delay, and pauses in arrival cannot be told; waits are told in "
            "event time."
        )
    if thinned:
        limits.append(
            f"The file has {kept.rows:,} rows; {given:,} of them were read, in stretches of {STRETCH:,} neighbours "
            "spread evenly over the file. Copies of events in stretches that were left out are not seen."
        )
    if stream.id is None:
        limits.append("Events have no ids, so copies cannot be told from new events.")
    if stream.source is None:
        limits.append("No column names the sources, so nothing can be told of single sources.")
    if arrival is not None:
        table = table.drop_columns([arrival])  # not the event's own: copies differ in it
    return _built(name, stream, table, unit, ts, came, kept, unplaced, thinned, tuple(limits))


def _built(
    name: str,
    stream: Stream,
    table: pa.Table,
    unit: str,
    ts: IntArray,
    came: IntArray | None,
    kept: Kept,
    unplaced: int,
    thinned: bool,
    limits: tuple[str, ...],
) -> Sample:
    jumps = far_ahead(ts)
    ahead: list[tuple[int, str | None, int]] = []
    if jumps.any():
        where = np.flatnonzero(jumps)
        behind = np.maximum.accumulate(np.where(jumps, np.iinfo(np.int64).min, ts))[where]
        who = table[stream.source].take(pa.array(where)).to_pylist() if stream.source else [None] * len(where)
        lead = np.where(behind == np.iinfo(np.int64).min, 0, ts[where] - behind)
        ahead = [(int(t), None if s is None else str(s), int(d)) for t, s, d in zip(ts[where], who, lead, strict=True)]
        table, ts = table.filter(pa.array(~jumps)), ts[~jumps]
        came = None if came is None else came[~jumps]
    whole = int(np.argmax(np.asarray(table[_TAIL]))) if thinned else 0
    table = table.drop_columns([_TAIL]).combine_chunks()
    kinds, kind = encoded(table[stream.type])
    sources, source = (None, None) if stream.source is None else encoded(table[stream.source])
    copy = np.zeros(len(ts), bool)
    if stream.id is not None:
        _, number = encoded(table[stream.id])
        copy[:] = True
        copy[np.unique(number, return_index=True)[1]] = False
    return Sample(
        name=name,
        stream=stream,
        table=table,
        unit=unit,
        ts=ts,
        arrival=came,
        kinds=[str(k) for k in kinds],
        kind=kind,
        sources=sources,
        source=source,
        copy=copy,
        clock=np.maximum.accumulate(ts),
        rows=kept.rows + kept.rejected,
        rejected=kept.rejected,
        unplaced=unplaced,
        thinned=thinned,
        whole=whole,
        ahead=ahead,
        limits=limits,
    )


def moments(column: pa.ChunkedArray, unit: str, name: str) -> IntArray:
    """Times as whole ``unit``: timestamps are converted (rounded down), whole numbers count in it already.

    Raises SchemaError for what is neither.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        value = np.asarray(column.cast(pa.int64()), np.int64)
        up, down = UNITS[kind.unit], UNITS[unit]
        common = gcd(up, down)
        return np.asarray(value * (up // common) // (down // common), np.int64)
    if pa.types.is_integer(kind):
        return np.asarray(column.cast(pa.int64()), np.int64)
    if pa.types.is_floating(kind):
        whole = np.asarray(column.cast(pa.float64()), np.float64)
        if np.isfinite(whole).all():
            return np.floor(whole).astype(np.int64)
    raise SchemaError(f"column {name!r} holds {kind}: whole numbers or timestamps are needed")


def far_ahead(ts: IntArray) -> Bools:
    """Which events are stamped so far ahead that they are no part of their neighbourhood (n,).

    The medians of blocks of neighbours say how far the stream as a whole has come; a single wrong stamp does not move
    them. An event's *lead* is its time minus the furthest median up to the next block. What leads by more than
    ``UNUSUAL`` times what 99 % of the events lead by at most is taken as stamped wrongly. One event in a hundred or
    more is no accident but a clock that is ahead, and counts.

    >>> bool(far_ahead(np.array([*range(300), 9_999, *range(300, 600)]))[300])
    True
    """
    n = len(ts)
    if n < 4 * BLOCK:
        return np.zeros(n, bool)
    blocks = n // BLOCK
    middle = np.median(ts[: blocks * BLOCK].reshape(blocks, BLOCK), axis=1)
    front = np.maximum.accumulate(middle)
    block = np.minimum(np.arange(n) // BLOCK + 1, blocks - 1)
    lead = ts - front[block]
    # Within its own block an event may lead by what a block spans; a stream with pauses has some that span much.
    span = np.maximum(front[block] - front[np.maximum(block - 2, 0)], 1)
    usual = max(float(np.quantile(np.abs(lead), 0.99)), 1.0)
    return np.asarray(lead > UNUSUAL * np.maximum(usual, span), bool)


def chunks_of(table: pa.Table) -> Iterator[Chunk]:
    """A table as stretches."""
    for start in range(0, table.num_rows, STRETCH):
        yield Chunk(table.slice(start, STRETCH), [])
