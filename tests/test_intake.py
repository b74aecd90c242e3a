"""Values that do not fit: nothing is bent in silence, whatever form a batch has."""

import datetime
import json
import math

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.connectors.files import open_events
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.places import Origins
from latecomer.serve.config import loads as served
from latecomer.serve.reading import BodyReader, Refused, _Line

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


# --- every way in takes the same times -------------------------------------------------------------------------------

TABLES = """
name = "times"
{more}
[stream]
unit = "s"
[columns]
key = "int"
v = "int"
[[query]]
name = "q"
level = "aggressive(max_delay = 5)"
text = "PATTERN SEQ(A a, B b) WHERE [key] AND a.v <= b.v WITHIN 10"
[state]
uri = "/nowhere"
"""
BROKERS = """
[kafka]
brokers = "localhost:1"
[[input]]
topic = "in"
format = "json"
id = "id"
[output]
changes = "changes"
late = "late"
dead_letters = "dead"
"""


def by_runtime(batch):
    runtime = lc.Runtime(STREAM, lc.Query("PATTERN SEQ(X x) WITHIN 1 RETURN x.ts AS ts", level=lc.Aggressive(100)))
    runtime.process([row(-1, "Y", 0)])
    return sorted((e["events"][0], e["ts"]) for e in runtime.process(batch).changes.to_pylist())


def by_http(form, body):
    read = BodyReader(served(TABLES.format(more="")))
    return [(int(e["id"]), e["ts"]) for e in read(form, body, 0, 0).table.to_pylist()]


def by_kafka(lines):
    pipeline = loads(TABLES.format(more=BROKERS))
    found = Decoder(pipeline.inputs[0], pipeline).decode([_Line(x, n, 0) for n, x in enumerate(lines)], Origins("in"))
    return [(int(e["id"]), e["ts"]) for e in found.batch.to_pylist()]


def by_file(path, text):
    path.write_text(text)
    chunks = list(open_events(path, time="ts").chunks(100))
    return [found for chunk in chunks for found in by_runtime(chunk.table)]


def ipc(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_every_way_in_takes_the_same_times(tmp_path):
    """A time with a fraction of the stream's own unit is no event, and never becomes another time in silence."""
    times = [7, 1.5, -1.5, 5.0, None, 1e300, -4, 0.1]
    made = [row(number, "X", ts) for number, ts in enumerate(times)]
    good = [(number, ts) for number, ts in enumerate(times) if ts is not None and ts % 1 == 0 and ts < 1e18]
    lines = [json.dumps(event).encode() for event in made]
    table = pa.table(
        {"id": range(8), "type": ["X"] * 8, "ts": pa.array(times, pa.float64()), "key": [1] * 8, "v": [1] * 8}
    )
    assert by_runtime(made) == good
    assert by_runtime(table) == good
    assert by_runtime(pd.DataFrame(made)) == good
    assert by_http("lines", b"\n".join(lines)) == good
    assert by_http("arrow", ipc(table)) == good
    assert by_kafka(lines) == good
    with pytest.raises(Refused, match=r"element 2 of the document is no event: 1\.5 is no whole number of s"):
        by_http("json", b"[" + b",".join(lines) + b"]")
    assert by_file(tmp_path / "e.jsonl", b"\n".join(lines).decode()) == good
    text = table.to_pandas().to_csv(index=False)
    assert by_file(tmp_path / "e.csv", text.replace(".0,", ",")) == good


def test_arrow_times_that_are_beyond_all_time_cost_their_rows_alone():
    for times in (pa.array([1, 2**63], pa.uint64()), pa.array([1, math.nan]), pa.array([1, math.inf], pa.float32())):
        table = pa.table({"id": [0, 1], "type": ["X", "X"], "ts": times, "key": [1, 1], "v": [1, 1]})
        assert by_http("arrow", ipc(table)) == [(0, 1)] == by_runtime(table)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("keys", [[2**63, 2**63], [2**64 - 1, 2**64 - 1], [3, 2**64 - 1, 3, 2**64 - 1]])
def test_rows_as_dicts_may_hold_whole_numbers_that_only_uint64_holds(declared, keys):
    rows = [{"id": i, "type": "AB"[i * 2 // len(keys)], "ts": i, "k": key} for i, key in enumerate(keys)]
    schema = pa.schema([("id", pa.int64()), ("type", pa.string()), ("ts", pa.int64()), ("k", pa.uint64())])
    query = lc.Query("PATTERN SEQ(A a, B b) WHERE [k] WITHIN 100 s", name="q", level=lc.Aggressive("10 s"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", schema=schema if declared else None), query)
    out = runtime.process(rows)
    half = len(keys) // 2
    assert sorted(out.changes["events"].to_pylist()) == [[i, i + half] for i in range(half)]
    assert not out.late.num_rows
