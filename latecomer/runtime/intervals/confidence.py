"""Confidence: the probability that a candidate is a match, exactly where that is affordable.

Rules:
* A candidate is answered by the cheapest exact evaluator that is right for it, see
  :mod:`~latecomer.runtime.intervals.evaluators`; its cost in steps is known beforehand. Where it passes
  ``Budget.steps`` the confidence is NaN, or an estimate with its error if sampling is allowed. Never silently.
* The way, and the shape that a candidate is padded to, depend on the candidate alone, never on what else is asked:
  the same question has the same answer to the last bit.
* Ranges are tight: valid bounds where nothing may surely spoil, else what the evaluator finds possible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from latecomer.runtime.intervals import evaluators
from latecomer.runtime.intervals.evaluators import Block, Result
from latecomer.runtime.intervals.question import Answer, Hits, Question
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

_BLOCK = 1 << 21  # numbers in the largest array of a block
_FREE, _GRID, _CHAIN, _SAMPLE, _NONE = range(5)


@dataclass(frozen=True, slots=True)
class Budget:
    """``steps``: what one candidate's exact confidence may cost, in elementary steps (default some 0.1 s);
    ``worlds``: how many worlds to draw where it costs more (0: say that it is too costly).
    """

    @classmethod
    def for_error(cls, error: float | None, steps: float = 1e8) -> Budget:
        """Draw as many worlds as keep the standard error at or below ``error`` (None: do not sample)."""
        return cls(steps, 0 if error is None else math.ceil(0.25 / error**2))

    steps: float = 1e8
    worlds: int = 0


def sizes_of(lengths: I64) -> I64:
    """Padded lengths: 1, 2, 3, 4, 6, 8, 12, 16, …; at most half as long again."""
    power: I64 = 1 << np.frexp(np.maximum(lengths - 1, 0).astype(np.float64))[1].astype(np.int64)
    shorter = power // 4 * 3
    return np.where((lengths <= shorter) & (power >= 4), shorter, power)


def confidence(question: Question, budget: Budget) -> Answer:
    """Answer for all candidates; their valid bounds must be possible."""
    m = len(question)
    answer = Answer(
        np.zeros(m), np.zeros(m), [e.copy() for e in question.earliest], [e.copy() for e in question.latest]
    )
    hits, spoiled = question.sorted_out()
    if not m or spoiled.all():
        return answer
    lengths = np.stack([last - first + 1 for first, last in zip(question.earliest, question.latest, strict=True)])
    sizes = sizes_of(lengths)
    way = _ways(question, hits, sizes, budget)
    way[spoiled] = -1
    order = np.lexsort((*sizes, way))
    order = order[way[order] >= 0]
    changes = (np.diff(way[order]) != 0) | (np.diff(sizes[:, order], axis=1) != 0).any(axis=0)
    starts = np.concatenate([[0], changes.nonzero()[0] + 1, [len(order)]])
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        kind, shape = int(way[order[start]]), tuple(sizes[:, order[start]].tolist())
        if kind == _NONE:
            answer.confidence[order[start:end]] = np.nan
            continue
        piece = max(_BLOCK // _width(kind, shape, budget), 1)
        for first in range(start, end, piece):
            at = np.sort(order[first : min(first + piece, end)])
            _fill(answer, question, hits, at, kind, shape, budget)
    return answer


def _fill(
    answer: Answer, question: Question, hits: Hits, at: I64, kind: int, shape: tuple[int, ...], budget: Budget
) -> None:
    place = np.full(len(question), -1)
    place[at] = np.arange(len(at))
    mine = hits.take((place.take(hits.owner) >= 0).nonzero()[0])
    block = Block(
        question.events,
        [own.take(at) for own in question.own],
        [e.take(at) for e in question.earliest],
        [e.take(at) for e in question.latest],
        Hits(place.take(mine.owner), mine.scope, mine.event),
        question.scopes,
        question.window,
        shape,
    )
    if kind == _SAMPLE:
        answer.confidence[at], weight = evaluators.sample(block, budget.worlds)
        answer.error[at] = weight * (0.5 / math.sqrt(budget.worlds))
        return
    evaluate = {_FREE: evaluators.free, _GRID: evaluators.grid, _CHAIN: evaluators.chain}[kind]
    result: Result = evaluate(block)
    answer.confidence[at], chances = result
    for j, chance in enumerate(chances or []):
        able = chance > 0
        answer.earliest[j][at] += able.argmax(axis=1)
        last = shape[j] - 1 - able[:, ::-1].argmax(axis=1)
        answer.latest[j][at] = np.where(able.any(axis=1), block.earliest[j] + last, block.latest[j])


def _width(kind: int, shape: tuple[int, ...], budget: Budget) -> int:
    """Numbers in the largest array, per candidate."""
    if kind == _GRID:
        return math.prod(shape)
    if kind == _SAMPLE:
        return budget.worlds
    return (
        max(shape) ** 2
        if kind == _CHAIN
        else max(shape[0] * max(shape[1:-1]), *shape)
        if len(shape) > 2
        else max(shape)
    )


def _ways(question: Question, hits: Hits, sizes: I64, budget: Budget) -> I64:
    """For each candidate the evaluator to use."""
    m, n = len(question), len(question.own)
    count = np.bincount(hits.owner, minlength=m)
    gaps = np.zeros(m, bool)
    for own in question.own:
        gaps |= question.events.gaps.take(own)
    size = sizes.astype(np.float64)
    cuts = question.latest[-1] - question.earliest[0] > question.window
    free = size.sum(axis=0) if n < 3 else np.where(cuts, size[0] * size[1:-1].sum(axis=0), size.sum(axis=0))
    grid = size.prod(axis=0) * (1 + count)
    way = np.where((count == 0) & ~gaps, _FREE, _GRID)
    cost = np.where(way == _FREE, free, grid)
    if n > 2:
        shared, ended = _shared(question, hits)
        pairs = (size[:-1] * size[1:]).sum(axis=0)
        chain = pairs * (1 + count) + np.where(cuts | ended, size[0] * pairs, pairs)
        better = (way == _GRID) & ~shared & (chain < grid)
        way[better], cost[better] = _CHAIN, chain[better]
    way[cost > budget.steps] = _SAMPLE if budget.worlds else _NONE
    return way


def _shared(question: Question, hits: Hits) -> tuple[Bools, Bools]:
    """Candidates with an event that may fall in several gaps, or in one and at an end; and those with any end hits."""
    shared, ended = np.zeros(len(question), bool), np.zeros(len(question), bool)
    group = np.array([right if left is not None and right is not None else 0 for left, right in question.scopes] or [0])
    group = group[hits.scope]
    same = (np.diff(hits.owner) == 0) & (np.diff(hits.event) == 0) & (np.diff(group) != 0)
    shared[hits.owner[1:][same]] = True
    ended[hits.owner[group == 0]] = True
    return shared, ended
