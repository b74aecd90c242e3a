"""Exchange: a batch in memory that several processes see, written once for all of them.

An unlinked file, mapped by both sides: no name that could outlive the processes, whatever ends them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import pyarrow as pa

_RAM = Path("/dev/shm")
_FIRST = 1 << 20


class Exchange:
    """One record batch at a time, in an Arrow stream. ``fd``: the file of an exchange that was opened elsewhere."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            with tempfile.TemporaryFile(dir=_RAM if _RAM.is_dir() else None) as file:
                fd = os.dup(file.fileno())
            os.ftruncate(fd, _FIRST)
        self.fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)

    def write(self, batch: pa.RecordBatch) -> int:
        """Put a batch in; returns how many bytes it takes. Whoever reads the last one must have done so."""
        sink = pa.MockOutputStream()
        _write(sink, batch)
        size = int(sink.size())
        if size > len(self._map):
            room = 1 << (size - 1).bit_length()
            os.ftruncate(self.fd, room)
            self._remap(room)
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._map)), batch)
        return size

    def read(self, size: int) -> pa.RecordBatch:
        """The batch that was put in, in memory of its own."""
        if size > len(self._map):
            self._remap(os.fstat(self.fd).st_size)
        with pa.ipc.open_stream(pa.py_buffer(self._map[:size])) as stream:
            return stream.read_next_batch()

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    def _remap(self, size: int) -> None:
        self._map.close()
        self._map = mmap.mmap(self.fd, size)


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def encode(table: pa.Table) -> bytes:
    """A table for the way between processes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()
