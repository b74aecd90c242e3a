"""The timekeeper: what is known about time at each row of a batch: whose row it is, how far the clock had come, what
was promised.

It applies the guards (design §3): an event beyond ``now + max_ahead`` counts for nothing and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.clock import BEGINNING, FAR, Clock, QuorumClock, SourceClock, StreamClock
from latecomer.consistency.lateness import LatenessWindow
from latecomer.consistency.policy import whole_units
from latecomer.consistency.punctuation import ANY, Bounds, History, Punctuation
from latecomer.consistency.slack import Arrivals
from latecomer.runtime.batches import AHEAD, OTHER, PUNCTUATION, Batch
from latecomer.storage.columns import I64
from latecomer.stream import Stream
from latecomer.units import Duration


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known at each row: ``clock`` and ``sources`` have one entry per row of the batch (meaningless where the
    row is no event); ``ahead`` are the rows beyond the guard, by how much they were in ``ahead_by``.
    """

    events: I64
    clock: I64
    sources: I64
    history: History
    ahead: I64
    ahead_by: I64


class Timekeeper:
    """Clock, promises and sources of one stream whose queries ask for ``types``.

    ``by_source``: whether anything depends on who sent an event.
    """

    def __init__(self, stream: Stream, types: Sequence[str], unit: str, by_source: bool) -> None:
        self._stream, self._types = stream, types
        self._by_source = by_source and stream.source is not None
        declared = tuple(stream.sources or ())
        idle = None if stream.idle_timeout is None else whole_units(Duration.of(stream.idle_timeout), unit)
        self._max_ahead = None if stream.max_ahead is None else whole_units(Duration.of(stream.max_ahead), unit)
        self.clock: Clock = StreamClock(idle)
        if stream.clock == "source":
            self.clock = SourceClock(len(declared), idle)
        elif stream.quorum > 1:
            self.clock = QuorumClock(stream.quorum, len(declared), idle)
        self.bounds = Bounds(len(types))
        self.numbers: dict[Any, int] = {s: i for i, s in enumerate(declared)}
        self.now = BEGINNING
        self.lateness = LatenessWindow(block=16_384, blocks=4)  # for explain only, so not part of a snapshot

    @property
    def sources(self) -> list[Any]:
        """The names of the known sources, in the order of their numbers."""
        return list(self.numbers)

    def read(self, batch: Batch, clocks: I64 | None) -> Moments:
        """Move through a batch. Rows that are ahead lose their type."""
        n = len(batch)
        ahead, ahead_by = self._guard(batch)
        is_event = batch.types >= OTHER
        events = np.flatnonzero(is_event)
        sources, known = self._source_numbers(batch, is_event)
        at_events = self._observe(batch.ts[events], sources[events], clocks, events)
        history = self._promise(batch, sources, known)
        clock = at_events
        if len(events) < n:
            clock = np.zeros(n, np.int64)
            clock[events] = at_events
        own = sources[events] if self._by_source else np.zeros(len(events), np.int64)
        self.lateness.add_all(own, at_events - batch.ts[events])
        return Moments(events, clock, sources, history, ahead, ahead_by)

    def arrivals(self, batch: Batch, moments: Moments) -> Arrivals:
        """The batch's events as levels see them."""
        rows = moments.events
        if len(rows) == len(batch):
            return Arrivals(batch.ts, batch.types, moments.sources, moments.clock, self.sources)
        return Arrivals(batch.ts[rows], batch.types[rows], moments.sources[rows], moments.clock[rows], self.sources)

    def _guard(self, batch: Batch) -> tuple[I64, I64]:
        none = np.zeros(0, np.int64)
        if self._max_ahead is None or self.now == BEGINNING:
            return none, none
        latest = self.now + self._max_ahead
        rows = np.flatnonzero((batch.ts > latest) & (batch.types >= OTHER))
        batch.types[rows] = AHEAD
        return rows, batch.ts[rows] - latest

    def _source_numbers(self, batch: Batch, is_event: Any) -> tuple[I64, I64]:
        """Each row's source as a number, ANY where that does not matter, and how many sources are known at each row."""
        n = len(batch)
        if not self._by_source or self._stream.source is None:
            return np.full(n, ANY), np.zeros(n, np.int64)
        encoded = batch.columns[self._stream.source].dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
        values = [*encoded.dictionary.to_pylist(), None]
        first = np.full(len(values), n)
        speaks = is_event | ((batch.types == PUNCTUATION) & (codes < len(values) - 1))
        speaking = np.flatnonzero(speaks)
        np.minimum.at(first, codes[speaking], speaking)
        before = len(self.numbers)
        numbers = np.full(len(values), ANY)
        for code in np.argsort(first, kind="stable").tolist():
            if first[code] < n:
                numbers[code] = self.numbers.setdefault(values[code], len(self.numbers))
        sources = np.where(speaks, numbers[codes], ANY)
        known = np.maximum(np.maximum.accumulate(sources) + 1, before) if n else sources
        return sources, known

    def _observe(self, ts: I64, sources: I64, clocks: I64 | None, events: I64) -> I64:
        """The clock at each event."""
        running = self.clock.observe(ts, sources)
        if clocks is not None and len(clocks):
            outside = np.maximum.accumulate(clocks)
            running = np.maximum(running, outside[events])
            self.clock.reach(int(outside[-1]))
        return running

    def _promise(self, batch: Batch, sources: I64, known: I64) -> History:
        rows = np.flatnonzero(batch.types == PUNCTUATION)
        if not len(rows):
            return self.bounds.apply(NO_PROMISE)
        of = batch.columns[self._stream.of].take(pa.array(rows))
        found = pc.index_in(of, value_set=pa.array(self._types, pa.string())).fill_null(-2).to_numpy()
        kinds = np.where(of.is_null().to_numpy(zero_copy_only=False), ANY, found).astype(np.int64)
        heard = kinds != -2  # the others speak of types that no query asks for
        rows, kinds = rows[heard], kinds[heard]
        return self.bounds.apply(Punctuation(rows, kinds, batch.ts[rows], sources[rows], known[rows]))

    def promise(self, type: str | None, ts: int, source: Any) -> None:
        """Take in one punctuation given by hand."""
        if type is not None and type not in self._types:
            return
        number = ANY if source is None else self.numbers.setdefault(source, len(self.numbers))
        kind = ANY if type is None else list(self._types).index(type)
        self.bounds.apply(Punctuation(*(np.full(1, v) for v in (0, kind, ts, number, len(self.numbers)))))

    def hear(self, now: int) -> None:
        """It is ``now`` on the wall clock, in units of event time."""
        self.now = max(self.now, now)
        self.clock.hear(self.now)

    def reach(self, ts: int) -> None:
        self.clock.reach(min(ts, FAR))

    def dump(self) -> dict[str, Any]:
        return {
            "clock": self.clock.dump(),
            "bounds": self.bounds.dump(),
            "sources": self.sources,
            "now": self.now,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.clock.load(state["clock"])
        self.bounds.load(state["bounds"])
        self.numbers = {s: i for i, s in enumerate(state["sources"])}
        self.now = state["now"]


_EMPTY = np.zeros(0, np.int64)
NO_PROMISE = Punctuation(_EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY)
