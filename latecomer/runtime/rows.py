"""Partial matches as columns: for each bound component of the pattern its event references and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latecomer.storage.columns import I64, Array
from latecomer.storage.hashing import U64
from latecomer.storage.store import Hits, Store, View

#: Candidates are held in pieces of at most this many rows, so that no join, however large, needs more memory than
#: (components x this). Small enough for caches, large enough that the calls per piece do not count.
PIECE = 1 << 18


class Rows:
    """n partial matches. ``refs[i]`` and ``ts[i]`` are arrays (n,) for a bound component i, else None; ``keys`` are
    the key hashes that the whole pattern agrees on (all 0 without a key).
    """

    __slots__ = ("keys", "refs", "ts")

    def __init__(self, refs: list[I64 | None], ts: list[I64 | None], keys: U64) -> None:
        self.refs, self.ts, self.keys = refs, ts, keys

    @classmethod
    def seed(cls, components: int, index: int, refs: I64, ts: I64, keys: U64) -> Rows:
        """Partial matches in which only component ``index`` is bound."""
        all_refs: list[I64 | None] = [None] * components
        all_ts: list[I64 | None] = [None] * components
        all_refs[index], all_ts[index] = refs, ts
        return cls(all_refs, all_ts, keys)

    def __len__(self) -> int:
        return len(self.keys)

    def ref(self, index: int) -> I64:
        """References of a component that must be bound."""
        found = self.refs[index]
        assert found is not None, f"component {index} is not bound"
        return found

    def time(self, index: int) -> I64:
        """Times of a component that must be bound."""
        found = self.ts[index]
        assert found is not None, f"component {index} is not bound"
        return found

    def take(self, which: Array) -> Rows:
        """The rows at positions, or under a mask."""
        at = which.nonzero()[0] if which.dtype == bool else which
        return Rows(
            [None if r is None else r.take(at) for r in self.refs],
            [None if t is None else t.take(at) for t in self.ts],
            self.keys.take(at),
        )

    def unbind(self, index: int) -> Rows:
        """The same rows without component ``index``."""
        refs, ts = list(self.refs), list(self.ts)
        refs[index] = ts[index] = None
        return Rows(refs, ts, self.keys)

    def bind(self, index: int, owner: I64, refs: I64, ts: I64) -> Rows:
        """Extend row ``owner[i]`` by the event ``refs[i]``."""
        extended = self.take(owner)
        extended.refs[index], extended.ts[index] = refs, ts
        return extended


@dataclass(slots=True)
class Answer:
    """Matches of one query that come and go, n in all: how many of which kind, one after another (whether they come,
    and how many), and references and times of their positives (n, positives).
    """

    query: int
    ops: list[tuple[bool, int]]
    refs: I64
    ts: I64

    def rows(self, positives: Sequence[int], components: int) -> Rows:
        """The matches as rows, of a pattern with so many components."""
        all_refs: list[I64 | None] = [None] * components
        all_ts: list[I64 | None] = [None] * components
        for column, index in enumerate(positives):
            all_refs[index], all_ts[index] = self.refs[:, column], self.ts[:, column]
        return Rows(all_refs, all_ts, np.zeros(len(self.refs), np.uint64))


def joined(parts: Sequence[Rows]) -> Rows:
    """Several sets of rows, one after another; they must bind the same components."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def together(columns: Sequence[list[I64 | None]]) -> list[I64 | None]:
        return [
            None if columns[0][i] is None else np.concatenate([c[i] for c in columns if c[i] is not None])
            for i in range(len(columns[0]))
        ]

    return Rows(
        together([p.refs for p in parts]), together([p.ts for p in parts]), np.concatenate([p.keys for p in parts])
    )


#: Pairs of probing rows and events: the rows' numbers, the events' references, and their times.
Pairs = tuple[I64, I64, I64]


def pairs(store: Store, keys: U64, lo: I64, hi: I64, view: View, ordered: bool) -> Iterator[Pairs]:
    """The pairs of rows and events with the same key hash and ``lo <= ts <= hi``, in pieces of at most :data:`PIECE`.

    ``ordered``: pieces, and the pairs in them, follow the order of the rows.
    """
    found = store.join(keys, lo, hi, view, PIECE)
    if isinstance(found, int):
        yield from expand(list(store.probe(keys, lo, hi, view)), len(keys), ordered)
    elif len(found[0]):
        yield found


def expand(hits: Sequence[Hits], rows: int, ordered: bool) -> Iterator[Pairs]:
    """List hits as pairs, in pieces of at most :data:`PIECE`.

    ``ordered``: pieces, and the pairs in them, follow the order of the probing rows.
    """
    total = sum(int(np.add.reduce(h.count)) for h in hits)
    if total == 0:
        return
    if total <= PIECE:
        yield _pairs(hits, 0, rows, ordered)
        return
    counts = np.sum([h.count for h in hits], axis=0)
    ends = counts.cumsum()
    start = 0
    while start < rows:
        done = int(ends[start - 1]) if start else 0
        end = int(ends.searchsorted(done + PIECE, "right"))
        if end > start:
            if int(ends[end - 1]) > done:
                yield _pairs(hits, start, end, ordered)
            start = end
            continue
        # One row alone hits more than a piece holds.
        for hit in hits:
            first, last = int(hit.first[start]), int(hit.first[start] + hit.count[start])
            for at in range(first, last, PIECE):
                refs, ts = hit.events(slice(at, min(at + PIECE, last)))
                yield np.full(len(refs), start), refs, ts
        start += 1


def _pairs(hits: Sequence[Hits], start: int, end: int, ordered: bool) -> Pairs:
    """All pairs of the probing rows from ``start`` to ``end``."""
    found: list[Pairs] = []
    for hit in hits:
        owner = hit.count[start:end].nonzero()[0]
        if not len(owner):
            continue
        owner += start
        count, at = hit.count.take(owner), hit.first.take(owner)
        total = int(np.add.reduce(count))
        if total > len(owner):
            at = (at - count.cumsum() + count).repeat(count) + np.arange(total)
            owner = owner.repeat(count)
        found.append((owner, *hit.events(at)))
    if len(found) == 1:
        return found[0]
    owner, refs, ts = (np.concatenate(columns) for columns in zip(*found, strict=True))
    if ordered:
        order = owner.argsort(kind="stable")
        owner, refs, ts = owner[order], refs[order], ts[order]
    return owner, refs, ts
