"""What has come out of a pipeline without brokers: the logs, the matches that hold, and who wants to hear of more.

The rule: rows of changes and late events are what the runtime gave, with ``position`` before them; the same batches
give the same rows under the same positions, whenever they are processed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from latecomer.serve.letters import DeadLetter
from latecomer.serve.log import Log

_ENCODE = msgspec.json.Encoder(enc_hook=str).encode
#: The logs.
NAMES = ("changes", "late", "dead")


class _Head(msgspec.Struct):
    op: str
    match_id: str


class _Named(msgspec.Struct):
    query: str


class Board:
    """The newest matches that hold, up to ``most``, by ``match_id``: rows as the changes have them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[str, bytes] = {}
        self.left_out = 0

    def __len__(self) -> int:
        return len(self._rows)

    def see(self, ops: Sequence[str], ids: Sequence[str], rows: Sequence[bytes]) -> None:
        """Take in changes."""
        for op, match_id, row in zip(ops, ids, rows, strict=True):
            if op == "insert":
                self._rows[match_id] = row
            elif self._rows.pop(match_id, None) is None and self.left_out:
                self.left_out -= 1
        while len(self._rows) > self._most:
            del self._rows[next(iter(self._rows))]
            self.left_out += 1

    def newest(self, limit: int, query: str | None = None) -> list[bytes]:
        """The newest matches (of one query), newest first. May be called while others are taken in."""
        rows = list(self._rows.values())
        if query is not None:
            decode = msgspec.json.Decoder(_Named).decode
            rows = [row for row in rows if decode(row).query == query]
        return rows[: -limit - 1 : -1]


class Outcome:
    """Logs in ``folder``, as they were at ``positions``; ``keep``: bytes of each; ``most``: matches on the board."""

    def __init__(self, folder: Path, positions: Mapping[str, int], keep: int, most: int) -> None:
        self.changes, self.late, self.dead = (Log(folder / name, positions.get(name, 0), keep) for name in NAMES)
        self.board = Board(most)
        decode = msgspec.json.Decoder(_Head).decode
        for rows in _portions(self.changes.rows()):
            heads = list(map(decode, rows))
            self.board.see([h.op for h in heads], [h.match_id for h in heads], rows)

    @property
    def logs(self) -> tuple[Log, Log, Log]:
        return self.changes, self.late, self.dead

    def positions(self) -> dict[str, int]:
        """Where each log ends."""
        return {name: log.newest for name, log in zip(NAMES, self.logs, strict=True)}

    def add(self, changes: pa.Table, late: pa.Table) -> None:
        """What the runtime gave."""
        if changes.num_rows:
            rows = _numbered(changes.to_pylist(), self.changes.newest)
            self.changes.append(rows)
            self.board.see(changes.column("op").to_pylist(), changes.column("match_id").to_pylist(), rows)
        if late.num_rows:
            self.late.append(_numbered(late.to_pylist(), self.late.newest))

    def bury(self, letters: Sequence[DeadLetter], request: int) -> None:
        """Dead letters of a request, which the journal knows by this number."""
        plain = [{"request": request, **letter.plain()} for letter in letters]
        self.dead.append(_numbered(plain, self.dead.newest))

    def settle(self) -> bool:
        """Write what found no room on the disk; returns whether there is room for it now."""
        return all(log.settle() for log in self.logs)

    def sync(self) -> None:
        """Make all rows safe; raises StateError where the disk has no room for them."""
        for log in self.logs:
            log.sync()

    def close(self) -> None:
        for log in self.logs:
            log.close()

    @property
    def nbytes(self) -> int:
        return sum(log.nbytes for log in self.logs)


def _numbered(rows: Sequence[Mapping[str, Any]], newest: int) -> list[bytes]:
    """Rows as JSON, with the positions that follow."""
    return [_ENCODE({"position": number, **row}) for number, row in enumerate(rows, newest + 1)]


def _portions(rows: Iterator[bytes], size: int = 10_000) -> Iterator[list[bytes]]:
    portion: list[bytes] = []
    for row in rows:
        portion.append(row)
        if len(portion) == size:
            yield portion
            portion = []
    yield portion


def wall_ms() -> int:
    """The time of day, ms since 1970."""
    return time.time_ns() // 1_000_000
