"""The structures below the engine against plain Python: id index, text columns, nearest events, words and hashes."""

from __future__ import annotations

import datetime
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.storage import ids
from latecomer.storage.columns import BytesColumn
from latecomer.storage.hashing import first_words, hash_column, hash_contents, hash_halves
from latecomer.storage.ids import IdIndex
from latecomer.storage.numbers import Numbers
from latecomer.storage.pager import Pager
from latecomer.storage.shelf import MemoryShelf
from latecomer.storage.slices import by_slice, counted
from latecomer.storage.store import CodeLayout, Store, View


@pytest.mark.parametrize("smallest", [2, 4_096])
def test_the_id_index_enters_each_mark_once(smallest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_SMALLEST", smallest)
    monkeypatch.setattr(ids, "_PIECE", 3)
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


@pytest.mark.parametrize("apart", [1, 1 << 31, 1 << 33])
def test_the_id_index_takes_references_however_far_apart(apart: int) -> None:
    index = IdIndex()
    rng = np.random.default_rng(3)
    known: dict[int, int] = {}
    for turn in range(40):
        marks = rng.choice(1 << 32, 300, replace=False).astype(np.uint64)
        refs = (1 << 35) + apart * turn + np.arange(300)
        if not index.room_for(300):
            index.rebuild(lambda some, floor=(1 << 35) + apart * (turn - 5): some >= floor, 300)
            known = {mark: ref for mark, ref in known.items() if ref >= (1 << 35) + apart * (turn - 5)}
        entered = np.setdiff1d(np.arange(300), index.enter(marks << np.uint64(32), refs))
        known |= dict(zip(marks[entered].tolist(), refs[entered].tolist(), strict=True))
        index._check()
    assert sorted(index.refs().tolist()) == sorted(known.values())
    bytes_each = 8 if apart == 1 else 12
    assert index.nbytes <= 4 * bytes_each * (len(index) + 6 * 300) + 4_096 * 12


@given(st.lists(st.integers(-40, 400), min_size=1, unique=True), st.integers(0, 1 << 41), st.sampled_from([1, 7, 1000]))
def test_numbers_have_places(values: list[int], base: int, apart: int) -> None:
    numbers = np.sort(np.array(values)) * apart + base
    some = Numbers(numbers)
    asked = np.arange(-60, 420) * apart + base
    held = np.isin(asked, numbers)
    assert some.hold(asked).tolist() == held.tolist()
    assert some.hold(np.array([-(2**62), 2**62])).tolist() == [False, False]
    assert some.places(asked[held]).tolist() == list(range(len(numbers)))
    assert some.all().tolist() == numbers.tolist()
    assert len(some) == len(numbers)
    assert some.nbytes <= 8 * len(numbers) + 64


@given(st.lists(st.integers(-5, 5) | st.sampled_from([10**6, -(10**15)])))
def test_what_is_told_by_slice_is_told_by_event(values: list[int]) -> None:
    numbers = np.array(values, np.int64)
    assert by_slice(numbers, lambda some: some * 3 + 1).tolist() == [value * 3 + 1 for value in values]
    distinct, counts = counted(numbers)
    assert dict(zip(distinct.tolist(), counts.tolist(), strict=True)) == Counter(values)
    assert distinct.tolist() == sorted(set(values))


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
    halves = np.stack(hash_halves(column))
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


@pytest.mark.parametrize(("absent", "kept"), [(0.0, False), (0.5, True)])
def test_filters_that_rule_nothing_out_leave_memory(absent: float, kept: bool) -> None:
    layout, rng = CodeLayout(10), np.random.default_rng(5)
    store = Store(layout, Pager(MemoryShelf()))
    keys = rng.integers(0, 2**63, 500, dtype=np.uint64)

    def fill(number: int) -> None:
        store.stage(keys, np.full(500, number << 10), np.arange(500) + 500 * number)
        store.commit()
        outbox = store._pager.outbox()
        store.save(number, outbox)
        outbox.send()
        store.evict(number)

    for number in range(3):
        fill(number)
    others = rng.integers(0, 2**63, 500, dtype=np.uint64)
    asked = layout.keys(np.where(rng.random(500) < absent, others, keys))
    for _ in range(40):
        found = store.away(np.zeros(500, np.int64), np.full(500, 3 << 10), asked)
        assert found[np.isin(asked, layout.keys(keys))].all()
    filters = [saved.filter for frame in store.frames.values() for saved in frame.saved]
    assert any(not one.any for one in filters) is kept
    fill(4)
    assert store.frames[4].saved[0].filter.any is not kept
    if not kept:
        for number in range(5, 5 + 300):
            fill(number)
        assert not all(frame.saved[0].filter.any for number, frame in store.frames.items() if number > 4)
    store._check()
