"""Sizes that are chosen for large streams, made small: then a dozen events fill many frames, runs, pieces and rebuilds.

``squeezed("")`` changes nothing; ``"small"`` shrinks the sizes; ``"colliding"`` also gives all keys one hash, and ids
one of two, so that every join proposes everything and only the comparison of real values decides. ``"spilling"`` also
leaves no memory at all: before each batch everything goes to the shelf. No answer may depend on any of this.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from latecomer.runtime import engine, follow, lane, pattern, reading, road, rows, runtime, selection, share, step
from latecomer.runtime.spill import Spilling
from latecomer.storage import ids, log, runs, store
from latecomer.storage.pager import Pager
from latecomer.storage.shelf import MemoryShelf
from latecomer.units import Duration

KINDS = ("", "small", "colliding", "spilling")


def constant(columns_or_hashes, *rest):
    """A hash that tells nothing apart, for hash_column, hash_columns and combine alike."""
    first = columns_or_hashes[0] if isinstance(columns_or_hashes, list) else columns_or_hashes
    return np.zeros(len(first), np.uint64)


def colliding(read):
    """Rows read in one pass, with hashes that tell as little apart."""

    def coarse(self, given, first):
        found = read(self, given, first)
        if found is not None:
            found.ids = found.ids << np.uint64(63)
            found.hashes = {name: None if h is None else constant(h) for name, h in found.hashes.items()}
        return found

    return coarse


def spilled(batch, wait):
    """An engine that keeps nothing in memory from one batch to the next."""

    def make(stream, plans, schema, counters, spill=None, bits=None):
        pager = Pager(MemoryShelf()) if spill is None else spill.pager
        spill = Spilling(pager, 0, batch, Duration.of(wait))
        return engine.Engine(stream, plans, schema, counters, spill, bits)

    return make


@contextmanager
def squeezed(kind, batch=0, wait=0):
    """Run the block with the sizes of ``kind``. Spilling, late events may wait for ``batch`` others that need the same,
    or until the clock has moved by ``wait``; answers may then come later.
    """
    with ExitStack() as stack:

        def put(owner, name, value):
            stack.enter_context(mock.patch.object(owner, name, value))

        if kind:
            put(rows, "PIECE", 3)
            put(follow, "PIECE", 3)
            put(step, "PIECE", 3)
            put(ids, "_SMALLEST", 2)
            put(log, "_FIRST_LOOK", 1)
            put(runs, "_TAIL", 1)
            put(runs, "_AT_ONCE", 3)
            put(store, "_STEP", 1)
            put(store, "_RATE", 1)
            put(store, "_LEAST", 1)
            put(lane, "_FIRST_PURGE", -1_000_000)  # purge by proof in each step
            put(store.CodeLayout, "for_reach", classmethod(lambda cls, reach: cls(2 if reach < 100 else 12)))
        if kind == "spilling":
            put(runtime, "Engine", spilled(batch, wait))
        if kind in ("colliding", "spilling"):
            put(step.Step, "of", classmethod(lambda cls, engine, lanes: None))  # it hashes by itself
            put(selection, "hash_column", constant)
            put(selection, "combine", constant)
            put(share, "hash_column", constant)  # as what is read in one pass
            put(pattern, "hash_columns", constant)
            put(road, "HASHED", 0)
            identify = engine.Engine._id_hashes

            def coarse(self, ids):
                return identify(self, ids) << np.uint64(63)

            put(engine.Engine, "_id_hashes", coarse)
            put(reading.RowReader, "read", colliding(reading.RowReader.read))
        yield
