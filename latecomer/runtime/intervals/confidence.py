"""Confidence: the probability that a candidate is a match, exactly where that is affordable.

Rules:
* A candidate is answered by the cheapest exact way that is right for it, see
  :mod:`~latecomer.runtime.intervals.evaluators` and :mod:`~latecomer.runtime.intervals.separable`; its cost in steps
  is known beforehand. Where it passes ``Budget.steps`` the confidence is NaN, or an estimate with its error if sampling
  is allowed. Never silently.
* The way, and the shape that a candidate is padded to, depend on the candidate alone, never on what else is asked:
  the same question has the same answer to the last bit.
* Where no world is excluded the confidence is 1, and nothing is computed.
* Ranges are tight: valid bounds where nothing may surely spoil, else what the evaluator finds possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from latecomer.runtime.intervals import evaluators, separable
from latecomer.runtime.intervals.evaluators import Block, Result
from latecomer.runtime.intervals.pmf import F64
from latecomer.runtime.intervals.question import Answer, Hits, Question
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

_BLOCK = 1 << 21  # numbers in the largest array of a block
_MOST = 1 << 23  # numbers that one candidate may need at once: 64 MiB for each of a few arrays
_TEST = 20  # steps that a test of times costs
_FREE, _GRID, _CHAIN, _PLANE, _PAIRS, _TRIPLES, _SAMPLE, _SURE, _COSTLY, _SPOILED = range(10)
_EVALUATORS: dict[int, Callable[[Block], Result]] = {
    _FREE: evaluators.free,
    _GRID: evaluators.grid,
    _CHAIN: evaluators.chain,
    _PLANE: evaluators.plane,
    _PAIRS: separable.pairs,
    _TRIPLES: separable.triples,
}


@dataclass(frozen=True, slots=True)
class Budget:
    """``steps``: what one candidate's exact confidence may cost, in elementary steps (default some 0.1 s), at no more
    than 64 MiB for an array; ``worlds``: how many worlds to draw where it costs more (0: say that it is too costly).
    """

    @classmethod
    def for_error(cls, error: float | None, steps: float = 1e8) -> Budget:
        """Draw as many worlds as keep the standard error at or below ``error`` (None: do not sample)."""
        return cls(steps, 0 if error is None else math.ceil(0.25 / error**2))

    steps: float = 1e8
    worlds: int = 0


def sizes_of(lengths: I64) -> I64:
    """Padded lengths: 8, 16, 32, 48, 64, 96, 128, …: few shapes for short ones, at most half as long again for others.

    >>> sizes_of(np.array([1, 9, 33, 50, 1000])).tolist()
    [8, 16, 48, 64, 1024]
    """
    power: I64 = 1 << np.frexp(np.maximum(lengths - 1, 7).astype(np.float64))[1].astype(np.int64)
    shorter = power // 4 * 3
    return np.where((lengths <= shorter) & (power > 32), shorter, power)


def confidence(question: Question, budget: Budget) -> Answer:
    """Answer for all candidates; their valid bounds must be possible."""
    m = len(question)
    earliest, latest = ([e.copy() for e in side] for side in (question.earliest, question.latest))
    answer = Answer(np.zeros(m), np.zeros(m), earliest, latest)
    hits, spoiled = question.sorted_out()
    if not m or spoiled.all():
        return answer
    ways = _Ways(question, hits, budget)
    ways.kind[spoiled] = _SPOILED
    answer.confidence[ways.kind == _SURE] = 1.0
    answer.confidence[ways.kind == _COSTLY] = np.nan
    sizes = ways.sizes
    keys = np.stack([*sizes, ways.alike, ways.carry, ways.kind])
    order = np.lexsort(keys)
    order = order[ways.kind[order] < _SURE]
    if not len(order):
        return answer
    changes = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    starts = [0, *(changes.nonzero()[0] + 1).tolist(), len(order)]
    for start, end in pairwise(starts):
        first = order[start]
        kind, shape = int(ways.kind[first]), tuple(sizes[:, first].tolist())
        piece = max(int(_BLOCK / _width(kind, shape, budget.worlds)), 1)
        for begin in range(start, end, piece):
            at = np.sort(order[begin : min(begin + piece, end)])
            _fill(
                answer,
                budget,
                kind,
                at,
                _block(question, hits, at, shape, bool(ways.carry[first]), int(ways.alike[first])),
            )
    return answer


def _block(question: Question, hits: Hits, at: I64, shape: tuple[int, ...], carry: bool, gap: int) -> Block:
    """The candidates ``at`` (ascending) with their hits."""
    mine = hits
    if len(hits):
        begin = hits.owner.searchsorted(at)
        counts = hits.owner.searchsorted(at, "right") - begin
        owner = np.arange(len(at)).repeat(counts)
        mine = hits.take((begin - counts.cumsum() + counts).repeat(counts) + np.arange(len(owner)))
        mine = Hits(owner, mine.scope, mine.event)
    own, earliest, latest = ([c.take(at) for c in side] for side in (question.own, question.earliest, question.latest))
    test = None if question.test is None else partial(question.test, at)
    return Block(
        question.events, own, earliest, latest, mine, question.scopes, question.window, shape, carry, test, gap
    )


def _fill(answer: Answer, budget: Budget, kind: int, at: I64, block: Block) -> None:
    if kind == _SAMPLE:
        answer.confidence[at], weight = evaluators.sample(block, budget.worlds)
        answer.error[at] = weight * (0.5 / math.sqrt(budget.worlds))
        return
    answer.confidence[at], chances = _EVALUATORS[kind](block)
    for j, chance in enumerate(chances or []):
        able = chance > 0
        answer.earliest[j][at] += able.argmax(axis=1)
        last = block.earliest[j] + block.sizes[j] - 1 - able[:, ::-1].argmax(axis=1)
        answer.latest[j][at] = np.where(able.any(axis=1), last, block.latest[j])


def _width(kind: int, shape: Sequence[float], worlds: int) -> float:
    """Numbers in the largest arrays, per candidate."""
    if kind == _GRID:
        return math.prod(shape)
    if kind == _SAMPLE:
        return worlds
    if kind in (_CHAIN, _PLANE) or (kind == _FREE and len(shape) > 2):
        return max(shape) ** 2
    return max(shape) * 8


class _Ways:
    """For each candidate the evaluator to use, whether the first time is carried along, and padded lengths (n, m).

    ``alike``: what else a block needs to be the same for all: with pairs how many events may spoil a candidate, with
    planes the gap in which they lie.
    """

    def __init__(self, question: Question, hits: Hits, budget: Budget) -> None:
        m, n, events = len(question), len(question.own), question.events
        earliest, latest = np.stack(question.earliest), np.stack(question.latest)
        count = np.bincount(hits.owner, minlength=m)
        plain = (count == 0) & (question.test is None)
        whole = np.ones(m, bool)  # no world is excluded
        for j, own in enumerate(question.own):
            plain &= ~events.gaps.take(own)
            whole &= (earliest[j] == events.lower.take(own)) & (latest[j] == events.upper.take(own))
            if j:
                whole &= latest[j - 1] < earliest[j]
        cuts = latest[-1] - earliest[0] > question.window
        lengths = latest - earliest + 1
        size = lengths.astype(np.float64)
        free = size.sum(axis=0) if n < 3 else np.where(cuts, size[0], 1) * size[1:-1].sum(axis=0)
        self.carry, self.alike = cuts.copy(), np.zeros(m, np.int64)
        self.kind = np.where(plain, _FREE, _GRID)
        each = 1 + count + (0 if question.test is None else _TEST)
        self._cost = np.where(plain, free, size.prod(axis=0) * each)
        if n > 2 and question.test is None:
            shared, ended = _shared(question, hits)
            steps = (size[:-1] * size[1:]).sum(axis=0)
            chain = steps * (1 + count) + np.where(cuts | ended, size[0], 1) * steps
            self._choose(_CHAIN, ~plain & ~shared, chain)
            self.carry |= ended
            if n == 3:
                gap = _gap(question, hits)
                each = np.where(gap == 1, size[0], size[2]) * size[1]
                self._choose(_PLANE, gap > 0, each * (2 + count))
                self.alike[self.kind == _PLANE] = gap[self.kind == _PLANE]
        bits = np.stack([np.frexp(events.total.take(own))[1] for own in question.own])
        if n == 2 and question.test is None:
            items, needed = _items(question, hits)
            fits = needed + bits.max(axis=0) <= separable.BITS
            self._choose(_PAIRS, ~plain & fits, 2.0**items * (items + 4) * size.sum(axis=0))
            self.alike[self.kind == _PAIRS] = items[self.kind == _PAIRS]
        if n == 3:
            fits = plain & cuts & (bits[1] + bits[2] <= separable.BITS)
            self._choose(_TRIPLES, fits, 8 * size.sum(axis=0))
        large = (self._cost > _MOST).nonzero()[0]
        widths = [_width(int(self.kind[i]), size[:, i].tolist(), 0) for i in large]
        self._cost[large[np.array(widths, float) > _MOST]] = np.inf
        self.kind[self._cost > budget.steps] = _SAMPLE if budget.worlds else _COSTLY
        self.kind[plain & whole & ~cuts] = _SURE
        self.sizes = sizes_of(lengths)
        if n > 1:
            self.sizes[-1, (self.kind == _FREE) | (self.kind == _TRIPLES)] = 1  # the last one is not spread out

    def _choose(self, kind: int, able: Bools, cost: F64) -> None:
        """Take this way where it can be gone and is cheaper."""
        better = able & (cost < self._cost)
        self.kind[better], self._cost[better] = kind, cost[better]


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
