"""State versions of a task: what its runtime was after some offset, in a state folder per task.

The rule: a version counts only if a committed offset names it. A name says the version's number and a word that only
one attempt to write it had, so a version of the same number that someone else wrote is never taken for it.

A process that has lost its partition may not know it yet and go on to write. It can do no harm: versions are numbered
above all that the folder holds, so they replace none; whoever opens a folder shuts the former writer out; and the last
few versions stay, while a process writes at most one before it learns that its commit is refused. A task that begins
without a committed offset gets a folder of its own, since what an earlier attempt has left there is of no use.

::

    STATE/orders-3/5f0c91ab/…       one StateFolder, in which versions share what has not changed between them
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyarrow import fs

from latecomer.errors import StateError
from latecomer.runtime import Runtime
from latecomer.runtime.spill import Spill
from latecomer.storage.reader import StateReader

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

#: Versions that stay: the committed one, one of a commit that failed after it, one of each of two processes that have
#: lost the partition and not learned of it.
KEPT = 4


class StateKeeper:
    """Writes and opens the versions of all tasks of a pipeline, in a folder or object store."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._stream = pipeline.stream
        self._queries = pipeline.queries
        self._memory = pipeline.memory
        uri = pipeline.state.uri
        self.uri = uri if "://" in uri else str(Path(uri).absolute())
        self._lives: WeakKeyDictionary[Runtime, str] = WeakKeyDictionary()
        self._next: WeakKeyDictionary[Runtime, int] = WeakKeyDictionary()

    def fresh(self, task: str) -> Runtime:
        """The runtime of a task that begins."""
        life = uuid.uuid4().hex[:8]
        runtime = Runtime(self._stream, list(self._queries), memory=self._memory, spill=self._spill(task, life))
        self._lives[runtime], self._next[runtime] = life, 1
        return runtime

    def save(self, runtime: Runtime, note: Mapping[str, Any]) -> str:
        """Write a version; returns its name. Raises StateError when another process has taken the task over."""
        word = uuid.uuid4().hex[:12]
        number = runtime.checkpoint({**note, "word": word}, number=self._next[runtime])
        self._next[runtime] = number + 1
        return f"{self._lives[runtime]}/{number}-{word}"

    def load(self, task: str, name: str) -> tuple[Runtime, Mapping[str, Any]]:
        """The runtime and the note of a version; raises StateError when it is gone or was made by another pipeline."""
        life, _, version = name.partition("/")
        number, _, word = version.partition("-")
        spill = self._spill(task, life)
        reader = StateReader(spill.uri)
        if int(number) not in reader.versions():
            raise StateError(
                f"the committed offset of {task} names the state {name!r}, which is not in {self.uri!r}: give the "
                "folder that was used before, or begin under another name"
            )
        runtime = Runtime.open(spill, version=int(number), memory=self._memory)
        if runtime.note.get("word") != word:
            raise StateError(
                f"the committed offset of {task} names the state {name!r}, and {self.uri!r} has another one of that "
                "number: the folder was changed from outside. Restore it, or begin under another name"
            )
        given = {q.name: q.text for q in self._queries}
        made = {q.name: q.text for q in runtime.queries}
        if given != made or runtime.stream != self._stream:
            what = next((f"query {n!r}" for n in {**made, **given} if made.get(n) != given.get(n)), "the stream")
            raise StateError(
                f"the state of {task} was made by another pipeline: {what} differs. Go on with the former file, or "
                "begin under another name"
            )
        self._lives[runtime], self._next[runtime] = life, max(reader.versions()) + 1
        return runtime, runtime.note

    def settle(self, task: str, name: str) -> None:
        """The first version of a life has been committed: remove what other attempts to begin have left."""
        life, _, version = name.partition("/")
        if not version.startswith("1-"):
            return
        files, root = self._files()
        for entry in files.get_file_info(fs.FileSelector(f"{root}/{task}", allow_not_found=True)):
            if entry.base_name != life:
                files.delete_dir(entry.path)

    def _spill(self, task: str, life: str) -> Spill:
        # No late event waits for its page: what has come out at an offset must not depend on what was in memory, or
        # messages that are read once more in silence would not leave the same state.
        return Spill(f"{self.uri.rstrip('/')}/{task}/{life}", keep=KEPT, batch=0)

    def _files(self) -> tuple[Any, str]:
        if "://" not in self.uri:
            return fs.LocalFileSystem(), self.uri
        try:
            files, root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowInvalid, OSError) as problem:
            raise StateError(f"the state folder {self.uri!r} cannot be opened: {problem}") from problem
        return files, root
