"""What runtimes hold and wait for, told to other threads when they ask.

Only the loop's thread may look into a runtime. So a question waits for the loop's next look, about a second, and all
who have asked by then get one answer.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from latecomer.connectors.kafka.operation.watch import Figures
from latecomer.runtime import Runtime

#: Seconds to wait for an answer: a few looks of the loop.
PATIENCE = 5.0


class Explaining:
    """A listener that answers questions."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._answer: dict[str, Any] = {}

    def begin(self, name: str, runtime: Runtime) -> None:
        """Nothing is told before it is asked for."""

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """Answer, if somebody has asked."""
        with self._changed:
            asked = self._asked
        if asked == self._answered:
            return
        answer = {name: _plain(runtime.explain()) for name, runtime in runtimes.items()}
        with self._changed:
            self._answer, self._answered = answer, asked
            self._changed.notify_all()

    def ask(self, seconds: float = PATIENCE) -> Mapping[str, Any] | None:
        """What each partition's runtime holds and waits for; None when the loop does not answer in time."""
        with self._changed:
            self._asked += 1
            own = self._asked
            return self._answer if self._changed.wait_for(lambda: self._answered >= own, seconds) else None


def _plain(told: Any) -> Any:
    """What ``explain`` says as JSON can hold it: names that are no text become text."""
    if isinstance(told, Mapping):
        return {"null" if key is None else str(key): _plain(value) for key, value in told.items()}
    return [_plain(value) for value in told] if isinstance(told, (list, tuple)) else told
