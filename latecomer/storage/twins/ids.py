"""The table of the id index: places by hash, marks to tell hashes apart, and the references that are entered."""

from __future__ import annotations

import numpy as np

from latecomer.storage.twins.arrays import I64, U64, Array, Bools

_S32 = np.uint64(32)
_NONE = np.zeros(0, np.int64)


def marks_of(hashes: U64) -> Array:
    """The high half of each hash, 32 bits; 0 means a free place, so 1 stands for it."""
    marks: Array = np.maximum(hashes >> _S32, np.uint64(1)).astype(np.uint32)
    return marks


def put(
    marks: Array,
    refs: Array,
    new_marks: Array,
    new_refs: Array,
    first: int,
    done: int,
    hashes: U64,
    own: I64,
    unique: bool,
) -> tuple[I64, int]:
    """Enter references under the marks of ids' hashes into a table of ``marks`` (32 bits, 0 where free) and ``refs``
    (64 bits, or the low 32 of them): each at the first free place from its home on. ``unique``: only if no place before
    has its mark; of rows with one mark the first. Marks that are :func:`gone_over` are entered into the new table.

    Returns the rows not entered, ascending, and how many were. There must be room for all. Expected O(1) per row.
    """
    wanted = marks_of(hashes)
    if not done:
        return _put(marks, refs, wanted, own, unique)
    over = gone_over(wanted, len(marks), first, done)
    here, there = (~over).nonzero()[0], over.nonzero()[0]
    left, count = _put(marks, refs, wanted.take(here), own.take(here), unique)
    more, new_count = _put(new_marks, new_refs, wanted.take(there), own.take(there), unique)
    return np.sort(np.concatenate((here.take(left), there.take(more)))), count + new_count


def gone_over(marks: Array, size: int, first: int, done: int) -> Bools:
    """Which marks have their home among the ``done`` ones from ``first`` on, around a table of ``size`` places."""
    off = homes(marks, size) - first
    off[off < 0] += size
    over: Bools = off < done
    return over


def _put(marks: Array, refs: Array, wanted: Array, own: I64, unique: bool) -> tuple[I64, int]:
    count = 0
    open_rows = [_NONE]
    at = homes(wanted, len(marks))
    own = own.astype(refs.dtype)
    rows: I64 | None = None  # the rows still under way; None: all
    while len(at):
        free = marks.take(at) == 0
        here = free.nonzero()[0]
        places, mine = at.take(here), own.take(here)
        # Several rows may want one place: written backwards, so that the first row's entry is the one that stays.
        marks[places[::-1]] = wanted.take(here)[::-1]
        refs[places[::-1]] = mine[::-1]
        lost = (refs.take(places) != mine).nonzero()[0]
        count += len(here) - len(lost)
        if len(lost):
            free[here.take(lost)] = False
        on = (~free).nonzero()[0]
        rows = on if rows is None else rows.take(on)
        wanted, own, at = wanted.take(on), own.take(on), at.take(on)
        if unique and len(on):
            taken = marks.take(at) == wanted
            if np.count_nonzero(taken):
                open_rows.append(rows[taken])
                on = (~taken).nonzero()[0]
                rows, wanted, own, at = rows.take(on), wanted.take(on), own.take(on), at.take(on)
        at += 1
        at[at == len(marks)] = 0
    return (np.sort(np.concatenate(open_rows)) if len(open_rows) > 1 else _NONE), count


def take_out(marks: Array, refs: Array, begin: int, end: int, base: int) -> tuple[U64, I64]:
    """The entries at the places from ``begin`` to ``end`` of a table, which are free then: hashes, of which only the
    marks are known, and references.
    """
    at = marks[begin:end].nonzero()[0]
    at += begin
    found = marks.take(at).astype(np.uint64) << _S32, whole(refs.take(at), base)
    marks[begin:end] = 0
    return found


def whole(refs: Array, base: int) -> I64:
    """References of 64 bits, or those of which only the low 32 bits are told and that are at least ``base``."""
    if refs.dtype == np.int64:
        return refs
    refs = (refs - np.uint32(base % (1 << 32))).astype(np.int64)
    refs += base
    return refs


def homes(marks: Array, size: int) -> I64:
    """Where in a table of ``size`` places to look first. The order of homes is that of marks, whatever the size."""
    places = marks.astype(np.uint64)
    places *= np.uint64(size)
    places >>= np.uint64(32)
    return places.view(np.int64)
