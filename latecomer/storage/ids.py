"""The id index: which event ids have been seen within the retained horizon, so that each counts once.

An open-addressing hash table of (id hash, event-log reference), filled and read a whole batch at a time. It proposes;
the caller compares the real ids in the event log. Entries are forgotten when the table is rebuilt, and only if the
caller's floor allows it.

Invariants (``_check``): the table's size is a power of two and at least twice its count; every entry can be found
from its hash.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64

_FREE = np.int64(-1)
_SMALLEST = 1_024


class IdIndex:
    """Maps id hashes to references. Several entries may share a hash (different ids): a probe yields each in turn."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SMALLEST, np.uint64)
        self._refs = np.full(_SMALLEST, _FREE)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashes: U64) -> tuple[I64, I64]:
        """Pairs (row, ref): for each probing row all entries with its hash. Expected O(1) per row."""
        mask = np.uint64(len(self._refs) - 1)
        rows = np.arange(len(hashes))
        wanted = hashes
        at = (wanted & mask).view(np.int64)
        found_rows: list[I64] = []
        found_refs: list[I64] = []
        while len(rows):
            refs = self._refs[at]
            used = refs != _FREE
            if not used.any():
                break
            rows, wanted, at, refs = rows[used], wanted[used], at[used], refs[used]
            same = self._hashes[at] == wanted
            if same.any():
                found_rows.append(rows[same])
                found_refs.append(refs[same])
            at = (at + 1) & int(mask)
        if not found_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(found_rows), np.concatenate(found_refs)

    def room_for(self, n: int) -> bool:
        """Whether ``n`` more entries fit without a rebuild."""
        return 2 * (self._count + n) <= len(self._refs)

    def add(self, hashes: U64, refs: I64) -> None:
        """Enter ``refs`` under ``hashes``; call :meth:`rebuild` first when there is no :meth:`room_for` them."""
        if not self.room_for(len(refs)):
            self.rebuild(np.ones(self._count, bool), len(refs))
        mask = len(self._refs) - 1
        at = (hashes & np.uint64(mask)).view(np.int64)
        self._count += len(refs)
        while len(refs):
            free = self._refs[at] == _FREE
            here = at[free]
            self._refs[here] = refs[free]  # of several rows for one place the last one written wins
            self._hashes[here] = hashes[free]
            placed = self._refs[at] == refs
            if placed.all():
                return
            left = ~placed
            hashes, refs, at = hashes[left], refs[left], (at[left] + 1) & mask

    def entries(self) -> tuple[U64, I64]:
        """All entries as (hashes, refs), in the order in which :meth:`rebuild` expects its marks."""
        used = self._refs != _FREE
        return self._hashes[used], self._refs[used]

    def rebuild(self, keep: Any, more: int = 0) -> None:
        """Forget the entries not marked in ``keep`` (one mark per entry) and make room for ``more``."""
        hashes, refs = self.entries()
        hashes, refs = hashes[keep], refs[keep]
        size = _SMALLEST
        while size < 4 * (len(refs) + more):
            size *= 2
        self._hashes, self._refs, self._count = np.zeros(size, np.uint64), np.full(size, _FREE), 0
        self.add(hashes, refs)

    @property
    def nbytes(self) -> int:
        return self._hashes.nbytes + self._refs.nbytes

    def dump(self) -> dict[str, Any]:
        hashes, refs = self.entries()
        return {"hashes": hashes, "refs": refs}

    def load(self, state: dict[str, Any]) -> None:
        self.add(state["hashes"], state["refs"])

    def _check(self) -> None:
        size = len(self._refs)
        assert size & (size - 1) == 0 and size >= 2 * self._count, (size, self._count)
        hashes, refs = self.entries()
        assert len(refs) == self._count
        rows, found = self.find(hashes)
        assert set(zip(rows.tolist(), found.tolist(), strict=True)) >= set(enumerate(refs.tolist()))
