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

import numpy as np

from latecomer.runtime.intervals.pmf import F64, Distributions
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

#: The number of the positive before a scope, and of the one after it.
Scope = tuple[int | None, int | None]
#: Where candidates (numbers) pass for these times of theirs.
TimeTest = Callable[[I64, Sequence[I64]], Bools]


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
    """

    events: Distributions
    own: Sequence[I64]
    earliest: Sequence[I64]
    latest: Sequence[I64]
    hits: Hits
    scopes: Sequence[Scope]
    window: int
    test: TimeTest | None = None

    def __len__(self) -> int:
        return len(self.own[0])

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

    A confidence is NaN where it was too costly to compute and no sampling was allowed.
    """

    confidence: F64
    error: F64
    earliest: list[I64]
    latest: list[I64]
