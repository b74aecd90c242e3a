"""A shelf whose folder is written by a thread of its own, so that nobody waits for a disk or an object store.

The rule: things are written in the order in which they were handed over, by one thread, which alone uses the folder's
writing side. What was handed over can be read at once. A version is there when its future is done, and not before; so
nobody may name it until then. What fails to be written fails the next version.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from latecomer.storage.blobs import layout
from latecomer.storage.files import failure
from latecomer.storage.folder import StateFolder
from latecomer.storage.packing import seal
from latecomer.storage.shelf import Slot

#: Bytes that may wait to be written; beyond it ``put`` waits for the thread.
WAITING = 64 << 20


class WrittenBeside:
    """A :class:`~latecomer.storage.shelf.Shelf` on ``folder``, which must have been claimed.

    >>> import tempfile
    >>> folder = StateFolder(tempfile.mkdtemp())
    >>> folder.claim()
    1
    >>> shelf = WrittenBeside(folder)
    >>> slots = shelf.put([b"page 0", b"page 1"])
    >>> shelf.get(slots[1])
    b'page 1'
    >>> shelf.version(1, b"state", slots, {}).result()
    >>> shelf.close()
    >>> folder.versions()
    [1]
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._writer = folder.writer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="latecomer-state")
        self._waiting: dict[str, dict[int, bytes]] = {}  # files that are not written yet: offset -> blob
        self._bytes: dict[Future[None], int] = {}  # what is on its way, in order
        self._failed: BaseException | None = None

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        """Hand over ``blobs``, to be written together to one new file."""
        if not blobs:
            return []
        name = f"blobs/{self._writer}-{uuid.uuid4().hex[:16]}"
        slots, size, chunks = layout(name, blobs)
        self._waiting[name] = {offset: blob for (_, offset, _), blob in zip(slots, blobs, strict=True)}
        self._make_room(size)
        self._bytes[self._thread.submit(self._write, name, size, chunks)] = size
        return slots

    def get(self, slot: Slot) -> bytes:
        """The blob in ``slot``, written or not. Raises StateError as the folder does."""
        blobs = self._waiting.get(slot[0])
        return self._folder.get(slot) if blobs is None else blobs[slot[1]]

    def free(self, slots: Iterable[Slot]) -> None:
        """Nothing: the next version does not name them, and with it their files go."""

    def version(self, number: int, frozen: bytes, slots: Sequence[Slot], note: Mapping[str, Any]) -> Future[None]:
        """Hand over a version: what ``Runtime.freeze`` has returned, and a note. The future raises StateError when the
        version, or anything that was handed over before, cannot be written."""
        return self._thread.submit(self._commit, number, frozen, list(slots), dict(note))

    def keep(self, versions: int) -> None:
        """How many versions stay when the next one is written."""
        self._folder.keep = versions

    def close(self) -> None:
        """Write what was handed over, whatever becomes of it, and end the thread."""
        self._thread.shutdown()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _write(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        if self._failed is None:
            try:
                self._folder.files.write(name, chunks)
                self._folder.files.secure([name])
                self._folder.adopt({name: size})
                del self._waiting[name]
            except OSError as error:
                self._failed = failure(error, self._folder.shown, name, "written")
            except Exception as error:  # noqa: BLE001 (told with the next version)
                self._failed = error

    def _commit(self, number: int, frozen: bytes, slots: Sequence[Slot], note: Mapping[str, Any]) -> None:
        if self._failed is not None:
            raise self._failed
        self._folder.commit(number, seal(frozen), slots, note)

    def _make_room(self, coming: int) -> None:
        """Wait until no more than :data:`WAITING` bytes wait."""
        for job in list(self._bytes):
            if not job.done() and sum(self._bytes.values()) + coming <= WAITING:
                break
            job.result()
            del self._bytes[job]
