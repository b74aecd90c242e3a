"""``latecomer state``: what it prints, for people and for machines, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import latecomer as lc
from latecomer.cli import app
from latecomer.storage.folder import StateFolder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(app, ["state", *map(str, arguments)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three versions in ``tmp_path/state``; the second and third share a page."""
    folder = StateFolder(tmp_path / "state", keep=3)
    folder.claim()
    first = folder.put([bytes(100_000)])
    folder.commit(40, b"r" * 1_000, first, {"batch": 40})
    folder.free(first)
    page = folder.put([bytes(2_000_000)])
    folder.commit(41, b"r" * 1_000, page, {"batch": 41, "why": "x" * 100})
    folder.commit(42, b"r" * 1_000, page, {})
    folder.put([bytes(500)])
    return tmp_path / "state"


def lines(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


def test_list(call, root):
    result = call("ls", root)
    assert result.exit_code == 0
    head, *rows, rest = lines(result)
    assert head == ["version", "epoch", "files", "size", "new", "note"]
    assert rows[0] == ["40", "1", "2", "98.7", "KiB", "98.7", "KiB", '{"batch":', "40}"]
    assert rows[1][:8] == ["41", "1", "2", "1.91", "MiB", "1.91", "MiB", '{"batch":']
    assert rows[1][-1].endswith("xx…")
    assert rows[2] == ["42", "1", "2", "1.91", "MiB", "1.01", "KiB"]
    assert " ".join(rest).startswith("1 file (532 B) in no version: the writer's, or left by one that has died;")
    told = json.loads(call("ls", root, "--json").stdout)
    assert [version["version"] for version in told["versions"]] == [40, 41, 42]
    assert told["versions"][1]["note"]["why"] == "x" * 100
    assert told["versions"][2] == {
        "version": 42, "epoch": 1, "files": 2, "bytes": 2_002_064 - 1_000, "new_bytes": 1_032, "note": {},
    } | {"bytes": told["versions"][1]["bytes"]}  # fmt: skip
    assert told["unnamed"] == {"files": 1, "bytes": 532}


def test_a_list_without_versions(call, tmp_path):
    StateFolder(tmp_path / "state").claim()
    result = call("ls", tmp_path / "state")
    assert (result.exit_code, result.stdout) == (0, "no complete version\n")


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_there_is_no_state(call, tmp_path, command):
    result = call(command, tmp_path / "mistyped")
    assert result.exit_code == 4
    assert "there is no state in" in result.stderr
    (tmp_path / "service" / "state").mkdir(parents=True)
    result = call(command, tmp_path / "service")
    assert result.exit_code == 4 and "service/state', which a service uses" in " ".join(result.stderr.split())
    assert not (tmp_path / "mistyped").exists()


def test_verify_what_is_whole(call, root):
    result = call("verify", root)
    assert (result.exit_code, result.stdout) == (0, "3 versions, 5 files, 5 blobs, 2.01 MiB: all whole\n")
    told = json.loads(call("verify", root, "--json").stdout)
    assert (told["versions"], told["damages"]) == ([40, 41, 42], [])


def test_verify_what_is_damaged(call, root):
    folder = StateFolder(root)
    shared = next(name for name in folder.read(42).files if name in folder.read(41).files)
    with open(root / shared, "r+b") as file:
        file.seek(1_000)
        file.write(b"!")
    (root / folder.read(41).residue[0]).unlink()
    result = call("verify", root)
    assert result.exit_code == 1
    said = result.stdout.splitlines()
    assert said[0] == "3 versions, 5 files, 4 blobs, 2.01 MiB"
    assert f"damaged: {shared} is damaged: the blob at byte 16 does not match its checksum (versions 41, 42)" in said
    assert f"damaged: {folder.read(41).residue[0]} is missing (version 41)" in said
    assert said[-1].startswith("the last whole version is 40; put the damaged files back")
    result = call("verify", root, "--json")
    assert result.exit_code == 1
    assert {tuple(damage["versions"]) for damage in json.loads(result.stdout)["damages"]} == {(41,), (41, 42)}


def test_verify_when_the_last_record_is_damaged(call, root):
    record = root / "versions" / StateFolder(root).read(42).name
    os.truncate(record, 10)
    result = call("verify", root)
    assert result.exit_code == 1
    assert f"damaged: versions/{record.name} is damaged: it is no whole record (version 42)" in result.stdout
    assert "the last whole version is 41" in result.stdout
    listed = call("ls", root)
    assert listed.exit_code == 4
    assert "move it away, and the version before it counts again" in listed.stderr


def test_prune(call, root):
    before = sorted(root.rglob("*"))
    dry = call("prune", root, "--keep", 1, "--dry-run")
    assert dry.exit_code == 0
    *files, said = dry.stdout.splitlines()
    assert said.endswith("would be deleted, with versions 40, 41")
    assert sorted(root.rglob("*")) == before
    done = call("prune", root, "--keep", 1)
    assert done.stdout.splitlines() == [*files, said.replace("would be deleted", "deleted")]
    assert {str(path.relative_to(root)) for path in set(before) - set(root.rglob("*"))} == set(files)
    assert StateFolder(root).versions() == [42]
    assert call("verify", root).exit_code == 0
    assert call("prune", root).stdout == "0 files (0 B) deleted\n"


def test_prune_waits_for_a_writer_that_has_just_begun(call, root):
    StateFolder(root).claim()
    result = call("prune", root, "--keep", 1)
    assert result.exit_code == 0
    assert "until it has, every version stays" in result.stdout
    assert StateFolder(root).versions() == [40, 41, 42]
    assert json.loads(call("prune", root, "--keep", 1, "--json").stdout)["held"]


def test_keeping_nothing_is_refused(call, root):
    result = call("prune", root, "--keep", 0)
    assert result.exit_code == 2
    assert "at least 1 version has to stay" in result.stderr


def test_versions_that_have_gone_are_missed(call, root):
    shutil.rmtree(root / "versions")
    before = sorted(path.name for path in root.rglob("*"))
    result = call("verify", root)
    assert result.exit_code == 1
    assert "all whole" not in result.stdout
    assert "versions is missing or empty: nothing tells what the" in result.stdout
    for act in (StateFolder(root).versions, StateFolder(root).claim, lambda: lc.Runtime.open(root)):
        with pytest.raises(lc.StateError, match=r"'versions' .* is missing or empty.*put 'versions' back from a copy"):
            act()
    query = lc.Query("PATTERN SEQ(A a, B b) WITHIN 5 s", name="q", level=lc.Aggressive("1 s"))
    with pytest.raises(lc.StateError, match="begin in an empty folder"):
        lc.Runtime(lc.Stream(id="id", unit="s"), query, spill=root)
    assert sorted(path.name for path in root.rglob("*")) == before


def test_a_file_is_no_folder(call, tmp_path):
    (tmp_path / "state").write_text("x")
    for path in (tmp_path / "state", tmp_path / "state" / "below"):
        result = call("ls", path)
        assert result.exit_code != 0
        with pytest.raises(lc.StateError, match="is a file, or lies below one: give the path of a folder"):
            StateFolder(path).claim()


def test_only_versions_before_a_damaged_record_are_a_cure(root):
    folder = StateFolder(root)
    records = [folder.read(number).name for number in folder.versions()]
    for name in records[1:]:
        (root / "versions" / name).unlink()
    for path in (root / "versions").iterdir():
        if path.name > records[0]:
            path.unlink()
    (root / "versions" / records[0]).write_text("{}")
    with pytest.raises(lc.StateError, match="put it back from a copy, since there is no version before it"):
        folder.versions()


def test_no_folder_has_a_zero_in_its_name():
    with pytest.raises(lc.ConfigError, match="has a zero character"):
        lc.Spill("\0x")
    with pytest.raises(lc.StateError, match="has a zero character"):
        StateFolder("\0x")


def test_memory_is_told_before_the_first_event(tmp_path):
    query = lc.Query("PATTERN SEQ(A a, B b) WITHIN 5 s", name="q", level=lc.Aggressive("1 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query, memory="2 MiB", spill=tmp_path / "state")
    before = runtime.explain()["memory"]
    assert before["budget"] == 2 << 20 and before["in_memory"] == 0
    runtime.process([{"id": 1, "type": "A", "ts": 5}])
    after = runtime.explain()["memory"]
    assert after.keys() == before.keys() and after["in_memory"] > 0
