"""Attempts: shelves for tasks that write on behalf of a folder's writer, in other processes and on other machines.

The rule: a task may run twice, at once or one after the other, and die at any point. So each ``put`` makes a file of
its own under the writer's name, and no file counts before the writer has adopted and committed it
(:meth:`~latecomer.storage.folder.StateFolder.adopt`). What is not adopted is collected.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence

from latecomer.storage import blobs as blob_files
from latecomer.storage.files import Files, failure
from latecomer.storage.reader import StateReader
from latecomer.storage.shelf import Slot


def write_blobs(files: Files, shown: str, writer: str, blobs: Sequence[bytes]) -> tuple[list[Slot], int]:
    """Write ``blobs`` to one new file of this writer, which is not synced yet: their slots, and the file's size.

    Raises StateError when it cannot be written.
    """
    name = f"blobs/{writer}-{uuid.uuid4().hex[:16]}"
    slots, size, chunks = blob_files.layout(name, blobs)
    try:
        files.write(name, chunks)
    except OSError as error:
        raise failure(error, shown, name, "written") from error
    return slots, size


class Attempt(StateReader):
    """A :class:`~latecomer.storage.shelf.Shelf` for one attempt at a task.

    Attributes:
        sizes: the files that this attempt has written, with their sizes in bytes: what the writer has to adopt.

    >>> import tempfile
    >>> from latecomer.storage.folder import StateFolder
    >>> folder = StateFolder(tempfile.mkdtemp())
    >>> folder.claim()
    1
    >>> attempt = Attempt(folder.shown, folder.writer)
    >>> slots = attempt.put([b"page of a task"])
    >>> attempt.secure()
    >>> folder.adopt(attempt.sizes)
    >>> folder.get(folder.commit(0, b"", slots, {}).residue), folder.get(slots[0])
    (b'', b'page of a task')
    """

    def __init__(self, uri: str | os.PathLike[str], writer: str, *, sync: bool = True) -> None:
        super().__init__(uri, sync=sync)
        self.sizes: dict[str, int] = {}
        self._writer = writer

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        """Write ``blobs`` to one new file; durable after :meth:`secure`. Raises StateError when it fails."""
        if not blobs:
            return []
        slots, size = write_blobs(self.files, self.shown, self._writer, blobs)
        self.sizes[slots[0][0]] = size
        return slots

    def secure(self) -> None:
        """Make all that was put durable: the last thing that an attempt does. Raises StateError when it fails."""
        names = sorted(self.sizes)
        try:
            self.files.secure(names)
        except OSError as error:
            raise failure(error, self.shown, names[0], "written") from error

    def free(self, slots: Iterable[Slot]) -> None:
        """Nothing: other attempts and versions may need them, and what no version names is collected."""
