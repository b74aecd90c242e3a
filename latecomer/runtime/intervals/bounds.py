"""Valid bounds: whether events in uncertain order can be a match, and when each of them can then happen.

A chain ``t1 < … < tn`` with ``tn - t1 <= W`` and each time in its own interval is a system of difference constraints.
Four passes make the intervals as tight as they can be (Zhang 2010 §5.1, and the pass that it lacks):

1. forward: ``vlb[j] = max(vlb[j-1] + gap[j], lower[j])``;
2. the window, forward: ``vlb[1] >= vlb[n] - W``, then 1 again;
3. backward: ``vub[j] = min(vub[j+1] - gap[j+1], upper[j])``;
4. the window, backward: ``vub[n] <= vub[1] + W``, then 3 again.

The events can be a match iff no interval is empty and the window is no shorter than the chain. Then every instant of
every valid interval belongs to some match: only the chain and the window form a cycle among the constraints, and that
guard says it has no negative length, so one turn reaches the shortest paths. Chains of which only some components are
bound have gaps longer than 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latecomer.storage.columns import I64
from latecomer.storage.store import Bools


def valid_bounds(
    lower: Sequence[I64], upper: Sequence[I64], gaps: Sequence[int], window: int
) -> tuple[list[I64], list[I64], Bools]:
    """The tightest (earliest, latest) of each of n chained events for m candidates, and which of these are possible.

    ``lower`` and ``upper`` are n arrays (m,); ``gaps`` has n - 1 least distances between neighbours. O(n·m).

    >>> ends = np.array([1]), np.array([7])
    >>> first, last, possible = valid_bounds(ends, (np.array([5]), np.array([7])), [1], 3)
    >>> first[0], last[1], possible
    (array([4]), array([7]), array([ True]))
    """
    earliest, latest = list(lower), list(upper)
    n = len(earliest)
    for turn in range(2):
        for j, gap in enumerate(gaps, 1):
            earliest[j] = np.maximum(earliest[j - 1] + gap, earliest[j])
        for j in range(n - 2, -1, -1):
            latest[j] = np.minimum(latest[j + 1] - gaps[j], latest[j])
        if turn == 0 and n > 1:
            earliest[0] = np.maximum(earliest[0], earliest[-1] - window)
            latest[-1] = np.minimum(latest[-1], latest[0] + window)
    possible = np.full(len(lower[0]), sum(gaps) <= window)
    for first, last in zip(earliest, latest, strict=True):
        possible &= first <= last
    return earliest, latest, possible
