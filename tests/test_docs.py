"""The documentation: its examples run and print what they say, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])

#: Pages whose Python blocks are whole programs, one after another; those of the others need more than the page shows.
PROGRAMS = [ROOT / "README.md", ROOT / "docs" / "late-events.md"]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def ids(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("page", PROGRAMS, ids=ids)
def test_examples_print_what_the_page_shows(page):
    blocks = BLOCK.findall(page.read_text())
    programs = [text for kind, text in blocks if kind == "python"]
    shown = [text for kind, text in blocks if kind == "text"]
    assert programs
    done = subprocess.run([sys.executable, "-c", "\n".join(programs)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(shown)


def test_the_readme_says_what_the_other_levels_do():
    """With a final level the program of the README prints nothing."""
    program = "\n".join(text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "python")
    for level in ('lc.KSlack("5 minutes")', "lc.Conservative()"):
        changed = program.replace('lc.Aggressive(max_delay="5 minutes")', level)
        assert changed != program
        done = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, check=True)
        assert done.stdout == ""


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


def test_the_commands_of_the_readme_are_commands():
    shell = "\n".join(text for kind, text in BLOCK.findall((ROOT / "README.md").read_text()) if kind == "sh")
    doors = set(re.findall(r"^make (\w+)", shell, re.MULTILINE))
    assert doors == {"demo", "test"}
    assert doors <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^latecomer (\w+)", shell, re.MULTILINE)) == {"check", "run"}
