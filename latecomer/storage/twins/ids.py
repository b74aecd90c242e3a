"""The table of the id index: places by hash, and in each a word: a mark to tell hashes apart above the low half of the
reference that is entered. The high half lies apart (``highs``), if at all.
"""

from __future__ import annotations

import numpy as np

from latecomer.storage.twins.arrays import I64, U64, Array, Bools

_S32 = np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)
_NONE = np.zeros(0, np.int64)


def marks_of(hashes: U64) -> Array:
    """The high half of each hash, 32 bits; 0 means a free place, so 1 stands for it."""
    marks: Array = np.maximum(hashes >> _S32, np.uint64(1)).astype(np.uint32)
    return marks


def words_of(marks: Array, refs: I64) -> U64:
    """Entries of these marks with the low halves of these references; no word of a mark is 0, which is a free place."""
    words: U64 = (marks.astype(np.uint64) << _S32) | (refs.view(np.uint64) & _LOW)
    return words


def highs_of(refs: I64) -> Array:
    """The high halves of references."""
    highs: Array = (refs.view(np.uint64) >> _S32).astype(np.uint32)
    return highs


def put(
    words: U64,
    highs: Array,
    new_words: U64,
    new_highs: Array,
    first: int,
    done: int,
    hashes: U64,
    own: I64,
    unique: bool,
) -> tuple[I64, int]:
    """Enter references under the marks of ids' hashes into a table of ``words`` and ``highs`` (32 bits; empty: none):
    each at the first free place from its home on. ``unique``: only if no place before has its mark; of rows with one
    mark the first. Marks that are :func:`gone_over` are entered into the new table.

    Returns the rows not entered, ascending, and how many were. There must be room for all. Expected O(1) per row.
    """
    wanted = marks_of(hashes)
    if not done:
        return _put(words, highs, wanted, own, unique)
    over = gone_over(wanted, len(words), first, done)
    here, there = (~over).nonzero()[0], over.nonzero()[0]
    left, count = _put(words, highs, wanted.take(here), own.take(here), unique)
    more, new_count = _put(new_words, new_highs, wanted.take(there), own.take(there), unique)
    return np.sort(np.concatenate((here.take(left), there.take(more)))), count + new_count


def gone_over(marks: Array, size: int, first: int, done: int) -> Bools:
    """Which marks have their home among the ``done`` ones from ``first`` on, around a table of ``size`` places."""
    off = homes(marks, size) - first
    off[off < 0] += size
    over: Bools = off < done
    return over


def _put(words: U64, highs: Array, wanted: Array, own: I64, unique: bool) -> tuple[I64, int]:
    count = 0
    open_rows = [_NONE]
    at = homes(wanted, len(words))
    entries, tops = words_of(wanted, own), highs_of(own)
    rows: I64 | None = None  # the rows still under way; None: all
    while len(at):
        free = words.take(at) == 0
        here = free.nonzero()[0]
        places, mine = at.take(here), entries.take(here)
        # Several rows may want one place: written backwards, so that the first row's entry is the one that stays.
        words[places[::-1]] = mine[::-1]
        differ = words.take(places) != mine
        if len(highs):
            high = tops.take(here)
            highs[places[::-1]] = high[::-1]
            differ |= highs.take(places) != high
        lost = differ.nonzero()[0]
        count += len(here) - len(lost)
        if len(lost):
            free[here.take(lost)] = False
        on = (~free).nonzero()[0]
        rows = on if rows is None else rows.take(on)
        entries, tops, at = entries.take(on), tops.take(on), at.take(on)
        if unique and len(on):
            taken = words.take(at) ^ entries <= _LOW  # the marks are the same
            if np.count_nonzero(taken):
                open_rows.append(rows[taken])
                on = (~taken).nonzero()[0]
                rows, entries, tops, at = rows.take(on), entries.take(on), tops.take(on), at.take(on)
        at += 1
        at[at == len(words)] = 0
    return (np.sort(np.concatenate(open_rows)) if len(open_rows) > 1 else _NONE), count


def take_out(words: U64, highs: Array, begin: int, end: int, base: int) -> tuple[U64, I64]:
    """The entries at the places from ``begin`` to ``end`` of a table, which are free then: hashes, of which only the
    marks are known, and references.
    """
    at = words[begin:end].nonzero()[0]
    at += begin
    found = words.take(at) & ~_LOW, refs_at(words, highs, at, base)
    words[begin:end] = 0
    return found


def carry(
    words: U64,
    highs: Array,
    new_words: U64,
    new_highs: Array,
    first: int,
    done: int,
    begin: int,
    end: int,
    base: int,
    least: int,
) -> tuple[int, int, int]:
    """:func:`take_out` the entries at the places from ``begin`` to ``end``, and :func:`put` back those whose references
    are at least ``least``; how many were taken out and put back, and the least reference of these (where there are
    none, as large as can be).
    """
    hashes, refs = take_out(words, highs, begin, end, base)
    kept = (refs >= least).nonzero()[0]
    own = refs.take(kept)
    put(words, highs, new_words, new_highs, first, done, hashes.take(kept), own, unique=False)
    return len(refs), len(own), int(np.minimum.reduce(own, initial=2**63 - 1))


def refs_at(words: U64, highs: Array, at: I64, base: int) -> I64:
    """The references at these places; where there are no high halves, all are at least ``base``."""
    low = words.take(at)
    if len(highs):
        return words_of(highs.take(at), low.view(np.int64)).view(np.int64)
    refs = (low.astype(np.uint32) - np.uint32(base % (1 << 32))).astype(np.int64)
    refs += base
    return refs


def homes(marks: Array, size: int) -> I64:
    """Where in a table of ``size`` places to look first. The order of homes is that of marks, whatever the size."""
    places = marks.astype(np.uint64)
    places *= np.uint64(size)
    places >>= np.uint64(32)
    return places.view(np.int64)
