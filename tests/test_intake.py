"""Values that do not fit: nothing is bent in silence, whatever form a batch has."""

import datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import latecomer as lc

QUERY = lc.Query("PATTERN SEQ(A a, B b) WHERE [key] AND a.v <= b.v WITHIN 10", level=lc.Aggressive(5))
STREAM = lc.Stream(id="id", unit="s")


def row(number, kind, ts, key=1, v=1):
    return {"id": number, "type": kind, "ts": ts, "key": key, "v": v}


def malformed(out):
    return out.late.filter(pa.compute.equal(out.late["reason"], "malformed"))["detail"].to_pylist()


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        (row(2, "B", 5, v=1.5), "v=1.5 is no whole number"),
        (row(2, "B", 5, key=1.9), "key=1.9 is no whole number"),
        (row(2, "B", 5.9), "ts=5.9 is no whole number"),
        (row(2.7, "B", 5), "id=2.7 is no whole number"),
        (row(2, "B", "soon"), "ts='soon' is no whole number"),
        (row(2, 7, 5), "type=7 is no string"),
        (row(2**70, "B", 5), f"id={2**70} is no int64"),
    ],
)
def test_a_later_dict_with_a_value_of_another_kind_is_malformed(wrong, detail):
    runtime = lc.Runtime(STREAM, QUERY)
    runtime.process([row(1, "A", 1)])
    out = runtime.process([wrong, row(3, "B", 4)])
    assert malformed(out) == [detail]
    assert out.changes["events"].to_pylist() == [[1, 3]]


def test_whole_floats_are_integers():
    runtime = lc.Runtime(STREAM, QUERY)
    runtime.process([row(1, "A", 1)])
    assert runtime.process([row(2.0, "B", 5.0, v=2.0)]).changes["events"].to_pylist() == [[1, 2]]


@pytest.mark.parametrize("missing", ["id", "ts", "type"])
def test_a_first_batch_without_usable_rows_fixes_no_type(missing):
    first = row(1, "A", datetime.datetime(2024, 1, 1)) | {missing: None}
    runtime = lc.Runtime(lc.Stream(id="id"), QUERY)
    assert malformed(runtime.process([first])) == [f"{missing} is null"]
    start = datetime.datetime(2024, 1, 1)
    rows = [row(7, "A", start), row(8, "B", start + datetime.timedelta(microseconds=5))]
    assert runtime.process(rows).changes["events"].to_pylist() == [[7, 8]]


def test_an_unsigned_time_does_not_wrap():
    runtime = lc.Runtime(STREAM, QUERY)
    table = pa.table(
        {"id": [1, 2], "type": ["A", "A"], "ts": pa.array([2**64 - 1, 3], pa.uint64()), "key": [1, 1], "v": [1, 1]}
    )
    out = runtime.process(table)
    assert malformed(out) == [f"ts={2**64 - 1} is no int64"]
    assert out.late["ts"].to_pylist() == [None]
    assert runtime.clock == 3


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_a_data_frame_without_a_column_of_the_query_is_refused(frame):
    with pytest.raises(lc.SchemaError, match="no column 'v', which a query asks for"):
        lc.Runtime(STREAM, QUERY).process(frame({"id": [1], "type": ["A"], "ts": [1], "key": [1]}))


def test_polars_categories_are_texts():
    frame = pl.DataFrame(
        {
            "id": ["a", "b"],
            "type": pl.Series(["A", "B"], dtype=pl.Categorical),
            "ts": [1, 2],
            "key": pl.Series(["x", "x"], dtype=pl.Enum(["x", "y"])),
            "v": [1, 2],
        }
    )
    assert lc.Runtime(STREAM, QUERY).process(frame).changes["events"].to_pylist() == [["a", "b"]]
