"""State as bytes: what is packed comes back, whatever format and codec, and damage is noticed."""

from __future__ import annotations

import contextlib
import zlib

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.errors import StateError
from latecomer.storage import packing
from latecomer.storage.packing import pack, unpack

ARRAYS = [
    np.arange(100_000, dtype=np.uint64) << np.uint64(40),
    np.array([], np.int64),
    np.array([-1, 2**62])[::-1],
    np.arange(1_000)[::-3] * 200 - 50_000,
    np.arange(-(2**63), -(2**63) + 100),
    np.arange(2**64 - 100, 2**64 - 1, dtype=np.uint64),
    np.array([-(2**63), 2**63 - 1] * 50),
    np.array([-(2**31), 2**31 - 1] * 50, np.int32),
    np.array([0, 2**32 - 1] * 50, np.uint32),
    np.array([1.5, np.nan]),
    np.array([True, False]),
    np.array(["2026-01-01"], "datetime64[us]"),
    np.array(["a", "été"]),
]
COLUMNS = [
    pa.array([1, None, 3]),
    pa.array(["a", None, "été"] * 1_000).slice(1, 2_000),
    pa.array([], pa.large_string()),
    pa.array([{"a": 1, "b": ["x"]}, None]),
    pa.array([1, 2], pa.timestamp("us", "UTC")),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array(range(-500, 500)).slice(7, 900),
    pa.array([2**64 - 1, 2**64 - 9] * 50, pa.uint64()),
    pa.array([*range(200), None]),
    pa.array(range(200), pa.timestamp("us", "UTC")),
    pa.array(range(200), pa.date32()),
    pa.array([0.5] * 200),
]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
def test_arrays_come_back_and_may_be_changed(array, checked):
    (again,) = unpack(pack([array], checked=checked))
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)
    assert again.flags.writeable
    assert again.flags.aligned


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_columns_come_back(column):
    again = unpack(pack({"c": column}))["c"]
    assert again.type == column.type
    assert again.equals(column)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=4),
)


@given(PLAIN)
def test_plain_data_comes_back(state):
    assert unpack(pack(state)) == state


def test_close_numbers_take_few_bytes():
    rng = np.random.default_rng(1)
    for values, most in ((rng.integers(0, 250, 10_000), 1), (rng.integers(0, 2**31, 10_000), 4)):
        assert len(pack(values - 10**12)) < most * 10_000 + 200
        assert len(pack(pa.array(values - 10**12))) < most * 10_000 + 600
    assert len(pack(rng.integers(0, 2**63, 10_000))) < 80_000 + 100
    assert len(pack(["the same text"] * 10_000)) < 10_000


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=64, max_size=70), st.integers(0, 63))
def test_whole_numbers_come_back(values, shift):
    array = np.array(values) >> shift
    assert unpack(pack(array)).tolist() == array.tolist()
    assert unpack(pack(pa.array(array))).to_pylist() == array.tolist()


def test_only_what_is_used_is_kept():
    column = pa.array(range(100_000)).slice(10, 5)
    assert len(pack(column)) < 1_000


def test_large_states_take_the_other_codec(monkeypatch):
    small = pack(ARRAYS[0])
    monkeypatch.setattr(packing, "_LZ4_LIMIT", 1_000)
    large = pack(ARRAYS[0])
    assert large != small
    np.testing.assert_array_equal(unpack(large), unpack(small))


def test_format_2_is_read():
    raw = msgpack.packb({"codes": msgpack.ExtType(3, b"\x03<u8" + np.arange(5, dtype=np.uint64).tobytes())})
    body = b"\x01" + len(raw).to_bytes(8, "little") + pa.compress(raw, "lz4_raw", asbytes=True)
    data = b"LATECOMER" + (2).to_bytes(2, "little") + zlib.crc32(body).to_bytes(4, "little") + body
    assert unpack(data)["codes"].tolist() == [0, 1, 2, 3, 4]


def test_what_was_not_checked_and_is_damaged_fails_with_the_projects_error():
    data = pack({"codes": np.arange(500), "names": ["a", "b"]}, checked=False)
    for at in range(20, len(data)):
        damaged = data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]
        with contextlib.suppress(StateError):
            unpack(damaged)
    for end in range(len(data)):
        with pytest.raises(StateError):
            unpack(data[:end])


def test_format_1_is_read():
    codes = np.arange(5, dtype=np.uint64)
    inner = msgpack.ExtType(1, msgpack.packb((codes.dtype.str, codes.tobytes())))
    raw = msgpack.packb({"codes": inner, 7: "x"})
    body = len(raw).to_bytes(8, "little") + pa.compress(raw, "zstd", asbytes=True)
    data = b"LATECOMER" + (1).to_bytes(2, "little") + zlib.crc32(body).to_bytes(4, "little") + body
    again = unpack(data)
    assert again["codes"].tolist() == codes.tolist()
    assert again[7] == "x"


def test_damage_is_noticed():
    data = pack({"codes": np.arange(50), "names": ["a", "b"]})
    for at in range(len(data)):
        for end in (bytes([data[at] ^ 1]) + data[at + 1 :], b""):
            with pytest.raises(StateError, match=r"not a Latecomer state|this state has format|this state is damaged"):
                unpack(data[:at] + end)


def test_other_formats_are_named():
    data = pack(1)
    with pytest.raises(
        StateError, match=r"has format 9, and this release reads the formats 1, 2 and 3: use the release that"
    ):
        unpack(data[:9] + (9).to_bytes(2, "little") + data[11:])
