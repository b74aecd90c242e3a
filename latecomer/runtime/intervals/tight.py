"""Tight ranges: when each event of a match can have happened, given what must not lie in the match's scopes.

Rule: an event spoils a match for sure only where the whole of its interval lies in one scope, so what it forbids has
the form ``x >= a or y <= b`` for two of the match's times. So has every constraint of a chain and its window. Of any
two solutions of such constraints the earlier times of both, and the later ones, are a solution too; so the bounds that
remain when each constraint has moved the bounds that it can move are times that a match has. (Where instants between
two others have no weight this does not hold.)
"""

from __future__ import annotations

import numpy as np

from latecomer.runtime.intervals.bounds import valid_bounds
from latecomer.runtime.intervals.question import Hits, Question
from latecomer.storage.columns import I64


def tight(question: Question, hits: Hits) -> tuple[list[I64], list[I64]]:
    """The tightest (earliest, latest) of each of n events for m candidates, none of which has an event with gaps; where
    a candidate is impossible they mean nothing. O(n · m) and O(hits), a few times.
    """
    events, n = question.events, len(question.own)
    earliest, latest = list(question.earliest), list(question.latest)
    forbidden = []  # owner, x, y, a, b
    for number, (left, right) in enumerate(question.scopes):
        at = (hits.scope == number).nonzero()[0]
        owner, event = hits.owner.take(at), hits.event.take(at)
        lower, upper = events.lower.take(event), events.upper.take(event)
        first, last = question.reach(owner, question.scopes[number])
        whole = ((first <= lower) & (upper <= last)).nonzero()[0]
        owner, lower, upper = owner.take(whole), lower.take(whole), upper.take(whole)
        if left is None:
            forbidden.append((owner, n - 1, 0, lower + question.window + 1, upper))
        elif right is None:
            forbidden.append((owner, n - 1, 0, lower, upper - question.window - 1))
        else:
            forbidden.append((owner, left, right, lower, upper))
    while sum(len(owner) for owner, *_ in forbidden):
        moved = False
        for k, (owner, x, y, a, b) in enumerate(forbidden):
            up = (earliest[y].take(owner) > b) & (earliest[x].take(owner) < a)
            down = (latest[x].take(owner) < a) & (latest[y].take(owner) > b)
            if up.any():
                earliest[x] = earliest[x].copy()
                np.maximum.at(earliest[x], owner[up], a[up])
            if down.any():
                latest[y] = latest[y].copy()
                np.minimum.at(latest[y], owner[down], b[down])
            fired = up | down
            if fired.any():
                moved = True
                idle = (~(up & down)).nonzero()[0]
                forbidden[k] = (owner.take(idle), x, y, a.take(idle), b.take(idle))
        if not moved:
            break
        earliest, latest, _ = valid_bounds(earliest, latest, [1] * (n - 1), question.window)
    return earliest, latest
