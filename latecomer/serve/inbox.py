"""The inbox: what has come and is not yet worked off. Bounded in bytes; beyond that, whoever comes is told to wait.

The rule: bytes count from the moment that they are read from a connection to the moment that the worker is done with
them, so that what is held in memory for clients is bounded whatever they do. Nobody waits here but the worker.
"""

from __future__ import annotations

import math
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from latecomer.errors import LatecomerError
from latecomer.serve.reading import Form

#: Bytes of requests that are made safe and worked off together.
GROUP = 4 << 20


class Overloaded(LatecomerError):
    """There is no room; ``retry_after`` says after how many seconds there may be some."""

    def __init__(self, problem: str, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__(f"{problem}: try again in {retry_after} s")


class Closed(LatecomerError):
    """Nothing is taken any more: the service is ending, or has failed. Another one may take it."""


class Never(LatecomerError):
    """It will not be done, however often it is asked for: the stream was finished, or this pipeline cannot do it."""


#: What is said to whoever comes too late.
FINISHED = "the stream was finished: nothing can follow"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a request: events accepted, lines that are dead letters, and some of these with reasons.

    ``repeated``: the request had come before, and nothing was done again.
    """

    accepted: int
    dead: int = 0
    problems: tuple[dict[str, Any], ...] = ()
    repeated: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "accepted": self.accepted,
            "dead": self.dead,
            "problems": list(self.problems),
            "repeated": self.repeated,
        }


@dataclass(slots=True)
class Submission:
    """A request on its way: events (``form``, ``body``), or a word about time (``word``, ``arguments``).

    ``done`` is resolved with a :class:`Receipt`, or with what the word gave. ``size``: bytes that it holds.
    """

    form: Form | None = None
    body: bytes = b""
    key: str | None = None
    word: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    done: Future[Any] = field(default_factory=Future)
    size: int = 0


class Inbox:
    """Submissions in order of arrival, of at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.refused = 0
        self._queue: deque[Submission] = deque()
        self._ready = Condition()
        self._closed: str | None = None
        self._rate = 1e6  # bytes per second that are worked off, lately
        self._freed, self._since = 0, time.monotonic()

    def __len__(self) -> int:
        return len(self._queue)

    def reserve(self, size: int) -> None:
        """Room for bytes that are about to be read. Raises Overloaded."""
        with self._ready:
            if self.nbytes + size > self.limit:
                self.refused += 1
                wait = min(max(math.ceil(self.nbytes / self._rate), 1), 60)
                raise Overloaded(f"{self.nbytes} of {self.limit} bytes of the inbox are taken", wait)
            self.nbytes += size

    def release(self, size: int) -> None:
        """Bytes are not held any more."""
        with self._ready:
            self.nbytes -= size
            self._freed += size
            now = time.monotonic()
            if now - self._since > 1:
                self._rate = max(self._freed / (now - self._since), 1e4)
                self._freed, self._since = 0, now

    def put(self, submission: Submission) -> None:
        """Hand over a submission whose bytes are reserved. Raises Closed."""
        with self._ready:
            if self._closed is not None:
                raise Closed(self._closed)
            self._queue.append(submission)
            self._ready.notify()

    def admit(self, form: Form, body: bytes, key: str | None, *, reserved: bool) -> Future[Receipt]:
        """Take in a body of events; resolved once they are safe. ``reserved``: its room was taken before.

        Raises Overloaded or Closed; either way no room stays taken.
        """
        if not reserved:
            self.reserve(len(body))
        submission = Submission(form, body, key, size=len(body))
        try:
            self.put(submission)
        except Closed:
            self.release(len(body))
            raise
        return submission.done

    def take(self, seconds: float) -> list[Submission]:
        """The next submissions that go together; waits for the first of them."""
        with self._ready:
            if not self._queue and self._closed is None:
                self._ready.wait(seconds)
            group: list[Submission] = []
            size = 0
            while self._queue and (not group or size + self._queue[0].size <= GROUP):
                group.append(self._queue.popleft())
                size += group[-1].size
            return group

    def close(self, reason: str) -> None:
        """Take no more; what is in it can still be taken out."""
        with self._ready:
            self._closed = self._closed or reason
            self._ready.notify_all()

    @property
    def closed(self) -> str | None:
        """Why nothing is taken any more."""
        return self._closed
