"""State that is written beside the loop: versions tell what was at the moment when they were begun, whatever happened
meanwhile; what cannot be written is told with the next version."""

import random
import threading

import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.kafka import shelf as shelves
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.shelf import WrittenBeside
from latecomer.connectors.kafka.state import StateKeeper
from latecomer.errors import StateError
from latecomer.storage.files import LocalFiles
from latecomer.storage.folder import StateFolder
from tests.test_kafka_config import SMALL


@pytest.fixture
def gate(monkeypatch):
    """Files are written only while it is open."""
    opened, write, publish = threading.Event(), LocalFiles.write, LocalFiles.publish

    def after(original):
        def wrapped(self, name, *content):
            if not name.startswith("claims") and "takeover" not in name:
                assert opened.wait(30)
            return original(self, name, *content)

        return wrapped

    monkeypatch.setattr(LocalFiles, "write", after(write))
    monkeypatch.setattr(LocalFiles, "publish", after(publish))
    yield opened
    opened.set()


def claimed(path):
    folder = StateFolder(path)
    folder.claim()
    return WrittenBeside(folder)


def test_what_was_handed_over_is_there_at_once(tmp_path, gate):
    shelf = claimed(tmp_path)
    slots = shelf.put([b"one", b"", b"three"])
    done = shelf.version(1, b"all", slots, {})
    assert [shelf.get(slot) for slot in slots] == [b"one", b"", b"three"] and not done.done()
    assert StateFolder(tmp_path).versions() == []
    gate.set()
    done.result(30)
    assert StateFolder(tmp_path).versions() == [1]
    assert [shelf.get(slot) for slot in slots] == [b"one", b"", b"three"]
    shelf.close()


def test_files_that_no_version_names_any_more_go(tmp_path):
    shelf = claimed(tmp_path)
    for number in range(10):
        shelf.version(number, b"state", shelf.put([b"x" * 100]), {}).result(30)
    shelf.close()
    assert len(list((tmp_path / "blobs").iterdir())) == 2 * 2  # a blob and a residue of each version that is kept


def test_a_full_disk_is_told_with_the_next_version(tmp_path, monkeypatch):
    shelf = claimed(tmp_path)
    good = shelf.put([b"fine"])
    shelf.version(1, b"state", good, {}).result(30)

    def full(self, name, chunks):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "write", full)
        bad = shelf.put([b"lost"])
        with pytest.raises(StateError, match="no space is left"):
            shelf.version(2, b"state", [*good, *bad], {}).result(30)
    with pytest.raises(StateError, match="no space is left"):  # the file that is missing stays missing
        shelf.version(3, b"state", good, {}).result(30)
    assert StateFolder(tmp_path).versions() == [1] and shelf.get(bad[0]) == b"lost"
    shelf.close()


def test_who_has_lost_the_folder_is_told(tmp_path):
    shelf = claimed(tmp_path)
    other = StateFolder(tmp_path)
    other.claim()
    with pytest.raises(StateError):
        shelf.version(1, b"state", [], {}).result(30)
    shelf.close()


def test_more_than_may_wait_waits(tmp_path, gate, monkeypatch):
    monkeypatch.setattr(shelves, "WAITING", 1000)
    shelf = claimed(tmp_path)
    shelf.put([b"x" * 600])
    slots: list = []
    second = threading.Thread(target=lambda: slots.extend(shelf.put([b"y" * 600])))
    second.start()
    second.join(0.3)
    assert second.is_alive() and not slots
    gate.set()
    second.join(30)
    assert shelf.get(slots[0]) == b"y" * 600
    shelf.close()


def test_versions_of_many_who_died_push_out_nothing_that_is_named(tmp_path):
    given = loads(SMALL.replace("/nowhere", str(tmp_path / "state")))
    keeper = StateKeeper(given)
    named = keeper.save(keeper.fresh("in-0"), {"n": 0})
    for _ in range(12):
        runtime, note = StateKeeper(given).load("in-0", named)
        assert note["n"] == 0
        other = StateKeeper(given)
        runtime, _ = other.load("in-0", named)
        other.save(runtime, {"n": 1})  # and dies
    last = StateKeeper(given)
    runtime, _ = last.load("in-0", named)
    following = last.save(runtime, {"n": 2})
    last.settle("in-0", following)
    for _ in range(2):
        following = last.save(runtime, {"n": 3})
    (life,) = (tmp_path / "state" / "in-0").iterdir()
    assert len(StateFolder(life).versions()) == 4  # and not for ever


def batch(rng, given, start, count):
    rows = [
        {
            "id": f"e{n}", "type": rng.choice("AB"), "ts": n * 10 - rng.choice([0, 0, 0, 40_000]),
            "tag": f"t{rng.randrange(300)}", "price": float(n),
        }
        for n in range(start, start + count)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=given.schema)


@pytest.mark.parametrize("memory", [None, "1 MiB"])
def test_a_version_is_what_was_when_it_was_begun(tmp_path, memory):
    """Versions are begun while the runtime goes on, with and without a budget that drives state to the folder; each,
    opened anew, has the future that a runtime without any of this has."""
    top = "" if memory is None else f'memory = "{memory}"\n'
    text = SMALL.replace("WITHIN 5 s", "WITHIN 1 min").replace("/nowhere", str(tmp_path / "state"))
    given = loads(top + text.replace("kslack(1 s)", "aggressive(max_delay = 1 min)"))
    rng, keeper = random.Random(5), StateKeeper(given)
    runtime = keeper.fresh("in-0")
    batches = [batch(rng, given, 2000 * n, 2000) for n in range(16)]
    begun = []
    for number, events in enumerate(batches):
        runtime.process(events)
        if number % 3 == 2:
            begun.append((number + 1, keeper.begin(runtime, {"n": number})))
    if memory is not None:
        assert runtime.explain()["memory"]["writes"] > 0
    whole = lc.Runtime(given.stream, given.queries)
    futures = [whole.process(events).changes for events in batches]
    for _, saving in begun:
        saving.done.result(30)
    for number, saving in begun[-3:]:  # the older ones were dropped meanwhile
        again, note = StateKeeper(given).load("in-0", saving.name)
        assert note["n"] == number - 1
        for events, future in zip(batches[number:], futures[number:], strict=True):
            told = again.process(events).changes
            assert sorted(told.column("match_id").to_pylist()) == sorted(future.column("match_id").to_pylist())
    assert sum(future.num_rows for future in futures) > 1000
