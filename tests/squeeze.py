"""Sizes that are chosen for large streams, made small: then a dozen events fill many frames, runs, pieces and rebuilds.

``squeezed("")`` changes nothing; ``"small"`` shrinks the sizes; ``"colliding"`` also gives all keys one hash, and ids
one of two, so that every join proposes everything and only the comparison of real values decides. No answer may
depend on any of this.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from latecomer.runtime import engine, lane, pattern, rows, selection
from latecomer.storage import ids, log, store

KINDS = ("", "small", "colliding")


def constant(columns_or_hashes, *rest):
    """A hash that tells nothing apart, for hash_column, hash_columns and combine alike."""
    first = columns_or_hashes[0] if isinstance(columns_or_hashes, list) else columns_or_hashes
    return np.zeros(len(first), np.uint64)


@contextmanager
def squeezed(kind):
    """Run the block with the sizes of ``kind``."""
    with ExitStack() as stack:

        def put(owner, name, value):
            stack.enter_context(mock.patch.object(owner, name, value))

        if kind:
            put(rows, "PIECE", 3)
            put(ids, "_SMALLEST", 2)
            put(log, "_FIRST_LOOK", 1)
            put(store, "_TAIL", 1)
            put(lane, "_FIRST_PURGE", -1_000_000)  # purge by proof in each step
            put(store.CodeLayout, "for_reach", classmethod(lambda cls, reach: cls(2 if reach < 100 else 12)))
        if kind == "colliding":
            put(selection, "hash_column", constant)
            put(selection, "combine", constant)
            put(pattern, "hash_columns", constant)
            identify = engine.Engine._identify

            def coarse(self, *given):
                hashes, content = identify(self, *given)
                return hashes << np.uint64(63), content

            put(engine.Engine, "_identify", coarse)
        yield
