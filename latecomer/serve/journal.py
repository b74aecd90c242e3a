"""The journal: what was taken in, on disk before anybody is told so.

The rule: :meth:`Journal.append` returns after the record and its place in the folder are safe (one ``fsync`` for as
many requests as the record holds). Records are numbered 1, 2, 3 … without gaps. A record that ends with its file and is
not whole was never acknowledged, since the process or the machine stopped while it was written: it is cut off. Any
other damage is an error, since acknowledged events would be missing.

::

    journal/0000000000000001.log     records from 1 on: magic, length, checksum, number, then the payload
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from latecomer.errors import LatecomerError, StateError

_HEAD = struct.Struct("<4sIIQ")
_MAGIC = b"LCJ1"
#: A file gets no further records once it is larger than this.
SEGMENT = 64 << 20


class JournalFull(LatecomerError):
    """A record could not be written and left no trace; the journal is as before."""


class Journal:
    """The records in ``folder``, which is made if need be. One process at a time may have it open.

    Raises StateError where it is damaged.
    """

    def __init__(self, folder: Path, *, segment: int = SEGMENT) -> None:
        self._folder, self._segment = folder, segment
        folder.mkdir(parents=True, exist_ok=True)
        self.last = 0
        self._firsts = sorted(int(path.stem) for path in folder.glob("*.log"))
        for number, first in enumerate(self._firsts):
            self.last = first - 1
            good = 0
            for record, _, end in self._records(first):
                self.last, good = record, end
            size = self._path(first).stat().st_size
            if good < size:
                self._repair(first, good, size, number == len(self._firsts) - 1)
            if number + 1 < len(self._firsts) and self._firsts[number + 1] != self.last + 1:
                raise self._damaged(first, "the records that follow are missing")
        self._file = self._open(self._firsts[-1]) if self._firsts else None
        self.nbytes = sum(self._path(first).stat().st_size for first in self._firsts)

    def append(self, payload: bytes) -> int:
        """Write a record; returns its number once it is safe.

        Raises JournalFull where there is no room for it; OSError where nobody knows any more what is on the disk.
        """
        if self._file is None or os.fstat(self._file).st_size >= self._segment:
            self._begin()
        assert self._file is not None
        start = os.fstat(self._file).st_size
        number = self.last + 1
        parts = [_HEAD.pack(_MAGIC, len(payload), zlib.crc32(payload, number & 0xFFFFFFFF), number), payload]
        try:
            written = os.writev(self._file, parts)
            rest = memoryview(b"".join(parts))[written:] if written < len(payload) + _HEAD.size else b""
            while len(rest):
                rest = rest[os.write(self._file, rest) :]
        except OSError as problem:
            os.ftruncate(self._file, start)
            raise JournalFull(f"the journal {str(self._folder)!r} cannot be written: {problem.strerror}") from problem
        os.fdatasync(self._file)
        self.last = number
        self.nbytes += _HEAD.size + len(payload)
        return number

    def replay(self, after: int) -> Iterator[tuple[int, bytes]]:
        """The records whose number is greater, in order. Raises StateError where some of them are missing."""
        if self._firsts and self._firsts[0] > after + 1:
            raise self._damaged(self._firsts[0], f"it begins behind record {after + 1}, which is needed")
        for first, following in pairwise([*self._firsts, self.last + 1]):
            if following - 1 > after:
                yield from ((number, payload) for number, payload, _ in self._records(first) if number > after)

    def forget(self, through: int) -> None:
        """Records up to this number are not needed any more."""
        while len(self._firsts) > 1 and self._firsts[1] <= through + 1:
            self._drop(self._firsts.pop(0))
        if self._firsts and self.last <= through and self.last >= self._firsts[0]:
            self._begin()
            self._drop(self._firsts.pop(0))

    def skip_to(self, number: int) -> None:
        """Go on behind this number: for a journal that was lost after a state had been saved."""
        if number > self.last:
            self.last = number
            self._begin()

    def close(self) -> None:
        """Close the file; every record is safe already."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # --- inside ------------------------------------------------------------------------------------------------------

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:016d}.log"

    def _open(self, first: int) -> int:
        return os.open(self._path(first), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _begin(self) -> None:
        """A new file for the records that follow; raises JournalFull, with all as it was, where none can be had."""
        try:
            file = self._open(self.last + 1)
        except OSError as problem:
            raise JournalFull(f"the journal {str(self._folder)!r} cannot be written: {problem.strerror}") from problem
        self.close()
        self._firsts.append(self.last + 1)
        self._file = file
        self._sync_folder()

    def _drop(self, first: int) -> None:
        self.nbytes -= self._path(first).stat().st_size
        self._path(first).unlink()

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _records(self, first: int) -> Iterator[tuple[int, bytes, int]]:
        """Number, payload and end of each whole record of a file, up to the first that is not."""
        with self._path(first).open("rb") as file:
            expected, end = first, 0
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                magic, length, checksum, number = _HEAD.unpack(head)
                if magic != _MAGIC or number != expected:
                    return
                payload = file.read(length)
                if len(payload) < length or zlib.crc32(payload, number & 0xFFFFFFFF) != checksum:
                    return
                end += _HEAD.size + length
                yield number, payload, end
                expected += 1

    def _repair(self, first: int, good: int, size: int, last: bool) -> None:
        """Cut off what was being written when the process or machine stopped."""
        path = self._path(first)
        with path.open("r+b") as file:
            file.seek(good)
            rest = file.read()
            if not last or not _torn(rest):
                raise self._damaged(first, f"at byte {good} of {size}")
            file.truncate(good)
            os.fsync(file.fileno())

    def _damaged(self, first: int, how: str) -> StateError:
        return StateError(
            f"the journal {str(self._path(first))!r} is damaged ({how}), and it holds events that were acknowledged: "
            "restore it from a copy, or begin with another state folder"
        )


def _torn(rest: bytes) -> bool:
    """Whether these bytes are one record that was not written to its end: it is short, or the file ends with it."""
    if not rest.strip(b"\0") or len(rest) < _HEAD.size:
        return True
    magic, length, _, _ = _HEAD.unpack_from(rest)
    return bool(magic == _MAGIC and _HEAD.size + length >= len(rest))
