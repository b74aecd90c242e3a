"""State versions: whole or not at all, named by a commit, refused where they do not fit."""

import pickle

import pytest

from latecomer.connectors.versions import KEPT, BucketState, Version, VersionStore
from latecomer.errors import StateError
from latecomer.storage.folder import StateFolder
from latecomer.storage.upkeep import verify

SETTINGS = {"buckets": 2, "queries": {"q": "PATTERN …"}}


def attempt_at(store, batch):
    """What one attempt at a batch puts: states of two buckets, and the files that they are in."""
    shelf = pickle.loads(pickle.dumps(store.attempts()))()
    page = shelf.put([f"page {batch}".encode()])
    places = shelf.put([f"{batch}.{bucket}".encode() for bucket in (0, 1)])
    states = {b: BucketState((place,), tuple(page[:b]), batch * 10 + b, {"rows": b}) for b, place in enumerate(places)}
    shelf.secure()
    return states, shelf.sizes


def write(store, batch, job="job", finished=False):
    store.open(batch, SETTINGS, job, finish=finished)
    states, sizes = attempt_at(store, batch)
    store.write(Version(batch, batch * 10, SETTINGS, job, finished), states, sizes)
    return states


def blob_files(folder):
    return {f"blobs/{path.name}" for path in (folder / "blobs").iterdir()}


def test_what_was_written_is_read(tmp_path):
    store = VersionStore(tmp_path / "state")
    assert store.batches() == []
    states = write(store, 0)
    assert store.read(0) == Version(0, 0, SETTINGS, "job")
    assert store.buckets(0) == states
    assert [store.get(*states[b].residues) for b in (0, 1)] == [b"0.0", b"0.1"]
    assert store.get(states[1].pages[0]) == b"page 0"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_paths_and_uris(tmp_path, scheme):
    store = VersionStore(f"{scheme}{tmp_path}/state")
    write(store, 0)
    assert VersionStore(tmp_path / "state").batches() == store.batches() != []


def test_a_relative_path_means_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = VersionStore("state")
    write(store, 0)
    sent = pickle.dumps(store)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert pickle.loads(sent).batches() == [0]


def test_files_that_nobody_adopted_are_no_version(tmp_path):
    store = VersionStore(tmp_path)
    write(store, 0)
    attempt_at(store, 1)
    assert store.batches() == [0]
    assert store.before(1, SETTINGS, "job").batch == 0


def test_attempts_never_overwrite_each_other(tmp_path):
    store = VersionStore(tmp_path)
    store.open(0, SETTINGS, "job")
    (first, _), (second, sizes) = attempt_at(store, 0), attempt_at(store, 0)
    assert len(blob_files(tmp_path)) == 4
    store.write(Version(0, settings=SETTINGS, job="job"), second, sizes)
    assert store.get(*store.buckets(0)[0].residues) == b"0.0"
    with pytest.raises(StateError, match="is missing"):  # what did not count is gone
        store.get(*first[0].residues)


def test_what_no_version_names_is_deleted(tmp_path):
    """Whether a task ran twice, its batch failed, or its driver died."""
    store = VersionStore(tmp_path)
    write(store, 0)
    for _ in range(3):
        attempt_at(store, 1)
    write(store, 1)
    named = {*StateFolder(tmp_path).read(0).files, *StateFolder(tmp_path).read(1).files}
    assert blob_files(tmp_path) == named
    attempt_at(store, 2)  # and its driver dies
    assert blob_files(tmp_path) > named
    write(VersionStore(tmp_path), 2)
    assert blob_files(tmp_path) == named | set(StateFolder(tmp_path).read(2).files)
    assert verify(StateFolder(tmp_path)).damages == ()


def test_the_last_versions_are_kept(tmp_path):
    store = VersionStore(tmp_path)
    for batch in range(KEPT + 3):
        write(store, batch)
    assert store.batches() == [3, 4, 5]
    assert len(blob_files(tmp_path)) == 3 * KEPT  # pages, residues and the table of buckets
    assert store.before(4, SETTINGS, "job").batch == 3  # batch 4 again, although 5 is there
    write(store, 4)
    assert store.batches() == [3, 4]
    assert store.before(5, SETTINGS, "job").batch == 4


def test_a_state_that_stays_keeps_its_files(tmp_path):
    store = VersionStore(tmp_path)
    first = write(store, 0)
    for batch in range(1, KEPT + 2):
        states, sizes = attempt_at(store, batch)
        store.write(Version(batch, settings=SETTINGS, job="job"), {0: states[0], 1: first[1]}, sizes)
    assert store.get(store.buckets(KEPT + 1)[1].pages[0]) == b"page 0"


def test_the_first_batch_starts_from_nothing(tmp_path):
    store = VersionStore(tmp_path)
    assert store.before(0, SETTINGS, "job") is None
    write(store, 0)
    assert store.before(0, SETTINGS, "job") is None


def test_who_takes_over_shuts_out_whoever_wrote_before(tmp_path):
    old, new = VersionStore(tmp_path), VersionStore(tmp_path)
    write(old, 0)
    late, sizes = attempt_at(old, 1)
    write(new, 1)
    with pytest.raises(StateError, match="fenced"):
        old.write(Version(1, settings=SETTINGS, job="job"), late, sizes)
    with pytest.raises(StateError, match="fenced"):
        old.attempts()
    with pytest.raises(StateError, match="was not written for"):
        new.write(Version(2, settings=SETTINGS, job="job"), late, sizes)
    assert new.batches() == [0, 1]


def test_a_job_that_does_not_fit_takes_nothing_over(tmp_path):
    store = VersionStore(tmp_path)
    write(store, 0)
    with pytest.raises(StateError, match="belongs to job job"):
        VersionStore(tmp_path).open(1, SETTINGS, "other")
    write(store, 1)


@pytest.mark.parametrize(
    ("batch", "settings", "job", "says"),
    [
        (3, SETTINGS | {"buckets": 3}, "job", "made with buckets 2, and now buckets is 3"),
        (3, SETTINGS | {"queries": {"q": "PATTERN X", "p": ""}}, "job", "made with queries 'q'"),
        (3, SETTINGS, "other", "belongs to job job, and this is job other"),
        (5, SETTINGS, "job", r"holds the versions \[0, 1, 2\], and batch 5 needs version 4"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, batch, settings, job, says):
    store = VersionStore(tmp_path)
    for number in range(3):
        write(store, number)
    with pytest.raises(StateError, match=says):
        store.before(batch, settings, job)


def test_a_version_that_is_gone(tmp_path):
    store = VersionStore(tmp_path)
    for number in range(KEPT + 2):
        write(store, number)
    with pytest.raises(StateError, match="needs version 0"):
        store.before(1, SETTINGS, "job")
    with pytest.raises(StateError, match="holds no version to go on from"):
        VersionStore(tmp_path / "empty").before(7, SETTINGS, "job")


def test_a_finished_stream(tmp_path):
    store = VersionStore(tmp_path)
    write(store, 0)
    write(store, 1, finished=True)
    with pytest.raises(StateError, match="finished after batch 0"):
        store.before(1, SETTINGS, "job")
    assert store.before(1, SETTINGS, "job", finish=True).batch == 0


def test_damage_is_told(tmp_path):
    store = VersionStore(tmp_path)
    states = write(store, 0)
    (tmp_path / states[1].residues[0][0]).unlink()
    with pytest.raises(StateError, match="is missing"):
        store.get(*states[1].residues)
    record = tmp_path / "versions" / StateFolder(tmp_path).read(0).name
    record.write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        store.before(1, SETTINGS, "job")


def test_the_state_of_something_else_is_refused(tmp_path):
    folder = StateFolder(tmp_path)
    folder.claim()
    folder.commit(0, b"", [], {"offset": 3})
    with pytest.raises(StateError, match="not that of a PatternSink: its note lacks 'clock'"):
        VersionStore(tmp_path).open(1, SETTINGS, "job")


def test_a_place_that_cannot_be_opened():
    with pytest.raises(StateError, match="cannot be opened"):
        VersionStore("nosuchscheme://place/state")
