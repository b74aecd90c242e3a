"""Parting: what an engine gives up when it goes on with some of its keys only, or without some of its queries.

The rule: nothing is said about it, and what stays has exactly the future that it would have had. Events of other keys
that are stored are left where they are: no event to come can meet them, and they are forgotten with their time. What
could speak by itself goes at once: matches that wait, and events in sort buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.runtime.express import Express
from latecomer.storage.columns import I64

if TYPE_CHECKING:
    from latecomer.runtime.engine import Engine

Bools = npt.NDArray[np.bool_]

#: Of the values of some columns, row by row: which keys stay.
Chooser = Callable[[list[pa.Array]], Bools]


def narrow(engine: Engine, columns: Sequence[str], chosen: Chooser) -> None:
    """Give up what waits of events whose key, their values of ``columns``, is not ``chosen``."""

    def others(refs: I64) -> Bools:
        return ~chosen([engine.log.take(name, refs) for name in columns])

    for lane in engine.lanes:
        for query in lane.queries:
            first, holding = query.pattern.positives[0], query.holding
            leaving = others(holding.waiting().ref(first))
            holding.pick(lambda _, leaving=leaving: leaving)  # type: ignore[misc]
        for buffer in lane.buffers.values():
            moments, (hashes, refs) = buffer.all()
            stays = ~others(refs)
            buffer.clear()
            buffer.add(moments[stays], [hashes[stays], refs[stays]])


def drop(engine: Engine, names: Collection[str]) -> None:
    """Forget the queries with these ``names`` and all that only they needed. Some query has to stay."""
    if not names:
        return
    gone = {number for number, plan in enumerate(engine.plans) if plan.name in names}
    for lane in engine.lanes:
        lane.queries = [q for q in lane.queries if q.number not in gone]  # type: ignore[assignment]
        wanted = {s for q in lane.queries for s in q.pattern.selections()}
        held: Any
        for held in (lane.stores, lane.buffers):
            for selection in [s for s in held if s not in wanted]:
                del held[selection]
        lane.look()
    engine.lanes = [lane for lane in engine.lanes if lane.queries]
    looked_at = {number for lane in engine.lanes for number in lane.types}
    engine.ignored = np.array(sorted(set(range(len(engine.types))) - looked_at), np.int64)
    engine.express = Express.of(engine, engine.lanes)
