"""A stream on its way: which events, stamped with which time, arriving when.

Rule: a model never touches the caller's table. It turns one :class:`Flow` into another, and a flow only says, in order
of arrival, which row of the table comes, with which stamp and at which time. So nothing can be lost or invented unseen:
the rows of a flow are row numbers of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latecomer.disorder.measure import IntArray
from latecomer.errors import ConfigError
from latecomer.units import Duration


@dataclass(frozen=True, slots=True)
class Flow:
    """Parallel arrays, one entry per arrival, in order of arrival (entries with equal ``arrival`` come in the order
    given).

    Attributes:
        row: row number in the caller's table; a repeated number is a copy.
        ts: event time as stamped, in ``unit``.
        arrival: time of arrival, in ``unit``; never falls from one entry to the next.
        source: index of the sender; None where the stream names no senders.
        sources: how many senders the whole stream has.
        unit: the stream's unit of time.
        start, end: first and last event time of the whole stream, also in a flow that holds only a part of it.
    """

    row: IntArray
    ts: IntArray
    arrival: IntArray
    source: IntArray | None
    sources: int
    unit: str
    start: int
    end: int

    def __len__(self) -> int:
        return len(self.row)

    def arriving(self, arrival: IntArray) -> Flow:
        """The same events with other times of arrival, put in order; ties keep their present order."""
        order = np.argsort(arrival, kind="stable")
        return replace(self, arrival=arrival).take(order)

    def stamped(self, ts: IntArray) -> Flow:
        """The same arrivals with other event times."""
        return replace(self, ts=ts)

    def take(self, index: IntArray | NDArray[np.bool_]) -> Flow:
        """The chosen entries, in the order of ``index``."""
        return replace(
            self,
            row=self.row[index],
            ts=self.ts[index],
            arrival=self.arrival[index],
            source=None if self.source is None else self.source[index],
        )

    def instant(self, share: float) -> int:
        """The event time at ``share`` (0 to 1) of the stream's span."""
        return self.start + round(share * (self.end - self.start))

    def units(self, duration: Duration) -> int:
        """A duration in the stream's units, rounded down."""
        return duration.units(self.unit)

    def _check(self) -> None:
        """Assert the invariants; shows the flow when one fails."""
        n = len(self.row)
        assert len(self.ts) == len(self.arrival) == n, self
        assert self.source is None or len(self.source) == n, self
        assert (np.diff(self.arrival) >= 0).all(), self


def merged(flows: Sequence[Flow]) -> Flow:
    """Several flows as one, in order of arrival; ties in the order of ``flows``."""
    first = flows[0]
    joined = replace(
        first,
        row=np.concatenate([f.row for f in flows]),
        ts=np.concatenate([f.ts for f in flows]),
        source=None if first.source is None else np.concatenate([_source(f) for f in flows]),
    )
    return joined.arriving(np.concatenate([f.arrival for f in flows]))


def _source(flow: Flow) -> IntArray:
    assert flow.source is not None, "flows of one stream name sources alike"
    return flow.source


class Model(Protocol):
    """What may happen to a stream on its way: a frozen configuration with one function, pure but for the generator it
    is given.

    Users may write their own; it composes with the others.
    """

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        """The flow as it comes out. All randomness comes from ``rng``."""


def share(value: float, name: str) -> None:
    """Raises ConfigError unless ``value`` is a share between 0 and 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name}={value!r}: a share between 0 and 1 is allowed")
