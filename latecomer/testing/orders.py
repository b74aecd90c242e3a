"""Orders of arrival that keep a promise, true punctuation, and ways to cut a stream into batches.

The promise "no event comes more than ``slack`` behind the clock" is a partial order: x comes before y whenever
``y.ts > x.ts + slack``. So an order is made step by step: of the events that may come next (no event that is still
missing is more than ``slack`` older) the one of least *priority* comes. Every order that keeps the promise has
priorities that make it; with no slack given, every order may come.

Everything random follows from the generator that is passed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Timed:
    """What orders depend on, one entry per event, in order of time: times in whole units, types, sources."""

    ts: list[int]
    types: list[str | None]
    sources: list[Any]

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, slots=True)
class Promise:
    """Punctuation: no event of ``type`` (None: any) of ``source`` (None: any) at or before ``ts`` will follow."""

    ts: int
    type: str | None
    source: Any = None

    def __str__(self) -> str:
        whose = f" of {self.source}" if self.source is not None else ""
        return f"<{'*' if self.type is None else self.type}{whose},{self.ts}>"


#: What happens, in order: a batch of events (their numbers), or punctuation.
Step = list[int] | Promise
Priority = Callable[[int], Any]


def arrange(ts: Sequence[int], slack: int | None, priority: Priority) -> list[int]:
    """Event numbers in order of arrival; ``ts`` does not fall. O(n log n).

    >>> arrange([1, 2, 3, 9], 1, lambda i: -i)
    [1, 0, 2, 3]
    >>> arrange([1, 2, 3, 9], None, lambda i: -i)
    [3, 2, 1, 0]
    """
    order: list[int] = []
    came = [False] * len(ts)
    oldest = offered = 0
    offers: list[tuple[Any, int]] = []
    while len(order) < len(ts):
        while came[oldest]:
            oldest += 1
        while offered < len(ts) and (slack is None or ts[offered] <= ts[oldest] + slack):
            heapq.heappush(offers, (priority(offered), offered))
            offered += 1
        _, number = heapq.heappop(offers)
        came[number] = True
        order.append(number)
    return order


def order(events: Timed, slack: int | None, types: Sequence[str], number: int, rng: Random) -> tuple[str, list[int]]:
    """The ``number``-th way of arriving: what it is called, and event numbers in order of arrival.

    First those in which something is as late as the promise allows (everything; all events of one type), then
    drawn ones, of three kinds by turns: a shuffle, delays, one straggler.
    """
    ts = events.ts
    chance = [rng.random() for _ in ts]
    fixed: list[tuple[str, Priority]] = [
        ("in order of time", lambda i: (ts[i], chance[i])),
        ("the latest first", lambda i: (-ts[i], chance[i])),
        *((f"each {t} as late as allowed", lambda i, t=t: (events.types[i] == t, ts[i], chance[i])) for t in types),
    ]
    if number < len(fixed):
        name, priority = fixed[number]
    else:
        reach = slack if slack is not None else (ts[-1] - ts[0] if ts else 0)
        late = rng.randrange(len(ts)) if ts else 0
        delays = [c * reach if rng.random() < 0.5 else 0.0 for c in chance]
        drawn: list[tuple[str, Priority]] = [
            ("shuffled as far as allowed", lambda i: chance[i]),
            ("half of the events delayed", lambda i: (ts[i] + delays[i], chance[i])),
            ("one straggler", lambda i: (i == late, ts[i], chance[i])),
        ]
        name, priority = drawn[(number - len(fixed)) % len(drawn)]
    return name, arrange(ts, slack, priority)


def punctuated(
    arrivals: Sequence[int], events: Timed, types: Sequence[str], everyone: set[Any] | None, rng: Random
) -> Iterator[int | Promise]:
    """The same arrivals with true punctuation between them: it knows what will still come.

    Promises are for a type, for all, or for one source; often as strong as can be, sometimes weaker, repeated, or left
    out. ``everyone``: all sources, None where the stream names none. A promise for one source is made once all sources
    have been heard, since before that the runtime cannot know for whom it has yet to wait.
    """
    often = rng.choice([0.1, 0.3, 1.0])
    heard: set[Any] = set()
    for place, number in enumerate(arrivals):
        yield number
        heard.add(events.sources[number])
        while rng.random() < often:
            kind = rng.choice([None, *types])
            source = None
            if everyone is not None and heard >= everyone and rng.random() < 0.3:
                source = rng.choice(sorted((s for s in everyone if s is not None), key=str) or [None])
            left = [
                events.ts[i]
                for i in arrivals[place + 1 :]
                if kind in (None, events.types[i]) and source in (None, events.sources[i])
            ]
            bound = min(left, default=max(events.ts) + 1) - 1 - rng.choice([0, 0, 0, 1, 5])
            yield Promise(bound, kind, source)
            if rng.random() < 0.7:
                break


#: What the first ways to cut are called; all that follow are like the last.
CUTS = ("one event at a time", "all in one batch", "batches of any size")


def cut(things: Sequence[int | Promise], number: int, rng: Random) -> tuple[str, list[Step]]:
    """The ``number``-th way to cut arrivals into batches, and the steps."""
    kind = min(number, 2)
    most = (1, len(things), 2 + rng.randrange(max(len(things) // 2, 1)))[kind]
    steps: list[Step] = []
    room = 0
    for thing in things:
        if isinstance(thing, Promise):
            steps.append(thing)
            room = 0
        elif room and isinstance(steps[-1], list):
            steps[-1].append(thing)
            room -= 1
        else:
            steps.append([thing])
            room = (most if kind < 2 else rng.randint(1, most)) - 1
    return CUTS[kind], steps
