"""One line on a terminal that says how it goes, above it the logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from latecomer.connectors.kafka.operation.watch import Figures
from latecomer.runtime import Runtime


class Progress:
    """A listener that keeps one line up to date: ``update`` is given its text.

    >>> line = Progress(print, clock=iter([0.0, 2.0]).__next__)
    >>> line.show(Figures(consumed=3_000, changes=12, lag={("shelf", 0): 40}), {})
    3,000 messages (1,500/s), 12 changes, 0 late, 0 dead; 40 behind in 1 partition
    """

    def __init__(self, update: Callable[[str], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._update, self._clock = update, clock
        self._last, self._at = 0, clock()

    def begin(self, name: str, runtime: Runtime) -> None:
        """Nothing is shown of a single partition."""

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """Bring the line up to date."""
        now = self._clock()
        rate = (figures.consumed - self._last) / max(now - self._at, 1e-9)
        self._last, self._at = figures.consumed, now
        partitions = len(figures.lag)
        paused = f", {figures.paused} paused" if figures.paused else ""
        self._update(
            f"{figures.consumed:,} messages ({rate:,.0f}/s), {figures.changes:,} changes, {figures.late:,} late, "
            f"{sum(figures.dead.values()):,} dead; {sum(figures.lag.values()):,} behind in {partitions:,} "
            f"partition{'s' if partitions != 1 else ''}{paused}"
        )
