"""Real values, compared where hashes agree, and events that are forgotten by their times."""

from __future__ import annotations

import numpy as np

from latecomer.storage.twins.arrays import I64, TAIL, Array, Bools, words_in


def equal_words(left: Array, refs: I64, shift: int, right: Array, others: I64, other_shift: int) -> Bools:
    """Whether ``left[refs - shift]`` are ``right[others - other_shift]``, pair by pair; values of any one width."""
    same: Bools = left.take(refs - shift) == right.take(others - other_shift)
    return same


def equal_texts(
    offsets: I64, data: Array, refs: I64, shift: int, others_at: I64, other_data: Array, others: I64, other_shift: int
) -> Bools:
    """Whether the texts ``refs - shift`` are the others' ``others - other_shift``, pair by pair, eight bytes at a time.
    Text i is ``data[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]]``; behind the last one must be 8 bytes more.
    """
    at, other_at = refs - shift, others - other_shift
    starts, other_starts = offsets.take(at), others_at.take(other_at)
    lengths = offsets.take(at + 1) - starts
    equal: Bools = lengths == others_at.take(other_at + 1) - other_starts
    starts, other_starts = starts - offsets[0], other_starts - others_at[0]
    words, other_words = words_in(data), words_in(other_data)
    equal &= (words[starts] ^ other_words[other_starts]) & TAIL.take(lengths, mode="clip") == 0
    done = 8
    while True:
        rows = (equal & (lengths > done)).nonzero()[0]
        if not len(rows):
            return equal
        differ = words[starts.take(rows) + done] ^ other_words[other_starts.take(rows) + done]
        differ &= TAIL.take(lengths.take(rows) - done, mode="clip")
        equal[rows] = differ == 0
        done += 8


def reached(refs: I64, first: int, ts: I64, types: Array, floors: I64) -> Bools:
    """Which events, of those from number ``first`` on whose times and types these are, are there and not older than the
    floor of their type.
    """
    found: Bools = refs >= first
    at = refs[found] - first
    found[found] = ts.take(at) >= floors.take(types.take(at))
    return found


_PIECE = 4_096  # values that are examined together


def below(ts: I64, floor: int) -> int:
    """How many values there are before the first one that is not below ``floor``."""
    for begin in range(0, len(ts), _PIECE):
        kept = ts[begin : begin + _PIECE] >= floor
        if np.count_nonzero(kept):
            return begin + int(kept.argmax())
    return len(ts)
