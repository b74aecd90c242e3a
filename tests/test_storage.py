"""The structures below the engine against plain Python: id index, text columns, nearest events, words and hashes."""

from __future__ import annotations

import datetime
import itertools
import random
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.storage import columns, ids, room
from latecomer.storage.columns import BytesColumn, FixedColumn, make_column
from latecomer.storage.hashing import first_words, hash_column, hash_contents, hash_halves
from latecomer.storage.ids import IdIndex
from latecomer.storage.numbers import Numbers
from latecomer.storage.pager import Pager
from latecomer.storage.shelf import MemoryShelf
from latecomer.storage.slices import by_slice, counted
from latecomer.storage.store import CodeLayout, Store, View


@pytest.mark.parametrize("smallest", [2, 64, 4_096])
@pytest.mark.parametrize("high", [False, True])
@given(st.data(), st.sampled_from([32, 44, 60]), st.sampled_from([1, 1 << 31, 1 << 33]), st.sampled_from([1, 8, 8_192]))
def test_the_id_index_remembers_what_it_must(
    smallest: int, high: bool, data: st.DataObject, shift: int, apart: int, step: int
) -> None:
    """Each mark is entered once, whatever the hand is doing; only what may be forgotten is, told by a number or one by
    one. ``high``: the homes are the last ones.
    """
    by_number = data.draw(st.booleans())

    def wanted(floor: int) -> ids.Keep:
        return floor if by_number else lambda refs: refs >= floor

    with mock.patch.multiple(ids, _SMALLEST=smallest, _STEP=step, _STRETCH=max(step, 512)):
        index, known, floor, end = IdIndex(), dict[int, int](), 0, apart
        for kind, n in data.draw(st.lists(st.tuples(st.sampled_from("eeeeafrmdp"), st.integers(1, 40)), max_size=30)):
            # Few bits of the mark differ where the shift is large: long chains, also over the table's end.
            drawn = data.draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
            hashes = np.array(drawn, np.uint64) << np.uint64(shift)
            hashes = ~hashes if high else hashes
            if kind == "f":
                floor = data.draw(st.integers(floor, end))
            if kind == "r":
                index.rebuild(wanted(floor))
                assert all(ref >= floor for ref in index.refs().tolist())
            if kind in "ea":
                if index.due(n):
                    index.tend(n, wanted(floor))
                left = set(index.refs().tolist())
                assert all(ref in left for ref in known.values() if ref >= floor)
                known = {mark: ref for mark, ref in known.items() if ref in left}
                refs = np.arange(n) + end
                end += n + data.draw(st.sampled_from([0, apart]))
                marks = np.maximum(hashes >> np.uint64(32), np.uint64(1)).tolist()
                new = {row for row, mark in enumerate(marks) if mark not in known and mark not in marks[:row]}
                if kind == "e":
                    assert index.enter(hashes, refs).tolist() == sorted(set(range(n)) - new)
                else:
                    index.add(hashes[sorted(new)], refs[sorted(new)])
                known |= {marks[row]: int(refs[row]) for row in new}
            if kind == "m" and known:
                marks = np.array(list(known), np.uint64) << np.uint64(32)
                moved = np.array(list(known.values())) + 3
                index.move(marks, moved - 3, moved)
                known = {mark: ref + 3 for mark, ref in known.items()}
                end += 3
            if kind == "p":
                own = data.draw(st.sets(st.sampled_from([*known, 77])))
                asked = np.array([*own, 77], np.uint64) << np.uint64(32)
                part = index.part(asked, np.array([*(known.get(mark, -1) for mark in own), end]))
                found = dict(zip(part["marks"].tolist(), part["refs"].tolist(), strict=True))
                assert found == {mark: known[mark] for mark in own if mark in known}
            if kind == "d":
                state, index = index.dump(), IdIndex()
                index.load(state)
            index._check()
            known = {mark: ref for mark, ref in known.items() if kind != "r" or ref >= floor}
            assert sorted(index.refs().tolist()) == sorted(known.values())
            rows, found = index.find(np.array([*known, 77], np.uint64) << np.uint64(32))
            assert dict(zip(rows.tolist(), found.tolist(), strict=True)) == dict(enumerate(known.values()))


def test_entries_that_went_over_the_tables_end_stay_when_memory_is_given_back() -> None:
    """They lie where the hand has passed already, though it has not come to their homes."""
    size = 1 << 17
    with mock.patch.object(ids, "_SMALLEST", size):
        index = IdIndex()
    count = size * ids._BEGIN // 16
    marks = np.linspace(0.01, 0.98, count) * 2.0**32
    index.enter(marks.astype(np.uint64) << np.uint64(32), np.arange(count))
    index.tend(8, lambda refs: refs >= 0)
    assert index._next is not None and not index._first and not index._done
    last = (1 << 32) - np.arange(1, 4, dtype=np.uint64) << np.uint64(32)
    own = count + np.arange(3)
    index.enter(last, own)  # the home of all three is the last place
    assert index._table.words[:2].all()
    for number in range(5_000):
        assert index.find(last)[1].tolist() == own.tolist(), number
        index.tend(8, lambda refs: refs >= 0)
        at = count + 3 + 8 * number + np.arange(8)
        index.enter(at.astype(np.uint64) * np.uint64(2**64 // 10**6), at)
    assert index._first or index._next is None, "the hand was to go around"


def test_references_of_an_index_that_was_empty_when_it_began_to_grow_are_kept_whole() -> None:
    index = IdIndex()
    index._begin(1, 0, 4_000)
    index.enter(np.array([1 << 40], np.uint64), np.array([1 << 33]))
    index._finish(lambda refs: np.ones(len(refs), bool))
    assert index.refs().tolist() == [1 << 33]


def test_the_id_index_stays_small_however_often_it_forgets() -> None:
    index, rng = IdIndex(), np.random.default_rng(0)
    for end in range(0, 100_000, 5_000):
        index.tend(5_000, lambda refs: refs >= 0)
        index.enter(rng.integers(0, 2**64, 5_000, np.uint64), np.arange(end, end + 5_000))
        index.rebuild(lambda refs, floor=end + 4_000: refs >= floor)
        assert len(index) == 1_000
        assert index.nbytes <= 8 * max(6_000 + 1, ids._SMALLEST) + 4_096


def test_the_id_index_tells_what_it_is_about_to_take() -> None:
    index, rng, end = IdIndex(), np.random.default_rng(0), 0
    for n in rng.integers(1, 3_000, 200).tolist():
        most = index.nbytes + index.growth(n)
        index.tend(n, lambda refs, floor=end - 60_000: refs >= floor)
        index.enter(rng.integers(0, 2**63, n).astype(np.uint64), np.arange(end, end + n))
        end += n
        assert index.nbytes <= 1.1 * most  # the hand goes on to the next free place


def test_a_table_whose_length_suits_stays() -> None:
    """The hand goes around within it, while as many ids come as are forgotten."""
    index, rng, tables = IdIndex(), np.random.default_rng(5), set[int]()
    laps = 0
    for end in range(0, 300_000, 500):
        begun = index.tend(500, lambda refs, floor=end - 10_000: refs >= floor)
        index.enter(rng.integers(0, 2**64, 500, np.uint64), np.arange(end, end + 500))
        if end > 100_000:
            laps, tables = laps + begun, tables | {id(index._table)}
    index._check()
    assert laps > 10 and len(tables) <= 2 and 10_000 < len(index) < 30_000
    table = index._table
    index.tend(100_000, lambda refs: refs < 0)  # far more come
    assert index._next is not None or index._table is not table


@pytest.mark.parametrize("apart", [1, 1 << 31, 1 << 33])
def test_the_id_index_goes_to_new_tables_step_by_step(apart: int) -> None:
    """A window of ids moves on: each call tends to a part, and memory stays what was promised for an entry."""
    index = IdIndex()
    rng = np.random.default_rng(3)
    known: dict[int, int] = {}
    looked = []
    for turn in range(400):
        marks = rng.choice(1 << 32, 2_000, replace=False).astype(np.uint64)
        floor = (1 << 35) + apart * 2_000 * max(turn - 100, 0)
        seen = 0

        def keep(refs: np.ndarray, floor: int = floor) -> np.ndarray:
            nonlocal seen
            seen += len(refs)
            return refs >= floor

        if index.due(2_000):
            index.tend(2_000, keep)
            looked.append(seen if turn > 150 else 0)
        refs = (1 << 35) + apart * 2_000 * turn + np.arange(2_000)
        entered = np.setdiff1d(np.arange(2_000), index.enter(marks << np.uint64(32), refs))
        known |= dict(zip(marks[entered].tolist(), refs[entered].tolist(), strict=True))
        bytes_each = 8 if apart == 1 else 12
        assert index.nbytes <= 4.1 * bytes_each * (len(index) + 2_000) + 2 * room._HUGE_PAGE + 4 * room._LARGE
    index._check()
    known = {mark: ref for mark, ref in known.items() if ref >= floor}
    assert set(known.values()) <= set(index.refs().tolist())
    assert len(index) < 2.5 * len(known)
    assert max(looked) < len(index) // 5 < sum(looked)


#: What is done to a buffer: so many values come, or (negative) so many go.
actions = st.lists(st.integers(-90, 60) | st.sampled_from([-2_000, 500, 3_000]), max_size=60)


_MOVE, _turns = room._move, itertools.cycle([True, True, False])


def now_and_then(*given: int) -> int | None:
    """The system moves memory, but not each time."""
    return _MOVE(*given) if _MOVE and next(_turns) else None


@pytest.mark.parametrize("moves", [_MOVE, None, now_and_then])
@pytest.mark.parametrize("large", [1, 1 << 30])
@pytest.mark.parametrize("short", [0, 100, 1 << 20])
@given(actions, st.sampled_from([np.int64, np.int32, np.uint8]), st.sampled_from([0, 8]))
def test_a_buffer_goes_over_step_by_step(
    short: int, large: int, moves: Any, steps: list[int], kind: type, spare: int
) -> None:
    """Whatever comes and goes, the live values are the right ones, and what was handed out stays as it was."""
    with (
        mock.patch.object(room, "_move", moves),
        mock.patch.multiple(room, _LARGE=large, _HUGE=1 << 14, _PIECE=4_096, _HUGE_PAGE=8_192),
        mock.patch.multiple(columns, _FEW=20, _STEP=7, _SHORT=short),
    ):
        buffer, values, fresh = columns.Buffer(np.dtype(kind), spare), np.zeros(0, kind), 0
        handed: list[tuple[np.ndarray, np.ndarray]] = []
        for step in steps:
            if step >= 0:
                more = (np.arange(step) + fresh).astype(kind)
                fresh += step
                ready = step % 5 == 0 and len(buffer) <= 20 and buffer._next is None
                if step % 5 == 0:
                    buffer.reserve(step)
                if buffer._next is None and buffer._end + step <= buffer._limit:  # as compiled code does
                    buffer._data[buffer._end : buffer._end + step] = more
                    buffer._end += step
                else:
                    assert not ready
                    buffer.append(more)
                values = np.concatenate((values, more))
            else:
                buffer.drop(min(-step, len(values)))
                values = values[-step:]
            assert buffer.live().tolist() == values.tolist() and len(buffer) == len(values)
            assert len(buffer.with_spare()) == len(values) + spare
            assert buffer.nbytes >= values.nbytes
            if step % 11 == 0:
                kept = values % 3 > 0
                buffer.keep(kept)
                values = values[kept]
            if step % 7 == 0:
                handed.append((buffer.live()[3:], values[3:]))
        for array, expected in handed:
            assert array.tolist() == expected.tolist()


@pytest.mark.parametrize(("gives", "moves"), [(True, True), (True, False), (False, False)])
def test_a_buffer_takes_no_more_memory_than_it_needs(gives: bool, moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_GIVES", gives and room._GIVES)
    monkeypatch.setattr(room, "_move", room._move if moves else None)
    buffer = columns.Buffer(np.dtype(np.int64))
    most = 0
    for turn in range(3_000):
        buffer.append(np.full(1_000, turn))
        if turn >= 200:
            buffer.drop(1_000)
            most = max(most, buffer.nbytes)
    assert buffer.live().tolist() == np.repeat(np.arange(2_800, 3_000), 1_000).tolist()
    assert most <= (1.1 if room._move else 2.6 if room._GIVES else 3.8) * 8 * 200_000


def test_a_short_buffer_uses_its_memory_again() -> None:
    """Memory stays where it is; far less of it is held once far less is needed."""
    buffer, places = columns.Buffer(np.dtype(np.int64)), set[int]()
    for turn in range(3_000):
        buffer.append(np.full(1_000, turn))
        if turn >= 50:
            buffer.drop(1_000)
            assert buffer.nbytes <= 1.4 * 8 * 50_000
        if turn >= 200:
            places.add(buffer._data.ctypes.data)
    assert buffer.live().tolist() == np.repeat(np.arange(2_950, 3_000), 1_000).tolist()
    assert len(places) == 1
    for turn in range(3_000, 3_200):
        buffer.drop(2_000 if len(buffer) > 4_000 else 1_000)
        buffer.append(np.full(1_000, turn))
    assert buffer.live().tolist() == np.repeat(np.arange(3_196, 3_200), 1_000).tolist()
    assert buffer.nbytes <= 8 * 20_000


def test_a_buffer_of_which_little_is_left_uses_its_memory_again() -> None:
    """Each batch is far more than what stays of those before it."""
    buffer, places = columns.Buffer(np.dtype(np.int64)), set[int]()
    for turn in range(300):
        if buffer._end + 8_000 > buffer._limit:
            buffer.reserve(8_000)
        buffer.append(np.full(8_000, turn))
        buffer.drop(len(buffer) - 500)
        if turn >= 5:
            places.add(buffer._data.ctypes.data)
    assert buffer.live().tolist() == [299] * 500
    assert len(places) == 1
    assert buffer.nbytes <= 8 * (8_500 + 500)


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
    for begin, end in ((0, 1), (len(numbers) // 3, len(numbers) // 2), (len(numbers) - 1, len(numbers))):
        assert some.between(begin, end).tolist() == numbers[begin:end].tolist()


@given(
    st.lists(st.integers(0, 400), unique=True),
    st.sampled_from([1, 7, 1000]),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 50), st.integers(0, 99)), max_size=4),
)
def test_numbers_go_and_others_come_behind_them(values: list[int], apart: int, steps: list[Any]) -> None:
    some, left = Numbers(np.sort(np.array(values, np.int64)) * apart), sorted(value * apart for value in values)
    end = max(left, default=-1) + 1
    for more, skipped, seed in steps:
        chance = random.Random(seed)
        begin, end = end + skipped, end + skipped + more
        left += range(begin, end)
        gone = chance.sample(left, chance.choice([0, len(left) // 2, len(left)]))
        some = some.but(np.array(gone, np.int64), range(begin, end))
        left = sorted(set(left) - set(gone))
        assert some.all().tolist() == left
        assert len(some) == len(left)
        assert some.places(np.array(left, np.int64)).tolist() == list(range(len(left)))
        asked = np.arange(-9, end + 9)
        assert some.hold(asked).tolist() == np.isin(asked, left).tolist()
        assert some.nbytes <= 8 * len(left) + 200


@pytest.mark.parametrize("size", [0, 5, 1_000, 70_000])
@pytest.mark.parametrize("looked_at", [False, True])
def test_columns_keep_what_is_marked(size: int, looked_at: bool) -> None:
    rng = np.random.default_rng(size)
    numbers = rng.integers(0, 2**40, size)
    texts = ["" if n % 5 == 0 else None if n % 7 == 0 else str(n) * (n % 3) for n in numbers.tolist()]
    for values in (
        pa.array(numbers),
        pa.array(numbers % 2 == 0),
        pa.array(numbers.astype(np.float64), mask=numbers % 3 == 0),
        pa.array(texts, pa.string()),
        pa.array([[n] for n in numbers.tolist()], pa.list_(pa.int64())),
    ):
        column = make_column(values.type)
        column.append(values)
        column.drop(size // 10)
        left = values.slice(size // 10)
        views = [column.values.live()] if looked_at and isinstance(column, FixedColumn) else []
        seen = [view.tolist() for view in views]
        for share in (0.9, 0.02):
            mask = rng.random(len(left)) < share
            column.keep(mask)
            left = left.filter(pa.array(mask))
            assert column.live().to_pylist() == left.to_pylist()
            assert [view.tolist() for view in views] == seen
            column.append(left)
            left = pa.concat_arrays([left, left])
            assert column.take(np.arange(len(left))).to_pylist() == left.to_pylist()


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
