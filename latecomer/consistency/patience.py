"""Patience: how long the aggressive level lets a match with negation wait before it leaves.

Adaptive patience waits as little as needed so that at most a share of the emitted matches is taken back later. It
learns from every match that a late negative kills, whether the match had left or was still waiting: *delay* is how
far the clock had passed the match's last scope when the negative came, so the match would have been taken back by
every shorter patience.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from latecomer.consistency.clock import I64
from latecomer.consistency.lateness import LatenessWindow


class Patience(Protocol):
    """How long matches wait now, in units."""

    wait: int
    longest: int

    def learn(self, delays: I64, matches: int) -> None:
        """``matches`` new matches were found, and matches were killed, ``delays`` after they were complete."""
        ...

    def dump(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class FixedPatience:
    """Always the same."""

    def __init__(self, wait: int) -> None:
        self.wait = self.longest = wait

    def learn(self, delays: I64, matches: int) -> None:
        """Nothing to learn."""

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class AdaptivePatience:
    """The least patience under which the share of matches taken back stays under ``retractions``, at most ``longest``.

    Begins with the longest, so that nothing is taken back before anything is known.
    """

    #: Aim below the allowed share: the window looks back, while delays may grow.
    _MARGIN = 0.7
    _BLOCK, _BLOCKS = 256, 8

    def __init__(self, retractions: float, longest: int) -> None:
        self._allowed = retractions * self._MARGIN
        self.longest = longest
        self.wait = longest
        # One entry for each match found (delay 0), and one for each match killed.
        self._seen = LatenessWindow(self._BLOCK, self._BLOCKS)

    def learn(self, delays: I64, matches: int) -> None:
        entries = np.concatenate((np.zeros(matches, np.int64), np.maximum(delays, 0)))
        start = 0
        while start < len(entries):
            end = start + self._seen.room
            part = entries[start:end]
            if self._seen.add(np.zeros(len(part), np.int64), part):
                self.wait = self._choose()
            start = end

    def _choose(self) -> int:
        low, high = 0, self.longest
        while low < high:
            middle = (low + high) // 2
            # As shares of all entries: found matches, those of them killed, those killed later than `middle`. Matches
            # that were killed while they waited were never emitted.
            killed, taken_back = self._seen.tail(0, 0), self._seen.tail(0, middle)
            emitted = (1.0 - killed) - killed + taken_back
            if emitted > 0.0 and taken_back / emitted <= self._allowed:
                high = middle
            else:
                low = middle + 1
        return low

    def dump(self) -> dict[str, Any]:
        return {"wait": self.wait, "seen": self._seen.dump()}

    def load(self, state: dict[str, Any]) -> None:
        self.wait = state["wait"]
        self._seen.load(state["seen"])
