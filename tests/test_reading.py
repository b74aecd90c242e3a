"""Rows read in one pass are the rows read column by column."""

from __future__ import annotations

import importlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.runtime.intake import Intake
from latecomer.runtime.schema import fix_schema
from latecomer.storage import kernels
from latecomer.storage.columns import make_column
from latecomer.storage.hashing import hash_column, hash_contents


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Rows are read in one pass, whatever kernels the other tests run with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "read_rows", importlib.import_module("latecomer.storage._compiled").read_rows)
        yield


INTS = {pa.int8(): 7, pa.uint8(): 8, pa.int16(): 15, pa.uint16(): 16, pa.int32(): 31, pa.uint32(): 32, pa.int64(): 63}
TIMES = [pa.timestamp("us"), pa.timestamp("s", "Europe/Berlin"), pa.duration("ms"), pa.date64(), pa.time64("us")]
SMALL_TIMES = [pa.date32(), pa.time32("ms")]
TEXTS = st.text(max_size=20)

#: Values of a column by its type.
VALUES = {
    **{kind: st.integers(0 if "u" in str(kind) else -(2**bits), 2**bits - 1) for kind, bits in INTS.items()},
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0]),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.null(): st.none(),
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    **{kind: st.integers(0, 86_399_999) for kind in (*TIMES, *SMALL_TIMES)},
}
IDS = [pa.int64(), pa.int32(), pa.string(), pa.binary()]
STREAMS = st.sampled_from(["plain", "numbered", "punctuated"])


def filled(draw, kind, n, nulls):
    """A column of ``n`` values, a slice of a longer one."""
    values = VALUES[kind] | st.none() if nulls else VALUES[kind]
    before, behind = draw(st.integers(0, 9)), draw(st.integers(0, 3))
    rows = draw(st.lists(values, min_size=before + n + behind, max_size=before + n + behind))
    if kind in TIMES or kind in SMALL_TIMES:
        whole = pa.array(rows, pa.int32() if kind in SMALL_TIMES else pa.int64()).view(kind)
    else:
        whole = pa.array(rows, kind)
    return whole.slice(before, n)


@st.composite
def batches(draw):
    """A stream and a record batch of it."""
    n = draw(st.integers(0, 12))
    often = draw(st.integers(0, 4)) == 0  # whether nulls may be anywhere
    timed = draw(st.sampled_from([pa.int64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us")]))
    unit = "ms"
    far = st.integers(-(2**40), 2**40) if draw(st.integers(0, 3)) else st.integers(-(2**63), 2**63 - 1)
    kinds = st.sampled_from(["A", "B", "", "a longer name", "other", "PUNCT"])
    columns = {
        "kind": pa.array(draw(st.lists(kinds | st.none() if often else kinds, min_size=n, max_size=n)), pa.string()),
        "at": pa.array(draw(st.lists(far | st.none() if often else far, min_size=n, max_size=n)), pa.int64()).view(
            timed
        ),
    }
    how = draw(STREAMS)
    if how != "numbered":
        columns["id"] = filled(draw, draw(st.sampled_from(IDS)), n, often)
    for number in range(draw(st.integers(0, 5))):
        columns[f"x{number}"] = filled(draw, draw(st.sampled_from(list(VALUES))), n, draw(st.booleans()))
    names = draw(st.permutations(list(columns)))
    batch = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
    cut = draw(st.integers(0, n))
    options = {"id": "id"} if how != "numbered" else {}
    if how == "punctuated":
        options["punctuation"] = "PUNCT"
    return lc.Stream(type="kind", ts="at", unit=unit, **options), batch.slice(cut), draw(st.integers(0, 10**6))


@settings(max_examples=400)
@given(batches())
def test_a_batch_read_in_one_pass_is_the_batch_read_by_column(case):
    stream, given_batch, first = case
    schema = fix_schema(stream, given_batch.schema, [], by_row=False)
    if stream.punctuation is not None:
        given_batch = given_batch.append_column("of", pa.nulls(len(given_batch), pa.string()))
    given_batch = given_batch.select(schema.names)
    others = {name for name in schema.names if name.startswith("x")}
    whole, parts = (Intake(stream, ("A", "B", "", "a longer name"), schema) for _ in range(2))
    whole.next_number = parts.next_number = first
    whole.prepare(others, {*others, whole.id_name})
    one, other = whole.read(given_batch, {}), parts.read(given_batch, {})
    assert one.ts.tolist() == other.ts.tolist() and one.types.tolist() == other.types.tolist()
    assert one.malformed.tolist() == other.malformed.tolist() and one.details == other.details
    assert whole.next_number == parts.next_number
    assert list(one.columns) == list(other.columns) and len(one.columns) == len(other.columns)
    for name in other.columns:
        column, twin = one.columns[name], other.columns[name]
        assert column.type == twin.type
        assert column.to_string(window=1_000) == twin.to_string(window=1_000)  # to Arrow no NaN equals another
    if one.reading is None:
        return
    assert one.reading.ids.tolist() == hash_column(other.columns[whole.id_name]).tolist()
    said = [column for name, column in other.columns.items() if name not in (whole.id_name, "at", "kind")]
    start = other.ts.view(np.uint64) * np.uint64(5) + other.types.view(np.uint64)
    content = hash_contents(start, said)
    events = other.types >= 0
    assert one.reading.content[events].tolist() == content[events].tolist()
    for name, hashes in one.reading.hashes.items():
        column = other.columns[name]
        usable = not column.null_count and not pa.types.is_floating(column.type)
        assert usable or hashes is None
        if hashes is not None:
            assert hashes.tolist() == hash_column(column).tolist()
    for name, raw in one.reading.raw.items():
        if raw is not None:
            taken, expected = make_column(schema.field(name).type), make_column(schema.field(name).type)
            taken.append_raw(*(raw if isinstance(raw, tuple) else (raw,)))
            expected.append(other.columns[name])
            assert taken.live().equals(expected.live()) or pa.types.is_floating(expected.type)
            if pa.types.is_floating(expected.type):
                assert taken.values.live().tolist() == expected.values.live().tolist()


@pytest.mark.parametrize("kind", [k for k in VALUES if not pa.types.is_nested(k) and not pa.types.is_decimal(k)])
def test_a_plain_batch_is_read_in_one_pass(kind):
    columns = {"kind": ["A", "B"], "at": [1, 2], "id": [1, 2], "x": pa.nulls(2, kind)}
    batch = pa.record_batch(columns)
    stream = lc.Stream(type="kind", ts="at", id="id", unit="s")
    intake = Intake(stream, ("A",), fix_schema(stream, batch.schema, [], by_row=False))
    intake.prepare({"x"}, {"x"})
    assert intake.read(batch, {}).reading is not None


def test_what_was_read_stays_when_its_batch_is_gone():
    stream = lc.Stream(type="kind", ts="at", id="id", unit="s")
    batch = pa.record_batch({"kind": ["A"] * 1_000, "at": range(1_000), "id": [f"number {i}" for i in range(1_000)]})
    intake = Intake(stream, ("A",), fix_schema(stream, batch.schema, [], by_row=False))
    intake.prepare((), {"id"})
    reading = intake.read(batch, {}).reading
    del batch
    pa.array(range(100_000))
    offsets, data = reading.raw["id"]
    assert reading.ts.tolist() == list(range(1_000))
    assert bytes(data[offsets[7] : offsets[8]]) == b"number 7"
    with pytest.raises(ValueError, match="read-only"):
        reading.ts[0] = 1


def test_wrong_arguments_are_refused():
    schema, array = pa.record_batch({"a": [1]}).__arrow_c_array__()
    role, names = np.zeros(1, np.int64), (np.zeros(1, np.int32), np.zeros(0, np.uint8))
    rest = (1, 1, 10, 1, 0)
    with pytest.raises(ValueError, match="PyCapsule"):
        kernels.read_rows(array, schema, role, *names, *rest)
    with pytest.raises(TypeError, match="arguments"):
        kernels.read_rows(schema, array)
    with pytest.raises(TypeError, match="array"):
        kernels.read_rows(schema, array, np.zeros(1, np.int32), *names, *rest)
    assert kernels.read_rows(schema, array, role, *names, *rest) is None  # no type, no time
    assert kernels.read_rows(schema, array, np.zeros(2, np.int64), *names, *rest) is None


@pytest.mark.parametrize("many", [3, 63, 64, 65, 200])
def test_many_names_of_types_are_told_apart(many):
    """Short ones, long ones that begin alike, and those that are one letter longer than another."""
    names = [f"{'a long beginning' * (i % 2)}{i // 2}" for i in range(many)]
    kinds = [*names, *(name + "x" for name in names), *(name[:-1] for name in names), "a long b", ""]
    rows = pa.record_batch({"kind": kinds, "at": pa.array(range(len(kinds))), "id": pa.array(range(len(kinds)))})
    stream = lc.Stream(type="kind", ts="at", id="id", unit="ms")
    intake = Intake(stream, tuple(names), fix_schema(stream, rows.schema, [], by_row=False))
    intake.prepare(set(), {"id"})
    numbers = {name: number for number, name in enumerate(names)}
    assert intake.read(rows, {}).types.tolist() == [numbers.get(kind, -1) for kind in kinds]


@pytest.mark.parametrize("lengths", [range(1, 3), range(9), range(5, 9), range(8, 10)])
@pytest.mark.parametrize("begin", [0, 1, 7])
def test_few_short_names_of_types_are_told_apart(lengths, begin):
    """By all their letters and how many they are, up to the last row, in a batch that begins anywhere."""
    names = [letters[:length] for letters in ("abcdefghi", "\0\0\0\0\0\0\0\0\0") for length in lengths]
    names = list(dict.fromkeys(names))[:16]
    kinds = [*names, *(name + "\0" for name in names), *(name[:-1] + "x" for name in names), *names[::-1]]
    rows = pa.record_batch({"kind": kinds, "at": pa.array(range(len(kinds))), "id": pa.array(range(len(kinds)))})
    stream = lc.Stream(type="kind", ts="at", id="id", unit="ms")
    intake = Intake(stream, tuple(names), fix_schema(stream, rows.schema, [], by_row=False))
    intake.prepare(set(), {"id"})
    numbers = {name: number for number, name in enumerate(names)}
    assert intake.read(rows.slice(begin), {}).types.tolist() == [numbers.get(kind, -1) for kind in kinds[begin:]]
