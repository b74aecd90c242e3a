"""State versions: the engine's state after each micro-batch, in a folder or object store.

The rule: version *n* is the state of all buckets after batch *n*. Tasks write state files under names that no other
attempt uses; the manifest, written last and in one step, names the files that count. So a task that is retried, or run
twice, or that dies half way, changes nothing, and a batch that is run again reads the version before it.

::

    STATE/
      0000000041/
        00000-8b1c….state       bucket 0 as one attempt left it
        00001-c04d….state
        manifest.json           batch, settings, clock, and which file belongs to which bucket
      0000000042/…

A folder without a manifest is an attempt, not a version. The last :data:`KEPT` versions stay, older ones are deleted.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from latecomer.errors import StateError

#: Versions that stay. Two are needed (a batch may run again after its version was written); one more is for people.
KEPT = 3

_MANIFEST = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Version:
    """The state after one batch.

    Attributes:
        batch: number of the micro-batch that it is the state after.
        files: bucket -> name of its state file, relative to the state folder.
        clock: the stream's clock after that batch, in the stream's units; None before the first event.
        settings: what the state depends on (queries, stream, buckets); a sink with other settings cannot use it.
        job: identity of the stream job that wrote it, where there is one.
        finished: whether the stream was declared complete with this version.
    """

    batch: int
    files: Mapping[int, str]
    clock: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: str | None = None
    finished: bool = False


class VersionStore:
    """Versions in the folder or object store at ``uri``: a local path, or any URI that ``pyarrow.fs`` opens.

    >>> import tempfile
    >>> store = VersionStore(tempfile.mkdtemp())
    >>> store.write(Version(batch=0, files={0: store.put(0, 0, b"state of bucket 0")}))
    >>> store.get(store.read(0).files[0])
    b'state of bucket 0'
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = os.fspath(uri)
        try:
            if "://" in self.uri:
                self._fs, self._root = fs.FileSystem.from_uri(self.uri)
            else:
                self.uri = str(Path(self.uri).absolute())  # tasks may run in another working directory
                self._fs, self._root = fs.LocalFileSystem(), self.uri
        except (pa.ArrowInvalid, OSError) as error:
            raise StateError(
                f"the state folder {self.uri!r} cannot be opened ({error}): give a local path or a URI like "
                "'s3://bucket/folder'"
            ) from error

    def __reduce__(self) -> tuple[type[VersionStore], tuple[str]]:
        return VersionStore, (self.uri,)

    def put(self, batch: int, bucket: int, data: bytes) -> str:
        """Write one bucket's state as a new attempt; returns the name under which a manifest may list it."""
        name = f"{batch:010d}/{bucket:05d}-{uuid.uuid4().hex}.state"
        self._fs.create_dir(f"{self._root}/{batch:010d}", recursive=True)
        with self._fs.open_output_stream(f"{self._root}/{name}") as out:
            out.write(data)
        return name

    def get(self, name: str) -> bytes:
        """The content of a state file; raises StateError when it is gone."""
        try:
            with self._fs.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError as error:
            raise StateError(
                f"{name!r} is missing in the state folder {self.uri!r}: the folder was changed from outside. "
                "Restore it, or start again with a new state folder and a new checkpoint"
            ) from error

    def batches(self) -> list[int]:
        """Numbers of the batches whose versions are complete, ascending."""
        return [number for number in self._folders() if self._exists(number)]

    def read(self, batch: int) -> Version:
        """The version after ``batch``; raises StateError when there is none or it cannot be read."""
        try:
            data = json.loads(self.get(f"{batch:010d}/{_MANIFEST}"))
            if data["format"] != _FORMAT:
                raise StateError(
                    f"the state folder {self.uri!r} has format {data['format']}, this release reads {_FORMAT}: go on "
                    "with the release that wrote it, or start with a new state folder and a new checkpoint"
                )
            files = {int(bucket): str(name) for bucket, name in data["files"].items()}
            return Version(data["batch"], files, data["clock"], data["settings"], data["job"], data["finished"])
        except (ValueError, KeyError, AttributeError) as error:
            raise StateError(f"the manifest of version {batch} in {self.uri!r} cannot be read: {error}") from error

    def before(
        self, batch: int, settings: Mapping[str, Any], job: str | None = None, *, finish: bool = False
    ) -> Version | None:
        """The version that ``batch`` has to start from; None for the first batch of all.

        ``finish``: the batch is the one that ends the stream. Raises StateError, with the reason, when the folder does
        not fit: made with other ``settings`` or by another ``job``, finished before, or without the version that comes
        before ``batch``. Without a job's name gaps are allowed.
        """
        done = self.batches()
        if not done:
            if batch > 0 and job is not None:
                raise StateError(
                    f"the job goes on with batch {batch}, and the state folder {self.uri!r} holds no version to go "
                    "on from: it was emptied, or it is not the one used before. Give that folder, or begin with a "
                    "new checkpoint"
                )
            return None
        last = self.read(done[-1])
        for name in last.settings:
            told = _difference(name, last.settings[name], settings.get(name))
            if told:
                raise StateError(
                    f"the state in {self.uri!r} was made with {told}. Go on with the former, or begin with a new state "
                    "folder and a new checkpoint"
                )
        if None not in (job, last.job) and job != last.job:
            raise StateError(
                f"the state folder {self.uri!r} belongs to job {last.job}, and this is job {job}: its checkpoint was "
                "replaced. Use the old checkpoint, or begin with a new state folder too"
            )
        if last.finished and batch >= last.batch and not finish:
            raise StateError(
                f"the stream in {self.uri!r} was finished after batch {last.batch - 1}, so batch {batch} cannot "
                "follow. Begin with a new state folder and a new checkpoint"
            )
        earlier = [number for number in done if number < batch]
        if batch > 0 and (not earlier or (job is not None and earlier[-1] != batch - 1)):
            raise StateError(
                f"the state folder {self.uri!r} holds the versions {done}, and batch {batch} needs version "
                f"{batch - 1}: checkpoint and state folder do not belong together. Use the pair, or begin anew "
                "with both"
            )
        return self.read(earlier[-1]) if earlier else None

    def write(self, version: Version) -> None:
        """Make ``version`` valid: write its manifest in one step. Then delete all but the last :data:`KEPT`."""
        folder = f"{self._root}/{version.batch:010d}"
        self._fs.create_dir(folder, recursive=True)
        record = asdict(version) | {"format": _FORMAT, "files": {str(b): n for b, n in sorted(version.files.items())}}
        text = json.dumps(record, indent=1).encode()
        local = isinstance(self._fs, fs.LocalFileSystem)
        # An object store shows a file only once it is closed; a local one needs the rename.
        target = f"{folder}/{uuid.uuid4().hex}.part" if local else f"{folder}/{_MANIFEST}"
        with self._fs.open_output_stream(target) as out:
            out.write(text)
        if local:
            self._fs.move(target, f"{folder}/{_MANIFEST}")
        for old in self._folders():
            if old <= version.batch - KEPT:
                self._fs.delete_dir(f"{self._root}/{old:010d}")

    def _folders(self) -> list[int]:
        entries = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        names = (entry.base_name for entry in entries if entry.type == fs.FileType.Directory)
        return sorted(int(name) for name in names if name.isdigit())

    def _exists(self, batch: int) -> bool:
        info = self._fs.get_file_info(f"{self._root}/{batch:010d}/{_MANIFEST}")
        return bool(info.type == fs.FileType.File)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"


def _difference(name: str, old: Any, new: Any) -> str:
    """What differs between two settings, in words; empty when nothing does."""
    if old == new:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        for part in {**old, **new}:
            if old.get(part) != new.get(part):
                return _difference(f"{name} {part!r}", old.get(part), new.get(part))
    return f"{name} {_shown(old)}, and now {name} is {_shown(new)}"
