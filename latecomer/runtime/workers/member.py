"""A member of a crew: a runtime with one share of the events, which answers requests; here, or in a process of its own.

A request is a tuple (method, arguments…), an answer any number of outputs, and a value.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.runtime import Output, Runtime
from latecomer.runtime.share import Share
from latecomer.runtime.spill import Spill
from latecomer.runtime.workers.exchange import Exchange, encode

#: Methods that give one Output.
OUTPUTS = frozenset({"process", "reject", "punctuate", "observe", "advance", "finish"})

#: The schemas of changes and of late rows.
Schemas = tuple[pa.Schema, pa.Schema]


@dataclass(frozen=True, slots=True)
class Part:
    """What a process says at once: an output as bytes (None: no rows, and the columns are known), and whether the
    answer ends with it: with a value, or with an error.
    """

    changes: bytes | None = None
    late: bytes | None = None
    last: bool = False
    value: Any = None
    error: Exception | None = None


class Member:
    """Answers requests with a runtime of its own."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None

    def answer(self, method: str, *given: Any) -> Generator[Output, None, Any]:
        if method == "begin":
            return self._begin(*given)
        runtime = self.runtime
        assert runtime is not None
        if method in ("process", "stream_pieces"):
            batch, clocks, cuts = given
            if method == "process":
                yield runtime.process(batch, clocks=clocks, cuts=cuts)
            else:
                yield from runtime.stream_pieces(batch, clocks=clocks, cuts=cuts)
        elif method in OUTPUTS:
            yield getattr(runtime, method)(*given)
        elif method == "write":
            return runtime.checkpoint(number=given[0])
        else:
            value = getattr(runtime, method)
            return value(*given) if callable(value) else value
        return None

    def _begin(
        self, share: Share, snapshot: bytes | None, spill: Spill | None, version: int | None, memory: int | None
    ) -> None:
        """Begin from a snapshot, or from a version in a folder. A snapshot of nothing may begin a folder."""
        if snapshot is None:
            assert spill is not None
            runtime = Runtime.open(spill, version=version, memory=memory)
        else:
            runtime = Runtime.restore(snapshot)
            if spill is not None:
                runtime = Runtime(runtime.stream, runtime.queries, memory=memory, spill=spill)
        runtime._take_share(share)
        self.runtime = runtime


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that lies in the exchange."""

    size: int


class Remote:
    """The other end of a connection: answers until this closes, or its owner is gone."""

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange
        self._member = Member()
        self._told: Schemas | None = None

    def serve(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                method, *given = self._connection.recv()
                if given and isinstance(given[0], Written):
                    given[0] = self._exchange.read(given[0].size)
                for part in self._parts(self._member.answer(method, *given)):
                    self._connection.send(part)

    def _parts(self, answer: Generator[Output, None, Any]) -> Iterator[Part]:
        """An output is told together with how the answer ends, if it is the last."""
        output: Output | None = None
        try:
            while True:
                following = next(answer)
                if output is not None:
                    yield self._part(output)
                output = following
        except StopIteration as end:
            yield self._part(output, last=True, value=end.value)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the other side raises it
            yield self._part(output, last=True, error=_portable(problem))

    def _part(self, output: Output | None, **end: Any) -> Part:
        if output is None:
            return Part(**end)
        schemas = output.changes.schema, output.late.schema
        new = schemas != self._told
        self._told = schemas
        changes, late = (encode(table) if new or table.num_rows else None for table in (output.changes, output.late))
        return Part(changes, late, **end)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same and can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return StateError(f"{type(error).__name__}: {error}")
    return error


def main(connection: int, exchange: int) -> None:
    """Serve on two file descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the other side's to answer
    pa.set_cpu_count(1)
    Remote(Connection(connection), Exchange(exchange)).serve()
