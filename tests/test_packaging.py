"""The package: what it contains, what it needs, and that importing it is cheap."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

import latecomer

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def bare(requirement: str) -> str:
    """The name of what a requirement asks for."""
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower()


def test_the_package_holds_its_data():
    root = files("latecomer")
    assert root.joinpath("py.typed").is_file()
    assert root.joinpath("query", "grammar.lark").is_file()


def test_importing_is_cheap():
    """Nothing of the extras is imported, however many of them are installed."""
    code = "import sys, latecomer; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "latecomer" in loaded
    assert not loaded & {"pyspark", "py4j", "duckdb", "pandas", "polars", "confluent_kafka", "typer", "rich"}


def test_the_base_is_small():
    """What only a connector needs is in an extra."""
    base = set(map(bare, PROJECT["dependencies"]))
    extras = {bare(r) for requirements in PROJECT["optional-dependencies"].values() for r in requirements}
    assert {"pyarrow", "numpy", "lark"} <= base
    assert {"pyspark", "pandas", "duckdb", "confluent-kafka", "psycopg", "prometheus-client"} <= extras
    assert not base & extras
    assert len(base) <= 8


def test_constraints_are_plain_pins():
    """Names and versions only: no index, no address, no path."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line), line


def test_all_that_is_tested_is_pinned():
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    needed = {
        bare(r)
        for extra in ("demo", "test", "spark", "duckdb", "bench", "metrics")
        for r in PROJECT["optional-dependencies"][extra]
    }
    assert needed | set(map(bare, PROJECT["dependencies"])) <= pins | {"latecomer"}


def test_every_front_door_is_listed():
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    doors = re.findall(r"^  make (\w+)", listed.stdout, re.MULTILINE)
    assert {"demo", "test", "lint", "types", "bench", "fuzz", "clean"} <= set(doors)


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "scripts").glob("*.sh")))
def test_scripts_are_well_formed(script):
    path = ROOT / "scripts" / script
    assert path.stat().st_mode & 0o100
    subprocess.run(["sh", "-n", path], check=True)


def test_old_pythons_are_refused_in_one_sentence(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    (tmp_path / "touch").symlink_to("/bin/true")
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "venv.sh", old],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs Python 3.11 or newer and found Python 3.9.2" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("says", "fits"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_392"', False),
    ],
)
def test_java_is_checked_by_its_version(tmp_path, says, fits):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "java.sh"],
        env={"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is fits
    assert done.stderr.count("\n") == (0 if fits else 1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", ROOT]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    [path] = folder.glob("*.whl")
    return path


def test_the_wheel_is_complete(wheel):
    assert wheel.name.startswith(f"latecomer-{latecomer.__version__}-")
    held = set(zipfile.ZipFile(wheel).namelist())
    tracked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "latecomer").rglob("*")
        if path.is_file() and path.suffix in (".py", ".lark", ".typed")
    }
    assert tracked <= held
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in held)
    assert any(name.endswith("licenses/LICENSE") for name in held)
