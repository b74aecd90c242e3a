"""Calls that cannot be meant are refused with a sentence, before anything changes."""

from __future__ import annotations

import re
import uuid

import numpy as np
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.storage.hashing import hash_column

ROWS = [{"id": 1, "type": "A", "ts": 1, "k": 1}, {"id": 2, "type": "B", "ts": 2, "k": 1}]


def runtime(where: str = "WHERE [k] ", **options: object) -> lc.Runtime:
    query = lc.Query(f"PATTERN SEQ(A a, C c) {where}WITHIN 10", name="q", level=lc.Aggressive(10))
    return lc.Runtime(lc.Stream(id="id", unit="s"), [query], **options)


def completed(own: lc.Runtime, k: object = 1) -> list[list[int]]:
    """What a C completes."""
    return own.process([{"id": 9, "type": "C", "ts": 3, "k": k}]).changes.column("events").to_pylist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clocks": [20]}, "clocks=[20] for 2 rows: give one whole number for each row"),
        ({"clocks": [20, 20, 999]}, "for 2 rows: give one whole number for each row"),
        ({"clocks": ["a", "b"]}, "clocks=['a', 'b'] for 2 rows"),
        ({"clocks": [20.9, 21]}, "clocks=[20.9, 21] for 2 rows"),
        ({"clocks": 20}, "clocks=20 for 2 rows"),
        ({"cuts": [2, 1]}, "cuts=[2, 1]: give ascending numbers of rows, of the 2 that the batch has"),
        ({"cuts": [3]}, "of the 2 that the batch has"),
        ({"cuts": [-1]}, "give ascending numbers of rows"),
        ({"cuts": [1.0]}, "cuts=[1.0]: give whole numbers of rows"),
        ({"cuts": 5}, "cuts=5: give the numbers of the rows at which parts begin"),
        ({"cuts": "1"}, "cuts='1': give the numbers of the rows at which parts begin"),
    ],
)
def test_clocks_and_cuts_fit_the_batch(given, said):
    own = runtime()
    with pytest.raises(lc.ConfigError, match=re.escape(said)):
        own.process(ROWS, **given)
    own.process(ROWS, clocks=np.array([1, 2]), cuts=[1])
    assert completed(own) == [[1, 9]]


def test_workers_are_asked_for_nothing_that_cannot_be_meant():
    own = runtime(workers=2)
    for call in (
        lambda: own.process(ROWS, clocks=[20]),
        lambda: own.process(ROWS, cuts=[2, 1]),
        lambda: own.observe("x"),
        lambda: own.drop(["zzz"]),
    ):
        with pytest.raises(lc.ConfigError):
            call()
    own.process(ROWS)
    assert completed(own) == [[1, 9]]
    own.close()


@pytest.mark.parametrize(
    ("ts", "said"),
    [
        ("x", "ts='x' is no clock: give a whole number"),
        (13.7, "ts=13.7 is no clock"),
        (True, "ts=True is no clock"),
        (2**70, "which no clock can reach"),
    ],
)
def test_a_clock_is_a_whole_number(ts, said):
    own = runtime()
    for begun in (False, True):
        if begun:
            own.process(ROWS)
        with pytest.raises(lc.ConfigError, match=re.escape(said)):
            own.observe(ts)
        assert own.clock == (2 if begun else None)
    assert own.observe(np.int64(3)).changes.num_rows == 0 and own.clock == 3


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["zzz"], "no query is called 'zzz': there are 'q'"),
        (["q", "zzz"], "no query is called 'zzz'"),
        ("q", "names='q': give a list of names of queries, like ['q']"),
        (5, "names=5: give a list"),
    ],
)
def test_queries_that_are_dropped_are_there(names, said):
    own = runtime()
    with pytest.raises(lc.ConfigError, match=re.escape(said)):
        own.drop(names)
    own.process(ROWS)
    assert completed(own) == [[1, 9]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_query_may_be_dropped_again(workers):
    stream, text = lc.Stream(id="id", unit="s"), "PATTERN SEQ(A a, C c) WHERE [k] WITHIN 10"
    own = lc.Runtime(stream, [lc.Query(text, name=name, level=lc.Aggressive(10)) for name in "qr"], workers=workers)
    own.process(ROWS)
    for _ in range(2):
        own.drop(["r"])
    assert completed(own) == [[1, 9]]
    own.close()


@pytest.mark.parametrize("snapshot", [None, "text", 5])
def test_a_snapshot_is_bytes(snapshot):
    with pytest.raises(lc.ConfigError, match=r"give the bytes that Runtime.snapshot\(\) has returned"):
        lc.Runtime.restore(snapshot)


def test_a_version_that_is_not_there_is_told_from_a_folder_without_one(tmp_path):
    own = runtime(spill=tmp_path / "state")
    own.process(ROWS)
    own.checkpoint()
    with pytest.raises(lc.StateError, match=r"holds the versions \[1\], and not 9: open one of these"):
        lc.Runtime.open(tmp_path / "state", version=9)
    with pytest.raises(lc.StateError, match=r"holds no version: begin with Runtime\(…, spill=…\)"):
        lc.Runtime.open(tmp_path / "other")


def test_a_folder_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    own = runtime(spill="~/state")
    own.process(ROWS)
    own.checkpoint()
    assert (tmp_path / "state").is_dir()


def test_an_object_store_needs_a_bucket():
    with pytest.raises(lc.StateError, match="'s3://' names no bucket"):
        runtime(spill="s3://")


def test_two_columns_of_one_name_are_refused():
    twice = pa.table([[1, 2], ["A", "C"], [1, 2], ["x", "x"], ["y", "z"]], names=["id", "type", "ts", "k", "k"])
    own = runtime()
    for _ in range(2):  # as the first batch, and later
        with pytest.raises(lc.SchemaError, match="two columns 'k': rename one, or leave it out"):
            own.process(twice)
        own.process(twice.select([0, 1, 2, 3]))


@pytest.mark.parametrize("k", [uuid.UUID(int=2**127 + 255), b"\xff" * 16])
@pytest.mark.parametrize("where", ["WHERE [k] ", "WHERE a.k = c.k ", ""])
def test_values_of_a_fixed_number_of_bytes(where, k):
    """As keys, in conditions, and in columns that no query asks for."""
    own = runtime(where)
    kind = pa.scalar(k).type if isinstance(k, uuid.UUID) else pa.binary(16)

    def rows(n: int, type: str, values: list[object]) -> pa.RecordBatch:
        ids, types = range(n, n + len(values)), [type] * len(values)
        columns = {"id": list(ids), "type": types, "ts": list(ids), "k": pa.array(values, kind)}
        return pa.RecordBatch.from_pydict(columns)

    own.process(rows(1, "A", [k, None]))
    own = lc.Runtime.restore(own.snapshot())
    found = own.process(rows(3, "C", [k])).changes.column("events").to_pylist()
    assert found == ([[1, 3]] if where else [[1, 3], [2, 3]])
    assert own.process(rows(3, "C", [k])).late.num_rows == 0 and own.counters["duplicates"] == 1


def test_bytes_of_a_fixed_number_hash_as_bytes():
    values = [b"abcd", None, b"\xff\xfe\xfd\xfc"]
    assert (hash_column(pa.array(values, pa.binary(4))) == hash_column(pa.array(values, pa.binary()))).all()


@pytest.mark.parametrize(
    ("k", "said"),
    [
        (2**64, "k=18446744073709551616 is no whole number of 64 bits"),
        (1j, "k=1j is no value that a column can hold"),
        ("\ud800", "k='\\ud800' is no value that a column can hold"),
    ],
)
def test_values_that_no_column_holds(k, said):
    assert runtime().process([{"id": 1, "type": "A", "ts": 1, "k": k}]).late.column("detail").to_pylist() == [said]
