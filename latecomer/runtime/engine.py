"""The engine: all state of a runtime once the schema is known, and the road of a batch through it.

A batch goes through: intake (columns, malformed rows) -> clock and promises, event by event -> duplicates -> the
event log -> each lane. A pure state machine: batches, promises and clock values in; tables out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.clock import BEGINNING, END
from latecomer.consistency.policy import Policy, Setting, adapts, policy_of, whole_units
from latecomer.query.expressions import attributes
from latecomer.query.plan import Plan
from latecomer.query.syntax import NEXT_MATCH
from latecomer.query.types import EVENT_TIME
from latecomer.runtime.changes import ChangeWriter, Ops, change_schema
from latecomer.runtime.duplicates import Newcomers, resolve
from latecomer.runtime.evaluate import Times, compile_truth
from latecomer.runtime.express import Express
from latecomer.runtime.intake import OTHER, PUNCTUATION, Batch, Intake
from latecomer.runtime.intervals.lane import AnyLane, IntervalLane, widened
from latecomer.runtime.intervals.pattern import IntervalPattern
from latecomer.runtime.lane import Delta, Lane
from latecomer.runtime.late import LateWriter
from latecomer.runtime.memory import Memory
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.pending import Paging
from latecomer.runtime.rows import PIECE, Answer
from latecomer.runtime.selection import Selector
from latecomer.runtime.share import Share
from latecomer.runtime.spill import Spilling
from latecomer.runtime.timekeeper import Moments, Timekeeper
from latecomer.storage.coldids import CACHE, ColdIds
from latecomer.storage.columns import I64, some
from latecomer.storage.hashing import U64, hash_column, hash_contents
from latecomer.storage.ids import IdIndex, Keep
from latecomer.storage.log import EventLog
from latecomer.storage.pages import Pages
from latecomer.storage.store import Bools, CodeLayout, Store
from latecomer.storage.timeline import Timeline
from latecomer.stream import Stream
from latecomer.units import Duration

#: Slices of event time that may leave memory one by one: more of them are finer, and cost more per batch.
_SLICES = 128

#: A late event may wait for the shelf for this part of the time that state is kept, or for a window.
_WAIT = 4

#: When what waits is let in, so that many pages are read one after another, this part of the budget is for them.
_DRAINED = 8

_NONE_OF_THEM = np.zeros(0, bool)

#: A piece of output: a record batch of changes, or one of late rows.
Piece = tuple[bool, pa.RecordBatch]

#: The time below which an event needs no id any more: of a batch (None: of any), types, and the rows at whose arrival.
Floors = Callable[[Batch | None, I64, I64], I64]


def attributes_of(plans: Sequence[Plan]) -> set[str]:
    """The columns that queries read, besides the event's time."""
    names = {attr for p in plans for attr in p.key}
    for plan in plans:
        exprs = [*plan.conjuncts, *(e for _, e in plan.returns)]
        exprs += [e for c in plan.components for e in c.filter] + [e for n in plan.negations for e in n.conjuncts]
        names |= {a.name for e in exprs for a in attributes(e)}
    return names - {EVENT_TIME}


def promised_columns(stream: Stream) -> set[str]:
    """The columns that promises speak of: those of generators, and of keyed punctuation."""
    return {name for config in stream.promises for name in config.columns} | set(stream.of_key)


class Engine:
    """Queries bound to a stream's schema. ``schema`` holds the columns of batches, in the types of ``fix_schema``.

    ``spill``: where state goes that is to leave memory, or to be kept in versions; None: all of it stays. ``bits``: the
    length of slices, where state is to be loaded that was cut so.
    """

    def __init__(
        self,
        stream: Stream,
        plans: Sequence[Plan],
        schema: pa.Schema,
        counters: Counter[Any],
        spill: Spilling | None = None,
        bits: int | None = None,
    ) -> None:
        self.stream, self.plans, self.counters = stream, plans, counters
        self.types = tuple(dict.fromkeys(t for p in plans for t in p.types))
        numbers = {t: i for i, t in enumerate(self.types)}
        self.intake = Intake(stream, self.types, schema)
        id_name = self.intake.id_name
        self.unit = self.intake.unit
        self.times = times = Times(self.unit, self.intake.ts_type)
        kept = {f.name: f.type for f in self.intake.schema}
        policies = [self._policy(plan, numbers) for plan in plans]
        patterns = [self._pattern(plan, kept, times) for plan in plans]
        self.layout, paging = self._paging(patterns, policies, spill, bits)
        columns = {name: kept[name] for name in sorted(attributes_of(plans) | {id_name, *stream.of_key})}
        columns |= self.intake.hidden
        pages = None if paging is None else Pages(paging.pager, columns)
        keys = {name for p in patterns for s in p.selections() for name in s.key}
        self.intake.prepare(
            {name for name in keys & columns.keys() if not pa.types.is_floating(columns[name])}, columns
        )
        self.log = EventLog(columns, pages, self.layout.bits)
        self.ids = IdIndex()
        self.cold = None
        if spill is not None:
            cache = CACHE if spill.budget is None else min(CACHE, spill.budget // 16)
            self.cold = ColdIds(spill.pager.shelf, kept[id_name], cache=cache)
        self.memory = None if spill is None else Memory(self, spill.pager, spill.budget)
        proves = any(policy.proves for policy in policies)
        self.time = Timekeeper(stream, self.types, self.unit, proves, self.log)

        self._testers = [Tester(self.log, p) for p in patterns]
        groups: dict[Any, list[int]] = {}
        for i, plan in enumerate(plans):
            unsure = isinstance(patterns[i], IntervalPattern)
            groups.setdefault((unsure, plan.level, i if adapts(plan.level) else None), []).append(i)
        self._lanes: list[AnyLane] = []
        for group in groups.values():
            unsure_ones = [(i, p) for i in group if isinstance(p := patterns[i], IntervalPattern)]
            common = numbers, self.layout, self.log, self._testers, paging
            if unsure_ones:
                uncertain = self.intake.intervals, counters
                self._lanes.append(IntervalLane(policies[group[0]], unsure_ones, *common, *uncertain))
            else:
                self._lanes.append(Lane(policies[group[0]], [(i, patterns[i]) for i in group], *common))
        self.numbers = numbers
        self._roles = frozenset((id_name, stream.ts, stream.type))
        #: Types that only queries ask for that were dropped.
        self.ignored = np.zeros(0, np.int64)
        self._purges = 0
        #: Whether a call ended half-way: what it changed is not told, so nobody can go on from here.
        self.broken = False
        #: The events that are kept; None: all.
        self.share: Share | None = None
        selections = {s for lane in self._lanes for s in lane.stores}
        self._conditions = {c: compile_truth(c, times) for s in selections for c in s.filter}
        self.change_schema = change_schema(plans, stream, schema, kept[id_name], self.intake.ts_type)
        self._changes = [
            ChangeWriter(p, self.change_schema, id_name, self.log, tester, times, stream.uncertain)
            for p, tester in zip(patterns, self._testers, strict=True)
        ]
        self._late = LateWriter(stream, self.intake.schema, id_name, self.intake.ts_type)
        self.late_schema = self._late.schema
        #: The road for batches in which nothing is out of the ordinary; None: there is none.
        self.express = Express.of(self, self._lanes)
        self.no_changes = self.change_schema.empty_table()
        self.no_late = self.late_schema.empty_table()

    @property
    def lanes(self) -> list[AnyLane]:
        """The lanes, which have heard of all events."""
        if self.express is not None:
            self.express.leave()
        return self._lanes

    @lanes.setter
    def lanes(self, lanes: list[AnyLane]) -> None:
        self._lanes = lanes

    def _pattern(self, plan: Plan, kept: Mapping[str, pa.DataType], times: Times) -> Pattern:
        """The plan's joins: over instants, or over intervals, of which an instant is one."""
        window = whole_units(plan.window, self.unit)
        if self.stream.uncertain or plan.strategy == NEXT_MATCH:
            return IntervalPattern(plan, window, kept, times, self.stream.uncertain)
        return Pattern(plan, window, kept, times)

    def _policy(self, plan: Plan, numbers: Mapping[str, int]) -> Policy:
        idle = self.stream.idle_timeout
        setting = Setting(
            self.unit,
            self.stream.clock,
            tuple(self.stream.sources or ()),
            None if idle is None else whole_units(Duration.of(idle), self.unit),
            [numbers[c.type] for c in plan.positives],
        )
        intervals = self.intake.intervals
        level = plan.level if intervals is None else widened(plan.level, intervals.longest, self.unit)
        return policy_of(level, setting)

    def _paging(
        self, patterns: Sequence[Pattern], policies: Sequence[Policy], spill: Spilling | None, bits: int | None
    ) -> tuple[CodeLayout, Paging | None]:
        """The slices of event time. Slices that are to leave memory one by one are as long as the longest window, but
        not so short that there are more than :data:`_SLICES`; else the fewer the better.
        """
        window = max(p.window for p in patterns)
        reach = max(p.window + (policy.retention(0) or 0) for p, policy in zip(patterns, policies, strict=True))
        layout = CodeLayout.for_reach(reach if spill is None else max(window, reach // _SLICES))
        if bits is not None:
            layout = CodeLayout(bits)
        if spill is None:
            return layout, None
        wait = max(window, reach // _WAIT) if spill.wait is None else whole_units(spill.wait, self.unit)
        return layout, Paging(spill.pager, spill.batch, wait)

    # --- the road of a batch -----------------------------------------------------------------------------------------

    def process(
        self, given: pa.RecordBatch, details: dict[int, str], clocks: I64 | None, cuts: Sequence[int] = ()
    ) -> Iterable[Piece]:
        """Take in one batch; the pieces must be consumed to the end. ``clocks``: the stream's clock at each row,
        where it is known from elsewhere. ``cuts``: rows at which levels that correct themselves give an account.
        """
        express = self.express if clocks is None and not cuts and not details else None
        pieces = None if express is None else express.step(given)
        return self._process(given, details, clocks, cuts, express) if pieces is None else pieces

    def _process(
        self,
        given: pa.RecordBatch,
        details: dict[int, str],
        clocks: I64 | None,
        cuts: Sequence[int],
        express: Express | None,
    ) -> Iterator[Piece]:
        """The same by several steps, by the ``express`` road if that can be."""
        if self.memory is not None:
            self.memory.make_room(given.nbytes + self.ids.growth(given.num_rows))
        batch = self.intake.read(given, details)
        self.broken = True  # until all is done
        self.counters["rows"] += len(batch)
        if express is not None and batch.reading is not None:
            self._ignore(batch)
            passed = self.time.pass_by(batch, express.delay)
            if passed is not None:
                yield from express.process(batch, passed)
                self.broken = False
                return
        if len(batch.malformed):
            yield self._malformed(batch)
        moments = self.time.read(batch, clocks)
        self._ignore(batch)
        if len(moments.ahead):
            yield self._ahead(batch, moments)
        rows = (batch.types >= 0).nonzero()[0]
        self.counters["events"] += len(moments.events)
        self.counters["other_types"] += len(moments.events) - len(rows)
        if self.stream.punctuation is not None:
            self.counters["punctuation"] += int(np.count_nonzero(batch.types == PUNCTUATION))
        rows = self.own(batch, rows)
        hashes, content = self._identify(batch)
        rows = yield from self.enter(batch, rows, hashes, content, partial(self._floors, moments=moments))
        refs = self._refs(batch, rows)
        self.log_rows(batch, rows, content)
        selector = self.selector(batch)
        for lane in self.lanes:
            limit, late = self._judge(lane, batch, rows, moments)
            accepted = None if late is None else ~late
            if lane.policy.final or not len(cuts):
                self._advance(lane)
                yield from self.write(lane.step(selector, accepted, refs, batch.ts, self.time.proofs))
            else:
                yield from self.write(self._in_parts(lane, selector, accepted, refs, batch, moments, clocks, cuts))
            if late is not None:
                yield from self._report(lane, selector, batch, moments, late, limit, refs)
                if lane.amends:
                    yield from self.write(lane.amend(selector, late, refs, batch.ts, self.time.proofs))
        self.time.proofs.keys_moved = False
        self.purge()
        if self.memory is not None:
            self.memory.settle()
        self.broken = False

    def selector(self, batch: Batch) -> Selector:
        hashes = {} if batch.reading is None else batch.reading.hashes
        return Selector(batch.types, self.numbers, batch.ts, batch.columns, self._conditions, hashes)

    def _refs(self, batch: Batch, rows: I64) -> I64:
        """The references that ``rows`` will have in the log; 0 for the batch's other rows."""
        if len(rows) == len(batch):
            return self.log.coming(batch.ts)
        refs = np.zeros(len(batch), np.int64)
        refs[rows] = self.log.coming(batch.ts.take(rows))
        return refs

    def log_rows(self, batch: Batch, rows: I64, content: U64) -> None:
        """Append ``rows`` to the event log."""
        raw = {} if batch.reading is None else batch.reading.raw
        if len(rows) == len(batch):
            self.log.append(batch.ts, batch.types, content, batch.columns, raw=raw)
        elif len(rows):
            self.log.append(batch.ts.take(rows), batch.types.take(rows), content.take(rows), batch.columns, rows, raw)

    def _in_parts(
        self,
        lane: AnyLane,
        selector: Selector,
        accepted: Bools | None,
        refs: I64,
        batch: Batch,
        moments: Moments,
        clocks: I64 | None,
        cuts: Sequence[int],
    ) -> Iterator[Delta | Answer]:
        """What the lane would say if the batch had come in parts that begin at 0 and at each of ``cuts``."""
        clock = np.full(len(batch) + 1, lane.clock)
        clock[moments.events + 1] = moments.clock[moments.events]
        if clocks is not None:
            clock[1:] = np.maximum(clock[1:], clocks)
        clock = np.maximum.accumulate(clock)  # before each row
        for begin, end in pairwise([0, *cuts, len(batch)]):
            part = np.zeros(len(batch), bool)
            part[begin:end] = True if accepted is None else accepted[begin:end]
            self._advance(lane, int(clock[end]) if end < len(batch) else None)
            yield from lane.step(selector, part, refs, batch.ts, self.time.proofs)

    def _advance(self, lane: AnyLane, clock: int | None = None, now: int | None = None) -> None:
        lane.clock = self.time.clock.value if clock is None else clock
        lane.policy.advance(lane.clock, now)

    def _malformed(self, batch: Batch) -> Piece:
        rows = batch.malformed
        self.counters["malformed"] += len(rows)
        return False, self._late.write(batch, rows, "malformed", detail=lambda row: batch.details.get(row, ""))

    def _ahead(self, batch: Batch, moments: Moments) -> Piece:
        """Events from too far in the future count for nothing."""
        self.counters["ahead"] += len(moments.ahead)
        return False, self._late.write(batch, moments.ahead, "ahead", moments.ahead_by)

    def _ignore(self, batch: Batch) -> None:
        if len(self.ignored):
            batch.types[np.isin(batch.types, self.ignored)] = OTHER

    def own(self, batch: Batch, rows: I64) -> I64:
        """The rows of this engine's share; others lose their type."""
        if self.share is None:
            return rows
        own = self.share.mask(batch, rows)
        batch.types[rows[~own]] = OTHER
        return rows[own]

    def _identify(self, batch: Batch) -> tuple[U64, U64]:
        """Hashes of the rows' ids, and of all else that they say."""
        if batch.reading is not None:
            return batch.reading.ids, batch.reading.content
        said = [column for name, column in batch.columns.items() if name not in self._roles]
        start = batch.ts.view(np.uint64) * np.uint64(len(self.types) + 1) + batch.types.view(np.uint64)
        return self._id_hashes(batch.columns[self.intake.id_name]), hash_contents(start, said)

    def _id_hashes(self, ids: pa.Array) -> U64:
        return hash_column(ids)

    def enter(self, batch: Batch, rows: I64, hashes: U64, content: U64, floors: Floors) -> Generator[Piece, None, I64]:
        """Enter the ids of ``rows``; the rows that count. Duplicates lose their type; conflicting ones are reported."""
        if not len(rows):
            return rows
        if self.ids.due(len(rows)):
            # By what could be forgotten before this batch: an early row of it may repeat what a late row lets go.
            first = np.repeat(rows[:1], len(self.types))
            self.forget_ids(floors(None, np.arange(len(self.types)), first), len(rows))
        repeats = conflicts = _NONE_OF_THEM
        kept, left = rows, None  # rows whose ids are not known as cold, and where they are among all
        if self.cold is not None and len(self.cold):
            repeats, conflicts = self._known_cold(self.cold, batch, rows, hashes, content, floors)
            if some(repeats):
                left = (~repeats).nonzero()[0]
                kept = rows[left]
        own = hashes if len(kept) == len(batch) else hashes.take(kept)
        begin = self.log.end
        refs = np.arange(begin, begin + len(kept))
        open_rows = self.ids.enter(own, refs)
        if len(open_rows):
            new = Newcomers(self.intake.id_name, batch, kept, own, content, refs)
            found = resolve(
                self.ids,
                self.log,
                new,
                open_rows,
                lambda some: floors(batch, batch.types[kept[some]], kept[some]),
            )
            if left is None:
                repeats, conflicts = found
            else:
                repeats[left], conflicts[left] = found
        if not some(repeats):
            return rows
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

    def _known_cold(
        self, cold: ColdIds, batch: Batch, rows: I64, hashes: U64, content: U64, floors: Floors
    ) -> tuple[Bools, Bools]:
        """Which rows repeat an event whose payload is on the shelf, and which of them say something else than it."""
        repeats, conflicts = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        at, found = cold.find(hashes[rows])
        if len(at):
            ids = batch.columns[self.intake.id_name].take(pa.array(rows[at]))
            same = pc.equal(found.ids.cast(ids.type), ids).to_numpy(zero_copy_only=False)
            same &= found.ts >= floors(batch, batch.types[rows[at]], rows[at])
            at = at[same]
            repeats[at] = True
            conflicts[at] = found.content[same] != content[rows[at]]
        return repeats, conflicts

    def _floors(self, batch: Batch | None, types: I64, rows: I64, moments: Moments) -> I64:
        """The time below which an event of each of ``types`` needs no id any more, as of the arrival of each of
        ``rows``: if it came again it would be late for every level that looks at it.
        """
        result = np.full(len(rows), END)
        closed = np.full(len(rows), BEGINNING)  # for the event's own key
        if batch is not None and moments.keys is not None and len(rows):
            closed = moments.keys.at(types, self.time.key_hashes(batch, rows), rows)
        for lane in self.lanes:
            for query in lane.queries:
                window = query.pattern.window
                kept = lane.policy.retention(window)
                for kind in query.types:
                    of = types == kind
                    if kept is None and lane.amends:  # what is late may still be applied, once
                        known = [moments.history.whole_at(t, rows) for t in query.types]
                        floor = np.maximum(np.minimum.reduce(known) - window, BEGINNING)
                    elif kept is None:  # a copy below its type's bound is late, but for a window more known as a copy
                        own = np.maximum(moments.history.whole_at(kind, rows), closed)
                        floor = np.maximum(own - window, BEGINNING)
                    else:
                        floor = moments.clock[rows] - kept
                    result[of] = np.minimum(result[of], floor[of])
        return result

    def _judge(self, lane: AnyLane, batch: Batch, rows: I64, moments: Moments) -> tuple[I64, Bools | None]:
        """The lane's limit at each row, and which rows of the batch are late (None: none)."""
        arrivals = moments.arrivals
        bound = arrivals.clock
        if lane.policy.proves:
            events = moments.events
            bound = np.full(len(events), BEGINNING)
            wanted = np.flatnonzero(arrivals.types >= 0)
            types, rows_of = arrivals.types[wanted], events[wanted]
            bound[wanted] = moments.history.at(types, arrivals.sources[wanted], rows_of)
            if moments.keys is not None and len(wanted):
                own = moments.keys.at(types, self.time.key_hashes(batch, rows_of), rows_of)
                bound[wanted] = np.maximum(bound[wanted], own)
        limit = lane.policy.observe(arrivals, bound)
        if len(limit) < len(batch):
            whole = np.full(len(batch), BEGINNING)
            whole[moments.events] = limit
            limit = whole
        late = batch.ts < limit
        if not some(late):
            return limit, None
        mask = np.zeros(len(batch), bool)
        mask[rows] = late[rows] & np.isin(batch.types[rows], lane.types)
        return limit, mask if mask.any() else None

    def _report(
        self, lane: AnyLane, selector: Selector, batch: Batch, moments: Moments, late: Bools, limit: I64, refs: I64
    ) -> Iterator[Piece]:
        """Late events go to the late output, once for each query that looks at their type."""
        for query in lane.queries:
            rows = np.flatnonzero(late & np.isin(batch.types, query.types))
            if len(rows):
                name, reason = query.pattern.plan.name, lane.policy.reason
                self.counters[name, reason] += len(rows)
                self.time.count_late(moments.sources[rows])
                missed, wrong = lane.what_if(query, selector, late, refs, batch.ts)
                late_by = (limit - batch.ts)[rows]
                yield False, self._late.write(batch, rows, reason, late_by, name, effect=(missed[rows], wrong[rows]))

    def write(self, deltas: Iterable[Delta | Answer]) -> Iterator[Piece]:
        held: list[Delta] = []  # deltas of one query, written together: a table for each would cost more than its rows
        size = 0
        for delta in deltas:
            self._count_changes(
                delta.query, delta.ops if isinstance(delta, Answer) else [(delta.insert, len(delta.rows))]
            )
            if held and (isinstance(delta, Answer) or held[0].query != delta.query or size + len(delta.rows) > PIECE):
                yield True, self._changes[held[0].query].write(held)
                held, size = [], 0
            if isinstance(delta, Answer):
                yield True, self._changes[delta.query].write_answer(delta)
            else:
                held.append(delta)
                size += len(delta.rows)
        if held:
            yield True, self._changes[held[0].query].write(held)

    def taken(self, query: int, ops: Ops, address: int) -> Piece:
        """Changes that a step has written, which are at this address (:meth:`ChangeWriter.take`)."""
        self._count_changes(query, ops)
        return True, self._changes[query].take(address)

    def _count_changes(self, query: int, ops: Ops) -> None:
        name = self.plans[query].name
        for insert, count in ops:
            self.counters[name, "insert" if insert else "delete"] += count

    def output(self, query: int) -> tuple[Any, ...] | None:
        """What compiled code has to know to write the changes of a query; None: it cannot."""
        return self._changes[query].output

    def purge(self) -> None:
        """Drop payload that nothing needs. Invariant: every event that a store, buffer or waiting match refers to is in
        the log.
        """
        if self.log.looks:
            clock, proofs = self.time.clock.value, self.time.proofs
            floor = min(min(lane.floor(clock, proofs), lane.oldest()) for lane in self._lanes)
            if floor > BEGINNING:
                self.log.drop_before(floor)
        purges = sum(lane.purges for lane in self._lanes)
        if purges != self._purges:
            self._purges = purges
            self._compact()

    def _compact(self) -> None:
        """Drop the payload of events that nothing refers to any more, once they are the larger part."""
        remembered = self.ids.refs()
        remembered = remembered[self.log.present(remembered)]
        if all(
            lane.policy.proves and not lane.amends for lane in self.lanes
        ):  # others forget by the clock, and drop_before follows them
            window = max(query.pattern.window for lane in self.lanes for query in lane.queries)
            closed = self.time.proofs.own(self.log.types(remembered), remembered)
            remembered = remembered[self.log.ts(remembered) >= closed - window]
        live = self.log.marked([remembered, *(lane.refs() for lane in self.lanes)])
        if 2 * np.count_nonzero(live) < len(live):
            self.log.compact(live)

    def forget_ids(self, floors: I64, more: int) -> None:
        """Forget ids of events below the floor of their type, and make room for ``more``."""
        # Where the log drops what is old from its beginning, what it holds is about that, and takes no look at times.
        keep: Keep = self.log.dense if self.log.gapless else partial(self.log.reach, floors=floors)
        if self.ids.tend(more, keep) and self.cold is not None:
            self.cold.forget(lambda ts, types: ts >= floors[types])

    # --- memory ------------------------------------------------------------------------------------------------------

    def all_stores(self) -> list[Store]:
        return [store for lane in self.lanes for store in lane.all_stores()]

    def all_timelines(self) -> list[Timeline]:
        """Sort buffers. Waiting matches stay in memory: what they wait for may come at any time."""
        return [buffer for lane in self.lanes for buffer in lane.buffers.values()]

    def in_use(self, number: int) -> bool:
        """Whether events in time look at the slice."""
        bits = self.layout.bits
        return any(lane.works_at(number << bits, ((number + 1) << bits) - 1) for lane in self.lanes)

    def chill(self, at: I64) -> None:
        """Make the ids of the events at these positions of the log known as cold."""
        assert self.cold is not None
        if len(at):
            ts, types, content, ids = self.log.told(self.intake.id_name, at)
            self.cold.add(self._id_hashes(ids), ts, types, content, ids)

    def forget_absent(self) -> None:
        """Events have left memory: their ids are known as cold."""
        self.ids.rebuild(self.log.present)

    # --- without a batch ---------------------------------------------------------------------------------------------

    def settle(self) -> Iterator[Piece]:
        """Let the lanes act on clock and promises as they are now."""
        yield from self._settle(None, None)

    def hear(self, now: int) -> Iterator[Piece]:
        """It is ``now`` on the wall clock, in units of event time."""
        self.time.hear(now)
        yield from self._settle(None, self.time.now)

    def finish(self) -> Iterator[Piece]:
        """The stream has ended: every promise is complete."""
        yield from self._drain()
        self.time.promise(None, END, None)
        yield from self._settle(END, None)

    def _drain(self) -> Iterator[Piece]:
        """Let in what is pending, page by page."""
        while waiting := [lane for lane in self.lanes if lane.pending]:
            assert self.memory is not None
            self.memory.make_room((self.memory.budget or 0) // _DRAINED)
            for lane in waiting:
                lane.drains = True
            yield from self._settle(None, None)
            for lane in waiting:
                lane.drains = False
            self.broken = True  # what this page has changed is told, so the next one must follow

    def _settle(self, clock: int | None, now: int | None) -> Iterator[Piece]:
        self.broken = True
        nothing = np.zeros(0, np.int64)
        for lane in self.lanes:
            self._advance(lane, clock, now)
            yield from self.write(lane.step(None, None, nothing, nothing, self.time.proofs))
        self.time.proofs.keys_moved = False
        self.purge()
        if self.memory is not None:
            self.memory.settle()
        self.broken = False

    def unreadable(self, lines: Sequence[tuple[str, str]]) -> Iterator[Piece]:
        self.counters["rows"] += len(lines)
        self.counters["malformed"] += len(lines)
        if lines:
            yield False, self._late.unreadable(lines)

    # --- state -------------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """State as plain data; of what is on the shelf only the slots."""
        unpaged = self.log.unpaged()
        if unpaged is None:
            ids = self.ids.dump()
        else:  # the others are known as cold
            ids = self.ids.part(self._id_hashes(self.log.take(self.intake.id_name, unpaged[1])), unpaged[1])
        return {
            "bits": self.layout.bits,
            "log": self.log.dump(unpaged),
            "ids": ids,
            "cold": None if self.cold is None else self.cold.dump(),
            "time": self.time.dump(),
            "next_number": self.intake.next_number,
            "lanes": [lane.dump() for lane in self.lanes],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.log.load(state["log"])
        self.ids.load(state["ids"])
        if self.cold is not None:
            self.cold.load(state["cold"] or ())
        self.time.load(state["time"])
        self.intake.next_number = state["next_number"]
        for lane, saved in zip(self.lanes, state["lanes"], strict=True):
            lane.load(saved)

    def _check(self) -> None:
        """Assert the invariants of state: each store's own, and that the log holds all that is referred to."""
        for lane in self.lanes:
            for store in lane.stores.values():
                store._check()
            if lane.pending is not None:
                lane.pending._check()
            refs = lane.refs()
            here = self.log.present(refs)
            if self.log.pages is not None:
                self.log.pages._check()
                here[~here] = self.log.pages.holds(refs[~here])
            assert here.all(), "a store, buffer or waiting match refers to payload that is gone"

    @property
    def nbytes(self) -> int:
        """Bytes of state in memory."""
        cold = 0 if self.cold is None else self.cold.nbytes
        return self.log.nbytes + self.ids.nbytes + cold + sum(lane.nbytes for lane in self.lanes)
