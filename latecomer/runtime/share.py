"""Shares: which of n workers an event belongs to.

The rule: all events that can be in one match, or in the scope of its negations, belong to one worker. The components of
a query agree on each attribute of its ``[…]``, so the attributes that every query has there decide. Every worker sees
every row, so that clock, promises and lateness are those of the whole stream; of the rows that queries ask for it keeps
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latecomer.query.plan import Plan
from latecomer.runtime.batches import Batch
from latecomer.storage.columns import I64
from latecomer.storage.hashing import hash_columns, mix
from latecomer.storage.store import Bools


@dataclass(frozen=True, slots=True)
class Share:
    """The ``number``-th (from 0) of ``of`` shares of the values of ``key``."""

    number: int
    of: int
    key: tuple[str, ...]

    def mask(self, batch: Batch, rows: I64) -> Bools:
        """Which of ``rows`` belong to this share."""
        hashes = hash_columns([batch.columns[name] for name in self.key])
        if len(rows) < len(batch):
            hashes = hashes[rows]
        # Stores sort by the hash itself, so another mixture of it decides here.
        return mix(hashes) % np.uint64(self.of) == np.uint64(self.number)  # type: ignore[no-any-return]


def common_key(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The attributes on which the events of every query agree."""
    return tuple(name for name in plans[0].key if all(name in plan.key for plan in plans))
