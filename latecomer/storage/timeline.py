"""A timeline: rows that wait for a moment. Sort buffers and held matches are timelines.

Rows come with a moment each, in any order, and leave in order of moment once the bound passes them. Log-structured
like the
stores: a few sorted runs, the smallest at the end; a bound takes a prefix of each run.

Invariant (``_check``): each run is sorted by moment; no run is empty; runs shrink from first to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latecomer.storage.columns import I64, Array


class Timeline:
    """Rows of ``width`` int64 columns, each waiting for its moment.

    >>> t = Timeline(1); t.add(np.array([5, 3]), [np.array([50, 30])]); t.take(3)[1][0].tolist()
    [30]
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._runs: list[tuple[Array, ...]] = []

    def __len__(self) -> int:
        return sum(len(run[0]) for run in self._runs)

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
        if not self._runs:
            return np.zeros(0, np.int64), [np.zeros(0, np.int64) for _ in range(self.width)]
        run = _sorted(tuple(np.concatenate(parts) for parts in zip(*self._runs, strict=True)))
        return run[0], list(run[1:])

    def earliest(self) -> int | None:
        """The first moment that anything waits for."""
        return min((int(run[0][0]) for run in self._runs), default=None)

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for run in self._runs for c in run)

    def dump(self) -> list[list[Array]]:
        return [list(run) for run in self._runs]

    def load(self, state: Sequence[Sequence[Array]]) -> None:
        self._runs = [tuple(run) for run in state]

    def _check(self) -> None:
        for run in self._runs:
            assert len(run[0]), "empty run"
            assert len(run) == self.width + 1
            assert (run[0][1:] >= run[0][:-1]).all(), "run not sorted"


def _sorted(run: tuple[Array, ...]) -> tuple[Array, ...]:
    order: Any = run[0].argsort(kind="stable")
    return tuple(c[order] for c in run)
