"""Slices of event time, told event by event: many events, few slices.

What is the same for all events of a slice is worked out once for each slice and looked up for each event. Slices of
one log lie close together but for a few events whose time is far off; so there is a table over all of them where that
is short, and sorting where it is not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latecomer.storage.columns import I64, Array

_TABLE = 1 << 12  # slices; a table of so many is always short


def _close(slices: I64) -> tuple[int, int] | None:
    """First and last slice, where a table over all between is short."""
    first, last = int(slices.min()), int(slices.max())
    return (first, last) if last - first < max(_TABLE, len(slices)) else None


def by_slice(slices: I64, of: Callable[[I64], Array]) -> Array:
    """``of(slices)``, where ``of`` looks at each slice by itself; it is asked about few of them.

    >>> by_slice(np.array([7, 5, 7]), lambda some: some * 10).tolist()
    [70, 50, 70]
    """
    if not len(slices):
        return of(slices)
    if (close := _close(slices)) is not None:
        return of(np.arange(close[0], close[1] + 1)).take(slices - close[0])
    distinct, at = np.unique(slices, return_inverse=True)
    return of(distinct).take(at)


def counted(slices: I64) -> tuple[I64, I64]:
    """The different slices, ascending, and how many events each has.

    >>> [part.tolist() for part in counted(np.array([7, 5, 7]))]
    [[5, 7], [1, 2]]
    """
    if not len(slices):
        return slices, np.zeros(0, np.int64)
    if (close := _close(slices)) is None:
        distinct, counts = np.unique(slices, return_counts=True)
        return distinct, counts
    counts = np.bincount(slices - close[0])
    at = counts.nonzero()[0]
    return at + close[0], counts.take(at)
