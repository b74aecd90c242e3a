"""State versions: the state of all buckets after each micro-batch, in a state folder.

The rule: version *n* is the state of all buckets after batch *n*. The driver is the folder's writer; tasks put what has
changed in their buckets on its behalf, each attempt into files of its own, and the driver's commit names those that
count. So a task that is retried, or run twice, or that dies half way, changes nothing, and a batch that is run again
reads the version before it. What a commit does not name is deleted. The last :data:`KEPT` versions stay.

A version's note says what it depends on; its residue is the table of buckets: where each one's own residue is, and
which files hold its pages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from latecomer.errors import StateError
from latecomer.storage.attempts import Attempt
from latecomer.storage.folder import StateFolder
from latecomer.storage.packing import pack, unpack
from latecomer.storage.shelf import Slot

#: Versions that stay. Two are needed (a batch may run again after its version was written); one more is for people.
KEPT = 3


@dataclass(frozen=True, slots=True)
class BucketState:
    """The state of one bucket in a version.

    Attributes:
        residues: where its own parts are, which are read at once: one for each set of queries that began together.
        pages: of each file that holds other parts of it, one slot.
        clock: the stream's clock as far as the bucket knows of it, in units.
        load: what the bucket reported when it last ran: see :class:`~latecomer.connectors.spark_progress.Meter`.
    """

    residues: tuple[Slot, ...]
    pages: tuple[Slot, ...] = ()
    clock: int | None = None
    load: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Version:
    """The state after one batch.

    Attributes:
        batch: number of the micro-batch that it is the state after.
        clock: the stream's clock after that batch, in the stream's units; None before the first event.
        settings: what the state depends on (queries, stream, buckets); a sink with other settings cannot use it.
        job: identity of the stream job that wrote it, where there is one.
        finished: whether the stream was declared complete with this version.
    """

    batch: int
    clock: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: str | None = None
    finished: bool = False


class VersionStore:
    """Versions in the state folder at ``uri``: a local path, or any URI that pyarrow.fs or fsspec opens.

    >>> import tempfile
    >>> store = VersionStore(tempfile.mkdtemp())
    >>> store.open(0, {"buckets": 1})
    >>> attempt = store.attempts()()
    >>> states = {0: BucketState(tuple(attempt.put([b"state of bucket 0"])))}
    >>> store.write(Version(batch=0, settings={"buckets": 1}), states, attempt.sizes)
    >>> store.get(*store.buckets(0)[0].residues)
    b'state of bucket 0'
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = os.fspath(uri)
        self._folder = StateFolder(uri, keep=KEPT)
        if "://" not in self.uri:
            self.uri = self._folder.shown  # tasks may run in another working directory
        self._writes = False

    def __reduce__(self) -> tuple[type[VersionStore], tuple[str]]:
        return VersionStore, (self.uri,)

    def attempts(self) -> Callable[[], Attempt]:
        """What makes the shelf of one attempt at a task; it can be sent to where tasks run."""
        return partial(Attempt, self.uri, self._folder.writer)

    def get(self, slot: Slot) -> bytes:
        """The blob in ``slot``; raises StateError when it is gone or damaged."""
        return self._folder.get(slot)

    def batches(self) -> list[int]:
        """Numbers of the batches whose versions are complete, ascending."""
        return self._folder.versions()

    def read(self, batch: int) -> Version:
        """The version after ``batch``; raises StateError when there is none or it cannot be read."""
        note = self._folder.read(batch).note
        try:
            return Version(batch, note["clock"], note["settings"], note["job"], note["finished"])
        except KeyError as error:
            raise StateError(
                f"version {batch} in {self._folder.shown!r} is not that of a PatternSink: its note lacks {error}. Give "
                "the folder that this job has used before, or an empty one and a new checkpoint"
            ) from error

    def buckets(self, batch: int) -> dict[int, BucketState]:
        """The states of the buckets after ``batch``; raises StateError when they cannot be read."""
        rows = unpack(self._folder.residue(self._folder.read(batch)))
        return {
            bucket: BucketState(tuple(map(_slot, residues)), tuple(map(_slot, pages)), clock, load)
            for bucket, residues, pages, clock, load in rows
        }

    def open(
        self, batch: int, settings: Mapping[str, Any], job: str | None = None, *, finish: bool = False
    ) -> Version | None:
        """Become the folder's writer, and :meth:`before`. A job that does not fit takes nothing over."""
        before = self.before(batch, settings, job, finish=finish)
        if self._writes:
            return before
        self._folder.claim()
        self._writes = True
        return self.before(batch, settings, job, finish=finish)  # the former writer may have committed meanwhile

    def rebucket(self, buckets: int, *, force: bool = False) -> tuple[int, int]:
        """Let the stream be split into up to ``buckets`` from the next batch on: the last version once more, with that
        in its settings. Returns how many were allowed and how many are in use.

        Raises StateError, and changes nothing, where more are in use, or a writer may be at work: on this machine one
        that is alive, on another one any, unless ``force`` takes the folder away from it.
        """
        where, done = repr(self._folder.shown), self.batches()
        if not done:
            raise StateError(f"the state folder {where} has no version yet: begin with the number of buckets you want")
        used = len(self.buckets(done[-1]))
        if buckets < used:
            raise StateError(f"{used} buckets are in use in {where}, and cannot be joined again: allow {used} or more")
        writer = None if force else self._folder.holder()
        if writer is not None:
            raise StateError(
                f"the writer of the state folder {where} is {writer}, and may be at work: end it first. If you know "
                "that it has ended, --force takes the folder over"
            )
        self._folder.claim()
        self._writes = True
        last = self.read(self.batches()[-1])  # whoever has committed meanwhile is among them
        settings = {**last.settings, "buckets": buckets}
        self.write(replace(last, settings=settings), self.buckets(last.batch), {})
        return last.settings["buckets"], used

    def before(
        self, batch: int, settings: Mapping[str, Any], job: str | None = None, *, finish: bool = False
    ) -> Version | None:
        """The version that ``batch`` has to start from; None for the first batch of all.

        ``finish``: the batch is the one that ends the stream. Raises StateError, with the reason, when the folder does
        not fit: made with other ``settings`` or by another ``job``, finished before, or without the version that comes
        before ``batch``. Without a job's name gaps are allowed.
        """
        where = repr(self._folder.shown)
        done = self.batches()
        if not done:
            if batch > 0 and job is not None:
                raise StateError(
                    f"the job goes on with batch {batch}, and the state folder {where} holds no version to go "
                    "on from: it was emptied, or it is not the one used before. Give that folder, or begin with a "
                    "new checkpoint"
                )
            return None
        last = self.read(done[-1])
        check_settings(last.settings, settings, f"the state in {where}")
        if None not in (job, last.job) and job != last.job:
            raise StateError(
                f"the state folder {where} belongs to job {last.job}, and this is job {job}: its checkpoint was "
                "replaced. Use the old checkpoint, or begin with a new state folder too"
            )
        if last.finished and batch >= last.batch and not finish:
            raise StateError(
                f"the stream in {where} was finished after batch {last.batch - 1}, so batch {batch} cannot "
                "follow. Begin with a new state folder and a new checkpoint"
            )
        earlier = [number for number in done if number < batch]
        if batch > 0 and (not earlier or (job is not None and earlier[-1] != batch - 1)):
            raise StateError(
                f"the state folder {where} holds the versions {done}, and batch {batch} needs version "
                f"{batch - 1}: checkpoint and state folder do not belong together. Use the pair, or begin anew "
                "with both"
            )
        return self.read(earlier[-1]) if earlier else None

    def write(self, version: Version, buckets: Mapping[int, BucketState], files: Mapping[str, int]) -> None:
        """Make ``version`` valid, with these states and the ``files`` (name to size) that tasks have put for it.

        Versions of later batches are gone then, and so is all that no version needs. Raises StateError when it fails,
        or when another writer has taken the folder over; the last version is as it was.
        """
        rows = [[bucket, s.residues, s.pages, s.clock, dict(s.load)] for bucket, s in sorted(buckets.items())]
        slots = [slot for state in buckets.values() for slot in (*state.residues, *state.pages)]
        note = {name: getattr(version, name) for name in ("clock", "settings", "job", "finished")}
        self._folder.adopt(files)
        self._folder.commit(version.batch, pack(rows), slots, note)
        self._folder.collect()


def check_settings(before: Mapping[str, Any], now: Mapping[str, Any], what: str) -> None:
    """Raise StateError unless a job with the settings ``now`` may go on from ``what``, made with those ``before``.

    A query that is new, or that is not there any more, is no hindrance; one whose text has changed is.

    >>> check_settings({"queries": {"a": "A", "b": "B"}}, {"queries": {"a": "A", "c": "C"}}, "the state")
    """
    for name, old in before.items():
        new = now.get(name)
        if name == "queries":
            old, new = ({q: texts[q] for q in old if q in (new or {})} for texts in (old, new or {}))
        if told := _difference(name, old, new):
            ways = {
                "queries": "give the changed query a new name, ",
                "buckets": "change the folder with `latecomer state rebucket`, ",
            }
            raise StateError(
                f"{what} was made with {told}. Go on with the former, {ways.get(name, '')}or begin with a new state "
                "folder and a new checkpoint"
            )


def _slot(plain: list[Any]) -> Slot:
    name, offset, length = plain
    return name, offset, length


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
