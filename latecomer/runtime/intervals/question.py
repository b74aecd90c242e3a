"""What is asked when a confidence is computed: candidates, and the events that could spoil them.

A candidate is n events in the order of the pattern, with their valid bounds. A *guard* is a place where certain events
must not happen: a negation's scope, or under skip-till-next-match the stretch before a component, where no other event
may fit. A *hit* is an event that fits a guard of a candidate and may fall in its scope. Scopes are

* middle, ``(left, right)``: between two neighbours, open;
* leading, ``(None, 0)``: ``[tn - W, t1)``; trailing, ``(n - 1, None)``: ``(tn, t1 + W]``.

Given the times of a candidate's own events, other events are independent of each other: the candidate is a match with
probability ``prod(1 - P(event in any scope that it fits))``. Own events never spoil: in a match none of them lies in a
scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from latecomer.runtime.intervals.pmf import F64, Distributions
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

#: The number of the positive before a scope, and of the one after it.
Scope = tuple[int | None, int | None]
#: Where candidates (numbers) pass for these times of theirs.
TimeTest = Callable[[I64, Sequence[I64]], Bools]


_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


def ranges(counts: I64) -> tuple[I64, I64]:
    """For so many items of each kind the kind of each, and its number among those of its kind.

    >>> [column.tolist() for column in ranges(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    counts = np.maximum(counts, 0)
    owner = np.arange(len(counts)).repeat(counts)
    return owner, np.arange(len(owner)) - (counts.cumsum() - counts).take(owner)


@dataclass(frozen=True, slots=True)
class Hits:
    """h events that may fall in a scope: ``owner`` (candidate), ``scope`` (number among the scopes), ``event``."""

    owner: I64
    scope: I64
    event: I64

    def __len__(self) -> int:
        return len(self.owner)

    def take(self, at: I64) -> Hits:
        return Hits(self.owner.take(at), self.scope.take(at), self.event.take(at))

    def of(self, candidates: I64) -> Hits:
        """Those of some candidates, which are numbered anew; hits must be by owner."""
        begin, end = (self.owner.searchsorted(candidates, side) for side in _SIDES)
        owner, within = ranges(end - begin)
        at = begin.take(owner) + within
        return Hits(owner, self.scope.take(at), self.event.take(at))

    def fresh(self) -> Bools:
        """Which of hits by owner and event are the first ones of their event."""
        fresh = np.ones(len(self), bool)
        fresh[1:] = (np.diff(self.owner) != 0) | (np.diff(self.event) != 0)
        return fresh


@dataclass(frozen=True, slots=True)
class Question:
    """m candidates of n events each.

    Attributes:
        events: distributions of all events concerned.
        own: n arrays (m,): rows in ``events``.
        earliest, latest: n arrays (m,): valid bounds.
        hits: what may spoil.
        scopes: the distinct scopes.
        window: W.
        test: what else must hold of the own events' times: for some of the candidates and n arrays of their times
            (candidates, …) it says where it does. None: nothing.
        alike: arrays (m,): candidates for which they are equal are likely to have the same events that may spoil them,
            as far as these are near.
    """

    events: Distributions
    own: Sequence[I64]
    earliest: Sequence[I64]
    latest: Sequence[I64]
    hits: Hits
    scopes: Sequence[Scope]
    window: int
    test: TimeTest | None = None
    alike: Sequence[I64] = ()

    def __len__(self) -> int:
        return len(self.own[0])

    def take(self, at: I64) -> Question:
        """The candidates ``at``, without their hits and test."""
        own, earliest, latest, alike = (
            [c.take(at) for c in side] for side in (self.own, self.earliest, self.latest, self.alike)
        )
        none = self.hits.take(np.zeros(0, np.int64))
        return Question(self.events, own, earliest, latest, none, self.scopes, self.window, None, alike)

    def reach(self, owner: I64, scope: Scope) -> tuple[I64, I64]:
        """First and last time that can lie in the scope in any world."""
        left, right = scope
        if left is None:
            return self.earliest[-1].take(owner) - self.window, self.latest[0].take(owner) - 1
        if right is None:
            return self.earliest[-1].take(owner) + 1, self.latest[0].take(owner) + self.window
        return self.earliest[left].take(owner) + 1, self.latest[right].take(owner) - 1

    def core(self, owner: I64, scope: Scope) -> tuple[I64, I64]:
        """First and last time that lie in the scope in every world."""
        left, right = scope
        if left is None:
            return self.latest[-1].take(owner) - self.window, self.earliest[0].take(owner) - 1
        if right is None:
            return self.latest[-1].take(owner) + 1, self.earliest[0].take(owner) + self.window
        return self.latest[left].take(owner) + 1, self.earliest[right].take(owner) - 1

    def ragged(self, hits: Hits) -> Bools:
        """The candidates whose possible times do not follow from intervals alone: with an own event that has instants
        without weight, or a spoiler that has, where two scopes meet. ``hits`` are by owner and event.
        """
        ragged = np.zeros(len(self), bool)
        for own in self.own:
            ragged |= self.events.gaps.take(own)
        ragged[hits.owner[~hits.fresh() & self.events.gaps.take(hits.event)]] = True
        return ragged

    def sorted_out(self) -> tuple[Hits, Bools]:
        """The hits that matter, by owner and event; and which candidates are surely spoiled."""
        spoiled = np.zeros(len(self), bool)
        kept = []
        lower, upper = self.events.lower.take(self.hits.event), self.events.upper.take(self.hits.event)
        for number, scope in enumerate(self.scopes):
            at = (self.hits.scope == number).nonzero()[0]
            if not len(at):
                continue
            owner, low, high = self.hits.owner.take(at), lower.take(at), upper.take(at)
            first, last = self.core(owner, scope)
            spoiled[owner[(first <= low) & (high <= last)]] = True
            first, last = self.reach(owner, scope)
            kept.append(at[(low <= last) & (high >= first)])
        hits = self.hits.take(np.concatenate(kept)) if kept else self.hits
        hits = hits.take((~spoiled.take(hits.owner)).nonzero()[0])
        hits = hits.take(np.lexsort((hits.scope, hits.event, hits.owner)))
        fresh = np.ones(len(hits), bool)  # an event may fit several negations with one scope
        fresh[1:] = (np.diff(hits.owner) != 0) | (np.diff(hits.event) != 0) | (np.diff(hits.scope) != 0)
        return hits.take(fresh.nonzero()[0]), spoiled


@dataclass(frozen=True, slots=True)
class Answer:
    """For each candidate: its confidence, the most that its standard error can be (0: exact), and its tightest ranges.

    A confidence is NaN where it was too costly to compute and no sampling was allowed, and no more than a bound where
    it is below what was asked for. ``steps``: what all of them cost, as if each had been computed alone.
    """

    confidence: F64
    error: F64
    earliest: list[I64]
    latest: list[I64]
    steps: float = 0.0
