"""Steps: the express road in one compiled call, for small batches above all: for them the calls are what takes long.

Rule: a step does what :class:`latecomer.runtime.express.Express` does for a batch, or nothing at all; then the batch
goes that road. What only the clock decides (horizons, floors) is left for :meth:`Express.leave`, when somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.policy import AggressivePolicy
from latecomer.runtime.follow import CompiledMatcher
from latecomer.runtime.lane import Lane, QueryState
from latecomer.runtime.reading import RowReader
from latecomer.runtime.road import Unpaved, filtering_road
from latecomer.runtime.rows import PIECE
from latecomer.runtime.selection import Selection
from latecomer.storage import kernels
from latecomer.storage.columns import I64, BytesColumn, FixedColumn, plain_layout
from latecomer.storage.store import Store

if TYPE_CHECKING:
    from latecomer.runtime.engine import Engine

#: Rows of a batch up to which a step is possible: ``MOST_ROWS`` of ``native/step_rows.h``.
MOST = 65_536

#: Where ids are entered: see :meth:`latecomer.storage.ids.IdIndex.entering`.
Tables = tuple[Any, ...]
#: The clock after a batch, how many rows are of a type that queries ask for, how many of these are of the engine's
#: share, by how much each row was behind the clock, and for each query that finds something its number, ops as in
#: ``Answer``, and either the address of what is written of them (:meth:`latecomer.runtime.changes.ChangeWriter.take`),
#: or the rest of an ``Answer``.
Found = tuple[int, int, int, I64, list[tuple[Any, ...]]]


class Step:
    """The steps of one engine, as its lanes and its log are now; :meth:`of` says whether there are any."""

    def __init__(self, engine: Engine, plan: Any, queries: Sequence[int]) -> None:
        self._engine, self._plan = engine, plan
        #: Where each query's changes come, as on other roads.
        self._turns = {query: turn for turn, query in enumerate(queries)}
        self._spans, self._share = _spans(engine), engine.share
        self._schema = engine.intake.given.__arrow_c_schema__()
        self._slot = np.zeros(10, np.uint64)  # where a struct ArrowArray is handed over
        self._address = self._slot.ctypes.data

    @classmethod
    def of(cls, engine: Engine, lanes: list[Lane]) -> Step | None:
        reader = engine.intake.rows
        if kernels.step is None or reader is None or len(engine.ignored):
            return None
        columns, stores = _columns(engine, reader), _stores(engine, lanes, reader)
        if columns is None or stores is None:
            return None
        queries = _queries(engine, lanes, list(engine.log.columns), stores)
        if queries is None:
            return None
        kept = tuple(columns.values())
        log, bits = engine.log.spans, engine.layout.bits
        portion = None
        if engine.share is not None:
            key = _hashed(reader, engine.share.key)
            if key is None:
                return None
            portion = engine.share.number, engine.share.of, key
        plan = kernels.plan(reader.words, log, kept, tuple(stores.values()), queries, portion, bits, PIECE)
        return cls(engine, plan, [query.number for lane in lanes for query in lane.queries])

    @property
    def possible(self) -> bool:
        """Whether the log is as it is read here."""
        return self._engine.log.gapless

    @property
    def outdated(self) -> bool:
        """Whether columns are kept elsewhere now, or have got their first nulls, or other rows count."""
        return self._spans != _spans(self._engine) or self._share is not self._engine.share

    def take(self, given: pa.RecordBatch, tables: Tables, room: int, clock: int, delay: int) -> Found | None:
        """Take in a batch, whose ids go into ``tables``, up to ``room`` of them; None: nothing has been done."""
        engine = self._engine
        number, dense = engine.intake.next_number, engine.log.dense
        joint = None if self._share is None else self._share.joint
        rows = None if joint is None else joint.rows(given)
        if rows is None:
            given._export_to_c(self._address)
            rows = self._slot
        found: Found | None = kernels.step(self._plan, self._schema, rows, number, clock, delay, dense, tables, room)
        if found is not None and len(found[-1]) > 1:
            found[-1].sort(key=lambda answer: self._turns[answer[0]])
        return found


def _spans(engine: Engine) -> list[Any]:
    return [c.spans for c in engine.log.columns.values() if isinstance(c, (FixedColumn, BytesColumn))]


def _columns(engine: Engine, reader: RowReader) -> dict[str, tuple[Any, ...]] | None:
    """For each column of the log the field that it keeps (-1: the row's number), how kernels read it, and its spans."""
    found = {}
    for name, column in engine.log.columns.items():
        layout = plain_layout(column.type)
        field = reader.field(name) if name != engine.intake.id_name or engine.stream.id is not None else -1
        if not isinstance(column, (FixedColumn, BytesColumn)) or layout is None or field is None:
            return None
        found[name] = (field, *layout, *column.spans)
    return found


def _stores(engine: Engine, lanes: list[Lane], reader: RowReader) -> dict[Store, tuple[Any, ...]] | None:
    """The stores with their recent events, and of what they take in the type, the fields with the key's hashes, and the
    filter.
    """
    found: dict[Store, tuple[Any, ...]] = {}
    for lane in lanes:
        for selection, store in lane.stores.items():
            key, filter = _hashed(reader, selection.key), _filter(engine, selection)
            if key is None or filter is None or store.recent is None:
                return None
            found[store] = (store, store.recent, engine.numbers[selection.type], key, *filter)
    return found


def _hashed(reader: RowReader, names: Sequence[str]) -> I64 | None:
    """The fields of a key, if their hashes are read with the rows."""
    if not all(name in reader.keys for name in names):
        return None
    return np.array([reader.field(name) for name in names], np.int64)


def _filter(engine: Engine, selection: Selection) -> tuple[Any, tuple[int, ...]] | None:
    """The program of a selection's filter (None: there is none), and the log's columns that it reads; None: the filter
    has no words there.
    """
    if not selection.filter:
        return None, ()
    types = {name: column.type for name, column in engine.log.columns.items()}
    try:
        road = filtering_road(selection.filter, engine.times, types)
    except Unpaved:
        return None
    names = list(types)
    return kernels.program(np.array(road.words, np.int64)), tuple([names.index(name) for name in road.columns])


def _queries(
    engine: Engine, lanes: list[Lane], columns: Sequence[str], stores: Collection[Store]
) -> tuple[Any, ...] | None:
    """For each query its number, the components that changes name, its join orders, how changes are written, and how
    matches wait. Those whose matches others look at come before these.
    """
    places = {store: place for place, store in enumerate(stores)}
    found: list[tuple[Any, ...]] = []
    for lane in lanes:
        prompt: list[tuple[CompiledMatcher, int]] = []  # whose matches do not wait, and where the query is
        for query in sorted(lane.queries, key=_terms):
            if not query.plain or not isinstance(query.matcher, CompiledMatcher):
                return None
            waits = None
            if not query.prompt:
                assert isinstance(lane.policy, AggressivePolicy)
                waits = query.holding, query.holding.recent, lane.policy.wait
            orders = query.matcher.orders(places, columns, waits is not None)
            if not orders:
                return None
            if waits is None:
                for wider, place in reversed(prompt):  # the narrowest first, so that there is the least to look at
                    own = query.matcher.refined(orders, wider, place, places, columns)
                    if own is not orders:
                        orders = own
                        break
                prompt.append((query.matcher, len(found)))
            positives = np.array(query.pattern.positives, np.int64)
            found.append((query.number, positives, orders, engine.output(query.number), waits))
    return tuple(found)


def _terms(query: QueryState) -> int:
    """How many conditions and negations a query has: fewer than those that refine it, or as many."""
    plan = query.pattern.plan
    filters = sum(len(positive.filter) for positive in plan.positives)
    return len(plan.conjuncts) + filters + len(plan.negations)
