"""A timeline: rows that wait for a moment. Sort buffers and held matches are timelines.

Rows come with a moment each, in any order, and leave in order of moment once the bound passes them. Log-structured
like the stores: a few sorted runs, the smallest at the end; a bound takes a prefix of each run. Rows whose moment is
far may sleep on the shelf until a bound comes near.

Invariant (``_check``): each run is sorted by moment; no run is empty; runs shrink from first to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from latecomer.storage.columns import I64, Array
from latecomer.storage.pager import Outbox, Pager
from latecomer.storage.shelf import Slot


@dataclass(frozen=True, slots=True)
class Asleep:
    """Rows on the shelf, none of whose moments is before ``first``."""

    first: int
    count: int
    slot: Slot


class Timeline:
    """Rows of ``width`` int64 columns, each waiting for its moment.

    >>> t = Timeline(1); t.add(np.array([5, 3]), [np.array([50, 30])]); t.take(3)[1][0].tolist()
    [30]
    """

    def __init__(self, width: int, pager: Pager | None = None) -> None:
        self.width, self._pager = width, pager
        self._runs: list[tuple[Array, ...]] = []
        self._asleep: list[Asleep] = []

    def __len__(self) -> int:
        return sum(len(run[0]) for run in self._runs) + sum(part.count for part in self._asleep)

    def add(self, moments: I64, columns: Sequence[Array]) -> None:
        """Let rows wait: ``moments`` (n,) and ``width`` columns (n,). Amortised O(log n) per row."""
        if not len(moments):
            return
        run: tuple[Array, ...] = (moments, *columns)
        if (moments[1:] < moments[:-1]).any():
            run = _sorted(run)
        while self._runs and len(self._runs[-1][0]) < 2 * len(run[0]):
            last = self._runs.pop()
            run = _sorted(tuple(np.concatenate(pair) for pair in zip(last, run, strict=True)))
        self._runs.append(run)

    def take(self, bound: int) -> tuple[I64, list[Array]]:
        """Remove and return the rows whose moment is at most ``bound``, in order of moment (ties as they came)."""
        self._wake(bound)
        taken: list[tuple[Array, ...]] = []
        left: list[tuple[Array, ...]] = []
        for run in self._runs:
            n = int(run[0].searchsorted(bound, "right"))
            if n:
                taken.append(tuple(c[:n] for c in run))
            if n < len(run[0]):
                left.append(tuple(c[n:] for c in run) if n else run)
        self._runs = left
        if not taken:
            return np.zeros(0, np.int64), [np.zeros(0, np.int64) for _ in range(self.width)]
        run = taken[0]
        if len(taken) > 1:
            run = _sorted(tuple(np.concatenate(parts) for parts in zip(*taken, strict=True)))
        return run[0], list(run[1:])

    def all(self) -> tuple[I64, list[Array]]:
        """Every waiting row, in order of moment; they stay."""
        self._wake(None)
        if not self._runs:
            return np.zeros(0, np.int64), [np.zeros(0, np.int64) for _ in range(self.width)]
        run = _sorted(tuple(np.concatenate(parts) for parts in zip(*self._runs, strict=True)))
        return run[0], list(run[1:])

    def clear(self) -> None:
        """Let all rows go."""
        self._runs = []
        if self._asleep:
            assert self._pager is not None
            self._pager.free(self.slots())
            self._asleep = []

    def earliest(self) -> int | None:
        """The first moment that anything waits for."""
        firsts = [int(run[0][0]) for run in self._runs] + [part.first for part in self._asleep]
        return min(firsts, default=None)

    def awake(self) -> list[Array]:
        """The columns of the rows in memory, in no order."""
        return [np.concatenate([run[i] for run in self._runs] or [_NONE]) for i in range(1, self.width + 1)]

    def sleep(self, slices: I64, bits: int, outbox: Outbox) -> None:
        """Let the rows with moments in these slices (ascending) of ``2**bits`` units leave memory, until a bound
        reaches their slice.
        """
        own = [np.isin(run[0] >> bits, slices) for run in self._runs]
        going = [_masked(run, mask) for run, mask in zip(self._runs, own, strict=True) if mask.any()]
        if not going:
            return
        left = [_masked(run, ~mask) for run, mask in zip(self._runs, own, strict=True) if not mask.all()]
        whole = _sorted(tuple(np.concatenate(columns) for columns in zip(*going, strict=True)))
        numbers = whole[0] >> bits
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        asleep: list[Asleep] = []
        for start, end in pairwise(edges):
            first, count = int(whole[0][start]), end - start

            def then(slot: Slot, first: int = first, count: int = count) -> None:
                asleep.append(Asleep(first, count, slot))

            outbox.add([column[start:end] for column in whole], then)

        def done() -> None:
            self._runs = left
            self._asleep += asleep

        outbox.after(done)

    def _wake(self, bound: int | None) -> None:
        """Bring back what a bound may take (None: all)."""
        due = [part for part in self._asleep if bound is None or part.first <= bound]
        if due:
            assert self._pager is not None
            loaded = [self._pager.load(part.slot) for part in due]
            self._asleep = [part for part in self._asleep if part not in due]
            for moments, *columns in loaded:
                self.add(moments, columns)
            self._pager.free([part.slot for part in due])

    def slots(self) -> list[Slot]:
        """All that the rows need of the shelf."""
        return [part.slot for part in self._asleep]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(c.nbytes for run in self._runs for c in run)

    def dump(self) -> dict[str, Any]:
        return {
            "runs": [list(run) for run in self._runs],
            "asleep": [[part.first, part.count, part.slot] for part in self._asleep],
        }

    def load(self, state: dict[str, Any]) -> None:
        self._runs = [tuple(run) for run in state["runs"]]
        self._asleep = [Asleep(first, count, tuple(slot)) for first, count, slot in state["asleep"]]

    def _check(self) -> None:
        for run in self._runs:
            assert len(run[0]), "empty run"
            assert len(run) == self.width + 1
            assert (run[0][1:] >= run[0][:-1]).all(), "run not sorted"


_NONE = np.zeros(0, np.int64)


def _masked(run: tuple[Array, ...], mask: Array) -> tuple[Array, ...]:
    return tuple(column[mask] for column in run)


def _sorted(run: tuple[Array, ...]) -> tuple[Array, ...]:
    order: Any = run[0].argsort(kind="stable")
    return tuple(c[order] for c in run)
