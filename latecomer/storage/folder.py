"""The state folder: a shelf on disk or in an object store, with versions that survive any crash.

The rule: files are only ever added, and one record, which appears last and in one step, makes them a version. So a
crash between any two operations leaves the last complete version as it was, and at most some files that nothing names.
A file is deleted when no version that is kept names it and the writer does not need it.

One writer at a time. A writer *claims* the folder and takes the next epoch; whoever wrote before is fenced: its next
``put`` or ``commit`` raises. Between the moment a former writer last looked and the moment its record appears another
one may take over; that record counts then only if the new writer has seen it, and is shut out otherwise (see
:mod:`latecomer.storage.versions`). The state is always that of one line of writers, never a mixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from latecomer.errors import ConfigError, StateError
from latecomer.storage import versions
from latecomer.storage.attempts import write_blobs
from latecomer.storage.claims import Claim
from latecomer.storage.files import failure
from latecomer.storage.reader import StateReader
from latecomer.storage.shelf import Slot
from latecomer.storage.versions import Version


class StateFolder(StateReader):
    """A :class:`~latecomer.storage.shelf.Shelf` whose content outlives the process, version by version.

    >>> import tempfile
    >>> folder = StateFolder(tempfile.mkdtemp())
    >>> folder.claim()
    1
    >>> slots = folder.put([b"page 0", b"page 1"])
    >>> version = folder.commit(0, b"all else", slots, {"offset": 17})
    >>> again = StateFolder(folder.shown)
    >>> version = again.read(again.versions()[-1])
    >>> version.note["offset"], again.residue(version), again.get(slots[1])
    (17, b'all else', b'page 1')
    """

    def __init__(self, uri: str | os.PathLike[str], *, keep: int = 2, sync: bool = True) -> None:
        """``keep``: versions that stay, 1 or more. ``sync=False``: a local folder need not survive the machine's crash.

        Touches nothing yet. Raises StateError when ``uri`` cannot be opened.
        """
        if keep < 1:
            raise ConfigError(f"keep is {keep}: at least 1 version has to stay")
        super().__init__(uri, sync=sync)
        self.keep = keep
        self._claim: Claim | None = None
        self._step = 0
        self._kept: list[Version] = []
        self._records: set[str] = set()  # records that may be there
        self._sizes: dict[str, int] = {}  # blob files that may be there, with their sizes
        self._live: dict[str, set[int]] = {}  # of the files that this writer has put: where the blobs not freed begin
        self._loose: set[str] = set()  # files that this writer has put and that are not durable yet
        self._doubt: set[str] = set()  # files of a record of which it is not known whether it has appeared

    def claim(self) -> int:
        """Become the writer; returns the epoch. What dead writers have left and no version names is deleted.

        Whatever this object has put and not committed is gone, too. Raises StateError when another writer claims at the
        same moment and wins, or when the folder cannot be used.
        """
        for _, name in self.standing()[1]:
            self.record(name)  # a state that cannot be read is left to the writer that it has
        there = [*self.listed("claims"), *self.listed("versions")]
        self._claim = Claim(self.files, self.shown, 1 + max(map(versions.epoch_of, there), default=0))
        names = [name for _, name in self.standing()[1]]  # whoever has committed before the claim is among them
        self._kept = [self.record(name) for name in names]
        self._sizes = {name: size for version in self._kept for name, size in version.files.items()}
        self._live, self._loose, self._doubt, self._step = {}, set(), set(), 0
        takeover = versions.record_name(self._claim.writer, 0, None)
        self._records = {*names, takeover}
        self._publish(f"versions/{takeover}", versions.encode(None, names))
        self._sweep_strangers(self._claim.writer)
        return self._claim.epoch

    @property
    def writer(self) -> str:
        """The name that the files of this writer begin with. Raises StateError unless the claim holds."""
        return self._mine().writer

    def _mine(self) -> Claim:
        """The claim, which holds. Raises StateError otherwise."""
        if self._claim is None:
            raise StateError(f"the state folder {self.shown!r} was not claimed: call claim() before writing")
        self._claim.check()
        return self._claim

    # --- the shelf ---

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        """Write ``blobs`` to one new file; durable with the version that names them. Raises StateError when fenced, or
        when it fails."""
        claim = self._mine()
        if not blobs:
            return []
        slots = self._write(claim, blobs)
        self._live[slots[0][0]] = {offset for _, offset, _ in slots}
        return slots

    def get(self, slot: Slot) -> bytes:
        """The blob in ``slot``, verified. Raises StateError that names the file, what is wrong and what to do."""
        try:
            return super().get(slot)
        except StateError as error:
            if self._claim is not None and isinstance(error.__cause__, FileNotFoundError):
                self._claim.check()  # whoever has taken over may have deleted it
            raise

    def free(self, slots: Iterable[Slot]) -> None:
        """This state does not need these blobs any more, and no later commit names them."""
        empty = []
        for name, offset, _ in slots:
            live = self._live.get(name)
            if live is not None:
                live.discard(offset)
                if not live:
                    del self._live[name]
                    empty.append(name)
        self._sweep(empty)

    # --- files of tasks ---

    def adopt(self, files: Mapping[str, int]) -> None:
        """Take over files (name to size) that an :class:`~latecomer.storage.attempts.Attempt` has put and secured.

        The next commit may name their slots; what it does not name is deleted. Raises StateError for files that were
        put for another writer, and when fenced.
        """
        writer = self._mine().writer
        for name in files:
            if versions.writer_of(name.removeprefix("blobs/")) != writer:
                raise StateError(
                    f"{name!r} was not written for {writer!r}, who writes the state folder {self.shown!r} now: adopt "
                    "what attempts of this claim have put"
                )
        self._sizes.update(files)

    def collect(self) -> None:
        """Delete what attempts have put for this writer and nobody adopted, like that of a task that ran twice.

        Only between a commit and the next attempt that is to count.
        """
        writer = self._mine().writer
        try:
            names = [f"blobs/{name}" for name in self.files.list("blobs") if versions.writer_of(name) == writer]
        except OSError:
            return  # what stays takes up space and does nothing else
        self._delete([name for name in names if name not in self._sizes])

    # --- versions ---

    def commit(self, number: int, residue: bytes, slots: Iterable[Slot], note: Mapping[str, Any]) -> Version:
        """Make a version: ``residue``, every blob in ``slots``, and ``note`` (plain JSON).

        ``slots`` are all that the state still needs; each was put by this writer, or adopted, or is in a version that
        is kept. A version of the same or a higher number is replaced. Of the earlier ones the last ``keep - 1`` stay.

        Raises StateError when fenced or when writing fails: the last version is as it was, and the commit may be tried
        again. After a failure in its very last step the version may be there all the same; the next one replaces it.
        """
        if number < 0:
            raise ConfigError(f"the version number is {number}: it has to be 0 or more")
        claim = self._mine()
        names = {slot[0] for slot in slots}
        unknown = sorted(names - self._sizes.keys())
        if unknown:
            raise StateError(
                f"version {number} names {unknown[0]!r}, which is neither put by this writer nor in a kept version of "
                f"{self.shown!r}: commit only slots that are still held"
            )
        earlier = [version for version in self._kept if version.number < number]
        kept = earlier[max(len(earlier) - self.keep + 1, 0) :]
        self._step += 1
        version = Version(
            number, claim.epoch, ("", 0, 0), {}, note, versions.record_name(claim.writer, self._step, number)
        )
        try:
            versions.encode(version, [])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the note of version {number} is not plain JSON: {error}") from error
        place = self._write(claim, [residue])[0]
        version = replace(
            version, residue=place, files={name: self._sizes[name] for name in sorted({*names, place[0]})}
        )
        self._secure(self._loose & version.files.keys())
        self._doubt |= version.files.keys()
        self._records.add(version.name)
        self._publish(f"versions/{version.name}", versions.encode(version, [old.name for old in kept]))
        self._kept = [*kept, version]
        claim.check()
        self._doubt = set()
        doomed = self._records - {old.name for old in self._kept}
        if self._delete([f"versions/{name}" for name in doomed]):
            self._records -= doomed
        self._sweep(list(self._sizes))
        return version

    # --- files ---

    def _write(self, claim: Claim, blobs: Sequence[bytes]) -> list[Slot]:
        slots, size = write_blobs(self.files, self.shown, claim.writer, blobs)
        self._sizes[slots[0][0]] = size
        self._loose.add(slots[0][0])
        return slots

    def _secure(self, names: set[str]) -> None:
        """Make files durable, before a record names them: a put that no version needs is never waited for."""
        try:
            self.files.secure(sorted(names))
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._mine()  # whoever has taken over deletes what others have begun
            failed = [name for name in names if str(error.filename).endswith(name)]
            raise failure(error, self.shown, failed[0] if failed else min(names), "written") from error
        self._loose -= names

    def _publish(self, name: str, data: bytes) -> None:
        try:
            self.files.publish(name, data)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._mine()  # whoever has taken over deletes what others have begun
            raise failure(error, self.shown, name, "written") from error

    def _sweep(self, candidates: Iterable[str]) -> None:
        """Delete those of the blob files that neither a kept version nor the state needs."""
        if self._claim is None or self._claim.fenced:
            return
        needed = [self._live, self._doubt, *(version.files for version in self._kept)]
        doomed = [name for name in candidates if not any(name in some for some in needed)]
        if self._delete(doomed):
            for name in doomed:
                del self._sizes[name]
                self._loose.discard(name)

    def _sweep_strangers(self, writer: str) -> None:
        """Delete what former writers have left and nothing names."""
        for folder, needed in (("claims", ()), ("versions", self._records), ("blobs", self._sizes)):
            try:
                names = [name for name in self.files.list(folder) if "" < versions.writer_of(name) < writer]
            except OSError:
                continue
            self._delete(
                [f"{folder}/{name}" for name in names if name not in needed and f"{folder}/{name}" not in needed]
            )

    def _delete(self, names: Sequence[str]) -> bool:
        """Delete files that nothing needs; whether it worked. What stays takes up space and does nothing else."""
        try:
            self.files.delete(names)
        except OSError:
            return False
        return True
