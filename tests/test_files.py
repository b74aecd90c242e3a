"""Files of events and of changes: formats, types, broken records, portions, and files that are whole or not there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.connectors.files import EventWriter, Reject, open_events
from latecomer.connectors.files import records as records_module
from latecomer.errors import ConfigError, SchemaError, StateError

HEADER = "type,ts,price\n"


def read(path: Path, size: int = 1_000, **options: object) -> tuple[list[dict[str, object]], list[Reject]]:
    """All rows and all rejects of a file."""
    rows: list[dict[str, object]] = []
    rejects: list[Reject] = []
    for chunk in open_events(path, **options).chunks(size):
        rows += chunk.table.to_pylist()
        rejects += chunk.rejects
    return rows, rejects


def types_of(path: Path, **options: object) -> dict[str, str]:
    return {field.name: str(field.type) for field in open_events(path, **options).schema}


@pytest.fixture
def put(tmp_path: Path):
    """Write a file and give its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


# CSV


def test_csv_rows_come_in_the_files_order(put):
    path = put("e.csv", HEADER + "Exit,3,1.5\nShelf,1,\nExit,2,7\n")
    rows, rejects = read(path, time="ts")
    assert rows == [
        {"type": "Exit", "ts": 3, "price": 1.5},
        {"type": "Shelf", "ts": 1, "price": None},
        {"type": "Exit", "ts": 2, "price": 7.0},
    ]
    assert rejects == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", "3"], "int64"),
        (["1", "2.5", "1e3"], "double"),
        (["1", "NA", "3"], "int64"),
        (["1.5", "null", "nan"], "double"),
        (["007", "008"], "string"),
        (["0", "10"], "int64"),
        (["0x10", "1"], "string"),
        (["99999999999999999999", "1"], "string"),
        (["true", "False", "NULL"], "bool"),
        (["NA", "DE", "FR"], "string"),
        (["2013-01-01 05:00:00", "2013-01-01"], "timestamp[us]"),
        (["2013-01-01T05:00:00Z", "2013-01-01T05:00:00.25+01:00"], "timestamp[us, tz=UTC]"),
        (["2013-01-01 05:00:00.123456789", "2013-01-01"], "timestamp[ns]"),
        (["", ""], "string"),
    ],
)
def test_a_column_has_the_narrowest_type_that_all_values_fit(put, values, expected):
    path = put("e.csv", "a,b\n" + "".join(f"{value},x\n" for value in values))
    assert types_of(path)["a"] == expected


def test_null_spellings_stay_text_in_text(put):
    rows, _ = read(put("e.csv", 'a,b\nNA,1\n"",2\n,NA\n'))
    assert rows == [{"a": "NA", "b": 1}, {"a": "", "b": 2}, {"a": None, "b": None}]


def test_a_type_found_late_in_the_file_holds_from_its_start(put):
    many = "".join(f"A,{n},{n}\n" for n in range(records_module.BLOCK + 5))
    path = put("e.csv", HEADER + many + "A,5,0.5\n")
    assert types_of(path, time="ts") == {"type": "string", "ts": "int64", "price": "double"}
    first = next(iter(open_events(path, time="ts").chunks(10)))
    assert first.table.column("price").type == pa.float64()


def test_most_values_decide_what_the_time_is(put):
    path = put("e.csv", HEADER + "A,1,1\nB,2013-01-01,2\nC,3,3\n")
    rows, rejects = read(path, time="ts")
    assert [row["ts"] for row in rows] == [1, 3]
    assert rejects == [Reject("B,2013-01-01,2", "column 'ts': '2013-01-01' is not a whole number")]


def test_times_that_are_timestamps(put):
    path = put("e.csv", HEADER + "A,2013-01-01 05:00:00,1\nA,soon,2\nA,2013-01-01 06:00:00,\n")
    assert types_of(path, time="ts")["ts"] == "timestamp[us]"
    _, rejects = read(path, time="ts")
    assert [r.detail for r in rejects] == ["column 'ts': 'soon' is not a time like 2013-01-31 05:15:00"]


def test_a_null_time_is_a_row(put):
    rows, rejects = read(put("e.csv", HEADER + "A,,1\nA,2,2\n"), time="ts")
    assert [row["ts"] for row in rows] == [None, 2]
    assert rejects == []


@pytest.mark.parametrize("count", [1, 100])
def test_weights_are_lists_of_numbers_and_what_is_none_costs_its_row(put, count):
    good = [[1, 2.5], None, [], [None, 3]] * count
    bad = ["[1]", 7, [1, "x"], [[1]], [True], {"a": 1}]
    lines = "\n".join(json.dumps({"n": n, "w": w}) for n, w in enumerate([*good, *bad]))
    path = put("w.jsonl", lines)
    assert types_of(path, types={"w": "weights"})["w"] == "list<item: double>"
    rows, rejects = read(path, types={"w": "weights"})
    assert [row["w"] for row in rows] == good
    assert len(rejects) == len(bad) and all("is not a list of numbers" in r.detail for r in rejects)
    cells = ["" if w is None else json.dumps(w) for w in good] + ["1;2", '{""a"": 1}', "[true]"]
    text = "n,w\n" + "".join(f'1,"{cell}"\n' if cell else "1,\n" for cell in cells)
    rows, rejects = read(put("w.csv", text), types={"w": "weights"})
    assert [row["w"] for row in rows] == good
    assert len(rejects) == 3 and all("is not a list of numbers" in r.detail for r in rejects)


def test_declared_types_decide(put):
    path = put("e.csv", "type,ts,zip,price\nA,1,007,x\nB,2,8,3\n")
    options = {"time": "ts", "types": {"zip": "int", "price": "float"}}
    assert types_of(path, **options) == {"type": "string", "ts": "int64", "zip": "int64", "price": "double"}
    rows, rejects = read(path, **options)
    assert rows == [{"type": "B", "ts": 2, "zip": 8, "price": 3.0}]
    assert rejects == [Reject("A,1,007,x", "column 'zip': '007' is not a whole number")]


def test_text_columns_stay_text(put):
    rows, _ = read(put("e.csv", "type,ts\n1,1\n2,2\n"), time="ts", text=("type",))
    assert [row["type"] for row in rows] == ["1", "2"]


def test_an_undeclarable_type_is_refused(put):
    with pytest.raises(
        ConfigError, match=r"'price' is declared as 'money': allowed are int, float, bool, text, time or weights"
    ):
        open_events(put("e.csv", HEADER), types={"price": "money"})


def test_broken_records_are_handed_out_with_their_text(put):
    content = HEADER.encode() + b'A,1,1\nB,2\nC,3,3,4\n\nD,4,"4\nE,5,5\nF,6,\xff\nG,7,7\n'
    rows, rejects = read(put("e.csv", content), time="ts", text=("price",))
    assert [row["type"] for row in rows] == ["A", "E", "G"]
    assert sorted(rejects) == [
        Reject("B,2", "2 values where the header names 3"),
        Reject("C,3,3,4", "4 values where the header names 3"),
        Reject('D,4,"4', "a quoted value is not closed"),
        Reject("F,6,\\xff", "not UTF-8 text"),
    ]


def test_quoted_values_may_span_lines(put):
    rows, rejects = read(put("e.csv", 'a,b\r\n"one\n\n two, ""three""",1\r\nfour 5" pipe,2\r\n'))
    assert rows == [{"a": 'one\n\n two, "three"', "b": 1}, {"a": 'four 5" pipe', "b": 2}]
    assert rejects == []


def test_a_record_number_is_right_below_a_value_that_spans_lines(put):
    _, rejects = read(put("e.csv", 'a,b\n"x\ny",1\nshort\nz,2\n'))
    assert [r.text for r in rejects] == ["short"]


def test_a_stray_quote_costs_one_record(put, monkeypatch):
    monkeypatch.setattr(records_module, "OPEN_LINES", 5)
    rest = "".join(f"B,{n},1\n" for n in range(20))
    rows, rejects = read(put("e.csv", HEADER + 'A,1,"open\n' + rest), time="ts")
    assert len(rows) == 20
    assert rejects == [Reject('A,1,"open', "a quoted value is not closed")]


def test_tabs_marks_and_packed_files(put):
    assert read(put("e.tsv", "a\tb\n1,5\t2\n"))[0] == [{"a": "1,5", "b": 2}]
    assert read(put("mark.csv", b"\xef\xbb\xbfa,b\n1,2\n"))[0] == [{"a": 1, "b": 2}]
    assert read(put("e.csv.gz", gzip.compress(b"a,b\n1,2\n")))[0] == [{"a": 1, "b": 2}]


def test_headers_that_name_no_columns(put):
    with pytest.raises(SchemaError, match="more than one column 'a'"):
        open_events(put("twice.csv", "a,b,a\n"))
    with pytest.raises(SchemaError, match="without a name \\(number 2\\)"):
        open_events(put("blank.csv", "a,\n"))
    with pytest.raises(SchemaError, match="is empty"):
        open_events(put("empty.csv", ""))


def test_a_header_alone_is_no_rows(put):
    path = put("e.csv", HEADER)
    assert read(path, time="ts") == ([], [])
    assert types_of(path, time="ts")["ts"] == "int64"


# JSON lines


def test_json_lines(put):
    lines = [
        {"type": "A", "ts": "2013-01-01T05:00:00", "n": 1, "ok": True, "deep": {"x": [1, 2]}},
        {"type": "B", "ts": "2013-01-01T05:00:00.5", "n": 1.5, "extra": None},
    ]
    path = put("e.jsonl", "\n".join(map(json.dumps, lines)))
    assert types_of(path, time="ts") == {
        "type": "string",
        "ts": "timestamp[us]",
        "n": "double",
        "ok": "bool",
        "deep": "string",
        "extra": "string",
    }
    rows, rejects = read(path, time="ts")
    assert [row["n"] for row in rows] == [1.0, 1.5]
    assert [row["deep"] for row in rows] == ['{"x": [1, 2]}', None]
    assert rejects == []


@pytest.mark.parametrize("around", [0, 200])
def test_broken_json_is_handed_out(put, around):
    """In a small file, where records are read one by one, and in a large one, where blocks are."""
    good = b'{"type": "A", "ts": 1}\n' * around
    bad = b'{"type": "A", "ts": \n[1]\n{"type": "A", "ts": "soon"}\n{"type":"\xff","ts":1}\n'
    bad += b'{"type":"B","ts":2} {"ts":3}\n'
    path = put("e.jsonl", good + bad + b'{"type": "Z", "ts": 2}\n' + good)
    rows, rejects = read(path, time="ts", types={"ts": "int"})
    assert len(rows) == 2 * around + 1
    assert sorted(r.detail for r in rejects) == [
        "a JSON array where an object is expected",
        "column 'ts': 'soon' is not a whole number",
        "not JSON: Expecting value at column 21",
        "not JSON: Extra data at column 21",
        "not UTF-8 text",
    ]


def test_most_json_values_decide_what_the_time_is(put):
    rows, rejects = read(put("e.jsonl", '{"ts": 1}\n{"ts": "soon"}\n{"ts": 3}\n'), time="ts")
    assert [row["ts"] for row in rows] == [1, 3]
    assert [r.text for r in rejects] == ['{"ts": "soon"}']


def test_mixed_json_values_become_text(put):
    rows, rejects = read(put("e.jsonl", '{"a": 1}\n{"a": "x"}\n{"a": true}\n'))
    assert [row["a"] for row in rows] == ["1", "x", "true"]
    assert rejects == []


def test_a_json_array_is_no_json_lines(put):
    with pytest.raises(ConfigError, match="one object per line"):
        open_events(put("e.json", '[{"a": 1}]'))


# Parquet, portions, order


def test_parquet_keeps_its_types(tmp_path):
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("ms")), "deep": [{"x": 1}, None]})
    pq.write_table(table, tmp_path / "e.parquet")
    source = open_events(tmp_path / "e.parquet")
    assert pa.concat_tables(chunk.table for chunk in source.chunks(1)).equals(table)


def test_what_is_no_parquet_is_refused(put):
    with pytest.raises(SchemaError, match=r"'e.parquet' cannot be read as Parquet"):
        open_events(put("e.parquet", "no"))


def test_paths_that_cannot_be_opened(put, tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        open_events(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match=r"allowed are \.parquet"):
        open_events(put("e.xls", ""))


@pytest.mark.parametrize("size", [1, 7, 8_192, 100_000])
def test_portions_have_the_size_asked_for(put, size):
    total = records_module.BLOCK * 2 + 3
    path = put("e.csv", "ts\n" + "".join(f"{n}\n" for n in range(total)))
    sizes, seen = [], []
    for chunk in open_events(path).chunks(size):
        sizes.append(chunk.table.num_rows)
        seen += chunk.table.column("ts").to_pylist()
        if size == 1 and len(sizes) == 100:
            break
    assert seen == list(range(len(seen)))
    assert set(sizes[:-1]) <= {size}
    if size > 1:
        assert len(seen) == total


def test_sorting_by_arrival_is_stable_and_puts_nulls_last(put):
    path = put("e.csv", "n,at\n1,5\n2,\n3,1\n4,5\nbroken\n5,1\n")
    chunks = list(open_events(path).chunks(2, arrival="at"))
    assert [n for chunk in chunks for n in chunk.table.column("n").to_pylist()] == [3, 5, 1, 4, 2]
    assert [r.text for chunk in chunks for r in chunk.rejects] == ["broken"]
    with pytest.raises(SchemaError, match="no arrival column 'when': the file has n or at"):
        list(open_events(path).chunks(2, arrival="when"))
    with pytest.raises(ConfigError, match="a batch of 0 rows"):
        list(open_events(path).chunks(0))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\r\0")), st.integers(0, 9))), st.data()
)
def test_what_is_written_is_read_back(tmp_path_factory, rows, data):
    """Any text survives CSV and JSON lines, whatever its quotes, commas and line ends; blank lines inside aside."""
    kind = data.draw(st.sampled_from(["csv", "jsonl", "parquet"]))
    texts = [text.replace("\n", "|\n|") for text, _ in rows]
    table = pa.table({"a": pa.array(texts, pa.string()), "b": pa.array([n for _, n in rows], pa.int64())})
    path = tmp_path_factory.mktemp("round") / f"t.{kind}"
    with EventWriter(path) as writer:
        writer.write(table)
    found, rejects = read(path, text=("a",), types={"b": "int"})
    assert rejects == []
    assert found == table.to_pylist()


# Writing

CHANGES = pa.table(
    {
        "op": ["insert", "delete"],
        "events": pa.array([["a", "b"], []], pa.list_(pa.string())),
        "at": pa.array([1_500_000, None], pa.timestamp("us")),
        "took": pa.array([5, None], pa.duration("s")),
        "rate": [0.5, float("nan")],
    }
)


def test_csv_output(tmp_path):
    with EventWriter(tmp_path / "out.csv") as writer:
        writer.write(CHANGES)
    assert (tmp_path / "out.csv").read_text() == (
        '"op","events","at","took","rate"\n'
        '"insert","[""a"", ""b""]",1970-01-01 00:00:01.500000,5,0.5\n'
        '"delete","[]",,,nan\n'
    )


def test_json_output(tmp_path):
    with EventWriter(tmp_path / "out.jsonl") as writer:
        writer.write(CHANGES)
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        {"op": "insert", "events": ["a", "b"], "at": "1970-01-01 00:00:01.500000", "took": 5, "rate": 0.5},
        {"op": "delete", "events": [], "at": None, "took": None, "rate": None},
    ]


def test_the_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "out.parquet"
    with EventWriter(path) as writer:
        writer.write(CHANGES)
        writer.write(CHANGES)
        assert not path.exists()
        assert writer.rows == 4
    assert pq.read_table(path).num_rows == 4
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl"])
def test_what_breaks_off_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(RuntimeError), EventWriter(path) as writer:
        writer.write(CHANGES)
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_columns_are_refused(tmp_path):
    with pytest.raises(StateError, match="cannot take op string"), EventWriter(tmp_path / "out.csv") as writer:
        writer.write(CHANGES)
        writer.write(CHANGES.select(["op"]))


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        EventWriter(tmp_path / "none" / "out.csv")
    with pytest.raises(ConfigError, match="leave out"):
        EventWriter(tmp_path / "out.csv.gz")
