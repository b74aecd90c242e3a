"""What happens to streams on their way: the models of delay, disorder and repetition.

Rule: each model is a small frozen configuration with one function, ``apply``. It delays, shuffles, repeats or restamps;
it never drops an event and never makes one up (:class:`Duplicates` and :class:`Replay` send events again, as they are).
An ``at`` is a share of the stream's span of event time: 0 is its start, 1 its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latecomer.disorder.flow import Flow, merged, share
from latecomer.disorder.measure import IntArray
from latecomer.disorder.tails import Tail
from latecomer.errors import ConfigError
from latecomer.units import Duration, DurationLike


@dataclass(frozen=True, slots=True)
class Ordered:
    """Everything arrives as it happens."""

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        return flow


@dataclass(frozen=True, slots=True)
class Delayed:
    """Each event is delayed with probability ``late``, by a delay drawn from ``tail``.

    Where delays are long against the distance of events, ``late`` is the share that arrives late.
    """

    late: float
    tail: Tail

    def __post_init__(self) -> None:
        share(self.late, "late")

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        chosen = np.flatnonzero(rng.random(len(flow)) < self.late)
        arrival = flow.arrival.copy()
        arrival[chosen] += self.tail.draw(len(chosen), flow.unit, rng)
        return flow.arriving(arrival)


@dataclass(frozen=True, slots=True, init=False)
class Outage:
    """One source is cut off for ``length``: it holds its events and sends them all, in order, when it is back.

    Args:
        length: how long the source is silent.
        at: where in the stream the silence begins.
        source: index of the source by first appearance; None lets chance decide.
    """

    length: Duration
    at: float
    source: int | None

    def __init__(self, length: DurationLike, at: float = 0.5, source: int | None = None) -> None:
        share(at, "at")
        object.__setattr__(self, "length", Duration.of(length))
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "source", source)

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        source = _sources(flow, "an outage of one source")
        if not len(flow):
            return flow
        who = int(rng.integers(flow.sources)) if self.source is None else self.source
        if not 0 <= who < flow.sources:
            raise ConfigError(f"source={who}: the stream has {flow.sources} sources, counted from 0")
        begin = flow.instant(self.at)
        back = begin + flow.units(self.length)
        held = (source == who) & (flow.arrival >= begin) & (flow.arrival < back)
        return flow.arriving(np.where(held, back, flow.arrival))


@dataclass(frozen=True, slots=True, init=False)
class ClockSkew:
    """Each source's clock is wrong: off by a constant, and running too fast or too slow.

    The events arrive as they happen, but are *stamped* with the source's own clock, so the ``ts`` column changes. Each
    source draws its constant from -skew to skew and its rate from -drift to drift, so that two sources differ by up to
    2 * skew.

    Args:
        skew: the largest constant.
        drift: the largest rate, as a share: 0.001 gains or loses a millisecond per second.
    """

    skew: Duration
    drift: float

    def __init__(self, skew: DurationLike = 0, drift: float = 0.0) -> None:
        if not 0 <= drift < 1:
            raise ConfigError(f"drift={drift!r}: a share from 0 to below 1 is allowed (0.001 is one second in 1,000)")
        object.__setattr__(self, "skew", Duration.of(skew))
        object.__setattr__(self, "drift", float(drift))

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        source = _sources(flow, "a clock for each source")
        skew = flow.units(self.skew)
        offset = rng.integers(-skew, skew + 1, flow.sources)
        rate = rng.uniform(-self.drift, self.drift, flow.sources)
        gained = np.floor(rate[source] * (flow.ts - flow.start)).astype(np.int64)
        return flow.stamped(flow.ts + offset[source] + gained)


@dataclass(frozen=True, slots=True)
class GroupShuffle:
    """Events travel in groups of ``n``: each group arrives when its last event does, in any order within."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n={self.n!r}: a group holds at least 1 event")

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        if not len(flow):
            return flow
        group = np.arange(len(flow)) // self.n
        last = np.minimum((group + 1) * self.n, len(flow)) - 1
        order = np.lexsort((rng.random(len(flow)), group))
        return flow.arriving(flow.arrival[last]).take(order)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """With probability ``again`` an event is sent a second time, an identical copy, by a delay from ``tail``."""

    again: float
    tail: Tail

    def __post_init__(self) -> None:
        share(self.again, "again")

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        copies = flow.take(np.flatnonzero(rng.random(len(flow)) < self.again))
        return merged([flow, copies.arriving(copies.arrival + self.tail.draw(len(copies), flow.unit, rng))])


@dataclass(frozen=True, slots=True, init=False)
class Replay:
    """A whole stretch is sent again, in the same order and at the same pace, as after a restart from an old position.

    Args:
        length: the stretch, in time of arrival.
        at: where in the stream the second sending begins; it repeats the ``length`` before it.
    """

    length: Duration
    at: float

    def __init__(self, length: DurationLike, at: float = 0.5) -> None:
        share(at, "at")
        object.__setattr__(self, "length", Duration.of(length))
        object.__setattr__(self, "at", at)

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        now, length = flow.instant(self.at), flow.units(self.length)
        again = flow.take((flow.arrival >= now - length) & (flow.arrival < now))
        return merged([flow, again.arriving(again.arrival + length)])


@dataclass(frozen=True, slots=True, init=False)
class FromFuture:
    """One event, the first to arrive from ``at`` on, is stamped ``ahead`` of its time; all after it look late."""

    ahead: Duration
    at: float

    def __init__(self, ahead: DurationLike, at: float = 0.5) -> None:
        share(at, "at")
        object.__setattr__(self, "ahead", Duration.of(ahead))
        object.__setattr__(self, "at", at)

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        if not len(flow):
            return flow
        first = min(int(np.searchsorted(flow.arrival, flow.instant(self.at))), len(flow) - 1)
        ts = flow.ts.copy()
        ts[first] += flow.units(self.ahead)
        return flow.stamped(ts)


@dataclass(frozen=True, slots=True, init=False)
class Stragglers:
    """From every window of event time one event, drawn at random, arrives just after the window has been closed.

    A window ``[start + i * window, start + (i + 1) * window)`` is closed by the first arrival whose time is ``grace``
    past its end; the straggler arrives one unit of time later. A window that is never closed has none.

    Args:
        window: the windows' length.
        grace: how long the windows wait.
    """

    window: Duration
    grace: Duration

    def __init__(self, window: DurationLike, grace: DurationLike = 0) -> None:
        object.__setattr__(self, "window", Duration.of(window))
        object.__setattr__(self, "grace", Duration.of(grace))

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        length = flow.units(self.window)
        if length < 1:
            raise ConfigError(f"window={self.window}: at least one {flow.unit}, the stream's unit, is needed")
        if not len(flow):
            return flow
        window = (flow.ts - flow.start) // length
        order = np.lexsort((rng.random(len(flow)), window))
        chosen = order[np.flatnonzero(np.diff(window[order], prepend=window.min() - 1))]
        clock = np.maximum.accumulate(flow.ts)
        closing = np.searchsorted(clock, flow.start + (window[chosen] + 1) * length + flow.units(self.grace))
        closed = closing < len(flow)
        arrival = flow.arrival.copy()
        # An event that came later still, by what another model did to it, keeps its time.
        arrival[chosen[closed]] = np.maximum(arrival[chosen[closed]], flow.arrival[closing[closed]] + 1)
        return flow.arriving(arrival)


def _sources(flow: Flow, purpose: str) -> IntArray:
    if flow.source is None:
        raise ConfigError(f"{purpose} needs to know the senders: name their column with Stream(source='device', …)")
    return flow.source
