"""Blob files: many blobs in one file, each behind its length and checksum.

::

    file     mark (16 bytes, with the format's number), then blobs
    blob     length (8 bytes), checksum of length and content (4), mark (4), content

Numbers are little-endian, the checksum is CRC-32. A slot names the place where a blob begins and the length of its
content, so one read fetches it and its checksum; a file can also be walked from its beginning without any slot.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

from latecomer.storage.shelf import Slot

_FORMAT = 1
HEAD = b"LATECOMER BLOBS" + bytes([_FORMAT])
_BLOB = struct.Struct("<QI4s")
_MARK = b"blob"


def layout(name: str, blobs: Sequence[bytes]) -> tuple[list[Slot], int, Iterator[bytes]]:
    """How ``blobs`` lie in the file ``name``: their slots, the file's size, and what to write."""
    slots: list[Slot] = []
    at = len(HEAD)
    for blob in blobs:
        slots.append((name, at, len(blob)))
        at += _BLOB.size + len(blob)
    return slots, at, _chunks(blobs)


def extent(slot: Slot) -> tuple[int, int]:
    """Where in its file a slot's blob lies, checksum and all: offset and length."""
    return slot[1], _BLOB.size + slot[2]


def content(data: bytes, slot: Slot) -> bytes:
    """The blob in ``data``, which was read at the :func:`extent` of ``slot``. Raises ValueError unless it is whole."""
    if len(data) < _BLOB.size + slot[2]:
        raise ValueError(
            f"is truncated: it lacks {_BLOB.size + slot[2] - len(data)} bytes of the blob at byte {slot[1]}"
        )
    length, check, mark = _BLOB.unpack_from(data)
    blob = data[_BLOB.size :]
    if mark != _MARK or length != slot[2] or check != _checksum(blob):
        raise ValueError(f"is damaged: the blob at byte {slot[1]} does not match its checksum")
    return blob


def flaws(read: Callable[[int, int], bytes], size: int) -> Iterator[str | None]:
    """Check a whole file of ``size`` bytes blob by blob: for each what is wrong with it, None where nothing is.

    ``read(offset, length)`` gives the file's bytes. Where a blob's end is not known the walk ends.
    """
    head = read(0, len(HEAD))
    if head != HEAD:
        yield f"is no file of blobs in format {_FORMAT}: it begins with {head!r}"
        return
    at = len(HEAD)
    while at < size:
        head = read(at, _BLOB.size)
        length, _, mark = _BLOB.unpack(head) if len(head) == _BLOB.size else (size, 0, b"")
        if mark != _MARK or at + _BLOB.size + length > size:
            yield f"is damaged from byte {at} on: no blob begins there"
            return
        slot = ("", at, length)
        try:
            content(read(*extent(slot)), slot)
            yield None
        except ValueError as error:
            yield str(error)
        at += _BLOB.size + length


def _chunks(blobs: Sequence[bytes]) -> Iterator[bytes]:
    yield HEAD
    for blob in blobs:
        yield _BLOB.pack(len(blob), _checksum(blob), _MARK)
        yield blob


def _checksum(blob: bytes) -> int:
    return zlib.crc32(blob, zlib.crc32(len(blob).to_bytes(8, "little")))
