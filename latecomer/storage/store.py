"""Stores: the events of one (type, key, filter), found by key and time range.

A store is a sorted map from time slices to frames. A frame holds the store's events of one slice, log-structured: a few
immutable *runs*, each sorted by a 64-bit code that packs the key's hash (high bits) and the time within the slice
(low bits), so that "all events of this key from t1 to t2" is one binary search on each side. Each batch stages one
small run; ``commit`` adds it to the others, and goes on with what long runs have to be done to (``runs.py``), by some
events for each one that came: no batch waits for all of it.

Delta joins need the state before and after a batch at once, hence the three views: OLD (committed), NEW (staged), ALL.

A frame may also have *saved* runs, which are on the shelf and, if they were asked for, in memory too: apart from the
fresh ones, so that they leave memory without being written again. A saved run is read when a probe comes into its slice
with a key that its filter does not rule out.

Invariants (``_check``): those of the fresh runs; saved runs are sorted, and few; no frame is empty; the frames that
have tasks are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from latecomer.storage import kernels
from latecomer.storage.columns import I64, some
from latecomer.storage.filters import Filter
from latecomer.storage.hashing import U64
from latecomer.storage.pager import Outbox, Pager
from latecomer.storage.runs import Run, Runs, merged
from latecomer.storage.shelf import Slot

Bools = npt.NDArray[np.bool_]


class View(Enum):
    """Which of a store's events a join sees."""

    OLD = "old"
    NEW = "new"
    ALL = "all"
    __hash__ = object.__hash__  # that of enums is written in Python


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


@dataclass(slots=True, eq=False)
class Staged:
    """A batch's new events of a store, by code within slice: what delta joins start from."""

    keys: U64
    ts: I64
    refs: I64

    def __len__(self) -> int:
        return len(self.refs)


@dataclass(slots=True)
class Hits:
    """For each probing row, the stretch ``first : first + count`` of ``run`` that it hits, in the slice that begins at
    ``base``."""

    run: Run
    first: I64
    count: I64
    base: int
    mask: int

    def events(self, at: Any) -> tuple[I64, I64]:
        """References and times of the run's events at these places."""
        ts = (self.run.codes[at] & np.uint64(self.mask)).view(np.int64)
        ts += self.base
        return self.run.refs[at], ts


#: Events that tasks go on by for each event that is committed, for each commit at least, and together.
_RATE, _LEAST, _STEP = 32, 64, 1 << 12
_NEVER = -(2**63)  # before every time
_ENTRY = 16  # bytes of an event in a run
_SAVED = 4  # saved runs of a frame beyond which small ones are written together
_TRIAL = 4_096  # keys after which a store's filters must have ruled out
_SELDOM = 64  # more than one in so many
_AGAIN = 256  # runs without a filter before there is another trial


@dataclass(slots=True)
class Worth:
    """Whether a store's filters are worth their memory: not where every key is in about every slice, so that they
    rule out next to nothing.
    """

    asked: int = 0
    denied: int = 0
    without: int = 0

    def wanted(self) -> bool:
        """Whether the next run is to have a filter; after a while without one there is another trial."""
        if self:
            return True
        self.without += 1
        if self.without >= _AGAIN:
            self.asked = self.denied = self.without = 0
        return False

    def learn(self, asked: int, denied: int) -> None:
        """So many keys were asked about, so many ruled out. What was long ago counts less and less."""
        if self.asked > 4 * _TRIAL:
            self.asked, self.denied = self.asked // 2, self.denied // 2
        self.asked, self.denied = self.asked + asked, self.denied + denied

    def __bool__(self) -> bool:
        return self.asked < _TRIAL or self.denied * _SELDOM > self.asked


@dataclass(slots=True)
class Saved:
    """A run on the shelf, and a filter that knows its keys; ``run`` and ``filter`` are their copies in memory, if there
    are any.
    """

    slots: tuple[Slot, Slot]
    count: int
    filter: Filter | None = None
    run: Run | None = None

    def load(self, pager: Pager) -> Run:
        return self.run or Run(*pager.load(self.slots[0]))

    def may_hold(self, keys: U64, pager: Pager, worth: Worth) -> Bools:
        """Which keys the run may hold: no false "no"."""
        if self.filter is None:
            self.filter = Filter(pager.load(self.slots[1]))
        if self.filter.any:
            return np.ones(len(keys), bool)
        if not worth:
            self.filter = Filter.of_any()
            return np.ones(len(keys), bool)
        mask = self.filter.maybe(keys)
        worth.learn(len(keys), len(keys) - int(np.count_nonzero(mask)))
        return mask


class Frame:
    """The events of one store in one slice of event time."""

    __slots__ = ("new", "old", "saved", "touched")

    def __init__(self, mask: int) -> None:
        self.old = Runs(mask)
        self.new: Run | None = None
        self.saved: list[Saved] = []
        self.touched = 0

    def runs(self, view: View) -> list[Run]:
        """The runs of a view that are in memory."""
        new = [] if self.new is None else [self.new]
        if view is View.NEW:
            return new
        old = self.old.all
        if self.saved:
            old = [s.run for s in self.saved if s.run is not None] + old
        return old if view is View.OLD else old + new

    @property
    def whole(self) -> bool:
        """Whether all events are in memory."""
        return all(s.run is not None for s in self.saved)

    @property
    def fresh(self) -> int:
        """Committed events that are in memory alone."""
        return len(self.old)

    def __len__(self) -> int:
        return sum(s.count for s in self.saved) + self.fresh + (0 if self.new is None else len(self.new))

    @property
    def movable(self) -> int:
        """Bytes in memory that may leave it; the others are filters."""
        return _ENTRY * (self.fresh + sum([s.count for s in self.saved if s.run is not None]))


class Store:
    """All frames of one (type, key, filter), on the layout and with the retention of its lane; ``pager``: where saved
    runs are."""

    def __init__(self, layout: CodeLayout, pager: Pager | None = None) -> None:
        self.layout = layout
        self._pager = pager
        self._frames: SortedDict[int, Frame] = SortedDict()
        #: What small batches have brought, which is part of no frame yet: see :meth:`expose`.
        self.recent: Any = None if kernels.Recent is None or pager is not None else kernels.Recent()
        self.staged = _NOTHING
        self._dirty: list[int] = []
        self._working: dict[int, Frame] = {}  # frames with tasks
        self._due = 0  # events that these have to go on by
        self._purged = _NEVER
        self._sizes = [0, 0]
        self._latest = [_NEVER, _NEVER]
        self._worth = Worth()
        self._listed: dict[View, list[kernels.Run]] = {}  # the runs of each view that are later than what is away
        self.away_until = _NEVER  #: all events later than this are in memory

    @property
    def frames(self) -> SortedDict[int, Frame]:
        """The frames by slice; all committed events are in them."""
        self._take_in()
        return self._frames

    def expose(self) -> None:
        """Show to :attr:`recent` what compiled code looks at: the runs of all committed events, which have been
        recent themselves. It adds those of small batches to the recent ones.
        """
        recent = self.recent
        if recent.count or recent.runs is None:
            recent.runs, recent.latest = self.source(View.OLD), self._latest[0]

    def _take_in(self, floor: int = _NEVER) -> None:
        """What is recent goes into frames: so whoever asks anything of the store finds it there. Slices that end before
        ``floor`` are dropped.
        """
        recent = self.recent
        if recent is None or not recent.count:
            return
        came = recent.count
        self._latest[0] = recent.latest
        self._moved()
        for number, codes, refs in recent.take():
            if (number + 1) << self.layout.bits > floor:
                self._sizes[0] += len(codes)
                self._commit(number, Run(codes, refs), came)
        if self._working:
            self._work(came)

    def _moved(self) -> None:
        """Runs are others than before."""
        self._listed.clear()
        if self.recent is not None:
            self.recent.runs = None

    def stage(self, hashes: U64, ts: I64, refs: I64) -> None:
        """Take in a batch's events (any order); they are in the views NEW and ALL until :meth:`commit`."""
        if len(ts) == 0:
            return
        self.place(kernels.arrange(hashes, ts, refs, self.layout.bits))

    def place(self, arranged: kernels.Arranged) -> None:
        """As :meth:`stage`, of events that are arranged already."""
        codes, ts, refs, keys, parts, latest = arranged
        self._take_in()
        if len(parts) == 1:
            self._put(parts[0][0], Run(codes, refs))
        else:
            for number, start, end in parts:
                self._put(number, Run(codes[start:end], refs[start:end]))
        self._moved()
        self.staged = Staged(keys, ts, refs)
        self._sizes[1] = len(refs)
        self._latest[1] = latest

    def _put(self, number: int, run: Run) -> None:
        self._frame(number).new = run
        self._dirty.append(number)

    def _frame(self, number: int) -> Frame:
        frame = self._frames.get(number)
        if frame is None:
            frame = self._frames[number] = Frame(self.layout.mask)
        return frame

    def _commit(self, number: int, run: Run, came: int) -> None:
        """A run goes into its frame; in all, so many events came."""
        frame = self._frame(number)
        gone = frame.old.add(run, _RATE * came)
        if gone:
            self._dropped(number, frame, gone)
        elif frame.old.busy:
            self._working.setdefault(number, frame)

    def commit(self) -> None:
        """Make the staged events part of the committed state, and go on with tasks."""
        came = self._sizes[1]
        if self._dirty:
            self._sizes = [self._sizes[0] + came, 0]
            for number in self._dirty:
                frame = self._frames[number]
                assert frame.new is not None
                new, frame.new = frame.new, None
                self._commit(number, new, came)
            self._dirty = []
            self._moved()
            self._latest = [max(self._latest), _NEVER]
            self.staged = _NOTHING
        if self._working:
            self._work(came)

    def _work(self, came: int) -> None:
        """So many events came: go on with the last task of each frame."""
        self._due += _RATE * came + _LEAST
        if self._due >= _STEP:
            working, self._working = self._working, {}
            for number, frame in working.items():
                self._dropped(number, frame, frame.old.go_on(self._due))
            self._due = 0

    def _dropped(self, number: int, frame: Frame, gone: int) -> None:
        """So many events are gone from a frame, and its runs are others."""
        self._sizes[0] -= gone
        self._moved()
        if frame.old.busy:
            self._working[number] = frame
        if not len(frame):
            del self._frames[number]

    @property
    def in_memory(self) -> bool:
        """Whether no event ever leaves memory."""
        return self._pager is None

    def count(self, view: View) -> int:
        """How many events the view holds."""
        self._take_in()
        old, new = self._sizes
        return old if view is View.OLD else new if view is View.NEW else old + new

    def latest(self, view: View) -> int:
        """No event of the view has a later time."""
        self._take_in()
        old, new = self._latest
        return old if view is View.OLD else new if view is View.NEW else max(old, new)

    def join(self, keys: U64, lo: I64, hi: I64, view: View, most: int) -> tuple[I64, I64, I64] | int:
        """Pairs of a row and an event with the same key hash and ``lo <= ts <= hi``: the rows' numbers, ascending, the
        events' references and their times; how many there are, if more than ``most``. O(m log n) per run.
        """
        return kernels.join(self._runs(keys, lo, hi, view), self.layout.bits, keys, lo, hi, most)

    def probe(self, keys: U64, lo: I64, hi: I64, view: View) -> Iterator[Hits]:
        """As :meth:`join`, but no pair is listed: where the events are, run by run."""
        bits, mask = self.layout.bits, self.layout.mask
        for run, first, count in kernels.stretches(self._runs(keys, lo, hi, view), bits, keys, lo, hi):
            number, codes, refs = run
            yield Hits(Run(codes, refs), first, count, number << bits, mask)

    def nearest(self, keys: U64, lo: I64, hi: I64, view: View, backward: bool) -> tuple[I64, I64]:
        """For each row the last event (``backward``; else the first) with the same key hash and ``lo <= ts <= hi``.

        Returns its time and reference, -1 where there is none. O(m log n) per run.
        """
        return kernels.nearest(self._runs(keys, lo, hi, view), self.layout.bits, keys, lo, hi, backward)

    def source(self, view: View) -> list[kernels.Run]:
        """The events of a view that are later than :attr:`away_until`, as compiled kernels want them."""
        self._take_in()
        listed = self._listed.get(view)
        if listed is None:
            slices: Iterable[int] = self._frames
            if self._pager is not None:
                slices = list(self._frames.irange((self.away_until >> self.layout.bits) + 1))
                for number in slices:
                    self._frames[number].touched = self._pager.turn
            listed = self._listed[view] = self._in_slices(slices, view)
        return listed

    def _runs(self, keys: U64, lo: I64, hi: I64, view: View) -> list[kernels.Run]:
        """The runs of a view, as kernels want them, that hold all events which rows from ``lo`` to ``hi`` may find."""
        if self._pager is None:
            return self.source(view)
        if not len(lo):
            return []
        bits = self.layout.bits
        low, high = lo >> bits, hi >> bits
        slices = list(self.frames.irange(int(np.minimum.reduce(low)), int(np.maximum.reduce(high))))
        numbers = np.array(slices, np.int64)
        at = numbers.searchsorted(low)  # a row meets the slices from here to
        end = np.maximum(numbers.searchsorted(high, "right"), at)
        most = len(slices) + 1
        met = (np.bincount(at, minlength=most) - np.bincount(end, minlength=most)).cumsum()[:-1].nonzero()[0]
        if view is not View.NEW:
            for place in met.tolist():
                frame = self.frames[slices[place]]
                frame.touched = self._pager.turn
                if not frame.whole:
                    rows = ((at <= place) & (end > place)).nonzero()[0]
                    own = keys.take(rows), lo.take(rows), hi.take(rows)
                    self._fetch(frame, own[0], *kernels.codes_in(slices[place], bits, *own))
        return self._in_slices(numbers.take(met).tolist(), view)

    def _in_slices(self, slices: Iterable[int], view: View) -> list[kernels.Run]:
        frames = self._frames
        return [(number, run.codes, run.refs) for number in slices for run in frames[number].runs(view)]

    def _fetch(self, frame: Frame, keys: U64, begin: U64, after: U64) -> None:
        """Bring the saved runs into memory that may hold a key of a row with a stretch in this frame."""
        assert self._pager is not None
        asked = keys[begin < after]
        for saved in frame.saved:
            if saved.run is None and len(asked) and some(saved.may_hold(asked, self._pager, self._worth)):
                saved.run = saved.load(self._pager)

    def purge(self, floor: int) -> int:
        """Drop committed events with time below ``floor``; returns from which floor on there may be more to drop.

        Whole frames go at once. In the frame that the floor cuts, fresh runs are rewritten each time the floor has
        moved a quarter of a slice, so that the work per event stays constant and the excess is bounded.
        """
        self._take_in(floor)
        bits, frames = self.layout.bits, self._frames
        first: tuple[int, Frame] | None = None  # that is left
        while frames:
            number, frame = first = frames.peekitem(0)
            if (number + 1) << bits > floor:
                break
            first = None
            del frames[number]
            self._working.pop(number, None)
            self._sizes[0] -= len(frame)
            self._moved()
            self._free(frame.saved)
        if first is not None and floor - self._purged >= 1 << (bits - 2):
            number, frame = first
            begin, purged = number << bits, frame.old.purged
            if floor <= begin:
                self._purged = floor
            elif purged is not None:
                if purged:
                    self._purged = max(self._purged, begin + purged)  # what was begun a while ago is done
                if floor - self._purged >= 1 << (bits - 2):
                    self._dropped(number, frame, frame.old.purge(floor - begin))
                    self._purged = max(self._purged, begin + (frame.old.purged or 0))  # of what is short at once
        if first is None or first[1].old.purged is None:
            return floor
        begin = first[0] << bits
        return min(max(begin, self._purged) + (1 << (bits - 2)), begin + (1 << bits))

    def _free(self, saved: list[Saved]) -> None:
        if saved:
            assert self._pager is not None
            self._pager.free([slot for s in saved for slot in s.slots])

    def oldest(self) -> int | None:
        """No committed event is older than this; None when there is none."""
        known = [] if self.recent is None or not self.recent.count else [int(self.recent.earliest)]
        if self._frames:
            number, frame = self._frames.peekitem(0)
            begin = number << self.layout.bits
            known.append(begin if frame.saved else max(begin, self._purged))  # what is saved is dropped with its frame
        return min(known, default=None)

    def events(self) -> tuple[U64, I64]:
        """Keys and references of all committed events in memory."""
        runs = [run for frame in self.frames.values() for run in frame.runs(View.OLD)]
        if not runs:
            return _NOTHING.keys, _NOTHING.refs
        return self.layout.keys(np.concatenate([r.codes for r in runs])), np.concatenate([r.refs for r in runs])

    def keep(self, wanted: I64) -> I64:
        """Drop the committed events whose references are not in ``wanted`` (in any order); return those of the dropped.

        All events must be in memory. What was saved of a frame that loses some is fresh again.
        """
        gone: list[I64] = [_NOTHING.refs]
        for number, frame in list(self.frames.items()):
            runs = frame.runs(View.OLD)
            masks = [np.isin(run.refs, wanted) for run in runs]
            lost = [run.refs[~mask] for run, mask in zip(runs, masks, strict=True) if not mask.all()]
            if lost:
                gone += lost
                self._free(frame.saved)
                frame.saved = []
                self._renew(number, frame, [Run(r.codes[own], r.refs[own]) for r, own in zip(runs, masks, strict=True)])
                self._dropped(number, frame, sum(map(len, lost)))
        return np.concatenate(gone)

    def _renew(self, number: int, frame: Frame, runs: Iterable[Run]) -> None:
        """Let a frame have these fresh runs, and no other tasks than they give."""
        frame.old = Runs(self.layout.mask, runs)
        self._moved()
        self._working.pop(number, None)
        if frame.old.busy:
            self._working[number] = frame

    # --- on the shelf ------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether all events are in memory."""
        return all(frame.whole for frame in self.frames.values())

    def away(self, lo: I64, hi: I64, keys: U64 | None) -> Bools:
        """For which rows events from ``lo`` to ``hi`` may be on the shelf and not in memory; ``keys``: of these keys
        alone."""
        mask = np.zeros(len(lo), bool)
        if self._pager is None or not len(lo):
            return mask
        bits = self.layout.bits
        for number in self.frames.irange(int(lo.min()) >> bits, int(hi.max()) >> bits):
            gone = [s for s in self.frames[number].saved if s.run is None]
            if gone:
                at = ((lo < (number + 1) << bits) & (hi >= number << bits) & ~mask).nonzero()[0]
                for saved in gone:
                    mask[at] |= True if keys is None else saved.may_hold(keys[at], self._pager, self._worth)
        return mask

    def save(self, number: int, outbox: Outbox) -> None:
        """Write what is fresh in a frame; it stays in memory, as a saved run. Small saved runs are written with it."""
        frame = self.frames.get(number)
        if frame is None or not frame.fresh:
            return
        assert self._pager is not None
        run, *others = frame.old.all
        for other in others:
            run = merged(run, other)
        kept = list(frame.saved)
        taken: list[Saved] = []
        while len(frame.saved) >= _SAVED and kept and kept[-1].count < 2 * len(run):
            last = kept.pop()
            run = merged(last.load(self._pager), run)
            taken.append(last)
        keys = Filter.of(self.layout.keys(run.codes)) if self._worth.wanted() else Filter.of_any()
        slots: list[Slot] = []
        outbox.add([run.codes, run.refs], slots.append)
        outbox.add(keys.words, slots.append)

        def done() -> None:
            frame.saved = [*kept, Saved((slots[0], slots[1]), len(run), keys, run)]
            self._renew(number, frame, ())
            self._free(taken)

        outbox.after(done)

    def evict(self, number: int) -> None:
        """Drop what is saved of a frame from memory."""
        frame = self.frames.get(number)
        if frame is not None and frame.saved:
            self.away_until = max(self.away_until, ((number + 1) << self.layout.bits) - 1)
            self._moved()
            for saved in frame.saved:
                saved.run = None

    def slots(self) -> list[Slot]:
        """All that the store needs of the shelf."""
        return [slot for frame in self.frames.values() for s in frame.saved for slot in s.slots]

    @property
    def nbytes(self) -> int:
        """Bytes in memory. O(frames): a runtime with a budget asks often."""
        total = _ENTRY * self._sizes[1] + (0 if self.recent is None else int(self.recent.nbytes))
        for frame in self.frames.values():
            total += frame.old.nbytes
            for saved in frame.saved:
                if saved.run is not None:
                    total += _ENTRY * saved.count
                if saved.filter is not None:
                    total += saved.filter.words.nbytes
        return total

    def dump(self) -> dict[str, Any]:
        """What is fresh, and what saved runs there are, as plain data."""
        frames = {n: [(r.codes, r.refs) for r in f.old.all] for n, f in self.frames.items() if f.fresh}
        saved = {n: [[s.slots, s.count] for s in f.saved] for n, f in self.frames.items() if f.saved}
        return {
            "frames": list(frames.items()),
            "saved": list(saved.items()),
            "purged": self._purged,
            "latest": self._latest[0],
        }

    def load(self, state: dict[str, Any]) -> None:
        for number, runs in state["frames"]:
            self._renew(number, self._frame(number), [Run(codes, refs) for codes, refs in runs])
        for number, saved in state["saved"]:
            self.away_until = max(self.away_until, ((number + 1) << self.layout.bits) - 1)
            self._frame(number).saved = [Saved((tuple(run), tuple(keys)), count) for (run, keys), count in saved]
        self._purged = state["purged"]
        self._moved()
        self._sizes = [sum(map(len, self.frames.values())), 0]
        self._latest[0] = state["latest"]

    def _check(self) -> None:
        """Assert every invariant."""
        total = 0
        for number, frame in self.frames.items():
            assert len(frame), f"frame {number} is empty"
            frame.old._check()
            assert frame.old.busy == (number in self._working), f"frame {number}: {self._working}"
            saved = [s.count for s in frame.saved]
            assert len(saved) <= _SAVED + max(saved, default=0).bit_length(), f"frame {number}: saved {saved}"
            total += sum(saved) + frame.fresh
            for kept in frame.saved:
                assert kept.run is None or len(kept.run) == kept.count, f"frame {number}: {kept}"
                assert kept.run is None or (kept.run.codes[1:] >= kept.run.codes[:-1]).all(), f"frame {number}: {kept}"
        assert set(self._working) <= set(self.frames)
        assert total == self._sizes[0], f"{total} events committed, {self._sizes[0]} counted"


_NOTHING = Staged(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))
