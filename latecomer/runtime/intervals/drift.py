"""Drift: what the output last said of matches whose confidence has moved a little since.

With ``moved`` = 0 every change of a confidence, and of the times that a match may have, is told; only what rounding may
have made (:data:`SAME`) is not. Otherwise a revision stays until its confidence is more than ``moved`` away from it, or
the match stops or begins to pass the threshold. Matches that show something else than the state says are remembered, so
that a deletion repeats the row that it takes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latecomer.runtime.intervals.chains import Chains
from latecomer.runtime.intervals.question import Answer
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools

#: Confidences that differ by less are the same.
SAME = 1e-12


class Drift:
    """Decides which revisions replace others. ``moved`` is from 0 to 1."""

    def __init__(self, moved: float = 0.0) -> None:
        self.moved = moved
        # By references of the positives: confidence, error, earliest, latest as shown, and when the first event ends.
        self._shown: dict[tuple[int, ...], tuple[float, float, list[int], list[int], int]] = {}

    def __len__(self) -> int:
        return len(self._shown)

    def replace(
        self, rows: Chains, positives: Sequence[int], before: Answer, now: Answer, was: Bools, passes: Bools
    ) -> tuple[I64, Answer, I64]:
        """Rows whose revision leaves, what it said, and rows that get a new one.

        ``before`` and ``now`` are the confidences by the old and the new state; ``was`` and ``passes`` say which of
        them pass the threshold.
        """
        shown = before
        if self._shown:
            earliest, latest = ([c.copy() for c in side] for side in _sides(before))
            shown = Answer(before.confidence.copy(), before.error.copy(), earliest, latest)
            for row, key in enumerate(self._keys(rows, positives)):
                said = self._shown.get(key)
                if said is not None:
                    shown.confidence[row], shown.error[row] = said[:2]
                    for j, (first, last) in enumerate(zip(said[2], said[3], strict=True)):
                        shown.earliest[j][row], shown.latest[j][row] = first, last
        with np.errstate(invalid="ignore"):
            away = np.abs(now.confidence - shown.confidence)
        other = (away > max(self.moved, SAME)) | (np.isnan(now.confidence) != np.isnan(shown.confidence))
        differs = np.zeros(len(other), bool)
        for ours, theirs in zip(_sides(now), _sides(shown), strict=True):
            for own, told in zip(ours, theirs, strict=True):
                differs |= own != told
        if not self.moved:
            other |= differs
        gone, come = was & (~passes | other), passes & (~was | other)
        kept = was & passes & ~other & (differs | (away > 0))
        if self._shown or kept.any():
            self._remember(rows, positives, shown, gone | come, kept)
        return gone.nonzero()[0], shown, come.nonzero()[0]

    def forget(self, floor: int) -> None:
        """Drop matches with an event that ended before ``floor``: they cannot change any more."""
        self._shown = {key: said for key, said in self._shown.items() if said[4] >= floor}

    def _remember(self, rows: Chains, positives: Sequence[int], shown: Answer, told: Bools, kept: Bools) -> None:
        ends = np.minimum.reduce([rows.upper(i) for i in positives])
        for row, key in enumerate(self._keys(rows, positives)):
            if told[row]:
                self._shown.pop(key, None)
            elif kept[row]:
                first, last = ([int(e[row]) for e in side] for side in _sides(shown))
                said = float(shown.confidence[row]), float(shown.error[row])
                self._shown[key] = (*said, first, last, int(ends[row]))

    def _keys(self, rows: Chains, positives: Sequence[int]) -> list[tuple[int, ...]]:
        return list(zip(*(rows.ref(i).tolist() for i in positives), strict=True))

    def dump(self) -> dict[str, Any]:
        return {"shown": [[list(key), list(said)] for key, said in self._shown.items()]}

    def load(self, state: dict[str, Any]) -> None:
        self._shown = {tuple(key): tuple(said) for key, said in state["shown"]}


def _sides(answer: Answer) -> tuple[list[I64], list[I64]]:
    return answer.earliest, answer.latest
