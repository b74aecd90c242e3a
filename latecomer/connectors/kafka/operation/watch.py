"""Watch: the one object through which the loop and the world outside it speak.

Rules:

* The loop calls, in its own thread: :meth:`~Watch.beat` in every round, :meth:`~Watch.ready` when that changes,
  :meth:`~Watch.show` when :attr:`~Watch.due`. Nothing that it calls waits for anybody.
* Others read, from any thread: :attr:`~Watch.alive`, :attr:`~Watch.is_ready`, and call :meth:`~Watch.stop`.
* Stopping is asked for, never forced: the loop looks at :attr:`~Watch.stopping`, ends its batch, commits, leaves the
  group and returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from latecomer.runtime import Runtime

#: Seconds between two looks at the figures: what a scraper or a person can follow.
LOOK = 1.0
#: Seconds without a round of the loop after which it counts as stuck: longer than any batch should take.
STALL = 30.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What the loop has done since the process began, and where it is.

    Attributes:
        lag: for each (topic, partition) it has, how many messages are there and not yet taken in.
        consumed, bytes: messages that came, and the size of their values.
        changes, late: rows that were written.
        dead: dead letters, by reason.
        transactions, aborted: commits, and transactions that were given up.
        in_flight: messages that are taken in and not yet committed.
        paused: partitions that are paused, so that what is held stays bounded.
    """

    lag: Mapping[tuple[str, int], int] = field(default_factory=dict)
    consumed: int = 0
    bytes: int = 0
    changes: int = 0
    late: int = 0
    dead: Mapping[str, int] = field(default_factory=dict)
    transactions: int = 0
    aborted: int = 0
    in_flight: int = 0
    paused: int = 0


class Listener(Protocol):
    """Who wants to hear how the loop is doing; both are called in the loop's thread."""

    def begin(self, name: str, runtime: Runtime) -> None:
        """A partition's runtime was made or restored, and has not been given anything since."""

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """The figures, about once a second."""


class Watch:
    """Between one loop and those who watch it.

    Args:
        listeners: who is shown the figures.
        stall: seconds without :meth:`beat` after which the loop counts as stuck.
        clock: seconds, ever rising; tests give their own.

    >>> watch = Watch()
    >>> watch.beat(); watch.ready(True)
    >>> watch.alive, watch.is_ready, watch.stopping
    (True, True, False)
    >>> watch.stop()
    >>> watch.is_ready, watch.stopping
    (False, True)
    """

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        *,
        stall: float = STALL,
        every: float = LOOK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listeners = tuple(listeners)
        self._clock, self._stall, self._every = clock, stall, every
        self._stop = threading.Event()
        self._ready = False
        self._beat = clock()
        self._due = self._beat

    # --- the loop ----------------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether the loop shall end its batch, commit, leave the group and return."""
        return self._stop.is_set()

    def beat(self) -> None:
        """The loop has begun another round."""
        self._beat = self._clock()

    def ready(self, ready: bool) -> None:
        """Whether the loop has its partitions, if any, and their state."""
        self._ready = ready

    def begin(self, name: str, runtime: Runtime) -> None:
        """A partition's runtime was made or restored: what it counted before is not counted again."""
        for listener in self._listeners:
            listener.begin(name, runtime)

    @property
    def due(self) -> bool:
        """Whether it is time to :meth:`show` the figures."""
        return self._clock() >= self._due

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """Tell how it goes; ``runtimes`` by a name for their partition."""
        self._due = self._clock() + self._every
        for listener in self._listeners:
            listener.show(figures, runtimes)

    # --- everybody else ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end; may be called at any time, from any thread or signal handler."""
        self._stop.set()

    @property
    def alive(self) -> bool:
        """Whether the loop goes round."""
        return self._clock() - self._beat < self._stall

    @property
    def is_ready(self) -> bool:
        """Whether messages are being worked on."""
        return self._ready and self.alive and not self.stopping


class NullWatch(Watch):
    """A watch that nobody looks at: for tests, and for loops without any surroundings."""

    def __init__(self) -> None:
        super().__init__()
