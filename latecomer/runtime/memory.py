"""Memory: what of an engine's state is in memory, what on the shelf, and what a version of it consists of.

State is cut into slices of event time, the same for all stores and for the events' payload, so a slice can leave memory
as a whole: each store's frame, the payload as a page, and the ids of its events as a run of cold ids. The rules:

* Over the budget, what is on the shelf already and was only read goes first, the longest unused before others; then
  whole slices are written and dropped, the oldest first, those last that events in time look at.
* Room is made before a batch is taken in: where it fails, nothing has changed, and the batch can be given again.
* A version writes slices in which much has changed, and carries the small rest itself: so a version costs what changed
  since the last one, and slices are not scattered over many small files.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.storage.columns import I64
from latecomer.storage.log import Census
from latecomer.storage.pager import Outbox, Pager
from latecomer.storage.shelf import Slot

if TYPE_CHECKING:
    from latecomer.runtime.engine import Engine

_TARGET = 0.75  # of the budget is filled after room was made, so that it is made seldom
_LOOK = 32  # a look at the budget after each 1/32 of it has come in, or been read
_TIDY = 64  # a look after so many batches whether dead ids are worth writing the others anew
_TOGETHER = 8  # slices up to this part of the budget are written together, or up to
_SMALL = 4 << 20  # so many bytes, since what is written by and by costs more
_LITTLE = 8  # below this part of the largest slice in memory there is little of a slice
_CARRIED = 256 << 10  # bytes that a version carries itself, and
_CARRIED_SHARE = 64  # this part of the state that was written before
_ROUGH = 64  # bytes of an event on the shelf, roughly
_FREED = 16  # what was freed goes back to the system once it takes this part of the budget beyond the budget
#: Gives the process's free memory back to the system, where the C library has a way to say so.
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


class Memory:
    """Keeps ``engine`` within ``budget`` bytes (None: all the memory there is)."""

    def __init__(self, engine: Engine, pager: Pager, budget: int | None) -> None:
        self._engine, self.pager, self.budget = engine, pager, budget
        if budget is not None:
            # One allocator: what Arrow's own keeps of freed memory would count as this process's, and help nobody else.
            pa.set_memory_pool(pa.system_memory_pool())
        self._come = 0  # bytes that came in, or were read, since the last look
        self._read = 0  # bytes read until the last look
        self._beside = 0  # resident memory that was not state when what had been freed went back last

    # --- the budget --------------------------------------------------------------------------------------------------

    def make_room(self, coming: int) -> None:
        """Bring state below the budget, with ``coming`` bytes to be taken in. Raises StateError where it cannot be
        written; then nothing has changed.
        """
        self.pager.turn += 1
        if self.pager.turn % _TIDY == 0 and self._engine.cold is not None:
            self._engine.cold.tidy()
        if self.budget is None:
            return
        self._come += coming + self.pager.read_bytes - self._read
        self._read = self.pager.read_bytes
        if self._come * _LOOK < self.budget:
            return
        self._come = coming if coming * _LOOK >= self.budget else 0  # after so much the next call looks in any case
        held = self._engine.nbytes
        self._trim(held)
        excess = held + coming - self.budget
        if excess <= 0:
            return
        wanted = excess + int(self.budget * (1 - _TARGET))
        given = self._drop_copies(wanted)
        if given < excess:  # else there is room for now, and slices that grow on leave later, in larger chunks
            self._evict(wanted - given, excess - given)

    def settle(self) -> None:
        """Let go of what a batch has read beyond the budget."""
        if self.budget is not None and (self.pager.read_bytes - self._read) * _LOOK >= self.budget:
            held = self._engine.nbytes
            if held > self.budget:
                held -= self._drop_copies(held - self.budget)
            self._trim(held)

    def _trim(self, held: int) -> None:
        """Give freed memory back where it takes more than what is left of the budget; ``held``: bytes of state."""
        assert self.budget is not None
        resident = _resident()
        if resident is not None and resident > self._beside + self.budget + self.budget // _FREED:
            _give_back()
            self._beside = (_resident() or 0) - held

    def _drop_copies(self, wanted: int) -> int:
        """Drop what is on the shelf too, least recently used first; returns the bytes that this gave."""
        copies: list[tuple[int, int, Any]] = []
        for store in self._engine.all_stores():
            for number, frame in store.frames.items():
                size = sum(s.run.nbytes for s in frame.saved if s.run is not None)
                if size:
                    copies.append((frame.touched, size, lambda store=store, number=number: store.evict(number)))
        pages = self._engine.log.pages
        assert pages is not None
        copies += [(page.touched, page.nbytes, page.columns.clear) for _, page in pages.cached()]
        copies.sort(key=lambda copy: copy[0])
        given = 0
        for _, size, drop in copies:
            if given >= wanted:
                break
            drop()
            given += size
        return given

    def _evict(self, wanted: int, needed: int) -> None:
        """Write and drop whole slices that give ``wanted`` bytes; those that events in time look at leave only for the
        ``needed`` ones, since they come back at once.
        """
        engine = self._engine
        assert self.budget is not None
        event = engine.log.hot_bytes / max(len(engine.log), 1) + engine.ids.nbytes / max(len(engine.ids), 1)
        sizes = {number: int(count * event) for number, count in engine.log.counts().items()}
        for store in engine.all_stores():
            for number, frame in store.frames.items():
                if size := frame.movable:
                    sizes[number] = sizes.get(number, 0) + size
        # Slices of which little is here come last: small chunks cost more than they give.
        little = max(sizes.values(), default=0) // _LITTLE
        chosen = []
        used = {number: engine.in_use(number) for number in sizes}
        for number in sorted(sizes, key=lambda n: (sizes[n] < little, used[n], n)):
            if wanted <= 0 or (used[number] and needed <= 0):
                break
            chosen.append(number)
            wanted -= sizes[number]
            needed -= sizes[number]
        chosen.sort()
        groups: list[list[int]] = []
        room = 0
        for number in chosen:
            room -= sizes[number]
            if room < 0 or not groups:
                groups.append([])
                room = max(self.budget // _TOGETHER, _SMALL) - sizes[number]
            groups[-1].append(number)
        self._leave([np.array(group, np.int64) for group in groups])

    def _leave(self, groups: Sequence[I64]) -> None:
        """Write slices, group by group, since what is being written takes memory beside them; and drop them."""
        engine = self._engine
        for slices in groups:
            _give_back()
            census = engine.log.census(slices)
            outbox = self.pager.outbox()
            self._write(slices, census, outbox)
            for timeline in engine.all_timelines():
                timeline.sleep(slices, engine.layout.bits, outbox)
            outbox.send()
            for store in engine.all_stores():
                for number in slices.tolist():
                    store.evict(number)
            engine.log.evict(census)
        if 2 * len(engine.log) < len(engine.ids):
            engine.forget_absent()
        _give_back()

    # --- versions ----------------------------------------------------------------------------------------------------

    def save(self, most: int | None = None) -> None:
        """Write the slices in which much has changed; they stay in memory. ``most``: bytes of changes that are left to
        the version itself (None: few, so that versions are small)."""
        engine = self._engine
        size = engine.log.hot_bytes / max(len(engine.log), 1)
        changed = {number: int(count * size) for number, count in engine.log.counts(fresh=True).items()}
        for store in engine.all_stores():
            for number, frame in store.frames.items():
                if frame.fresh:
                    changed[number] = changed.get(number, 0) + 16 * frame.fresh
        pages = engine.log.pages
        assert pages is not None
        carried = sum(changed.values())
        most = _CARRIED if most is None else most
        if carried <= max(most, len(pages) * _ROUGH // _CARRIED_SHARE):
            return
        chosen = []
        for number in sorted(changed, key=lambda n: -changed[n]):
            if carried <= most // 2:
                break
            chosen.append(number)
            carried -= changed[number]
        outbox = self.pager.outbox()
        slices = np.array(sorted(chosen), np.int64)
        self._write(slices, engine.log.census(slices), outbox)
        outbox.send()

    def _write(self, slices: I64, census: Census, outbox: Outbox) -> None:
        engine = self._engine
        unsaved = engine.log.unsaved(census)
        engine.chill(unsaved.at)
        for store in engine.all_stores():
            for number in slices.tolist():
                store.save(number, outbox)
        engine.log.save(unsaved, outbox)

    def slots(self) -> Iterable[Slot]:
        """All that the state needs of the shelf."""
        engine = self._engine
        assert engine.log.pages is not None and engine.cold is not None
        yield from engine.log.pages.slots()
        yield from engine.cold.slots()
        for store in engine.all_stores():
            yield from store.slots()
        for timeline in engine.all_timelines():
            yield from timeline.slots()

    def facts(self) -> dict[str, Any]:
        """For explain."""
        engine = self._engine
        assert engine.log.pages is not None
        return facts(
            self.pager,
            self.budget,
            engine.nbytes,
            len(engine.log.pages),
            sum(len(lane.pending) for lane in engine.lanes if lane.pending is not None),
        )


def _resident() -> int | None:
    """Bytes of this process in memory, where they can be told and given back."""
    if _TRIM is None:
        return None
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return None


def _give_back() -> None:
    """Allocators keep what was freed: it would go on counting as this process's memory, beside what is to come."""
    if _TRIM is not None:
        _TRIM(0)


def facts(pager: Pager, budget: int | None, in_memory: int = 0, on_shelf: int = 0, pending: int = 0) -> dict[str, Any]:
    """What explain says of memory; as it is before the first event."""
    return {
        "budget": budget,
        "in_memory": in_memory,
        "events_on_shelf": on_shelf,
        "pending": pending,
        "reads": pager.reads,
        "read_bytes": pager.read_bytes,
        "writes": pager.writes,
        "written_bytes": pager.written_bytes,
    }
