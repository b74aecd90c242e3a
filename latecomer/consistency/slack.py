"""Slack: how far behind the clock the K-slack level waits. Config in ``levels.py``, logic here.

A slack turns each arrival into the *limit* that holds for it: the least event time that is still on time. The limit
is a running value and never moves back, whatever the slack does. Fixed slack is Liu 2012, §3.5. Adaptive slack
follows the idea of quality-driven disorder handling (AQ-K-slack, Ji et al. 2015-2017): choose the least k whose
expected loss is within what the user allows. A match is lost when any of its positives comes more than k late, so
with per-type shares p(k) the expected loss of a pattern is ``1 - product(1 - p(k))`` over its positives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import BEGINNING, I64, SourceClock
from latecomer.consistency.lateness import LatenessWindow, Part


class Slack(Protocol):
    """Turns arrivals into limits."""

    longest: int  #: no slack is ever longer

    @property
    def limit(self) -> int:
        """The limit now."""
        ...

    def observe(self, arrivals: Arrivals) -> I64:
        """The limit at each arrival."""
        ...

    def advance(self, clock: int, now: int | None) -> None:
        """The clock, or the wall clock, has moved without an arrival."""
        ...

    def facts(self) -> dict[str, Any]:
        """The slack in use, for explain."""
        ...

    def dump(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class FixedSlack:
    """``limit = clock - k``."""

    def __init__(self, k: int) -> None:
        self.longest = k
        self.limit = BEGINNING

    def observe(self, arrivals: Arrivals) -> I64:
        return arrivals.clock - self.longest

    def advance(self, clock: int, now: int | None) -> None:
        self.limit = max(self.limit, clock - self.longest)

    def facts(self) -> dict[str, Any]:
        return {"k": self.longest}

    def dump(self) -> dict[str, Any]:
        return {"limit": self.limit}

    def load(self, state: dict[str, Any]) -> None:
        self.limit = state["limit"]


class LargestSlack:
    """Slacks by source under one clock: the largest slack among the sources known so far decides."""

    def __init__(self, k: int, by_source: Mapping[Any, int], declared: Sequence[Any]) -> None:
        self._default, self._by_source = k, dict(by_source)
        self.longest = max([k, *self._by_source.values()])
        self._known = max((self._by_source.get(name, k) for name in declared), default=-1)  # -1: no source yet
        self.limit = BEGINNING

    def observe(self, arrivals: Arrivals) -> I64:
        if not len(arrivals.ts):
            return arrivals.ts
        of = np.array([self._by_source.get(name, self._default) for name in arrivals.names] or [self._default])
        slack = np.maximum(np.maximum.accumulate(of[arrivals.sources]), self._known)
        self._known = int(slack[-1])
        limits = np.maximum(np.maximum.accumulate(arrivals.clock - slack), self.limit)
        self.limit = int(limits[-1])
        return limits

    def advance(self, clock: int, now: int | None) -> None:
        if self._known >= 0:
            self.limit = max(self.limit, clock - self._known)

    def facts(self) -> dict[str, Any]:
        return {"k": max(self._known, 0)}

    def dump(self) -> dict[str, Any]:
        return {"limit": self.limit, "known": self._known}

    def load(self, state: dict[str, Any]) -> None:
        self.limit, self._known = state["limit"], state["known"]


class SourceSlack:
    """Slacks by source under a clock per source: the least of (own clock - own slack) over the active sources
    decides."""

    def __init__(self, k: int, by_source: Mapping[Any, int], declared: Sequence[Any], idle_timeout: int | None) -> None:
        self._default, self._by_source = k, dict(by_source)
        self.longest = max([k, *self._by_source.values()])
        self._clock = SourceClock(len(declared), idle_timeout, lag=self.longest)

    @property
    def limit(self) -> int:
        return self._clock.value

    def observe(self, arrivals: Arrivals) -> I64:
        if not len(arrivals.ts):
            return arrivals.ts
        of = np.array([self._by_source.get(name, self._default) for name in arrivals.names])
        limits: I64 = self._clock.observe(arrivals.ts - of[arrivals.sources], arrivals.sources)
        # What is known of the stream's clock from elsewhere counts too.
        limits = np.maximum(limits, arrivals.clock - self.longest)
        self._clock.reach(int(limits[-1]))
        return limits

    def advance(self, clock: int, now: int | None) -> None:
        self._clock.reach(clock - self.longest)
        if now is not None:
            self._clock.hear(now)

    def facts(self) -> dict[str, Any]:
        return {"k": self.longest, "k_by_source": {str(n): k for n, k in self._by_source.items()}}

    def dump(self) -> dict[str, Any]:
        return self._clock.dump()

    def load(self, state: dict[str, Any]) -> None:
        self._clock.load(state)


class AdaptiveSlack:
    """The least slack whose expected loss of matches stays under ``1 - recall``, at most ``longest``.

    ``positives`` are the type numbers of the pattern's positives, each as often as it occurs. Begins with the longest
    slack, so that nothing is lost before anything is known.
    """

    #: Aim below the allowed loss: the window looks back, while delays may grow.
    _MARGIN = 0.7

    def __init__(self, recall: float, longest: int, positives: Sequence[int]) -> None:
        self._allowed = (1.0 - recall) * self._MARGIN
        self.longest = longest
        self._positives = list(positives)
        self._seen = LatenessWindow(blocks=4)  # about 8,000 events: long enough for 99 %, short enough for drift
        self.k = longest
        self.limit = BEGINNING

    def observe(self, arrivals: Arrivals) -> I64:
        limits = np.empty(len(arrivals.ts), np.int64)
        lateness = arrivals.clock - arrivals.ts
        start = 0
        while start < len(limits):
            end = min(start + self._seen.room, len(limits))
            limits[start:end] = np.maximum(arrivals.clock[start:end] - self.k, self.limit)
            self.limit = int(limits[end - 1])
            if self._seen.add(arrivals.types[start:end], lateness[start:end]):
                self.k = self._choose()
            start = end
        return limits

    def _choose(self) -> int:
        """What the window asks for; while delays grow, what they will ask for by the end of the next block: the halves
        of the window lie as far apart as the newer one lies from there.
        """
        steady = self._least("all")
        if self._seen.blocks < 2:
            return steady
        newer, older = self._least("newer"), self._least("older")
        return min(max(steady, newer + max(newer - older, 0)), self.longest)

    def _least(self, part: Part) -> int:
        """The least slack whose expected loss is allowed, by one part of the window."""
        low, high = 0, self.longest
        while low < high:
            middle = (low + high) // 2
            if self._loss(middle, part) <= self._allowed:
                high = middle
            else:
                low = middle + 1
        return low

    def _loss(self, k: int, part: Part = "all") -> float:
        kept = 1.0
        for kind in self._positives:
            kept *= 1.0 - self._seen.tail(kind, k, part)
        return 1.0 - kept

    def advance(self, clock: int, now: int | None) -> None:
        self.limit = max(self.limit, clock - self.k)

    def facts(self) -> dict[str, Any]:
        return {"k": self.k, "longest": self.longest, "expected_loss": self._loss(self.k)}

    def dump(self) -> dict[str, Any]:
        return {"limit": self.limit, "k": self.k, "seen": self._seen.dump()}

    def load(self, state: dict[str, Any]) -> None:
        self.limit, self.k = state["limit"], state["k"]
        self._seen.load(state["seen"])
