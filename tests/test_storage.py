"""The structures below the engine against plain Python: id index, text columns, nearest events, words and hashes."""

from __future__ import annotations

import datetime
import random

import numpy as np
import pyarrow as pa
import pytest

from latecomer.storage import ids
from latecomer.storage.columns import BytesColumn
from latecomer.storage.hashing import first_words, hash_column, hash_contents, hash_halves
from latecomer.storage.ids import IdIndex
from latecomer.storage.store import CodeLayout, Store, View


@pytest.mark.parametrize("smallest", [2, 4_096])
def test_the_id_index_enters_each_mark_once(smallest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_SMALLEST", smallest)
    rng = np.random.default_rng(1)
    for shift in (32, 44, 60):  # few bits of the mark differ: long chains, also over the table's end
        index, seen, forgotten = IdIndex(), dict[int, int](), 0
        for batch in range(12):
            hashes = rng.integers(0, 60, 17).astype(np.uint64) << np.uint64(shift)
            refs = np.arange(17) + 17 * batch
            if not index.room_for(17):
                forgotten = 17 * (batch - 3)
                index.rebuild(lambda some, floor=forgotten: some >= floor, 17)
                seen = {mark: ref for mark, ref in seen.items() if ref >= forgotten}
            expected = []
            for row, value in enumerate(hashes.tolist()):
                mark = max(value >> 32, 1)
                if mark in seen:
                    expected.append(row)
                else:
                    seen[mark] = int(refs[row])
            assert index.enter(hashes, refs).tolist() == expected
            index._check()
        assert sorted(index.refs().tolist()) == sorted(seen.values())
        marks = np.array(list(seen), np.uint64) << np.uint64(32)
        rows, found = index.find(marks)
        assert dict(zip(rows.tolist(), found.tolist(), strict=True)) == dict(enumerate(seen.values()))
        moved = np.array(list(seen.values())) + 1_000
        index.move(marks, moved - 1_000, moved)
        assert sorted(index.refs().tolist()) == sorted(moved.tolist())
        copy = IdIndex()
        copy.load(index.dump())
        copy._check()
        assert sorted(copy.refs().tolist()) == sorted(moved.tolist())


def texts(n: int) -> list[str]:
    return ["".join(random.choices("aé\0", k=random.choice([0, 1, 7, 8, 9, 15, 16, 17, 24, 30]))) for _ in range(n)]


def test_texts_are_compared_by_words() -> None:
    random.seed(2)
    for _ in range(60):
        left, right = BytesColumn(pa.string()), BytesColumn(pa.string())
        mine: list[str] = []
        its: list[str] = []
        for _ in range(random.randint(1, 5)):
            more = texts(random.randint(1, 20))
            left.append(pa.array(more))
            mine += more
            others = [random.choice([random.choice(mine), text]) for text in texts(random.randint(1, 20))]
            right.append(pa.array(others))
            its += others
            gone = random.randint(0, len(mine) // 2)
            left.drop(gone)
            mine = mine[gone:]
        at, other = np.array(random.choices(range(len(mine)), k=50)), np.array(random.choices(range(len(its)), k=50))
        assert left.same(at, right, other).tolist() == [mine[i] == its[j] for i, j in zip(at, other, strict=True)]
        assert left.same(at, left, at).all()
    empty = BytesColumn(pa.string())
    empty.append(pa.array(["", ""]))
    assert empty.same(np.array([0]), empty, np.array([1])).tolist() == [True]


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("view", list(View))
def test_the_nearest_event_is_found_across_slices_and_runs(view: View, backward: bool) -> None:
    rng = np.random.default_rng(3)
    layout = CodeLayout(4)  # slices of 16 units
    store = Store(layout)
    hashes = rng.integers(0, 2**64 - 1, 3, dtype=np.uint64)
    events: list[tuple[int, int, int]] = []  # (key, ts, ref)
    old = 0
    for batch in range(5):
        n = 12
        key, ts = rng.integers(0, 3, n), rng.integers(-40, 40, n)
        refs = np.arange(n) + n * batch
        old = len(events)
        events += list(zip(key.tolist(), ts.tolist(), refs.tolist(), strict=True))
        store.stage(hashes[key], ts, refs)
        if batch < 4:
            store.commit()
    store._check()
    seen = {View.OLD: events[:old], View.NEW: events[old:], View.ALL: events}[view]
    key, lo = rng.integers(0, 3, 200), rng.integers(-50, 50, 200)
    hi = lo + rng.integers(-2, 40, 200)
    found_ts, found = store.nearest(layout.keys(hashes[key]), lo.copy(), hi.copy(), view, backward)
    for row in range(200):
        inside = [(t, r) for k, t, r in seen if k == key[row] and lo[row] <= t <= hi[row]]
        if not inside:
            assert found[row] == -1
            continue
        nearest = (max if backward else min)(t for t, _ in inside)
        assert found_ts[row] == nearest and (nearest, int(found[row])) in inside


COLUMNS = [
    pa.array([1, 2, 3]),
    pa.array([1, None, 3]),
    pa.array([-1, 2], pa.int8()),
    pa.array([1.5, -0.0]),
    pa.array([True, False]),
    pa.array(["", "a", "abcdefgh", "abcdefghi", "ein langer Text mit Umlauten: äöü"]),
    pa.array(["x", None, "x"]).dictionary_encode(),
    pa.array([datetime.date(2020, 1, 1)]),
    pa.array([[1, 2], [3]]),
    pa.array([], pa.string()),
    pa.nulls(2),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: str(c.type))
def test_hashes_depend_on_values_alone(column: pa.Array) -> None:
    halves = hash_halves(column)
    assert halves.tolist() == [hash_column(column, 1).tolist(), hash_column(column, 2).tolist()]
    for row in range(len(column)):
        alone = column.slice(row, 1)
        assert hash_column(alone, 1)[0] == halves[0, row]
        start = np.zeros(1, np.uint64)
        whole = hash_contents(np.zeros(len(column), np.uint64), [column, column])
        assert hash_contents(start, [alone, alone])[0] == whole[row]


def test_contents_tell_values_and_columns_apart() -> None:
    random.seed(4)
    values = sorted(set(texts(500)))
    zeros = np.zeros(len(values), np.uint64)
    assert len(set(hash_contents(zeros, [pa.array(values)]).tolist())) == len(values)
    one, two = pa.array([1, 2]), pa.array([2, 1])
    swapped = hash_contents(np.zeros(2, np.uint64), [one, two])
    assert swapped[0] != swapped[1]
    nulls = hash_contents(np.zeros(3, np.uint64), [pa.array([0, None, 1])])
    assert len(set(nulls.tolist())) == 3


def test_first_words() -> None:
    values = ["", "A", "A\0", "abcdefgh", "abcdefghi", "é"]
    words, lengths = first_words(pa.array(["skipped", *values]).slice(1))
    raw = [v.encode() for v in values]
    assert lengths.tolist() == [len(r) for r in raw]
    assert words.tolist() == [int.from_bytes(r[:8].ljust(8, b"\0"), "little") for r in raw]
