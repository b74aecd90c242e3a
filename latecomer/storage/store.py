"""Stores: the events of one (type, key, filter), found by key and time range.

A store is a sorted map from time slices to frames. A frame holds the store's events of one slice, log-structured: a few
immutable *runs*, each sorted by a 64-bit code that packs the key's hash (high bits) and the time within the slice
(low bits), so that "all events of this key from t1 to t2" is one binary search on each side. Each batch stages one
small run; ``commit`` folds it in, merging runs so that sizes grow geometrically.

Delta joins need the state before and after a batch at once, hence the three views: OLD (committed), NEW (staged), ALL.

Invariants (``_check``): runs are sorted; a run's codes lie in its frame's slice; each committed run is at least twice
as long as the next one; no frame is empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from latecomer.storage.columns import I64, some
from latecomer.storage.hashing import U64

Bools = npt.NDArray[np.bool_]


class View(Enum):
    """Which of a store's events a join sees."""

    OLD = "old"
    NEW = "new"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How a key hash and a time share 64 bits: the low ``bits`` hold the time within its slice of ``2**bits`` units."""

    bits: int

    @classmethod
    def for_reach(cls, reach: int) -> CodeLayout:
        """A layout whose slices are about as long as ``reach``, the time span that a join looks at.

        At least 2**10 units, so that small windows do not shatter state; at most 2**44, so that 20 bits are left for
        keys.
        """
        return cls(min(max(int(reach).bit_length(), 10), 44))

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def keys(self, hashes: U64) -> U64:
        """The part of the hash that codes keep; not the highest bit, so that every code has a next one."""
        return hashes & np.uint64(~self.mask & (2**63 - 1))

    def codes(self, hashes: U64, ts: I64) -> U64:
        return self.keys(hashes) | (ts & self.mask).view(np.uint64)


@dataclass(frozen=True, slots=True)
class Run:
    """Events sorted by code: ``codes`` (n,) and ``refs`` (n,) into the event log."""

    codes: U64
    refs: I64

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch's new events of a store, by code within slice: what delta joins start from."""

    keys: U64
    ts: I64
    refs: I64

    def __len__(self) -> int:
        return len(self.refs)


@dataclass(slots=True)
class Hits:
    """For each probing row, the stretch ``first : first + count`` of ``run`` that it hits."""

    run: Run
    first: I64
    count: I64


#: How much longer than the next run each run is: searching a run costs more than copying it a few times.
_GROWTH = 8
_TAIL = 512  # events; runs up to this length are always merged: searching one more run costs more than copying it


class Frame:
    """The events of one store in one slice of event time."""

    __slots__ = ("new", "old")

    def __init__(self) -> None:
        self.old: list[Run] = []
        self.new: Run | None = None

    def runs(self, view: View) -> list[Run]:
        if view is View.OLD:
            return self.old
        new = [] if self.new is None else [self.new]
        return new if view is View.NEW else self.old + new

    def commit(self) -> None:
        if self.new is None:
            return
        last = self.new
        self.new = None
        while self.old and len(self.old[-1]) < max(_GROWTH * len(last), _TAIL):
            last = _merge(self.old.pop(), last)
        self.old.append(last)

    def keep(self, wanted: list[Bools]) -> None:
        """Keep the committed events that ``wanted`` marks, one array for each run."""
        places = [mask.nonzero()[0] for mask in wanted]
        runs = [Run(r.codes.take(at), r.refs.take(at)) for r, at in zip(self.old, places, strict=True)]
        self.old = []
        for run in runs:
            if len(run):
                self.new = run
                self.commit()

    def __len__(self) -> int:
        return sum(map(len, self.runs(View.ALL)))


class Store:
    """All frames of one (type, key, filter), on the layout and with the retention of its lane."""

    def __init__(self, layout: CodeLayout) -> None:
        self.layout = layout
        self.frames: SortedDict[int, Frame] = SortedDict()
        self.staged = _NOTHING
        self._dirty: list[Frame] = []
        self._purged = -(2**63)
        self._sizes = [0, 0]
        self._latest = [-(2**63), -(2**63)]

    def stage(self, hashes: U64, ts: I64, refs: I64) -> None:
        """Take in a batch's events (any order); they are in the views NEW and ALL until :meth:`commit`."""
        if len(ts) == 0:
            return
        bits = self.layout.bits
        codes = self.layout.codes(hashes, ts)
        latest = int(np.maximum.reduce(ts))
        first, last = int(np.minimum.reduce(ts)) >> bits, latest >> bits
        if first == last:
            order = codes.argsort(kind="stable")
            codes, refs, ts = codes.take(order), refs.take(order), ts.take(order)
            self._put(first, Run(codes, refs))
        else:
            slices = ts >> bits
            order = np.lexsort((codes, slices))
            slices, codes, refs, ts = slices.take(order), codes.take(order), refs.take(order), ts.take(order)
            at = np.flatnonzero(np.diff(slices)) + 1
            edges = [0, *at.tolist(), len(slices)]
            for start, end in itertools.pairwise(edges):
                self._put(int(slices[start]), Run(codes[start:end], refs[start:end]))
        self.staged = Staged(self.layout.keys(codes), ts, refs)
        self._sizes[1] = len(refs)
        self._latest[1] = latest

    def _put(self, number: int, run: Run) -> None:
        frame = self._frame(number)
        frame.new = run
        self._dirty.append(frame)

    def _frame(self, number: int) -> Frame:
        frame = self.frames.get(number)
        if frame is None:
            frame = self.frames[number] = Frame()
        return frame

    def commit(self) -> None:
        """Make the staged events part of the committed state."""
        for frame in self._dirty:
            frame.commit()
        self._dirty = []
        self._sizes = [self._sizes[0] + self._sizes[1], 0]
        self._latest = [max(self._latest), -(2**63)]
        self.staged = _NOTHING

    def count(self, view: View) -> int:
        """How many events the view holds."""
        old, new = self._sizes
        return old if view is View.OLD else new if view is View.NEW else old + new

    def latest(self, view: View) -> int:
        """No event of the view has a later time."""
        old, new = self._latest
        return old if view is View.OLD else new if view is View.NEW else max(old, new)

    def probe(self, keys: U64, lo: I64, hi: I64, view: View) -> Iterator[Hits]:
        """Find events with the same key hash and ``lo <= ts <= hi``, row by row. O(m log n) per run."""
        if not self.frames or not len(lo):
            return
        bits = self.layout.bits
        low, high = int(np.minimum.reduce(lo)) >> bits, int(np.maximum.reduce(hi)) >> bits
        wanted = np.empty((len(lo), 2), np.uint64)  # where each row's stretch begins, and where the next one would
        for number in [low] if low == high else list(self.frames.irange(low, high)):
            frame = self.frames.get(number)
            runs = frame.runs(view) if frame is not None else []
            if not runs:
                continue
            wanted[:, 0], wanted[:, 1] = self._codes_in(number, keys, lo, hi)
            for run in runs:
                found = run.codes.searchsorted(wanted)
                first = found[:, 0]
                count = found[:, 1] - first
                if some(count):
                    yield Hits(run, first, count)

    def nearest(self, keys: U64, lo: I64, hi: I64, view: View, backward: bool) -> tuple[I64, I64]:
        """For each row the last event (``backward``; else the first) with the same key hash and ``lo <= ts <= hi``.

        Returns its time and reference, -1 where there is none; overwrites ``lo`` and ``hi``. O(m log n) per run.
        """
        ts, refs = np.zeros(len(lo), np.int64), np.full(len(lo), -1)
        if not self.frames or not len(lo):
            return ts, refs
        bits, mask = self.layout.bits, np.uint64(self.layout.mask)
        low, high = int(np.minimum.reduce(lo)) >> bits, int(np.maximum.reduce(hi)) >> bits
        numbers = [low] if low == high else list(self.frames.irange(low, high, reverse=backward))
        for number in numbers:  # the nearest slice first
            frame = self.frames.get(number)
            runs = frame.runs(view) if frame is not None else []
            if not runs:
                continue
            begin, after = self._codes_in(number, keys, lo, hi)
            for run in runs:  # each narrows the stretch to what is nearer than its own find
                if backward:
                    found = run.codes.searchsorted(after) - 1
                else:
                    found = run.codes.searchsorted(begin)
                codes = run.codes.take(found, mode="clip")
                at = ((codes >= begin) & (codes < after)).nonzero()[0]
                if len(at):
                    here = codes.take(at)
                    (begin if backward else after)[at] = here
                    refs[at] = run.refs.take(found.take(at))
                    ts[at] = (here & mask).view(np.int64) + (number << bits)
            if number != numbers[-1]:
                done = (refs >= 0).nonzero()[0]
                lo[done], hi[done] = 1, 0
        return ts, refs

    def _codes_in(self, number: int, keys: U64, lo: I64, hi: I64) -> tuple[U64, U64]:
        """The codes at which each row's stretch begins in a slice, and at which the next one would; the same for a row
        whose times all lie before or after the slice, or that has none.
        """
        base, mask = number << self.layout.bits, self.layout.mask
        begin = np.minimum(np.maximum(lo - base, 0), mask + 1)
        after = np.maximum(np.minimum(hi - base, mask) + 1, begin)
        return keys + begin.view(np.uint64), keys + after.view(np.uint64)

    def purge(self, floor: int) -> None:
        """Drop committed events with time below ``floor``.

        Whole frames go at once. In the frame that the floor cuts, runs are rewritten each time the floor has moved a
        quarter of a slice, so that the work per event stays constant and the excess is bounded.
        """
        bits = self.layout.bits
        while self.frames and (self.frames.peekitem(0)[0] + 1) << bits <= floor:
            self._sizes[0] -= len(self.frames.popitem(0)[1])
        if self.frames and floor - self._purged >= 1 << (bits - 2):
            self._purged = floor
            number, frame = self.frames.peekitem(0)
            if number << bits < floor:
                before = len(frame)
                offset = np.uint64(floor - (number << bits))
                mask = np.uint64(self.layout.mask)
                frame.keep([(r.codes & mask) >= offset for r in frame.old])
                self._sizes[0] -= before - len(frame)
                if not len(frame):
                    del self.frames[number]

    def oldest(self) -> int | None:
        """No committed event is older than this; None when there is none."""
        return max(self.frames.peekitem(0)[0] << self.layout.bits, self._purged) if self.frames else None

    def events(self) -> tuple[U64, I64]:
        """Keys and references of all committed events."""
        runs = [run for frame in self.frames.values() for run in frame.old]
        if not runs:
            return _NOTHING.keys, _NOTHING.refs
        return self.layout.keys(np.concatenate([r.codes for r in runs])), np.concatenate([r.refs for r in runs])

    def keep(self, wanted: I64) -> I64:
        """Drop the committed events whose references are not in ``wanted`` (ascending); return those of the dropped."""
        gone: list[I64] = [_NOTHING.refs]
        for number, frame in list(self.frames.items()):
            masks = [np.isin(run.refs, wanted, assume_unique=True) for run in frame.old]
            lost = [run.refs[~mask] for run, mask in zip(frame.old, masks, strict=True) if not mask.all()]
            if lost:
                gone += lost
                frame.keep(masks)
                if not len(frame):
                    del self.frames[number]
        dropped = np.concatenate(gone)
        self._sizes[0] -= len(dropped)
        return dropped

    @property
    def nbytes(self) -> int:
        return sum(r.codes.nbytes + r.refs.nbytes for f in self.frames.values() for r in f.runs(View.ALL))

    def dump(self) -> dict[str, Any]:
        """Committed state as plain data."""
        frames = {n: [(r.codes, r.refs) for r in f.old] for n, f in self.frames.items()}
        return {"frames": list(frames.items()), "purged": self._purged}

    def load(self, state: dict[str, Any]) -> None:
        for number, runs in state["frames"]:
            self._frame(number).old = [Run(codes, refs) for codes, refs in runs]
        self._purged = state["purged"]
        self._sizes = [sum(map(len, self.frames.values())), 0]
        if self.frames:
            number, frame = self.frames.peekitem(-1)
            self._latest[0] = (number << self.layout.bits) + max(
                int((r.codes & np.uint64(self.layout.mask)).max()) for r in frame.old
            )

    def _check(self) -> None:
        """Assert every invariant."""
        total = 0
        for number, frame in self.frames.items():
            assert len(frame), f"frame {number} is empty"
            for run in frame.runs(View.ALL):
                assert (run.codes[1:] >= run.codes[:-1]).all(), f"frame {number}: run not sorted"
                assert len(run.codes) == len(run.refs)
            sizes = list(map(len, frame.old))
            total += sum(sizes)
            assert all(a >= 2 * b for a, b in itertools.pairwise(sizes)), f"frame {number}: run sizes {sizes}"
        assert total == self._sizes[0], f"{total} events committed, {self._sizes[0]} counted"


def _merge(a: Run, b: Run) -> Run:
    """Two sorted runs into one; equal codes keep a before b."""
    if len(b) * 8 <= len(a):  # few into many: find their places, copy the rest
        at = a.codes.searchsorted(b.codes, "right") + np.arange(len(b))
        free = np.ones(len(a) + len(b), bool)
        free[at] = False
        others = free.nonzero()[0]
        codes, refs = np.empty(len(free), np.uint64), np.empty(len(free), np.int64)
        codes[at], refs[at] = b.codes, b.refs
        codes[others], refs[others] = a.codes, a.refs
        return Run(codes, refs)
    codes = np.concatenate((a.codes, b.codes))
    order = codes.argsort(kind="stable")  # timsort: linear on two sorted stretches
    return Run(codes.take(order), np.concatenate((a.refs, b.refs)).take(order))


_NOTHING = Staged(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
