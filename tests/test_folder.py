"""The state folder on disks, in memory and in an object store: blobs, versions, writers, and what can be wrong."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from latecomer.errors import ConfigError, MissingDependency, StateError
from latecomer.storage import files
from latecomer.storage.folder import StateFolder
from latecomer.storage.reader import StateReader
from latecomer.storage.shelf import MemoryShelf
from latecomer.storage.upkeep import prune, unnamed, verify
from tests.disk import Disk

BLOBS = [b"one", b"", b"\0" * 1000, os.urandom(300_000)]


@pytest.fixture(scope="module")
def s3():
    """An object store on this machine; gives the part of a URI that says where it is."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        where = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
        client = boto3.client("s3", aws_access_key_id="id", aws_secret_access_key="secret", **where)
        client.create_bucket(Bucket="states")
        yield f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


@pytest.fixture(params=["path", "file", "memory", "s3"])
def uri(request, tmp_path):
    """An empty folder in each kind of storage."""
    match request.param:
        case "path":
            return str(tmp_path / "deep" / "er" / "state")
        case "file":
            return f"file://{tmp_path}/state"
        case "memory":
            return f"memory://{tmp_path}/state"
        case _:
            return f"s3://id:secret@states{tmp_path}?{request.getfixturevalue('s3')}"


def folder_at(uri, **options) -> StateFolder:
    folder = StateFolder(uri, **options)
    folder.claim()
    return folder


def names(folder: StateReader, kind: str) -> list[str]:
    return sorted(folder.listed(kind))


@pytest.mark.parametrize("make", [MemoryShelf, folder_at], ids=["memory", "folder"])
def test_a_shelf_gives_back_what_it_was_given(make, tmp_path):
    shelf = make(tmp_path) if make is folder_at else make()
    slots = shelf.put(BLOBS)
    assert len(set(slots)) == len(BLOBS)
    assert [shelf.get(slot) for slot in slots] == BLOBS
    assert [length for _, _, length in slots] == list(map(len, BLOBS))
    assert shelf.put([]) == []
    sent = [(name, offset, length) for name, offset, length in json.loads(json.dumps(slots))]
    assert [shelf.get(slot) for slot in sent] == BLOBS
    shelf.free(sent[:-1])
    shelf.free(sent[:-1])
    assert shelf.get(slots[-1]) == BLOBS[-1]
    shelf.free([slots[-1]])
    with pytest.raises(StateError):
        shelf.get(slots[-1])
    shelf.free(slots)


def test_versions_are_read_by_others(uri):
    folder = folder_at(uri)
    assert folder.versions() == []
    slots = folder.put(BLOBS)
    written = folder.commit(7, b"rest", slots[:2], {"batch": 7, "offsets": {"events": {"0": 41}}, "why": "“late”"})
    more = folder.put([b"more"])
    folder.commit(8, b"rest 8", [*slots, *more], {})
    reader = StateReader(uri)
    assert reader.versions() == [7, 8]
    version = reader.read(7)
    assert version == written
    assert (version.number, version.epoch) == (7, 1)
    assert version.note == {"batch": 7, "offsets": {"events": {"0": 41}}, "why": "“late”"}
    assert reader.residue(version) == b"rest"
    assert [reader.get(slot) for slot in slots] == BLOBS
    assert version.nbytes == sum(size for name, size in listed(reader).items() if name in version.files)
    checked = verify(reader)
    assert (checked.versions, checked.files, checked.blobs, checked.damages) == ((7, 8), 4, len(BLOBS) + 3, ())
    assert checked.nbytes == sum(listed(reader).values())


def listed(reader: StateReader) -> dict[str, int]:
    return {f"blobs/{name}": size for name, size in reader.listed("blobs").items()}


def test_what_is_not_needed_goes(uri):
    folder = folder_at(uri, keep=2)
    old = folder.put([b"a", b"b"])
    folder.commit(0, b"0", old, {})
    new = folder.put([b"c"])
    folder.free(old)
    folder.commit(1, b"1", new, {})
    assert [folder.get(slot) for slot in old] == [b"a", b"b"]  # version 0 has them
    reader = StateReader(uri)
    opened = reader.read(1)
    unused = folder.put([b"d"])
    folder.free(unused)
    assert unnamed(reader) == {}
    folder.commit(2, b"2", new, {})
    assert folder.versions() == [1, 2]
    with pytest.raises(StateError, match="is missing"):
        reader.get(old[0])
    assert reader.residue(opened) == b"1"
    assert listed(reader).keys() == {*opened.files, *reader.read(2).files}
    assert len(names(reader, "versions")) == 2
    assert len(names(reader, "claims")) == 1


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_versions_stay_as_asked(tmp_path, keep):
    folder = folder_at(tmp_path, keep=keep)
    for number in range(5):
        folder.commit(number, b"", [], {})
        assert folder.versions() == list(range(max(number - keep + 1, 0), number + 1))
    assert len(names(folder, "blobs")) == keep


def test_what_is_put_and_neither_freed_nor_committed_stays(tmp_path):
    folder = folder_at(tmp_path)
    slots = folder.put([b"later"])
    for number in range(4):
        folder.commit(number, b"", [], {})
    assert folder.get(slots[0]) == b"later"
    folder.commit(4, b"", slots, {})
    assert StateReader(tmp_path).get(slots[0]) == b"later"


def test_a_version_is_written_again(tmp_path):
    """As after a crash behind the commit: the batch comes again, on the state before it."""
    first = folder_at(tmp_path)
    for number in range(3):
        first.commit(number, b"first", first.put([b"%d" % number]), {})
    folder = folder_at(tmp_path)
    assert folder.versions() == [1, 2]
    before = folder.read(1)
    folder.commit(2, b"again", [], {"base": before.number})
    assert folder.versions() == [1, 2]
    assert folder.residue(folder.read(2)) == b"again"
    assert folder.read(2).epoch == 2
    folder.commit(0, b"back", [], {})
    assert folder.versions() == [0]


def test_writers_are_fenced(uri):
    first = folder_at(uri)
    slots = first.put([b"mine"])
    first.commit(0, b"", slots, {})
    late = first.put([b"uncommitted"])
    second = StateFolder(uri)
    assert second.claim() == 2
    message = (
        rf"fenced: process {os.getpid()} on .* has taken over .* epoch 2, and this writer had epoch 1\. A state has"
    )
    with pytest.raises(StateError, match=message):
        first.put([b"more"])
    with pytest.raises(StateError, match=message):
        first.commit(1, b"", slots, {})
    with pytest.raises(StateError, match=message):
        first.get(late[0])
    assert second.get(slots[0]) == b"mine"
    assert first.get(slots[0]) == b"mine"
    first.free(slots)
    second.commit(1, b"", slots, {})
    assert first.claim() == 3
    assert first.versions() == [0, 1]
    with pytest.raises(StateError, match="fenced"):
        second.commit(2, b"", slots, {})


def test_claims_at_the_same_moment_leave_one_writer(tmp_path, monkeypatch):
    """Each of two sees no claim but its own predecessor's: the names decide, in whichever order they come."""
    outcomes = set()
    for attempt in range(8):
        root = tmp_path / str(attempt)
        disk = Disk(root)
        monkeypatch.setattr(files, "os", disk)
        one, two = StateFolder(root), StateFolder(root)

        def before(operation, path, disk=disk, two=two):
            if operation == "create":
                disk.before = lambda operation, path: None
                two.claim()

        disk.before = before
        try:
            one.claim()
            won = True
        except StateError as error:
            assert "fenced" in str(error)
            won = False
        outcomes.add(won)
        winner, loser = (one, two) if won else (two, one)
        winner.commit(0, b"won", [], {})
        with pytest.raises(StateError):
            loser.commit(0, b"lost", [], {})
        assert winner.residue(winner.read(0)) == b"won"
    assert outcomes == {True, False}


def test_writing_needs_a_claim(tmp_path):
    folder = StateFolder(tmp_path)
    with pytest.raises(StateError, match="was not claimed: call claim"):
        folder.put([b""])
    with pytest.raises(StateError, match="was not claimed: call claim"):
        folder.commit(0, b"", [], {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "note", "message"),
    [(-1, {}, "0 or more"), (0, {"a": b"x"}, "not plain JSON"), (0, {"a": float("nan")}, "not plain JSON")],
)
def test_commits_that_make_no_sense(tmp_path, number, note, message):
    folder = folder_at(tmp_path)
    with pytest.raises(ConfigError, match=message):
        folder.commit(number, b"", [], note)
    assert names(folder, "blobs") == []


def test_keeping_nothing_makes_no_sense(tmp_path):
    with pytest.raises(ConfigError, match="keep is 0: at least 1"):
        StateFolder(tmp_path, keep=0)
    with pytest.raises(ConfigError, match="keep is 0: at least 1"):
        prune(StateReader(tmp_path), 0)


def test_slots_of_nobody_are_refused(tmp_path):
    folder = folder_at(tmp_path)
    freed = folder.put([b"x"])
    folder.free(freed)
    with pytest.raises(StateError, match="neither put by this writer nor in a kept version"):
        folder.commit(0, b"", freed, {})
    assert folder.versions() == []


def test_a_commit_of_unknown_outcome_keeps_its_files(tmp_path, monkeypatch):
    """The record has appeared, and then an error came: nothing of it may go before another commit has decided."""
    disk = Disk(tmp_path)
    monkeypatch.setattr(files, "os", disk)
    folder = folder_at(tmp_path)
    slots = folder.put([b"x"])

    def before(operation, path):
        if operation == "fsync" and disk.log[-1][0] == "replace":
            raise OSError(errno.EIO, "broken")

    disk.before = before
    with pytest.raises(StateError, match="cannot be written"):
        folder.commit(0, b"", slots, {})
    folder.free(slots)
    disk.before = lambda operation, path: None
    reader = StateReader(tmp_path)
    assert reader.versions() == [0]
    assert reader.get(slots[0]) == b"x"
    folder.commit(1, b"", [], {})
    assert reader.versions() == [1]
    assert unnamed(reader) == {}
    assert len(names(reader, "versions")) == 1


# --- what can be wrong ---


def committed(root: Path) -> tuple[StateReader, Path, list[tuple[str, int, int]]]:
    folder = folder_at(root)
    slots = folder.put([b"first" * 100, b"second" * 100])
    folder.commit(0, b"", [], {})
    folder.commit(1, b"", slots, {})
    return StateReader(root), root / slots[0][0], slots


def whole(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_missing_file(tmp_path):
    reader, file, slots = committed(tmp_path)
    file.unlink()
    before = whole(tmp_path)
    with pytest.raises(StateError, match=rf"'{slots[0][0]}' in the state folder '{tmp_path}' is missing.*state verify"):
        reader.get(slots[0])
    assert [(d.file, d.problem, d.versions) for d in verify(reader).damages] == [(slots[0][0], "is missing", (1,))]
    assert whole(tmp_path) == before


@pytest.mark.parametrize("left", [0, 10, 16, 20, 32, 40, -1])
def test_a_truncated_file(tmp_path, left):
    reader, file, slots = committed(tmp_path)
    os.truncate(file, left if left >= 0 else file.stat().st_size - 1)
    before = whole(tmp_path)
    with pytest.raises(
        StateError, match=rf"'{slots[1][0]}' in the state folder .* is truncated: .*copy, or go on from"
    ):
        reader.get(slots[1])
    (damage,) = verify(reader).damages
    assert damage.file == slots[0][0]
    assert "bytes, and should have" in damage.problem
    assert whole(tmp_path) == before


def test_any_damaged_byte_is_noticed(tmp_path):
    reader, file, slots = committed(tmp_path)
    data = file.read_bytes()
    for at in range(0, len(data), 7):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        damages = verify(reader).damages
        assert damages
        assert "damaged" in damages[0].problem or "no file of blobs" in damages[0].problem
        if at >= slots[0][1]:
            with pytest.raises(StateError, match=r"is damaged: the blob at byte .* does not match its checksum"):
                assert [reader.get(slot) for slot in slots]
    file.write_bytes(data)
    assert verify(reader).damages == ()


def test_both_blobs_of_a_file_may_be_damaged(tmp_path):
    reader, file, slots = committed(tmp_path)
    data = bytearray(file.read_bytes())
    data[slots[0][1] + 20] ^= 1
    data[slots[1][1] + 20] ^= 1
    file.write_bytes(data)
    assert [damage.versions for damage in verify(reader).damages] == [(1,), (1,)]


def test_a_damaged_record_is_told_and_moved_away_by_hand(tmp_path):
    reader, _, _ = committed(tmp_path)
    record = tmp_path / "versions" / reader.read(1).name
    data = record.read_bytes()
    for damaged in (b"", data[:50], data.replace(b'"number": 1', b'"number": 2'), b"null", b"[]"):
        record.write_bytes(damaged)
        for act in (reader.versions, lambda: reader.read(0), lambda: StateFolder(tmp_path).claim()):
            with pytest.raises(StateError, match=rf"'versions/{record.name}' .* is damaged.*move it away"):
                act()
        with pytest.raises(StateError, match="is damaged"):
            prune(reader)
        (damage,) = verify(reader).damages
        assert damage.file == f"versions/{record.name}"
    before = whole(tmp_path)
    record.rename(tmp_path / "away")
    assert reader.versions() == [0]
    assert verify(reader).damages == ()
    assert whole(tmp_path).keys() - {"away"} == before.keys() - {f"versions/{record.name}"}
    assert folder_at(tmp_path).versions() == [0]


def test_a_record_of_another_format(tmp_path):
    reader, _, _ = committed(tmp_path)
    record = tmp_path / "versions" / reader.read(1).name
    record.write_bytes(record.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(
        StateError, match=r"has format 2, and this release reads format 1: use the release that wrote it"
    ):
        reader.versions()


def test_what_a_user_may_do_by_accident(tmp_path):
    """Files that are not ours are left alone; a claim that vanishes is told."""
    folder = folder_at(tmp_path)
    strange = [tmp_path / kind / "notes.txt" for kind in ("claims", "versions", "blobs")]
    (tmp_path / "blobs").mkdir()
    for file in strange:
        file.write_text("mine")
    folder.commit(0, b"", [], {})
    folder = folder_at(tmp_path)
    folder.commit(1, b"", [], {})
    prune(folder, 1)
    assert all(file.read_text() == "mine" for file in strange)
    shutil.rmtree(tmp_path / "claims")
    with pytest.raises(StateError, match="has vanished from the state folder"):
        folder.commit(2, b"", [], {})
    assert StateReader(tmp_path).versions() == [1]


class SmallDisk:
    """A disk of one megabyte: a real one where we may mount it, an imitation elsewhere."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root.mkdir()
        self.root = root
        self.real = (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], check=False, capture_output=True
            ).returncode
            == 0
        )
        if not self.real:
            self._disk = Disk(root)
            self._disk.room = 1 << 20
            monkeypatch.setattr(files, "os", self._disk)

    def mode(self, mode: str) -> None:
        """``rw`` or ``ro``."""
        if self.real:
            subprocess.run(["mount", "-o", f"remount,{mode}", self.root], check=True)
            return

        def before(operation: str, path: str) -> None:
            if mode == "ro" and operation not in ("open", "scandir"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        self._disk.before = before


@pytest.fixture
def disk(tmp_path, monkeypatch):
    made = SmallDisk(tmp_path / "small", monkeypatch)
    yield made
    if made.real:
        subprocess.run(["umount", made.root], check=True)


def test_a_full_disk(disk):
    root = disk.root
    folder = folder_at(root)
    slots = folder.put([os.urandom(600_000)])
    folder.commit(0, b"rest", slots, {"n": 0})
    before = whole(root)
    with pytest.raises(
        StateError, match=r"blobs/.* cannot be written: no space is left .* as it was before; free some"
    ):
        folder.put([os.urandom(600_000)])
    with pytest.raises(StateError, match="no space is left"):
        folder.commit(1, os.urandom(600_000), slots, {})
    assert whole(root) == before
    folder.commit(1, b"smaller", slots, {"n": 1})
    assert StateReader(root).versions() == [0, 1]
    assert verify(folder).damages == ()


def test_a_limit_on_the_size_of_files(tmp_path):
    folder = folder_at(tmp_path)
    folder.commit(0, b"rest", [], {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StateError, match="no space is left"):
            folder.put([bytes(20_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert unnamed(folder) == {}
    assert folder.versions() == [0]


def test_a_folder_that_may_not_be_written(disk):
    root = disk.root
    folder = folder_at(root)
    slots = folder.put([b"x"])
    folder.commit(0, b"rest", slots, {})
    disk.mode("ro")
    message = r"cannot be written: not allowed \(Read-only file system\).*give this process the right to"
    for act in (lambda: folder.put([b"y"]), lambda: folder.commit(1, b"", slots, {}), folder.claim):
        with pytest.raises(StateError, match=message):
            act()
    reader = StateReader(root)
    assert reader.residue(reader.read(0)) == b"rest"
    assert reader.get(slots[0]) == b"x"
    assert verify(reader).damages == ()
    assert prune(reader, 1).files == ()
    folder.free(slots)
    disk.mode("rw")
    folder.commit(1, b"", [], {})
    assert reader.versions() == [0, 1]


def test_a_path_that_is_a_file(tmp_path):
    (tmp_path / "state").write_text("")
    with pytest.raises(StateError, match="is a file, or lies below one"):
        StateFolder(tmp_path / "state").claim()


def test_a_uri_that_nobody_opens():
    uri = "nonsense://x/y"
    with pytest.raises(StateError, match=rf"the state folder '{uri}' cannot be opened .*give a local path, or a URI"):
        StateFolder(uri)


def test_a_uri_that_takes_fsspec(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(MissingDependency, match=r"memory://x.*'latecomer\[fsspec\]'"):
        StateFolder("memory://x")


def test_stores_that_fail_in_their_own_way(tmp_path, monkeypatch):
    """What an implementation of fsspec raises, whatever its class, becomes an error that names the file."""
    from fsspec.implementations.memory import MemoryFileSystem

    folder = folder_at(f"memory://{tmp_path}/odd")
    slots = folder.put([b"x"])
    folder.commit(0, b"rest", slots, {})

    class Odd(Exception):
        pass

    def fail(*args, **options):
        raise Odd("quota of requests")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "_open", fail)
        for act, doing in ((lambda: folder.put([b"y"]), "written"), (lambda: folder.get(slots[0]), "read")):
            with pytest.raises(
                StateError, match=rf"'blobs/.*' in the state folder .* {doing} \(Odd: quota of requests\)"
            ):
                act()
        broken.setattr(MemoryFileSystem, "ls", fail)
        with pytest.raises(StateError, match="Odd: quota of requests"):
            folder.versions()
    folder.commit(1, b"rest", slots, {})
    assert folder.versions() == [0, 1]


def test_messages_hold_no_password():
    assert StateReader("s3://id:secret@bucket/state?region=us-east-1").shown == "s3://***@bucket/state?region=us-east-1"


def test_a_relative_path_means_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = folder_at("state")
    folder.commit(0, b"rest", [], {})
    sent = pickle.dumps(StateReader("state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    reader = pickle.loads(sent)
    assert reader.residue(reader.read(0)) == b"rest"


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_readers_travel(kind, tmp_path, request):
    uri = (
        f"memory://{tmp_path}/travels"
        if kind == "memory"
        else f"s3://id:secret@states/t?{request.getfixturevalue('s3')}"
    )
    folder_at(uri).commit(0, b"rest", [], {})
    reader = pickle.loads(pickle.dumps(StateReader(uri)))
    assert reader.residue(reader.read(0)) == b"rest"


# --- pruning ---


def test_pruning_drops_versions_and_what_dead_writers_left(uri):
    folder = folder_at(uri, keep=5)
    slots = folder.put([b"x"])
    for number in range(4):
        folder.commit(number, b"%d" % number, slots, {})
    reader = StateReader(uri)
    before = sum(reader.listed("blobs").values())
    dry = prune(reader, 2, dry_run=True)
    assert reader.versions() == [0, 1, 2, 3]
    done = prune(reader, 2)
    assert done == dry
    assert (done.versions, len(done.files), done.held) == ((0, 1), 4, False)
    assert reader.versions() == [2, 3]
    assert sum(reader.listed("blobs").values()) < before
    assert verify(reader).damages == ()
    folder.commit(4, b"4", slots, {})  # the writer does not mind
    assert reader.versions() == [2, 3, 4]
    assert prune(reader).files == ()
    assert prune(reader, 5).files == ()


def test_pruning_leaves_a_writer_what_it_may_still_name(tmp_path):
    folder = folder_at(tmp_path)
    slots = folder.put([b"x"])
    reader = StateReader(tmp_path)
    assert prune(reader, 1).files == ()
    for number in range(2):
        folder.commit(number, b"", slots, {})
    more = folder.put([b"uncommitted"])
    prune(reader, 1)
    folder.commit(2, b"", [*slots, *more], {})
    later = folder_at(tmp_path)
    done = prune(reader, 1)  # it may go on from any version
    assert done.held
    assert done.versions == ()
    assert reader.versions() == [1, 2]
    later.commit(2, later.residue(later.read(1)), slots, {})
    assert reader.versions() == [1, 2]
    assert prune(reader, 1).versions == (1,)


def test_pruning_deletes_what_was_left_when_a_writer_could_not(tmp_path, monkeypatch):
    folder = folder_at(tmp_path)
    folder.commit(0, b"", [], {})
    folder.put([b"left"])
    monkeypatch.setattr(StateFolder, "_sweep_strangers", lambda self, writer: None)
    later = folder_at(tmp_path)
    reader = StateReader(tmp_path)
    assert len(unnamed(reader)) == 1
    done = prune(reader)
    assert (len(done.files), done.held) == (2, True)  # the file, and the claim of epoch 1
    assert unnamed(reader) == {}
    later.commit(1, b"", [], {})
    assert reader.versions() == [0, 1]
