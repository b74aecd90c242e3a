"""Runs: events sorted by code, few runs of sizes that grow geometrically, so that looking in all of them is cheap.

Runs that are short are merged as soon as another one comes behind them, and so are longer ones behind which a long one
comes. Merging others would let a batch wait for far more events than it brought. So that becomes a *task*: it goes on
by some events with each batch, its sources stay where they are, and what it has made takes their place once it is
whole. Dropping events from a time on is a task too, with one source. Tasks are a stack: one that begins later is about
shorter runs, behind those of the others, and comes first. What a task has made so far is nothing that anybody else
needs to know: state is saved without it.

Invariants (``_check``): runs are sorted; each run that no task has is at least twice as long as the next one; the
sources of tasks are neighbours, those of each task behind those of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64

#: How much longer than the next run each run is: searching a run costs more than copying it a few times.
_GROWTH = 8
_TAIL = 512  # events; runs up to this length are always merged: searching one more run costs more than copying it
_AT_ONCE = 1 << 13  # events; making a run of so many is no task
_ENTRY = 16  # bytes of an event in a run


@dataclass(slots=True, eq=False)
class Run:
    """Events sorted by code: ``codes`` (n,) and ``refs`` (n,) into the event log. What is earlier within its slice than
    ``floor`` has been dropped, as far as it was there by then. Nobody changes one that is made.
    """

    codes: U64
    refs: I64
    floor: int = 0

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.refs.nbytes


_NO_EVENTS = Run(np.zeros(0, np.uint64), np.zeros(0, np.int64))


class _Task:
    """Makes one run of the ``sources``, one or two runs from the ``at``-th on, without what is before ``floor``."""

    __slots__ = ("_mask", "_seen", "_seen_more", "at", "codes", "end", "floor", "made", "refs", "sources")

    def __init__(self, at: int, sources: Sequence[Run], floor: int, mask: int) -> None:
        self.at, self.sources, self.floor, self._mask = at, sources, floor, mask
        self.end = at + len(sources)  # the first run behind them
        n = sum([len(source.codes) for source in sources])
        self.codes, self.refs = np.empty(n, np.uint64), np.empty(n, np.int64)
        self.made = 0  # events that are there
        self._seen = self._seen_more = 0  # events of each source that have been looked at

    def go_on(self, most: int) -> int:
        """Take up to ``most`` events of each source; returns how many of the one of which most were taken."""
        one, other = self.sources if len(self.sources) == 2 else (*self.sources, _NO_EVENTS)
        seen, more = self._seen, self._seen_more
        first, second = (one.codes, one.refs, seen), (other.codes, other.refs, more)
        self.made, self._seen, self._seen_more = kernels.merge_on(
            self.codes, self.refs, self.made, *first, *second, most, self._mask, self.floor
        )
        return max(self._seen - seen, self._seen_more - more)

    @property
    def whole(self) -> bool:
        """Whether all is there."""
        return self._seen + self._seen_more == len(self.codes)

    def result(self) -> Run:
        floor, made = max(self.floor, min([source.floor for source in self.sources])), self.made
        if made == len(self.codes):
            return Run(self.codes, self.refs, floor)
        return Run(self.codes[:made], self.refs[:made], floor)


class Runs:
    """The runs of one slice; ``mask``: the bits of a code that hold the time within it.

    >>> runs = Runs(7)
    >>> [runs.add(Run(np.array(codes, np.uint64), np.array(codes))) for codes in ([8, 17], [9])]
    [0, 0]
    >>> [run.codes.tolist() for run in runs.all]
    [[8, 9, 17]]
    """

    __slots__ = ("_floor", "_mask", "_tasks", "all")

    def __init__(self, mask: int, given: Iterable[Run] = ()) -> None:
        self.all: list[Run] = []
        self._mask = mask
        self._tasks: list[_Task] = []
        self._floor = 0
        for run in given:
            if len(run):
                self.add(run)

    def __len__(self) -> int:
        return sum([len(run.codes) for run in self.all])

    @property
    def busy(self) -> bool:
        """Whether there is a task."""
        return bool(self._tasks)

    def add(self, run: Run, most: int = 0) -> int:
        """Take in the newest run; returns how many events are gone, which were before the floor. Amortised O(log n) per
        event. ``most``: so many events may be gone through at once, if that is more than what is no task.
        """
        self.all.append(Run(run.codes, run.refs, self._floor) if self._floor else run)
        return self._fold(whole=False, most=most)

    def purge(self, floor: int) -> int:
        """Drop what is before ``floor`` within the slice, some of it in tasks; returns how many events are gone. While
        that goes on another floor changes nothing.
        """
        if self.purged is None:
            return 0
        self._floor = floor
        return self._sweep()

    @property
    def purged(self) -> int | None:
        """The floor below which all has been dropped; None while that goes on."""
        return self._floor if self._unswept() is None else None

    def go_on(self, most: int) -> int:
        """Go on with tasks, by about ``most`` events in all; returns how many are gone by that."""
        gone = 0
        while self._tasks and most > 0:  # what one leaves over is for the next: else the last ones would never end
            task = self._tasks[-1]
            most -= task.go_on(most)
            if task.whole:
                gone += self._end()
                self._fold(whole=True)
                gone += self._sweep()
        return gone

    def _end(self) -> int:
        """What the last task has made takes the place of its sources."""
        return self._replace(self._tasks.pop())

    def _replace(self, task: _Task) -> int:
        run = task.result()
        self.all[task.at : task.end] = [run] if task.made else []
        return len(task.codes) - task.made

    def _fold(self, whole: bool, most: int = 0) -> int:
        """Merge runs whose next one is too long for them, the shortest first; returns how many events are gone by that.
        ``whole``: not only the last ones.
        """
        gone, runs = 0, self.all
        first = self._tasks[-1].end if self._tasks else 0
        for at in range(len(runs) - 2, first - 1, -1):
            if at + 1 == len(runs):  # nothing was left of what was merged
                continue
            one, other = runs[at], runs[at + 1]
            size, next_size = len(one.codes), len(other.codes)
            if size < _TAIL or size < _GROWTH * next_size:
                if size + next_size > max(_AT_ONCE, most):
                    self._tasks.append(_Task(at, (one, other), self._floor, self._mask))
                    break
                most -= size + next_size
                if not whole and one.floor < self._floor:  # then others behind it are none that may be too long for it
                    task = _Task(at, (one, other), self._floor, self._mask)
                    task.go_on(size + next_size)
                    gone += self._replace(task)
                else:
                    runs[at : at + 2] = [merged(one, other)]
            elif not whole:
                break
        return gone

    def _sweep(self) -> int:
        """Drop what is before the floor, where no other task is; returns how many events are gone."""
        gone = 0
        while not self._tasks and (at := self._unswept()) is not None:
            task = _Task(at, (self.all[at],), self._floor, self._mask)
            self._tasks.append(task)
            if len(task.codes) <= _AT_ONCE:
                task.go_on(_AT_ONCE)
                gone += self._end()
                self._fold(whole=True)
        return gone

    def _unswept(self) -> int | None:
        """The shortest run that may hold something before the floor."""
        if self._floor:
            for at in range(len(self.all) - 1, -1, -1):
                if self.all[at].floor < self._floor:
                    return at
        return None

    @property
    def nbytes(self) -> int:
        return _ENTRY * (len(self) + sum([task.made for task in self._tasks]))

    def _check(self) -> None:
        for run in self.all:
            assert len(run), "empty run"
            assert len(run.codes) == len(run.refs)
            assert (run.codes[1:] >= run.codes[:-1]).all(), "run not sorted"
        ends = [0, *(task.end for task in self._tasks)]
        assert all(end <= task.at for end, task in zip(ends, self._tasks, strict=False)), "tasks share a run"
        assert all(tuple(self.all[t.at : t.end]) == tuple(t.sources) for t in self._tasks), "a task's runs have changed"
        sizes = list(map(len, self.all[ends[-1] :]))
        assert all(a >= 2 * b for a, b in pairwise(sizes)), f"run sizes {sizes}"


def merged(one: Run, other: Run) -> Run:
    """Two runs as one; of equal codes those of ``one`` come first."""
    codes, refs = kernels.merge(one.codes, one.refs, other.codes, other.refs)
    return Run(codes, refs, min(one.floor, other.floor))
