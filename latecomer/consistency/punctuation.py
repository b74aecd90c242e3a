"""Punctuation (partial order guarantees): ``<type, ts>`` says that no event of the type with time ``<= ts`` will
arrive any more.

Rules (Liu 2012, §3.6.1, in the "none at or below" reading): keep the largest bound per type; punctuation may be late,
repeated or lost, never taken back. Punctuation for one source binds that source alone; the type's bound follows once
*every* known source has promised as much. Like clocks, bounds are running values: what counts for an event is the
bound at its arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from latecomer.consistency.clock import BEGINNING, I64

#: In columns of punctuation: any type, or any source.
ANY = -1


@dataclass(frozen=True, slots=True)
class Punctuation:
    """n promises of a batch, in order: at ``position`` in the batch, no event of ``type`` (or ANY) from ``source``
    (or ANY) with time ``<= ts`` will follow. Types and sources are numbers; ``known`` is the number of sources known
    at that position.
    """

    position: I64
    type: I64
    ts: I64
    source: I64
    known: I64

    def each(self) -> Iterator[tuple[int, ...]]:
        """The promises one by one."""
        columns = (self.position, self.type, self.ts, self.source, self.known)
        return zip(*(c.tolist() for c in columns), strict=True)


class Bounds:
    """The state of all promises over ``types`` event types."""

    def __init__(self, types: int) -> None:
        self.types = types
        self._whole: I64 = np.full(types, BEGINNING, np.int64)  # the type's bound, over all sources
        self._own: I64 = np.full((types, 0), BEGINNING, np.int64)  # each source's own promise

    def bound(self, type: int) -> int:
        """No more events of the type at or below this time."""
        return int(self._whole[type])

    def least(self, types: Iterable[int]) -> int:
        """The bound that holds for all of ``types``."""
        return min(int(self._whole[t]) for t in types)

    def apply(self, rows: Punctuation) -> History:
        """Take in a batch's promises; the history tells what held at each position."""
        history = History(self._whole.copy(), self._own.copy())
        if (rows.source == ANY).all():
            for kind in range(self.types):
                self._apply_whole(kind, rows, history)
        else:
            self._apply_each(rows, history)
        return history

    def _apply_whole(self, kind: int, rows: Punctuation, history: History) -> None:
        """Promises for all sources: a running maximum per type."""
        of = (rows.type == kind) | (rows.type == ANY)
        if of.any():
            bounds = np.maximum(np.maximum.accumulate(rows.ts[of]), self._whole[kind])
            history.steps[kind] = (rows.position[of], bounds)
            self._whole[kind] = bounds[-1]

    def _apply_each(self, rows: Punctuation, history: History) -> None:
        """One promise after the other: a source's own may raise the type's bound, once every known source has
        spoken."""
        steps: dict[int, list[tuple[int, int]]] = {}
        for position, named, ts, source, known in rows.each():
            self._know(max(known, source + 1))
            for kind in range(self.types) if named == ANY else (named,):
                if source == ANY:
                    raised = ts
                else:
                    own = self._own[kind]
                    if ts > own[source]:
                        own[source] = ts
                        history.own_steps.append((position, kind, source, ts))
                    raised = int(own[: max(known, source + 1)].min())
                if raised > self._whole[kind]:
                    self._whole[kind] = raised
                    steps.setdefault(kind, []).append((position, raised))
        for kind, raises in steps.items():
            at, bounds = zip(*raises, strict=True)
            history.steps[kind] = (np.array(at), np.array(bounds))

    def _know(self, sources: int) -> None:
        missing = sources - self._own.shape[1]
        if missing > 0:
            self._own = np.concatenate((self._own, np.full((self.types, missing), BEGINNING, np.int64)), axis=1)

    def dump(self) -> dict[str, Any]:
        return {"whole": self._whole, "own": self._own.ravel()}

    def load(self, state: dict[str, Any]) -> None:
        self._whole = state["whole"]
        self._own = state["own"].reshape(self.types, -1)


class History:
    """What was promised at each position of one batch."""

    def __init__(self, whole: I64, own: I64) -> None:
        self._whole, self._own = whole, own
        self.steps: dict[int, tuple[I64, I64]] = {}
        self.own_steps: list[tuple[int, int, int, int]] = []

    def whole_at(self, type: int, positions: I64) -> I64:
        """The type's bound at ``positions``."""
        steps = self.steps.get(type)
        if steps is None:
            return np.full(len(positions), self._whole[type], np.int64)
        at, bounds = steps
        result: I64 = np.concatenate((self._whole[type : type + 1], bounds))[at.searchsorted(positions, "left")]
        return result

    def at(self, types: I64, sources: I64, positions: I64) -> I64:
        """For each event the bound that it had to respect: its type's, and its own source's promise."""
        result = np.full(len(types), BEGINNING, np.int64)
        for kind in np.unique(types).tolist():
            of = types == kind
            result[of] = self.whole_at(kind, positions[of])
        spoken = sources < self._own.shape[1]
        if self._own.size and spoken.any():
            result[spoken] = np.maximum(result[spoken], self._own[types[spoken], sources[spoken]])
        for position, kind, source, bound in self.own_steps:
            of = (types == kind) & (sources == source) & (positions > position)
            result[of] = np.maximum(result[of], bound)
        return result
