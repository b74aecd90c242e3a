"""What the HTTP side asks of a pipeline, whether it has brokers or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from latecomer.serve.inbox import Inbox, Receipt
from latecomer.serve.reading import Form
from latecomer.serve.sse import Feed

if TYPE_CHECKING:
    from latecomer.serve.live import Live


class Backend(Protocol):
    """A pipeline that runs. Nothing here waits, but for :meth:`stop`; all of it may be called from any thread."""

    inbox: Inbox
    live: Live | None
    readers: int
    failed: BaseException | None

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """``changes``, ``late`` and ``dead``."""

    @property
    def alive(self) -> bool: ...
    @property
    def ready(self) -> bool: ...

    def submit(self, body: bytes, form: Form, key: str | None = None, *, reserved: bool = False) -> Future[Receipt]:
        """Take in events; resolved once they are safe."""

    def control(self, word: str, **arguments: Any) -> Future[dict[str, Any]]:
        """Say a word about time; resolved with what it did."""

    def explain(self) -> Future[dict[str, Any]]:
        """What is held, and what it waits for."""

    def matches(self, limit: int, query: str | None = None) -> tuple[int, int, list[bytes]]:
        """How many matches hold, how many of them are not kept here, and the newest of those that are."""

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call this, in any thread, after something has come out."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """End in order; raises StateError where that takes too long."""
