"""Packing: state as bytes. msgpack, with NumPy arrays and Arrow arrays as extensions; compressed and checked.

The layout is ``magic, format version, crc32 of all else, codec, length, compressed msgpack``. Parts of a state are
read again and again, so reading is what has to be fast (``docs/state.md`` has the figures):

* Whole numbers that lie close together are kept as what they have above the least one, in as few bytes as that takes.
* The rest is compressed by LZ4, where a sample says that it pays: hashes do not shrink.

Formats 1 and 2, which earlier releases wrote, are read too. A state that is damaged, or comes from a newer format,
fails with a sentence that says so.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from latecomer.errors import StateError

_MAGIC = b"LATECOMER"
_FORMAT = 3
_NUMPY_1, _ARROW, _NUMPY, _NARROW, _COLUMN = 1, 2, 3, 4, 5
_CODECS = ("zstd", "lz4_raw", None)
_UNCHECKED = 0x80  # of the codec: the checksum is not filled in, since whoever keeps the bytes checks them
#: An LZ4 block holds less than 2 GiB; what is larger is compressed otherwise.
_LZ4_LIMIT = 2_000_000_000
_SAMPLES, _SAMPLE = 4, 4_096  # pieces of so many bytes tell whether
_PAYS = 0.75  # of the size, or less, is left by compression: reading it takes three times as long
_BROKEN = (ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException, msgpack.UnpackException)
_FEW = 64  # values; below this a narrow array saves nothing


def pack(state: Any, *, checked: bool = True) -> bytes:
    """Plain data (dicts, lists, numbers, texts, NumPy and Arrow arrays) as bytes.

    ``checked=False``: without a checksum, for shelves, which have their own.

    >>> unpack(pack({"codes": np.arange(3), "names": ["a", None]}))
    {'codes': array([0, 1, 2]), 'names': ['a', None]}
    """
    return seal(freeze(state), checked=checked)


def freeze(state: Any) -> bytes:
    """The first half of :func:`pack`: what the state is now, whatever becomes of its arrays."""
    frozen: bytes = msgpack.packb(state, default=_encode, use_bin_type=True, strict_types=False)
    return frozen


def seal(raw: bytes, *, checked: bool = True) -> bytes:
    """The second half of :func:`pack`; another thread may do it, since it needs the interpreter only for moments."""
    codec = _codec(raw)
    compressed: bytes = pa.compress(raw, _CODECS[codec], asbytes=True) if _CODECS[codec] else raw
    version = _FORMAT.to_bytes(2, "little")
    head = bytes([codec if checked else codec | _UNCHECKED]) + len(raw).to_bytes(8, "little")
    check = zlib.crc32(compressed, zlib.crc32(version + head)) if checked else 0
    return b"".join([_MAGIC, version, check.to_bytes(4, "little"), head, compressed])


def _codec(raw: bytes) -> int:
    """Which codec suits these bytes: a number in :data:`_CODECS`."""
    if len(raw) >= _LZ4_LIMIT:
        return 0
    step = max(len(raw) // _SAMPLES, 1)
    sample = b"".join([raw[at : at + _SAMPLE] for at in range(0, len(raw), max(step, _SAMPLE))])
    return 1 if len(pa.compress(sample, "lz4_raw", asbytes=True)) <= _PAYS * len(sample) else 2


def unpack(data: bytes) -> Any:
    """What :func:`pack` was given; its NumPy arrays may be changed.

    Raises StateError when the bytes are damaged or of another format.
    """
    head = len(_MAGIC)
    if data[:head] != _MAGIC:
        raise StateError("these bytes are not a Latecomer state: they do not begin with its mark")
    version = int.from_bytes(data[head : head + 2], "little")
    if version not in (1, 2, _FORMAT):
        raise StateError(
            f"this state has format {version}, and this release reads the formats 1, 2 and {_FORMAT}: "
            "use the release that wrote it"
        )
    body = memoryview(data)[head + 6 :]
    check = int.from_bytes(data[head + 2 : head + 6], "little")
    unchecked = version > 2 and not check and len(body) > 8 and body[0] & _UNCHECKED
    begun = zlib.crc32(data[head : head + 2]) if version > 2 else 0
    if len(body) < 8 or not (unchecked or zlib.crc32(body, begun) == check):
        raise StateError("this state is damaged: its checksum does not match; restore an older one")
    codec = 0
    if version > 1:
        codec, body = body[0] & ~_UNCHECKED, body[1:]
    raw: Any = body[8:]
    try:
        if _CODECS[codec]:
            raw = memoryview(pa.decompress(raw, int.from_bytes(body[:8], "little"), _CODECS[codec]))
        return msgpack.unpackb(raw, ext_hook=_decode, strict_map_key=False, use_list=True)
    except _BROKEN as problem:  # only where nothing was checked
        raise StateError(f"this state is damaged ({problem}): restore an older one") from None


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        kind = value.dtype.str.encode()
        if (narrow := _narrow(value)) is not None:
            return msgpack.ExtType(_NARROW, b"".join([bytes([len(kind)]), kind, narrow]))
        data = np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
        return msgpack.ExtType(_NUMPY, b"".join([bytes([len(kind)]), kind, data]))
    if isinstance(value, pa.Array):
        if (words := _words(value)) is not None and (narrow := _narrow(words)) is not None:
            schema = pa.schema([("", value.type)]).serialize().to_pybytes()
            return msgpack.ExtType(_COLUMN, b"".join([len(schema).to_bytes(4, "little"), schema, narrow]))
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
    if code == _NARROW:
        start = 1 + data[0]
        return _widened(data[start:], np.dtype(data[1:start].decode()))
    if code == _COLUMN:
        end = 4 + int.from_bytes(data[:4], "little")
        kind = pa.ipc.read_schema(pa.py_buffer(data[4:end])).field(0).type
        words = _widened(data[end:], np.dtype(f"i{kind.bit_width // 8}"))
        return pa.Array.from_buffers(kind, len(words), [None, pa.py_buffer(words)])
    if code == _ARROW:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch().column(0)
    if code == _NUMPY_1:
        dtype, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, np.dtype(dtype)).copy()
    return msgpack.ExtType(code, data)


def _words(column: pa.Array) -> Any:
    """The whole numbers that a column consists of, signed; None where it does not, or has nulls."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) or kind.bit_width not in (32, 64):
        return None
    if column.null_count or not len(column):
        return None
    dtype = np.dtype(f"i{kind.bit_width // 8}")
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _narrow(values: Any) -> bytes | None:
    """Whole numbers of 4 or 8 bytes as width, least one, and what each has above it; None where that is not shorter."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or values.size < _FEW:
        return None
    least = values.min()
    span = int(values.max()) - int(least)
    width = next(width for width in (1, 2, 4, 8) if span < 1 << (8 * width))
    if width >= values.dtype.itemsize:
        return None
    above = (values - least).astype(f"<u{width}")
    return b"".join([bytes([width]), int(least).to_bytes(9, "little", signed=True), above.data])


def _widened(data: bytes, dtype: np.dtype[Any]) -> Any:
    """What :func:`_narrow` was given."""
    values = np.frombuffer(data, f"<u{data[0]}", offset=10).astype(dtype)
    values += dtype.type(int.from_bytes(data[1:10], "little", signed=True))
    return values
