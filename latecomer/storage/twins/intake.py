"""Which rows of a batch a store takes in."""

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
