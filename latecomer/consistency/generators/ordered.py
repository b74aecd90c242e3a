"""Sources in order: each event closes its source's past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.generators.base import Generator, Promises, Setting, Stateless, generator


@generator
@dataclass(frozen=True)
class SourcesInOrder(Generator):
    """Every source sends its events in order of their times; only the ways of different sources differ in length.

    After an event with time ``ts`` nothing of its source at or below ``ts - 1`` can follow. Without
    ``Stream(source=…)`` the whole stream is one source.

    Args:
        strict: a source never sends two events with equal times, so ``ts`` itself is closed too.

    >>> SourcesInOrder(strict=True)
    SourcesInOrder(strict=True)
    """

    strict: bool = False

    def start(self, setting: Setting) -> InOrderLogic:
        return InOrderLogic(0 if self.strict else 1)


class InOrderLogic(Stateless):
    """One promise per event: it takes no state to make it, and the strongest one counts anyway."""

    def __init__(self, back: int) -> None:
        self._back = back

    def observe(self, arrivals: Arrivals) -> Promises:
        return Promises.of(np.arange(len(arrivals)), arrivals.ts - self._back, source=arrivals.sources)
