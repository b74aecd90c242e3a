"""Dead letters: what came in and is no event, as it came, with the reason."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

#: What is kept of one that is larger.
KEPT = 64 * 1024


class DeadLetter(NamedTuple):
    """A line of a request that is no event.

    Attributes:
        line: its number in the request, from 1; of an Arrow stream the row's.
        reason: one of a few words, such as ``unreadable`` or ``bad_timestamp``.
        detail: what exactly is wrong.
        text: the line as it came.
        at: when it came (ms since 1970).
    """

    line: int
    reason: str
    detail: str
    text: bytes
    at: int = 0

    def plain(self) -> dict[str, Any]:
        """As JSON has it: ``text`` where it is UTF-8, else ``base64``.

        >>> DeadLetter(3, "unreadable", "it ends", b'{"id": ').plain()["text"]
        '{"id": '
        """
        kept = self.text[:KEPT]
        try:
            content = {"text": kept.decode()}
        except UnicodeDecodeError:
            content = {"base64": base64.b64encode(kept).decode()}
        told: dict[str, Any] = {"line": self.line, "reason": self.reason, "detail": self.detail, "at": self.at}
        return told | content | ({"bytes": len(self.text)} if len(self.text) > KEPT else {})
