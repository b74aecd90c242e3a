"""Lateness seen so far, by group (event type or source), over a moving window of events.

Numbers come in blocks of a fixed count of events, each block summarised by one t-digest per group (Apache
DataSketches); the window is the last few blocks, so it follows drift in both directions. Blocks end after so many
events, never with a
batch: what is known at an event does not depend on how the stream is cut. Most events are not late at all, so zeros
are counted exactly and only true lateness goes into the digests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from datasketches import tdigest_double

from latecomer.consistency.clock import I64

#: Accuracy of the digests; 200 keeps the error of a 99.9 % quantile within a few per cent.
_COMPRESSION = 200


class _Digest:
    """Lateness of one group: how many events, how many late, and the distribution among the late."""

    __slots__ = ("digest", "events", "late")

    def __init__(self) -> None:
        self.events = 0
        self.late = 0
        self.digest = tdigest_double(_COMPRESSION)

    def add(self, values: I64) -> None:
        late = values[values > 0]
        self.events += len(values)
        self.late += len(late)
        if len(late):
            self.digest.update(late.astype(np.float64))
            self.digest.compress()

    def merge(self, other: _Digest) -> None:
        self.events += other.events
        self.late += other.late
        if other.late:
            self.digest.merge(other.digest)
            self.digest.compress()

    def tail(self, k: int) -> float:
        """The share of events more than ``k`` late."""
        if not self.late:
            return 0.0
        return self.late / self.events * (1.0 - float(self.digest.get_rank(float(k))))

    def quantile(self, q: float) -> float:
        """The lateness that a share ``q`` of the events does not exceed."""
        on_time = 1.0 - self.late / self.events if self.events else 1.0
        if q <= on_time or not self.late:
            return 0.0
        return float(self.digest.get_quantile((q - on_time) / (1.0 - on_time)))

    def dump(self) -> list[Any]:
        return [self.events, self.late, self.digest.serialize() if self.late else b""]

    @classmethod
    def of(cls, state: list[Any]) -> _Digest:
        result = cls()
        result.events, result.late, data = state
        if data:
            result.digest = tdigest_double.deserialize(data)
        return result


#: The whole window, or one of its halves.
Part = Literal["all", "older", "newer"]


def _together(blocks: Sequence[dict[int, _Digest]]) -> dict[int, _Digest]:
    """The digests of several blocks, by group."""
    result: dict[int, _Digest] = {}
    for digests in blocks:
        for name, digest in digests.items():
            result.setdefault(name, _Digest()).merge(digest)
    return result


class LatenessWindow:
    """The lateness of the last ``blocks`` blocks of ``block`` events each.

    >>> window = LatenessWindow(block=4, blocks=2)
    >>> window.add(np.zeros(4, np.int64), np.array([0, 0, 0, 10]))
    True
    >>> window.tail(0, 5)
    0.25
    """

    def __init__(self, block: int = 2_048, blocks: int = 16) -> None:
        self._block = block
        self._window: deque[dict[int, _Digest]] = deque(maxlen=blocks)
        self._groups: list[I64] = []
        self._values: list[I64] = []
        self._merged: dict[Part, dict[int, _Digest]] = {"all": {}, "older": {}, "newer": {}}
        self.pending = 0

    @property
    def room(self) -> int:
        """How many more events the open block takes."""
        return self._block - self.pending

    def add(self, groups: I64, values: I64) -> bool:
        """Take in at most :attr:`room` events; return whether that closed a block, so that the window has moved."""
        self._groups.append(groups)
        self._values.append(values)
        self.pending += len(values)
        if self.pending < self._block:
            return False
        self._close()
        return True

    def add_all(self, groups: I64, values: I64) -> None:
        """Take in any number of events."""
        start = 0
        while start < len(values):
            end = start + self.room
            self.add(groups[start:end], values[start:end])
            start = end

    def _close(self) -> None:
        self._window.append(self._digests())
        self._groups, self._values, self.pending = [], [], 0
        self._merge()

    def _digests(self) -> dict[int, _Digest]:
        """The open block by group."""
        groups, values = np.concatenate(self._groups), np.concatenate(self._values)
        if len(groups) and (groups == groups[0]).all():
            parts = {int(groups[0]): values}
        else:
            order = groups.argsort(kind="stable")
            groups, values = groups[order], values[order]
            names, starts = np.unique(groups, return_index=True)
            parts = dict(zip(names.tolist(), np.split(values, starts[1:]), strict=True))
        digests: dict[int, _Digest] = {}
        for name, part in parts.items():
            digests[name] = _Digest()
            digests[name].add(part)
        return digests

    def _merge(self) -> None:
        blocks = list(self._window)
        half = len(blocks) // 2
        self._merged = {"all": _together(blocks), "older": _together(blocks[:half]), "newer": _together(blocks[half:])}

    def tail(self, group: int, k: int, part: Part = "all") -> float:
        """The share of the group's events in the window, or in its older or newer half, that were more than ``k``
        late; 0 for an unknown group.
        """
        digest = self._merged[part].get(group)
        return 0.0 if digest is None else digest.tail(k)

    @property
    def blocks(self) -> int:
        """How many blocks the window holds now."""
        return len(self._window)

    def summaries(self, quantiles: tuple[float, ...]) -> dict[int, tuple[int, float, list[float]]]:
        """For each group seen in the window, the open block included: events, share late, lateness quantiles."""
        everything = dict(self._merged["all"])
        if self.pending:
            for name, digest in self._digests().items():
                joined = _Digest()
                for part in (everything.get(name), digest):
                    if part is not None:
                        joined.merge(part)
                everything[name] = joined
        return {
            name: (digest.events, digest.late / digest.events, [digest.quantile(q) for q in quantiles])
            for name, digest in sorted(everything.items())
        }

    def dump(self) -> dict[str, Any]:
        return {
            "window": [[[g, d.dump()] for g, d in digests.items()] for digests in self._window],
            "groups": np.concatenate(self._groups) if self._groups else np.zeros(0, np.int64),
            "values": np.concatenate(self._values) if self._values else np.zeros(0, np.int64),
        }

    def load(self, state: dict[str, Any]) -> None:
        self._window.extend({g: _Digest.of(d) for g, d in digests} for digests in state["window"])
        self._groups, self._values = [state["groups"]], [state["values"]]
        self.pending = len(state["values"])
        self._merge()


class RecentLateness:
    """The lateness of the last ``events`` events, kept as it came and summed up only when asked.

    >>> recent = RecentLateness(events=2)
    >>> recent.add(None, np.array([7, 0, 4]))
    >>> recent.summaries((1.0,))
    {0: (2, 0.5, [4.0])}
    """

    def __init__(self, events: int = 65_536) -> None:
        self._groups, self._values = np.zeros(events, np.int64), np.zeros(events, np.int64)
        self._next = 0  # where the next event goes: over the oldest one, once all places are taken
        self._held = 0
        self._grouped = False  # whether there is any group but 0

    def add(self, groups: I64 | None, values: I64) -> None:
        """Take in events: the group of each (None: 0), and how late it was."""
        end, most = self._next + len(values), len(self._values)
        if end > most:
            groups, values = None if groups is None else groups[-most:], values[-most:]
            fit = most - self._next
            for part in (slice(fit), slice(fit, None)):
                self.add(None if groups is None else groups[part], values[part])
            return
        if groups is not None or self._grouped:
            self._groups[self._next : end] = 0 if groups is None else groups
            self._grouped = True
        self._values[self._next : end] = values
        self._held = max(self._held, end)
        self._next = end if end < most else 0

    def summaries(self, quantiles: tuple[float, ...]) -> dict[int, tuple[int, float, list[float]]]:
        """As :meth:`LatenessWindow.summaries`."""
        window = LatenessWindow(block=self._held + 1, blocks=1)
        for part in (slice(self._next, self._held), slice(self._next)):  # the oldest ones first
            window.add(self._groups[part], self._values[part])
        return window.summaries(quantiles)
