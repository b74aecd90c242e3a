"""Duplicates: the same id twice within the retained horizon counts once, the first to arrive.

An id is remembered while its event's time is at or above the *floor*: the time below which nothing can change an
answer any more. The floor at an event's own arrival decides, so that the verdict does not depend on batches. Hashes
propose, real ids decide.
"""

from __future__ import annotations

from collections.abc import Callable

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


def find_duplicates(
    index: IdIndex, log: EventLog, id_name: str, hashes: U64, ids: pa.Array, ts: I64, content: U64, floor_at: FloorAt
) -> tuple[Bools, Bools]:
    """Masks over a batch's n events: which repeat an earlier event, and which of those say something else than it did.

    Whoever is first, in the log or in this batch, is the owner of an id; once it falls below the floor the next one
    takes over.
    """
    n = len(hashes)
    repeats, conflicts = np.zeros(n, bool), np.zeros(n, bool)
    rows, refs = index.find(hashes)
    here = refs >= log.base
    rows, refs = rows[here], refs[here]
    if len(rows):
        same = pc.equal(log.take(id_name, refs), ids.take(pa.array(rows))).to_numpy(zero_copy_only=False)
        same &= log.ts(refs) >= floor_at(rows)
        rows, refs = rows[same], refs[same]
        repeats[rows] = True
        conflicts[rows] = log.content(refs) != content[rows]
    _within_batch(hashes, ids, ts, content, floor_at, repeats, conflicts)
    return repeats, conflicts


def _within_batch(
    hashes: U64, ids: pa.Array, ts: I64, content: U64, floor_at: FloorAt, repeats: Bools, conflicts: Bools
) -> None:
    """Mark repeats of events that are new in this batch. Loops over events that share a hash with another new one
    only."""
    new = np.flatnonzero(~repeats)
    order = new[hashes[new].argsort(kind="stable")]
    equal = hashes[order][1:] == hashes[order][:-1]
    if not equal.any():
        return
    shared = order[np.append(equal, False) | np.append(False, equal)]
    floors = floor_at(shared)
    owners: dict[object, int] = {}
    for row, value, floor in zip(shared.tolist(), ids.take(pa.array(shared)).to_pylist(), floors.tolist(), strict=True):
        owner = owners.get(value)
        if owner is None or ts[owner] < floor:
            owners[value] = row
        else:
            repeats[row] = True
            conflicts[row] = content[owner] != content[row]
