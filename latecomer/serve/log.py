"""Logs of what came out: changes, late events and dead letters, each row under a number, its *position*.

The rule: positions are 1, 2, 3 … and never change: what is processed once more after a crash gives the same rows under
the same positions. So rows need not be safe before they are shown; :meth:`Log.sync` makes them safe before the state
that no longer needs to make them again. Old rows go when a log has grown beyond what it may keep.

The newest rows are in memory, all others in files of some megabytes, a line each, named by their first position. What
finds no room on the disk is *owed*: it has its position, and is written once there is room (:meth:`Log.settle`).
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from threading import Lock

from latecomer.errors import StateError

log = logging.getLogger("latecomer.serve")
#: Rows and bytes of them that are in memory.
RECENT, RECENT_BYTES = 20_000, 16 << 20
#: Size of a file.
SEGMENT = 4 << 20


class Log:
    """Rows in ``folder``, cut off behind ``position``, which is where the state that goes with it ends.

    ``keep``: bytes that stay. One thread writes, any may read. Raises StateError where rows up to ``position`` are
    missing at the end.
    """

    def __init__(self, folder: Path, position: int, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._lock = Lock()
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0
        self._owed = b""
        folder.mkdir(parents=True, exist_ok=True)
        self._firsts = sorted(int(path.stem) for path in folder.glob("*.jsonl"))
        while self._firsts and self._firsts[-1] > position:
            self._path(self._firsts.pop()).unlink()
        self.newest = self._cut(position)
        if self.newest < position:
            raise StateError(
                f"the log {str(folder)!r} ends at {self.newest}, and the state at {position}: it was changed from "
                "outside. Restore it, or begin with another state folder"
            )
        if not self._firsts:
            self._firsts = [position + 1]
        self._file = self._path(self._firsts[-1]).open("ab", buffering=0)
        self._sizes = {first: self._path(first).stat().st_size for first in self._firsts}

    @property
    def oldest(self) -> int:
        """The position of the first row that is still there; one more than ``newest`` when there is none."""
        return self._firsts[0]

    @property
    def nbytes(self) -> int:
        """Size of the files."""
        return sum(self._sizes.values())

    def place(self, name: str) -> int:
        """The position that a reader names; raises ValueError for what is none."""
        position = int(name)
        if not 0 <= position <= 2**62:
            raise ValueError(f"{name} is no position")
        return position

    def name(self, position: int) -> str:
        """How a reader names a position."""
        return str(position)

    def append(self, rows: Sequence[bytes]) -> None:
        """Add rows; a row is a line without its end."""
        if not rows:
            return
        if self._sizes[self._firsts[-1]] >= SEGMENT and not self._owed:
            self._begin()
        added = b"\n".join(rows) + b"\n"
        self._owed += added
        self.settle()
        with self._lock:
            self._recent.extend(rows)
            self._recent_bytes += len(added)
            self.newest += len(rows)
            while len(self._recent) > RECENT or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
                self._recent_bytes -= len(self._recent.popleft()) + 1

    def settle(self) -> bool:
        """Write what is owed; returns whether there was room for all of it."""
        while self._owed:
            try:
                written = self._file.write(self._owed)
            except OSError as problem:
                log.warning(f"the log {str(self._folder)!r} cannot be written: {problem.strerror}")
                return False
            with self._lock:
                self._sizes[self._firsts[-1]] += written
            self._owed = self._owed[written:]
        return True

    def recent(self, after: int, limit: int) -> list[bytes] | None:
        """Up to ``limit`` rows behind a position; None where they are no longer in memory."""
        with self._lock:
            begin = self.newest - len(self._recent)
            if after < begin:
                return None
            return list(islice(self._recent, after - begin, after - begin + limit))

    def read(self, after: int, limit: int) -> tuple[int, list[bytes]]:
        """Up to ``limit`` rows behind a position, and the position of the first of them: where rows are gone, that is
        the oldest one that is still there."""
        found = self.recent(after, limit)
        if found is not None:
            return after + 1, found
        with self._lock:
            firsts, newest = list(self._firsts), self.newest
        after = max(after, firsts[0] - 1)
        at = bisect_right(firsts, after + 1) - 1
        closed = at + 1 < len(firsts)
        try:
            path = self._path(firsts[at])
            lines = _closed(path, path.stat().st_size) if closed else _lines(path, newest - firsts[at] + 1)
        except FileNotFoundError:  # it went meanwhile
            return self.read(max(after, self.oldest - 1), limit)
        return after + 1, list(lines[after + 1 - firsts[at] : after + 1 - firsts[at] + limit])

    def rows(self) -> Iterator[bytes]:
        """All rows that are there."""
        for first in list(self._firsts):
            yield from _lines(self._path(first))

    def sync(self) -> None:
        """Make all rows safe, and let old ones go; raises StateError where the disk has no room for them."""
        if not self.settle():
            raise StateError(f"rows of the log {str(self._folder)!r} cannot be written")
        os.fsync(self._file.fileno())
        while self.nbytes > self._keep and len(self._firsts) > 1:
            with self._lock:
                first = self._firsts.pop(0)
                del self._sizes[first]
            self._path(first).unlink()

    def close(self) -> None:
        self._file.close()

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:016d}.jsonl"

    def _begin(self) -> None:
        """A new file for the rows that follow; where none can be had, the last one grows on."""
        try:
            file = self._path(self.newest + 1).open("ab", buffering=0)
        except OSError:
            return
        os.fsync(self._file.fileno())
        self._file.close()
        with self._lock:
            self._firsts.append(self.newest + 1)
            self._sizes[self.newest + 1] = 0
        self._file = file

    def _cut(self, position: int) -> int:
        """Cut off the rows behind a position; returns the position of the last row."""
        if not self._firsts:
            return position  # old rows were let go, or there were none
        first = self._firsts[-1]
        data = self._path(first).read_bytes()
        end, count = 0, 0
        while count < position - first + 1 and (found := data.find(b"\n", end)) >= 0:
            end, count = found + 1, count + 1
        if end < len(data):
            os.truncate(self._path(first), end)
        return first + count - 1


def _lines(path: Path, most: int | None = None) -> list[bytes]:
    """The whole lines of a file, up to so many."""
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # empty, or a row that is being written
    return lines if most is None else lines[:most]


@lru_cache(maxsize=4)
def _closed(path: Path, size: int) -> list[bytes]:
    """The lines of a file that does not change any more."""
    return _lines(path)
