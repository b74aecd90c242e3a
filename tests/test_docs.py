"""The documentation: its examples run and print what they say, its links lead somewhere, and its pages are found."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import latecomer
from latecomer.runtime.explain import explain
from tests import spark_fixture

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
spark = spark_fixture.spark

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


#: Pages whose Python is a program of its own kind, and is run as such elsewhere.
ELSEWHERE = {
    "testing.md": "in tests/test_testing_kit.py, as a suite of tests",
    "spark.md": "below, in a Spark session",
}
PROGRAMS = [page for page in PAGES if blocks(page, "python") and page.name not in ELSEWHERE]

#: What a page takes as given.
GIVEN = {
    "disorder.md": """
import pyarrow as pa

table = events = pa.table({
    "event_time": pa.array([1_000 * n for n in range(500)]),
    "device": ["UA", "DL"] * 250,
})
"""
}


def name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_examples_print_what_the_page_shows(page, tmp_path):
    """All Python of a page, one block after another, prints its text blocks, one after another."""
    program = "\n".join([GIVEN.get(page.name, ""), *blocks(page, "python")])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(blocks(page, "text"))


def test_no_python_is_hidden_from_these_tests():
    """Another spelling of the language would not be run."""
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))}
    assert kinds <= {"python", "text", "sh", "sql", "console", "toml", "json"}
    assert set(ELSEWHERE) <= {page.name for page in PAGES if blocks(page, "python")}


@pytest.mark.spark
def test_the_example_for_spark_writes_what_it_finds(spark, tmp_path, monkeypatch):
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    when = pa.array([0, 240_000_000, 120_000_000, 300_000_000], pa.timestamp("us"))
    rows = {"kind": ["Shelf", "Exit", "Shelf", "Exit"], "event_time": when, "event_id": [1, 2, 3, 4]}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(rows | {"tag": ["A7", "A7", "B2", "C5"]}), tmp_path / "in" / "0.parquet")
    columns = "kind string, event_time timestamp_ntz, event_id long, tag string"
    [program] = blocks(DOCS / "spark.md", "python")
    program = program.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')  # Java does not follow chdir
    exec(program, {"events": spark.readStream.schema(columns).parquet(str(tmp_path / "in"))})
    [query] = spark.streams.active
    query.processAllAvailable()
    query.stop()
    found = duckdb.connect(str(tmp_path / "theft.duckdb")).sql("select op, tag from changes").fetchall()
    assert found == [("insert", "A7")]


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "latecomer").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    """With the public names at hand, as after ``from latecomer import *``."""
    known = {name: getattr(latecomer, name) for name in latecomer.__all__}
    failed, tried = doctest.testmod(importlib.import_module(module), extraglobs=known)
    assert tried and not failed


def test_the_readme_says_what_the_other_levels_do():
    """With a final level the program of the README prints nothing."""
    program = "\n".join(blocks(ROOT / "README.md", "python"))
    for level in ('lc.KSlack("5 minutes")', "lc.Conservative()"):
        changed = program.replace('lc.Aggressive(max_delay="5 minutes")', level)
        assert changed != program
        done = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, check=True)
        assert done.stdout == ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    """To a file that is there, and to a heading that it has."""
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path = page.parent / target if target else page
        assert path.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, heading


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in DOCS.glob("*.md")} <= linked


def test_the_commands_of_the_readme_are_commands():
    shell = "\n".join(blocks(ROOT / "README.md", "sh"))
    doors = set(re.findall(r"^make (\w+)", shell, re.MULTILINE))
    assert doors == {"demo", "test"}
    assert doors <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^latecomer (\w+)", shell, re.MULTILINE)) == {
        "advise", "check", "explain", "run", "serve", "state",
    }  # fmt: skip


def test_the_page_names_all_that_explain_says():
    """Each key, in the docstring and in the table of the architecture page."""
    stream = latecomer.Stream(source="from", unit="s")
    slack = latecomer.Query("PATTERN SEQ(A a, !B b) WITHIN 5", name="slack", level=latecomer.KSlack(1))
    quick = latecomer.Query("PATTERN SEQ(A a, !B b) WITHIN 5", name="quick", level=latecomer.Aggressive(1))
    runtime = latecomer.Runtime(stream, [slack, quick])
    runtime.process([{"type": "A", "ts": n, "from": "x"} for n in (1, 4)])
    told = runtime.explain()
    keys = {*told, *told["sources"]["x"]}.union(*told["queries"].values())
    assert len(keys) > 25
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for text in (explain.__doc__ or "", page[page.index("## Explain") :]):
        assert [key for key in sorted(keys) if not re.search(rf"`{key}`", text)] == []
