"""Packing: state as bytes. msgpack, with NumPy arrays and Arrow arrays as extensions; compressed and checked.

The layout is ``magic, format version, crc32 of the rest, codec, length, compressed msgpack``. Parts of a state are
read again and again, so the codec is the one that is read fastest (``docs/state.md`` has the figures). Format 1,
which earlier releases wrote, is read too. A state that is damaged, or comes from a newer format, fails with a
sentence that says so.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from latecomer.errors import StateError

_MAGIC = b"LATECOMER"
_FORMAT = 2
_NUMPY_1, _ARROW, _NUMPY = 1, 2, 3
_CODECS = ("zstd", "lz4_raw")
#: An LZ4 block holds less than 2 GiB; what is larger is compressed otherwise.
_LZ4_LIMIT = 2_000_000_000


def pack(state: Any) -> bytes:
    """Plain data (dicts, lists, numbers, texts, NumPy and Arrow arrays) as bytes.

    >>> unpack(pack({"codes": np.arange(3), "names": ["a", None]}))
    {'codes': array([0, 1, 2]), 'names': ['a', None]}
    """
    raw: bytes = msgpack.packb(state, default=_encode, use_bin_type=True, strict_types=False)
    codec = 1 if len(raw) < _LZ4_LIMIT else 0
    head = bytes([codec]) + len(raw).to_bytes(8, "little")
    compressed: bytes = pa.compress(raw, _CODECS[codec], asbytes=True)
    check = zlib.crc32(compressed, zlib.crc32(head))
    return b"".join([_MAGIC, _FORMAT.to_bytes(2, "little"), check.to_bytes(4, "little"), head, compressed])


def unpack(data: bytes) -> Any:
    """What :func:`pack` was given; its NumPy arrays may be changed.

    Raises StateError when the bytes are damaged or of another format.
    """
    head = len(_MAGIC)
    if data[:head] != _MAGIC:
        raise StateError("these bytes are not a Latecomer state: they do not begin with its mark")
    version = int.from_bytes(data[head : head + 2], "little")
    if version not in (1, _FORMAT):
        raise StateError(
            f"this state has format {version}, and this release reads the formats 1 and {_FORMAT}: "
            "use the release that wrote it"
        )
    body = memoryview(data)[head + 6 :]
    if len(body) < 8 or zlib.crc32(body) != int.from_bytes(data[head + 2 : head + 6], "little"):
        raise StateError("this state is damaged: its checksum does not match; restore an older one")
    codec = 0
    if version > 1:
        codec, body = body[0], body[1:]
    raw = pa.decompress(body[8:], int.from_bytes(body[:8], "little"), _CODECS[codec])
    return msgpack.unpackb(memoryview(raw), ext_hook=_decode, strict_map_key=False, use_list=True)


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        kind = value.dtype.str.encode()
        data = np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
        return msgpack.ExtType(_NUMPY, b"".join([bytes([len(kind)]), kind, data]))
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
        start = 1 + data[0]
        return np.frombuffer(data, np.dtype(data[1:start].decode()), offset=start).copy()
    if code == _ARROW:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch().column(0)
    if code == _NUMPY_1:
        dtype, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, np.dtype(dtype)).copy()
    return msgpack.ExtType(code, data)
