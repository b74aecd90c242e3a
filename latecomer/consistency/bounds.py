"""Bounds: the state of all promises, and what held at each position of a batch.

Rules:

* a promise for a whole type raises the type's bound; a promise of one source binds that source alone, and the type's
  bound follows once *every* source that counts has promised as much: those known by then that are not idle;
* a new source counts from its first row on, an idle one again from its next; neither takes a bound back;
* bounds are running values: what counts for an event is what was promised before it, so no answer depends on how a
  stream is cut into batches.

There is no loop over promises. A source's promises are a rising step function of the position, and the least over the
sources is looked up for all positions at once (:func:`least_at`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from latecomer.consistency.clock import BEGINNING, I64
from latecomer.consistency.punctuation import ANY, Punctuation

#: No promise at all, in the least of some.
_NOBODY = np.iinfo(np.int64).max

Bools = npt.NDArray[np.bool_]


class Bounds:
    """The state of all promises over ``types`` event types; ``sources`` are known from the start.

    Sources' own promises are kept in *tracks*: one that all types share, and one for each type that was ever spoken of
    alone by a source.
    """

    def __init__(self, types: int, sources: int = 0) -> None:
        self.types = types
        self._whole: I64 = np.full(types, BEGINNING, np.int64)
        self._own: dict[int, I64] = {ANY: np.zeros(0, np.int64)}
        self._idle = np.zeros(0, bool)
        self._know(sources)

    def bound(self, type: int) -> int:
        """No more events of the type at or below this time."""
        return int(self._whole[type])

    def least(self, types: Iterable[int]) -> int:
        """The bound that holds for all of ``types``."""
        return min(int(self._whole[t]) for t in types)

    def own(self, type: int, sources: int) -> I64:
        """What binds each of the first ``sources`` sources: its own promise of the type, or the type's bound."""
        own = np.full(sources, self._whole[type])
        said = self._own.get(type, self._own[ANY])[:sources]
        own[: len(said)] = np.maximum(own[: len(said)], said)
        return own

    def unchanged(self) -> History:
        """The history of a batch in which nothing is promised and no idle source speaks."""
        return History(self._whole.copy(), dict(self._own))

    def apply(self, rows: Punctuation, back: Punctuation | None = None) -> History:
        """Take in a batch's promises, in order of position; the history tells what held at each position.

        Args:
            back: the first row of each source that was idle and spoke in the batch, as a promise of nothing (``ANY``
                type, ``BEGINNING``).
        """
        if back is not None:
            rows = _merge(rows, back)
        for kind in np.unique(rows.type[(rows.type != ANY) & (rows.source != ANY)]).tolist():
            self._own.setdefault(kind, self._own[ANY].copy())
        history = History(self._whole.copy(), dict(self._own))
        known = len(self._idle)
        if len(rows.position):
            self._know(int(rows.known[-1]))
        active_from = np.where(self._idle, _NOBODY, -1)
        new = np.arange(known, len(active_from))
        active_from[new] = rows.position[rows.known.searchsorted(new, "right")]
        if back is not None:
            active_from[back.source] = back.position
            self._idle[back.source] = False
        for track in self._own:
            kinds = [track] if track != ANY else [t for t in range(self.types) if t not in self._own]
            self._move(track, kinds, rows, active_from, history)
        return history

    def rest(self, idle: Bools) -> None:
        """Which of all known sources are idle: they hold nothing back until they speak. If all are, nothing moves."""
        self._know(len(idle))
        self._idle = idle.copy()
        for track, own in self._own.items():
            if not idle.all():
                kinds = [track] if track != ANY else [t for t in range(self.types) if t not in self._own]
                self._whole[kinds] = np.maximum(self._whole[kinds], own[~idle].min())

    def _know(self, sources: int) -> None:
        missing = sources - len(self._idle)
        if missing > 0:
            self._idle = np.append(self._idle, np.zeros(missing, bool))
            for track, own in self._own.items():
                self._own[track] = np.append(own, np.full(missing, BEGINNING))

    def _move(self, track: int, kinds: list[int], rows: Punctuation, active_from: I64, history: History) -> None:
        """Bring one track and the bounds of its types up to date."""
        heard = rows.type == ANY
        if track != ANY:
            heard |= rows.type == track
        mine = heard & (rows.source != ANY)
        least: tuple[I64, I64] | None = None
        if mine.any():
            steps = _Steps.of(rows.position[mine], rows.source[mine], rows.ts[mine], self._own[track])
            history.steps[track] = steps
            least = least_at(steps, self._own[track], active_from)
            updated = self._own[track].copy()
            updated[steps.senders] = steps.values[steps.last]
            self._own[track] = updated
        for kind in kinds:
            whole = (rows.source == ANY) & ((rows.type == kind) | (rows.type == ANY))
            self._raise(kind, rows.position[whole], rows.ts[whole], least, history)

    def _raise(self, kind: int, position: I64, ts: I64, least: tuple[I64, I64] | None, history: History) -> None:
        """Raise the bound of a type by promises for the whole of it and by the least of its sources'."""
        if least is not None:
            at = np.concatenate((position, least[0]))
            order = at.argsort(kind="stable")
            position, ts = at[order], np.concatenate((ts, least[1]))[order]
        if len(position):
            bounds = np.maximum(np.maximum.accumulate(ts), self._whole[kind])
            history.whole[kind] = (position, bounds)
            self._whole[kind] = bounds[-1]

    def _check(self) -> None:
        """The invariants: all know the same sources, and each bound is at least what those that count have promised."""
        for track, own in self._own.items():
            assert len(own) == len(self._idle), (track, len(own), len(self._idle))
        for kind in range(self.types):
            counts = self._own.get(kind, self._own[ANY])[~self._idle]
            assert not len(counts) or int(self._whole[kind]) >= int(counts.min()), (kind, self._whole[kind], counts)

    def dump(self) -> dict[str, Any]:
        return {"whole": self._whole, "own": list(self._own.items()), "idle": self._idle}

    def load(self, state: dict[str, Any]) -> None:
        self._whole, self._own, self._idle = state["whole"], dict(state["own"]), state["idle"]


def _merge(rows: Punctuation, more: Punctuation) -> Punctuation:
    """Both, in order of position."""
    order = np.concatenate((rows.position, more.position)).argsort(kind="stable")
    columns = [np.concatenate((getattr(rows, f.name), getattr(more, f.name)))[order] for f in fields(Punctuation)]
    return Punctuation(*columns)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The promises of sources in a batch as step functions, sorted by source and then position.

    Attributes:
        at: the positions where any step begins (n,), rising.
        begin: where a step begins, as an index into ``at`` (m,).
        source: whose step it is (m,).
        values: what the source has promised from there on (m,), rising within each source.
        senders: the sources that have steps.
        first, last: where the steps of each sender begin and end.
    """

    at: I64
    begin: I64
    source: I64
    values: I64
    senders: I64
    first: I64
    last: I64

    @classmethod
    def of(cls, position: I64, source: I64, ts: I64, own: I64) -> _Steps:
        new = np.append(True, position[1:] != position[:-1])
        begin = np.cumsum(new) - 1
        # Few sources sort by counting, which is much faster.
        order = (source.astype(np.uint16) if int(source.max()) < 2**16 else source).argsort(kind="stable")
        begin, source, ts = begin[order], source[order], ts[order]
        first = np.flatnonzero(np.append(True, source[1:] != source[:-1]))
        last = np.append(first[1:], len(source)) - 1
        values = np.maximum(rising(ts, first, last), own[source])
        return cls(position[new], begin, source, values, source[first], first, last)


def rising(values: I64, first: I64, last: I64) -> I64:
    """The running maximum within each group ``first[i] … last[i]``."""
    if len(first) == 1:
        return np.maximum.accumulate(values)
    group = np.repeat(np.arange(len(first)), last - first + 1)
    low, high = int(values.min()), int(values.max())
    if (high - low + 1) * len(first) < 2**62:
        # Each group is lifted above all groups before it, so one accumulation serves all.
        lift = group * (high - low + 1) - low
        return np.asarray(np.maximum.accumulate(values + lift) - lift)
    known, rank = np.unique(values, return_inverse=True)
    lift = group * len(known)
    return np.asarray(known[np.maximum.accumulate(rank + lift) - lift])


def least_at(steps: _Steps, own: I64, active_from: I64) -> tuple[I64, I64]:
    """The least over the sources that count, at each position where a source's promise changes.

    Each value of each source holds for an interval of positions. Intervals are cut into pairs of overlapping lengths of
    powers of two, entered in one table per length, and the tables are pushed down to single positions.
    """
    at, n = steps.at, len(steps.at)
    counts_from = at.searchsorted(active_from)
    begin = steps.begin
    end = np.append(begin[1:], n)
    end[steps.last] = n
    begin = np.maximum(begin, counts_from[steps.source])
    # Then what held for the senders before their first steps, and for sources without a step that begin to count here.
    silent = np.ones(len(own), bool)
    silent[steps.senders] = False
    late = np.flatnonzero(silent & (counts_from > 0) & (counts_from < n))
    begin = np.concatenate((begin, counts_from[steps.senders], counts_from[late]))
    end = np.concatenate((end, steps.begin[steps.first], np.full(len(late), n)))
    values = np.concatenate((steps.values, own[steps.senders], own[late]))
    holds = end > begin
    found = _least_of_intervals(begin[holds], end[holds], values[holds], n)
    always = own[silent & (counts_from == 0)]
    if len(always):
        found = np.minimum(found, always.min())
    found[found == _NOBODY] = BEGINNING
    return at, found


def _least_of_intervals(begin: I64, end: I64, values: I64, n: int) -> I64:
    """For each of n positions the least value of the intervals ``begin … end - 1`` that cover it."""
    level = np.frexp((end - begin).astype(np.float64))[1] - 1
    tables = np.full((int(level.max(initial=0)) + 1, n), _NOBODY)
    np.minimum.at(tables, (level, begin), values)
    np.minimum.at(tables, (level, end - (1 << level.astype(np.int64))), values)
    for number in range(len(tables) - 1, 0, -1):
        half = 1 << (number - 1)
        below, table = tables[number - 1], tables[number]
        np.minimum(below, table, out=below)
        np.minimum(below[half:], table[:-half], out=below[half:])
    return np.asarray(tables[0])


class History:
    """What was promised at each position of one batch.

    Attributes:
        whole: by type, positions where the type's bound was spoken of, and the bound from there on.
        steps: by track, the sources' own promises.
    """

    def __init__(self, whole: I64, own: dict[int, I64]) -> None:
        self._whole, self._own = whole, own
        self.whole: dict[int, tuple[I64, I64]] = {}
        self.steps: dict[int, _Steps] = {}

    def whole_at(self, type: int, positions: I64) -> I64:
        """The type's bound for the rows at ``positions``: what was promised before them."""
        found = self.whole.get(type)
        if found is None:
            return np.full(len(positions), self._whole[type], np.int64)
        at, bounds = found
        result: I64 = np.concatenate((self._whole[type : type + 1], bounds))[at.searchsorted(positions, "left")]
        return result

    def at(self, types: I64, sources: I64, positions: I64) -> I64:
        """For each event the bound that it had to respect: its type's, and its own source's promise."""
        result = np.full(len(types), BEGINNING, np.int64)
        shared = np.zeros(len(types), bool)
        for kind in np.unique(types).tolist():
            of = types == kind
            result[of] = self.whole_at(kind, positions[of])
            if kind in self._own:
                result[of] = np.maximum(result[of], self._own_at(kind, sources[of], positions[of]))
            else:
                shared |= of
        if shared.any():
            result[shared] = np.maximum(result[shared], self._own_at(ANY, sources[shared], positions[shared]))
        return result

    def _own_at(self, track: int, sources: I64, positions: I64) -> I64:
        """What their own sources had promised before the rows at ``positions``."""
        own = np.append(self._own[track], BEGINNING)  # the last one for sources that are new
        result: I64 = own[np.where((sources >= 0) & (sources < len(own) - 1), sources, -1)]
        steps = self.steps.get(track)
        if steps is None or not len(positions):
            return result
        # Each source has its own stretch of the keys.
        stretch = len(steps.at) + 1
        keys = steps.source * stretch + steps.begin
        before = keys.searchsorted(sources * stretch + steps.at.searchsorted(positions, "left"), "left") - 1
        said = (before >= 0) & (steps.source[before] == sources)
        result[said] = steps.values[before[said]]
        return result
