"""Upkeep of a state folder: is every blob whole, and what can go?

The rule: upkeep is no writer. It runs beside one, never changes what the last record says, and deletes only what no
version that stays can need and no writer can be about to name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from latecomer.errors import ConfigError, StateError
from latecomer.storage import blobs, versions
from latecomer.storage.claims import last_claim
from latecomer.storage.files import failure
from latecomer.storage.reader import StateReader
from latecomer.storage.versions import Version


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not as it was written.

    Attributes:
        file: its name, relative to the folder.
        problem: what is wrong with it.
        versions: numbers of the kept versions that need it.
    """

    file: str
    problem: str
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What :func:`verify` has looked at, and what it has found."""

    versions: tuple[int, ...]
    files: int
    blobs: int
    nbytes: int
    damages: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What :func:`prune` has deleted, or would.

    Attributes:
        versions: numbers of the versions dropped.
        files: names of the files deleted, relative to the folder.
        nbytes: their size.
        held: whether a writer has claimed the folder and not committed yet; then every version stays, as it may go on
            from any of them.
    """

    versions: tuple[int, ...]
    files: tuple[str, ...]
    nbytes: int
    held: bool


def verify(folder: StateReader) -> Checked:
    """Read every blob of every kept version, and compare it with its checksum. O(size of the state).

    Where the last record itself is damaged, the versions before it are looked at, since they count without it.
    Raises StateError when the folder cannot be listed.
    """
    damages: list[Damage] = []
    whole: list[Version] = []
    try:
        names = [name for _, name in folder.standing()[1]]
    except StateError:
        names = [name for name in sorted(folder.listed("versions")) if versions.number_of(name) is not None]
        if not names and (blobs_there := folder.listed("blobs")):
            problem = f"is missing or empty: nothing tells what the {len(blobs_there)} files in blobs/ are parts of"
            damages.append(Damage("versions", problem, ()))
    for name in names:
        try:
            whole.append(folder.record(name))
        except StateError as error:
            damages.append(Damage(f"versions/{name}", _problem(error), (versions.number_of(name) or 0,)))
    sizes = {file: size for version in whole for file, size in version.files.items()}
    count = 0
    broken: dict[str, list[str]] = {}
    there = folder.listed("blobs")
    for file, size in sorted(sizes.items()):
        found = there.get(file.removeprefix("blobs/"))
        if found != size:
            broken[file] = ["is missing" if found is None else f"has {found} bytes, and should have {size}"]
            continue
        flaws = _flaws(folder, file, size)
        count += len(flaws)
        if problems := [flaw for flaw in flaws if flaw]:
            broken[file] = problems
    if broken:  # a writer may have dropped a version since
        left = folder.listed("versions")
        whole = [version for version in whole if version.name in left]
    for file, problems in broken.items():
        if needing := tuple(version.number for version in whole if file in version.files):
            damages += [Damage(file, problem, needing) for problem in problems]
    return Checked(tuple(v.number for v in whole), len(sizes), count, sum(sizes.values()), tuple(damages))


def prune(folder: StateReader, keep: int | None = None, *, dry_run: bool = False) -> Pruned:
    """Drop all but the last ``keep`` versions (None: none), and delete what nothing can need any more.

    A blob file that no version names stays while its writer may still name it: until a later writer has claimed the
    folder. ``dry_run``: only say what would go. Raises StateError, and deletes nothing, when a record is damaged.
    """
    if keep is not None and keep < 1:
        raise ConfigError(f"keep is {keep}: at least 1 version has to stay")
    last, counting = folder.standing()
    if last is None:
        return Pruned((), (), 0, held=False)
    held = versions.number_of(last) is None
    cut = max(len(counting) - keep, 0) if keep is not None and not held else 0
    dropped, stay = counting[:cut], [name for _, name in counting[cut:]]
    needed = {file for name in stay for file in folder.record(name).files}
    unneeded = {file for _, name in dropped for file in folder.record(name).files} - needed
    doomed = {
        "claims": _before(folder, "claims", last_claim(folder.files, folder.shown), ()),
        "versions": _before(folder, "versions", last, stay),
        "blobs": {
            f"blobs/{name}": size
            for name, size in folder.listed("blobs").items()
            if f"blobs/{name}" in unneeded
            or ("" < versions.writer_of(name) < versions.writer_of(last) and f"blobs/{name}" not in needed)
        },
    }
    for kind, files in doomed.items():  # a record goes, for good, before what it names
        if files and not dry_run:
            try:
                folder.files.delete(list(files))
                folder.files.settle(kind)
            except OSError as error:
                raise failure(error, folder.shown, kind, "deleted") from error
    sizes = {file: size for files in doomed.values() for file, size in files.items()}
    return Pruned(tuple(number for number, _ in dropped), tuple(sizes), sum(sizes.values()), held)


def unnamed(folder: StateReader) -> dict[str, int]:
    """Blob files that no kept version names, with their sizes: a writer's, or left by one that has died."""
    named = {file for _, name in folder.standing()[1] for file in folder.record(name).files}
    listed = {f"blobs/{name}": size for name, size in folder.listed("blobs").items()}
    return {file: size for file, size in listed.items() if file not in named}


def _before(folder: StateReader, kind: str, last: str, stay: Collection[str]) -> dict[str, int]:
    """Files of ours whose names come before ``last``, but for those in ``stay``."""
    names = folder.listed(kind).items()
    return {f"{kind}/{name}": n for name, n in names if versions.writer_of(name) and name < last and name not in stay}


def _flaws(folder: StateReader, file: str, size: int) -> list[str | None]:
    """For each blob of a file what is wrong with it, None where nothing is."""
    try:
        return list(blobs.flaws(lambda offset, length: folder.files.read(file, offset, length), size))
    except FileNotFoundError:
        return ["is missing"]
    except OSError as error:
        return [f"cannot be read: {error}"]


def _problem(error: StateError) -> str:
    return str(error.__cause__ or error)
