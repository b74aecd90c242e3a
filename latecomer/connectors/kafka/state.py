"""State versions of a task: what its runtime was after some offset, in a state folder per task.

The rule: a version counts only if a committed offset names it. A name says the version's number and a word that only
one attempt to write it had, so a version of the same number that someone else wrote is never taken for it.

A version is written beside the loop (:mod:`latecomer.connectors.kafka.shelf`): the loop stops only to freeze what the
state is, and goes on; a commit names the version once it is there.

A process that has lost its partition may not know it yet and go on to write. It can do no harm: versions are numbered
above all that the folder holds, so they replace none; whoever opens a folder shuts the former writer out; and the last
few versions stay, while a process writes at most one before it learns that its commit is refused. What was written
after the version that an offset names does not push that out, however many processes die before they name theirs. A
task that begins without a committed offset gets a folder of its own, since what an earlier attempt has left there is of
no use.

::

    STATE/orders-3/5f0c91ab/…       one StateFolder, in which versions share what has not changed between them
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import fs

from latecomer.connectors.kafka.shelf import WrittenBeside
from latecomer.errors import StateError
from latecomer.runtime import Runtime
from latecomer.storage.folder import StateFolder

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

#: Versions that stay: the committed one, one of a commit that failed after it, one of each of two processes that have
#: lost the partition and not learned of it.
KEPT = 4
#: A version holds changes itself, which is five times as quick as to sort them onto the shelf, while they are no more
#: than this many times what has come since the last version,
SHARE = 4
#: at so many bytes an event; but always this much, so that the shelf is not strewn with small files,
EVENT, LEAST = 64, 256 << 10
#: and never more than this.
MOST = 16 << 20


@dataclass(frozen=True, slots=True)
class Saving:
    """A version on its way: its name once ``done``, which raises StateError when it cannot be written."""

    name: str
    done: Future[None]


@dataclass(slots=True)
class _Kept:
    """Where the versions of a runtime go."""

    shelf: WrittenBeside
    life: str
    number: int  # of the next version
    events: int  # that the runtime had seen at the last one


class StateKeeper:
    """Writes and opens the versions of all tasks of a pipeline, in a folder or object store."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._stream = pipeline.stream
        self._queries = pipeline.queries
        self._memory = pipeline.memory
        uri = pipeline.state.uri
        self.uri = uri if "://" in uri else str(Path(uri).absolute())
        self._kept: WeakKeyDictionary[Runtime, _Kept] = WeakKeyDictionary()
        self._shelves: dict[str, WrittenBeside] = {}  # by task

    def fresh(self, task: str) -> Runtime:
        """The runtime of a task that begins."""
        life = uuid.uuid4().hex[:8]
        folder = self._folder(task, life)
        folder.claim()
        return self._runtime(task, folder, Runtime(self._stream, list(self._queries)).snapshot(), life, 1)

    def begin(self, runtime: Runtime, note: Mapping[str, Any]) -> Saving:
        """Begin to write a version of the state as it is now."""
        kept = self._kept[runtime]
        word, number = uuid.uuid4().hex[:12], kept.number
        events = runtime.counters["rows"]
        come, kept.events, kept.number = events - kept.events, events, number + 1
        most = min(max(come * EVENT * SHARE, LEAST), MOST, MOST if self._memory is None else self._memory // 8)
        frozen, slots = runtime.freeze(most)
        done = kept.shelf.version(number, frozen, slots, {**note, "word": word})
        return Saving(f"{kept.life}/{number}-{word}", done)

    def save(self, runtime: Runtime, note: Mapping[str, Any]) -> str:
        """Write a version; returns its name. Raises StateError when another process has taken the task over."""
        saving = self.begin(runtime, note)
        saving.done.result()
        return saving.name

    def load(self, task: str, name: str) -> tuple[Runtime, Mapping[str, Any]]:
        """The runtime and the note of a version; raises StateError when it is gone or was made by another pipeline."""
        self.release(task)
        life, _, version = name.partition("/")
        number, _, word = version.partition("-")
        folder = self._folder(task, life)
        if int(number) not in folder.versions():
            raise StateError(
                f"the committed offset of {task} names the state {name!r}, which is not in {self.uri!r}: give the "
                "folder that was used before, or begin under another name"
            )
        folder.residue(folder.read(int(number)))  # a state that cannot be read is left to its writer
        folder.claim()
        found = folder.read(int(number))
        # What processes have written that died before any offset named it does not push out what is named.
        folder.keep = KEPT + sum(other > int(number) for other in folder.versions())
        if found.note.get("word") != word:
            raise StateError(
                f"the committed offset of {task} names the state {name!r}, and {self.uri!r} has another one of that "
                "number: the folder was changed from outside. Restore it, or begin under another name"
            )
        runtime = self._runtime(task, folder, folder.residue(found), life, max(folder.versions()) + 1)
        given = {q.name: q.text for q in self._queries}
        made = {q.name: q.text for q in runtime.queries}
        if given != made or runtime.stream != self._stream:
            what = next((f"query {n!r}" for n in {**made, **given} if made.get(n) != given.get(n)), "the stream")
            raise StateError(
                f"the state of {task} was made by another pipeline: {what} differs. Go on with the former file, or "
                "begin under another name"
            )
        return runtime, found.note

    def release(self, task: str) -> None:
        """The task is given up: wait until what it has handed over is written, or cannot be."""
        shelf = self._shelves.pop(task, None)
        if shelf is not None:
            shelf.close()

    def settle(self, task: str, name: str) -> None:
        """A version has been committed; of the first of a life, remove what other attempts to begin have left."""
        if task in self._shelves:
            self._shelves[task].keep(KEPT)
        life, _, version = name.partition("/")
        if not version.startswith("1-"):
            return
        files, root = self._files()
        for entry in files.get_file_info(fs.FileSelector(f"{root}/{task}", allow_not_found=True)):
            if entry.base_name != life:
                files.delete_dir(entry.path)

    def _folder(self, task: str, life: str) -> StateFolder:
        return StateFolder(f"{self.uri.rstrip('/')}/{task}/{life}", keep=KEPT)

    def _runtime(self, task: str, folder: StateFolder, residue: bytes, life: str, number: int) -> Runtime:
        # No late event waits for its page: what has come out at an offset must not depend on what was in memory, or
        # messages that are read once more in silence would not leave the same state.
        self.release(task)
        shelf = WrittenBeside(folder)
        runtime = Runtime.resume(residue, shelf, memory=self._memory, batch=0)
        self._shelves[task] = shelf
        self._kept[runtime] = _Kept(shelf, life, number, runtime.counters["rows"])
        return runtime

    def _files(self) -> tuple[Any, str]:
        if "://" not in self.uri:
            return fs.LocalFileSystem(), self.uri
        try:
            files, root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as problem:
            raise StateError(f"the state folder {self.uri!r} cannot be opened: {problem}") from problem
        return files, root
