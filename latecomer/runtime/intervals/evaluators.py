"""The ways to compute a confidence, each for a block of candidates that are padded to one shape.

* :func:`free`: nothing may spoil the candidates. Prefix sums over time points: ``O(sum len)`` per candidate, or where
  the window cuts ``O(len1 · sum len)``.
* :func:`chain`: what may spoil lies each in one gap only, or at the ends. A chain of matrix products over time points,
  carrying the first time where the window cuts or an end scope is open: ``O(n · len²)`` or ``O(n · len³)``.
* :func:`grid`: all combinations of the own events' valid times, ``O(prod len)``: always right, and for two components
  also the cheapest.
* :func:`sample`: drawn times of the own events; given these the chance that nothing spoils is computed exactly.

All sums are of products of probabilities, nothing is subtracted but whole weights: relative errors stay at rounding
size, and a confidence is 0 only where no world has the match. Sums run in an order that depends on the shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """c candidates with valid times padded to ``sizes``; hits refer to the block's own numbering of candidates."""

    events: Distributions
    own: list[I64]
    earliest: list[I64]
    latest: list[I64]
    hits: Hits
    scopes: Sequence[Scope]
    window: int
    sizes: tuple[int, ...]

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
        carry = bool((block.latest[-1] - block.earliest[0] > window).any())
        if not carry:
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
        weight = weight * block.along(block.chances(j), j) * (times[j - 1] < times[j])
    if n > 1:
        weight = weight * (times[-1] - times[0] <= block.window)
    for rows, factor in _factors(block, block.hits, times):
        weight[rows] *= factor
    flat = weight.reshape(len(block), -1)
    axes = range(1, n + 1)
    return flat.sum(axis=1), [weight.sum(axis=tuple(a for a in axes if a != j)) for j in axes]


def _layers(hits: Hits, by_scope: bool) -> list[I64]:
    """Positions of hits in layers: of each candidate its first event's hits, its second one's, and so on."""
    if not len(hits):
        return []
    fresh = np.ones(len(hits), bool)
    fresh[1:] = (np.diff(hits.owner) != 0) | (np.diff(hits.event) != 0)
    if by_scope:
        fresh[1:] |= np.diff(hits.scope) != 0
    item = fresh.cumsum() - 1
    owners = hits.owner[fresh]
    begins = np.ones(len(owners), bool)
    begins[1:] = np.diff(owners) != 0
    starts = begins.nonzero()[0]
    layer = (np.arange(len(owners)) - np.repeat(starts, np.diff([*starts.tolist(), len(owners)])))[item]
    order = layer.argsort(kind="stable")
    return np.split(order, np.diff(layer[order]).nonzero()[0] + 1)


def _factors(block: Block, hits: Hits, times: list[I64]) -> list[tuple[I64, F64]]:
    """For layers of events the candidates concerned, and the probability that the event spoils none of them."""
    found = []
    for at in _layers(hits, False):
        layer = hits.take(at)
        fresh = np.ones(len(at), bool)
        fresh[1:] = np.diff(layer.owner) != 0
        rows, events = layer.owner[fresh], layer.event[fresh]
        place = fresh.cumsum() - 1
        total = block.events.total.take(events).reshape((-1,) + (1,) * (times[0].ndim - 1))
        shape = np.broadcast_shapes(*(t.shape[1:] for t in times))
        outside = np.broadcast_to(total, (len(rows), *shape)).copy()
        for number, scope in enumerate(block.scopes):
            mine = (layer.scope == number).nonzero()[0]
            if len(mine):
                inside = _inside(block, layer.event[mine], [t[layer.owner[mine]] for t in times], scope)
                outside[place[mine]] -= inside
        found.append((rows, np.maximum(outside, 0.0) / total))
    return found


def _inside(block: Block, events: I64, times: Sequence[I64], scope: Scope) -> F64:
    """The weight of each event in the scope, for the own events' ``times``; never negative in a chain."""
    (left, right), window, sums = scope, block.window, block.events.cumulative
    if left is None:
        return sums(events, times[0] - 1) - sums(events, times[-1] - window - 1)
    if right is None:
        return sums(events, times[0] + window) - sums(events, times[-1])
    return np.maximum(sums(events, times[right] - 1) - sums(events, times[left]), 0.0)


def chain(block: Block) -> Result:
    """See the module: three components or more, and no event fits both a gap and another gap or end."""
    n = block.n
    middle = np.array([None not in scope for scope in block.scopes] or [False])
    ends = block.hits.take((~middle[block.hits.scope]).nonzero()[0])
    times = [block.times(j) for j in range(n)]
    chances = [block.chances(j) for j in range(n)]
    steps = [_step(block, times, j) * chances[j][:, None, :] for j in range(1, n)]
    carry = len(ends) > 0 or bool((block.latest[-1] - block.earliest[0] > block.window).any())
    if carry:
        forward = [chances[0][:, :, None] * steps[0]]
        final = (times[-1][:, None, :] - times[0][:, :, None] <= block.window).astype(np.float64)
        pair = [times[0][:, :, None]] * (n - 1) + [times[-1][:, None, :]]  # end scopes look at first and last only
        for rows, factor in _factors(block, ends, pair):
            final[rows] *= factor
    else:
        forward = [chances[0][:, None, :] @ steps[0]]
        final = np.ones((len(block), 1, block.sizes[-1]))
    for step in steps[1:]:
        forward.append(forward[-1] @ step)
    backward = [final]
    for step in steps[:0:-1]:
        backward.append(backward[-1] @ step.transpose(0, 2, 1))
    backward.reverse()
    joint = [
        f * b for f, b in zip(forward, backward, strict=True)
    ]  # of components 1 to n - 1, by first time if carried
    confidence = joint[-1].reshape(len(block), -1).sum(axis=1)
    if carry:
        first = joint[0].sum(axis=2)
    else:
        first = (chances[0][:, None, :] * (backward[0] @ steps[0].transpose(0, 2, 1)))[:, 0]
    return confidence, [first, *(j.sum(axis=1) for j in joint)]


def _step(block: Block, times: list[I64], j: int) -> F64:
    """For times of components j - 1 and j the probability that nothing spoils between them; 0 where not in order."""
    before, after = times[j - 1], times[j]
    result = (before[:, :, None] < after[:, None, :]).astype(np.float64)
    for number, scope in enumerate(block.scopes):
        if scope != (j - 1, j):
            continue
        hits = block.hits.take((block.hits.scope == number).nonzero()[0])
        for at in _layers(hits, True):
            rows, events = hits.owner[at], hits.event[at]
            total = block.events.total.take(events)[:, None, None]
            end = block.events.cumulative(events, after[rows] - 1)[:, None, :]
            inside = np.maximum(end - block.events.cumulative(events, before[rows])[:, :, None], 0.0)
            result[rows] *= (total - inside) / total
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
    chance = possible.astype(np.float64)
    for rows, factor in _factors(block, block.hits, times):
        chance[rows] *= factor
    return weight * chance.mean(axis=1), weight


_SEED = 20100913
