"""Server-sent events, without queues.

The rule: a reader has a place in a log and nothing else. It is sent what follows when it has taken in what came
before; so a slow one falls behind in the log and holds nothing up. One that has fallen out of the log is told which
positions it has missed (event ``gap``); one that takes nothing at all for a while is cut off, and may go on later where
it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

#: Rows that a reader is sent at one time.
PAGE = 500
#: Seconds of silence after which a reader is sent a comment, so that everybody on the way knows that it is alive.
PING = 10.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class Feed(Protocol):
    """Rows by position, as :class:`~latecomer.serve.log.Log` has them."""

    @property
    def oldest(self) -> int: ...
    @property
    def newest(self) -> int: ...
    def recent(self, after: int, limit: int) -> list[bytes] | None: ...
    def read(self, after: int, limit: int) -> tuple[int, list[bytes]]: ...
    def place(self, name: str) -> int: ...
    def name(self, position: int) -> str: ...


class Bell:
    """Wakes all tasks that wait for it; rung in the loop's thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.stopped = False

    def ring(self) -> None:
        """Wake everybody."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    def stop(self) -> None:
        """Wake everybody for the last time."""
        self.stopped = True
        self.ring()

    async def wait(self, seconds: float) -> None:
        """Until it rings, or so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)


async def changes(
    feed: Feed, bell: Bell, after: int, *, limit: int | None = None, patience: float | None = None
) -> AsyncIterator[bytes]:
    """The rows behind a position, and those that come, as events.

    Args:
        limit: end after so many rows.
        patience: end after so many seconds without any; None: never.
    """
    yield b"retry: 1000\n\n"
    quiet = 0.0
    while not bell.stopped:
        size = PAGE if limit is None else min(PAGE, limit)
        rows, first = feed.recent(after, size), after + 1
        if rows is None:
            first, rows = await run_in_threadpool(feed.read, after, size)
        if first > after + 1:
            told = b'{"missed_from":%d,"missed_to":%d}' % (after + 1, first - 1)
            yield _event("gap", feed.name(first - 1), told)
            after = first - 1
        if rows:
            quiet = 0.0
            yield b"".join(_event(_op(row), feed.name(number), row) for number, row in enumerate(rows, first))
            after = first + len(rows) - 1
            if limit is not None:
                limit -= len(rows)
                if limit <= 0:
                    return
            continue
        if patience is not None and quiet >= patience:
            return
        wait = PING if patience is None else min(PING, patience - quiet)
        before = asyncio.get_running_loop().time()
        await bell.wait(wait)
        quiet += asyncio.get_running_loop().time() - before
        if patience is None and quiet >= PING:
            quiet = 0.0
            yield b": nothing new\n\n"


def _op(row: bytes) -> str:
    return "delete" if row.find(b'"op":"delete"', 0, 64) >= 0 else "insert"


def _event(kind: str, name: str, data: bytes) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (kind.encode(), name.encode(), data)


class EventStream:
    """The response that sends a stream of events.

    Args:
        source: its pieces.
        patience: seconds that a reader may take for one of them.
        opened, closed: called when it begins and ends.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        patience: float,
        opened: Callable[[], None] = lambda: None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._patience = source, patience
        self._opened, self._closed = opened, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        self._opened()
        pump = asyncio.ensure_future(self._pump(scope, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closed()
            for task in (pump, gone):
                task.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
            await self._source.aclose()  # type: ignore[attr-defined]  # they are generators

    async def _pump(self, scope: Scope, send: Send) -> None:
        async for piece in self._source:
            try:
                async with asyncio.timeout(self._patience):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError:
                _cut_off(scope)
                return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    """Until the reader has gone."""
    while True:
        message: dict[str, Any] = dict(await receive())
        if message["type"] == "http.disconnect":
            return


def _cut_off(scope: Scope) -> None:
    extension = scope.get("extensions", {}).get("latecomer.abort")
    if extension is not None:
        extension["call"]()
