"""Memo: what was last computed of matches, so that a correction need not compute again what it corrects.

A confidence is a function of a match and of the events that may spoil it. An entry is the answer for a match, by its
events, beside a signature of those that may spoil it; it holds as long as the signature is the same. So it changes no
answer, need not be saved, and may forget as it likes: it keeps the last :data:`MOST` matches.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from latecomer.runtime.intervals.question import Answer
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64
from latecomer.storage.store import Bools

#: Matches that are kept, at some 400 bytes each.
MOST = 1 << 14
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)

Key = tuple[int, ...]


def signatures(rows: int, owner: I64, kind: I64, ref: I64) -> U64:
    """For each of so many matches one number for the set of its (kind, event); sets of two matches do not meet."""
    mixed = (ref.astype(np.uint64) * np.uint64(64) + kind.astype(np.uint64) + np.uint64(1)) * _ODD[0]
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD[1]
    mixed ^= mixed >> np.uint64(32)
    result = np.zeros(rows, np.uint64)
    np.add.at(result, owner, mixed)
    return result


class Memo:
    """Answers by match."""

    def __init__(self) -> None:
        self._known: dict[Key, tuple[int, float, float, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, keys: list[Key], signs: U64, n: int) -> tuple[Bools, Answer]:
        """Which matches are known, and what is; ``n`` events each. Other places of the answer mean nothing."""
        nothing = (-1, 0.0, 0.0, (0,) * (2 * n))
        told = [self._known.get(key, nothing) for key in keys]
        confidence, error = (np.array([known[i] for known in told], np.float64) for i in (1, 2))
        ranges = np.array([known[3] for known in told], np.int64).reshape(len(keys), 2 * n).T
        answer = Answer(confidence, error, [*ranges[:n].copy()], [*ranges[n:].copy()])
        same = [known[0] == sign for known, sign in zip(told, signs.tolist(), strict=True)]
        return np.array(same, bool), answer

    def keep(self, keys: list[Key], signs: U64, answer: Answer) -> None:
        """Remember these answers, and forget the oldest ones."""
        ranges = zip(*(side.tolist() for side in (*answer.earliest, *answer.latest)), strict=True)
        parts = signs.tolist(), answer.confidence.tolist(), answer.error.tolist(), ranges
        for key, *known in zip(keys, *parts, strict=True):
            self._known.pop(key, None)
            self._known[key] = tuple(known)
        for key in list(islice(self._known, max(len(self._known) - MOST, 0))):
            del self._known[key]
