"""State versions of a task: what its runtime was after some offset, under a name that nothing else ever has.

The rule: a version counts only if a committed offset names it. Names are unique to each attempt to write one, so a
process that wrongly believes to own a partition may write versions, but no offset will ever name them. Versions are
removed only by a process that has just committed a later one, and only those that are earlier than the last few:
whatever a process that has lost its partition may still do, it cannot remove what its successor needs.

::

    STATE/orders-3/0000000017-5f0c….state
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from latecomer.errors import StateError
from latecomer.runtime import Runtime
from latecomer.storage.packing import pack, unpack

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

#: Versions that stay behind the committed one: for a broker that forgets its last commit, and for people.
KEPT = 3


class StateKeeper:
    """Writes and opens the versions of all tasks of a pipeline, in a folder or object store."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._stream = pipeline.stream
        self._queries = pipeline.queries
        self.uri = pipeline.state.uri
        try:
            if "://" in self.uri:
                self._fs, self._root = fs.FileSystem.from_uri(self.uri)
            else:
                self._fs, self._root = fs.LocalFileSystem(), str(Path(self.uri).absolute())
        except (pa.ArrowInvalid, OSError) as problem:
            raise StateError(
                f"the state folder {self.uri!r} cannot be opened ({problem}): give a local path that every process of "
                "the pipeline sees, or a URI like 's3://bucket/folder'"
            ) from problem

    def fresh(self) -> Runtime:
        """The runtime of a task that begins."""
        return Runtime(self._stream, list(self._queries))

    def save(self, task: str, runtime: Runtime, note: Mapping[str, Any], after: str | None) -> str:
        """Write a version that follows the version ``after``; returns its name."""
        number = 1 if after is None else int(after.split("-", 1)[0]) + 1
        name = f"{number:010d}-{uuid.uuid4().hex}"
        folder = f"{self._root}/{task}"
        data = pack({"runtime": runtime.snapshot(), "note": dict(note)})
        local = isinstance(self._fs, fs.LocalFileSystem)
        self._fs.create_dir(folder, recursive=True)
        # An object store shows a file only once it is closed; a local one needs the rename.
        target = f"{folder}/{name}.part" if local else f"{folder}/{name}.state"
        with self._fs.open_output_stream(target) as out:
            out.write(data)
        if local:
            self._fs.move(target, f"{folder}/{name}.state")
        return name

    def load(self, task: str, name: str) -> tuple[Runtime, Mapping[str, Any]]:
        """The runtime and the note of a version; raises StateError when it is gone or was made by another pipeline."""
        path = f"{self._root}/{task}/{name}.state"
        try:
            with self._fs.open_input_stream(path) as file:
                saved = unpack(bytes(file.read()))
        except FileNotFoundError as problem:
            raise StateError(
                f"the committed offset of {task} names the state {name!r}, which is not in {self.uri!r}: give the "
                "folder that was used before, or begin under another name"
            ) from problem
        runtime = Runtime.restore(saved["runtime"])
        given = {q.name: q.text for q in self._queries}
        made = {q.name: q.text for q in runtime.queries}
        if given != made or runtime.stream != self._stream:
            what = next((f"query {n!r}" for n in {**made, **given} if made.get(n) != given.get(n)), "the stream")
            raise StateError(
                f"the state of {task} was made by another pipeline: {what} differs. Go on with the former file, or "
                "begin under another name"
            )
        return runtime, saved["note"]

    def settle(self, task: str, name: str) -> None:
        """``name`` has been committed: remove versions that are too old to be needed."""
        last = int(name.split("-", 1)[0]) - KEPT
        for entry in self._fs.get_file_info(fs.FileSelector(f"{self._root}/{task}", allow_not_found=True)):
            number = entry.base_name.split("-", 1)[0]
            if number.isdigit() and int(number) < last:
                try:
                    self._fs.delete_file(entry.path)
                except FileNotFoundError:
                    continue  # someone else removed it
