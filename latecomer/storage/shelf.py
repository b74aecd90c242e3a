"""Shelves: where state goes that need not be in memory.

The rule: whoever holds state hands over immutable *blobs* and gets a *slot* for each, a plain tuple that any format can
carry. A blob is what it was when it comes back, or :class:`StateError` says why not. Slots are never used twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from latecomer.errors import StateError

#: Where a blob is: name of its file, relative to the shelf; offset in it; length of the blob, in bytes.
Slot = tuple[str, int, int]


class Shelf(Protocol):
    """Takes blobs and gives them back."""

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        """Keep ``blobs`` together, in one new immutable file; one slot each, in their order.

        They survive this process when this returns, and the machine once a version names them. Raises StateError, and
        keeps nothing, when they cannot be written.
        """
        ...

    def get(self, slot: Slot) -> bytes:
        """The blob in ``slot``. Raises StateError when it is missing, truncated or damaged, or may not be read."""
        ...

    def free(self, slots: Iterable[Slot]) -> None:
        """The state needs these blobs no more. A file goes when nothing needs any blob in it; never raises."""
        ...


class MemoryShelf:
    """A shelf in memory: for tests, and for engines that touch no disk.

    >>> shelf = MemoryShelf()
    >>> first, second = shelf.put([b"one", b"two"])
    >>> shelf.free([first]); shelf.get(second), shelf.nbytes
    (b'two', 6)
    >>> shelf.free([second]); shelf.nbytes
    0
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._live: dict[str, set[Slot]] = {}
        self._given: dict[Slot, bytes] = {}
        self._made = 0

    @classmethod
    def holding(cls, blobs: Mapping[Slot, bytes]) -> MemoryShelf:
        """A shelf that holds these blobs in these slots, whatever shelf they come from."""
        shelf = cls()
        shelf._given = dict(blobs)
        names = [name.removeprefix("memory-") for name, _, _ in blobs if name.startswith("memory-")]
        shelf._made = 1 + max((int(n) for n in names if n.isdigit()), default=-1)
        return shelf

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        name = f"memory-{self._made}"
        self._made += 1
        slots: list[Slot] = []
        at = 0
        for blob in blobs:
            slots.append((name, at, len(blob)))
            at += max(len(blob), 1)  # empty blobs have slots of their own, too
        if slots:
            self._files[name] = b"".join(blob or b"\0" for blob in blobs)
            self._live[name] = set(slots)
        return slots

    def get(self, slot: Slot) -> bytes:
        name, offset, length = slot
        if slot in self._given:
            return self._given[slot]
        if tuple(slot) not in self._live.get(name, ()):
            raise StateError(f"{tuple(slot)!r} is no slot of this shelf, or was freed: slots come from put")
        return self._files[name][offset : offset + length]

    def free(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._given.pop(slot, None)
            live = self._live.get(slot[0])
            if live is None:
                continue
            live.discard((slot[0], slot[1], slot[2]))
            if not live:
                del self._live[slot[0]], self._files[slot[0]]

    @property
    def nbytes(self) -> int:
        """Bytes of all files that are still needed, whole."""
        return sum(map(len, self._files.values())) + sum(map(len, self._given.values()))

    @property
    def slots(self) -> set[Slot]:
        """What has been put and not freed."""
        return set(self._given).union(*self._live.values())
