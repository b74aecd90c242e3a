"""How much a client may ask for, and how fast.

The rules: a body is read only as far as it may go and as long as it may take; every byte of it has its place in the
inbox before it is read. Who asks too often is told when to come back. Both hold whatever a client claims beforehand.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from latecomer.errors import LatecomerError

if TYPE_CHECKING:
    from starlette.requests import Request

    from latecomer.serve.inbox import Inbox

#: Client addresses that are remembered.
CLIENTS = 10_000


class TooLarge(LatecomerError):
    """A body that is larger than bodies may be."""


class TooSlow(LatecomerError):
    """A body that did not arrive in time."""


class Rate:
    """So many requests per second of each client, and twice that at once.

    >>> rate = Rate(1)
    >>> rate.wait("here", 0.0), rate.wait("here", 0.0), rate.wait("here", 0.0), rate.wait("here", 1.5)
    (0, 0, 1, 0)
    """

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float | None = None) -> int:
        """0 if the client may come in now, else after how many seconds."""
        now = time.monotonic() if now is None else now
        left, then = self._left.pop(client, (2 * self._rate, now))
        left = min(left + (now - then) * self._rate, 2 * self._rate)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return 0 if allowed else max(math.ceil((1 - left) / self._rate), 1)


async def read_body(request: Request, inbox: Inbox | None, most: int, seconds: float) -> bytes:
    """The body of a request, for which there is room in the inbox: whoever calls gives it back.

    Raises TooLarge, TooSlow or Overloaded; then nothing is held.
    """
    length = request.headers.get("content-length")
    if length is not None and (not length.isdigit() or int(length) > most):
        raise TooLarge(f"the body has {length[:20]} bytes, and {most} are allowed: send it in parts")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if size + len(chunk) > most:
                    raise TooLarge(f"the body has more than {most} bytes: send it in parts")
                if inbox is not None:
                    inbox.reserve(len(chunk))
                size += len(chunk)
                chunks.append(chunk)
    except BaseException as problem:
        if inbox is not None:
            inbox.release(size)
        if isinstance(problem, TimeoutError):
            raise TooSlow(f"the body did not arrive within {seconds:g} s") from None
        raise
    return b"".join(chunks)
