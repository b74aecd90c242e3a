"""Lattice sums: confidences over uniform intervals of any length, by whole numbers.

Where all distributions concerned are uniform, the number of worlds that are a match is a sum over the times of its
events, and what is summed is a polynomial of each time between *cuts*: the times at which an interval, its own or one
of those that may spoil, begins or ends to matter. A sum of a polynomial over so many times follows from as many values
as its degree, by differences. So the cost depends on how many events are concerned, and not on how long they may take:
a microsecond costs what a minute does. All is computed in whole numbers, so the differences are exact.

Times of the chain follow from each other: for each first time a second one, and so on; sums behind a time are kept
while the first one stays, or for good where the window and the scopes at the ends do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from latecomer.runtime.intervals.question import Scope

_STEPS = 300  # what a step in Python takes of those that are counted


@dataclass(frozen=True, slots=True)
class Spoiler:
    """An event that may lie from ``lower`` to ``upper``, and must not in any of ``scopes``."""

    lower: int
    upper: int
    scopes: tuple[Scope, ...]

    @property
    def size(self) -> int:
        """At how many times it may be."""
        return self.upper - self.lower + 1

    def outside(self, low: int, high: int) -> int:
        """At how many of these times it is not from ``low`` to ``high``."""
        return self.size - max(min(self.upper, high) - max(self.lower, low) + 1, 0)


@dataclass
class Lattice:
    """One candidate. ``spans``: the (earliest, latest) of each of its n events; a spoiler that fits a scope between two
    neighbours may fit others too only if n is 2. ``carry``: whether the first time matters to the last one.
    """

    spans: Sequence[tuple[int, int]]
    spoilers: Sequence[Spoiler]
    window: int
    carry: bool
    _known: dict[tuple[int, int], int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        n, window = len(self.spans), self.window
        inner: list[list[Spoiler]] = [[] for _ in range(n)]  # before each component
        self._ends: list[Spoiler] = []
        for spoiler in self.spoilers:
            left, right = spoiler.scopes[0]
            between = n > 2 and left is not None and right is not None
            (inner[right] if between and right is not None else self._ends).append(spoiler)
        self._inner = inner
        degree = len(self._ends)
        self._degrees = [0] * n
        for j in range(n - 1, -1, -1):
            degree += len(inner[j])
            self._degrees[j] = degree + n - 1 - j
        own = []
        for j, (first, last) in enumerate(self.spans):
            near = [*inner[j], *(inner[j + 1] if j + 1 < n else [])]
            own.append({first, last + 1, *(c for s in near for c in (s.lower, s.upper + 1))})
        begin = set()  # cuts of the first time by itself
        for spoiler in self._ends:
            low, high = spoiler.lower, spoiler.upper + 1
            for left, right in spoiler.scopes:
                begin |= {low - window, high - window} if right is None else {low, high}
                own[-1] |= {low + window + 1, high + window + 1} if left is None else {low, high}
        #: Where a time's polynomial changes, by what it is itself and by what follows it.
        self._cuts = [sorted({c - i + j for i in range(j, n) for c in own[i]}) for j in range(n)]
        if self.carry:
            begin |= {c - window + n - 1 - j for j in range(n) for c in own[j]}
            self._cuts[0] = sorted({*self._cuts[0], *begin})

    def cost(self) -> float:
        """Steps that :meth:`count` takes, about: of times in one stretch half come after a given one."""
        n = len(self.spans)
        samples = []
        for j, (first, last) in enumerate(self.spans):
            parts = len(_parts(self._cuts[j], first, last))
            samples.append(min(parts * (self._degrees[j] + 1), last - first + 1))
        sums = float(samples[0])
        for j in range(1, n):
            reached = samples[j - 1] if j < 2 else samples[j - 1] + samples[j - 2] * (self._degrees[j - 1] + 1)
            sums += (samples[0] if self.carry and j > 1 else 1) * float(reached) * samples[j] / 2**j
        return _STEPS * sums * (1 + len(self.spoilers))

    def count(self) -> int:
        """The number of worlds, of the candidate and its spoilers, in which it is a match."""

        def begun(time: int) -> int:
            if self.carry:
                self._known.clear()
            return self._after(1, time, time)

        return _sum(begun, self._cuts[0], *self.spans[0], self._degrees[0])

    def _after(self, j: int, time: int, begin: int) -> int:
        """Worlds of components from j on, if the one before is at ``time`` and the first one at ``begin``."""
        n = len(self.spans)
        if j == n:
            return self._ended(begin, time)
        known = self._known.get((j, time))
        if known is None:
            first, last = self.spans[j]
            if self.carry:
                last = min(last, begin + self.window - (n - 1 - j))

            def at(later: int) -> int:
                worlds = 1
                for spoiler in self._inner[j]:
                    worlds *= spoiler.outside(time + 1, later - 1)
                return worlds * self._after(j + 1, later, begin)

            known = self._known[j, time] = _sum(at, self._cuts[j], max(first, time + 1), last, self._degrees[j])
        return known

    def _ended(self, begin: int, end: int) -> int:
        """Worlds of the spoilers that look at the first and the last time."""
        worlds = 1
        for spoiler in self._ends:
            own = spoiler.size
            for left, right in spoiler.scopes:
                if left is None:
                    low, high = end - self.window, begin - 1
                elif right is None:
                    low, high = end + 1, begin + self.window
                else:
                    low, high = begin + 1, end - 1
                own -= spoiler.size - spoiler.outside(low, high)
            worlds *= own
            if not worlds:
                break
        return worlds


def _parts(cuts: Iterable[int], first: int, last: int) -> list[tuple[int, int]]:
    """The times from ``first`` to ``last`` in parts that begin at cuts, as (begin, end), the end not included."""
    return list(pairwise([first, *(c for c in cuts if first < c <= last), last + 1]))


def _sum(value: Callable[[int], int], cuts: Iterable[int], first: int, last: int, degree: int) -> int:
    """The sum of ``value`` from ``first`` to ``last``, if between cuts it is a polynomial of at most that degree.

    >>> _sum(lambda t: t**3, [], 1, 10**6, 3) == (10**6 * (10**6 + 1) // 2) ** 2
    True
    """
    if first > last:
        return 0
    result = 0
    for begin, end in _parts(cuts, first, last):
        size = end - begin
        if size <= degree + 1:
            result += sum(map(value, range(begin, end)))
            continue
        values = [value(begin + i) for i in range(degree + 1)]
        ways = size  # to choose i + 1 of the times
        for i in range(degree + 1):
            result += ways * values[0]
            values = [b - a for a, b in pairwise(values)]
            ways = ways * (size - i - 1) // (i + 2)
    return result
