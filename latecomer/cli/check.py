"""``latecomer check``: validate a query, or the file of a Kafka pipeline, and say what it means without running it."""

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
from latecomer.cli.pipeline import check_pipeline, is_pipeline, refuse
from latecomer.errors import ConfigError


def check(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="The query: its text, or a file of it ('theft.query' or '@theft.query'); or a pipeline "
            "('pipeline.toml').",
        ),
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
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Of a pipeline: look whether its cluster has the topics, partitions and permissions."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a query, and print its plan, what must not occur between what, and how long state is kept.

    Of a pipeline also what it reads and writes, and how its partitions are worked on.

    Example:

    [bold]latecomer check "PATTERN SEQ(Out a, !Back b) WITHIN 1 h" --level "kslack(5 min)"[/bold]

    [bold]latecomer check pipeline.toml --connect[/bold]
    """
    if is_pipeline(query):
        refuse(query, level=level, name=name, unit=unit, schema=schema, column=column)
        check_pipeline(query, connect=connect, as_json=as_json)
        return
    if connect:
        raise ConfigError("--connect is for a pipeline: latecomer check pipeline.toml --connect")
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
