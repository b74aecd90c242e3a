"""``latecomer check``: validate a query and say what it means, without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from latecomer.cli.inputs import (
    ColumnsOption,
    JsonOption,
    LevelOption,
    TsOption,
    TypeOption,
    UnitOption,
    check_columns,
    read_columns,
    read_queries,
)


def check(
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY", help="The query: its text, or a file of it ('theft.query' or '@theft.query')."),
    ],
    level: LevelOption = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call the query.")] = None,
    unit: UnitOption = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="Check names and types against the columns of this file of events."
        ),
    ] = None,
    type_: TypeOption = "type",
    ts: TsOption = "ts",
    column: ColumnsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a query, and print its plan, what must not occur between what, and how long state is kept.

    Example:

    [bold]latecomer check "PATTERN SEQ(Out a, !Back b) WITHIN 1 h" --level "kslack(5 min)"[/bold]
    """
    from latecomer.cli.report import facts, show
    from latecomer.stream import Stream

    queries = read_queries([query], level, name)
    stream = Stream(type=type_, ts=ts, unit=unit)
    unit = stream.unit
    if schema is not None:
        from latecomer.connectors.files import open_events

        columns = open_events(schema, time=ts, text=(type_,), types=read_columns(column)).schema
        check_columns(queries, stream, schema, columns)
        unit = stream.unit_for(columns.field(ts).type)
    told = facts(queries[0].plan, unit)
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told, Console())
