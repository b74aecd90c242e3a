"""Runs of a store: sorting and merging them, and finding events by key and time range.

A *run* is a tuple (slice, codes, refs): events of one slice of ``2**bits`` units of time, sorted by code, which is the
key's hash with the time within the slice in the low ``bits``. Lists of runs ascend by slice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from latecomer.storage.twins.arrays import I64, U64
from latecomer.storage.twins.intake import pick

Run = tuple[int, U64, I64]

_NONE = np.zeros(0, np.int64)


#: Events by slice and code, equal ones as they came: codes, times, references, and keys as codes have them; where each
#: slice begins and ends, as (slice, begin, end); and the latest time.
Arranged = tuple[U64, I64, I64, U64, Sequence[tuple[int, int, int]], int]


def arrange(hashes: U64, ts: I64, refs: I64, bits: int) -> Arranged:
    """Events in any order, at least one, as :data:`Arranged`."""
    mask = (1 << bits) - 1
    codes = (hashes & np.uint64(~mask & (2**63 - 1))) | (ts & mask).view(np.uint64)
    latest = int(np.maximum.reduce(ts))
    first, last = int(np.minimum.reduce(ts)) >> bits, latest >> bits
    if first == last:
        order = codes.argsort(kind="stable")
        parts: Sequence[tuple[int, int, int]] = ((first, 0, len(ts)),)
    else:
        slices = ts >> bits
        order = np.lexsort((codes, slices))
        slices = slices.take(order)
        edges = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), len(slices)]
        parts = [(int(slices[begin]), begin, end) for begin, end in itertools.pairwise(edges)]
    codes = codes.take(order)
    return codes, ts.take(order), refs.take(order), codes & np.uint64(~mask & (2**64 - 1)), parts, latest


def arrange_each(
    types: I64, ts: I64, first: int, bits: int, wanted: tuple[tuple[int, U64 | None], ...]
) -> list[Arranged | None]:
    """For each pair of a type and the rows' hashes (None: all 0) the rows of the type, arranged; None where there are
    none. Rows whose type is not negative have the references from ``first`` on.
    """
    refs = np.cumsum(types >= 0) - 1 + first
    found: list[Arranged | None] = []
    for number, hashes in wanted:
        own, own_ts, own_refs = pick(types, number, None, hashes, ts, refs)
        found.append(arrange(own, own_ts, own_refs, bits) if len(own) else None)
    return found


def merge(codes: U64, refs: I64, more: U64, more_refs: I64) -> tuple[U64, I64]:
    """Two sorted runs as one; of equal codes those of the first come first."""
    if len(more) * 8 <= len(codes):  # few into many: find their places, copy the rest
        at = codes.searchsorted(more, "right") + np.arange(len(more))
        free = np.ones(len(codes) + len(more), bool)
        free[at] = False
        others = free.nonzero()[0]
        whole, whole_refs = np.empty(len(free), np.uint64), np.empty(len(free), np.int64)
        whole[at], whole_refs[at] = more, more_refs
        whole[others], whole_refs[others] = codes, refs
        return whole, whole_refs
    whole = np.concatenate((codes, more))
    order = whole.argsort(kind="stable")  # timsort: linear on two sorted stretches
    return whole.take(order), np.concatenate((refs, more_refs)).take(order)


def merge_on(
    into: U64,
    into_refs: I64,
    made: int,
    codes: U64,
    refs: I64,
    begin: int,
    more: U64,
    more_refs: I64,
    more_begin: int,
    most: int,
    mask: int,
    floor: int,
) -> tuple[int, int, int]:
    """Go on with merging two sorted runs, by up to ``most`` events of each, without what is before ``floor`` within its
    slice (``mask``). ``into`` and ``into_refs``, which have room for all, are written to, from ``made`` on.

    Returns how many are there, and up to where the two have been gone through.
    """
    one, other = codes[begin : begin + most], more[more_begin : more_begin + most]
    n, m = len(one), len(other)
    if n and m:  # of a run that goes on, up to a code behind which nothing of it can come before what is taken here
        if one[-1] <= other[-1]:
            m = int(other.searchsorted(one[-1])) if begin + n < len(codes) else m
        elif more_begin + m < len(more):
            n = int(one.searchsorted(other[-1], "right"))
    end, more_end = begin + n, more_begin + m
    whole, whole_refs = one[:n], refs[begin:end]
    if m:
        whole, whole_refs = merge(whole, whole_refs, other[:m], more_refs[more_begin:more_end])
    if floor:
        at = ((whole & np.uint64(mask)) >= np.uint64(floor)).nonzero()[0]
        whole, whole_refs = whole.take(at), whole_refs.take(at)
    into[made : made + len(whole)], into_refs[made : made + len(whole)] = whole, whole_refs
    return made + len(whole), end, more_end


def join(runs: list[Run], bits: int, keys: U64, lo: I64, hi: I64, most: int) -> tuple[I64, I64, I64] | int:
    """All events with the same key as a row and ``lo <= time <= hi``: rows, references and times of the pairs, by row;
    the number of pairs, if they are more than ``most``. O(m log n) per run.
    """
    found = list(stretches(runs, bits, keys, lo, hi))
    total = sum(int(np.add.reduce(count)) for *_, count in found)
    if total > most:
        return total
    parts = []
    mask = np.uint64((1 << bits) - 1)
    for (number, codes, refs), first, count in found:
        owner = count.nonzero()[0]
        hits, at = count.take(owner), first.take(owner)
        total = int(np.add.reduce(hits))
        if total > len(owner):
            at = (at - hits.cumsum() + hits).repeat(hits) + np.arange(total)
            owner = owner.repeat(hits)
        ts = (codes.take(at) & mask).view(np.int64)
        ts += number << bits
        parts.append((owner, refs.take(at), ts))
    if not parts:
        return _NONE, _NONE, _NONE
    if len(parts) == 1:
        return parts[0]
    owner, refs, ts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = owner.argsort(kind="stable")
    return owner.take(order), refs.take(order), ts.take(order)


def stretches(runs: list[Run], bits: int, keys: U64, lo: I64, hi: I64) -> Iterator[tuple[Run, I64, I64]]:
    """For the runs that hold anything for the rows: the run, where each row's stretch begins and how long it is."""
    slices = _by_slice(runs)
    for number, rows in meeting(list(slices), bits, lo, hi, newest_first=True):
        some_keys, some_lo, some_hi = (keys, lo, hi) if rows is None else (keys[rows], lo[rows], hi[rows])
        wanted = np.empty((len(some_lo), 2), np.uint64)  # where each row's stretch begins, and where the next would
        wanted[:, 0], wanted[:, 1] = codes_in(number, bits, some_keys, some_lo, some_hi)
        for run in slices[number]:
            found = run[1].searchsorted(wanted)
            first = found[:, 0]
            count = found[:, 1] - first
            if not np.count_nonzero(count):
                continue
            if rows is not None:
                all_first, all_count = np.zeros(len(lo), np.int64), np.zeros(len(lo), np.int64)
                all_first[rows], all_count[rows] = first, count
                first, count = all_first, all_count
            yield run, first, count


def nearest(runs: list[Run], bits: int, keys: U64, lo: I64, hi: I64, backward: bool) -> tuple[I64, I64]:
    """For each row the last event (``backward``; else the first) with the same key and ``lo <= time <= hi``: its time
    and reference, -1 where there is none. O(m log n) per run.
    """
    ts, refs = np.zeros(len(lo), np.int64), np.full(len(lo), -1)
    mask = np.uint64((1 << bits) - 1)
    slices = _by_slice(runs)
    done_any = False
    for number, rows in meeting(list(slices), bits, lo, hi, newest_first=backward):  # the nearest slice first
        if rows is None and not done_any:
            some_keys, some_lo, some_hi = keys, lo, hi
        else:
            rows = (refs < 0).nonzero()[0] if rows is None else rows[refs[rows] < 0]  # those not done yet
            some_keys, some_lo, some_hi = keys[rows], lo[rows], hi[rows]
        begin, after = codes_in(number, bits, some_keys, some_lo, some_hi)
        found_refs, found_ts = np.full(len(some_lo), -1), np.zeros(len(some_lo), np.int64)
        for _, own, own_refs in slices[number]:  # each narrows the stretch to what is nearer than its own find
            found = own.searchsorted(after) - 1 if backward else own.searchsorted(begin)
            codes = own.take(found, mode="clip")
            at = ((codes >= begin) & (codes < after)).nonzero()[0]
            if len(at):
                here = codes.take(at)
                (begin if backward else after)[at] = here
                found_refs[at] = own_refs.take(found.take(at))
                found_ts[at] = (here & mask).view(np.int64) + (number << bits)
        done = (found_refs >= 0).nonzero()[0]
        done_any = done_any or len(done) > 0
        rows = done if rows is None else rows.take(done)
        refs[rows], ts[rows] = found_refs.take(done), found_ts.take(done)
    return ts, refs


def meeting(slices: Sequence[int], bits: int, lo: I64, hi: I64, newest_first: bool) -> Iterator[tuple[int, I64 | None]]:
    """Which of ``slices`` (ascending) rows from ``lo`` to ``hi`` meet, with those rows (None: all). O(m) per slice at
    most, and most rows meet only the first one or two: those of late events are few and meet many.
    """
    if not slices or not len(lo):
        return
    low, high = int(np.minimum.reduce(lo)) >> bits, int(np.maximum.reduce(hi)) >> bits
    if low == high:
        if low in slices:
            yield low, None
        return
    left: I64 | None = None  # rows that may meet slices still to come
    for number in reversed(slices) if newest_first else slices:
        if not low <= number <= high:
            continue
        begin, end = number << bits, ((number + 1) << bits) - 1
        own_lo, own_hi = (lo, hi) if left is None else (lo[left], hi[left])
        meets = (own_lo <= end) & (own_hi >= begin)
        rows = meets.nonzero()[0] if left is None else left[meets]
        if len(rows):
            yield number, None if len(rows) == len(lo) else rows
        more = (own_lo < begin) if newest_first else (own_hi > end)
        left = more.nonzero()[0] if left is None else left[more]
        if not len(left):
            return


def _by_slice(runs: list[Run]) -> dict[int, list[Run]]:
    slices: dict[int, list[Run]] = {}
    for run in runs:
        slices.setdefault(run[0], []).append(run)
    return slices


def codes_in(number: int, bits: int, keys: U64, lo: I64, hi: I64) -> tuple[U64, U64]:
    """The codes at which each row's stretch begins in a slice, and at which the next one would; the same for a row
    whose times all lie before or after the slice, or that has none.
    """
    base, mask = number << bits, (1 << bits) - 1
    begin = np.minimum(np.maximum(lo - base, 0), mask + 1)
    after = np.maximum(np.minimum(hi - base, mask) + 1, begin)
    return keys + begin.view(np.uint64), keys + after.view(np.uint64)
