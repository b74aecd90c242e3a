"""Clocks: how far a stream's event time has come, event by event.

Rules (design §3):

* the clock is the largest event time seen; with a quorum of q the q-th largest of the sources' own clocks, so that q
  - 1 broken sources cannot move it; with a clock per source the least of the sources' own clocks;
* it never moves back, and it is a *running* value: an event is judged by the clock at its own arrival, so no answer
  depends on how the stream is cut into batches;
* declared sources that have not spoken hold a clock per source at its start; undeclared ones join at the present clock;
* a source that was silent for the idle timeout holds nothing back until its next event; when all are silent the clock
  follows ``now - idle_timeout``. Nothing here reads a clock: ``now`` comes in through ``hear``, and a source counts
  as heard at the first ``hear`` after its event.
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

    def hear(self, now: int) -> None:
        """It is ``now`` (in units of event time): sources that were silent for too long hold nothing back."""
        ...

    def own(self, source: int) -> int:
        """How far one source has come."""
        ...

    def idle(self, source: int) -> bool:
        """Whether a source was silent for the idle timeout."""
        ...

    def dump(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class Silence:
    """Since when each source has been silent, by the ``now`` that the edge passes."""

    def __init__(self, sources: int, timeout: int | None) -> None:
        self.timeout = timeout
        self.idle = np.zeros(sources, bool)
        self._heard: I64 = np.full(sources, BEGINNING, np.int64)
        self._fresh = np.zeros(sources, bool)

    def grow(self, sources: int) -> None:
        """There are this many sources now."""
        missing = sources - len(self.idle)
        if missing > 0:
            self.idle = np.append(self.idle, np.zeros(missing, bool))
            self._heard = np.append(self._heard, np.full(missing, BEGINNING))
            self._fresh = np.append(self._fresh, np.zeros(missing, bool))

    def spoke(self, sources: I64 | int) -> None:
        self._fresh[sources] = True
        self.idle[sources] = False

    def hear(self, now: int) -> bool:
        """Note who is idle; return whether all are. Without a timeout nobody ever is."""
        first = self._heard == BEGINNING
        self._heard[self._fresh | first] = now
        self._fresh[:] = False
        if self.timeout is None:
            return False
        self.idle |= now - self._heard >= self.timeout
        return bool(self.idle.all()) and len(self.idle) > 0

    def heard(self, source: int) -> int | None:
        """The ``now`` at which a source was last heard; None before the first."""
        known = source < len(self._heard) and int(self._heard[source]) > BEGINNING
        return int(self._heard[source]) if known else None

    def dump(self) -> dict[str, Any]:
        return {"idle": self.idle, "heard": self._heard, "fresh": self._fresh}

    def load(self, state: dict[str, Any]) -> None:
        self.idle, self._heard, self._fresh = state["idle"], state["heard"], state["fresh"]


class StreamClock:
    """One clock for all: the largest event time seen.

    >>> StreamClock().observe(np.array([3, 1, 5]), np.zeros(3, np.int64)).tolist()
    [3, 3, 5]
    """

    def __init__(self, idle_timeout: int | None = None) -> None:
        self.value = BEGINNING
        self._silence = Silence(1, idle_timeout)

    def observe(self, ts: I64, sources: I64) -> I64:
        if not len(ts):
            return ts
        self._silence.spoke(0)
        running = np.maximum.accumulate(ts)
        if int(running[0]) < self.value:
            running = np.maximum(running, self.value)
        self.value = int(running[-1])
        return running

    def pass_by(self, value: int) -> None:
        """Take in events after which the clock is at ``value``, as somebody else has worked out."""
        self._silence.spoke(0)
        self.value = value

    def reach(self, ts: int) -> None:
        self.value = max(self.value, ts)

    def hear(self, now: int) -> None:
        if self._silence.hear(now):
            self.reach(now - (self._silence.timeout or 0))

    def own(self, source: int) -> int:
        return self.value

    def idle(self, source: int) -> bool:
        return bool(self._silence.idle[0])

    def dump(self) -> dict[str, Any]:
        return {"value": self.value, "silence": self._silence.dump()}

    def load(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
        self._silence.load(state["silence"])


class _PerSource:
    """What clocks that know each source's own largest time have in common."""

    def __init__(self, declared: int, idle_timeout: int | None) -> None:
        self.value: int = BEGINNING
        self.sources: I64 = np.full(declared, BEGINNING, np.int64)
        self._declared = declared
        self._silence = Silence(declared, idle_timeout)

    def reach(self, ts: int) -> None:
        self.value = max(self.value, ts)

    def own(self, source: int) -> int:
        return int(self.sources[source]) if source < len(self.sources) else BEGINNING

    def idle(self, source: int) -> bool:
        return source < len(self.sources) and bool(self._silence.idle[source])

    def _grow(self, sources: int) -> None:
        missing = sources - len(self.sources)
        if missing > 0:
            self.sources = np.append(self.sources, np.full(missing, BEGINNING))
            self._silence.grow(sources)

    def dump(self) -> dict[str, Any]:
        return {"value": self.value, "sources": self.sources, "silence": self._silence.dump()}

    def load(self, state: dict[str, Any]) -> None:
        self.value, self.sources = state["value"], state["sources"]
        self._silence.load(state["silence"])


class SourceClock(_PerSource):
    """One clock per source, combined by the minimum over the sources that are not idle.

    Source numbers count from 0 in order of first appearance, declared ones first. ``lag``: how far the clock stays
    behind ``now - idle_timeout`` when all sources are idle.

    >>> clock = SourceClock(declared=2)
    >>> clock.observe(np.array([3, 9, 5]), np.array([0, 1, 0])).tolist()[1:]
    [3, 5]
    """

    def __init__(self, declared: int = 0, idle_timeout: int | None = None, lag: int = 0) -> None:
        super().__init__(declared, idle_timeout)
        self._lag = lag

    def observe(self, ts: I64, sources: I64) -> I64:
        pieces: list[I64] = []
        start = 0
        while start < len(ts):
            # Between two arrivals of sources that are new or come back, the set of sources that hold the clock is
            # fixed, which is what the vectorised step needs.
            rest = sources[start:]
            known = np.minimum(rest, len(self.sources) - 1)
            joins = (rest >= len(self.sources)) | self._silence.idle[known] if len(self.sources) else rest >= 0
            first = int(joins.argmax())
            end = start + first if joins[first] else len(ts)
            if end > start:
                pieces.append(self._observe_active(ts[start:end], sources[start:end]))
            if end < len(ts):
                self._join(int(sources[end]), int(ts[end]))
                pieces.append(np.array([self.value]))
                end += 1
            start = end
        return np.concatenate(pieces) if pieces else ts

    def _join(self, source: int, ts: int) -> None:
        """The first event of a source, or the first after it was idle."""
        known = len(self.sources)
        self._grow(source + 1)
        self._silence.idle[known:] = True  # sources in between are only known by name: they hold nothing
        if source >= self._declared and self.sources[source] == BEGINNING:
            ts = max(ts, self.value)
        self.sources[source] = max(int(self.sources[source]), ts)
        self._silence.spoke(np.array([source]))
        self._combine()

    def _combine(self) -> None:
        active = self.sources[~self._silence.idle]
        if len(active):
            self.value = max(self.value, int(active.min()))

    def _observe_active(self, ts: I64, sources: I64) -> I64:
        """The running minimum of the sources' running maxima, without a loop; all senders are active.

        Think of each source's history as steps (value, position of its next event). The minimum after position p is the
        least value among the steps whose next event is still to come after p.
        """
        self._silence.spoke(sources)
        active = np.flatnonzero(~self._silence.idle)
        n = len(ts)
        who = np.concatenate((active, sources))
        when = np.concatenate((np.full(len(active), -1), np.arange(n)))
        what = np.concatenate((self.sources[active], ts))
        order = np.lexsort((when, who))
        who, when, what = who[order], when[order], what[order]
        values, rank = np.unique(what, return_inverse=True)
        base = who * len(values)
        own = values[np.maximum.accumulate(base + rank) - base]  # the running maximum within each source
        last = np.append(who[1:] != who[:-1], True)
        self.sources[who[last]] = own[last]
        following = np.where(last, n, np.append(when[1:], n))
        order = own.argsort(kind="stable")
        passed = np.maximum.accumulate(following[order])
        least = own[order][passed.searchsorted(np.arange(n), "right")]
        running = np.maximum(np.maximum.accumulate(least), self.value)
        self.value = int(running[-1])
        return running

    def hear(self, now: int) -> None:
        if self._silence.hear(now):
            self.reach(now - (self._silence.timeout or 0) - self._lag)
        else:
            self._combine()


class QuorumClock(_PerSource):
    """The q-th largest of the sources' own clocks: q - 1 sources with broken clocks cannot move it.

    It has not begun before q sources have spoken.

    >>> clock = QuorumClock(2)
    >>> clock.observe(np.array([3, 9_000, 5]), np.array([0, 1, 0])).tolist()[1:]
    [3, 5]
    """

    #: How many (source, event) cells are looked at together; bounds the memory of a step.
    _CELLS = 1 << 20

    def __init__(self, quorum: int, declared: int = 0, idle_timeout: int | None = None) -> None:
        super().__init__(declared, idle_timeout)
        self.quorum = quorum

    def observe(self, ts: I64, sources: I64) -> I64:
        step = max(self._CELLS // max(len(self.sources) + 64, 256), 64)
        starts = range(0, len(ts), step)
        pieces = [self._observe_some(ts[at : at + step], sources[at : at + step]) for at in starts]
        return np.concatenate(pieces) if pieces else ts

    def _observe_some(self, ts: I64, sources: I64) -> I64:
        self._grow(int(sources.max()) + 1)
        self._silence.spoke(sources)
        senders, row = np.unique(sources, return_inverse=True)
        clocks = np.full((len(senders), len(ts) + 1), BEGINNING)
        clocks[:, 0] = self.sources[senders]
        clocks[row, np.arange(1, len(ts) + 1)] = ts
        np.maximum.accumulate(clocks, axis=1, out=clocks)
        self.sources[senders] = clocks[:, -1]
        silent = np.delete(self.sources, senders)
        if len(silent) > self.quorum:
            silent = np.partition(silent, -self.quorum)[-self.quorum :]
        table = np.concatenate((clocks[:, 1:], np.repeat(silent[:, None], len(ts), axis=1)))
        if len(table) < self.quorum:
            return np.full(len(ts), self.value)
        nth = np.partition(table, -self.quorum, axis=0)[-self.quorum]
        running = np.maximum(np.maximum.accumulate(nth), self.value)
        self.value = int(running[-1])
        return running

    def hear(self, now: int) -> None:
        if self._silence.hear(now):
            self.reach(now - (self._silence.timeout or 0))
