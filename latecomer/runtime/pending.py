"""Pending: late events that wait until what they need from the shelf is worth reading (Liu 2012, §3.6.4).

The rule: an event whose partners may be on the shelf does not enter at once. It waits, with others of its slice (a
*page*), until there are more than ``batch`` of them or the oldest has waited for ``wait``; then all enter together and
their frames are read once. That is as if they had arrived then, so no net answer depends on it; whether an event is
late was decided when it really came. An event enters the stores of all its selections at one time, or matches would be
lost between two stores. Pages come one at a time, or a few neighbours, so that no step needs the memory of many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latecomer.consistency.clock import END
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64, some
from latecomer.storage.hashing import U64
from latecomer.storage.pager import Pager
from latecomer.storage.pages import SEQUENCE
from latecomer.storage.slices import counted
from latecomer.storage.store import Bools

#: Events that enter together from neighbouring pages: a step costs about as much for so many as for few.
_TOGETHER = 2_048


@dataclass(frozen=True, slots=True)
class Paging:
    """How a lane's state goes to the shelf and back; ``batch`` and ``wait`` (units) are those of the module."""

    pager: Pager
    batch: int
    wait: int


#: Events of a selection: key hashes, times and references.
Picked = tuple[U64, I64, I64]


@dataclass(slots=True)
class _Page:
    """What is known of the ``count`` events of one slice that wait since the clock was at ``since``; ``least``: their
    earliest time, by number of the selection.
    """

    since: int
    count: int = 0
    least: dict[int, int] = field(default_factory=dict)


class Pending:
    """Waiting events of one lane, by slices of ``2**bits`` units. They lie as they came, and are looked through when
    the turn of a page has come: pages are many, and each batch has little for each.
    """

    def __init__(self, selections: Sequence[Selection], bits: int, paging: Paging) -> None:
        self._selections, self._bits, self._batch, self._wait = list(selections), bits, paging.batch, paging.wait
        self._pages: dict[int, _Page] = {}
        self._rows: list[list[Picked]] = [[] for _ in selections]  # by number of the selection
        self._last = 0  # the page that entered last

    def __len__(self) -> int:
        return sum(page.count for page in self._pages.values())

    def awaited(self, ts: I64) -> Bools:
        """Which times lie in a page that events wait for."""
        return np.isin(ts >> self._bits, list(self._pages))

    def add(self, rows: Mapping[Selection, Picked], clock: int) -> None:
        """Let these events wait; ``clock``: how far the lane's clock has come."""
        for index, selection in enumerate(self._selections):
            self._keep(index, rows[selection], clock)
        # An event that several selections look at counts once.
        _, first = np.unique(np.concatenate([rows[s][2] for s in self._selections]), return_index=True)
        slices = np.concatenate([rows[s][1] for s in self._selections])[first] >> self._bits
        for number, count in zip(*map(np.ndarray.tolist, counted(slices)), strict=True):
            self._pages[number].count += count

    def _keep(self, index: int, rows: Picked, clock: int) -> None:
        """Take in events of a selection, which no page counts yet."""
        ts = rows[1]
        if not len(ts):
            return
        self._rows[index].append(rows)
        moments = np.sort(ts)
        slices = moments >> self._bits
        edges = np.append(0, np.flatnonzero(np.diff(slices)) + 1)  # a slice's first event is its earliest
        for number, least in zip(slices.take(edges).tolist(), moments.take(edges).tolist(), strict=True):
            page = self._pages.get(number) or self._pages.setdefault(number, _Page(clock))
            page.least[index] = min(page.least.get(index, END), least)

    def due(self, clock: int | None) -> dict[Selection, Picked]:
        """Take out the events of the page whose turn it is (None: of any). Pages take turns in order of time, so that
        what neighbours need is read once; those that follow it come with it, as long as few events wait for them all
        and theirs have waited half their time."""
        ready = [
            number
            for number, page in self._pages.items()
            if clock is None or page.count > self._batch or clock - page.since >= self._wait
        ]
        if not ready:
            return {}
        first = last = min(ready, key=lambda number: (number <= self._last, number))
        count = self._pages.pop(first).count
        while page := self._pages.get(last + 1):
            count += page.count
            if count > _TOGETHER or (clock is not None and clock - page.since < self._wait // 2):
                break
            last += 1
            del self._pages[last]
        self._last = last
        result: dict[Selection, Picked] = {}
        for index, selection in enumerate(self._selections):
            rows = self._joined(index)
            slices = rows[1] >> self._bits
            own = (slices >= first) & (slices <= last)
            if some(own):
                result[selection] = _masked(rows, own)
                self._rows[index] = [_masked(rows, ~own)]
        return result

    def _joined(self, index: int) -> Picked:
        """All waiting events of a selection, in one piece."""
        parts = self._rows[index]
        if len(parts) != 1:
            hashes, ts, refs = (np.concatenate(columns) for columns in zip(_NONE, *parts, strict=True))
            self._rows[index] = parts = [(hashes, ts, refs)]
        return parts[0]

    def earliest(self, type: str | None = None) -> int | None:
        """The least time of a waiting event (of a type)."""
        if not self._pages:
            return None
        if type is None:  # it is in the first page
            return min(self._pages[min(self._pages)].least.values())
        found = (
            least
            for page in self._pages.values()
            for index, least in page.least.items()
            if self._selections[index].type == type
        )
        return min(found, default=None)

    def refs(self) -> I64:
        """References of all that wait."""
        return np.unique(np.concatenate([self._joined(index)[2] for index in range(len(self._rows))]))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for parts in self._rows for rows in parts for column in rows)

    def dump(self) -> dict[str, Any]:
        pages = []
        for number, page in self._pages.items():
            parts = [(index, self._joined(index)) for index in page.least]
            own = [[index, [_masked(rows, rows[1] >> self._bits == number)]] for index, rows in parts]
            pages.append([number, page.since, page.count, own])
        return {"last": self._last, "pages": pages}

    def load(self, state: dict[str, Any]) -> None:
        self._last = state["last"]
        for number, since, count, parts in state["pages"]:
            for index, rows in parts:
                for hashes, ts, refs in rows:
                    self._keep(index, (hashes, ts, refs), since)
            self._pages[number].count = count

    def _check(self) -> None:
        for index in range(len(self._rows)):
            assert (np.isin(self._joined(index)[1] >> self._bits, list(self._pages))).all(), "events wait for no page"
        for number, page in self._pages.items():
            every = [
                _masked(rows, rows[1] >> self._bits == number) for rows in map(self._joined, range(len(self._rows)))
            ]
            refs = np.unique(np.concatenate([refs for _, _, refs in every]))
            assert len(refs) == page.count > 0, f"page {number} counts {page.count} of {len(refs)}"
            least = {index: int(ts.min()) for index, (_, ts, _) in enumerate(every) if len(ts)}
            assert page.least == least, f"page {number}: {page.least}, but {least}"


def among(some: I64) -> Callable[[I64], Bools]:
    """Tells which of a batch's events (by reference) are among ``some`` of them, which are not none: their numbers lie
    close together.

    >>> among(np.array([7, 9]))(np.array([6, 9, 12])).tolist()
    [False, True, False]
    """
    numbers = some & SEQUENCE
    base = int(numbers.min()) - 1
    marks = np.zeros(int(numbers.max()) - base + 2, bool)  # the first and the last are false: what lies outside
    marks[numbers - base] = True
    return lambda refs: marks.take((refs & SEQUENCE) - base, mode="clip")


def _masked(rows: Picked, mask: Bools) -> Picked:
    hashes, ts, refs = rows
    return hashes[mask], ts[mask], refs[mask]


_NONE: Picked = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64)
