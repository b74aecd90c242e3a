"""Timing: what the event log knows about when events happened.

The log's ``ts`` is the lower end; upper ends and distributions are columns that the intake has added. A stream of
precise events has none of these columns: its intervals are single instants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latecomer.runtime.intervals.pmf import OWN, Distributions
from latecomer.runtime.intervals.reading import SHAPE, UPPER, WEIGHTS, unpacked
from latecomer.storage.columns import I64
from latecomer.storage.log import EventLog
from latecomer.uncertainty import Shape, Uniform


class LogTiming:
    """Times of the events of a log; ``shapes`` are the stream's distributions by number."""

    def __init__(self, log: EventLog, shapes: Sequence[Shape] = (Uniform(),)) -> None:
        self._log, self._shapes = log, shapes
        self._precise = UPPER not in log.columns
        self._one = len(shapes) == 1 and (WEIGHTS not in log.columns)

    def bounds(self, refs: I64) -> tuple[I64, I64]:
        """First and last possible time of events."""
        lower = self._log.ts(refs)
        if self._precise:
            return lower, lower
        upper: I64 = self._log.take(UPPER, refs).to_numpy(zero_copy_only=False)
        return lower, upper

    def distributions(self, refs: I64) -> Distributions:
        """How likely each time between the two is."""
        lower, upper = self.bounds(refs)
        if self._precise or self._one:
            return Distributions.of(lower, upper, None, self._shapes)
        codes: I64 = self._log.take(SHAPE, refs).to_numpy(zero_copy_only=False)
        own = (codes == OWN).nonzero()[0]
        weights = None
        if len(own):
            given = unpacked(self._log.take(WEIGHTS, refs.take(own)))
            weights = np.concatenate([w for w in given if w is not None])
        return Distributions.of(lower, upper, codes, self._shapes, weights)
