"""The timekeeper: what is known about time at each row of a batch: whose row it is, how far the clock had come, what
was promised.

It applies the guards (design §3): an event beyond ``now + max_ahead`` counts for nothing and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.bounds import History
from latecomer.consistency.clock import BEGINNING, FAR, Clock, QuorumClock, Silence, SourceClock, StreamClock
from latecomer.consistency.generators import Combined, Setting
from latecomer.consistency.keybounds import KeyHistory
from latecomer.consistency.lateness import RecentLateness
from latecomer.consistency.policy import whole_units
from latecomer.consistency.punctuation import ANY, Punctuation
from latecomer.runtime.intake import AHEAD, OTHER, PUNCTUATION, Batch
from latecomer.runtime.proofs import Proofs
from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, hash_columns
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools
from latecomer.stream import Stream
from latecomer.units import Duration


@dataclass(slots=True)
class Moments:
    """What is known at each row: ``clock`` and ``sources`` have one entry per row of the batch (meaningless where the
    row is no event); ``ahead`` are the rows beyond the guard, by how much they were in ``ahead_by``.
    """

    events: I64
    clock: I64
    sources: I64
    history: History
    keys: KeyHistory | None
    arrivals: Arrivals
    ahead: I64
    ahead_by: I64


class Passed(NamedTuple):
    """What there is to say of rows that are all events, none of them late: how many are of a ``known`` type, and by how
    much each is ``behind`` the clock at its arrival."""

    known: int
    behind: I64


class Timekeeper:
    """Clock, promises and sources of one stream whose queries ask for ``types``.

    ``proves``: whether some level lives by promises.
    """

    def __init__(self, stream: Stream, types: Sequence[str], unit: str, proves: bool, log: EventLog) -> None:
        self._stream, self._types = stream, types
        self._by_source = stream.source is not None
        declared = tuple(stream.sources or ())
        idle = None if stream.idle_timeout is None else whole_units(Duration.of(stream.idle_timeout), unit)
        self._max_ahead = None if stream.max_ahead is None else whole_units(Duration.of(stream.max_ahead), unit)
        self.clock: Clock = StreamClock(idle)
        if stream.clock == "source":
            self.clock = SourceClock(len(declared), idle)
        elif stream.quorum > 1:
            self.clock = QuorumClock(stream.quorum, len(declared), idle)
        self.proofs = Proofs(len(types), len(declared), stream.of_key, log)
        self.bounds = self.proofs.bounds
        self._generators = (
            Combined(stream.promises, Setting(stream, unit, types)) if stream.promises and proves else None
        )
        self._silence = Silence(len(declared), idle)
        self.sources: list[Any] = list(declared)  # by number
        self._numbers: dict[Any, int] = {s: i for i, s in enumerate(declared)}
        self.now = BEGINNING
        self.events_of = np.zeros(0, np.int64)  # since the start, by source number; WATCHED counts all others
        self.late_of = np.zeros(0, np.int64)
        self.latest_of = np.zeros(0, np.int64)  # the largest time that each has sent
        self.lateness = RecentLateness()  # for explain only
        self._told: dict[int, Any] = {}  # what a snapshot told of lateness, until newer events come

    def _number(self, source: Any) -> int:
        """The number of a source, a new one if it is new."""
        number = self._numbers.setdefault(source, len(self.sources))
        if number == len(self.sources):
            self.sources.append(source)
        return number

    @property
    def by_events_alone(self) -> bool:
        """Whether nothing is known of time but one clock, that of all events: no sources, promises or guards."""
        stream = self._stream
        told = self._by_source or self._generators or stream.punctuation is not None or stream.of_key
        return not told and isinstance(self.clock, StreamClock) and self._max_ahead is None

    def pass_by(self, batch: Batch, delay: int) -> Passed | None:
        """As :meth:`read`, of a batch of events alone, where time is :attr:`by_events_alone`; None, and nothing has
        changed, if one of a known type is later than ``delay``.
        """
        clock, late, known, behind = kernels.judge(batch.ts, batch.types, self.clock.value, delay)
        if late:
            return None
        self.pass_to(clock, behind)
        return Passed(known, behind)

    def pass_to(self, clock: int, behind: I64) -> None:
        """Events have passed by that have moved the clock so far; by how much each was behind it."""
        assert isinstance(self.clock, StreamClock)
        self.clock.pass_by(clock)
        self.lateness.add(None, behind)

    def read(self, batch: Batch, clocks: I64 | None) -> Moments:
        """Move through a batch. Rows that are ahead lose their type."""
        n = len(batch)
        ahead, ahead_by = self._guard(batch)
        is_event: Bools | None = None  # all
        if len(batch.malformed) or len(ahead) or self._stream.punctuation is not None:
            is_event = batch.types >= OTHER
        events = counted(n) if is_event is None else is_event.nonzero()[0]
        before = len(self.sources)
        sources, known = self._source_numbers(batch, is_event)
        if len(events) == n:
            at_events = self._observe(batch.ts, sources, clocks, events)
        else:
            at_events = self._observe(batch.ts[events], sources[events], clocks, events)
        clock = at_events
        if len(events) < n:
            clock = np.zeros(n, np.int64)
            clock[events] = at_events
        arrivals = self._arrivals(batch, events, clock, sources)
        history = self._promise(batch, sources, known, before, arrivals, events)
        keys = self._close_keys(batch)
        self._count(arrivals)
        return Moments(events, clock, sources, history, keys, arrivals, ahead, ahead_by)

    def _count(self, arrivals: Arrivals) -> None:
        """Note who sent how much, how late."""
        if self._by_source and len(arrivals):
            own = np.minimum(arrivals.sources, WATCHED)
            self.events_of = _added(self.events_of, own)
            missing = len(self.events_of) - len(self.latest_of)
            self.latest_of = np.append(self.latest_of, np.full(missing, BEGINNING))
            np.maximum.at(self.latest_of, own, arrivals.ts)
        else:
            own = None
        self.lateness.add(own, arrivals.clock - arrivals.ts)

    def count_late(self, sources: I64) -> None:
        """Note that events of these sources broke a promise."""
        if self._by_source and len(sources):
            self.late_of = _added(self.late_of, np.minimum(sources, WATCHED))

    def _arrivals(self, batch: Batch, rows: I64, clock: I64, sources: I64) -> Arrivals:
        """The batch's events as levels and generators see them."""
        now = None if self.now == BEGINNING else self.now
        named = self._generators is not None  # nobody else reads columns
        if len(rows) == len(batch):
            columns = batch.columns if named else {}
            types = batch.types.copy()  # duplicates lose theirs, while levels learn from all events
            return Arrivals(batch.ts, types, sources, clock, self.sources, columns, self.clock.value, now)
        at = pa.array(rows)
        columns = {name: column.take(at) for name, column in batch.columns.items()} if named else {}
        return Arrivals(
            batch.ts[rows],
            batch.types[rows],
            sources[rows],
            clock[rows],
            self.sources,
            columns,
            self.clock.value,
            now,
        )

    def _guard(self, batch: Batch) -> tuple[I64, I64]:
        if self._max_ahead is None or self.now == BEGINNING:
            return _EMPTY, _EMPTY
        latest = self.now + self._max_ahead
        rows = np.flatnonzero((batch.ts > latest) & (batch.types >= OTHER))
        batch.types[rows] = AHEAD
        return rows, batch.ts[rows] - latest

    def _source_numbers(self, batch: Batch, is_event: Bools | None) -> tuple[I64, I64]:
        """Each row's source as a number, ANY where that does not matter, and how many sources are known at each row."""
        n = len(batch)
        if not self._by_source or self._stream.source is None:
            return _many(ANY, n), _many(0, n)
        if is_event is None:
            is_event = np.ones(n, bool)
        encoded = batch.columns[self._stream.source].dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
        values = [*encoded.dictionary.to_pylist(), None]
        first = np.full(len(values), n)
        speaks = is_event | ((batch.types == PUNCTUATION) & (codes < len(values) - 1))
        speaking = np.flatnonzero(speaks)
        np.minimum.at(first, codes[speaking], speaking)
        before = len(self.sources)
        numbers = np.full(len(values), ANY)
        for code in np.argsort(first, kind="stable").tolist():
            if first[code] < n:
                numbers[code] = self._number(values[code])
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

    def _promise(self, batch: Batch, sources: I64, known: I64, before: int, arrivals: Arrivals, events: I64) -> History:
        """Take in the batch's punctuation and what generators make of its events; ``before``: sources known before
        it."""
        rows = _EMPTY
        if self._stream.punctuation is not None:
            rows = np.flatnonzero((batch.types == PUNCTUATION) & ~self._keyed(batch))
        parts = []
        if len(rows):
            parts.append(self._in_stream(batch, rows, sources, known))
        if self._generators is not None:
            made = self._generators.observe(arrivals)
            if len(made):
                at = np.append(events, -1)[made.position]
                knew = np.append(known, before)[at]
                parts.append(Punctuation(at, made.type, made.ts, made.source, np.maximum(knew, made.source + 1)))
        back = self._back(events, arrivals, known)
        if not parts and back is None:
            return self.bounds.unchanged()
        return self.bounds.apply(in_order(parts), back)

    def _keyed(self, batch: Batch) -> Bools:
        """Rows whose columns of ``of_key`` are all given: as punctuation they speak of that key alone."""
        given = np.full(len(batch), bool(self._stream.of_key))
        for name in self._stream.of_key:
            given &= batch.columns[name].is_valid().to_numpy(zero_copy_only=False)
        return given

    def _close_keys(self, batch: Batch) -> KeyHistory | None:
        """Take in the batch's punctuation for single keys."""
        if not self._stream.of_key:
            return None
        rows = np.flatnonzero(batch.types == PUNCTUATION)
        if not len(rows):
            return KeyHistory(self.proofs.keys)
        rows, kinds = self._spoken_of(batch, rows[self._keyed(batch)[rows]])
        at = pa.array(rows)
        columns = [batch.columns[name].take(at) for name in self._stream.of_key]
        values = list(zip(*(c.to_pylist() for c in columns), strict=True))
        return self._close(rows, kinds, batch.ts[rows], columns, values)

    def _close(self, rows: I64, kinds: I64, ts: I64, columns: list[pa.Array], values: list[Any]) -> KeyHistory:
        if len(rows):
            self.proofs.keys_moved = True
            self.proofs.keys.forget(self.bounds.least(range(len(self._types))))
        return self.proofs.keys.apply(rows, kinds, ts, hash_columns(columns), values)

    def key_hashes(self, batch: Batch, rows: I64) -> U64:
        """Hashes of the keys that keyed punctuation may speak of."""
        at = pa.array(rows)
        return hash_columns([batch.columns[name].take(at) for name in self._stream.of_key])

    def _spoken_of(self, batch: Batch, rows: I64) -> tuple[I64, I64]:
        """Punctuation rows that speak of types that queries ask for, and the types' numbers."""
        of = batch.columns[self._stream.of].take(pa.array(rows))
        found = pc.index_in(of, value_set=pa.array(self._types, pa.string())).fill_null(-2).to_numpy()
        kinds = np.where(of.is_null().to_numpy(zero_copy_only=False), ANY, found).astype(np.int64)
        heard = kinds != -2
        return rows[heard], kinds[heard]

    def _in_stream(self, batch: Batch, rows: I64, sources: I64, known: I64) -> Punctuation:
        rows, kinds = self._spoken_of(batch, rows)
        return Punctuation(rows, kinds, batch.ts[rows], sources[rows], known[rows])

    def _back(self, events: I64, arrivals: Arrivals, known: I64) -> Punctuation | None:
        """The first rows of sources that had been idle; from there on they hold promises back again."""
        if not self._by_source or self._silence.timeout is None or not len(events):
            return None
        self._silence.grow(len(self.sources))
        senders, first = np.unique(arrivals.sources, return_index=True)
        returning = self._silence.idle[senders]
        self._silence.spoke(senders)
        if not returning.any():
            return None
        senders, at = senders[returning], events[first[returning]]
        order = at.argsort(kind="stable")
        senders, at = senders[order], at[order]
        nothing = np.full(len(at), BEGINNING)
        return Punctuation(at, np.full(len(at), ANY), nothing, senders, known[at])

    def promise(self, type: str | None, ts: int, source: Any, key: pa.RecordBatch | None = None) -> None:
        """Take in one punctuation given by hand; ``key``: for one key alone, as a batch of one row."""
        number = ANY if source is None else self._number(source)  # whoever speaks is known, whatever is said
        if type is not None and type not in self._types:
            return
        if key is not None:
            [values] = key.to_pylist()
            kind = ANY if type is None else list(self._types).index(type)
            columns = [key.column(name) for name in self._stream.of_key]
            one = tuple(values[name] for name in self._stream.of_key)
            self._close(np.zeros(1, np.int64), np.full(1, kind), np.full(1, ts), columns, [one])
            return
        kind = ANY if type is None else list(self._types).index(type)
        self.bounds.apply(Punctuation(*(np.full(1, v) for v in (0, kind, ts, number, len(self.sources)))))

    def hear(self, now: int) -> None:
        """It is ``now`` on the wall clock, in units of event time."""
        self.now = max(self.now, now)
        self.clock.hear(self.now)
        self._silence.grow(len(self.sources))
        self._silence.hear(self.now)
        if self._by_source and self._silence.timeout is not None and len(self.sources):
            self.bounds.rest(self._silence.idle)
        self._ask()

    def summaries(self) -> dict[int, Any]:
        """By source number: events, share late and lateness quantiles of the last events."""
        return self._told | self.lateness.summaries(QUANTILES)

    def heard(self, source: int) -> int | None:
        """The wall clock at the last event of a source, as far as ``hear`` was told."""
        return self._silence.heard(source)

    def idle(self, source: int) -> bool:
        """Whether a source has been silent for the stream's timeout."""
        return source < len(self._silence.idle) and bool(self._silence.idle[source])

    def reach(self, ts: int) -> None:
        self.clock.reach(min(ts, FAR))
        self._ask()

    def _ask(self) -> None:
        """A clock has moved without an event: generators may promise more."""
        if self._generators is None:
            return
        now = None if self.now == BEGINNING else self.now
        arrivals = Arrivals(_EMPTY, _EMPTY, _EMPTY, _EMPTY, self.sources, {}, self.clock.value, now)
        made = self._generators.observe(arrivals)
        if len(made):
            known = np.full(len(made), len(self.sources))
            self.bounds.apply(Punctuation(made.position, made.type, made.ts, made.source, known))

    def dump(self) -> dict[str, Any]:
        return {
            "clock": self.clock.dump(),
            "bounds": self.bounds.dump(),
            "keys": self.proofs.keys.dump(),
            "sources": self.sources,
            "now": self.now,
            "silence": self._silence.dump(),
            "events_of": self.events_of,
            "late_of": self.late_of,
            "latest_of": self.latest_of,
            "lateness": list(self.summaries().items()),
            "generators": None if self._generators is None else self._generators.dump(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.clock.load(state["clock"])
        self.bounds.load(state["bounds"])
        self.proofs.keys.load(state["keys"])
        self.sources = state["sources"]
        self._numbers = {s: i for i, s in enumerate(self.sources)}
        self.now = state["now"]
        self._silence.load(state["silence"])
        self._told = {number: tuple(told) for number, told in state["lateness"]}
        self.events_of, self.late_of, self.latest_of = state["events_of"], state["late_of"], state["latest_of"]
        if self._generators is not None:
            self._generators.load(state["generators"])


#: Which quantiles of lateness are told per source.
QUANTILES = (0.5, 0.9, 0.99, 1.0)
#: Sources that are watched one by one (the first so many); statistics take the others together.
WATCHED = 1_000
_EMPTY = np.zeros(0, np.int64)
NO_PROMISE = Punctuation(_EMPTY, _EMPTY, _EMPTY, _EMPTY, _EMPTY)


def _constants() -> dict[int | None, I64]:
    """What batches up to a length take pieces of: one value many times over, and the numbers from 0 on."""
    made = {0: np.zeros(_READY, np.int64), ANY: np.full(_READY, ANY), None: np.arange(_READY)}
    for values in made.values():
        values.flags.writeable = False
    return made


_READY = 4_096
_MADE = _constants()


def _many(value: int, n: int) -> I64:
    """``value`` (0 or ANY) ``n`` times, for reading."""
    return _MADE[value][:n] if n <= _READY else np.full(n, value)


def counted(n: int) -> I64:
    """The numbers from 0 to ``n - 1``, for reading."""
    return _MADE[None][:n] if n <= _READY else np.arange(n)


def in_order(parts: Sequence[Punctuation]) -> Punctuation:
    """Promises from several places, in order of position."""
    if not parts:
        return NO_PROMISE
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Punctuation)]
    order = columns[0].argsort(kind="stable")
    return Punctuation(*(c[order] for c in columns))


def _added(counts: I64, numbers: I64) -> I64:
    """``counts`` with one more for each of ``numbers``."""
    more = np.bincount(numbers, minlength=len(counts))
    more[: len(counts)] += counts
    return more
