"""Records of the journal: what is taken in together, and what a word about time does to a runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from latecomer.errors import SchemaError
from latecomer.runtime import Runtime


class Part(msgspec.Struct, array_like=True):
    """A request in a record: events (``form``, ``body``) or a word about time, as JSON in ``body``."""

    form: str
    body: bytes
    key: str | None = None


class Record(msgspec.Struct, array_like=True):
    """What is taken in together: the time of day (ms), the same for the runtime (units; None: it need not know), and
    the requests."""

    at: int
    now: int | None
    parts: list[Part]

    def packed(self) -> bytes:
        """As bytes."""
        return _encoder.encode(self)

    @classmethod
    def unpacked(cls, data: bytes) -> Record:
        """From bytes."""
        return _decoder.decode(data)


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Record)

#: Words about time, and what each asks of the runtime.
WORDS: Mapping[str, Callable[..., Any]] = {
    "punctuate": Runtime.punctuate,
    "advance": Runtime.advance,
    "finish": Runtime.finish,
}


def said(runtime: Runtime, word: str, arguments: dict[str, Any]) -> Any:
    """Say a word to a runtime; raises LatecomerError where it makes no sense."""
    try:
        return WORDS[word](runtime, **arguments)
    except (TypeError, ValueError, KeyError, OverflowError, pa.ArrowException) as problem:
        raise SchemaError(f"{word} with {arguments}: {problem}") from problem
