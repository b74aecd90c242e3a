"""Clocks: how far a stream's event time has come, event by event.

Rules (design §3): the clock is the largest event time seen, or, with a clock per source, the least of the sources'
own largest times. It never moves back. It is a *running* value: an event is judged by the clock at its own arrival,
so no answer depends on how the stream is cut into batches. Declared sources that have not spoken hold a clock per
source at its start; undeclared ones join at the present clock.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

#: Event times lie within ``-FAR .. FAR`` and durations within ``LONGEST``, so that sums of them fit 64 bits;
#: BEGINNING and END lie beyond all of that and stand for "not begun" and "complete".
FAR = 2**62
LONGEST = 2**59
BEGINNING = -(2**62 + 2**61)
END = 2**62 + 2**61


class Clock(Protocol):
    """What the runtime needs of a clock."""

    value: int

    def observe(self, ts: I64, sources: I64) -> I64:
        """Take in events in order of arrival (times, source numbers); return the clock at each of them."""
        ...

    def reach(self, ts: int) -> None:
        """The stream is known to have come this far (seen elsewhere)."""
        ...

    def dump(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class StreamClock:
    """One clock for all: the largest event time seen.

    >>> StreamClock().observe(np.array([3, 1, 5]), np.zeros(3, np.int64)).tolist()
    [3, 3, 5]
    """

    def __init__(self) -> None:
        self.value = BEGINNING

    def observe(self, ts: I64, sources: I64) -> I64:
        if not len(ts):
            return ts
        running = np.maximum.accumulate(ts)
        if int(running[0]) < self.value:
            running = np.maximum(running, self.value)
        self.value = int(running[-1])
        return running

    def reach(self, ts: int) -> None:
        self.value = max(self.value, ts)

    def dump(self) -> dict[str, Any]:
        return {"value": self.value}

    def load(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class SourceClock:
    """One clock per source, combined by their minimum.

    Source numbers count from 0 in order of first appearance, declared ones first.

    >>> clock = SourceClock(declared=2)
    >>> clock.observe(np.array([3, 9, 5]), np.array([0, 1, 0])).tolist()[1:]
    [3, 5]
    """

    def __init__(self, declared: int = 0) -> None:
        self.value = BEGINNING
        self.sources: I64 = np.full(declared, BEGINNING, np.int64)

    def observe(self, ts: I64, sources: I64) -> I64:
        pieces: list[I64] = []
        start = 0
        while start < len(ts):
            # Between two first appearances the set of sources is fixed, which is what the vectorised step needs.
            new = np.flatnonzero(sources[start:] >= len(self.sources))
            end = start + int(new[0]) if len(new) else len(ts)
            if end > start:
                pieces.append(self._observe_known(ts[start:end], sources[start:end]))
            if end < len(ts):
                joined = max(int(ts[end]), self.value)
                missing = int(sources[end]) + 1 - len(self.sources)
                self.sources = np.concatenate((self.sources, np.full(missing, joined, np.int64)))
                self.value = max(self.value, int(self.sources.min()))
                pieces.append(np.array([self.value]))
                end += 1
            start = end
        return np.concatenate(pieces) if pieces else ts

    def _observe_known(self, ts: I64, sources: I64) -> I64:
        """The running minimum of the sources' running maxima, without a loop.

        Think of each source's history as steps (value, position of its next event). The minimum after position p is
        the least value among the steps whose next event is still to come after p.
        """
        n, known = len(ts), len(self.sources)
        who = np.concatenate((np.arange(known), sources))
        when = np.concatenate((np.full(known, -1), np.arange(n)))
        what = np.concatenate((self.sources, ts))
        order = np.lexsort((when, who))
        who, when, what = who[order], when[order], what[order]
        values, rank = np.unique(what, return_inverse=True)
        own = values[
            np.maximum.accumulate(who * len(values) + rank) - who * len(values)
        ]  # running maximum within a source
        last = np.append(who[1:] != who[:-1], True)
        self.sources = own[last]
        following = np.where(last, n, np.append(when[1:], n))
        order = own.argsort(kind="stable")
        passed = np.maximum.accumulate(following[order])
        least = own[order][passed.searchsorted(np.arange(n), "right")]
        running = np.maximum(np.maximum.accumulate(least), self.value)
        self.value = int(running[-1])
        return running

    def reach(self, ts: int) -> None:
        self.value = max(self.value, ts)

    def dump(self) -> dict[str, Any]:
        return {"value": self.value, "sources": self.sources}

    def load(self, state: dict[str, Any]) -> None:
        self.value, self.sources = state["value"], state["sources"]
