"""Plain JSON straight into Arrow columns, by the compiled kernel: no object per message, none per value.

The rule: what is read here is what :func:`latecomer.connectors.kafka.formats.json_reader` would have read; whatever is
unusual is left to that, message by message. Without the kernel, or where a field may be of a type that the kernel does
not know, there is no such reader, and all messages go the other way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.connectors.kafka.formats import Int64, Path
from latecomer.storage import kernels

#: What a field may be, the number of its kind for the kernel, and the type of its column. Where it may be one of two
#: the messages with the rarer one are left to the other reader.
_KINDS: Mapping[Any, tuple[int, pa.DataType]] = {
    str: (0, pa.string()), str | Int64: (0, pa.string()), Int64: (1, pa.int64()), Int64 | float: (1, pa.int64()),
    float: (2, pa.float64()), bool: (3, pa.bool_()),
}  # fmt: skip


class PlainReader:
    """Reads fields of JSON objects; ``wanted``: path -> type, all of them known (:meth:`of`)."""

    def __init__(self, wanted: Mapping[Path, Any]) -> None:
        self._paths = list(wanted)
        self._names = tuple(path[0].encode() for path in wanted)
        self._kinds = bytes(_KINDS[kind][0] for kind in wanted.values())
        self._types = [_KINDS[kind][1] for kind in wanted.values()]

    @classmethod
    def of(cls, wanted: Mapping[Path, Any]) -> PlainReader | None:
        """A reader of these fields; None where there is none for them."""
        known = all(len(path) == 1 and kind in _KINDS for path, kind in wanted.items())
        return cls(wanted) if known and kernels.read_json is not None and len(wanted) <= 64 else None

    def read(self, values: Sequence[bytes | None]) -> tuple[dict[Path, pa.Array], npt.NDArray[np.bool_]]:
        """A column for each path, and which of the values were read: the others are null. Raises ValueError for more
        than 2 GiB at once."""
        assert kernels.read_json is not None
        read, columns = kernels.read_json(values, self._names, self._kinds)
        arrays = {}
        for path, kind, (valid, nulls, *data) in zip(self._paths, self._types, columns, strict=True):
            if pa.types.is_boolean(kind):
                data = [np.packbits(data[0], bitorder="little")]
            buffers = [pa.py_buffer(valid) if nulls else None, *map(pa.py_buffer, data)]
            arrays[path] = pa.Array.from_buffers(kind, len(read), buffers, null_count=nulls)
        return arrays, read
