"""Hashes of words and of texts, and ids of matches as digits."""

from __future__ import annotations

import itertools

import numpy as np

from latecomer.storage.twins.arrays import I64, TAIL, U64, Array, words_in

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_WORD = 2**64 - 1
_FEW = 5  # offsets of texts, up to which these are taken one by one
_PAD = np.zeros(8, np.uint8)
_NONE = np.zeros(0, np.int64)
_HEX = np.array([int.from_bytes(f"{b:02x}".encode(), "little") for b in range(256)], "<u2")


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
    return words_in(padded), edges[:-1] - first, edges[1:] - edges[:-1]


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
