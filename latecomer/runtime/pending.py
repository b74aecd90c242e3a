"""Pending: late events that wait until what they need from the shelf is worth reading (Liu 2012, §3.6.4).

The rule: an event whose partners may be on the shelf does not enter at once. It waits, with others of its slice (a
*page*), until there are more than ``batch`` of them or the oldest has waited for ``wait``; then all enter together and
their frames are read once. That is as if they had arrived then, so no net answer depends on it; whether an event is
late was decided when it really came. An event enters the stores of all its selections at one time, or matches would be
lost between two stores. Pages come one at a time, so that no step needs the memory of many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latecomer.consistency.clock import END
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.pager import Pager
from latecomer.storage.store import Bools


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
    """Events of one slice that wait since the clock was at ``since``; ``parts`` and ``least`` (their earliest time) by
    number of the selection.
    """

    since: int
    count: int = 0
    parts: dict[int, list[Picked]] = field(default_factory=dict)
    least: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, index: int, part: Picked) -> None:
        self.parts.setdefault(index, []).append(part)
        self.least[index] = min(self.least.get(index, END), int(part[1].min()))
        self.nbytes += sum(column.nbytes for column in part)


class Pending:
    """Waiting events of one lane, by slices of ``2**bits`` units."""

    def __init__(self, selections: Sequence[Selection], bits: int, paging: Paging) -> None:
        self._selections, self._bits, self._batch, self._wait = list(selections), bits, paging.batch, paging.wait
        self._pages: dict[int, _Page] = {}
        self._last = 0  # the page that entered last

    def __len__(self) -> int:
        return sum(page.count for page in self._pages.values())

    def awaited(self, ts: I64) -> Bools:
        """Which times lie in a page that events wait for."""
        return np.isin(ts >> self._bits, list(self._pages))

    def add(self, rows: Mapping[Selection, Picked], clock: int) -> None:
        """Let these events wait; ``clock``: how far the lane's clock has come."""
        for index, selection in enumerate(self._selections):
            for number, part in self._by_page(rows[selection]):
                self._pages.setdefault(number, _Page(clock)).add(index, part)
        # An event that several selections look at counts once.
        _, first = np.unique(np.concatenate([rows[s][2] for s in self._selections]), return_index=True)
        slices = np.concatenate([rows[s][1] for s in self._selections])[first] >> self._bits
        for number, count in zip(*np.unique(slices, return_counts=True), strict=True):
            self._pages[int(number)].count += int(count)

    def _by_page(self, rows: Picked) -> Iterator[tuple[int, Picked]]:
        """These events, page by page."""
        slices = rows[1] >> self._bits
        order = slices.argsort(kind="stable")
        slices = slices.take(order)
        hashes, ts, refs = rows[0].take(order), rows[1].take(order), rows[2].take(order)
        edges = np.append(0, np.flatnonzero(np.diff(slices)) + 1).tolist() if len(order) else []
        for start, end in zip(edges, [*edges[1:], len(order)], strict=False):
            # Copies: a small part is not to keep the whole batch in memory.
            yield int(slices[start]), (hashes[start:end].copy(), ts[start:end].copy(), refs[start:end].copy())

    def due(self, clock: int | None) -> dict[Selection, Picked]:
        """Take out the events of one page whose turn it is (None: of any). Pages take turns in order of time, so that
        what two neighbours need is read once."""
        ready = [
            number
            for number, page in self._pages.items()
            if clock is None or page.count > self._batch or clock - page.since >= self._wait
        ]
        if not ready:
            return {}
        self._last = min(ready, key=lambda number: (number <= self._last, number))
        return self._joined([self._pages.pop(self._last)])

    def _joined(self, pages: Sequence[_Page]) -> dict[Selection, Picked]:
        result: dict[Selection, Picked] = {}
        for index, selection in enumerate(self._selections):
            parts = [part for page in pages for part in page.parts.get(index, [])]
            if parts:
                hashes, ts, refs = (np.concatenate(columns) for columns in zip(*parts, strict=True))
                result[selection] = hashes, ts, refs
        return result

    def earliest(self, type: str | None = None) -> int | None:
        """The least time of a waiting event (of a type)."""
        found = (
            least
            for page in self._pages.values()
            for index, least in page.least.items()
            if type is None or self._selections[index].type == type
        )
        return min(found, default=None)

    def refs(self) -> I64:
        """References of all that wait."""
        parts = [refs for _, _, refs in self._joined(list(self._pages.values())).values()]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self._pages.values())

    def dump(self) -> dict[str, Any]:
        pages = [[n, p.since, p.count, [[i, part] for i, part in p.parts.items()]] for n, p in self._pages.items()]
        return {"last": self._last, "pages": pages}

    def load(self, state: dict[str, Any]) -> None:
        self._last = state["last"]
        for number, since, count, parts in state["pages"]:
            page = self._pages[number] = _Page(since, count)
            for index, rows in parts:
                for hashes, ts, refs in rows:
                    page.add(index, (hashes, ts, refs))

    def _check(self) -> None:
        for number, page in self._pages.items():
            refs = np.unique(np.concatenate([refs for rows in page.parts.values() for _, _, refs in rows]))
            assert len(refs) == page.count > 0, f"page {number} counts {page.count} of {len(refs)}"
            for index, rows in page.parts.items():
                assert page.least[index] == min(int(ts.min()) for _, ts, _ in rows), f"page {number}: {page.least}"
                for _, ts, _ in rows:
                    assert (ts >> self._bits == number).all(), f"page {number} holds events of other slices"
