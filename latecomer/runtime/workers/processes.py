"""Members in processes of their own: where kernels are not compiled, so that threads would wait for Python's lock.

A process ends when its connection closes, so none outlives this one, however it ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.runtime import Output
from latecomer.runtime.workers.exchange import Exchange, decode
from latecomer.runtime.workers.member import Part
from latecomer.runtime.workers.remote import Sent, Written


class Processes:
    """The members from 1 to ``size``."""

    joint = None

    def __init__(self, size: int) -> None:
        self._size = size
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}
        self._exchange = Exchange()
        self._nothing: dict[int, Output] = {}
        for number in range(1, size):
            ours, theirs = socket.socketpair()
            with theirs:
                self.processes[number] = launch(theirs.fileno(), self._exchange.fd)
            self._connections[number] = Connection(ours.detach())

    @contextmanager
    def showing(self, batch: Any) -> Iterator[Any]:
        several = self._size > 1 and isinstance(batch, pa.RecordBatch)
        yield Written(self._exchange.write(batch)) if several else batch

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        try:
            self._connections[number].send(request)
        except OSError as problem:
            raise self._lost(number) from problem

    def receive(self, numbers: Collection[int]) -> Iterator[tuple[int, Part]]:
        ready = wait([self._connections[number] for number in numbers])
        for number in numbers:
            if self._connections[number] in ready:
                yield number, self._part(number)

    def _part(self, number: int) -> Part:
        try:
            sent: Sent = self._connections[number].recv()
        except (EOFError, OSError) as problem:
            raise self._lost(number) from problem
        return Part(self._output(number, sent), sent.last, sent.value, sent.error)

    def _output(self, number: int, sent: Sent) -> Output | None:
        """What is sent as an output; a table that says nothing has the columns that it had."""
        if sent.changes is None and sent.late is None:
            return None
        changes, late = (None if data is None else decode(data) for data in (sent.changes, sent.late))
        if changes is not None and late is not None:
            self._nothing[number] = Output(changes.schema.empty_table(), late.schema.empty_table())
        nothing = self._nothing[number]
        return Output(nothing.changes if changes is None else changes, nothing.late if late is None else late)

    def _lost(self, number: int) -> StateError:
        code = self.processes[number].wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return StateError(
            f"worker {number} of {self._size} {how}, for want of memory perhaps: go on from the last version with "
            "Runtime.open(…), or from the last snapshot"
        )

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._exchange.close()


def launch(connection: int, exchange: int) -> subprocess.Popen[bytes]:
    """A process that serves on these file descriptors, and finds modules where this one does."""
    command = [sys.executable, "-P", "-c", _COMMAND, str(connection), str(exchange)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(place or "." for place in sys.path)}
    return subprocess.Popen(command, pass_fds=(connection, exchange), env=environment, stdin=subprocess.DEVNULL)


_COMMAND = "import sys; from latecomer.runtime.workers.remote import main; main(*map(int, sys.argv[1:]))"
