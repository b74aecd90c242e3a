"""How disordered is a stream? One pass over its event times in order of arrival, and every figure that a level's choice
needs.

Rule: an event is *late* when an event with a larger time arrived before it. Its *lateness* is how far: the running
maximum of event time, up to and including the event itself, minus its own time (0 when it is not late). Lateness is
what K-slack's ``k`` and the aggressive level's ``max_delay`` are compared with: an event keeps the promise when its
lateness is at most ``k``.

Quantiles are values that occur: the least lateness that at least this share of events does not exceed. So
``measure(…).quantiles[0.99]`` is the least ``k`` for which at most 1 % of the events are late for K-slack.

*Runs* are the maximal stretches of arrivals whose times do not fall; *inversions* are the pairs of events whose order
of arrival is the reverse of their order in time (0 for an ordered stream, n(n-1)/2 for a reversed one). Ties are in
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from latecomer.errors import ConfigError, SchemaError

IntArray = NDArray[np.int64]

#: Shares for which quantiles are given unless others are asked for.
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


@dataclass(frozen=True, slots=True)
class Disorder:
    """What :func:`measure` found. Times are in the unit of the ``ts`` that was measured.

    Attributes:
        events: number of events.
        late: how many arrived after an event with a larger time.
        quantiles: share -> lateness that this share of all events does not exceed.
        when_late: share -> lateness that this share of the *late* events does not exceed; empty when none is late.
        max_lateness: the largest lateness: the least ``k`` that loses nothing.
        runs: stretches of arrivals in order of time (1 for an ordered stream, 0 for an empty one).
        inversions: pairs in the wrong order.
        delays: share -> arrival minus event time; None when no arrival times were given.
        per_source: the same for each source: lateness against the whole stream, runs and inversions within the source.
    """

    events: int
    late: int
    quantiles: Mapping[float, int]
    when_late: Mapping[float, int]
    max_lateness: int
    runs: int
    inversions: int
    delays: Mapping[float, int] | None
    per_source: Mapping[str | None, Disorder]

    @property
    def share_late(self) -> float:
        """Late events as a share of all, 0 to 1."""
        return self.late / self.events if self.events else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, sources included."""
        return {
            "events": self.events,
            "late": self.late,
            "share_late": self.share_late,
            "quantiles": {str(q): v for q, v in self.quantiles.items()},
            "when_late": {str(q): v for q, v in self.when_late.items()},
            "max_lateness": self.max_lateness,
            "runs": self.runs,
            "inversions": self.inversions,
            "delays": None if self.delays is None else {str(q): v for q, v in self.delays.items()},
            "per_source": {str(name): one.as_dict() for name, one in self.per_source.items()},
        }


def measure(ts: Any, arrival: Any = None, source: Any = None, *, quantiles: Iterable[float] = QUANTILES) -> Disorder:
    """Measure the disorder of a stream.

    Args:
        ts: event times, one per event: integers or Arrow timestamps (array, column or sequence), without nulls.
        arrival: times of arrival in the same unit. Without them the events are in order of arrival; with them they are
            put in that order first (ties keep their place) and delays are measured too.
        source: the sender of each event, for figures per source.
        quantiles: shares between 0 and 1.

    Time is O(n log n), memory O(n). Raises SchemaError for nulls, for what is no time, and for columns of different
    length; ConfigError for a share outside 0 to 1.

    >>> found = measure([1, 4, 2, 3, 9])
    >>> found.late, found.share_late, found.max_lateness, found.runs, found.inversions
    (2, 0.4, 2, 2, 2)
    """
    shares = tuple(quantiles)
    if any(not 0 <= q <= 1 for q in shares):
        raise ConfigError(f"quantiles={shares}: each share must lie between 0 and 1")
    time = integers(ts, "ts")
    names, code = (None, None) if source is None else encoded(source)
    came = None if arrival is None else integers(arrival, "arrival")
    for what, column in (("arrival", came), ("source", code)):
        if column is not None and len(column) != len(time):
            raise SchemaError(f"{what} has {len(column)} values and ts has {len(time)}: give one for each event")
    if came is not None:
        order = np.argsort(came, kind="stable")
        time, came = time[order], came[order]
        code = code if code is None else code[order]
    lateness = running_lateness(time)
    delay = None if came is None else came - time
    whole = _summary(time, lateness, delay, shares)
    if names is None or code is None:
        return whole
    parts: dict[str | None, Disorder] = {}
    order = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(names) + 1))
    for i, name in enumerate(names):
        mine = order[bounds[i] : bounds[i + 1]]
        if len(mine):
            parts[name] = _summary(time[mine], lateness[mine], None if delay is None else delay[mine], shares)
    return replace(whole, per_source=parts)


def running_lateness(ts: IntArray) -> IntArray:
    """Lateness of each event of a stream in order of arrival: the largest time so far minus its own.

    >>> running_lateness(np.array([5, 7, 4])).tolist()
    [0, 0, 3]
    """
    return np.maximum.accumulate(ts) - ts if len(ts) else ts


def inversions(ts: IntArray) -> int:
    """Pairs ``i < j`` with ``ts[i] > ts[j]``, by stable partition of the ranks bit by bit: O(n log n), no loop over
    events.

    >>> inversions(np.array([3, 1, 2, 2]))
    3
    """
    n = len(ts)
    if n < 2:
        return 0
    rank = np.empty(n, np.int64)
    rank[np.argsort(ts, kind="stable")] = np.arange(n)
    total = 0
    # Invariant: ranks that share the bits above `bit` lie together, in order of arrival; since the ranks are 0..n-1,
    # the group with prefix p starts at position p << (bit + 1). Pairs that first differ in this bit are counted here
    # and nowhere else.
    for bit in range((n - 1).bit_length() - 1, -1, -1):
        one = (rank >> bit) & 1
        start = rank >> (bit + 1) << (bit + 1)
        ones = np.concatenate(([0], np.cumsum(one)))
        before = ones[:-1] - ones[start]
        zero = one == 0
        total += int(before[zero].sum())
        place = np.where(zero, np.arange(n) - before, start + (1 << bit) + before)
        moved = np.empty(n, np.int64)
        moved[place] = rank
        rank = moved
    return total


def integers(column: Any, what: str) -> IntArray:
    """Times as int64; Arrow timestamps count in their own unit. Raises SchemaError for nulls and other types."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "M":
            return integers(pa.array(column), what)
        if column.dtype.kind in "iu":
            return column.astype(np.int64, copy=False)
        if len(column):
            raise SchemaError(f"{what} holds {column.dtype}: integers or timestamps are allowed")
        return column.astype(np.int64)
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column)
    if array.null_count:
        raise SchemaError(f"{what} holds {array.null_count} nulls: leave such rows out, they have no place in time")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    elif len(array) and not pa.types.is_integer(array.type):
        raise SchemaError(f"{what} holds {array.type}: integers or timestamps are allowed")
    return np.asarray(array.cast(pa.int64()), dtype=np.int64)


def encoded(column: Any) -> tuple[tuple[str | None, ...], IntArray]:
    """Names of sources in order of first appearance, and each event's index into them; null is a source of its own."""
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    coded = array.cast(pa.string()).dictionary_encode(null_encoding="encode")
    return tuple(coded.dictionary.to_pylist()), np.asarray(coded.indices, dtype=np.int64)


def _summary(ts: IntArray, lateness: IntArray, delay: IntArray | None, shares: tuple[float, ...]) -> Disorder:
    return Disorder(
        events=len(ts),
        late=int(np.count_nonzero(lateness)),
        quantiles=_quantiles(lateness, shares),
        when_late=_quantiles(lateness[lateness > 0], shares),
        max_lateness=int(lateness.max(initial=0)),
        runs=int(np.count_nonzero(ts[1:] < ts[:-1])) + 1 if len(ts) else 0,
        inversions=inversions(ts),
        delays=None if delay is None else _quantiles(delay, shares),
        per_source={},
    )


def _quantiles(values: IntArray, shares: tuple[float, ...]) -> dict[float, int]:
    """The least value that at least this share of all does not exceed; nothing for an empty stream."""
    if not len(values):
        return {}
    at = np.sort(values)
    # ceil with a guard: 0.9 * 10 must mean the 9th value although it may print as 9.000000000000002
    return {q: int(at[max(int(np.ceil(q * len(at) - 1e-9)) - 1, 0)]) for q in shares}
