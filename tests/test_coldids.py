"""Ids on a shelf against a list of entries: adding, finding, forgetting, merging, reloading, and failing in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from latecomer.errors import StateError
from latecomer.storage import coldids, filters, idruns
from latecomer.storage.coldids import ColdIds
from latecomer.storage.folder import StateFolder
from latecomer.storage.packing import pack, unpack
from latecomer.storage.shelf import MemoryShelf, Slot

Entry = tuple[int, int, int, int, object]  # hash, ts, type, content, id


@contextmanager
def small_sizes() -> Iterator[None]:
    """A dozen entries fill several blocks, files, shards and runs."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in (
            (idruns, "BLOCK", 3),
            (idruns, "_TOGETHER", 2),
            (idruns, "_AHEAD", 1),
            (idruns, "_WORDS", 7),
            (coldids, "_GROWTH", 3),
            (coldids, "_PARTS", 1),
            (coldids, "_SMALL", 1),
            (filters, "_SHARD", 2),
        ):
            patch.setattr(owner, name, value)
        yield


class FailingShelf(MemoryShelf):
    """Counts what is read; fails after so many more files or reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Slot] = []
        self.puts_left = self.gets_left = 10**9

    def put(self, blobs: Sequence[bytes]) -> list[Slot]:
        self.puts_left -= 1
        if self.puts_left < 0:
            raise StateError("the disk is full")
        return super().put(blobs)

    def get(self, slot: Slot) -> bytes:
        self.gets_left -= 1
        if self.gets_left < 0:
            raise StateError("the blob is damaged")
        self.reads.append(slot)
        return super().get(slot)


def add(cold: ColdIds, entries: list[Entry], kind: pa.DataType) -> None:
    hashes, ts, types, content, ids = zip(*entries, strict=True) if entries else ((),) * 5
    cold.add(
        np.array(hashes, np.uint64),
        np.array(ts, np.int64),
        np.array(types, np.int64),
        np.array(content, np.uint64),
        pa.array(ids, kind),
    )


def find(cold: ColdIds, hashes: list[int]) -> list[Counter[Entry]]:
    """What is found, for each of the hashes."""
    rows, found = cold.find(np.array(hashes, np.uint64))
    assert rows.tolist() == sorted(rows.tolist())
    assert found.ts.dtype == np.int64 and found.types.dtype == np.int32 and found.content.dtype == np.uint64
    result: list[Counter[Entry]] = [Counter() for _ in hashes]
    entries = zip(found.ts.tolist(), found.types.tolist(), found.content.tolist(), found.ids.to_pylist(), strict=True)
    for row, entry in zip(rows.tolist(), entries, strict=True):
        result[row][hashes[row], *entry] += 1
    return result


hashes = st.one_of(st.integers(0, 3), st.integers(2**64 - 2, 2**64 - 1), st.integers(0, 2**64 - 1))
kinds = {pa.int64(): st.integers(0, 9), pa.large_string(): st.sampled_from(["", "a", "ä\0", "long " * 9])}


class Machine(RuleBasedStateMachine):
    """``added`` is every entry that ever came, ``live`` those that the floors keep."""

    @initialize(kind=st.sampled_from(list(kinds)), cache=st.sampled_from([0, 400, 1 << 20]))
    def begin(self, kind: pa.DataType, cache: int) -> None:
        self.sizes = small_sizes()
        self.sizes.__enter__()
        self.kind, self.cache = kind, cache
        self.shelf = FailingShelf()
        self.cold = ColdIds(self.shelf, kind, cache=cache)
        self.added: Counter[Entry] = Counter()
        self.floors = [0, 0, 0]

    def teardown(self) -> None:
        if hasattr(self, "sizes"):
            self.sizes.__exit__(None, None, None)

    def keep(self, ts: np.ndarray, types: np.ndarray) -> np.ndarray:
        return ts >= np.array(self.floors)[types]

    @property
    def live(self) -> Counter[Entry]:
        return Counter({e: n for e, n in self.added.items() if e[1] >= self.floors[e[2]]})

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        entry = st.tuples(hashes, st.integers(0, 30), st.integers(0, 2), st.integers(0, 2), kinds[self.kind])
        entries = data.draw(st.lists(entry, max_size=14))
        add(self.cold, entries, self.kind)
        self.added.update(entries)

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        present = st.sampled_from(sorted({e[0] for e in self.added}) or [5])
        wanted = data.draw(st.lists(st.one_of(present, hashes), max_size=12))
        live, added = self.live, self.added
        for value, found in zip(wanted, find(self.cold, wanted), strict=True):
            assert Counter({e: n for e, n in live.items() if e[0] == value}) <= found, value
            assert found <= Counter({e: n for e, n in added.items() if e[0] == value}), value

    @rule(kind=st.integers(0, 2), by=st.sampled_from([1, 5, 40]))
    def forget(self, kind: int, by: int) -> None:
        self.floors[kind] += by
        self.cold.forget(self.keep)
        self.cold.tidy()
        alive = self.live.total()
        assert alive or not len(self.cold), "all of it is dead"
        if len(self.cold) < 2 * idruns._SAMPLE:  # then the share that is dead is known
            assert 2 * (len(self.cold) - alive) <= len(self.cold), "more than half of it is dead"

    @rule()
    def reload(self) -> None:
        self.shelf.reads.clear()
        state = unpack(pack(self.cold.dump()))
        self.cold = ColdIds(self.shelf, self.kind, cache=self.cache)
        self.cold.load(state)
        assert not self.shelf.reads

    @precondition(lambda self: len(self.cold))
    @rule(data=st.data(), puts=st.integers(0, 4), gets=st.integers(0, 9), forget=st.booleans())
    def fail(self, data: st.DataObject, puts: int, gets: int, forget: bool) -> None:
        """Whatever fails, what was there still is."""
        self.shelf.puts_left, self.shelf.gets_left = puts, gets
        entries = [(h, 20 + h, 0, 0, data.draw(kinds[self.kind])) for h in range(5)]
        try:
            if forget:
                self.floors[0] += 3
                self.cold.forget(self.keep)
                self.cold.tidy()
            else:
                add(self.cold, entries, self.kind)
                self.added.update(entries)
        except StateError:
            pass
        finally:
            self.shelf.puts_left = self.shelf.gets_left = 10**9

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "cold"):
            self.cold._check()
            assert self.shelf.slots == set(self.cold.slots()), "the shelf holds what nobody needs"
            assert self.live.total() <= len(self.cold) <= self.added.total()


TestAgainstAList = Machine.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def many(n: int, seed: int = 1) -> list[Entry]:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**63, (n, 2)).tolist()
    return [(a, i, i % 3, b, i) for i, (a, b) in enumerate(values)]


def test_equal_hashes_on_both_sides_of_a_block() -> None:
    with small_sizes():
        for before in range(8):
            for equal in (1, 2, 3, 4, 10):
                others = [(value, 0, 0, 0, value) for value in range(1_000, 1_000 + before)]
                same = [(7, i, 0, i, i) for i in range(equal)]
                cold = ColdIds(MemoryShelf(), pa.int64())
                add(cold, others + same, pa.int64())
                assert find(cold, [7, 8, 7]) == [Counter(same), Counter(), Counter(same)]
                assert find(cold, [e[0] for e in others]) == [Counter([e]) for e in others]
                cold._check()


def test_merges_keep_the_runs_few_and_every_entry() -> None:
    with small_sizes():
        shelf = MemoryShelf()
        cold = ColdIds(shelf, pa.int64())
        entries = many(400)
        for start in range(0, 400, 5):
            add(cold, entries[start : start + 5], pa.int64())
        assert len(cold) == 400
        assert len(cold._runs) <= 8  # at most two of each size
        assert find(cold, [e[0] for e in entries]) == [Counter([e]) for e in entries]
        pieces = [len(piece.mixed) for piece in idruns.in_order(shelf, cold._runs, None)]
        assert sum(pieces) == 400 and max(pieces) <= len(cold._runs) * idruns.BLOCK


def test_what_is_dead_is_left_out_of_merges() -> None:
    with small_sizes():
        cold = ColdIds(MemoryShelf(), pa.int64())
        entries = many(60)
        for start in range(0, 40, 20):
            add(cold, entries[start : start + 20], pa.int64())
            cold.forget(lambda ts, types: ts >= 8)
            cold.tidy()  # too few to be worth a merge of its own
        assert len(cold) == 40
        add(cold, entries[40:], pa.int64())
        add(cold, entries[:1], pa.int64())
        assert len(cold) == 53


def test_what_is_wholly_dead_goes_without_being_read() -> None:
    with small_sizes():
        shelf = FailingShelf()
        cold = ColdIds(shelf, pa.int64())
        entries = many(221)
        add(cold, entries[:220], pa.int64())
        add(cold, entries[220:], pa.int64())
        shelf.puts_left = 0  # nothing is written
        cold.forget(lambda ts, types: ts >= 220)
        assert len(cold) == 1
        cold.forget(lambda ts, types: ts >= 221)
        assert not len(cold) and not shelf.slots and not shelf.reads


def test_unseen_ids_cost_no_read_and_seen_ones_one_read_per_block() -> None:
    shelf = FailingShelf()
    cold = ColdIds(shelf, pa.int64(), cache=0)
    entries = many(20_000)
    for start in range(0, 20_000, 5_000):
        add(cold, entries[start : start + 5_000], pa.int64())
    cold.find(np.arange(8_192, dtype=np.uint64))
    assert len(shelf.reads) <= 2  # 8,192 keys, 4 filters, 1 wrong answer in 65,536
    shelf.reads.clear()
    assert all(find(cold, [e[0] for e in entries[:3_000]] * 2))
    assert len(shelf.reads) == len(set(shelf.reads)) <= 3 + 2  # the first run has three blocks
    assert cold.nbytes < 3 * 20_000 + 2**16  # filters, and the least sieve


def test_blocks_that_were_just_read_are_at_hand() -> None:
    shelf = FailingShelf()
    cold = ColdIds(shelf, pa.int64(), cache=1 << 20)
    add(cold, many(5_000), pa.int64())
    wanted = [e[0] for e in many(5_000)]
    assert all(find(cold, wanted))
    first = len(shelf.reads)
    assert all(find(cold, wanted)) and len(shelf.reads) == first
    assert 5_000 * 36 < cold.nbytes < (1 << 20) + 3 * 5_000


def test_a_state_is_opened_without_reading_it() -> None:
    shelf = FailingShelf()
    cold = ColdIds(shelf, pa.large_string())
    entries = [(h, ts, kind, content, f"id {i}") for h, ts, kind, content, i in many(10_000)]
    add(cold, entries, pa.large_string())
    again = ColdIds(shelf, pa.large_string())
    again.load(unpack(pack(cold.dump())))
    assert not shelf.reads and len(again) == 10_000 and again.nbytes < 5_000
    assert find(again, [entries[77][0]]) == [Counter([entries[77]])]
    assert len(shelf.reads) == 2  # the filter and a block
    again._check()


def test_ids_in_a_state_folder(tmp_path: Path) -> None:
    with small_sizes():
        folder = StateFolder(tmp_path, sync=False)
        folder.claim()
        cold = ColdIds(folder, pa.int64())
        entries = many(120)
        for start in range(0, 120, 12):
            add(cold, entries[start : start + 12], pa.int64())
        version = folder.commit(1, pack(cold.dump()), cold.slots(), {})
        cold.forget(lambda ts, types: ts >= 110)
        cold.tidy()
        assert find(cold, [e[0] for e in entries[110:]]) == [Counter([e]) for e in entries[110:]]
        reader = StateFolder(tmp_path)
        again = ColdIds(reader, pa.int64())
        again.load(unpack(reader.residue(version)))
        assert find(again, [e[0] for e in entries]) == [Counter([e]) for e in entries]
        again._check()


def test_what_is_no_block_is_refused() -> None:
    block = idruns.Columns.none(pa.int64()).encode()
    other = pa.BufferOutputStream()
    with pa.ipc.new_stream(other, pa.schema([("x", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch({"x": pa.array([1])}))
    for bad in (b"", b"junk", block[:40], bytes(other.getvalue())):
        with pytest.raises(StateError, match="block of ids"):
            idruns.Columns.decode(bad)


def test_large_runs_are_left_alone_and_small_ones_merged() -> None:
    with small_sizes(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(coldids, "_PARTS", 4)
        cold = ColdIds(MemoryShelf(), pa.int64())
        entries = many(200)
        add(cold, entries[:100], pa.int64())
        add(cold, entries[100:160], pa.int64())
        large = {id(run) for run in cold._runs}
        for start in range(160, 200, 2):
            add(cold, entries[start : start + 2], pa.int64())
        assert large <= {id(run) for run in cold._runs}
        assert len(cold._runs) <= 8
        cold._check()
        assert find(cold, [e[0] for e in entries]) == [Counter([e]) for e in entries]


def test_blocks_of_earlier_releases_are_read() -> None:
    entries = idruns.Columns(
        np.array([1, 5], np.uint64),
        np.array([10, 20]),
        np.array([0, 1], np.int32),
        np.array([7, 8], np.uint64),
        pa.array(["a", "b"]),
    )
    batch = pa.RecordBatch.from_arrays([*map(pa.array, entries[:4]), entries.ids], names=list(entries._fields))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(batch)
    again = idruns.Columns.decode(bytes(sink.getvalue()))
    assert [column.tolist() for column in again[:4]] == [column.tolist() for column in entries[:4]]
    assert again.ids.equals(entries.ids)
