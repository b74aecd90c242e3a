"""``latecomer demo``: the real work on a year of real flights; see ``latecomer.demo``."""

from __future__ import annotations

from latecomer.cli.inputs import JsonOption


def demo(as_json: JsonOption = False) -> None:
    """Run two queries over every flight that left New York in 2013, at several levels, through Spark.

    Needs the packages of the extra "demo" and Java 17 or newer.

    Example:

    [bold]latecomer demo --json > table.json[/bold]
    """
    from latecomer.demo import run

    run(json=as_json)
