"""The engine: all state of a runtime once the schema is known, and the road of a batch through it.

A batch goes through: intake (columns, malformed rows) -> clock and promises, event by event -> duplicates -> the
event log -> each lane. A pure state machine: batches, promises and clock values in; tables out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.clock import BEGINNING, END, Clock, SourceClock, StreamClock
from latecomer.consistency.policy import policy_of, whole_units
from latecomer.consistency.punctuation import ANY, Bounds, History, Punctuation
from latecomer.query.expressions import attributes
from latecomer.query.plan import Plan
from latecomer.query.types import EVENT_TIME
from latecomer.runtime.batches import MALFORMED, OTHER, PUNCTUATION, Batch, Intake
from latecomer.runtime.changes import ChangeWriter, change_schema
from latecomer.runtime.duplicates import Newcomers, enter
from latecomer.runtime.evaluate import Times, compile_truth
from latecomer.runtime.lane import Delta, Lane
from latecomer.runtime.late import LateWriter
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.rows import PIECE
from latecomer.runtime.selection import Selector
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, hash_column, hash_contents
from latecomer.storage.ids import IdIndex
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools, CodeLayout
from latecomer.stream import Stream

#: A piece of output: a record batch of changes, or one of late rows.
Piece = tuple[bool, pa.RecordBatch]


def attributes_of(plans: Sequence[Plan]) -> set[str]:
    """The columns that queries read, besides the event's time."""
    names = {attr for p in plans for attr in p.key}
    for plan in plans:
        exprs = [*plan.conjuncts, *(e for _, e in plan.returns)]
        exprs += [e for c in plan.components for e in c.filter] + [e for n in plan.negations for e in n.conjuncts]
        names |= {a.name for e in exprs for a in attributes(e)}
    return names - {EVENT_TIME}


class Engine:
    """Queries bound to a stream's schema. ``schema`` holds the columns of batches, in the types of ``fix_schema``."""

    def __init__(self, stream: Stream, plans: Sequence[Plan], schema: pa.Schema, counters: Counter[Any]) -> None:
        self.stream, self.plans, self.counters = stream, plans, counters
        self.types = tuple(dict.fromkeys(t for p in plans for t in p.types))
        numbers = {t: i for i, t in enumerate(self.types)}
        self.intake = Intake(stream, self.types, schema)
        id_name = self.intake.id_name
        self.unit = self.intake.unit
        times = Times(self.unit, self.intake.ts_type)
        kept = {f.name: f.type for f in self.intake.schema}
        self.log = EventLog({name: kept[name] for name in sorted(attributes_of(plans) | {id_name})})
        self.ids = IdIndex()
        self.clock: Clock = SourceClock(len(stream.sources or ())) if stream.clock == "source" else StreamClock()
        self.bounds = Bounds(len(self.types))
        self._sources: dict[Any, int] = {s: i for i, s in enumerate(stream.sources or ())}

        policies = [policy_of(p.level, self.unit) for p in plans]
        patterns = [Pattern(p, whole_units(p.window, self.unit), kept, times) for p in plans]
        reach = max(p.window + (policy.retention(0) or 0) for p, policy in zip(patterns, policies, strict=True))
        self.layout = CodeLayout.for_reach(reach)
        self._testers = [Tester(self.log, p) for p in patterns]
        self.lanes = [
            Lane(
                policy,
                [(i, p) for i, p in enumerate(patterns) if policies[i] == policy],
                numbers,
                self.layout,
                self.log,
                self._testers,
            )
            for policy in dict.fromkeys(policies)
        ]
        self._numbers = numbers
        selections = {s for lane in self.lanes for s in lane.stores}
        self._conditions = {c: compile_truth(c, times) for s in selections for c in s.filter}
        self.change_schema = change_schema(plans, stream, schema, kept[id_name], self.intake.ts_type)
        self._changes = [
            ChangeWriter(p, self.change_schema, id_name, self.log, tester, times)
            for p, tester in zip(patterns, self._testers, strict=True)
        ]
        self._late = LateWriter(stream, self.intake.schema, id_name, self.intake.ts_type)
        self.late_schema = self._late.schema
        self.no_changes = self.change_schema.empty_table()
        self.no_late = self.late_schema.empty_table()
        proves = any(policy.proves for policy in policies)  # then a promise of a single source may come at any time
        self._per_source = stream.source is not None and (stream.clock == "source" or proves)

    # --- the road of a batch -----------------------------------------------------------------------------------------

    def process(self, given: pa.RecordBatch, details: dict[int, str], clocks: I64 | None) -> Iterator[Piece]:
        """Take in one batch; the pieces must be consumed to the end. ``clocks``: the stream's clock at each row,
        where it is known from elsewhere.
        """
        batch = self.intake.read(given, details)
        self.counters["rows"] += len(batch)
        yield from self._malformed(batch)
        is_event = batch.types >= OTHER
        events = np.flatnonzero(is_event)
        sources, known = self._source_numbers(batch, is_event)
        clock = self._observe(batch, events, sources, clocks)
        history = self._promise(batch, sources, known)

        rows = np.flatnonzero(batch.types >= 0)
        self.counters["events"] += len(events)
        self.counters["other_types"] += len(events) - len(rows)
        if len(events) < len(batch):  # a clock at every row, as all that follows counts by rows of the batch
            whole = np.zeros(len(batch), np.int64)
            whole[events] = clock
            clock = whole
        hashes, content = self._identify(batch)
        rows = yield from self._enter(batch, rows, hashes, content, clock, history)
        refs = np.zeros(len(batch), np.int64)
        refs[rows] = np.arange(self.log.end, self.log.end + len(rows))
        if len(rows):
            self.log.append(batch.ts[rows], content[rows], batch.columns, rows if len(rows) < len(batch) else None)
        selector = Selector(batch.types, self._numbers, batch.ts, batch.columns, self._conditions)
        for lane in self.lanes:
            accepted = yield from self._judge(lane, batch, rows, clock, sources, history)
            yield from self._step(lane, selector, accepted, refs, batch.ts)
        self._purge()

    def _malformed(self, batch: Batch) -> Iterator[Piece]:
        rows = np.flatnonzero(batch.types == MALFORMED)
        if len(rows):
            self.counters["malformed"] += len(rows)
            yield False, self._late.write(batch, rows, "malformed", detail=lambda row: batch.details.get(row, ""))

    def _source_numbers(self, batch: Batch, is_event: Bools) -> tuple[I64, I64]:
        """Each row's source as a number (ANY where that does not matter), and how many sources are known at each
        row."""
        n = len(batch)
        if not self._per_source or self.stream.source is None:
            return np.full(n, ANY), np.zeros(n, np.int64)
        encoded = batch.columns[self.stream.source].dictionary_encode()
        codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
        values = [*encoded.dictionary.to_pylist(), None]
        first = np.full(len(values), n)
        speaks = is_event | ((batch.types == PUNCTUATION) & (codes < len(values) - 1))
        speaking = np.flatnonzero(speaks)
        np.minimum.at(first, codes[speaking], speaking)
        before = len(self._sources)
        numbers = np.full(len(values), ANY)
        for code in np.argsort(first, kind="stable").tolist():
            if first[code] < n:
                numbers[code] = self._sources.setdefault(values[code], len(self._sources))
        sources = np.where(speaks, numbers[codes], ANY)
        known = np.maximum(np.maximum.accumulate(sources) + 1, before) if n else sources
        return sources, known

    def _observe(self, batch: Batch, events: I64, sources: I64, clocks: I64 | None) -> I64:
        """The clock at each event."""
        if clocks is None:
            return self.clock.observe(batch.ts[events], sources[events])
        outside = np.maximum.accumulate(clocks) if len(clocks) else clocks
        running = np.maximum(self.clock.observe(batch.ts[events], sources[events]), outside[events])
        if len(clocks):
            self.clock.reach(int(outside[-1]))
        return running

    def _promise(self, batch: Batch, sources: I64, known: I64) -> History:
        rows = np.flatnonzero(batch.types == PUNCTUATION)
        empty = np.zeros(0, np.int64)
        if not len(rows):
            return self.bounds.apply(Punctuation(empty, empty, empty, empty, empty))
        self.counters["punctuation"] += len(rows)
        of = batch.columns[self.stream.of].take(pa.array(rows))
        found = pc.index_in(of, value_set=pa.array(self.types, pa.string())).fill_null(-2).to_numpy()
        kinds = np.where(of.is_null().to_numpy(zero_copy_only=False), ANY, found).astype(np.int64)
        heard = kinds != -2  # the others speak of types that no query asks for
        rows, kinds = rows[heard], kinds[heard]
        return self.bounds.apply(Punctuation(rows, kinds, batch.ts[rows], sources[rows], known[rows]))

    def _identify(self, batch: Batch) -> tuple[U64, U64]:
        """Hashes of the rows' ids, and of all else that they say."""
        apart = (self.intake.id_name, self.stream.ts, self.stream.type)
        said = [column for name, column in batch.columns.items() if name not in apart]
        start = batch.ts.view(np.uint64) * np.uint64(len(self.types) + 1) + batch.types.view(np.uint64)
        return hash_column(batch.columns[self.intake.id_name]), hash_contents(start, said)

    def _enter(
        self, batch: Batch, rows: I64, hashes: U64, content: U64, clock: I64, history: History
    ) -> Generator[Piece, None, I64]:
        """Enter the ids of ``rows``; the rows that count. Duplicates lose their type; conflicting ones are reported."""
        if not len(rows):
            return rows
        if not self.ids.room_for(len(rows)):
            self._forget_ids(len(rows))
        refs = np.arange(self.log.end, self.log.end + len(rows))
        ids = batch.columns[self.intake.id_name]
        whole = len(rows) == len(batch)
        new = Newcomers(
            hashes if whole else hashes[rows],
            ids if whole else ids.take(pa.array(rows)),
            batch.ts[rows],
            content[rows],
            refs,
        )
        found = enter(
            self.ids,
            self.log,
            self.intake.id_name,
            new,
            lambda some: self._floors(clock[rows[some]], history, rows[some]),
        )
        if found is None:
            return rows
        repeats, conflicts = found
        if repeats.any():
            self.counters["duplicates"] += int(repeats.sum())
            told = rows[conflicts]
            if len(told):
                self.counters["conflicts"] += len(told)
                yield (
                    False,
                    self._late.write(
                        batch, told, "duplicate", detail=lambda _: "conflicts with the first event of this id"
                    ),
                )
            batch.types[rows[repeats]] = OTHER
        return rows[~repeats]

    def _floors(self, clock: I64, history: History, positions: I64) -> I64:
        """The time below which nothing can change an answer any more, at each of the positions."""
        least = {t: history.whole_at(t, positions) for lane in self.lanes if lane.policy.proves for t in lane.types}
        result = np.full(len(positions), END)
        for lane in self.lanes:
            for query in lane.queries:
                keep = lane.policy.retention(query.pattern.window)
                if keep is not None:
                    floor = clock - keep
                else:
                    floor = np.maximum(
                        np.minimum.reduce([least[t] for t in query.types]) - query.pattern.window, BEGINNING
                    )
                result = np.minimum(result, floor)
        return result

    def _judge(
        self, lane: Lane, batch: Batch, rows: I64, clock: I64, sources: I64, history: History
    ) -> Generator[Piece, None, Bools | None]:
        """Which rows of the batch keep the lane's promise (None: all events); the others are reported for each query
        that looks at their type.
        """
        if not len(rows):
            return None
        ts, types, clock = batch.ts[rows], batch.types[rows], clock[rows]
        bound = history.at(types, sources[rows], rows) if lane.policy.proves else clock
        limit = lane.policy.limit(clock, bound)
        late = ts < limit
        if late.any():
            for query in lane.queries:
                own = np.flatnonzero(late & np.isin(types, query.types))
                if len(own):
                    name = query.pattern.plan.name
                    self.counters[name, lane.policy.reason] += len(own)
                    yield False, self._late.write(batch, rows[own], lane.policy.reason, (limit - ts)[own], name)
            accepted = np.ones(len(batch), bool)
            accepted[rows[late]] = False
            return accepted
        return None

    def _step(
        self, lane: Lane, selector: Selector | None, accepted: Any, refs: I64, ts: I64, clock: int | None = None
    ) -> Iterator[Piece]:
        now = self.clock.value if clock is None else clock
        held: list[Delta] = []  # deltas of one query, written together: a table for each would cost more than its rows
        size = 0
        for delta in lane.step(selector, accepted, refs, ts, now, self.bounds):
            self.counters[self.plans[delta.query].name, "insert" if delta.insert else "delete"] += len(delta.rows)
            if held and (held[0].query != delta.query or size + len(delta.rows) > PIECE):
                yield True, self._changes[held[0].query].write(held)
                held, size = [], 0
            held.append(delta)
            size += len(delta.rows)
        if held:
            yield True, self._changes[held[0].query].write(held)

    def _purge(self) -> None:
        floor = min(lane.floor(self.clock.value, self.bounds) for lane in self.lanes)
        if floor > BEGINNING:
            self.log.drop_before(floor)

    def _forget_ids(self, more: int) -> None:
        floor = min(lane.floor(self.clock.value, self.bounds) for lane in self.lanes)
        _, refs = self.ids.entries()
        keep = refs >= self.log.base
        keep[keep] = self.log.ts(refs[keep]) >= floor
        self.ids.rebuild(keep, more)

    # --- without a batch ---------------------------------------------------------------------------------------------

    def settle(self) -> Iterator[Piece]:
        """Let the lanes act on clock and promises as they are now."""
        yield from self._settle(None)

    def finish(self) -> Iterator[Piece]:
        """The stream has ended: every promise is complete."""
        kinds = np.full(1, ANY)
        self.bounds.apply(Punctuation(np.zeros(1, np.int64), kinds, np.full(1, END), kinds, np.zeros(1, np.int64)))
        yield from self._settle(END)

    def _settle(self, clock: int | None) -> Iterator[Piece]:
        nothing = np.zeros(0, np.int64)
        for lane in self.lanes:
            yield from self._step(lane, None, None, nothing, nothing, clock)
        self._purge()

    def promise(self, type: str | None, ts: int, source: Any) -> None:
        """Take in one punctuation given by hand."""
        number = ANY
        if source is not None:
            number = self._sources.setdefault(source, len(self._sources))
        if type is not None and type not in self._numbers:
            return
        kind = ANY if type is None else self._numbers[type]
        one = [np.full(1, v) for v in (0, kind, ts, number, len(self._sources))]
        self.bounds.apply(Punctuation(*one))

    def unreadable(self, lines: Sequence[tuple[str, str]]) -> Iterator[Piece]:
        self.counters["rows"] += len(lines)
        self.counters["malformed"] += len(lines)
        if lines:
            yield False, self._late.unreadable(lines)

    # --- state -------------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        return {
            "log": self.log.dump(),
            "ids": self.ids.dump(),
            "clock": self.clock.dump(),
            "bounds": self.bounds.dump(),
            "sources": list(self._sources),
            "next_number": self.intake.next_number,
            "lanes": [lane.dump() for lane in self.lanes],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.log.load(state["log"])
        self.ids.load(state["ids"])
        self.clock.load(state["clock"])
        self.bounds.load(state["bounds"])
        self._sources = {s: i for i, s in enumerate(state["sources"])}
        self.intake.next_number = state["next_number"]
        for lane, saved in zip(self.lanes, state["lanes"], strict=True):
            lane.load(saved)

    @property
    def nbytes(self) -> int:
        """Bytes of state in memory."""
        return self.log.nbytes + self.ids.nbytes + sum(lane.nbytes for lane in self.lanes)
