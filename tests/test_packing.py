"""State as bytes: what is packed comes back, whatever format and codec, and damage is noticed."""

from __future__ import annotations

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
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.str)
def test_arrays_come_back_and_may_be_changed(array):
    (again,) = unpack(pack([array]))
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


def test_only_what_is_used_is_kept():
    column = pa.array(range(100_000)).slice(10, 5)
    assert len(pack(column)) < 1_000


def test_large_states_take_the_other_codec(monkeypatch):
    small = pack(ARRAYS[0])
    monkeypatch.setattr(packing, "_LZ4_LIMIT", 1_000)
    large = pack(ARRAYS[0])
    assert large != small
    np.testing.assert_array_equal(unpack(large), unpack(small))


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
        StateError, match=r"has format 9, and this release reads the formats 1 and 2: use the release that"
    ):
        unpack(data[:9] + (9).to_bytes(2, "little") + data[11:])
