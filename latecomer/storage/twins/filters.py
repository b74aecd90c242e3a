"""Filters that hold hashes in nine bits each, and sets of numbers as bitmaps."""

from __future__ import annotations

import numpy as np

from latecomer.storage.twins.arrays import I64, U64, Array, Bools

_ALONE = 1 << 40  # a cell's sum holds the count of its keys from this bit on, and below it the sum of their numbers
_FUSE = np.uint64(0x9FB21C651E98DF25)
_ONE, _S6, _S12, _S32, _S63 = (np.uint64(n) for n in (1, 6, 12, 32, 63))
_BITS = np.arange(256, dtype=np.uint8)[:, None] >> np.arange(8, dtype=np.uint8) & 1
#: How many bits of a byte are set below each of its bits, by byte and bit.
_BELOW = (_BITS.cumsum(axis=1) - _BITS).astype(np.uint8).ravel()


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


def sift(mixed: U64, words: U64) -> I64:
    """The numbers of the keys whose bits are all set in their words (``storage/sieve.py``), ascending."""
    bits = _sieve_bits(mixed)
    found = words.take(_sieve_words(mixed, words))
    found &= bits
    at: I64 = (found == bits).nonzero()[0]
    return at


def sow(mixed: U64, words: U64) -> None:
    """Set the bits of the keys in their words."""
    np.bitwise_or.at(words, _sieve_words(mixed, words), _sieve_bits(mixed))


def _sieve_bits(mixed: U64) -> U64:
    bits = _ONE << (mixed & _S63)
    bits |= _ONE << (mixed >> _S6 & _S63)
    bits |= _ONE << (mixed >> _S12 & _S63)
    return bits


def _sieve_words(mixed: U64, words: U64) -> I64:
    places = mixed >> _S32
    places *= np.uint64(len(words))
    places >>= _S32
    return places.view(np.int64)


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
