"""A crew: the workers, of which the first is in the calling thread, and what is asked of all of them at once.

Where the others are, in threads or in processes, is theirs to know (:class:`Others`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from latecomer.errors import StateError
from latecomer.runtime.joint import Joint
from latecomer.runtime.runtime import CLOSED, Output
from latecomer.runtime.share import Share
from latecomer.runtime.workers.member import BATCHES, Member, Part
from latecomer.runtime.workers.processes import Processes
from latecomer.runtime.workers.threads import Threads
from latecomer.storage import kernels

#: What whoever goes on is told where a call was not taken to its end, or members do not agree.
HALF_WAY = (
    "a call before this one ended half-way, by an error or because its pieces were not taken to the end: "
    "go on from the last version with Runtime.open(…), or from the last snapshot"
)

#: A piece of output: the member's number, and what it says.
Piece = tuple[int, Output]


class Others(Protocol):
    """The members from 1 on."""

    @property
    def joint(self) -> Joint | None:
        """How they and the first one read a batch together; None: each reads it for itself."""

    def showing(self, batch: Any) -> AbstractContextManager[Any]:
        """What stands for a batch in requests meanwhile."""

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        """Ask a member, who answers in time."""

    def receive(self, numbers: Collection[int]) -> Iterable[tuple[int, Part]]:
        """Wait until one of these members says something; what they have said."""

    def close(self) -> None: ...


def others_of(size: int) -> Others:
    """In threads, unless most of what they do would need Python's lock."""
    return Processes(size) if kernels.step is None else Threads(size)


class Crew:
    """``size`` members. One request at a time; :attr:`broken` says that they may not agree any more, and
    :attr:`adrift` that some have yet to say what nobody has waited for.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.broken = self.adrift = False
        self.here = Member()
        self.others = others_of(size)
        self._process = os.getpid()
        self.close = weakref.finalize(self, self.others.close)

    def begin(self, shares: Sequence[Share], given: Sequence[tuple[Any, ...]]) -> None:
        """Let each member begin with its share."""
        own = [replace(share, joint=self.others.joint) for share in shares]
        self.ask_each([("begin", share, *rest) for share, rest in zip(own, given, strict=True)])

    def ask(self, method: str, *given: Any) -> list[Any]:
        """What each member says to the same question."""
        return self.ask_each([(method, *given)] * self.size)

    def ask_each(self, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each member says to its own question."""
        answers = self._answers(requests)
        while True:
            try:
                next(answers)
            except StopIteration as end:
                return list(end.value)

    def stream(self, method: str, *given: Any) -> Iterator[Piece]:
        """The outputs that members give, as they come; to be taken to the end."""
        if method not in BATCHES:
            yield from self._answers([(method, *given)] * self.size)
            return
        with self.others.showing(given[0]) as shown:
            yield from self._answers([(method, *given), *[(method, shown, *given[1:])] * (self.size - 1)])

    def _answers(self, requests: Sequence[tuple[Any, ...]]) -> Generator[Piece, None, list[Any]]:
        """What members say. Raises what they raised, when all have answered; if all refused, they still agree."""
        if os.getpid() != self._process:
            raise StateError(
                "this process was forked from the one that has the workers: make a new Runtime here, or go on from a "
                "snapshot or version"
            )
        if self.adrift:
            raise StateError(HALF_WAY)
        whole, self.broken, self.adrift = not self.broken, True, True
        for number, request in enumerate(requests[1:], 1):
            self.others.send(number, request)
        ends: dict[int, Part] = {}
        here = self.here.answer(*requests[0])
        try:
            while True:
                yield 0, next(here)
        except StopIteration as end:
            ends[0] = Part(last=True, value=end.value)
        except Exception as problem:  # noqa: BLE001 - raised below, when the others have answered
            ends[0] = Part(last=True, error=problem)
        while len(ends) < self.size:
            if not self.close.alive:
                raise StateError(CLOSED)
            for number, part in self.others.receive([n for n in range(self.size) if n not in ends]):
                if part.output is not None:
                    yield number, part.output
                if part.last:
                    ends[number] = part
        errors = [error for number in range(self.size) if (error := ends[number].error) is not None]
        self.broken, self.adrift = not whole or 0 < len(errors) < self.size, False
        if errors:
            raise errors[0]
        return [ends[number].value for number in range(self.size)]
