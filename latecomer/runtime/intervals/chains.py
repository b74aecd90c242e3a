"""Partial matches over intervals, as columns: for each bound component its events and when each may have happened.

``ts`` of the base class are the *lower* ends here; ``uppers[i]`` are the upper ends of a bound component i. Valid
bounds are not kept: they follow from what is bound, and four passes over a few arrays are cheaper than carrying them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latecomer.runtime.intervals.bounds import valid_bounds
from latecomer.runtime.rows import Rows
from latecomer.storage.columns import I64, Array
from latecomer.storage.hashing import U64
from latecomer.storage.store import Bools


class Chains(Rows):
    """n partial matches of events with intervals."""

    __slots__ = ("uppers",)

    def __init__(self, refs: list[I64 | None], ts: list[I64 | None], uppers: list[I64 | None], keys: U64) -> None:
        super().__init__(refs, ts, keys)
        self.uppers = uppers

    @classmethod
    def begin(cls, components: int, index: int, refs: I64, lower: I64, upper: I64, keys: U64) -> Chains:
        """Partial matches in which only component ``index`` is bound."""
        nothing: list[I64 | None] = [None] * components
        chains = cls(list(nothing), list(nothing), list(nothing), keys)
        chains.refs[index], chains.ts[index], chains.uppers[index] = refs, lower, upper
        return chains

    def take(self, which: Array) -> Chains:
        """The rows at positions, or under a mask."""
        at = which.nonzero()[0] if which.dtype == bool else which
        refs, lowers, uppers = (_taken(side, at) for side in (self.refs, self.ts, self.uppers))
        return Chains(refs, lowers, uppers, self.keys.take(at))

    def bound(self, index: int, owner: I64, refs: I64, lower: I64, upper: I64) -> Chains:
        """Extend row ``owner[i]`` by the event ``refs[i]``."""
        extended = self.take(owner)
        extended.refs[index], extended.ts[index], extended.uppers[index] = refs, lower, upper
        return extended

    def unbind(self, index: int) -> Chains:
        """The same rows without component ``index``."""
        refs, lowers, uppers = list(self.refs), list(self.ts), list(self.uppers)
        refs[index] = lowers[index] = uppers[index] = None
        return Chains(refs, lowers, uppers, self.keys)

    def upper(self, index: int) -> I64:
        """Upper ends of a component that must be bound."""
        found = self.uppers[index]
        assert found is not None, f"component {index} is not bound"
        return found

    def bounds(self, links: Chain, window: int) -> tuple[list[I64], list[I64], Bools]:
        """Valid bounds of the bound components ``links``, in their order, and which rows are possible."""
        lower, upper = [self.time(i) for i in links.indexes], [self.upper(i) for i in links.indexes]
        return valid_bounds(lower, upper, links.gaps, window)


def _taken(columns: list[I64 | None], at: I64) -> list[I64 | None]:
    return [None if c is None else c.take(at) for c in columns]


class Chain:
    """Bound components in the order of the pattern, and the least time between each two neighbours: one unit for each
    step from positive to positive, bound or not.
    """

    __slots__ = ("gaps", "indexes")

    def __init__(self, indexes: Sequence[int], positives: Sequence[int]) -> None:
        self.indexes = tuple(sorted(indexes))
        pairs = zip(self.indexes[:-1], self.indexes[1:], strict=True)
        self.gaps = [1 + sum(a < p < b for p in positives) for a, b in pairs]


class Place:
    """Where one more component goes among the bound ones, and so when it can happen."""

    __slots__ = ("after", "all", "before", "bound", "gap_after", "gap_before", "window")

    def __init__(self, index: int, bound: Sequence[int], positives: Sequence[int], window: int) -> None:
        self.bound = Chain(bound, positives)
        self.all = Chain([*bound, index], positives)
        at = self.all.indexes.index(index)
        self.before = at - 1 if at else None
        self.after = at if at < len(bound) else None
        self.gap_before = self.all.gaps[at - 1] if at else 0
        self.gap_after = self.all.gaps[at] if at < len(bound) else 0
        self.window = window

    def times(self, rows: Chains) -> tuple[I64, I64]:
        """The first and the last time that the component can have beside what is bound."""
        earliest, latest, _ = rows.bounds(self.bound, self.window)
        if self.before is None:
            lo = earliest[-1] - self.window
        else:
            lo = earliest[self.before] + self.gap_before
        if self.after is None:
            hi = latest[0] + self.window
        else:
            hi = latest[self.after] - self.gap_after
        return lo, hi

    def possible(self, rows: Chains) -> Bools:
        """Which rows, with the component bound, are still possible."""
        return rows.bounds(self.all, self.window)[2]


def distinct(rows: Chains, index: int, others: Sequence[int]) -> Bools:
    """Which rows have another event as component ``index`` than as any of ``others``: no event fills two places."""
    refs = rows.ref(index)
    mask = np.ones(len(rows), bool)
    for other in others:
        mask &= refs != rows.ref(other)
    return mask
