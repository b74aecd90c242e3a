"""Stable 64-bit hashes of Arrow columns, computed columnwise.

Rule: the hash of a value depends on the value alone: not on the batch around it, the width of an integer column, the
encoding of a text column (plain, large, view, dictionary), the machine or the release. States written by one release
are read by the next, so a change here needs a new state format. Hashes only *propose* equal values: whoever joins on
them compares the real values.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.storage import kernels

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GOLDEN_INT = 0x9E3779B97F4A7C15
_GOLDEN = np.uint64(_GOLDEN_INT)
_WORD = 2**64 - 1
_NULL = np.uint64(0xA0761D6478BD642F)


def mix(x: U64) -> U64:
    """Scramble 64-bit words, one to one."""
    return kernels.scramble(x - _GOLDEN, 0)


combine = kernels.combine


def hash_columns(columns: Sequence[pa.Array], seed: int = 0) -> U64:
    """One hash per row over all ``columns`` (each of length n); there must be at least one.

    Every null hashes to 0; callers that join leave rows with a null key out.

    >>> import pyarrow as pa
    >>> bool(hash_columns([pa.array([7], pa.int8())])[0] == hash_columns([pa.array([7])])[0])
    True
    """
    result = hash_column(columns[0], seed)
    for column in columns[1:]:
        result = combine(result, hash_column(column, seed))
    return result


def hash_contents(start: U64, columns: Sequence[pa.Array]) -> U64:
    """A hash over many columns that are only ever compared whole: a weighted sum of their words, scrambled once.

    ``start`` is where the sum begins, one word per row; a null counts as a word of its own.
    """
    total = start * _GOLDEN
    for number, column in enumerate(columns, 1):
        weight = np.uint64((number * 0xD1342543DE82EF95 | 1) & _WORD)
        if column.type.id == _TEXT:
            words = kernels.text_words(*_texts(column))
        else:
            found = _words(column)
            words = hash_column(column) if found is None else found
        if column.null_count:
            words = np.where(column.is_valid().to_numpy(zero_copy_only=False), words, _NULL)
        total += words * weight
    return mix(total)


def hash_column(column: pa.Array, seed: int = 0) -> U64:
    """One hash per value of ``column``; 0 for a null."""
    salt = seed * _GOLDEN_INT & _WORD
    kind = column.type
    if kind.id not in _DTYPES and kind.id != _TEXT:
        if pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            column = column.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
            kind = column.type
        if pa.types.is_null(kind):
            return np.zeros(len(column), np.uint64)
    hashes = _hash_bytes(column, salt) if kind.id in (_TEXT, _BINARY) else _hash_words(column, salt)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def hash_halves(column: pa.Array) -> tuple[U64, U64]:
    """:func:`hash_column` under the seeds 1 and 2: the two halves of a 128-bit hash."""
    return hash_column(column, 1), hash_column(column, 2)


def _hash_words(column: pa.Array, salt: int) -> U64:
    words = _words(column)
    if words is not None:
        return kernels.scramble(words, salt)
    return _hash_bytes(_texts_of(column), salt)


def _texts_of(column: pa.Array) -> pa.Array:
    """Values that are no words as texts or byte strings; those that Arrow has no text for (nested ones, intervals) as
    Python's.
    """
    if pa.types.is_fixed_size_binary(column.type):
        return column.cast(pa.binary())
    if not pa.types.is_nested(column.type):
        with suppress(pa.ArrowNotImplementedError):
            return pc.cast(column, pa.string())
    return pa.array([repr(v) for v in column.to_pylist()], pa.string())


def _words(column: pa.Array) -> U64 | None:
    """Fixed-width values as 64-bit words, whatever under nulls; None for types that have no fixed width."""
    kind = column.type
    dtype = _DTYPES.get(kind.id)
    if dtype is None:
        if not pa.types.is_boolean(kind):
            return None
        return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False), np.uint64)
    values = _raw(column, dtype)
    if dtype.kind == "f":
        return (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return values.astype(np.int64, copy=False).view(np.uint64)


_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_TIMES = [pa.timestamp("s"), pa.duration("s"), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")]
_DTYPES: dict[int, np.dtype[Any]] = {
    **{t.id: np.dtype(t.to_pandas_dtype()) for t in (*_INTEGERS, pa.float16(), pa.float32(), pa.float64())},
    **{t.id: np.dtype(f"i{t.bit_width // 8}") for t in _TIMES},
}
_TEXT, _BINARY = pa.string().id, pa.binary().id


def _raw(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _hash_bytes(column: pa.Array, salt: int) -> U64:
    """Texts and byte strings."""
    return kernels.hash_texts(*_texts(column), salt)


def first_words(column: pa.Array) -> tuple[U64, I64]:
    """The first eight bytes of each text, zeros behind its end, as a word; and its length in bytes."""
    return kernels.first_words(*_texts(column))


def short_numbers(column: pa.Array, known: tuple[U64, I64], other: int) -> I64:
    """For each text which of the ``known`` short ones (by :func:`first_words`) it is, ``other`` where it is none."""
    return kernels.text_numbers(*_texts(column), *known, other)


def _texts(column: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Where each text begins and ends in the column's bytes, and these."""
    n = len(column)
    if not n:
        return _NO_TEXTS
    _, offsets, data = column.buffers()
    return np.frombuffer(offsets, np.int32, n + 1, 4 * column.offset), _BYTES if data is None else np.frombuffer(
        data, np.uint8
    )


_BYTES = np.zeros(0, np.uint8)
_NO_TEXTS = np.zeros(1, np.int32), _BYTES
