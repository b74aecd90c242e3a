"""Whether an answer is right: an engine's net matches against the offline program's.

Rule: an answer is a sorted array of codes, one for each match, made of the ids of its events. A match that was inserted
and deleted counts for nothing; one that was inserted twice, or deleted without having been inserted, is an error.
Engines that must be exact are disqualified by any difference (:func:`check`); of those that lose events by design,
precision and recall are told (:func:`accuracy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import limit
from benchmarks.harness import Disqualified
from benchmarks.limit import IntArray
from benchmarks.shapes import Shape


def coded(ids: IntArray) -> IntArray:
    """One number for each row of ids, unsorted; ids must be small enough for all to fit into 63 bits."""
    width = max(int(ids.max(initial=0)), 1).bit_length()
    bits = 63 // ids.shape[1]
    if width > bits:
        raise ValueError(f"ids of {width} bits do not fit {ids.shape[1]} times into a code")
    code = np.zeros(len(ids), np.int64)
    for column in ids.T:
        code = code << bits | column
    return code


def truth(events: pa.Table, shapes: Sequence[Shape]) -> list[IntArray]:
    """For each shape the sorted codes of its true matches."""
    return [np.sort(coded(found)) for found in limit.matches(events, shapes)]


def net(changes: Sequence[pa.Table], shapes: Sequence[Shape]) -> tuple[list[IntArray], int]:
    """For each shape the sorted codes of the matches that remain, and how many deletions there were in all.

    ``changes`` is what the engine put out, in order. Raises Disqualified when a match was inserted or deleted twice.
    """
    parts = [c.select(["op", "query", "events"]) for c in changes if c.num_rows]
    if not parts:
        return [np.zeros(0, np.int64) for _ in shapes], 0
    whole = pa.concat_tables(parts).combine_chunks()
    found, deletions = [], 0
    for shape in shapes:
        own = whole.filter(pc.equal(whole["query"], shape.name))
        flat = np.asarray(pc.list_flatten(own["events"]).cast(pa.int64()))
        codes, at = np.unique(coded(flat.reshape(-1, len(shape.positives))), return_inverse=True)
        sign = np.where(np.asarray(pc.equal(own["op"], "insert")), 1, -1)
        total = np.bincount(at, weights=sign, minlength=len(codes))
        if not np.isin(total, (0, 1)).all():
            raise Disqualified(f"{shape.name}: a match was inserted twice or taken back twice")
        found.append(codes[total == 1])
        deletions += int((sign < 0).sum())
    return found, deletions


def check(who: str, found: Sequence[IntArray], right: Sequence[IntArray], shapes: Sequence[Shape]) -> int:
    """The number of matches; raises Disqualified unless both answers are the same."""
    for shape, mine, true in zip(shapes, found, right, strict=True):
        if not np.array_equal(mine, true):
            missing, wrong = len(np.setdiff1d(true, mine)), len(mine) - len(np.intersect1d(mine, true))
            raise Disqualified(
                f"{who}, {shape.name}: of {len(true):,} matches {missing:,} are missing, and {wrong:,} are wrong"
            )
    return sum(len(true) for true in right)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Shares of right ones among those found, and of those found among the right ones."""

    precision: float
    recall: float


def accuracy(found: Sequence[IntArray], right: Sequence[IntArray]) -> Accuracy:
    """Precision and recall over all shapes together; copies of a match count as wrong."""
    hits = sum(len(np.intersect1d(mine, true)) for mine, true in zip(found, right, strict=True))
    told, true = sum(len(m) for m in found), sum(len(t) for t in right)
    return Accuracy(hits / told if told else 1.0, hits / true if true else 1.0)
