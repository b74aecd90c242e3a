"""``latecomer explain``: what a saved runtime holds, and what each waiting match waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from latecomer.cli.inputs import JsonOption
from latecomer.errors import ConfigError


def explain(
    snapshot: Annotated[
        Path, typer.Argument(metavar="SNAPSHOT", help="A file that holds what Runtime.snapshot() gave.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Say what a saved runtime holds: its sources, how far each query knows, and what its matches wait for.

    Example:

    [bold]latecomer run -q theft.query -i events.csv -o out.csv --unit s --snapshot state.bin[/bold]

    [bold]latecomer explain state.bin[/bold]
    """
    from latecomer.cli.state import plain, show
    from latecomer.runtime import Runtime

    if not snapshot.is_file():
        raise ConfigError(f"there is no file {str(snapshot)!r}")
    runtime = Runtime.restore(snapshot.read_bytes())
    told = runtime.explain()
    if as_json:
        typer.echo(json.dumps(plain(told), indent=2, ensure_ascii=False))
    else:
        show(told, [query.plan for query in runtime.queries], Console())
