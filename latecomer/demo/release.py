"""When a match leaves: the moment of arrival time at which its level lets it go.

A level's horizon is a function of the stream alone (of the clock, or of punctuation), so the moment follows from
the stream and the match's events. Micro-batches are left out on purpose: they add up to one batch to every level
alike, and would hide what is to be compared. That the engine does let a match go at this moment, row by row, is
tested.

The rules, for a match whose last positive event is scheduled at ``tn`` and whose negation scopes end at ``tj`` (in
the demo's queries always an event of the match): it leaves with its last arriving event, but not before

* K-slack: the clock reaches ``tn + k``;
* aggressive: the clock reaches each ``tj + patience``;
* conservative: punctuation of the scope's type reaches each ``tj - 1``.

A scope without a whole minute in it is closed from the start.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.levels import Aggressive, KSlack, Level
from latecomer.demo.flights import STREAM

Ints = npt.NDArray[np.int64]

#: For each query the scopes of its negations: (type, position of the event on the left, and on the right).
SCOPES = {"cascade": (("OnTime", 0, 1), ("OnTime", 1, 2)), "recovery": (("Late", 0, 1),)}


class Timeline:
    """The stream as a function of arrival time, in minutes.

    ``stream`` is what :func:`latecomer.demo.flights.arrivals` gives.
    """

    def __init__(self, stream: pa.Table) -> None:
        times = np.asarray(stream["scheduled"].cast(pa.int64()).to_numpy()) // 60_000_000
        arrived = np.asarray(stream["arrived"].to_numpy())
        proof = np.asarray(pc.equal(stream["type"], STREAM.punctuation).to_numpy())
        of = stream["of"]
        self._ids = stream["id"].combine_chunks().filter(pa.array(~proof))
        self._times, self._arrived = times[~proof], arrived[~proof]
        self._clock = np.maximum.accumulate(self._times)
        self._bounds: dict[str, tuple[Ints, Ints]] = {}
        for name in pc.unique(of).drop_null().to_pylist():
            rows = np.asarray(pc.fill_null(pc.equal(of, name), False).to_numpy())
            self._bounds[name] = np.maximum.accumulate(times[rows]), arrived[rows]
        self._end = int(arrived[-1])

    def waits(self, query: str, level: Level, events: pa.ChunkedArray) -> Ints:
        """Minutes that each match waited after the last of its events had arrived, shape (n,).

        ``events``: lists of ids, one per match, all of one length.
        """
        at = np.asarray(pc.index_in(pc.list_flatten(events), value_set=self._ids).to_numpy())
        at = at.reshape(len(events), -1)
        times = self._times[at]
        complete = self._arrived[at].max(axis=1)
        leaves = complete.copy()
        if isinstance(level, KSlack) and level.k is not None:
            leaves = np.maximum(leaves, self._clock_reaches(times[:, -1] + level.k.units("min")))
        else:
            for kind, left, right in SCOPES[query]:
                if isinstance(level, Aggressive):
                    known = self._clock_reaches(times[:, right] + level.patience.units("min"))
                else:
                    known = self._proven(kind, times[:, right] - 1)
                holds_time = times[:, right] - times[:, left] > 1
                leaves = np.where(holds_time, np.maximum(leaves, known), leaves)
        waited: Ints = leaves - complete
        return waited

    def _clock_reaches(self, times: Ints) -> Ints:
        return self._first(self._clock, self._arrived, times)

    def _proven(self, kind: str, times: Ints) -> Ints:
        return self._first(*self._bounds[kind], times)

    def _first(self, rising: Ints, arrived: Ints, wanted: Ints) -> Ints:
        """When ``rising`` first is at least ``wanted``; at the end of the stream, which settles everything, at "
        "the latest."""
        at = np.searchsorted(rising, wanted)
        moments: Ints = np.append(arrived, self._end)[at]
        return moments
