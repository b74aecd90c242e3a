"""The other end of a connection: a member in a process of its own, and how what it says is sent."""

from __future__ import annotations

import pickle
import signal
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.workers.exchange import Exchange, encode
from latecomer.runtime.workers.member import Member, Part

#: The schemas of changes and of late rows.
Schemas = tuple[pa.Schema, pa.Schema]


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that lies in the exchange."""

    size: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A part on its way: tables as bytes. None: no rows, and the columns are known."""

    changes: bytes | None = None
    late: bytes | None = None
    last: bool = False
    value: Any = None
    error: BaseException | None = None


class Remote:
    """Answers until the connection closes, or its owner is gone."""

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
                for part in self._member.parts(method, *given):
                    self._connection.send(self._sent(part))

    def _sent(self, part: Part) -> Sent:
        error = None if part.error is None else _portable(part.error)
        if part.output is None:
            return Sent(last=part.last, value=part.value, error=error)
        tables = part.output.changes, part.output.late
        schemas = tables[0].schema, tables[1].schema
        new = schemas != self._told
        self._told = schemas
        changes, late = (encode(table) if new or table.num_rows else None for table in tables)
        return Sent(changes, late, part.last, part.value, error)


def _portable(error: BaseException) -> BaseException:
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
