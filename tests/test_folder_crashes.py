"""State folders survive: a crash after any operation, an error in any operation, and another writer between any two."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from latecomer.errors import StateError
from latecomer.storage import files
from latecomer.storage.attempts import Attempt
from latecomer.storage.folder import StateFolder
from latecomer.storage.reader import StateReader
from latecomer.storage.upkeep import prune, unnamed, verify
from tests.disk import LOSSES, Disk


def blob(text: str, size: int = 60) -> bytes:
    return (text.encode() * size)[:size]


class Writer:
    """A writer with a state: named pages, all on the shelf. It notes with each version what is in it."""

    def __init__(self, root: Path, keep: int = 2) -> None:
        self.folder = StateFolder(root, keep=keep)
        self.pages: dict[str, tuple[str, int, int]] = {}

    def claim(self) -> None:
        self.folder.claim()
        numbers = self.folder.versions()
        self.pages = held(self.folder, numbers[-1]) if numbers else {}

    def put(self, *names: str) -> None:
        slots = self.folder.put([blob(name) for name in names])
        old = [self.pages[name] for name in names if name in self.pages]
        self.pages |= dict(zip(names, slots, strict=True))
        self.folder.free(old)

    def by_task(self, *names: str) -> None:
        """The same, put by the second of two attempts at a task."""
        for _ in range(2):
            attempt = Attempt(self.folder.shown, self.folder.writer)
            slots = attempt.put([blob(name) for name in names])
            attempt.secure()
        self.folder.adopt(attempt.sizes)
        self.pages |= dict(zip(names, slots, strict=True))

    def free(self, *names: str) -> None:
        self.folder.free([self.pages.pop(name) for name in names])

    def commit(self, number: int) -> None:
        self.folder.commit(number, blob(f"residue {number}"), self.pages.values(), {"pages": self.pages})
        self.folder.collect()


def held(folder: StateReader, number: int) -> dict[str, tuple[str, int, int]]:
    """The pages of a version, each of which must be there and be what was put."""
    version = folder.read(number)
    assert folder.residue(version) == blob(f"residue {number}")
    for name, slot in version.note["pages"].items():
        assert folder.get(slot) == blob(name)
    return {name: tuple(slot) for name, slot in version.note["pages"].items()}


def standing(root: Path) -> dict[int, set[str]]:
    """The versions in a folder and the names of their pages, every byte of which is as it should be."""
    reader = StateReader(root, sync=False)
    seen = {number: set(held(reader, number)) for number in reader.versions()}
    assert verify(reader).damages == ()
    return seen


Step = Callable[[], None]


def script(root: Path) -> Iterator[tuple[Step, dict[int, set[str]]]]:
    """What two writers do one after the other; with each step, what stands after it."""
    one, two = Writer(root), Writer(root)
    yield one.claim, {}
    yield lambda: one.put("a", "b", "c"), {}
    yield lambda: one.put("d"), {}
    yield lambda: one.commit(0), {0: set("abcd")}
    yield lambda: one.put("b", "e"), {0: set("abcd")}
    yield lambda: one.free("a"), {0: set("abcd")}
    yield lambda: one.commit(1), {0: set("abcd"), 1: set("bcde")}
    yield lambda: one.free("c"), {0: set("abcd"), 1: set("bcde")}
    yield lambda: one.commit(2), {1: set("bcde"), 2: set("bde")}
    yield lambda: one.put("x"), {1: set("bcde"), 2: set("bde")}
    yield lambda: one.free("x"), {1: set("bcde"), 2: set("bde")}
    yield lambda: one.commit(3), {2: set("bde"), 3: set("bde")}
    yield lambda: one.put("lost"), {2: set("bde"), 3: set("bde")}
    yield two.claim, {2: set("bde"), 3: set("bde")}
    yield lambda: two.put("f", "d"), {2: set("bde"), 3: set("bde")}
    yield lambda: two.commit(3), {2: set("bde"), 3: set("bdef")}
    yield lambda: two.free("b", "e"), {2: set("bde"), 3: set("bdef")}
    yield lambda: two.commit(4), {3: set("bdef"), 4: set("df")}
    yield lambda: two.commit(5), {4: set("df"), 5: set("df")}
    yield lambda: two.by_task("g"), {4: set("df"), 5: set("df")}
    yield lambda: two.commit(6), {5: set("df"), 6: set("dfg")}


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory, where the system has one: thousands of folders are made and removed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
def disk(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(quick_path / "state")
    monkeypatch.setattr(files, "os", disk)
    return disk


def test_any_crash_leaves_the_last_complete_version(disk, quick_path):
    """After each change, with each kind of loss: a version that was committed stands, whole, and a writer can go on."""
    stood: dict[int, set[str]] = {}
    cases: list[tuple[int, dict[int, set[str]], dict[int, set[str]]]] = []
    for step, stands in script(quick_path / "state"):
        begun = len(disk.log)
        step()
        cases += [(count, stood, stands) for count in range(begun, len(disk.log) + 1)]
        stood = stands
    assert standing(quick_path / "state") == stood
    assert len(cases) > 100
    outcomes = set()
    for count, before, after in cases:
        for again, loss in enumerate((*LOSSES, "mixture")):
            image = quick_path / "image"
            disk.after(count, loss, image, random.Random(f"{count} {again}"))
            there = standing(image)
            assert there in (before, after), (count, loss, disk.log[max(count - 3, 0) : count])
            outcomes.add((there == before, there == after))
            go_on(image, there)
            shutil.rmtree(image)
    assert outcomes == {(True, True), (True, False), (False, True)}


def go_on(image: Path, there: dict[int, set[str]]) -> None:
    """A new writer finds what stands, leaves no litter, and adds a version."""
    writer = Writer(image)
    writer.folder = StateFolder(image, sync=False)
    writer.claim()
    assert standing(image) == there
    assert unnamed(writer.folder) == {}
    writer.put("new")
    number = max(there, default=-1) + 1
    writer.commit(number)
    last = there[max(there)] if there else set()
    assert standing(image)[number] == last | {"new"}
    assert len(list((image / "claims").iterdir())) == 1
    assert len(list((image / "versions").iterdir())) == min(len(there) + 1, 2)


def nothing(operation: str, path: str) -> None:
    """Before an operation: let it be."""


class Breaking:
    """Raises ``error`` in the ``at``-th operation; for ever after, or (``once``) only there."""

    def __init__(self, at: int, error: OSError, once: bool, reads: bool = False) -> None:
        self.count = 0
        self._at, self._error, self._once, self._reads = at, error, once, reads

    def __call__(self, operation: str, path: str) -> None:
        if operation in ("open", "scandir") and not self._reads:
            return
        self.count += 1
        if self.count == self._at or (self.count > self._at and not self._once):
            raise self._error


def test_a_failure_changes_nothing_and_the_step_can_be_repeated(disk, quick_path):
    """Any operation of any step fails once: an error that names the file; done again, the step works."""
    failed = at = 0
    while True:
        at += 1
        root = quick_path / str(at)
        number = (errno.ENOSPC, errno.EROFS, errno.EIO)[at % 3]
        breaking = disk.before = Breaking(at, OSError(number, os.strerror(number)), once=True)
        before: dict[int, set[str]] = {}
        for step, stands in script(root):
            try:
                step()
            except StateError as error:
                failed += 1
                assert str(root) in str(error)
                assert os.strerror(number) in str(error)
                assert standing(root) in (before, stands)
                step()
                assert standing(root) == stands
            before = stands
        disk.before = nothing
        reader = StateReader(root)
        assert standing(root) == before
        Writer(root).claim()
        assert unnamed(reader) == {}
        assert len(list((root / "versions").iterdir())) == 3  # two versions and the takeover
        assert not [*root.rglob("*.part")]
        shutil.rmtree(root)
        if breaking.count < at:
            break
    assert failed > 50


@pytest.mark.parametrize("reads", [False, True], ids=["writing", "all"])
def test_when_the_storage_fails_for_good_what_stood_stands(disk, quick_path, reads):
    """After any operation nothing works any more: each step raises StateError, and the last version is whole."""
    at = failed = 0
    while True:
        at += 1
        root = quick_path / str(at)
        breaking = Breaking(at, OSError(errno.EIO, "broken"), once=False, reads=reads)
        disk.before = breaking
        allowed: list[dict[int, set[str]]] = [{}]
        for step, stands in script(root):
            try:
                step()
                allowed = [stands] if breaking.count < at else [*allowed, stands]
            except StateError:
                failed += 1
                allowed.append(stands)
                break
        disk.before = nothing
        assert standing(root) in allowed
        shutil.rmtree(root, ignore_errors=True)
        if breaking.count < at:
            break
    assert failed > 50


class Interrupting:
    """Lets ``other`` act before the ``at``-th operation."""

    def __init__(self, at: int, other: Callable[[], None]) -> None:
        self.count = 0
        self._at, self._other, self._inside = at, other, False

    def __call__(self, operation: str, path: str) -> None:
        if self._inside:
            return
        self.count += 1
        if self.count == self._at:
            self._inside = True
            self._other()
            self._inside = False


@pytest.mark.parametrize("commits", [False, True], ids=["claims", "claims and commits"])
def test_a_writer_may_take_over_between_any_two_operations(disk, quick_path, commits):
    """The former writer is fenced, what it was told to be committed is there, and no page comes from both."""
    at = fenced = 0
    while True:
        at += 1
        root = quick_path / str(at)
        one, two = Writer(root), Writer(root)
        one.claim()
        acknowledged: list[int] = []
        found: list[int] = []

        def take_over(two=two, found=found, acknowledged=acknowledged):
            known = list(acknowledged)
            two.claim()
            found += two.folder.versions()
            assert known[-1:] == [number for number in found if number in known][-1:]
            two.put("two")
            if commits:
                two.commit(found[-1] + 1 if found else 0)

        interrupting = disk.before = Interrupting(at, take_over)
        with contextlib.suppress(StateError):
            one.put("a", "one")
            for number in range(4):
                one.commit(number)
                acknowledged.append(number)
                one.put("one", f"one {number}")
        if interrupting.count < at:
            break
        with pytest.raises(StateError, match="fenced"):
            one.put("more")
        assert not acknowledged or acknowledged[-1] in found
        fenced += 1
        base = two.pages.copy()
        for name, slot in base.items():
            assert two.folder.get(slot) == blob(name)
        if not commits:
            two.commit(found[-1] + 1 if found else 0)
        two.put("last")
        two.commit(found[-1] + 2 if found else 1)
        there = standing(root)
        assert there[max(there)] == {*base, "last"}
        assert max(there) == (found[-1] + 2 if found else 1)
        for number in there:
            if number > max(found, default=-1):
                assert "two" in there[number]
        with pytest.raises(StateError, match="fenced"):
            one.commit(99)
        assert standing(root) == there
        third = Writer(root)
        third.claim()
        assert standing(root) == there
        assert unnamed(third.folder) == {}
        shutil.rmtree(root)
    assert fenced > 80


def assert_last(there: dict[int, set[str]], stands: dict[int, set[str]]) -> None:
    """One version at least stands, if any should, and it is the last."""
    assert bool(there) == bool(stands)
    assert there == {number: stands[number] for number in sorted(stands)[len(stands) - len(there) :]}


def test_pruning_beside_a_writer_between_any_two_operations(disk, quick_path):
    """Whenever somebody prunes, the writer goes on as if nobody had, but for the versions that were dropped."""
    at = 0
    while True:
        at += 1
        root = quick_path / str(at)
        interrupting = Interrupting(at, lambda root=root: prune(StateReader(root), 1))
        for step, stands in script(root):
            disk.before = interrupting
            begun = interrupting.count
            step()
            disk.before = nothing
            if begun < at <= interrupting.count:  # in this step
                assert_last(standing(root), stands)
        assert_last(standing(root), stands)
        if interrupting.count < at:
            break
        shutil.rmtree(root)
    assert at > 150


def test_a_file_that_could_not_be_synced_is_written_again(disk, quick_path, monkeypatch):
    """After a failed sync a system may count lost pages as written: the next sync alone would prove nothing."""
    writer = Writer(quick_path / "state")
    writer.claim()
    writer.put("a")
    name = writer.pages["a"][0]
    path = quick_path / "state" / name
    failed: list[str] = []
    again: list[bytes] = []

    def fail(operation: str, where: str) -> None:
        if operation == "fsync" and where == str(path) and not failed:
            failed.append(where)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pwrite(file: int, data: bytes, at: int) -> int:
        assert at == sum(map(len, again))
        again.append(data)
        return os.pwrite(file, data, at)

    disk.before = fail
    monkeypatch.setattr(disk, "pwrite", pwrite, raising=False)
    with pytest.raises(StateError, match=name):
        writer.commit(0)
    assert standing(quick_path / "state") == {}
    assert not again
    writer.commit(0)
    assert standing(quick_path / "state") == {0: {"a"}}
    assert b"".join(again) == path.read_bytes()
