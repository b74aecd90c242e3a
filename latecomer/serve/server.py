"""The HTTP server: uvicorn, with limits on what it does not limit itself, and an end in order.

The rules: a connection that does not send a whole request head in time, or sends too large a one, is closed; so
thousands that say nothing cost a little memory and no turn of the loop. Where a request is answered before its body is
there, as one that is too large, the rest is read and dropped for a while, so that the client sees the answer. SIGTERM
and SIGINT end streams of events and let requests finish; then the application ends, which saves the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Seconds for a request's head, and for an idle connection to send another one.
HEAD_SECONDS, IDLE_SECONDS = 10.0, 60
#: Seconds for the rest of a body that was answered already.
REST_SECONDS = 30.0
#: Bytes that a request's head may have.
HEAD_BYTES = 64 * 1024
#: What the system holds for a client that does not read; by itself it would take megabytes for each.
SEND_BYTES = 256 * 1024
#: Files that the process may have open, as far as the system lets it.
FILES = 65_536

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n"
    b"content-type: text/plain\r\n\r\n"
)


class Protocol(HttpToolsProtocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            self._head = 0
            return
        if self._head > HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head and self._timer is None:
            self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["extensions"] = {"latecomer.abort": {"call": self.transport.abort}}

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unwatch()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._head = True, 0
        self._unwatch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self._timer is None:
            self._watch(REST_SECONDS)

    def _watch(self, seconds: float = HEAD_SECONDS) -> None:
        self._timer = self.loop.call_later(seconds, self._late)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn, which tells when it is ready and when it is to end."""

    def __init__(self, config: uvicorn.Config, started: Callable[[int], None], ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._started, self._ending = started, ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            self._started(sockets[0].getsockname()[1] if sockets else 0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal ends in order, the next one at once; none is raised again afterwards."""

        def handle(number: int, frame: FrameType | None) -> None:
            for each, earlier in before.items():
                signal.signal(each, earlier)
            self.should_exit = True

        before: dict[int, Any] = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        for each in before:
            signal.signal(each, handle)
        try:
            yield
        finally:
            for each, earlier in before.items():
                signal.signal(each, earlier)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows that it may send small packets at once; else each answer would take 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # connections inherit it
        listener.bind((host, port))
        listener.listen(2_048)
    except BaseException:
        listener.close()
        raise
    return listener


def more_files() -> None:
    """Let the process have as many connections open as the system allows, up to :data:`FILES`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
