"""The compiled kernels say what their NumPy twins say."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.storage import kernels
from latecomer.storage.filters import Filter
from latecomer.storage.hashing import mix
from latecomer.storage.numbers import Numbers


def numpy_twins() -> Any:
    """The module as it is without compiled twins."""
    spec = importlib.util.find_spec("latecomer.storage.kernels")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = os.environ.get(kernels.SWITCH)
    os.environ[kernels.SWITCH] = "numpy"
    try:
        spec.loader.exec_module(module)
    finally:
        os.environ.pop(kernels.SWITCH)
        if before is not None:
            os.environ[kernels.SWITCH] = before
    return module


PLAIN = numpy_twins()
NATIVE = importlib.import_module("latecomer.storage._compiled")
NONE = np.zeros(0, np.int64)
NONE32 = np.zeros(0, np.uint32)


def told(result: Any) -> Any:
    """What a kernel says, for comparison: values and types of arrays, and all else as it is."""
    if isinstance(result, np.ndarray):
        return str(result.dtype), result.tolist()
    return [told(part) for part in result] if isinstance(result, (tuple, list)) else result


def same(call: str, *args: Any) -> Any:
    """What both twins say, which must agree in values and types."""
    theirs, ours = getattr(PLAIN, call)(*args), getattr(NATIVE, call)(*args)
    assert told(theirs) == told(ours), (call, args)
    return ours


words = st.lists(st.integers(0, 2**64 - 1), max_size=50).map(lambda v: np.array(v, np.uint64))
texts = st.lists(st.text(max_size=30), max_size=20)


def raw(values: list[str], skip: int = 0) -> tuple[Any, Any]:
    column = pa.array(values, pa.string()).slice(skip)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    return offsets, np.frombuffer(column.buffers()[2] or b"", np.uint8)


@given(words, st.integers(0, 2**64 - 1))
def test_words_are_scrambled_alike(values, salt):
    same("scramble", values, salt)
    same("combine", values, values[::-1].copy())


@given(texts, st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_texts_are_hashed_alike(values, salt, skip):
    offsets, data = raw(["x", *values], min(skip, len(values)))
    same("hash_texts", offsets, data, salt)
    same("text_words", offsets, data)
    known = PLAIN.first_words(*raw(["A", "x", "", "longer18"]))
    same("text_numbers", offsets, data, *known, -1)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 2**63), st.data())
def test_match_ids_are_alike(n, each, name, data):
    high, low = (
        np.array(data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=n * each, max_size=n * each)), np.uint64)
        for _ in range(2)
    )
    same("match_digits", high, low, each, name, name * 2 + 1)


@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**33),
    st.integers(0, 100),
    st.integers(0, 200),
)
def test_ids_are_entered_alike(marks, unique, wide, base, first, done):
    """Where entries lie may differ; what each mark leads to may not, nor in which of two tables it is."""
    wanted = np.array([m << 60 for m in marks], np.uint64) | np.uint64(9)
    own = np.arange(len(marks)) + base
    found = []
    for module in (PLAIN, NATIVE):
        tables = [np.zeros(size, np.uint64) for size in (2 * len(marks) + 3, 3 * len(marks) + 1)]
        highs = [np.full(len(table) if wide else 0, 7, np.uint32) for table in tables]
        size = len(tables[0])
        hand = first % size, done % (size + 1)
        left: list[int] = []
        entered = 0
        for half in (slice(0, len(marks) // 2), slice(len(marks) // 2, None)):
            arrays = tables[0], highs[0], tables[1], highs[1]
            open_rows, count = module.put(*arrays, *hand, wanted[half], own[half], unique)
            left += (open_rows + (half.start or 0)).tolist()
            entered += count
        each = []
        for table, high in zip(tables, highs, strict=True):
            taken = table.nonzero()[0]
            values = PLAIN.refs_at(table, high, taken, base)
            each.append(sorted(zip((table[taken] >> np.uint64(32)).tolist(), values.tolist(), strict=True)))
        over = [PLAIN.gone_over(np.array([m for m, _ in some], np.uint32), size, *hand) for some in each]
        assert not over[0].any() and over[1].all()
        found.append((left, entered, each))
    assert found[0] == found[1]
    assert found[0][1] == (len(set(marks)) if unique else len(marks))
    told = sorted(ref for some in found[0][2] for _, ref in some)
    kept = np.delete(own, np.array(found[0][0], int)).tolist()
    assert told == kept


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.booleans(), st.integers(0, 2**40), st.data())
def test_ids_are_taken_out_alike(marks, wide, base, data):
    own = base + np.arange(len(marks)) * data.draw(st.sampled_from([1, 1 << 25]))
    begin = data.draw(st.integers(0, len(marks)))
    end = data.draw(st.integers(begin, len(marks)))
    found = []
    for module in (PLAIN, NATIVE):
        table = np.where(np.array(marks) > 0, PLAIN.words_of(np.array(marks, np.uint32), own), np.uint64(0))
        highs = PLAIN.highs_of(own) if wide else np.zeros(0, np.uint32)
        some, told = module.take_out(table, highs, begin, end, base)
        assert some.dtype == np.uint64
        found.append((table.tolist(), highs.tolist(), some.tolist(), told.tolist()))
    assert found[0] == found[1]
    taken = [i for i in range(begin, end) if marks[i]]
    assert found[0][2:] == ([marks[i] << 32 for i in taken], own[taken].tolist())
    with pytest.raises(IndexError):
        NATIVE.take_out(table, highs, begin, len(marks) + 1, base)


@given(st.lists(st.integers(-3, 9), max_size=80), st.integers(-4, 10), st.integers(1, 40))
def test_what_is_before_the_first_time_that_is_kept_is_counted_alike(given_ts, floor, times):
    ts = np.array(given_ts * times, np.int64)
    n = next((i for i, t in enumerate(ts.tolist()) if t >= floor), len(ts))
    assert PLAIN.below(ts, floor) == NATIVE.below(ts, floor) == n


@given(
    st.lists(st.integers(0, 12), max_size=60),
    st.booleans(),
    st.integers(0, 2**33),
    st.integers(0, 100),
    st.integers(0, 200),
    st.data(),
)
def test_ids_are_carried_alike(marks, wide, base, first, done, data):
    """Where entries lie may differ; which are kept may not, nor in which of two tables they are."""
    wanted = np.array([m << 60 for m in marks], np.uint64)
    own = np.arange(len(marks)) + base
    size = 2 * len(marks) + 3
    hand = first % size, done % (size + 1)
    begin = data.draw(st.integers(0, size))
    end, least = data.draw(st.integers(begin, size)), base + data.draw(st.integers(0, len(marks)))
    start = [np.zeros(n, np.uint64) for n in (size, 3 * len(marks) + 1)]
    high = [np.zeros(len(table) if wide else 0, np.uint32) for table in start]
    PLAIN.put(start[0], high[0], start[1], high[1], 0, 0, wanted, own, False)
    found = []
    for module in (PLAIN, NATIVE):
        tables, highs = [table.copy() for table in start], [table.copy() for table in high]
        told = module.carry(tables[0], highs[0], tables[1], highs[1], *hand, begin, end, base, least)
        each = []
        for table, some in zip(tables, highs, strict=True):
            taken = table.nonzero()[0]
            values = PLAIN.refs_at(table, some, taken, base)
            each.append(sorted(zip((table[taken] >> np.uint64(32)).tolist(), values.tolist(), strict=True)))
        found.append((told, each))
    assert found[0] == found[1]
    before, told = PLAIN.refs_at(start[0], high[0], start[0][begin:end].nonzero()[0] + begin, base), found[0][0]
    kept = before[before >= least].tolist()
    assert told == (len(before), len(kept), min(kept, default=2**63 - 1))
    left = {*own.tolist()} - {*before.tolist()} | {*kept}
    assert sorted(ref for some in found[0][1] for _, ref in some) == sorted(left)
    with pytest.raises(IndexError):
        NATIVE.carry(start[0], high[0], start[1], high[1], *hand, begin, size + 1, base, least)


#: Times around several slices of 2**10, before and after zero.
times = st.integers(-3_000, 3_000)


@st.composite
def events(draw, least=0, most=80):
    n = draw(st.integers(least, most))
    keys = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.uint64) << np.uint64(40)
    ts = np.array(draw(st.lists(times, min_size=n, max_size=n)), np.int64)
    return keys, ts, np.arange(n)


@given(events(least=1), st.sampled_from([10, 12, 44]))
def test_events_are_arranged_alike(given_events, bits):
    same("arrange", *given_events, bits)


@pytest.mark.parametrize("keys", [1, 3, 10_000])
@pytest.mark.parametrize("span", [500, 4_000, 40_000])
@pytest.mark.parametrize("n", [31, 32, 33, 500, 5_000, 50_000])
def test_many_events_are_arranged_alike(n, span, keys):
    rng = np.random.default_rng(n + span + keys)
    hashes = PLAIN.mix(rng.integers(0, keys, n).view(np.uint64))
    same("arrange", hashes, rng.integers(-span, span, n), np.arange(n), 10)


@given(events(), events())
def test_runs_are_merged_alike(some, more):
    a, b = (np.sort(e[0] | (e[1] & 15).view(np.uint64)) for e in (some, more))
    same("merge", a, some[2], b, more[2] + 100)


lengths = st.integers(0, 1_500)


@given(lengths, lengths, st.sampled_from([3, 300, 2**62]), st.integers(0, 2**32), st.booleans())
def test_long_runs_are_merged_alike(n, m, most, seed, apart):
    """Whose parts are merged in turns; ``apart``: where one of the two is behind the other."""
    rng = np.random.default_rng(seed)
    a, b = np.sort(rng.integers(0, most, n, np.uint64)), np.sort(rng.integers(0, most, m, np.uint64))
    same("merge", a, np.arange(n), b + np.uint64(most * apart), np.arange(m) + n)
    same("merge", a + np.uint64(most * apart), np.arange(n), b, np.arange(m) + n)


@given(events(), events(), st.integers(1, 40), st.integers(0, 15), st.integers(0, 20))
def test_runs_are_merged_step_by_step_alike(some, more, most, floor, made):
    """Also what is written; and all steps together make what one merge does, without what is before the floor."""
    a, b = (np.sort(e[0] | (e[1] & 15).view(np.uint64)) for e in (some, more))
    n = len(a) + len(b)
    into = [(np.zeros(made + n, np.uint64), np.zeros(made + n, np.int64)) for _ in range(2)]
    at, begin, end = made, 0, 0
    while begin + end < n:
        rest = a, some[2], begin, b, more[2] + 100, end, most, 15, floor
        told, told_native = (t.merge_on(*out, at, *rest) for t, out in zip((PLAIN, NATIVE), into, strict=True))
        assert told == told_native and (begin, end) != told[1:] and told[1] - begin <= most >= told[2] - end
        at, begin, end = told
        assert [c[:at].tolist() for c in into[0]] == [c[:at].tolist() for c in into[1]]
    codes, refs = PLAIN.merge(a, some[2], b, more[2] + 100)
    own = (codes & np.uint64(15)) >= floor
    assert [c[made:at].tolist() for c in into[1]] == [codes[own].tolist(), refs[own].tolist()]
    assert not into[1][0][:made].any()


@settings(max_examples=200)
@given(st.lists(events(least=1), max_size=4), events(), st.integers(0, 2_500), st.sampled_from([10, 12]), st.booleans())
def test_runs_are_searched_alike(parts, probes, width, bits, backward):
    runs = []
    for keys, ts, refs in parts:
        codes, _, own, _, edges, _ = PLAIN.arrange(keys, ts, refs, bits)
        runs += [(number, codes[a:b].copy(), own[a:b].copy()) for number, a, b in edges]
    runs.sort(key=lambda run: run[0])
    keys, lo, _ = probes
    hi = lo + width - 200  # some end before they begin
    same("nearest", runs, bits, keys, lo, hi, backward)
    pairs, theirs = NATIVE.join(runs, bits, keys, lo, hi, 10**6), PLAIN.join(runs, bits, keys, lo, hi, 10**6)
    assert sorted(zip(*(c.tolist() for c in pairs), strict=True)) == sorted(
        zip(*(c.tolist() for c in theirs), strict=True)
    )
    assert (np.diff(pairs[0]) >= 0).all() and (np.diff(theirs[0]) >= 0).all()
    brute = sum(int(((k == keys[i]) & (t >= lo[i]) & (t <= hi[i])).sum()) for i in range(len(lo)) for k, t, _ in parts)
    assert len(pairs[0]) == brute
    if brute:
        assert (
            NATIVE.join(runs, bits, keys, lo, hi, brute - 1) == PLAIN.join(runs, bits, keys, lo, hi, brute - 1) == brute
        )


@pytest.mark.parametrize("spread", ["even", "clumped", "lopsided", "one key"])
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize(("n", "rows"), [(300_000, 800), (3_000, 6)])
def test_large_runs_are_searched_alike(spread, backward, n, rows):
    """So large, or so large for so few rows, that places are guessed: where guesses are good, bad, and no help at all;
    with rows in any order.
    """
    bits, rng = 12, np.random.default_rng(6)
    keep = np.uint64(2**63 - 2**bits)
    keys = {
        "even": rng.integers(0, 2**63, n, dtype=np.uint64),
        "clumped": rng.integers(0, 2**63, 70, dtype=np.uint64)[rng.integers(0, 70, n)],
        "lopsided": np.uint64(2**63 - 1) - (rng.pareto(0.3, n) + 1).clip(0, 2.0**62).astype(np.uint64),
        "one key": np.zeros(n, np.uint64),
    }[spread]
    ts = rng.integers(-(2**bits), 2 ** (bits + 1), n)
    codes, _, refs, _, edges, _ = NATIVE.arrange(keys, ts, np.arange(n), bits)
    runs = [(number, codes[a:b], refs[a:b]) for number, a, b in edges] + [(4, codes[:0], refs[:0])]
    assert min(len(run[1]) for run in runs[:-1]) > min(1 << 16, 64 * (rows + 1))
    asked = np.concatenate([keys[rng.integers(0, n, 300)], rng.integers(0, 2**63, 90, dtype=np.uint64)]) & keep
    asked = np.concatenate([asked, np.array([0, keep], np.uint64), np.sort(asked)])
    lo = rng.integers(-(2**bits) - 50, 2 ** (bits + 1), len(asked))
    hi = lo + rng.choice([-1, 0, 40], len(asked))
    hi[::200] += 2**bits
    for begin in range(0, len(asked), rows):
        some = [column[begin : begin + rows] for column in (asked, lo, hi)]
        same("nearest", runs, bits, *some, backward)
        ours, theirs = (twin.join(runs, bits, *some, 1 << 62) for twin in (NATIVE, PLAIN))
        order = [np.lexsort(found[1::-1]) for found in (ours, theirs)]
        for a, b in zip(ours, theirs, strict=True):
            assert (a[order[0]] == b[order[1]]).all()


@given(st.data(), st.sampled_from([np.uint8, np.uint16, np.int32, np.int64]))
def test_values_are_compared_alike(data, dtype):
    values = np.array(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=20)), dtype)
    at = st.lists(st.integers(0, len(values) - 1), min_size=5, max_size=5).map(lambda v: np.array(v, np.int64))
    a, b = data.draw(at), data.draw(at)
    same("equal_words", values, a + 7, 7, values, b, 0)


@given(st.data(), st.lists(st.sampled_from(["", "a", "b", "12345678", "12345678b", "12345678c", "x" * 17]), min_size=1))
def test_texts_are_compared_alike(data, values):
    whole = "".join(values).encode() + b"spare..." * 1
    offsets = np.cumsum([0, *(len(v) for v in values)])
    at = st.lists(st.integers(0, len(values) - 1), min_size=5, max_size=5).map(lambda v: np.array(v, np.int64))
    a, b = data.draw(at), data.draw(at)
    bytes_ = np.frombuffer(whole, np.uint8)
    result = same("equal_texts", offsets + 5, bytes_, a + 3, 3, offsets, bytes_, b, 0)
    assert result.tolist() == [values[i] == values[j] for i, j in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: NATIVE.scramble([1, 2], 0),
        lambda: NATIVE.scramble(np.zeros(3, np.uint32), 0),
        lambda: NATIVE.scramble(np.zeros((2, 2), np.uint64), 0),
        lambda: NATIVE.combine(np.zeros(2, np.uint64), np.zeros(3, np.uint64)),
        lambda: NATIVE.hash_texts(np.array([0, 9], np.int32), np.zeros(3, np.uint8), 0),
        lambda: NATIVE.join([(0, np.zeros(2, np.uint64))], 10, *[np.zeros(1, np.int64)] * 3, 9),
        lambda: NATIVE.put(*[np.zeros(4, np.uint64), np.zeros(3, np.uint32)] * 2, 0, 0, *[np.zeros(1)] * 2, True),
        lambda: NATIVE.put(*[np.zeros(8, np.uint64)[::2], NONE32] * 2, 0, 0, *[np.zeros(1)] * 2, True),
        lambda: NATIVE.put(*[np.zeros(4, np.uint64), np.zeros(8, np.uint32)[::2]] * 2, 0, 0, *[np.zeros(1)] * 2, True),
        lambda: NATIVE.put(*[np.zeros(4, np.uint32), NONE32] * 2, 0, 0, *[np.zeros(1)] * 2, True),
        lambda: NATIVE.put(*[np.zeros(0, np.uint64), NONE32] * 2, 0, 0, *[np.zeros(1)] * 2, True),
        lambda: NATIVE.merge_on(np.zeros(4, np.uint64)[::2], NONE, 0, NONE, NONE, 0, NONE, NONE, 0, 1, 0, 0),
        lambda: NATIVE.nearest(),
    ],
)
def test_what_does_not_fit_is_refused(call):
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(
    "places", [(0, 2, 0, 1), (1, 0, 0, 1), (0, 0, 0, 1), (-1, 1, 0, 1), (0, 1, -1, 1), (0, 1, 0, -1)]
)
def test_merging_outside_is_refused(places):
    """Where no room is, from a place that there is not, or fewer than none."""
    (made, begin, more, most), one = places, (np.zeros(1, np.uint64), np.zeros(1, np.int64))
    with pytest.raises(IndexError):
        NATIVE.merge_on(*one, made, *one, begin, *one, more, most, 0, 0)


def test_references_outside_are_refused():
    one = np.zeros(1, np.int64)
    with pytest.raises(IndexError):
        NATIVE.equal_words(one, one + 1, 0, one, one, 0)
    with pytest.raises(ValueError, match="full"):
        NATIVE.put(*[np.ones(2, np.uint64), NONE32] * 2, 0, 0, np.full(1, 5 << 32, np.uint64), one, True)


@pytest.mark.parametrize(("switch", "compiled"), [("numpy", False), ("compiled", True), ("", True)])
def test_the_switch_chooses(switch, compiled):
    code = "from latecomer.storage import kernels; print(kernels.COMPILED, kernels.join.__module__)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, kernels.SWITCH: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split()[0] == str(compiled)


def test_an_unknown_switch_is_an_error():
    ran = subprocess.run(
        [sys.executable, "-c", "import latecomer"],
        env={**os.environ, kernels.SWITCH: "fortran"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode and "give numpy, compiled" in ran.stderr


@given(words, st.integers(0, 3), st.integers(2, 5), st.integers(1, 6), st.integers(0, 2**32))
def test_filters_are_asked_alike(values, shard_bits, segment_bits, segments, seed):
    span = segments << segment_bits
    size = (span + (2 << segment_bits)) << shard_bits
    cells = np.random.default_rng(seed).integers(0, 2, size).astype(np.uint16)
    keys = np.concatenate([values, np.arange(500, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)])
    same("fuse", keys, cells, span, shard_bits, segment_bits)
    built = Filter.of(keys)
    shape = built._span, built._shard_bits, built._segment_bits
    assert same("fuse", mix(keys), built._cells, *shape).sum() >= len(np.unique(keys)) - len(built._stash)
    with pytest.raises(TypeError, match="too few"):
        NATIVE.fuse(keys, cells[:-1], span, shard_bits, segment_bits)


@given(st.integers(0, 400), st.integers(2, 200), st.integers(0, 2**32))
def test_filters_are_built_alike(n, size, seed):
    rng = np.random.default_rng(seed)
    cells = [rng.integers(0, size, n) for _ in range(3)]
    marks = rng.integers(0, 2**16, n).astype(np.uint16)
    content, placed = same("fuse_build", *cells, marks, size)
    served = content[cells[0]] ^ content[cells[1]] ^ content[cells[2]] == marks
    distinct = (cells[0] != cells[1]) & (cells[1] != cells[2]) & (cells[0] != cells[2])
    if distinct.all():
        assert served[placed].all()
    if n:
        with pytest.raises(IndexError):
            NATIVE.fuse_build(cells[0], cells[1], cells[2] + size, marks, size)


@given(words, words, st.integers(1, 70))
def test_sieves_are_asked_alike(values, others, size):
    sown = [np.zeros(size, np.uint64) for _ in range(2)]
    for twin, own in zip((PLAIN, NATIVE), sown, strict=True):
        assert twin.sow(values, own) is None
    assert sown[0].tolist() == sown[1].tolist()
    keys = np.concatenate([others, values])
    assert same("sift", keys, sown[0]).tolist()[-len(values) or len(keys) :] == list(range(len(others), len(keys)))
    with pytest.raises(TypeError):
        NATIVE.sift(keys, sown[0][:0])
    with pytest.raises(TypeError):
        NATIVE.sow(keys, np.zeros(2 * size, np.uint64)[::2] if size > 1 else sown[0][:0])


@given(st.lists(st.integers(0, 3_000), min_size=1, unique=True), st.integers(-(10**6), 2**50))
def test_sets_of_numbers_are_asked_alike(values, base):
    numbers = np.sort(np.array(values)) + base
    some = Numbers(numbers)
    if some._plain is None:
        asked = np.concatenate([numbers, np.arange(-50, 3_500) + base, [-(2**62), 2**62]])
        assert same("held", some._bytes, some._base, asked).tolist() == np.isin(asked, numbers).tolist()
        own = some._bytes, some._within, some._blocks, 5, some._base
        assert same("ranks", *own, numbers).tolist() == list(range(len(numbers)))
        with pytest.raises(IndexError):
            NATIVE.ranks(*own, numbers + 10**6)


@pytest.mark.parametrize("module", ["test_oracle.py", "test_levels.py"])
def test_the_engine_keeps_its_promises_with_the_other_kernels(module):
    """The core properties once more, with the kernels that this run does not use."""
    other = "numpy" if kernels.COMPILED else "compiled"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{module}"],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, kernels.SWITCH: other},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:]


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.booleans(), st.integers(0, 2**64 - 1)), max_size=40), st.integers(-1, 3)
)
def test_rows_of_a_type_are_picked_alike(rows, number):
    types = np.array([kind for kind, _, _ in rows], np.int64)
    marks = np.array([mark for _, mark, _ in rows], bool)
    hashes = np.array([value for _, _, value in rows], np.uint64)
    ts, refs = -np.arange(len(rows)), np.arange(len(rows)) + 7
    for mask in (None, marks):
        same("pick", types, number, mask, hashes, ts, refs)
        same("pick", types, number, mask, None, ts, refs)


@given(events(), st.data(), st.sampled_from([10, 12, 44]))
def test_each_type_is_arranged_alike(given_events, data, bits):
    hashes, ts, _ = given_events
    types = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=len(ts), max_size=len(ts))), np.int64)
    same("arrange_each", types, ts, 100, bits, ((1, hashes), (0, None), (2, hashes), (0, hashes), (7, None)))


@given(events(), st.data(), st.integers(-3_500, 3_500), st.sampled_from([0, 3, 500, 10_000, 2**60]))
def test_lateness_is_judged_alike(given_events, data, clock, delay):
    _, ts, _ = given_events
    types = np.array(data.draw(st.lists(st.integers(-2, 1), min_size=len(ts), max_size=len(ts))), np.int64)
    same("judge", ts, types, clock, delay)


def test_lateness_is_judged_at_the_ends_of_time():
    ends = np.array([-(2**62), 2**62, -(2**62)])
    same("judge", ends, np.zeros(3, np.int64), -(2**62 + 2**61), 2**60)


@given(st.lists(st.integers(-5, 29), max_size=60), st.data())
def test_events_are_reached_alike(refs, data):
    ts = np.array(data.draw(st.lists(times, min_size=30, max_size=30)), np.int64)
    types = np.array(data.draw(st.lists(st.integers(0, 2), min_size=30, max_size=30)), np.int32)
    same("reached", np.array(refs, np.int64) + 7, 7, ts, types, np.array([-500, 0, 500]))
    for module in (PLAIN, NATIVE):
        with pytest.raises(IndexError):
            module.reached(np.array([37]), 7, ts, types, np.zeros(3, np.int64))
