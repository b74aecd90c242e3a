"""The pager: parts of state on their way to the shelf and back.

The rule: nothing in memory changes before its copy is safe. Whoever wants parts written hands them to an
:class:`Outbox` together with what is to happen then; ``send`` writes all of them in one file, and only after that
happens what was to happen. So a write that fails leaves state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from latecomer.storage.packing import pack, unpack
from latecomer.storage.shelf import Shelf, Slot


class Pager:
    """Reads and writes plain data (dicts of NumPy and Arrow arrays) on a shelf.

    >>> from latecomer.storage.shelf import MemoryShelf
    >>> pager, slots = Pager(MemoryShelf()), []
    >>> outbox = pager.outbox(); outbox.add({"n": 1}, slots.append); outbox.send()
    >>> pager.load(slots[0])
    {'n': 1}
    """

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.turn = 0  #: counts batches: what was touched in which
        self.reads = 0
        self.writes = 0
        self.read_bytes = 0
        self.written_bytes = 0

    def outbox(self) -> Outbox:
        return Outbox(self)

    def load(self, slot: Slot) -> Any:
        """What was written at ``slot``; raises StateError when it is gone or damaged."""
        data = self.shelf.get(slot)
        self.reads += 1
        self.read_bytes += len(data)
        return unpack(data)

    def free(self, slots: Iterable[Slot]) -> None:
        """The state that is in memory now needs these no more."""
        self.shelf.free(slots)


class Outbox:
    """Parts that are to be written together."""

    def __init__(self, pager: Pager) -> None:
        self._pager = pager
        self._blobs: list[bytes] = []
        self._then: list[Callable[[Slot], None]] = []
        self._finally: list[Callable[[], None]] = []

    def add(self, state: Any, then: Callable[[Slot], None]) -> None:
        """Write ``state``; ``then`` gets the slot once it is safe."""
        self._blobs.append(pack(state, checked=False))
        self._then.append(then)

    def after(self, action: Callable[[], None]) -> None:
        """What is to happen once all parts are safe, after their own ``then``."""
        self._finally.append(action)

    def send(self) -> None:
        """Write all parts in one file."""
        if self._blobs:
            slots = self._pager.shelf.put(self._blobs)
            self._pager.writes += len(slots)
            self._pager.written_bytes += sum(map(len, self._blobs))
            for then, slot in zip(self._then, slots, strict=True):
                then(slot)
        for action in self._finally:
            action()
        self._blobs, self._then, self._finally = [], [], []
