"""A crew: the workers, one of which is this process, and what is asked of all of them at once.

A process ends when its connection closes, so none outlives this one, however it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.runtime import Output
from latecomer.runtime.workers.exchange import Exchange, decode
from latecomer.runtime.workers.member import Member, Part, Written

#: A piece of output: the member's number, and what it says.
Piece = tuple[int, Output]


class Crew:
    """``size`` members, of which the first is here and the others are processes. One request at a time;
    :attr:`broken` says that they may not agree any more.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.broken = False
        self.here = Member()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}
        self._exchange = Exchange()
        self._nothing: dict[int, Output] = {}
        for number in range(1, size):
            ours, theirs = socket.socketpair()
            with theirs:
                self.processes[number] = launch(theirs.fileno(), self._exchange.fd)
            self._connections[number] = Connection(ours.detach())
        self.close = weakref.finalize(self, _end, self._connections, self.processes, self._exchange)

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
        """The outputs that members give, as they come; to be taken to the end."""
        there = given
        if self.size > 1 and given and isinstance(given[0], pa.RecordBatch):
            there = Written(self._exchange.write(given[0])), *given[1:]
        yield from self._answers([(method, *given), *[(method, *there)] * (self.size - 1)])

    def _answers(self, requests: Sequence[tuple[Any, ...]]) -> Generator[Piece, None, list[Any]]:
        """What members say. Raises what they raised, when all have answered; if all refused, they still agree."""
        whole, self.broken = not self.broken, True
        for number, request in enumerate(requests[1:], 1):
            self._send(number, request)
        ends: dict[int, Part] = {}
        here = self.here.answer(*requests[0])
        try:
            while True:
                yield 0, next(here)
        except StopIteration as end:
            ends[0] = Part(last=True, value=end.value)
        except Exception as problem:  # noqa: BLE001 - raised below, when the others have answered
            ends[0] = Part(last=True, error=problem)
        while len(ends) < self.size:
            ready = wait([c for number, c in self._connections.items() if number not in ends])
            for number in [number for number, c in self._connections.items() if c in ready]:
                part = self._receive(number)
                if part.changes is not None or part.late is not None:
                    yield number, self._output(number, part)
                if part.last:
                    ends[number] = part
        errors = [error for number in range(self.size) if (error := ends[number].error) is not None]
        self.broken = not whole or 0 < len(errors) < self.size
        if errors:
            raise errors[0]
        return [ends[number].value for number in range(self.size)]

    def _output(self, number: int, part: Part) -> Output:
        """A part's output; a table that says nothing has the columns that it had."""
        changes, late = (None if data is None else decode(data) for data in (part.changes, part.late))
        if changes is not None and late is not None:
            self._nothing[number] = Output(changes.schema.empty_table(), late.schema.empty_table())
        nothing = self._nothing[number]
        return Output(nothing.changes if changes is None else changes, nothing.late if late is None else late)

    def _send(self, number: int, request: tuple[Any, ...]) -> None:
        try:
            self._connections[number].send(request)
        except OSError as problem:
            raise self._lost(number) from problem

    def _receive(self, number: int) -> Part:
        try:
            return self._connections[number].recv()  # type: ignore[no-any-return]
        except (EOFError, OSError) as problem:
            raise self._lost(number) from problem

    def _lost(self, number: int) -> StateError:
        code = self.processes[number].wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return StateError(
            f"worker {number} of {self.size} {how}, for want of memory perhaps: go on from the last version with "
            "Runtime.open(…), or from the last snapshot"
        )


def launch(connection: int, exchange: int) -> subprocess.Popen[bytes]:
    """A process that serves on these file descriptors, and finds modules where this one does."""
    command = [sys.executable, "-P", "-c", _COMMAND, str(connection), str(exchange)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(place or "." for place in sys.path)}
    return subprocess.Popen(command, pass_fds=(connection, exchange), env=environment, stdin=subprocess.DEVNULL)


_COMMAND = "import sys; from latecomer.runtime.workers.member import main; main(*map(int, sys.argv[1:]))"


def _end(connections: dict[int, Connection], processes: dict[int, subprocess.Popen[bytes]], exchange: Exchange) -> None:
    for connection in connections.values():
        connection.close()
    for process in processes.values():
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    exchange.close()
