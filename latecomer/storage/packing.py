"""Packing: state as bytes. msgpack, with NumPy arrays and Arrow arrays as extensions; compressed and checked.

The layout of a snapshot is ``magic, format version, crc32 of the rest, zstd(msgpack)``. A state that is damaged, or
comes from a newer format, fails with a sentence that says so.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from latecomer.errors import StateError

_MAGIC = b"LATECOMER"
_FORMAT = 1
_NUMPY, _ARROW = 1, 2


def pack(state: Any) -> bytes:
    """Plain data (dicts, lists, numbers, texts, NumPy and Arrow arrays) as bytes."""
    raw: bytes = msgpack.packb(state, default=_encode, use_bin_type=True, strict_types=False)
    compressed: bytes = pa.compress(raw, "zstd", asbytes=True)
    body = len(raw).to_bytes(8, "little") + compressed
    return _MAGIC + _FORMAT.to_bytes(2, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def unpack(data: bytes) -> Any:
    """What :func:`pack` was given. Raises StateError when the bytes are damaged or of another format."""
    head = len(_MAGIC)
    if data[:head] != _MAGIC:
        raise StateError("these bytes are not a Latecomer state: they do not begin with its mark")
    version = int.from_bytes(data[head : head + 2], "little")
    if version != _FORMAT:
        raise StateError(
            f"this state has format {version}, and this release reads format {_FORMAT}: use the release that wrote it"
        )
    body = data[head + 6 :]
    if zlib.crc32(body) != int.from_bytes(data[head + 2 : head + 6], "little"):
        raise StateError("this state is damaged: its checksum does not match; restore an older one")
    raw = pa.decompress(body[8:], int.from_bytes(body[:8], "little"), "zstd", asbytes=True)
    return msgpack.unpackb(raw, ext_hook=_decode, strict_map_key=False, use_list=True)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(_NUMPY, msgpack.packb((value.dtype.str, np.ascontiguousarray(value).tobytes())))
    if isinstance(value, pa.Array):
        batch = pa.RecordBatch.from_arrays([value], names=[""])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return msgpack.ExtType(_ARROW, sink.getvalue().to_pybytes())
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"cannot pack {type(value).__name__}")


def _decode(code: int, data: bytes) -> Any:
    if code == _NUMPY:
        dtype, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, np.dtype(dtype)).copy()
    if code == _ARROW:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch().column(0)
    return msgpack.ExtType(code, data)
