"""Shares: which of n workers an event belongs to.

The rule: all events that can be in one match, or in the scope of its negations, belong to one worker. The components of
a query agree on each attribute of its ``[…]``, so the attributes that every query has there decide. Every worker sees
every row, so that clock, promises and lateness are those of the whole stream; of the rows that queries ask for it keeps
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from latecomer.query.plan import Plan
from latecomer.runtime.intake import Batch
from latecomer.runtime.joint import Joint
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, combine, hash_column, mix
from latecomer.storage.store import Bools


@dataclass(frozen=True, slots=True)
class Share:
    """The ``number``-th (from 0) of ``of`` shares of the values of ``key``. ``joint``: how engines of this process that
    have the other shares read batches together with this one's; None: they do not.
    """

    number: int
    of: int
    key: tuple[str, ...]
    joint: Joint | None = field(default=None, compare=False)

    def mask(self, batch: Batch, rows: I64) -> Bools:
        """Which of ``rows`` belong to this share."""
        hashes = reduce(combine, [self._hash(batch, name) for name in self.key])
        if len(rows) < len(batch):
            hashes = hashes.take(rows)
        # Stores sort by the hash itself, so another mixture of it decides here.
        mixed = mix(hashes)
        part = mixed & np.uint64(self.of - 1) if self.of & (self.of - 1) == 0 else mixed % np.uint64(self.of)
        return part == np.uint64(self.number)  # type: ignore[no-any-return]

    def _hash(self, batch: Batch, name: str) -> U64:
        known = None if batch.reading is None else batch.reading.hashes.get(name)
        return hash_column(batch.columns[name]) if known is None else known


def common_key(plans: Sequence[Plan]) -> tuple[str, ...]:
    """The attributes on which the events of every query agree."""
    return tuple(name for name in plans[0].key if all(name in plan.key for plan in plans))
