"""Steps: the express road in one compiled call, for small batches above all: for them the calls are what takes long.

Rule: a step does what :class:`latecomer.runtime.express.Express` does for a batch, or nothing at all; then the batch
goes that road. What only the clock decides (horizons, floors) is left for :meth:`Express.leave`, when somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.runtime.follow import CompiledMatcher
from latecomer.runtime.lane import Lane
from latecomer.runtime.reading import RowReader
from latecomer.runtime.rows import PIECE, Answer
from latecomer.storage import kernels
from latecomer.storage.columns import I64, BytesColumn, FixedColumn, plain_layout
from latecomer.storage.store import Store

if TYPE_CHECKING:
    from latecomer.runtime.engine import Engine

#: Rows of a batch up to which a step is possible: ``MOST_ROWS`` of ``native/step.h``.
MOST = 65_536


class Step:
    """The steps of one engine, as its lanes and its log are now; :meth:`of` says whether there are any."""

    def __init__(self, engine: Engine, plan: Any) -> None:
        self._engine, self._plan = engine, plan
        columns = engine.log.columns.values()
        self._columns = [column for column in columns if isinstance(column, (FixedColumn, BytesColumn))]

    @classmethod
    def of(cls, engine: Engine, lanes: list[Lane]) -> Step | None:
        reader = engine.intake.rows
        if kernels.step is None or reader is None or len(engine.ignored):
            return None
        columns, stores = _columns(engine, reader), _stores(engine, lanes, reader)
        if columns is None or stores is None:
            return None
        queries = _queries(lanes, list(engine.log.columns), stores)
        if queries is None:
            return None
        kept = tuple(columns.values())
        log, bits = engine.log.spans, engine.layout.bits
        plan = kernels.plan(reader.words, log, kept, tuple(stores.values()), queries, bits, PIECE)
        return cls(engine, plan)

    @property
    def possible(self) -> bool:
        """Whether the log is as it is read here."""
        return self._engine.log.gapless and all(column.no_nulls for column in self._columns)

    def take(self, given: pa.RecordBatch, clock: int, delay: int) -> tuple[int, int, I64, Iterator[Answer]] | None:
        """Take in a batch; the clock after it, how many rows are of a type that queries ask for, by how much each was
        behind the clock, and what it changes, query by query. None: nothing has been done.
        """
        engine = self._engine
        dense, n = engine.log.dense, given.num_rows
        tables = engine.ids.entering(engine.log.end, n)
        number = engine.intake.next_number
        found = kernels.step(self._plan, *given.__arrow_c_array__(), number, clock, delay, dense, tables)
        if found is None:
            return None
        clock, known, behind, answers = found
        engine.intake.count(n)
        engine.ids.entered(known)
        return clock, known, behind, (Answer(*answer) for answer in answers)


def _columns(engine: Engine, reader: RowReader) -> dict[str, tuple[Any, ...]] | None:
    """For each column of the log the field that it keeps (-1: the row's number), how kernels read it, and its spans."""
    found = {}
    for name, column in engine.log.columns.items():
        layout = plain_layout(column.type)
        field = reader.field(name) if name != engine.intake.id_name or engine.stream.id is not None else -1
        if not isinstance(column, (FixedColumn, BytesColumn)) or layout is None or field is None:
            return None
        if pa.types.is_boolean(column.type):  # in batches they are bits
            return None
        found[name] = (field, *layout, *column.spans)
    return found


def _stores(engine: Engine, lanes: list[Lane], reader: RowReader) -> dict[Store, tuple[Any, ...]] | None:
    """The stores with their recent events, and of what they take in the type, and the field with the key's hashes (-1:
    no key).
    """
    found: dict[Store, tuple[Any, ...]] = {}
    for lane in lanes:
        for selection, store in lane.stores.items():
            hashed = all(name in reader.keys for name in selection.key)
            if selection.filter or len(selection.key) > 1 or not hashed or store.recent is None:
                return None
            field = reader.field(selection.key[0]) if selection.key else -1
            found[store] = (store, store.recent, engine.numbers[selection.type], field)
    return found


def _queries(lanes: list[Lane], columns: Sequence[str], stores: Collection[Store]) -> tuple[Any, ...] | None:
    """For each query its number, the components that changes name, and its join orders."""
    places = {store: place for place, store in enumerate(stores)}
    found = []
    for lane in lanes:
        for query in lane.queries:
            orders = query.matcher.orders(places, columns) if isinstance(query.matcher, CompiledMatcher) else ()
            if not query.prompt or not orders:
                return None
            found.append((query.number, np.array(query.pattern.positives, np.int64), orders))
    return tuple(found)
