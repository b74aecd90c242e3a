"""Ways: by which evaluator each candidate's confidence is computed, and what that costs.

Rules:
* The way, and the shape that a candidate is padded to, depend on the candidate alone, never on what else is asked.
* A cost is a number of elementary steps, a few ns each, known before anything is computed. The cheapest way is taken;
  where even that passes the budget, the candidate is sampled, or said to be too costly. What it shares with others
  (:mod:`~latecomer.runtime.intervals.tiles`) is counted as if it were alone.
* What is surely below the threshold is not computed at all: a confidence is at most the chance that the own events are
  in order, and that each event which may spoil is out of the part of its scopes that is the same in all worlds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from latecomer.runtime.intervals import separable, tiles
from latecomer.runtime.intervals.lattice import Lattice, Spoiler
from latecomer.runtime.intervals.pmf import F64
from latecomer.runtime.intervals.question import Hits, Question
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

_MOST = 1 << 23  # numbers that one candidate may need at once: 64 MiB for each of a few arrays
_TEST = 20  # steps that a test of times costs
_MANY = 2e5  # steps from which sums of whole numbers, one candidate after the other, are looked at
_SPOILERS = 16  # more of them cost too much in any case
_BELOW = 2e-9  # a bound that is so far below the threshold is below it, whatever was rounded


class Way(IntEnum):
    """The ways, those in blocks of one shape first."""

    FREE, GRID, CHAIN, PLANE, PAIRS, TRIPLES, SAMPLE, CLOSED, TILES, LATTICE, SURE, COSTLY, BELOW, SPOILED = range(14)


@dataclass(frozen=True, slots=True)
class Budget:
    """``steps``: what one candidate's exact confidence may cost, in elementary steps (default some 0.2 s), at no more
    than 64 MiB for an array; ``worlds``: how many worlds to draw where it costs more (0: say that it is too costly);
    ``least``: what lies below that need not be known.
    """

    steps: float = 1e8
    worlds: int = 0
    least: float = 0.0

    @classmethod
    def for_error(cls, error: float | None, steps: float = 1e8, least: float = 0.0) -> Budget:
        """Draw as many worlds as keep the standard error at or below ``error`` (None: do not sample)."""
        return cls(steps, 0 if error is None else math.ceil(0.25 / error**2), least)


def sizes_of(lengths: I64) -> I64:
    """Padded lengths: 8, 16, 32, 48, 64, 96, 128, …: few shapes for short ones, at most half as long again for others.

    >>> sizes_of(np.array([1, 9, 33, 50, 1000])).tolist()
    [8, 16, 48, 64, 1024]
    """
    power: I64 = 1 << np.frexp(np.maximum(lengths - 1, 7).astype(np.float64))[1].astype(np.int64)
    shorter = power // 4 * 3
    return np.where((lengths <= shorter) & (power > 32), shorter, power)


def width(kind: int, shape: Sequence[float], worlds: int) -> float:
    """Numbers in the largest arrays, per candidate."""
    if kind == Way.GRID:
        return math.prod(shape)
    if kind == Way.SAMPLE:
        return worlds
    if kind in (Way.CHAIN, Way.PLANE) or (kind == Way.FREE and len(shape) > 2):
        return max(shape) ** 2
    return max(shape) * 8


class Ways:
    """For each of m candidates its way (``kind``), its ``cost``, whether the first time is carried along, and padded
    lengths (n, m). ``bound`` (m,): no confidence is larger. ``lattices``: by candidate what way LATTICE needs.

    ``alike``: what else a block needs to be the same for all: with pairs how many events may spoil a candidate, with
    planes the gap in which they lie, with tiles their size.
    """

    def __init__(self, question: Question, hits: Hits, spoiled: Bools, ragged: Bools, budget: Budget) -> None:
        m, n, events = len(question), len(question.own), question.events
        earliest, latest = np.stack(question.earliest), np.stack(question.latest)
        count = np.bincount(hits.owner, minlength=m)
        untested = question.test is None
        plain = (count == 0) & untested & ~ragged
        whole, uniform = np.ones(m, bool), np.ones(m, bool)  # whole: no world is excluded
        for j, own in enumerate(question.own):
            uniform &= events.uniform.take(own)
            whole &= (earliest[j] == events.lower.take(own)) & (latest[j] == events.upper.take(own))
            if j:
                whole &= latest[j - 1] < earliest[j]
        cuts = latest[-1] - earliest[0] > question.window
        lengths = latest - earliest + 1
        size = lengths.astype(np.float64)
        free = size.sum(axis=0) if n < 3 else np.where(cuts, size[0], 1) * size[1:-1].sum(axis=0)
        self.carry, self.alike = cuts.copy(), np.zeros(m, np.int64)
        self.kind = np.where(plain, int(Way.FREE), int(Way.GRID))
        each = 1 + count + (0 if untested else _TEST)
        self.cost = np.where(plain, free, size.prod(axis=0) * each)
        shared, ended = _shared(question, hits)
        self.carry |= ended & (n > 2)
        if n > 2 and untested:
            steps = (size[:-1] * size[1:]).sum(axis=0)
            chain = steps * (1 + count) + np.where(cuts | ended, size[0], 1) * steps
            self._choose(Way.CHAIN, ~plain & ~shared, chain)
            if n == 3:
                gap = _gap(question, hits)
                each = np.where(gap == 1, size[0], size[2]) * size[1]
                self._choose(Way.PLANE, gap > 0, each * (2 + count))
                self.alike[self.kind == Way.PLANE] = gap[self.kind == Way.PLANE]
        bits = np.stack([np.frexp(events.total.take(own))[1] for own in question.own])
        if n == 2 and untested:
            self._pairs(question, hits, plain, ~ragged, uniform, count, bits.max(axis=0))
        if n == 3:
            fits = plain & cuts & (bits[1] + bits[2] <= separable.BITS)
            self._choose(Way.TRIPLES, fits, 8 * size.sum(axis=0))
        large = ((self.cost > _MOST) & (self.kind < Way.SAMPLE)).nonzero()[0]
        widths = [width(int(self.kind[i]), size[:, i].tolist(), 0) for i in large]
        self.cost[large[np.array(widths, float) > _MOST]] = np.inf
        self.kind[plain & whole & ~cuts] = Way.SURE
        self.kind[spoiled] = Way.SPOILED
        self.bound = _bound(question, hits, uniform) if budget.least else np.ones(m)
        self.kind[(self.kind < Way.SURE) & (self.bound < budget.least - _BELOW)] = Way.BELOW
        self.lattices: dict[int, Lattice] = {}
        if untested:
            able = uniform & (~shared | (n < 3)) & (self.cost > _MANY) & (self.kind < Way.SURE)
            able[hits.owner[~events.uniform.take(hits.event)]] = False
            self._by_lattice(question, hits, able, cuts | ended | (n < 3))
        self.kind[(self.cost > budget.steps) & (self.kind < Way.SURE)] = Way.SAMPLE if budget.worlds else Way.COSTLY
        self.cost[self.kind == Way.SAMPLE] = budget.worlds * (1.0 + count[self.kind == Way.SAMPLE])
        self.cost[self.kind >= Way.SURE] = 0.0
        self.sizes = sizes_of(lengths)
        if n > 1:
            self.sizes[-1, (self.kind == Way.FREE) | (self.kind == Way.TRIPLES)] = 1  # the last one is not spread out

    def _pairs(
        self,
        question: Question,
        hits: Hits,
        plain: Bools,
        smooth: Bools,
        uniform: Bools,
        count: I64,
        bits: npt.NDArray[np.int32],
    ) -> None:
        """Two components, no test."""
        events, size = question.events, [b - a + 1.0 for a, b in zip(question.earliest, question.latest, strict=True)]
        tiled = (self.kind == Way.GRID) & smooth
        self.kind[tiled] = Way.TILES
        in_window: F64 = np.minimum(size[0] * size[1], np.minimum(*size) * question.window)
        self.cost[tiled] = (in_window * (1 + count))[tiled]
        # By the events' own lengths: those that share an event then have tiles of one size.
        lengths = [events.upper.take(own) - events.lower.take(own) for own in question.own]
        self.alike[tiled] = tiles.size_of(*lengths)[tiled]
        for tile in tiles.SIZES:
            at = (tiled & (self.alike == tile)).nonzero()[0]
            first, second = tiles.tiles_of(question, at, tile)
            self.cost[at[first * second * (tile + 3 * count[at]) > _MOST]] = np.inf
        items, needed = _items(question, hits)
        fits = ~plain & (needed + bits <= separable.BITS)
        cost = (np.exp2(items) * (items + 4) * (size[0] + size[1])).astype(np.float64)
        self._choose(Way.PAIRS, fits, cost)
        self.alike[self.kind == Way.PAIRS] = items[self.kind == Way.PAIRS]
        self._choose(Way.CLOSED, plain & uniform, np.zeros(len(plain)))

    def _by_lattice(self, question: Question, hits: Hits, able: Bools, carry: Bools) -> None:
        """Sums of whole numbers where they can be had and are cheaper."""
        events, rows = question.events, able.nonzero()[0]
        mine = hits.of(rows)
        ends = mine.owner.searchsorted(np.arange(len(rows) + 1)).tolist()
        lower, upper = events.lower.take(mine.event).tolist(), events.upper.take(mine.event).tolist()
        event, scope = mine.event.tolist(), mine.scope.tolist()
        for k, i in enumerate(rows.tolist()):
            spoilers: dict[int, Spoiler] = {}
            for h in range(ends[k], ends[k + 1]):
                known = spoilers.get(event[h])
                scopes = (*(known.scopes if known else ()), question.scopes[scope[h]])
                spoilers[event[h]] = Spoiler(lower[h], upper[h], scopes)
            spans = [(int(a[i]), int(b[i])) for a, b in zip(question.earliest, question.latest, strict=True)]
            if len(spoilers) <= _SPOILERS:
                lattice = Lattice(spans, tuple(spoilers.values()), question.window, bool(carry[i]))
                cost = lattice.cost()
                if cost < self.cost[i]:
                    self.kind[i], self.cost[i], self.lattices[i] = Way.LATTICE, cost, lattice

    def _choose(self, kind: Way, able: Bools, cost: F64) -> None:
        """Take this way where it can be gone and is cheaper."""
        better = able & (cost < self.cost)
        self.kind[better], self.cost[better] = kind, cost[better]


def _gap(question: Question, hits: Hits) -> I64:
    """For each candidate the component before which all its hits lie; 0 if there is none."""
    owner, group = hits.owner, _groups(question)[hits.scope]
    lowest, highest = np.full(len(question), len(question.own)), np.zeros(len(question), np.int64)
    np.minimum.at(lowest, owner, group)
    np.maximum.at(highest, owner, group)
    return np.where(lowest == highest, lowest, 0)


def _groups(question: Question) -> I64:
    """For each scope the component before which it lies, 0 for those at the ends."""
    inner = [right if left is not None and right is not None else 0 for left, right in question.scopes]
    return np.array(inner or [0])


def _items(question: Question, hits: Hits) -> tuple[I64, I64]:
    """For each candidate how many events may spoil it, and the bits that their weights take in a product."""
    fresh = np.ones(len(hits), bool)
    fresh[1:] = (np.diff(hits.owner) != 0) | (np.diff(hits.event) != 0)
    owner = hits.owner[fresh]
    items = np.bincount(owner, minlength=len(question))
    scopes = np.bincount(fresh.cumsum() - 1, minlength=len(owner))
    # A part is at most 1 + scopes totals; and there are two terms for each event.
    each = np.frexp(question.events.total.take(hits.event[fresh]))[1] + np.frexp(scopes.astype(np.float64))[1] + 2
    return items, np.bincount(owner, each, len(question)).astype(np.int64)


def _shared(question: Question, hits: Hits) -> tuple[Bools, Bools]:
    """Candidates with an event that may fall in several gaps, or in one and at an end; and those with any end hits."""
    shared, ended = np.zeros(len(question), bool), np.zeros(len(question), bool)
    group = _groups(question)[hits.scope]
    same = (np.diff(hits.owner) == 0) & (np.diff(hits.event) == 0) & (np.diff(group) != 0)
    shared[hits.owner[1:][same]] = True
    ended[hits.owner[group == 0]] = True
    return shared, ended


def _bound(question: Question, hits: Hits, uniform: Bools) -> F64:
    """For each candidate a confidence that it cannot pass."""
    m, events = len(question), question.events
    bound = np.ones(m)
    if len(question.own) == 2:
        at = uniform.nonzero()[0]
        bound[at] = separable.uniform_pairs(question, at)
    inside = np.zeros(len(hits))
    for number, scope in enumerate(question.scopes):
        at = (hits.scope == number).nonzero()[0]
        first, last = question.core(hits.owner.take(at), scope)
        event = hits.event.take(at)
        inside[at] = np.maximum(events.cumulative(event, last) - events.cumulative(event, first - 1), 0)
    fresh = hits.fresh()
    item = fresh.cumsum() - 1
    total = events.total.take(hits.event[fresh])
    outside = total - np.bincount(item, inside, len(total))
    np.multiply.at(bound, hits.owner[fresh], outside / total)
    return bound
