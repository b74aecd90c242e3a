"""Duplicates: the same id twice within the retained horizon counts once, the first to arrive.

An id is remembered while its event's time is at or above the *floor*: the time below which nothing can change an answer
any more. The floor at an event's own arrival decides, so that the verdict does not depend on batches. Hashes propose,
real ids decide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.runtime.intake import Batch
from latecomer.storage.columns import I64, some
from latecomer.storage.hashing import U64
from latecomer.storage.ids import IdIndex
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools

#: The floor at each of the given positions of the batch.
FloorAt = Callable[[I64], I64]


class Newcomers:
    """n events of a batch that want to be entered: its ``rows``, with the ``hashes`` of their ids and the references
    that they get if all count, ``refs``; ``content`` is that of all rows of the batch.
    """

    def __init__(self, id_name: str, batch: Batch, rows: I64, hashes: U64, content: U64, refs: I64) -> None:
        self.id_name, self._batch, self._rows, self._content = id_name, batch, rows, content
        self.hashes, self.refs = hashes, refs

    def ids(self, at: I64) -> pa.Array:
        """The ids of some of them."""
        return self._batch.columns[self.id_name].take(pa.array(self._rows.take(at)))

    @cached_property
    def ts(self) -> I64:
        return self._batch.ts.take(self._rows)

    @cached_property
    def content(self) -> U64:
        return self._content.take(self._rows)


def resolve(index: IdIndex, log: EventLog, new: Newcomers, open_rows: I64, floor_at: FloorAt) -> tuple[Bools, Bools]:
    """Decide about the events that found the mark of their id taken (``open_rows``) when all were entered; those that
    count are entered under references without gaps.

    Returns masks: which events repeat an earlier one, and which of those say something else than it did.
    """
    n = len(new.refs)
    rows, refs = index.find(new.hashes[open_rows])
    rows = open_rows[rows]
    repeats, conflicts = np.zeros(n, bool), np.zeros(n, bool)
    within = refs >= new.refs[0]
    fellows = np.unique(np.concatenate((open_rows, refs[within] - new.refs[0])))  # all that share a mark in this batch
    old = ~within & log.present(refs)
    rows, refs = rows[old], refs[old]
    if len(rows):
        same = pc.equal(log.take(new.id_name, refs), new.ids(rows)).to_numpy(zero_copy_only=False)
        same &= log.ts(refs) >= floor_at(rows)
        rows, refs = rows[same], refs[same]
        repeats[rows] = True
        conflicts[rows] = log.content(refs) != new.content[rows]
    _within_batch(fellows[~repeats[fellows]], new, floor_at, repeats, conflicts)
    own = np.cumsum(~repeats) - 1 + new.refs[0]
    moved = own != new.refs
    moved[open_rows] = False
    if some(moved):
        index.move(new.hashes[moved], new.refs[moved], own[moved])
    late_comers = open_rows[~repeats[open_rows]]
    # One that is too late to be remembered need not be: else what is sent again and again finds ever more of its like.
    late_comers = late_comers[new.ts[late_comers] >= floor_at(late_comers)]
    index.add(new.hashes[late_comers], own[late_comers])
    return repeats, conflicts


def _within_batch(fellows: I64, new: Newcomers, floor_at: FloorAt, repeats: Bools, conflicts: Bools) -> None:
    """Mark repeats of events that are new in this batch. Loops over events that share a mark with another only."""
    floors = floor_at(fellows)
    owners: dict[object, int] = {}
    for row, value, floor in zip(fellows.tolist(), new.ids(fellows).to_pylist(), floors.tolist(), strict=True):
        owner = owners.get(value)
        if owner is None or new.ts[owner] < floor:
            owners[value] = row
        else:
            repeats[row] = True
            conflicts[row] = new.content[owner] != new.content[row]
