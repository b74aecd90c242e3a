"""Reading a state folder: which versions there are, and the blobs that they name.

::

    STATE/
      claims/     who is the writer: one small file, from the writer with the highest epoch
      versions/   records, see :mod:`latecomer.storage.versions`
      blobs/      blob files, see :mod:`latecomer.storage.blobs`; their names begin with their writer's

The rule: reading changes nothing and needs no lock. Whoever has read a version can read its blobs for as long as the
version is kept, whatever a writer does meanwhile.
"""

from __future__ import annotations

import os

from latecomer.errors import StateError
from latecomer.storage import blobs, versions
from latecomer.storage.claims import has_ended, last_claim, named
from latecomer.storage.files import failure, open_files
from latecomer.storage.shelf import Slot
from latecomer.storage.versions import Version

#: A record may be dropped between the listing and the reading; as often as this in a row, something is wrong.
_TRIES = 10


class StateReader:
    """The state in the folder at ``uri``: a local path, or any URI that ``pyarrow.fs`` opens, else fsspec."""

    def __init__(self, uri: str | os.PathLike[str], *, sync: bool = True) -> None:
        self.files, self.shown = open_files(uri, sync=sync)

    def versions(self) -> list[int]:
        """Numbers of the complete versions, ascending."""
        return [number for number, _ in self.standing()[1]]

    def read(self, number: int) -> Version:
        """The version of this number. Raises StateError when there is none, or its record is damaged."""
        counting = dict(self.standing()[1])
        if number not in counting:
            there = ", ".join(map(str, counting)) or "none"
            raise StateError(f"the state folder {self.shown!r} holds no version {number}; it holds: {there}")
        return self.record(counting[number])

    def residue(self, version: Version) -> bytes:
        """The state's own part of a version. Raises StateError as :meth:`get` does."""
        return self.get(version.residue)

    def get(self, slot: Slot) -> bytes:
        """The blob in ``slot``, verified. Raises StateError that names the file, what is wrong and what to do."""
        name, offset, length = slot
        try:
            return blobs.content(self.files.read(name, *blobs.extent((name, offset, length))), (name, offset, length))
        except OSError as error:
            raise failure(error, self.shown, name, "read") from error
        except ValueError as error:
            raise self._broken(name, str(error)) from error

    def standing(self) -> tuple[str | None, list[tuple[int, str]]]:
        """The name of the last record; and of each version that counts number and record name, ascending by number."""
        for _ in range(_TRIES):
            names = self.listed("versions")
            last = versions.last_record(names)
            if last is None:
                if self.listed("blobs") and not self.listed("versions"):  # looked at again: a writer may just begin
                    raise StateError(
                        f"'versions' in the state folder {self.shown!r} is missing or empty, and there are blobs that "
                        "only records there make a state of. The folder is left as it is: put 'versions' back from a "
                        "copy, or begin in an empty folder"
                    )
                return None, []
            try:
                kept = self._decoded(last)[1]
            except StateError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    continue
                raise
            counting = [*(name for name in kept if name in names), last]
            return last, sorted((number, name) for name in counting if (number := versions.number_of(name)) is not None)
        raise StateError(f"the state folder {self.shown!r} changes faster than it can be read: try again")

    def holder(self) -> str | None:
        """Who has the last claim, in words; None where nobody has, or a process of this machine that is no more."""
        last = last_claim(self.files, self.shown)
        return None if not last or has_ended(self.files, last) else named(self.files, last)

    def record(self, name: str) -> Version:
        """The version that this record is of. Raises StateError when it is missing or damaged."""
        version, _ = self._decoded(name)
        if version is None:
            raise self._broken(f"versions/{name}", "is damaged: it is no version")
        return version

    def _decoded(self, name: str) -> tuple[Version | None, list[str]]:
        file = f"versions/{name}"
        try:
            return versions.decode(self.files.read(file), name)
        except OSError as error:
            raise failure(error, self.shown, file, "read") from error
        except versions.OtherFormat as error:
            raise StateError(f"{file!r} in the state folder {self.shown!r} {error}") from error
        except ValueError as error:
            raise self._broken(file, str(error)) from error

    def listed(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files in ``claims``, ``versions`` or ``blobs``."""
        try:
            return self.files.list(folder)
        except OSError as error:
            raise failure(error, self.shown, folder, "read") from error

    def _broken(self, file: str, problem: str) -> StateError:
        cure = (
            self._without(file.removeprefix("versions/"))
            if file.startswith("versions/")
            else "put it back from a copy, or go on from a version that `latecomer state verify` finds whole"
        )
        return StateError(f"{file!r} in the state folder {self.shown!r} {problem}. The folder is left as it is: {cure}")

    def _without(self, name: str) -> str:
        """What to do about a record that is damaged."""
        earlier = [other for other in self.listed("versions") if versions.number_of(other) is not None and other < name]
        if earlier:
            return "move it away, and the version before it counts again"
        return "put it back from a copy, since there is no version before it, or begin in an empty folder"
