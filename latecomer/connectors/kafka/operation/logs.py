"""Logs: one JSON object per line, or text for people, with every secret blotted out.

A call such as ``log.info("partition taken", extra={"fields": {"topic": "shelf", "partition": 3}})`` becomes
``{"time": "2013-01-01T10:00:00.000+00:00", "level": "info", "logger": "…", "message": "partition taken", "topic":
"shelf", "partition": 3}``. The rule for secrets: whatever text comes through here, be it from a library, loses them
before it is written.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

#: All loggers of pipelines are below this one.
ROOT = "latecomer.kafka"
#: The logger of librdkafka's own messages.
CLIENT = f"{ROOT}.client"
#: Shorter texts are no secrets worth the name, and would blot out parts of words.
SHORTEST = 4


class Redacted(logging.Formatter):
    """Formats a record by another formatter, without the secrets.

    >>> formatter = Redacted(Lines(), {"hunter2"})
    >>> record = logging.LogRecord("a", logging.INFO, "", 0, "password is %s", ("hunter2",), None)
    >>> json.loads(formatter.format(record))["message"]
    'password is ***'
    """

    def __init__(self, inner: logging.Formatter, secrets: Collection[str]) -> None:
        super().__init__()
        self._inner = inner
        known = {form for secret in secrets if len(secret) >= SHORTEST for form in (secret, json.dumps(secret)[1:-1])}
        self._secrets = sorted(known, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        text = self._inner.format(record)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


class Lines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_plain(getattr(record, "fields", {})),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """A value with texts for keys, as JSON wants it: ``("shelf", 3)`` becomes ``shelf-3``."""
    if isinstance(value, Mapping):
        return {
            "-".join(map(str, key)) if isinstance(key, tuple) else str(key): _plain(inner)
            for key, inner in value.items()
        }
    return value


class Words(logging.Formatter):
    """A record as a line for people: time, level, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = "".join(f"  {key}={_short(value)}" for key, value in getattr(record, "fields", {}).items())
        text = f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _short(value: Any) -> str:
    """A field as text without brackets."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{inner}" for key, inner in _plain(value).items())
    return ",".join(map(str, value)) if isinstance(value, (list, tuple, set, frozenset)) else str(value)


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except Exception:  # noqa: BLE001 (a log that cannot be written must not stop the stream)
            self.handleError(record)


@contextmanager
def logging_to(
    write: Callable[[str], object] | None = None,
    *,
    form: Literal["json", "text"] = "json",
    level: str = "info",
    secrets: Collection[str] = (),
) -> Iterator[None]:
    """Write the logs of pipelines, line by line, by ``write`` (stderr unless given), while the block runs."""
    handler = _Handler(write if write is not None else _stderr)
    handler.setFormatter(Redacted(Lines() if form == "json" else Words(), secrets))
    logger = logging.getLogger(ROOT)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
