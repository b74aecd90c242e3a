"""The ways to compute a confidence, each for a block of candidates that are padded to one shape.

* :func:`free`: nothing may spoil the candidates. Prefix sums over time points: ``O(sum len)`` per candidate, or where
  the window cuts ``O(len1 · sum len)``.
* :func:`chain`: what may spoil lies each in one gap only, or at the ends. A chain of matrix products over time points,
  carrying the first time where the window cuts or an end scope is open: ``O(n · len²)`` or ``O(n · len³)``.
* :func:`plane`: three components, and what may spoil lies in one gap: ``O(len²)`` over the times of its two neighbours,
  since the third one's come in sums.
* :func:`grid`: all combinations of the own events' valid times, ``O(prod len)``: always right, and for two components
  also the cheapest.
* :func:`sample`: drawn times of the own events; given these the chance that nothing spoils is computed exactly.

All sums are of products of probabilities, nothing is subtracted but whole weights: relative errors stay at rounding
size, and a confidence is 0 only where no world has the match. Sums run in an order that depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from latecomer.runtime.intervals.pmf import F64, Distributions
from latecomer.runtime.intervals.question import Hits, Scope
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class Block:
    """c candidates with valid times padded to ``sizes``; hits refer to the block's own numbering of candidates, in
    order of candidate and event. ``carry``: the first time matters to the last one, by the window or an end scope.
    ``test``: where times of the candidates pass. ``gap``: the component before which all hits lie, for :func:`plane`.
    """

    events: Distributions
    own: list[I64]
    earliest: list[I64]
    latest: list[I64]
    hits: Hits
    scopes: Sequence[Scope]
    window: int
    sizes: tuple[int, ...]
    carry: bool
    test: Callable[[Sequence[I64]], Bools] | None = None
    gap: int = 0

    def __len__(self) -> int:
        return len(self.own[0])

    @property
    def n(self) -> int:
        return len(self.own)

    def times(self, j: int) -> I64:
        """The valid times (c, size) of component j, and padding behind them."""
        result: I64 = self.earliest[j][:, None] + np.arange(self.sizes[j])
        return result

    def chances(self, j: int) -> F64:
        """The probabilities (c, size) of these times; 0 for the padding."""
        times = self.times(j)
        total = self.events.total.take(self.own[j])[:, None]
        result: F64 = self.events.mass(self.own[j], times) / total
        result[times > self.latest[j][:, None]] = 0.0
        return result

    def along(self, array: npt.NDArray[_Number], j: int) -> npt.NDArray[_Number]:
        """View an array (c, size of component j) as one over all n components' times."""
        shape = [len(array)] + [1] * self.n
        shape[j + 1] = array.shape[1]
        return array.reshape(shape)


#: Confidence (c,), and of each component the probability (c, size) that it happens at each time in a match.
Result = tuple[F64, list[F64] | None]


def free(block: Block) -> Result:
    """See the module: no hits at all, and no instants without weight."""
    n, events, window = block.n, block.events, block.window
    first = block.chances(0)
    if n == 1:
        return first.sum(axis=1), None
    last, total = block.own[-1], events.total.take(block.own[-1])
    start = block.times(0)
    if n == 2:
        before, bound = start, start + window
        state = first
    else:
        if not block.carry:
            state = first
            for j in range(1, n - 1):
                state = _prefix(block, state, j) * block.chances(j)
            before, bound = block.times(n - 2), block.latest[-1][:, None]
        else:
            state = first[:, :, None] * (start[:, :, None] < block.times(1)[:, None, :]) * block.chances(1)[:, None, :]
            for j in range(2, n - 1):
                state = _prefix(block, state, j) * block.chances(j)[:, None, :]
            before, bound = block.times(n - 2)[:, None, :], start[:, :, None] + window
    rest = np.maximum(events.cumulative(last, bound) - events.cumulative(last, before), 0.0)
    result: F64 = (state * rest).reshape(len(block), -1).sum(axis=1) / total
    return result, None


def _prefix(block: Block, state: F64, j: int) -> F64:
    """For each time of component j the sum of ``state`` over earlier times of component j - 1 (its last axis)."""
    sums = np.zeros((*state.shape[:-1], state.shape[-1] + 1))
    np.cumsum(state, axis=-1, out=sums[..., 1:])
    places = np.clip(block.times(j) - block.earliest[j - 1][:, None], 0, block.sizes[j - 1])
    if state.ndim == 3:
        places = np.broadcast_to(places[:, None, :], (len(state), state.shape[1], places.shape[1]))
    return np.take_along_axis(sums, places, axis=-1)


def grid(block: Block) -> Result:
    """See the module: any hits; an event may fit several scopes."""
    n = block.n
    weight = block.along(block.chances(0), 0)
    times = [block.along(block.times(j), j) for j in range(n)]
    for j in range(1, n):
        weight = weight * block.along(block.chances(j), j)
        weight *= times[j - 1] < times[j]
    if block.carry:
        weight *= times[-1] - times[0] <= block.window
    if block.test is not None:
        weight *= block.test(times)
    scale = _spare(weight, block, block.hits, times)
    flat = weight.reshape(len(block), -1)
    axes = range(1, n + 1)
    return flat.sum(axis=1) * scale, [weight.sum(axis=tuple(a for a in axes if a != j)) for j in axes]


def _layers(hits: Hits) -> list[Hits]:
    """The hits in layers: of each candidate those of its first event, then of its second one, and so on."""
    if not len(hits):
        return []
    fresh = np.ones(len(hits), bool)
    fresh[1:] = (np.diff(hits.owner) != 0) | (np.diff(hits.event) != 0)
    owners = hits.owner[fresh]
    begins = np.ones(len(owners), bool)
    begins[1:] = np.diff(owners) != 0
    starts = begins.nonzero()[0]
    counts = np.diff([*starts.tolist(), len(owners)])
    layer = (np.arange(len(owners)) - np.repeat(starts, counts))[fresh.cumsum() - 1]
    order = layer.argsort(kind="stable")
    return [hits.take(at) for at in np.split(order, np.diff(layer[order]).nonzero()[0] + 1)]


def _spare(weight: F64, block: Block, hits: Hits, times: Sequence[I64]) -> F64:
    """Multiply ``weight`` (c, …) by the probability that no hit's event lies in a scope, given the own events'
    ``times`` (each of c rows that broadcast to ``weight``); returns a factor (c,) that is left to be multiplied.

    Weights outside a scope are whole numbers; they are scaled by powers of two, so a factor is 0 only if it is 0.
    """
    left = np.ones(len(weight))
    wide = (slice(None),) + (None,) * (weight.ndim - 1)
    for layer in _layers(hits):
        fresh = np.ones(len(layer), bool)
        fresh[1:] = np.diff(layer.owner) != 0
        item = fresh.cumsum() - 1
        alone = np.bincount(item)[item] == 1
        for number, scope in enumerate(block.scopes):
            at = (alone & (layer.scope == number)).nonzero()[0]
            if len(at):
                rows, events = layer.owner[at], layer.event[at]
                plus, minus, scale = _outside(block, events, _at(times, rows, len(weight)), scope)
                _multiply(weight, rows, plus * scale[wide] - minus * scale[wide])
                left[rows] /= block.events.total.take(events) * scale
        if not alone.all():  # events that fit several scopes, which have no time in common
            some = layer.take((~alone).nonzero()[0])
            rows, place = np.unique(some.owner, return_inverse=True)
            total = block.events.total.take(some.event)
            chance = np.ones((len(rows), *np.broadcast_shapes(*(t.shape[1:] for t in times))))
            chance[place] = total[wide]
            for number, scope in enumerate(block.scopes):
                at = (some.scope == number).nonzero()[0]
                if len(at):
                    plus, minus, _ = _outside(block, some.event[at], _at(times, some.owner[at], len(weight)), scope)
                    chance[place[at]] -= total[at][wide] - (plus - minus)
            scale = np.zeros(len(rows))
            scale[place] = np.ldexp(1.0, -np.frexp(total)[1])
            _multiply(weight, rows, np.maximum(chance, 0.0) * scale[wide])
            whole = np.zeros(len(rows))
            whole[place] = total
            left[rows] /= whole * scale
    return left


def _outside(block: Block, events: I64, times: Sequence[I64], scope: Scope) -> tuple[F64, F64, F64]:
    """Two arrays whose difference is the weight of each event outside the scope (in a chain), and a scale for them: the
    power of two that brings totals to between 1/2 and 1.
    """
    (left, right), window, sums = scope, block.window, block.events.cumulative
    total = block.events.total.take(events)
    scale: F64 = np.ldexp(1.0, -np.frexp(total)[1])
    if left is None:
        plus, minus = sums(events, times[-1] - window - 1), sums(events, times[0] - 1)
    elif right is None:
        plus, minus = sums(events, times[-1]), sums(events, times[0] + window)
    else:
        plus, minus = sums(events, times[left]), sums(events, times[right] - 1)
    return plus + total.reshape((-1,) + (1,) * (plus.ndim - 1)), minus, scale


def _at(times: Sequence[I64], rows: I64, n: int) -> Sequence[I64]:
    """The times of these of n candidates (ascending)."""
    return times if len(rows) == n else [t[rows] for t in times]


def _multiply(weight: F64, rows: I64, factor: F64) -> None:
    if len(rows) == len(weight):
        weight *= factor
    elif weight[0].size > _LARGE:
        for row, one in zip(rows.tolist(), factor, strict=True):
            weight[row] *= one
    else:
        weight[rows] *= factor


def chain(block: Block) -> Result:
    """See the module: three components or more, and no event fits both a gap and another gap or end."""
    n = block.n
    middle = np.array([None not in scope for scope in block.scopes] or [False])
    ends = block.hits.take((~middle[block.hits.scope]).nonzero()[0])
    times = [block.times(j) for j in range(n)]
    chances = [block.chances(j) for j in range(n)]
    left = np.ones(len(block))
    steps = []
    for j in range(1, n):
        step, scale = _step(block, times, j)
        steps.append(step * chances[j][:, None, :])
        left *= scale
    if block.carry:
        forward = [chances[0][:, :, None] * steps[0]]
        final = (times[-1][:, None, :] - times[0][:, :, None] <= block.window).astype(np.float64)
        # End scopes look at the first and the last component only.
        left *= _spare(final, block, ends, [*[times[0][:, :, None]] * (n - 1), times[-1][:, None, :]])
    else:
        forward = [chances[0][:, None, :] @ steps[0]]
        final = np.ones((len(block), 1, block.sizes[-1]))
    for step in steps[1:]:
        forward.append(forward[-1] @ step)
    backward = [final]
    for step in steps[:0:-1]:
        backward.append(backward[-1] @ step.transpose(0, 2, 1))
    # Of components 1 to n - 1, by the first one's time where that is carried.
    joint = [f * b for f, b in zip(forward, reversed(backward), strict=True)]
    confidence = joint[-1].reshape(len(block), -1).sum(axis=1) * left
    if block.carry:
        first = joint[0].sum(axis=2)
    else:
        first = (chances[0][:, None, :] * (backward[-1] @ steps[0].transpose(0, 2, 1)))[:, 0]
    return confidence, [first, *(j.sum(axis=1) for j in joint)]


def _step(block: Block, times: list[I64], j: int) -> tuple[F64, F64]:
    """For times of components j - 1 and j the probability that nothing spoils between them, but for a factor for each
    candidate; 0 where not in order.
    """
    result = (times[j - 1][:, :, None] < times[j][:, None, :]).astype(np.float64)
    numbers = [number for number, scope in enumerate(block.scopes) if scope == (j - 1, j)]
    hits = block.hits.take(np.isin(block.hits.scope, numbers).nonzero()[0])
    pair = [t[:, None, :] if i == j else t[:, :, None] for i, t in enumerate(times)]
    return result, _spare(result, block, hits, pair)


def plane(block: Block) -> Result:
    """See the module. The gap is that before component ``block.gap``, 1 or 2."""
    events, window, gap = block.events, block.window, block.gap
    outer = 2 if gap == 1 else 0
    before, after = (block.times(j) for j in (gap - 1, gap))
    weight, left = _step(block, [block.times(j) for j in range(3)], gap)
    weight *= block.chances(gap - 1)[:, :, None]
    weight *= block.chances(gap)[:, None, :]
    if outer == 2:  # behind the second one, and in the window of the first
        high = events.cumulative(block.own[2], before + window)[:, :, None]
        low = events.cumulative(block.own[2], after)[:, None, :]
    else:  # before the second one, and in the window of the third
        high = events.cumulative(block.own[0], before - 1)[:, :, None]
        low = events.cumulative(block.own[0], after - window - 1)[:, None, :]
    weight *= np.maximum(high - low, 0.0)
    total = events.total.take(block.own[outer])
    confidence = weight.reshape(len(block), -1).sum(axis=1) * left / total
    pair = [weight.sum(axis=2), weight.sum(axis=1)]
    chance = events.mass(block.own[outer], block.times(outer))
    chance[~_reached(block, outer, pair)] = 0.0
    return confidence, [*pair, chance] if outer == 2 else [chance, *pair]


def _reached(block: Block, outer: int, pair: Sequence[F64]) -> Bools:
    """The times of the outer component from the first to the last that belongs to a match, given the chances of the two
    others' times.
    """
    near, far = (1, 0) if outer == 2 else (0, 1)
    times = [block.times(block.gap - 1 + i) for i in (near, far)]
    able = [pair[i] > 0 for i in (near, far)]
    if outer == 2:
        first = np.where(able[0], times[0], _NEVER).min(axis=1) + 1
        last = np.where(able[1], times[1], -_NEVER).max(axis=1) + block.window
    else:
        first = np.where(able[1], times[1], _NEVER).min(axis=1) - block.window
        last = np.where(able[0], times[0], -_NEVER).max(axis=1) - 1
    mine = block.times(outer)
    result: Bools = (mine >= first[:, None]) & (mine <= last[:, None])
    return result


def sample(block: Block, worlds: int) -> tuple[F64, F64]:
    """Estimates from so many draws, the same for every candidate and on every run, and how much all draws weigh."""
    drawn = np.random.Generator(np.random.PCG64(_SEED)).random((block.n, worlds))
    weight = np.ones(len(block))
    times: list[I64] = []
    possible: Bools = np.ones((len(block), worlds), bool)
    for j in range(block.n):
        at = block.own[j]
        below = block.events.cumulative(at, block.earliest[j] - 1)[:, None]
        inside = block.events.cumulative(at, block.latest[j])[:, None] - below
        times.append(block.events.quantile(at, below + np.minimum(drawn[j] * inside, np.nextafter(inside, 0))))
        weight *= (inside / block.events.total.take(at)[:, None])[:, 0]
        if j:
            possible &= times[j - 1] < times[j]
    possible &= times[-1] - times[0] <= block.window
    if block.test is not None:
        possible &= block.test(times)
    chance = possible.astype(np.float64)
    left = _spare(chance, block, block.hits, times)
    return weight * left * chance.mean(axis=1), weight


_SEED = 20100913
_NEVER = 1 << 62
_LARGE = 4096  # numbers of a candidate from which views are cheaper than copies
