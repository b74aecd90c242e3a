"""The fleet: which events there are, when each is sent for real, and from which source.

Rules:

* time is milliseconds of the wall clock, passed in; all chance comes from one seed;
* a share of the events belongs to *stories* (``truth.py``), each with a key of its own and its parts spread over the
  sources; all others are lone Starts that match nothing;
* each source stamps with its own clock, off by a constant and by a rate;
* what happens on the way is one of the models of :mod:`latecomer.disorder`, or several mixed by weight, applied to each
  slice of time: the model says when an event arrives, and it is sent then. A copy is sent with its original's content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

import latecomer.disorder as ld
from latecomer.disorder import Flow, Model
from latecomer.errors import ConfigError, options
from loadtest.outbox import EVENT, Outbox
from loadtest.truth import CANCEL, END, LONE, NEVER, START, Ints, Truth


@dataclass(frozen=True, slots=True)
class Knobs:
    """What may be turned while a test runs.

    Attributes:
        late: share of the events that are delayed (of those that take the way ``delayed``).
        delay: the delays' scale, in ms: their mean, or most, or least, as the tail has it.
        tail: ``exponential``, ``uniform`` or ``pareto``.
        most: no delay is longer than this, in ms.
        ways: weights of the models that events take, by name.
        duplicates: share of the events that are sent twice.
        future: share of extra events that are stamped an hour ahead.
        poison: share of extra messages that are broken.
        outage: how many sources are cut off.
    """

    late: float = 0.1
    delay: int = 500
    tail: str = "exponential"
    most: int = 10_000
    ways: Mapping[str, float] = field(default_factory=lambda: {"delayed": 1.0})
    duplicates: float = 0.0
    future: float = 0.0
    poison: float = 0.0
    outage: int = 0

    def __post_init__(self) -> None:
        for name in ("late", "duplicates", "future", "poison"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: a share between 0 and 1 is allowed")
        for name in ("delay", "most"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: at least 1 ms is needed")
        if self.outage < 0:
            raise ConfigError(f"outage={self.outage!r}: a number of sources from 0 is needed")
        if self.tail not in TAILS:
            raise ConfigError(f"tail={self.tail!r}: allowed are {options(TAILS)}")
        unknown = sorted(set(self.ways) - set(WAYS))
        if unknown or not self.ways or min(self.ways.values()) < 0 or sum(self.ways.values()) <= 0:
            raise ConfigError(
                f"ways={dict(self.ways)!r}: give a weight of 0 or more, not all 0, to some of {options(WAYS)}"
            )

    def model(self) -> Model:
        """The model that a slice of events goes through."""
        chosen = {name: weight for name, weight in self.ways.items() if weight}
        models = [WAYS[name](self) for name in chosen]
        way: Model = models[0] if len(models) == 1 else ld.Mix(models, list(chosen.values()))
        if not self.duplicates:
            return way
        return ld.Chain(way, ld.Duplicates(self.duplicates, ld.Exponential(f"{self.delay} ms")))

    def turned(self, given: Mapping[str, str]) -> Knobs:
        """The knobs after someone has typed some values; raises ConfigError for what makes no sense.

        >>> Knobs().turned({"late": "0.5", "ways": "delayed=3 shuffled=1"}).ways
        {'delayed': 3.0, 'shuffled': 1.0}
        """
        known = {f.name for f in fields(self)}
        values: dict[str, object] = {}
        for name, text in given.items():
            if name not in known:
                raise ConfigError(f"there is no knob {name!r}: there are {options(sorted(known))}")
            try:
                values[name] = (
                    text if name == "tail" else _ways(text) if name == "ways" else type(getattr(self, name))(text)
                )
            except ValueError as problem:
                raise ConfigError(f"{name}={text!r}: a number is needed") from problem
        return replace(self, **values)  # type: ignore[arg-type]

    def typed(self) -> dict[str, str]:
        """The values as they would be typed: ``Knobs().turned(knobs.typed()) == knobs``."""
        told = {f.name: str(getattr(self, f.name)) for f in fields(self)}
        return told | {"ways": " ".join(f"{name}={weight:g}" for name, weight in self.ways.items())}


def _ways(text: str) -> dict[str, float]:
    """``delayed=3 shuffled=1`` as weights."""
    pairs = [part.partition("=") for part in text.replace(",", " ").split()]
    return {name: float(weight or 1) for name, _, weight in pairs}


def _tail(knobs: Knobs) -> ld.Tail:
    return TAILS[knobs.tail](knobs)


#: Tails of delay by name.
TAILS: dict[str, Callable[[Knobs], ld.Tail]] = {
    "exponential": lambda k: _Cut(ld.Exponential(f"{k.delay} ms"), k.most),
    "uniform": lambda k: _Cut(ld.Uniform(f"{k.delay} ms"), k.most),
    "pareto": lambda k: ld.Pareto(f"{k.delay} ms", shape=1.2, most=f"{max(k.most, k.delay)} ms"),
}

#: The ways that an event may take, by name: every model of ``latecomer.disorder``. Where a model speaks of a stretch of
#: the stream, the stretch lies within one slice.
WAYS: dict[str, Callable[[Knobs], Model]] = {
    "ordered": lambda k: ld.Ordered(),
    "delayed": lambda k: ld.Delayed(k.late, _tail(k)),
    "outage": lambda k: ld.Outage(f"{min(k.delay, k.most)} ms", at=0.5),
    "skewed": lambda k: ld.ClockSkew(f"{k.delay} ms"),
    "shuffled": lambda k: ld.GroupShuffle(64),
    "repeated": lambda k: ld.Duplicates(k.late, _tail(k)),
    "replayed": lambda k: ld.Replay(f"{min(k.delay, k.most)} ms", at=1.0),
    "future": lambda k: ld.FromFuture("1 h"),
    "stragglers": lambda k: ld.Stragglers("100 ms", grace=f"{min(k.delay, k.most)} ms"),
    "shift": lambda k: ld.Shift(ld.Ordered(), ld.Delayed(k.late, _tail(k)), over=0.5),
    "chain": lambda k: ld.Chain(ld.Delayed(k.late, _tail(k)), ld.GroupShuffle(16)),
}


@dataclass(frozen=True, slots=True)
class _Cut:
    """Another tail, with no delay above ``most``."""

    tail: ld.Tail
    most: int

    def draw(self, n: int, unit: str, rng: np.random.Generator) -> Ints:
        return np.minimum(self.tail.draw(n, unit, rng), self.most)


class Fleet:
    """The sources of one process.

    Args:
        rate: events per second of each source.
        window: the query's, in ms; a story's Start and End lie up to two fifths of it apart.
        share: share of the events that belong to stories.
        skew: each source's clock is off by up to so many ms; drift: and runs wrong by up to this rate.
        seed: of all chance.
        base: the first number of a story; generators that run side by side need different ones, multiples of 2**40.
    """

    def __init__(
        self,
        *,
        rate: float = 1_000.0,
        window: int = 5_000,
        share: float = 0.1,
        cancelled: float = 0.3,
        skew: int = 0,
        drift: float = 0.0,
        seed: int = 1,
        base: int = 0,
    ) -> None:
        self.rate, self.window, self.share, self.cancelled = rate, window, share, cancelled
        self.skew, self.drift = skew, drift
        self.rng = np.random.default_rng([seed, base >> 40])
        self.truth, self.outbox, self.knobs = Truth(window, base), Outbox(), Knobs()
        self.sources: list[int] = []
        self._clocks: dict[int, tuple[int, float]] = {}
        self._lone, self._due, self.began = base, 0.0, 0

    def join(self, source: int, now: int) -> None:
        """A source begins to send."""
        self.sources.append(source)
        offset = int(self.rng.integers(-self.skew, self.skew + 1))
        self._clocks.setdefault(source, (offset, float(self.rng.uniform(-self.drift, self.drift))))
        self._recut(now)

    def leave(self, source: int, now: int) -> None:
        """A source ends; what it holds is sent by another, or waits for the next one."""
        self.sources.remove(source)
        if self.sources:
            self.outbox.leave(source, self.sources[0])
        self._recut(now)

    def rest(self, source: int, now: int) -> None:
        """From now on one source sends few lone events, in order: all that a pipeline's clock needs to go on."""
        self.sources, self.share, self.rate, self.knobs = [source], 0.0, 200.0, Knobs(late=0.0)
        self._clocks[source] = (0, 0.0)
        self._recut(now)

    def turn(self, knobs: Knobs, now: int) -> None:
        """From the next slice on."""
        self.knobs = knobs
        self._recut(now)

    def _recut(self, now: int) -> None:
        overdue = self.outbox.cut_off(frozenset(self.sources[: self.knobs.outage]), now)
        self.truth.postpone(overdue["id"], overdue["at"], now)

    def slice(self, begin: int, end: int) -> int:
        """Make the events that happen in ``[begin, end)`` (ms) and put them into the outbox; returns how many."""
        if not self.sources:
            return 0
        self.began = self.began or begin
        self._due += self.rate * len(self.sources) * (end - begin) / 1_000
        total = int(self._due)
        self._due -= total
        stories = self.rng.binomial(total, self.share / (2 + self.cancelled)) if self.share else 0
        lone = max(total - round(stories * (2 + self.cancelled)), 0)
        time, number, part = self._happen(begin, end, stories, lone)
        who = self.rng.integers(0, len(self.sources), len(time))
        stamp = self._stamped(time, who)
        order = np.argsort(time, kind="stable")
        flow = Flow(order, stamp[order], time[order], who[order], len(self.sources), "ms", begin, end)
        out = self.knobs.model().apply(flow, self.rng)
        first_ts, first_at, copies = self._firsts(out, len(time))
        ids = self._tell(number, part, stories, first_ts, first_at, copies)
        self._hold(ids[out.row], first_ts[out.row], out.arrival, who[out.row], np.zeros(len(out), bool))
        extra = self._extra(begin, end, total)
        return len(out) + extra

    def _happen(self, begin: int, end: int, stories: int, lone: int) -> tuple[Ints, Ints, Ints]:
        """When events truly happen, of which story of the slice each is, and which part it plays."""
        start = self.rng.integers(begin, end, stories)
        last = start + self.rng.integers(2, max(self.window * 2 // 5, 3), stories)
        with_cancel = np.flatnonzero(self.rng.random(stories) < self.cancelled)
        between = (
            start[with_cancel] + 1 + (self.rng.random(len(with_cancel)) * (last - start - 1)[with_cancel]).astype(int)
        )
        time = np.concatenate([start, between, last, self.rng.integers(begin, end, lone)])
        story = np.arange(stories)
        number = np.concatenate([story, with_cancel, story, np.arange(lone)])
        part = np.repeat([START, CANCEL, END, LONE], [stories, len(with_cancel), stories, lone])
        return time, number, part

    def _stamped(self, time: Ints, who: Ints) -> Ints:
        """What each event's source believes the time to be."""
        clocks = np.array([self._clocks[source] for source in self.sources])
        return time + np.rint(clocks[who, 0] + clocks[who, 1] * (time - self.began)).astype(np.int64)

    @staticmethod
    def _firsts(out: Flow, n: int) -> tuple[Ints, Ints, Ints]:
        """Stamp and time of sending of each event's first copy, and how many copies there are (n,)."""
        rows, first = np.unique(out.row, return_index=True)
        ts, at = np.zeros(n, np.int64), np.zeros(n, np.int64)
        ts[rows], at[rows] = out.ts[first], out.arrival[first]
        return ts, at, np.bincount(out.row, minlength=n)

    def _tell(self, number: Ints, part: Ints, stories: int, ts: Ints, at: Ints, copies: Ints) -> Ints:
        """Ids of the events (n,), and the stories told to the truth."""
        stamp = np.full((stories, 3), NEVER)
        when, sent = np.zeros((stories, 3), np.int64), np.zeros((stories, 3), np.int64)
        told = part != LONE
        place = (number[told], part[told])
        stamp[place], when[place], sent[place] = ts[told], at[told], copies[told]
        numbers = self.truth.add(stamp, when, sent)
        ids = np.zeros(len(number), np.int64)
        ids[told] = numbers[number[told]] * 4 + part[told]
        ids[~told] = self._alone(int((~told).sum()))
        return ids

    def _alone(self, count: int) -> Ints:
        self._lone += count
        return (np.arange(self._lone - count, self._lone)) * 4 + LONE

    def _extra(self, begin: int, end: int, total: int) -> int:
        """Events from the future and broken messages, besides all others."""
        future, poison = (int(self.rng.binomial(total, share)) for share in (self.knobs.future, self.knobs.poison))
        at = self.rng.integers(begin, end, future + poison)
        ts = at + np.repeat([3_600_000, 0], [future, poison])
        broken = np.arange(future + poison) >= future
        who = self.rng.integers(0, len(self.sources), len(at))
        self._hold(self._alone(len(at)), ts, at, who, broken)
        self.truth.poison += poison
        return len(at)

    def _hold(self, ids: Ints, ts: Ints, at: Ints, who: Ints, broken: Sequence[bool] | np.ndarray) -> None:
        events = np.zeros(len(ids), EVENT)
        events["id"], events["ts"], events["at"], events["poison"] = ids, ts, at, broken
        for number in np.unique(who).tolist():
            self.outbox.put(self.sources[number], events[who == number])
