"""The express road: a batch in which nothing is out of the ordinary, through lanes that answer at once.

Rule: it gives what the road of :class:`latecomer.runtime.engine.Engine` gives, with fewer steps, and is taken where the
others have nothing to do: all rows could be read in one pass, time is one clock of the events themselves, state is in
memory, no event breaks its promise, and every level corrects itself. Nobody can tell which road a batch took
(``tests/test_express.py``). Most batches go on it by one step each (``step.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.clock import BEGINNING
from latecomer.consistency.policy import AggressivePolicy, adapts
from latecomer.runtime.intake import Batch
from latecomer.runtime.lane import Lane
from latecomer.runtime.reading import Reading
from latecomer.runtime.rows import Answer
from latecomer.runtime.step import MOST, Step, Tables
from latecomer.runtime.tidying import Tidying
from latecomer.runtime.timekeeper import Passed, counted
from latecomer.storage import kernels
from latecomer.storage.columns import I64

if TYPE_CHECKING:
    from latecomer.runtime.engine import Engine, Piece
    from latecomer.runtime.intervals.lane import AnyLane

#: Where batch after batch is out of the ordinary, most of them try no step: so many in a row at most.
_LONGEST_REST = 31
#: Rows for which there is room whatever the last batches tell, and by what a batch may have more than those.
_FEW, _MORE = 64, 1.25


class Express:
    """The road for one engine; :meth:`of` says whether there is one."""

    def __init__(self, engine: Engine, lanes: list[Lane]) -> None:
        self._engine, self._lanes = engine, lanes
        policies = [lane.policy for lane in lanes]
        #: An event that is later than this is late for some lane.
        self.delay = min(p.max_delay for p in policies if isinstance(p, AggressivePolicy))
        #: For how long events of each type are remembered.
        self._kept = np.zeros(len(engine.types), np.int64)
        for lane in lanes:
            for query in lane.queries:
                kept = lane.policy.retention(query.pattern.window) or 0
                np.maximum.at(self._kept, list(query.types), kept)
        self._tidying = Tidying(1 << engine.layout.bits)
        self._step: Step | None = None
        self._planned = self._checked = False  # whether it is known if there are steps, and if the log is fit for them
        self._come: int | None = None  # how far the clock has come by steps of which lanes have not heard
        self._rest = self._next_rest = 0  # for how many batches no step is tried; and after the next one that took none
        self._tables: Tables = ()  # where ids are entered,
        self._room = 0  # how many may be before the index is asked again,
        self._part = 1.0  # and of about which part of a batch's rows they are, as the last ones tell

    @classmethod
    def of(cls, engine: Engine, given: Sequence[AnyLane]) -> Express | None:
        lanes = [lane for lane in given if isinstance(lane, Lane)]
        prompt = len(lanes) == len(given) and all(
            isinstance(lane.policy, AggressivePolicy)
            and lane.pending is None
            and not any(adapts(query.pattern.plan.level) for query in lane.queries)
            for lane in lanes
        )
        return cls(engine, lanes) if prompt and engine.memory is None and engine.time.by_events_alone else None

    def leave(self) -> None:
        """Somebody looks at lanes, or is about to change them."""
        self._catch_up()
        self._planned = False
        put_off = self._tidying.put_off
        if put_off == self._engine.time.clock.value and not self._engine.broken:  # nobody is to see that
            self._tidy(put_off)

    def _catch_up(self) -> None:
        """Let lanes know what only the clock decides."""
        self._checked = False
        if self._come is not None:
            for lane in self._lanes:  # not to where the clock is now: events may be under way that have moved it
                self._advance(lane, self._come)
                lane.catch_up(self._engine.time.proofs)
            self._come = None

    def _advance(self, lane: Lane, clock: int) -> None:
        lane.clock = clock
        lane.policy.advance(clock, None)

    def step(self, given: pa.RecordBatch) -> Iterable[Piece] | None:
        """As :meth:`process`, of a batch that nobody has read yet, in one step; None, and nothing has changed, if
        that cannot be.
        """
        engine, n = self._engine, given.num_rows
        if self._tidies_first and self._tidying.put_off is not None:
            self._tidy_if_due(self._tidying.put_off)
        if not self._planned:
            self._step, self._planned = Step.of(engine, self._lanes), True
        if self._step is None or not 0 < n <= MOST:
            return None
        if not given.schema.equals(engine.intake.given):
            return None
        if not self._checked:
            if self._step.outdated:
                self._step = Step.of(engine, self._lanes)
            if self._step is None or not self._step.possible:
                return None
            self._checked, self._room = True, 0
        if self._rest:
            self._rest -= 1
            return None
        engine.broken = True  # until all is done
        before = engine.time.clock.value
        ids = n if n <= _FEW else min(n, int(self._part * n) + _FEW)
        if ids > self._room:
            if engine.ids.due(ids):
                engine.forget_ids(np.maximum(before - self._kept, BEGINNING), ids)
            self._room, self._tables = engine.ids.entering(engine.log.end, ids)
        found = self._step.take(given, self._tables, self._room, before, self.delay)
        if found is None:
            engine.broken, self._part = False, 1.0
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest + 1, _LONGEST_REST)
            return None
        self._next_rest = 0
        clock, known, entered, behind, answers = found
        self._come = clock
        self._room -= entered
        if n > _FEW:
            self._part = min(_MORE * entered / n, 1.0)
        self._tidying.fill(entered, clock)
        engine.ids.entered(entered)
        engine.intake.count(n)
        engine.counters["rows"] += n
        engine.time.pass_to(clock, behind)
        self._count(n, known)
        if answers:
            return self._told(self._step, answers, clock)
        self._end(clock)
        return ()

    def _told(self, step: Step, answers: Iterable[tuple[Any, ...]], clock: int) -> Iterator[Piece]:
        """``step``: it holds the changes that are written already."""
        for query, ops, *found in answers:
            if len(found) == 1:
                yield self._engine.taken(query, ops, *found)
            else:
                yield from self._engine.write([Answer(query, ops, *found)])
        self._end(clock)

    def _end(self, clock: int) -> None:
        if self._tidies_first:
            self._tidying.put_off = clock
        else:
            self._tidy_if_due(clock)
        self._engine.broken = False

    @property
    def _tidies_first(self) -> bool:
        """Whether state is tidied before a step, not behind it: in every other one of several engines, since tidying is
        full of calls that need Python's lock, and a step is not: so one does this while another does that.
        """
        share = self._engine.share
        return share is not None and share.number % 2 == 1

    def _count(self, n: int, known: int) -> None:
        counters = self._engine.counters
        counters["events"] += n
        counters["other_types"] += n - known

    def _tidy_if_due(self, clock: int) -> None:
        if self._tidying.due(clock):
            self._tidy(clock)
        elif self._engine.log.looks:
            self._engine.purge()

    def _tidy(self, clock: int) -> None:
        """Drop what nothing needs any more."""
        self._catch_up()
        self._tidying.done(clock, min([lane.purge(self._engine.time.proofs) for lane in self._lanes]))
        if self._step is not None:  # it would ask for this next, from where all of it is far away
            for lane in self._lanes:
                lane.expose()
        self._engine.purge()

    def process(self, batch: Batch, passed: Passed) -> Iterator[Piece]:
        """As :meth:`Engine.process`, of a batch that was read in one pass and has no event that is late."""
        self._catch_up()
        engine, reading = self._engine, batch.reading
        assert reading is not None
        n = len(batch)
        self._count(n, passed.known)
        rows = counted(n) if passed.known == n else (batch.types >= 0).nonzero()[0]

        def floors(_: Batch | None, types: I64, rows: I64) -> I64:
            floor: I64 = (batch.ts + passed.behind).take(rows) - self._kept.take(types)
            return floor

        rows = yield from engine.enter(batch, engine.own(batch, rows), reading.ids, reading.content, floors)
        first = engine.log.end
        engine.log_rows(batch, rows, reading.content)
        clock = engine.time.clock.value
        for lane in self._lanes:
            self._advance(lane, clock)
            self._place(lane, batch, reading, first)
            yield from engine.write(lane.act(engine.time.proofs, passed=True))
        self._tidying.came(engine.log.end - first)
        self._tidy_if_due(clock)

    def _place(self, lane: Lane, batch: Batch, reading: Reading, first: int) -> None:
        """Put the batch's events, whose references begin at ``first``, into the stores of a lane."""
        stores, wanted, others = [], [], []
        for selection, store in lane.stores.items():
            key = selection.key
            hashes = reading.hashes.get(key[0]) if len(key) == 1 else None
            if selection.filter or (key and hashes is None):
                others.append(selection)
            else:
                stores.append(store)
                wanted.append((self._engine.numbers[selection.type], hashes))
        found = kernels.arrange_each(batch.types, batch.ts, first, lane.layout.bits, tuple(wanted))
        for store, events in zip(stores, found, strict=True):
            if events is not None:
                store.place(events)
        if others:
            refs = (batch.types >= 0).cumsum() + (first - 1)
            selector = self._engine.selector(batch)
            for selection in others:
                lane.stores[selection].stage(*selector.picked(selection, None, refs))
