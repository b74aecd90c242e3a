"""Stable 64-bit hashes of Arrow columns, computed columnwise.

Rule: the hash of a value depends on the value alone: not on the batch around it, the width of an integer column, the
encoding of a text column (plain, large, view, dictionary), the machine or the release. States written by one release
are read by the next, so a change here needs a new state format. Hashes only *propose* equal values: whoever joins on
them compares the real values.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
#: ANDed with a little-endian word, ``TAIL[n]`` keeps its first n bytes.
TAIL = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [2**64 - 1], np.uint64)
_PAD = np.zeros(8, np.uint8)
_NULL = np.uint64(0xA0761D6478BD642F)


def mix(x: U64) -> U64:
    """Scramble 64-bit words, one to one. O(n)."""
    x = x ^ (x >> _S30)
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


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


def combine(left: U64, right: U64) -> U64:
    """The hash of a pair from the hashes of its parts; order counts."""
    return mix(left * _GOLDEN + right)


def hash_contents(start: U64, columns: Sequence[pa.Array]) -> U64:
    """A hash over many columns that are only ever compared whole: a weighted sum of their words, scrambled once.

    ``start`` is where the sum begins, one word per row; a null counts as a word of its own.
    """
    total = start * _GOLDEN
    for number, column in enumerate(columns, 1):
        weight = np.uint64((number * 0xD1342543DE82EF95 | 1) & (2**64 - 1))
        if pa.types.is_string(column.type):
            words = _text_words(column)
        else:
            found = _words(column)
            words = hash_column(column) if found is None else found
        if column.null_count:
            words = np.where(column.is_valid().to_numpy(zero_copy_only=False), words, _NULL)
        total += words * weight
    return mix(total)


def hash_column(column: pa.Array, seed: int = 0) -> U64:
    """One hash per value of ``column``; 0 for a null."""
    salt = np.uint64((seed * 0x9E3779B97F4A7C15) & (2**64 - 1))
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        column = column.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
        kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    hashes = (
        _hash_bytes(column, salt) if pa.types.is_string(kind) or pa.types.is_binary(kind) else _hash_words(column, salt)
    )
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


_SALTS = np.array([[seed * 0x9E3779B97F4A7C15 & (2**64 - 1)] for seed in (1, 2)], np.uint64)


def hash_halves(column: pa.Array) -> U64:
    """:func:`hash_column` under the seeds 1 and 2: the two halves, (2, n), of a 128-bit hash."""
    words = None if column.null_count else _words(column)
    if words is None:
        return np.stack((hash_column(column, 1), hash_column(column, 2)))
    return mix((words ^ _SALTS) + _GOLDEN)


def _hash_words(column: pa.Array, salt: np.uint64) -> U64:
    words = _words(column)
    if words is not None:
        return mix((words ^ salt) + _GOLDEN)
    if pa.types.is_nested(column.type):
        return _hash_bytes(pa.array([repr(v) for v in column.to_pylist()], pa.string()), salt)
    return _hash_bytes(pc.cast(column, pa.string()), salt)


def _words(column: pa.Array) -> U64 | None:
    """Fixed-width values as 64-bit words, whatever under nulls; None for types that have no fixed width."""
    t, kind = pa.types, column.type
    if t.is_boolean(kind):
        return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False), np.uint64)
    if t.is_integer(kind):
        return _raw(column, np.dtype(kind.to_pandas_dtype())).astype(np.int64).view(np.uint64)
    if t.is_floating(kind):
        values = _raw(column, np.dtype(kind.to_pandas_dtype())).astype(np.float64)
        return (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    if t.is_temporal(kind) and kind.bit_width in (32, 64):
        return _raw(column, np.dtype(f"i{kind.bit_width // 8}")).astype(np.int64).view(np.uint64)
    return None


def _raw(column: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _hash_bytes(column: pa.Array, salt: np.uint64) -> U64:
    """Texts and byte strings, eight bytes at a time over all rows at once; the length is part of the hash."""
    if not len(column):
        return np.zeros(0, np.uint64)
    words, starts, lengths = _bytes_of(column)
    result = lengths.astype(np.uint64)
    result ^= salt
    result += _GOLDEN
    result = mix(result ^ _word(words, starts, lengths))
    return mix(_hash_rest(result, words, starts, lengths))


def first_words(column: pa.Array) -> tuple[U64, I64]:
    """The first eight bytes of each text, zeros behind its end, as a word; and its length in bytes."""
    if not len(column):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    words, starts, lengths = _bytes_of(column)
    return _word(words, starts, lengths), lengths


def _text_words(column: pa.Array) -> U64:
    """A word per text that tells texts apart as well as a hash does, but is not scrambled: for sums of many columns."""
    if not len(column):
        return np.zeros(0, np.uint64)
    words, starts, lengths = _bytes_of(column)
    result = _word(words, starts, lengths)
    result += lengths.view(np.uint64) * _M1
    return _hash_rest(result, words, starts, lengths)


def _bytes_of(column: pa.Array) -> tuple[U64, I64, I64]:
    """The word that begins at each byte of the column's data (zeros behind its end), and where each value starts in it
    and how long it is.
    """
    n = len(column)
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, n + 1, 4 * column.offset).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, np.uint8, last - first, first) if last > first else _PAD[:0]
    data = np.concatenate((data, _PAD))
    words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    return words, offsets[:-1] - first, offsets[1:] - offsets[:-1]


def _word(words: U64, starts: I64, lengths: I64) -> U64:
    return words[starts] & TAIL.take(lengths, mode="clip")


def _hash_rest(result: U64, words: U64, starts: I64, lengths: I64) -> U64:
    """Mix in what lies behind the first eight bytes."""
    for done in range(8, int(lengths.max()), 8):
        left = lengths - done
        rows = (left > 0).nonzero()[0]
        word = _word(words, starts.take(rows) + done, left.take(rows))
        result[rows] = mix(result.take(rows) * _GOLDEN ^ word)
    return result
