"""The state folder of a pipeline without brokers: who may use it, and the runtime that it holds.

::

    STATE/lock        held by the process that uses it
    STATE/journal/    what was taken in and is in no version yet
    STATE/state/      versions of the runtime
    STATE/logs/       changes, late events, dead letters
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from latecomer.errors import StateError
from latecomer.query import Query
from latecomer.runtime import Runtime
from latecomer.runtime.spill import Spill
from latecomer.storage.reader import StateReader
from latecomer.stream import Stream


def opened(stream: Stream, queries: Sequence[Query], spill: Spill, memory: int | None) -> Runtime:
    """The runtime of the newest version in the folder; of a folder without one, a new runtime."""
    if not StateReader(spill.uri).versions():
        return Runtime(stream, list(queries), memory=memory, spill=spill)
    runtime = Runtime.open(spill, memory=memory)
    given = {q.name: q.text for q in queries}
    made = {q.name: q.text for q in runtime.queries}
    if given != made or runtime.stream != stream:
        what = next((f"query {n!r}" for n in {**made, **given} if made.get(n) != given.get(n)), "the stream")
        raise StateError(
            f"the state in {str(spill.uri)!r} was made by another pipeline: {what} differs. Go on with the former "
            "file, or begin with another state folder"
        )
    return runtime


def locked(folder: Path) -> int:
    """Keep the folder, made where there is none, for this process; the lock goes when the process ends, however
    it does. Raises StateError for one that is in use or cannot be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        other = isinstance(problem, FileExistsError | NotADirectoryError)
        told = "something else is there" if other else problem.strerror
        raise StateError(
            f"the state folder {str(folder)!r} cannot be written: {told}. Make it writable, or give another folder"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StateError(
            f"the state folder {str(folder)!r} is in use by another process: stop that, or give another folder"
        ) from None
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    return handle
