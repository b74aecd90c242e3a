"""What the sources hold back until it is due: an event that is late is late because it was sent late.

Rules: an event leaves at its intended time or after, never before, once, and the events of a source leave in the order
of these times. A source that is cut off holds everything until it is back; what was due meanwhile is then due at once,
and *that* is its intended time: an outage is no fault of the pipeline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: ``at``: intended time of sending (ms); ``ts``: event time as stamped (ms); ``id``: see ``fleet.py``; ``poison``:
#: whether the message is to be broken.
EVENT = np.dtype([("at", np.int64), ("ts", np.int64), ("id", np.int64), ("poison", np.bool_)])

Events = NDArray[np.void]


class Outbox:
    """Held events by source.

    >>> box = Outbox()
    >>> box.put(7, np.array([(20, 5, 1, False), (10, 4, 2, False)], EVENT))
    >>> box.due(7, 15)["id"].tolist(), len(box)
    ([2], 1)
    """

    def __init__(self) -> None:
        self._held: dict[int, Events] = {}
        self.cut: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def put(self, source: int, events: Events) -> None:
        """Hold more events of a source, in any order."""
        held = self._held.get(source)
        joined = events if held is None else np.concatenate([held, events])
        self._held[source] = joined[np.argsort(joined["at"], kind="stable")]

    def due(self, source: int, now: int) -> Events:
        """What the source sends now, in order of intended time; nothing while it is cut off."""
        held = self._held.get(source)
        if held is None or source in self.cut:
            return np.zeros(0, EVENT)
        count = int(np.searchsorted(held["at"], now, side="right"))
        self._held[source] = held[count:]
        return held[:count]

    def sources(self) -> list[int]:
        """Who holds something."""
        return [source for source, held in self._held.items() if len(held)]

    def cut_off(self, sources: frozenset[int], now: int) -> Events:
        """Only these are cut off from now on; returns what others held meanwhile, as it was to be sent."""
        back, self.cut = self.cut - sources, sources
        overdue = []
        for source in back & self._held.keys():
            held = self._held[source]
            count = int(np.searchsorted(held["at"], now))
            overdue.append(held[:count].copy())
            held["at"][:count] = now
        return np.concatenate(overdue) if overdue else np.zeros(0, EVENT)

    def leave(self, source: int, heir: int) -> None:
        """A source ends; what it holds is sent by another when it is due."""
        held = self._held.pop(source, None)
        if held is not None and len(held):
            self.put(heir, held)

    def _check(self) -> None:
        """Assert the invariants."""
        for source, held in self._held.items():
            assert (np.diff(held["at"]) >= 0).all(), (source, held)
