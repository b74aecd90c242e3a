"""A member: the process that runs one share. It does what it is asked until its other end is closed.

Requests are tuples (method, arguments…). An answer is any number of ``("piece", changes, late)``, with a ``("schemas",
changes, late)`` before them where these are not what they were; then either ``("done", value)`` or ``("failed",
error)``.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.runtime import Output, Runtime
from latecomer.runtime.share import Share
from latecomer.runtime.spill import Spill
from latecomer.runtime.workers.exchange import Exchange, encode

#: Methods that give an Output.
OUTPUTS = frozenset({"reject", "punctuate", "observe", "advance", "finish"})


class Member:
    """Answers requests with a runtime of its own."""

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange
        self._runtime: Runtime | None = None
        self._schemas: tuple[pa.Schema, pa.Schema] | None = None

    def serve(self) -> None:
        with suppress(EOFError, OSError):  # the other side has closed, or is gone
            while True:
                request = self._connection.recv()
                try:
                    answer = ("done", self._answer(*request))
                except Exception as error:  # noqa: BLE001 - whatever it is, the other side raises it
                    answer = ("failed", _portable(error))
                self._connection.send(answer)

    def _answer(self, method: str, *given: Any) -> Any:
        if method == "begin":
            return self._begin(*given)
        runtime = self._runtime
        assert runtime is not None
        if method in ("shared", "rows"):
            batch, clocks, cuts = given
            events = self._exchange.read(batch) if method == "shared" else batch
            return self._hand_over(runtime.stream_pieces(events, clocks=clocks, cuts=cuts))
        if method in OUTPUTS:
            return self._hand_over([getattr(runtime, method)(*given)])
        if method == "write":
            return runtime.checkpoint(number=given[0])
        value = getattr(runtime, method)
        return value(*given) if callable(value) else value

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
        self._runtime = runtime

    def _hand_over(self, outputs: Iterable[Output]) -> None:
        self._tell_schemas()
        for output in outputs:
            tables = (encode(t) if t.num_rows else None for t in (output.changes, output.late))
            self._connection.send(("piece", *tables))

    def _tell_schemas(self) -> None:
        assert self._runtime is not None
        schemas = self._runtime._schemas
        if schemas != self._schemas:
            self._schemas = schemas
            self._connection.send(("schemas", *(schema.serialize().to_pybytes() for schema in schemas)))


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
    Member(Connection(connection), Exchange(exchange)).serve()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
