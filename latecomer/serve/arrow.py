"""Arrow streams from strangers: read only what is whole, valid and no larger than it looks.

An Arrow stream says itself where its buffers begin and end, and may be compressed; so what arrives is checked before
anything looks at the values, and a compressed stream, of which a megabyte could become many gigabytes, is refused.
"""

from __future__ import annotations

import struct

import pyarrow as pa

#: Of the message's and the record batch's flatbuffer: the slots of what is looked for.
_HEADER, _COMPRESSION = 2, 3


def table_of(body: bytes) -> pa.Table:
    """The table that an Arrow IPC stream holds; raises ValueError for what is none."""
    try:
        source = pa.py_buffer(body)
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type == "record batch" and _compressed(bytes(message.metadata)):
                raise ValueError("it is compressed: write it with compression=None")
        with pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, IndexError, EOFError, MemoryError, OverflowError) as problem:
        raise ValueError(str(problem).split("\n")[0][:300]) from problem
    names = table.column_names
    if len(set(names)) < len(names):
        raise ValueError("two of its columns have one name")
    return table


def _compressed(metadata: bytes) -> bool:
    """Whether the record batch of a message is compressed, by the tables of its flatbuffer."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    at = _slot(metadata, root, _HEADER)
    if at is None:
        return False
    (offset,) = struct.unpack_from("<I", metadata, at)
    return _slot(metadata, at + offset, _COMPRESSION) is not None


def _slot(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field is; None where it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + offset if offset else None
