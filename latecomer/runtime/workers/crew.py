"""A crew: the processes of the workers, and what is asked of all of them at once.

A member ends when its connection closes, so none outlives this process, however it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.workers.exchange import Exchange, decode

#: A piece of output: the member's number, its changes, its late rows.
Piece = tuple[int, pa.Table | None, pa.Table | None]


class Crew:
    """``size`` processes. One request at a time; :attr:`broken` says that they may not agree any more."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.exchange = Exchange()
        self.broken = False
        #: Of changes and late rows, as soon as members know them.
        self.schemas: tuple[pa.Schema, pa.Schema] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        for _ in range(size):
            ours, theirs = socket.socketpair()
            with theirs:
                self._processes.append(launch(theirs.fileno(), self.exchange.fd))
            self._connections.append(Connection(ours.detach()))
        self.close = weakref.finalize(self, _end, self._connections, self._processes, self.exchange)

    def ask(self, method: str, *given: Any) -> list[Any]:
        """What each member says to the same question."""
        return self.ask_each([(method, *given)] * self.size)

    def ask_each(self, requests: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each member says to its own question."""
        answers = self._answers(requests)
        while True:
            try:
                next(answers)
            except StopIteration as end:
                return list(end.value)

    def stream(self, method: str, *given: Any) -> Iterator[Piece]:
        """The pieces of output that members give, as they come; to be taken to the end."""
        yield from self._answers([(method, *given)] * self.size)

    def _answers(self, requests: Sequence[tuple[Any, ...]]) -> Any:
        """A generator of pieces, whose value is what members said in the end. Raises what they raised, when all have
        answered; they still agree if all of them refused.
        """
        whole, self.broken = not self.broken, True
        said: dict[int, tuple[str, Any]] = {}
        for connection, request in zip(self._connections, requests, strict=True):
            self._send(connection, request)
        while len(said) < len(requests):
            ready = wait([c for i, c in enumerate(self._connections) if i not in said])
            for number in [i for i, c in enumerate(self._connections) if c in ready]:
                kind, *rest = self._receive(number)
                if kind == "schemas":
                    changes, late = (pa.ipc.read_schema(pa.py_buffer(data)) for data in rest)
                    self.schemas = changes, late
                elif kind == "piece":
                    changes, late = (None if data is None else decode(data) for data in rest)
                    yield number, changes, late
                else:
                    said[number] = kind, rest[0]
        failed = [said[i][1] for i in range(len(said)) if said[i][0] == "failed"]
        self.broken = not whole or 0 < len(failed) < len(said)
        if failed:
            raise failed[0]
        return [said[i][1] for i in range(len(said))]

    def _send(self, connection: Connection, request: tuple[Any, ...]) -> None:
        try:
            connection.send(request)
        except OSError as problem:
            raise self._lost(self._connections.index(connection)) from problem

    def _receive(self, number: int) -> Any:
        try:
            return self._connections[number].recv()
        except (EOFError, OSError) as problem:
            raise self._lost(number) from problem

    def _lost(self, number: int) -> StateError:
        code = self._processes[number].wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return StateError(
            f"worker {number} of {self.size} {how}, for want of memory perhaps: go on from the last version "
            "with Runtime.open(…), or from the last snapshot"
        )


def launch(connection: int, exchange: int) -> subprocess.Popen[bytes]:
    """A process that serves on these file descriptors, and finds modules where this one does."""
    command = [sys.executable, "-P", "-c", _COMMAND, str(connection), str(exchange)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(place or "." for place in sys.path)}
    return subprocess.Popen(command, pass_fds=(connection, exchange), env=environment, stdin=subprocess.DEVNULL)


_COMMAND = "import sys; from latecomer.runtime.workers.member import main; main(*map(int, sys.argv[1:]))"


def _end(connections: list[Connection], processes: list[subprocess.Popen[bytes]], exchange: Exchange) -> None:
    for connection in connections:
        connection.close()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    exchange.close()
