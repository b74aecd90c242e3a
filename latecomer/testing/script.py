"""A source that follows a script: events, and between them what happens in real life.

The rule: a source is a position in its script. It hands over batches of events; ``position`` says how many items have
been handed over, and ``seek`` goes back to a position that was kept together with a snapshot, as a consumer of a log
goes back to an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from latecomer.errors import ConfigError
from latecomer.testing.clock import ManualClock
from latecomer.units import Duration, DurationLike

#: One event, as a row of a batch.
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, init=False)
class Pause:
    """Nothing arrives for a while: the source's clock moves on, and an empty batch says that time has passed.

    Time passes once: when the script is gone through again, the clock stays.
    """

    length: Duration

    def __init__(self, length: DurationLike) -> None:
        object.__setattr__(self, "length", Duration.of(length))


@dataclass(frozen=True, slots=True)
class Abort:
    """The process dies here: iteration raises :class:`Aborted`, once; when the script passes again it goes on."""


@dataclass(frozen=True, slots=True)
class End:
    """The source ends here; iterating again goes on with what stands behind, as after a restart."""


class Aborted(BaseException):
    """A scripted crash. No ``except Exception`` of the code under test may survive what a real crash would not."""

    def __init__(self, position: int) -> None:
        self.position = position
        super().__init__(f"the script says Abort() at position {position}")


class ScriptedSource:
    """Batches of events by a script.

    Args:
        script: events (dicts), and :class:`Pause`, :class:`Abort` and :class:`End` between them. Punctuation is an
            event of the type that ``Stream(punctuation=…)`` names.
        batch: the most events of a batch; None: a batch lasts until something else happens.
        clock: the clock that pauses move; needed when there are any.

    Iterate it for lists of dicts, which ``Runtime.process`` takes as they are:

    >>> source = ScriptedSource([{"ts": 1}, {"ts": 2}, {"ts": 3}, End(), {"ts": 4}], batch=2)
    >>> list(source)
    [[{'ts': 1}, {'ts': 2}], [{'ts': 3}]]
    >>> list(source)
    [[{'ts': 4}]]
    >>> source.seek(1)
    >>> next(iter(source))
    [{'ts': 2}, {'ts': 3}]
    """

    def __init__(
        self,
        script: Iterable[Event | Pause | Abort | End],
        *,
        batch: int | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.script = tuple(script)
        self.clock = clock
        self.position = 0
        self._batch = len(self.script) if batch is None else batch
        self._happened: set[int] = set()  # aborts and pauses happen once, however often the script is gone through
        if self._batch < 1 and self.script:
            raise ConfigError(f"batch={batch!r}: a batch holds at least 1 event")
        for item in self.script:
            if not isinstance(item, (Mapping, Pause, Abort, End)):
                raise ConfigError(f"{item!r} cannot stand in a script: give events as dicts, Pause, Abort or End")
            if isinstance(item, Pause) and clock is None:
                raise ConfigError("a script with Pause needs a clock to move: ScriptedSource(…, clock=ManualClock())")

    def seek(self, position: int) -> None:
        """Go to an item of the script, counted from 0; iteration goes on from there."""
        if not 0 <= position <= len(self.script):
            raise ConfigError(f"position={position!r}: the script has positions 0 to {len(self.script)}")
        self.position = position

    def __iter__(self) -> Iterator[list[Event]]:
        while self.position < len(self.script):
            item = self.script[self.position]
            if isinstance(item, Mapping):
                events = self._events()
                self.position += len(events)
                yield events
                continue
            first = self.position not in self._happened
            self._happened.add(self.position)
            if isinstance(item, Abort) and first:
                raise Aborted(self.position)
            self.position += 1
            if isinstance(item, End):
                return
            if isinstance(item, Pause):
                if first and self.clock is not None:
                    self.clock.advance(item.length)
                yield []

    def _events(self) -> list[Event]:
        """The next batch."""
        events: list[Event] = []
        for item in self.script[self.position : self.position + self._batch]:
            if not isinstance(item, Mapping):
                break
            events.append(item)
        return events
