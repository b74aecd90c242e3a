"""Rows for databases that take Python values: columns of a table as lists, in types that every SQL can hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def values(column: pa.ChunkedArray) -> list[Any]:
    """The column's values; texts within lists and structs without the character 0, too.

    >>> values(pa.chunked_array([[["a", "b\\x00"], None]]))
    [['a', 'b\\ufffd'], None]
    """
    found = column.to_pylist()
    return [_clean(value) for value in found] if pa.types.is_nested(column.type) else found


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd")
    if isinstance(value, list):
        return [_clean(v) for v in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value
