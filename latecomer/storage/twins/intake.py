"""What is asked of a batch's rows: which of them a store takes in, and how late they are."""

from __future__ import annotations

import numpy as np

from latecomer.storage.twins.arrays import I64, U64, Bools


def pick(types: I64, number: int, mask: Bools | None, hashes: U64 | None, ts: I64, refs: I64) -> tuple[U64, I64, I64]:
    """Hashes (None: all 0), times and references of the rows of a type, of which ``mask`` (None: all) marks some."""
    chosen = types == number
    if mask is not None:
        chosen &= mask
    at = chosen.nonzero()[0]
    return np.zeros(len(at), np.uint64) if hashes is None else hashes.take(at), ts.take(at), refs.take(at)


def judge(ts: I64, types: I64, clock: int, delay: int) -> tuple[int, bool, int, I64]:
    """Rows in order of arrival, by a clock that is the largest time seen, and at ``clock`` before them: where it is
    after them; whether an event of a known type (not negative) comes later than ``delay`` after its time; how many are
    of a known type; and by how much each row is behind the clock at its arrival.
    """
    running = np.maximum(np.maximum.accumulate(ts), clock)
    late = (types >= 0) & (ts < running - delay)
    last = int(running[-1]) if len(ts) else clock
    return last, bool(np.count_nonzero(late)), int(np.count_nonzero(types >= 0)), running - ts
