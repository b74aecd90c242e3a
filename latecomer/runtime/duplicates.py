"""Duplicates: the same id twice within the retained horizon counts once, the first to arrive.

An id is remembered while its event's time is at or above the *floor*: the time below which nothing can change an answer
any more. The floor at an event's own arrival decides, so that the verdict does not depend on batches. Hashes propose,
real ids decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.ids import IdIndex
from latecomer.storage.log import EventLog
from latecomer.storage.store import Bools

#: The floor at each of the given positions of the batch.
FloorAt = Callable[[I64], I64]


@dataclass(frozen=True, slots=True)
class Newcomers:
    """n events of a batch that want to be entered. ``refs`` are the references they get if all count."""

    hashes: U64
    ids: Callable[[I64], pa.Array]
    ts: I64
    content: U64
    refs: I64


def enter(index: IdIndex, log: EventLog, id_name: str, new: Newcomers, floor_at: FloorAt) -> tuple[Bools, Bools] | None:
    """Enter the events that count into the index, under references without gaps.

    Returns masks: which repeat an earlier event, and which of those say something else than it did; None when none
    does.
    """
    open_rows = index.enter(new.hashes, new.refs)
    if not len(open_rows):
        return None
    n = len(new.refs)
    rows, refs = index.find(new.hashes[open_rows])
    rows = open_rows[rows]
    repeats, conflicts = np.zeros(n, bool), np.zeros(n, bool)
    within = refs >= new.refs[0]
    fellows = np.unique(np.concatenate((open_rows, refs[within] - new.refs[0])))  # all that share a mark in this batch
    old = ~within & log.present(refs)
    rows, refs = rows[old], refs[old]
    if len(rows):
        same = pc.equal(log.take(id_name, refs), new.ids(rows)).to_numpy(zero_copy_only=False)
        same &= log.ts(refs) >= floor_at(rows)
        rows, refs = rows[same], refs[same]
        repeats[rows] = True
        conflicts[rows] = log.content(refs) != new.content[rows]
    _within_batch(fellows[~repeats[fellows]], new, floor_at, repeats, conflicts)
    own = np.cumsum(~repeats) - 1 + new.refs[0]
    entered = np.ones(n, bool)
    entered[open_rows] = False
    index.move(new.hashes[entered], new.refs[entered], own[entered])
    late_comers = open_rows[~repeats[open_rows]]
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
