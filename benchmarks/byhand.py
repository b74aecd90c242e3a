"""What a competent user writes in plain Python: a dict of sorted lists for each key, and ``bisect``.

Events may come in any order: each is inserted where it belongs and looks for partners on both sides, and a late
negative takes back the matches that it breaks, so the answer is exact. Lists are cut at the front as the clock goes on.
It covers a sequence of two or three parts with at most one negation in the middle; that is what a user would write, not
an engine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import Any

import pyarrow as pa

from benchmarks.shapes import MAX_DELAY, Shape

Entry = tuple[int, int, float]

#: A key's lists are cut when one of its events comes and the oldest is this far below what is needed, in ms.
_SLOP = 5_000


def rows(events: pa.Table) -> list[tuple[int, str, int, int, float]]:
    """The events as Python tuples, which is how they would come."""
    return list(zip(*(events[c].to_pylist() for c in ("id", "kind", "key", "ts", "price")), strict=True))


def able(shape: Shape) -> bool:
    """Whether this program covers the shape."""
    return shape.above is None and [p.startswith("!") for p in shape.parts] in ([False, True, False], [False] * 3)


def matches(given: list[tuple[int, str, int, int, float]], shape: Shape) -> set[tuple[int, ...]]:
    """The ids of all matches, feeding one event after the other."""
    find = _gap if any(p.startswith("!") for p in shape.parts) else _three
    kinds = [p.lstrip("!") for p in shape.parts]
    place = {kind: i for i, kind in enumerate(kinds)}
    lists: defaultdict[int, tuple[list[Entry], list[Entry], list[Entry]]] = defaultdict(lambda: ([], [], []))
    found: set[tuple[int, ...]] = set()
    clock, window, rise, keyed = 0, shape.window, shape.rise, shape.keyed
    for number, kind, key, ts, price in given:
        clock = max(clock, ts)
        at = place.get(kind)
        if at is None:
            continue
        held = lists[key if keyed else 0]
        own = held[at]
        entry = (ts, number, price)
        own.insert(bisect_right(own, entry), entry)
        find(held, at, entry, window, rise, found)
        floor = clock - window - MAX_DELAY
        if own[0][0] < floor - _SLOP:
            for one in held:
                del one[: bisect_left(one, (floor,))]
    return found


def _three(held: Any, at: int, new: Entry, window: int, rise: bool, found: set[tuple[int, ...]]) -> None:
    """``SEQ(A, B, C)``: all matches that hold the new event."""
    first, middle, last = held
    ts = new[0]
    if at == 0:
        starts = [new]
    else:
        starts = first[bisect_left(first, (ts - window,)) : bisect_left(first, (ts,))]
    for a in starts:
        if at == 1:
            between = [new]
        else:
            between = middle[
                bisect_left(middle, (a[0] + 1,)) : bisect_left(middle, (ts if at == 2 else a[0] + window,))
            ]
        for b in between:
            ends = [new] if at == 2 else last[bisect_left(last, (b[0] + 1,)) : bisect_left(last, (a[0] + window + 1,))]
            for c in ends:
                if not rise or c[2] > a[2]:
                    found.add((a[1], b[1], c[1]))


def _gap(held: Any, at: int, new: Entry, window: int, rise: bool, found: set[tuple[int, ...]]) -> None:
    """``SEQ(A, !B, C)``: the matches that the new event makes, or those that it breaks."""
    first, absent, last = held
    ts = new[0]
    if at == 0:
        until = ts + window + 1
        b = bisect_left(absent, (ts + 1,))
        if b < len(absent):
            until = min(until, absent[b][0] + 1)
        for c in last[bisect_left(last, (ts + 1,)) : bisect_left(last, (until,))]:
            if not rise or c[2] > new[2]:
                found.add((new[1], c[1]))
        return
    since = ts - window
    b = bisect_left(absent, (ts,)) - 1
    if b >= 0:
        since = max(since, absent[b][0])
    starts = first[bisect_left(first, (since,)) : bisect_left(first, (ts,))]
    if at == 2:
        for a in starts:
            if not rise or new[2] > a[2]:
                found.add((a[1], new[1]))
        return
    for a in starts:
        until = a[0] + window + 1
        after = bisect_left(absent, (ts + 1,))
        if after < len(absent):
            until = min(until, absent[after][0] + 1)
        for c in last[bisect_left(last, (ts + 1,)) : bisect_left(last, (until,))]:
            found.discard((a[1], c[1]))
