"""Confidence: the probability that a candidate is a match, exactly where that is affordable.

Rules:
* A candidate is answered by the cheapest exact way that is right for it (:mod:`~latecomer.runtime.intervals.ways`).
  Where that passes ``Budget.steps`` the confidence is NaN, or an estimate with its error if sampling is allowed. Never
  silently.
* The same question has the same answer to the last bit, whatever else is asked.
* Where no world is excluded the confidence is 1, and nothing is computed; nor is what is surely below
  ``Budget.least``.
* Ranges are tight: by what surely spoils (:mod:`~latecomer.runtime.intervals.tight`); and where some instants have no
  weight, by what the evaluator finds possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from latecomer.runtime.intervals import evaluators, separable
from latecomer.runtime.intervals.evaluators import Block, Result
from latecomer.runtime.intervals.question import Answer, Hits, Question
from latecomer.runtime.intervals.tight import tight
from latecomer.runtime.intervals.tiles import SIZES, tiled
from latecomer.runtime.intervals.ways import Budget, Way, Ways, width
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

_BLOCK = 1 << 21  # numbers in the largest array of a block
_EVALUATORS: dict[int, Callable[[Block], Result]] = {
    Way.FREE: evaluators.free,
    Way.GRID: evaluators.grid,
    Way.CHAIN: evaluators.chain,
    Way.PLANE: evaluators.plane,
    Way.PAIRS: separable.pairs,
    Way.TRIPLES: separable.triples,
}


def confidence(question: Question, budget: Budget) -> Answer:
    """Answer for all candidates; their valid bounds must be possible."""
    m = len(question)
    hits, spoiled = question.sorted_out()
    if not m or spoiled.all():
        return Answer(np.zeros(m), np.zeros(m), list(question.earliest), list(question.latest))
    whole, ragged = question, question.ragged(hits)
    if len(hits):
        question, spoiled = _tightened(question, hits, spoiled, ragged)
    earliest, latest = ([e.copy() for e in side] for side in (question.earliest, question.latest))
    ways = Ways(question, hits, spoiled, ragged, budget)
    answer = Answer(np.zeros(m), np.zeros(m), earliest, latest, float(ways.cost.sum()))
    answer.confidence[ways.kind == Way.SURE] = 1.0
    answer.confidence[ways.kind == Way.COSTLY] = np.nan
    below = ways.kind == Way.BELOW
    answer.confidence[below] = ways.bound[below]
    at = (ways.kind == Way.CLOSED).nonzero()[0]
    if len(at):
        answer.confidence[at] = separable.uniform_pairs(question, at)
    for size in SIZES:
        at = ((ways.kind == Way.TILES) & (ways.alike == size)).nonzero()[0]
        if len(at):
            answer.confidence[at] = tiled(whole, hits, at, size)  # what is out of reach is so by valid bounds
    for i, lattice in ways.lattices.items():
        if ways.kind[i] == Way.LATTICE:
            own = math.prod(int(question.events.total[o[i]]) for o in question.own)
            answer.confidence[i] = lattice.count() / (own * math.prod(s.size for s in lattice.spoilers))
    _by_blocks(question, hits, ways, budget, answer)
    return answer


def _tightened(question: Question, hits: Hits, spoiled: Bools, ragged: Bools) -> tuple[Question, Bools]:
    """The question with tight ranges, as far as these follow from intervals alone, and which candidates are spoiled.
    Outside these ranges all worlds are spoiled by one of the same hits, so none becomes idle.
    """
    first, last = tight(question, hits)
    earliest, latest = (
        [np.where(ragged, old, new) for old, new in zip(*sides, strict=True)]
        for sides in ((question.earliest, first), (question.latest, last))
    )
    impossible = np.any([a > b for a, b in zip(earliest, latest, strict=True)], axis=0)
    earliest, latest = (
        [np.where(impossible, old, new) for old, new in zip(*sides, strict=True)]
        for sides in ((question.earliest, earliest), (question.latest, latest))
    )
    return replace(question, earliest=earliest, latest=latest), spoiled | impossible


def _by_blocks(question: Question, hits: Hits, ways: Ways, budget: Budget, answer: Answer) -> None:
    """The candidates whose way goes by blocks of one shape."""
    keys = np.stack([*ways.sizes, ways.alike, ways.carry, ways.kind])
    order = np.lexsort(keys)
    order = order[ways.kind[order] <= Way.SAMPLE]
    if not len(order):
        return
    changes = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    starts = [0, *(changes.nonzero()[0] + 1).tolist(), len(order)]
    for start, end in pairwise(starts):
        first = order[start]
        kind, shape = int(ways.kind[first]), tuple(ways.sizes[:, first].tolist())
        piece = max(int(_BLOCK / width(kind, shape, budget.worlds)), 1)
        for begin in range(start, end, piece):
            at = np.sort(order[begin : min(begin + piece, end)])
            block = _block(question, hits, at, shape, bool(ways.carry[first]), int(ways.alike[first]))
            _fill(answer, budget, kind, at, block)


def _block(question: Question, hits: Hits, at: I64, shape: tuple[int, ...], carry: bool, gap: int) -> Block:
    """The candidates ``at`` (ascending) with their hits."""
    own, earliest, latest = ([c.take(at) for c in side] for side in (question.own, question.earliest, question.latest))
    test = None if question.test is None else partial(question.test, at)
    return Block(
        question.events, own, earliest, latest, hits.of(at), question.scopes, question.window, shape, carry, test, gap
    )


def _fill(answer: Answer, budget: Budget, kind: int, at: I64, block: Block) -> None:
    if kind == Way.SAMPLE:
        answer.confidence[at], weight = evaluators.sample(block, budget.worlds)
        answer.error[at] = weight * (0.5 / math.sqrt(budget.worlds))
        return
    answer.confidence[at], chances = _EVALUATORS[kind](block)
    for j, chance in enumerate(chances or []):
        able = chance > 0
        answer.earliest[j][at] += able.argmax(axis=1)
        last = block.earliest[j] + block.sizes[j] - 1 - able[:, ::-1].argmax(axis=1)
        answer.latest[j][at] = np.where(able.any(axis=1), last, block.latest[j])
