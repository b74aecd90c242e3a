"""The page's frames, for any number of readers at the cost of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from latecomer.serve.sse import PING, Bell

if TYPE_CHECKING:
    from latecomer.serve.live import Live

#: Seconds between two frames: what an eye can follow.
EVERY = 0.25


class Frames:
    """Frames of what is live, encoded once for all readers that are equally far."""

    def __init__(self, live: Live, bell: Bell) -> None:
        self._live, self._bell = live, bell
        self._made: dict[int, tuple[int, int, bytes]] = {}  # since -> number, number of the frame, frame
        self._lock = asyncio.Lock()

    async def follow(self, since: int, patience: float | None = None) -> AsyncIterator[bytes]:
        """Frames after this one, as events; ends after so many seconds without any, if that is given."""
        quiet = pinged = 0.0
        while not self._bell.stopped:
            if self._live.number != since:
                since, told = await self._frame(since)
                quiet = pinged = 0.0
                yield told
            elif patience is not None and quiet >= patience:
                return
            elif pinged >= PING:
                pinged = 0.0
                yield b": nothing new\n\n"
            await asyncio.sleep(EVERY if patience != 0 else 0)
            quiet += EVERY
            pinged += EVERY

    async def _frame(self, since: int) -> tuple[int, bytes]:
        async with self._lock:
            made = self._made.get(since)
            if made is None or made[0] != self._live.number:
                number = self._live.number
                frame = await run_in_threadpool(self._live.frame, since)
                text = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
                told = b"id: %d\ndata: %s\n\n" % (frame["frame"], text)
                if len(self._made) > 100:
                    self._made.clear()
                made = self._made[since] = (number, frame["frame"], told)
        return made[1], made[2]
