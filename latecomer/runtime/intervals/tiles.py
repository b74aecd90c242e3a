"""Tiles: confidences of pairs that share what may spoil them.

For two components the chance that nothing spoils is a function of their times alone, ``G(t1, t2)``, and many pairs have
the same one: all whose events are near each other and that the same other events can spoil. So ``G`` is computed once
for each *tile* of the plane of times that somebody needs, summed over the times of each second event, and each pair is
a sum over the times of its first one: ``O(tiles · hits + len)`` in place of ``O(len1 · len2 · hits)`` a pair.

Rules:

* Pairs form a *cluster* where every hit of one is a hit of each other one, or out of its reach. ``Question.alike`` says
  which are likely to; it is checked, and a pair that differs is a cluster of its own.
* What a pair is answered does not depend, to the last bit, on the cluster: tiles begin at multiples of their size; a
  factor is a rounded quotient of whole numbers, so that it is exactly 1 for an event out of reach; factors are taken in
  the order of events, and sums run tile by tile in the order of time.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from latecomer.runtime.intervals.pmf import F64
from latecomer.runtime.intervals.question import Hits, Question, ranges
from latecomer.runtime.intervals.separable import parts
from latecomer.storage.columns import I64

#: Instants that a tile is wide: most events are shorter than a few of them.
SIZES = 16, 64

_CELLS = 1 << 16  # of tiles that are computed at once: they stay in the processor's cache
_SUMS = 1 << 22  # numbers about tiles that are held at once


def tiled(question: Question, hits: Hits, at: I64, size: int) -> F64:
    """Confidences of the candidates ``at``, which have two events and no time test; ``hits`` are those of all
    candidates, by owner and event. Tiles are ``size`` instants wide.
    """
    result = np.zeros(len(question))
    for some in _pieces(question, hits, at, size):
        result[some] = _confidence(question.take(some), hits.of(some), size)
    return result.take(at)


def size_of(first: I64, second: I64) -> I64:
    """The size of tiles for pairs whose events are so long."""
    return np.where(np.maximum(first, second) < 16 * SIZES[0], *SIZES)


def tiles_of(question: Question, at: I64, size: int) -> tuple[I64, I64]:
    """For candidates how many tiles of first times they need, and of second times for each of these, at most."""
    events, lower, upper = question.events, question.earliest[0].take(at), question.latest[0].take(at)
    second = question.own[1].take(at)
    length = events.upper.take(second) - events.lower.take(second) + 1
    return (upper - lower) // size + 2, np.minimum(length, question.window + size) // size + 2


def _pieces(question: Question, hits: Hits, at: I64, size: int) -> list[I64]:
    """The candidates in pieces of bounded memory, those together that share most."""
    at = at[np.lexsort([own.take(at) for own in question.own] + [column.take(at) for column in question.alike])]
    pieces = []
    for some in np.split(at, _cuts(tiles_of(question, at, size)[0] * size)):
        # What a tile needs counts with the first of the pairs that share it.
        owner, within = ranges(question.latest[0].take(some) // size - question.earliest[0].take(some) // size + 1)
        tile = question.earliest[0].take(some.take(owner)) // size + within
        shared = [column.take(some.take(owner)) for column in question.alike]
        which = _numbered(question.own[1].take(some.take(owner)), tile, *shared)[1]
        each = tiles_of(question, some, size)[1]
        count = hits.owner.searchsorted(some, "right") - hits.owner.searchsorted(some)
        needed = np.bincount(owner.take(which), minlength=len(some)) * each * (size + 3 * count)
        pieces += np.split(some, _cuts(needed))
    return pieces


def _cuts(needed: I64) -> I64:
    """Where to cut a list of things so that what they need together is bounded, but for single ones."""
    return np.flatnonzero(np.diff(np.cumsum(needed) // _SUMS)) + 1


def _numbered(*columns: I64) -> tuple[I64, I64]:
    """Rows of columns numbered by what they hold, in order; and a row of each number."""
    order = np.lexsort(columns[::-1])
    fresh = np.ones(len(order), bool)
    fresh[1:] = np.any([np.diff(c.take(order)) != 0 for c in columns], axis=0)
    result = np.empty(len(order), np.int64)
    result[order] = fresh.cumsum() - 1
    return result, order[fresh]


def _confidence(question: Question, hits: Hits, size: int) -> F64:
    """Of one piece."""
    events, cluster = question.events, _clusters(question, hits)
    lines = _Lines(question, cluster, size)
    tile, which = _numbered(*lines.places)
    plane = _Plane(question, size, cluster, hits, *(c.take(which) for c in lines.places))
    sums = np.zeros((len(tile), size))
    rank = plane.rank.take(tile)
    order = rank.argsort(kind="stable")
    at_once = max(_CELLS // size**2, 1)
    for start in range(0, len(which), at_once):
        weight = plane.weights(start, start + at_once)
        first, last = rank.searchsorted([start, start + at_once], sorter=order)
        for begin in range(first, last, at_once):
            places = order[begin : min(begin + at_once, last)]
            area = weight.take(rank.take(places) - start, axis=0)
            area *= lines.mass(places)[:, None, :]
            sums[places] = area.sum(axis=2)
    owner, line, times = lines.asked()
    chance = events.mass(question.own[0].take(owner), times) * lines.folded(sums).take(line, axis=0)
    total = [events.total.take(own) for own in question.own]
    result: F64 = np.bincount(owner, chance.sum(axis=1), len(question)) / total[0] / total[1]
    return result


class _Lines:
    """Lines: for each second event, in its cluster, and each tile of first times the tiles of its own time that are
    summed up. ``places`` are cluster, tile of the first time, and tile of the second one, of each tile of each line.
    """

    def __init__(self, question: Question, cluster: I64, size: int) -> None:
        self._question, self._size = question, size
        events = question.events
        self._unit, which = _numbered(cluster, question.own[1])
        self._event = question.own[1].take(which)
        begin, last = (side[0] // size for side in (question.earliest, question.latest))
        self._asked, within = ranges(last - begin + 1)
        self._tile = begin.take(self._asked) + within
        unit = self._unit.take(self._asked)
        self._line_of, some = _numbered(unit, self._tile)
        unit, first = unit.take(some), self._tile.take(some)
        self._count = len(first)
        # From the tile in which something is later than in the first one to the last one in the window.
        low = np.maximum(events.lower.take(self._event).take(unit) // size, first)
        reach = (first * size + size - 1 + question.window) // size
        high = np.minimum(events.upper.take(self._event).take(unit) // size, reach)
        self._line, within = ranges(high - low + 1)
        self._owner = unit.take(self._line)
        self.places = cluster.take(which).take(self._owner), first.take(self._line), low.take(self._line) + within

    def mass(self, places: I64) -> F64:
        """The weights (…, size) of the second events along some of the tiles."""
        times = (self.places[2].take(places) * self._size)[:, None] + np.arange(self._size)
        return self._question.events.mass(self._event.take(self._owner.take(places)), times)

    def folded(self, values: F64) -> F64:
        """Of each line the sum of what its tiles (s, size) give, one after the other."""
        result = np.zeros((self._count, values.shape[1]))
        first = np.ones(len(self._line), bool)
        first[1:] = np.diff(self._line) != 0
        starts = first.nonzero()[0]
        counts = np.diff(np.append(starts, len(first)))
        for k in range(int(counts.max(initial=0))):
            some = starts[counts > k] + k
            result[self._line[some]] += values[some]
        return result

    def asked(self) -> tuple[I64, I64, I64]:
        """For each tile of each pair's first times: the pair, the line, and the times (…, size)."""
        return self._asked, self._line_of, (self._tile * self._size)[:, None] + np.arange(self._size)


class _Plane:
    """Tiles of clusters, and the chance that nothing spoils at each of their places. ``rank`` says in which order they
    are computed: those with most hits first.
    """

    def __init__(
        self, question: Question, size: int, cluster: I64, hits: Hits, of: I64, first: I64, second: I64
    ) -> None:
        which = _numbered(cluster.take(hits.owner), hits.event, hits.scope)[1]
        union = hits.take(which)
        union = Hits(cluster.take(union.owner), union.scope, union.event)
        begin = [first * size, second * size]
        bare = Question(
            question.events, [], begin, [b + size - 1 for b in begin], union, question.scopes, question.window
        )
        hits = _meeting(bare, of)
        items = np.bincount(hits.owner[hits.fresh()], minlength=len(of))
        order = np.argsort(-items, kind="stable")
        self.rank = np.empty(len(of), np.int64)
        self.rank[order] = np.arange(len(of))
        owner = self.rank.take(hits.owner)
        by = owner.argsort(kind="stable")
        self._hits = Hits(owner.take(by), hits.scope.take(by), hits.event.take(by))
        self._begin, self._items, self._question = [b.take(order) for b in begin], items.take(order), question
        self._span = np.arange(size)

    def weights(self, start: int, end: int) -> F64:
        """For the tiles ranked ``start`` to ``end`` the chance (…, size, size) that nothing spoils, by both times; 0
        where they are not in order, or further apart than the window.
        """
        question = self._question
        first, second = (b[start:end, None] + self._span for b in self._begin)
        apart = second[:, None, :] - first[:, :, None]
        weight = ((apart > 0) & (apart <= question.window)).astype(np.float64)
        begin, until = self._hits.owner.searchsorted([start, end])
        hits = self._hits.take(np.arange(begin, until))
        hits = Hits(hits.owner - start, hits.scope, hits.event)
        alpha, beta, total = parts(question, hits, first, second)
        items = self._items[start:end]
        at = items.cumsum() - items
        factor = np.empty_like(weight)
        for layer in range(int(items.max(initial=0))):
            n = int((items > layer).sum())
            item = at[:n] + layer
            np.add(alpha.take(item, axis=0)[:, :, None], beta.take(item, axis=0)[:, None, :], out=factor[:n])
            factor[:n] /= total.take(item)[:, None, None]
            weight[:n] *= factor[:n]
        return weight


def _clusters(question: Question, hits: Hits) -> I64:
    """The number of each pair's cluster."""
    m, events = len(question), question.events
    cluster = _numbered(*question.alike, np.zeros(m, np.int64))[0]
    which = _numbered(cluster.take(hits.owner), hits.event, hits.scope)[1]
    of, event, kind = cluster.take(hits.owner.take(which)), hits.event.take(which), hits.scope.take(which)
    other = np.zeros(m, bool)
    everybody = np.arange(m)
    for number, scope in enumerate(question.scopes):
        mine = np.bincount(hits.owner[hits.scope == number], minlength=m)
        at = (kind == number).nonzero()[0]
        if not len(at):
            continue
        first, last = question.reach(everybody, scope)
        lower, upper = (side.take(event.take(at)) for side in (events.lower, events.upper))
        own = of.take(at)
        near = _below(own, lower, cluster, last, "right") - _below(own, upper, cluster, first, "left")
        other |= (near != mine) & (first <= last)
    cluster[other] = m + other.nonzero()[0]
    return cluster


def _below(of: I64, values: I64, cluster: I64, at: I64, side: Literal["left", "right"]) -> I64:
    """How many ``values`` of each cluster, and of those before it, are below (or with ``right``: not above) ``at``."""
    distinct = np.unique(values)
    size = len(distinct) + 1
    keys = np.sort(of * size + distinct.searchsorted(values))
    return keys.searchsorted(cluster * size + distinct.searchsorted(at, side))


def _meeting(question: Question, cluster: I64) -> Hits:
    """For each tile, as a pair that may happen anywhere in it, the hits of its cluster that it may reach; in order.
    ``question.hits`` are those of clusters.
    """
    events, hits = question.events, question.hits
    owners, scopes, found = [], [], []
    everybody = np.arange(len(cluster))
    lengths = events.upper.take(hits.event) - events.lower.take(hits.event) + 1
    kinds = hits.scope * 64 + np.frexp(lengths.astype(np.float64))[1]  # so that few long ones do not widen every search
    for kind in np.unique(kinds).tolist():
        at = (kinds == kind).nonzero()[0]
        at = at.take(np.lexsort((events.lower.take(hits.event.take(at)), hits.owner.take(at))))
        own, lower, number = hits.owner.take(at), events.lower.take(hits.event.take(at)), kind // 64
        first, last = question.reach(everybody, question.scopes[number])
        begin = _below(own, lower, cluster, first - int(lengths.take(at).max()) + 1, "left")
        end = _below(own, lower, cluster, last, "right")
        owner, within = ranges(end - begin)
        event = hits.event.take(at.take(begin.take(owner) + within))
        near = (events.upper.take(event) >= first.take(owner)).nonzero()[0]
        owners.append(owner.take(near))
        found.append(event.take(near))
        scopes.append(np.full(len(near), number))
    if not owners:
        return hits.take(np.zeros(0, np.int64))
    owner, event, kind = (np.concatenate(c) for c in (owners, found, scopes))
    order = np.lexsort((kind, event, owner))
    return Hits(owner.take(order), kind.take(order), event.take(order))
