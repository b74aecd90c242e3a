"""Kernels: the inner loops of storage, in NumPy, and compiled where the package was built with a compiler.

Rule: each function here says in NumPy what its twin in ``native/`` does one row at a time, several times faster. A
twin takes its place when it was built and :data:`SWITCH` does not say ``numpy``; nobody who calls can tell them apart
(``tests/test_kernels.py`` compares the two). Arrays are one-dimensional, contiguous, and of 64-bit values unless said
otherwise; no function writes to an argument, except ``put`` and ``take_out`` to the table.

A *run* is a tuple (slice, codes, refs): events of one slice of ``2**bits`` units of time, sorted by code, which is the
key's hash with the time within the slice in the low ``bits``. Lists of runs ascend by slice.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Run = tuple[int, U64, I64]

#: The environment variable that chooses: ``numpy``, ``compiled`` (an error where it was not built), or nothing.
SWITCH = "LATECOMER_KERNEL"

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_ALONE = 1 << 40  # a cell's sum holds the count of its keys from this bit on, and below it the sum of their numbers
_FUSE = np.uint64(0x9FB21C651E98DF25)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_WORD = 2**64 - 1
_FEW = 5  # offsets of texts, up to which these are taken one by one
#: ANDed with a little-endian word, ``TAIL[n]`` keeps its first n bytes.
TAIL = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [_WORD], np.uint64)
_PAD = np.zeros(8, np.uint8)
_BITS = np.arange(256, dtype=np.uint8)[:, None] >> np.arange(8, dtype=np.uint8) & 1
#: How many bits of a byte are set below each of its bits, by byte and bit.
_BELOW = (_BITS.cumsum(axis=1) - _BITS).astype(np.uint8).ravel()
_NONE = np.zeros(0, np.int64)
_HEX = np.array([int.from_bytes(f"{b:02x}".encode(), "little") for b in range(256)], "<u2")


# --- hashes -----------------------------------------------------------------------------------------------------------


def mix(x: U64) -> U64:
    """Scramble 64-bit words, one to one. O(n)."""
    x = x ^ (x >> _S30)
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


def scramble(words: Array, salt: int) -> U64:
    """A hash of each 64-bit word."""
    return mix((words.view(np.uint64) ^ np.uint64(salt)) + _GOLDEN)


def combine(left: U64, right: U64) -> U64:
    """The hash of a pair from the hashes of its parts; order counts."""
    return mix(left * _GOLDEN + right)


def hash_texts(offsets: Array, data: Array, salt: int) -> U64:
    """Hashes of texts, eight bytes at a time over all rows at once; the length is part of the hash. Text i is
    ``data[offsets[i] : offsets[i + 1]]`` (32-bit offsets, bytes).
    """
    if len(offsets) <= _FEW:
        return np.array([_text_hash(text, salt) for text in _texts_in(offsets, data)], np.uint64)
    words, starts, lengths = _words_of(offsets, data)
    result = lengths.astype(np.uint64)
    result ^= np.uint64(salt)
    result += _GOLDEN
    result = mix(result ^ _word(words, starts, lengths))
    return mix(_hash_rest(result, words, starts, lengths))


def text_words(offsets: Array, data: Array) -> U64:
    """A word per text that tells texts apart as well as a hash does, but is not scrambled: for sums of many columns."""
    if len(offsets) <= _FEW:
        return np.array([_text_word(text) for text in _texts_in(offsets, data)], np.uint64)
    words, starts, lengths = _words_of(offsets, data)
    result = _word(words, starts, lengths)
    result += lengths.view(np.uint64) * _M1
    return _hash_rest(result, words, starts, lengths)


def text_numbers(offsets: Array, data: Array, known: U64, known_lengths: I64, other: int) -> I64:
    """For each text which of a few short ones it is, given as :func:`first_words`; ``other``: none of them."""
    if len(offsets) <= _FEW:
        places = {
            (word, size): at for at, (word, size) in enumerate(zip(known.tolist(), known_lengths.tolist(), strict=True))
        }
        return np.array([places.get((_first(t), len(t)), other) for t in _texts_in(offsets, data)], np.int64)
    words, lengths = first_words(offsets, data)
    numbers = np.full(len(words), other)
    for number, (word, length) in enumerate(zip(known, known_lengths, strict=True)):
        numbers[(words == word) & (lengths == length)] = number
    return numbers


def first_words(offsets: Array, data: Array) -> tuple[U64, I64]:
    """The first eight bytes of each text, zeros behind its end, as a word; and its length in bytes."""
    if len(offsets) < 2:
        return np.zeros(0, np.uint64), _NONE
    words, starts, lengths = _words_of(offsets, data)
    return _word(words, starts, lengths), lengths


def _words_of(offsets: Array, data: Array) -> tuple[U64, I64, I64]:
    """The word that begins at each byte (zeros behind the end), where each text starts, and how long it is."""
    edges = offsets.astype(np.int64)
    first, last = int(edges[0]), int(edges[-1])
    padded = np.concatenate((data[first:last], _PAD))
    return _words_in(padded), edges[:-1] - first, edges[1:] - edges[:-1]


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


def _texts_in(offsets: Array, data: Array) -> list[bytes]:
    """Texts one by one: for so few that a call of NumPy takes longer than a text."""
    edges = offsets.tolist()
    whole = data[edges[0] : edges[-1]].tobytes()
    return [whole[begin - edges[0] : end - edges[0]] for begin, end in itertools.pairwise(edges)]


def _first(text: bytes) -> int:
    """The word of the first eight bytes."""
    return int.from_bytes(text[:8], "little")


def _text_hash(text: bytes, salt: int) -> int:
    """:func:`hash_texts` of one."""
    return _mixed(_rest(_mixed(((len(text) ^ salt) + int(_GOLDEN) & _WORD) ^ _first(text)), text))


def _text_word(text: bytes) -> int:
    """:func:`text_words` of one."""
    return _rest(_first(text) + len(text) * int(_M1) & _WORD, text)


def _rest(value: int, text: bytes) -> int:
    for done in range(8, len(text), 8):
        value = _mixed((value * int(_GOLDEN) & _WORD) ^ _first(text[done : done + 8]))
    return value


def _mixed(x: int) -> int:
    """:func:`mix` of one."""
    x = (x ^ x >> 30) * int(_M1) & _WORD
    x = (x ^ x >> 27) * int(_M2) & _WORD
    return x ^ x >> 31


def match_digits(high: U64, low: U64, each: int, name_high: int, name_low: int) -> Array:
    """32 hex digits, as bytes, for every ``each`` hashes of 128 bits on end, combined onto those of a name."""
    halves = []
    for hashes, name in ((high, name_high), (low, name_low)):
        rows = hashes.reshape(-1, each)
        result = np.full(len(rows), name, np.uint64)
        for position in range(each):
            result = combine(result, rows[:, position])
        halves.append(result)
    raw = np.stack(halves, axis=1).astype(">u8").view(np.uint8)
    digits: Array = _HEX[raw].view(np.uint8).ravel()
    return digits


# --- the id index -----------------------------------------------------------------------------------------------------


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


# --- runs -------------------------------------------------------------------------------------------------------------


def arrange(hashes: U64, ts: I64, refs: I64, bits: int) -> tuple[U64, I64, I64, Sequence[tuple[int, int, int]], int]:
    """Events (any order) by slice and code, equal ones as they came: codes, times, references; where each slice begins
    and ends, as (slice, begin, end); and the latest time. There must be at least one.
    """
    mask = (1 << bits) - 1
    codes = (hashes & np.uint64(~mask & (2**63 - 1))) | (ts & mask).view(np.uint64)
    latest = int(np.maximum.reduce(ts))
    first, last = int(np.minimum.reduce(ts)) >> bits, latest >> bits
    if first == last:
        order = codes.argsort(kind="stable")
        return codes.take(order), ts.take(order), refs.take(order), ((first, 0, len(ts)),), latest
    slices = ts >> bits
    order = np.lexsort((codes, slices))
    slices = slices.take(order)
    edges = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), len(slices)]
    parts = [(int(slices[begin]), begin, end) for begin, end in itertools.pairwise(edges)]
    return codes.take(order), ts.take(order), refs.take(order), parts, latest


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


# --- payload ----------------------------------------------------------------------------------------------------------


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
    words, other_words = _words_in(data), _words_in(other_data)
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


def _words_in(data: Array) -> U64:
    """The little-endian word that begins at each byte but the last seven."""
    return np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))


# --- filters and sets of numbers --------------------------------------------------------------------------------------


def fuse(mixed: U64, cells: Array, span: int, shard_bits: int, segment_bits: int) -> Bools:
    """Whether the three cells (16 bits) of each key, XORed, give its fingerprint (:mod:`latecomer.storage.filters`)."""
    first, second, third = fuse_cells(mixed, span, shard_bits, segment_bits)
    found = cells.take(first)
    found ^= cells.take(second)
    found ^= cells.take(third)
    same: Bools = found == fuse_marks(mixed)
    return same


def fuse_marks(mixed: U64) -> Array:
    """The fingerprint of each key, 16 bits."""
    return (mixed * _FUSE >> np.uint64(48)).astype(np.uint16)


def fuse_cells(mixed: U64, span: int, shard_bits: int, segment_bits: int) -> tuple[I64, I64, I64]:
    """The three cells of each key, in a filter of so many shards with ``span`` places for first cells each."""
    length = np.uint64(1 << segment_bits)
    first = mixed >> _S32
    first *= np.uint64(span << shard_bits)
    first >>= _S32
    if shard_bits:  # behind the first cells of a shard lie two segments more
        shard = mixed >> np.uint64(64 - shard_bits)
        shard *= length + length
        first += shard
    mask = length - np.uint64(1)
    second = first + length
    third = second + length
    second ^= mixed & mask
    third ^= mixed >> np.uint64(segment_bits) & mask
    return first.view(np.int64), second.view(np.int64), third.view(np.int64)


def fuse_build(first: I64, second: I64, third: I64, marks: Array, size: int) -> tuple[Array, Bools]:
    """The cells (16 bits) of a filter whose keys have these cells and fingerprints, and which keys they serve.

    Keys are peeled in rounds: all that are alone in one of their cells. Keys of one round do not meet in the cells that
    serve them: two keys in one cell are not alone there. Then cells are filled in the opposite order; those that serve
    no key keep 0.
    """
    sums = np.zeros(size, np.int64)
    numbers = np.arange(_ALONE, _ALONE + len(marks))
    for cell in (first, second, third):
        np.add.at(sums, cell, numbers)
    rounds: list[tuple[I64, I64]] = []
    claims = np.empty(len(marks), np.int64)
    homes = (sums >> 40 == 1).nonzero()[0]
    while len(homes):
        keys = sums.take(homes) - _ALONE
        turns = np.arange(len(keys))
        claims[keys] = turns
        own = (claims.take(keys) == turns).nonzero()[0]  # a key may be alone in two cells: one serves it
        keys, homes = keys.take(own), homes.take(own)
        rounds.append((keys, homes))
        touched = np.concatenate([cell.take(keys) for cell in (first, second, third)])
        freed = keys + _ALONE
        np.subtract.at(sums, touched, np.concatenate((freed, freed, freed)))
        homes = touched[sums.take(touched) >> 40 == 1]
    placed = np.zeros(len(marks), np.bool_)
    content = np.zeros(size, np.uint16)
    for keys, homes in reversed(rounds):
        value = marks.take(keys)
        for cell in (first, second, third):
            value ^= content.take(cell.take(keys))
        content[homes] = value
        placed[keys] = True
    return content, placed


def held(bits: Array, base: int, numbers: I64) -> Bools:
    """Whether the bit at each number less ``base`` is set, in bytes whose first and last are 0."""
    off = numbers - base
    found: Bools = (bits.take(off >> 3, mode="clip") >> (off & 7).astype(np.uint8) & 1).view(np.bool_)
    return found


def ranks(bits: Array, within: Array, blocks: I64, block: int, base: int, numbers: I64) -> I64:
    """For each number, whose bit is set, how many bits are set before it: ``blocks`` before its block of ``2**block``
    bytes, ``within`` in the block before its byte (8 bits), and in its byte.
    """
    off = numbers - base
    at = off >> 3
    off &= 7
    off += bits.take(at).astype(np.int64) << 3
    result: I64 = blocks.take(at >> block)
    result += within.take(at)
    result += _BELOW.take(off)
    return result


# --- join orders ------------------------------------------------------------------------------------------------------

#: Join orders as programs, and following them (``native/follow.h``); None where kernels are not compiled. What they
#: mean is said by :mod:`latecomer.runtime.sequence`.
program: Any = None
follow: Any = None
resume: Any = None


# --- selections -------------------------------------------------------------------------------------------------------


def pick(types: I64, number: int, mask: Bools | None, hashes: U64 | None, ts: I64, refs: I64) -> tuple[U64, I64, I64]:
    """Hashes (None: all 0), times and references of the rows of a type, of which ``mask`` (None: all) marks some."""
    chosen = types == number
    if mask is not None:
        chosen &= mask
    at = chosen.nonzero()[0]
    return np.zeros(len(at), np.uint64) if hashes is None else hashes.take(at), ts.take(at), refs.take(at)


# --- whole batches ----------------------------------------------------------------------------------------------------

#: Reads a whole record batch in one pass (``native/intake.h``); None: it takes one column after another.
read_rows: Any = None

#: Makes a whole record batch of changes (``native/output.h``); None: it takes one column after another.
write_changes: Any = None

# --- the choice -------------------------------------------------------------------------------------------------------

#: What there is a compiled twin of.
TWINS = (
    "scramble",
    "combine",
    "hash_texts",
    "text_words",
    "text_numbers",
    "match_digits",
    "put",
    "take_out",
    "arrange",
    "merge",
    "join",
    "nearest",
    "equal_words",
    "equal_texts",
    "fuse",
    "fuse_build",
    "held",
    "ranks",
    "pick",
)


def _choose(wanted: str) -> bool:
    """Let compiled twins take their places; whether they have."""
    if wanted not in ("", "numpy", "compiled"):
        raise ValueError(
            f"{SWITCH}={wanted!r} is not known: give numpy, compiled, or nothing for the faster one there is"
        )
    if wanted == "numpy":
        return False
    try:
        native = importlib.import_module("latecomer.storage._compiled")
    except ImportError:
        if wanted == "compiled":
            raise
        return False
    for name in TWINS:
        globals()[name] = getattr(native, name, globals()[name])  # one that was built before knows fewer
    for name in ("program", "follow", "resume", "read_rows", "write_changes"):
        globals()[name] = getattr(native, name, None)
    return True


#: Whether the compiled kernels are in use.
COMPILED = _choose(os.environ.get(SWITCH, ""))
