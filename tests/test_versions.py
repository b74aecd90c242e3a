"""State versions: whole or not at all, named by a manifest, refused where they do not fit."""

import pickle

import pytest

from latecomer.connectors.versions import KEPT, Version, VersionStore
from latecomer.errors import StateError

SETTINGS = {"buckets": 2, "queries": {"q": "PATTERN …"}}


def write(store, batch, job="job", **more):
    files = {bucket: store.put(batch, bucket, f"{batch}.{bucket}".encode()) for bucket in (0, 1)}
    store.write(Version(batch, files, clock=batch * 10, settings=SETTINGS, job=job, **more))
    return files


def test_what_was_written_is_read(tmp_path):
    store = VersionStore(tmp_path / "state")
    assert store.batches() == []
    files = write(store, 0)
    version = store.read(0)
    assert version == Version(0, files, 0, SETTINGS, "job")
    assert [store.get(version.files[b]) for b in (0, 1)] == [b"0.0", b"0.1"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_paths_and_uris(tmp_path, scheme):
    store = VersionStore(f"{scheme}{tmp_path}/state")
    write(store, 3)
    assert VersionStore(tmp_path / "state").batches() == [3]


def test_a_relative_path_means_the_same_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = VersionStore("state")
    write(store, 0)
    sent = pickle.dumps(store)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert pickle.loads(sent).batches() == [0]


def test_files_without_a_manifest_are_no_version(tmp_path):
    store = VersionStore(tmp_path)
    write(store, 0)
    store.put(1, 0, b"an attempt")
    assert store.batches() == [0]
    assert store.before(1, SETTINGS, "job").batch == 0


def test_attempts_never_overwrite_each_other(tmp_path):
    store = VersionStore(tmp_path)
    first = write(store, 0)
    again = write(store, 0)
    assert set(first.values()).isdisjoint(again.values())
    assert store.read(0).files == again
    assert store.get(first[0]) == b"0.0"


def test_a_manifest_half_written_does_not_count(tmp_path):
    """It is written beside and renamed, so what a crash leaves is a file of another name."""
    store = VersionStore(tmp_path)
    write(store, 0)
    store.put(1, 0, b"new")
    manifest = tmp_path / "0000000000" / "manifest.json"
    (tmp_path / "0000000001" / "0f3a.part").write_bytes(manifest.read_bytes()[:40])
    assert store.batches() == [0]
    assert [p.name for p in manifest.parent.iterdir() if p.suffix not in (".state", ".json")] == []


def test_the_last_versions_are_kept(tmp_path):
    store = VersionStore(tmp_path)
    for batch in range(KEPT + 3):
        write(store, batch)
    assert store.batches() == [3, 4, 5]
    assert len(list(tmp_path.rglob("*.state"))) == 2 * KEPT
    assert store.before(4, SETTINGS, "job").batch == 3  # batch 4 again, although 5 is there


def test_the_first_batch_starts_from_nothing(tmp_path):
    store = VersionStore(tmp_path)
    assert store.before(0, SETTINGS, "job") is None
    write(store, 0)
    assert store.before(0, SETTINGS, "job") is None


@pytest.mark.parametrize(
    ("batch", "settings", "job", "says"),
    [
        (3, SETTINGS | {"buckets": 3}, "job", "made with buckets 2, and now buckets is 3"),
        (3, SETTINGS | {"queries": {}}, "job", "made with queries"),
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
    files = write(store, 0)
    (tmp_path / files[1]).unlink()
    with pytest.raises(StateError, match="is missing"):
        store.get(files[1])
    manifest = tmp_path / "0000000000" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(StateError, match="format 99"):
        store.read(0)
    manifest.write_text("{")
    with pytest.raises(StateError, match="cannot be read"):
        store.read(0)


def test_a_place_that_cannot_be_opened():
    with pytest.raises(StateError, match="cannot be opened"):
        VersionStore("nosuchscheme://place/state")
