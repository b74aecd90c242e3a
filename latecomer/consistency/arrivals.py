"""Arrivals: what clocks, levels and promises see of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from latecomer.consistency.clock import BEGINNING, I64
from latecomer.errors import SchemaError


@dataclass(frozen=True, slots=True)
class Arrivals:
    """n events in order of arrival, n may be 0.

    Attributes:
        ts: event times (n,), in the stream's units.
        types: numbers of the event types (n,), ``ANY`` for a type that no query asks for.
        sources: numbers of the senders (n,), ``ANY`` where the stream names none.
        clock: the stream's clock at each event (n,), that event included.
        names: the senders by number.
        columns: the columns of the events by name, Arrow arrays (n,).
        reached: the clock after all of them.
        now: the wall clock in the stream's units as the edge passed it last; None when it never did.
    """

    ts: I64
    types: I64
    sources: I64
    clock: I64
    names: Sequence[Any] = ()
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    reached: int = BEGINNING
    now: int | None = None

    def __len__(self) -> int:
        return len(self.ts)

    def column(self, name: str) -> pa.Array:
        """A column; raises SchemaError when there is none of that name."""
        try:
            return self.columns[name]
        except KeyError:
            raise SchemaError(
                f"no column {name!r}, which a promise of the stream reads: give it in each batch"
            ) from None
