"""``latecomer check``: validate a query, or the file of a Kafka pipeline, and say what it means without running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from latecomer.cli.columns import NAMES, StreamOptions, stream_options
from latecomer.cli.inputs import (
    ColumnsOption,
    JsonOption,
    LevelOption,
    check_columns,
    open_input,
    read_queries,
)
from latecomer.cli.pipeline import check_pipeline, is_pipeline, refuse
from latecomer.errors import ConfigError


@stream_options
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
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="Check names and types against the columns of this file of events."
        ),
    ] = None,
    columns: StreamOptions = NAMES,
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
        refuse(query, level=level, name=name, schema=schema, column=column, **columns.given)
        check_pipeline(query, connect=connect, as_json=as_json)
        return
    if connect:
        raise ConfigError("--connect is for a pipeline: latecomer check pipeline.toml --connect")
    from latecomer.cli.intervals import Reach
    from latecomer.cli.report import facts, hints, show

    queries = read_queries([query], level, name)
    stream = columns.stream()
    unit = stream.unit
    queries[0].check(stream)
    if schema is not None:
        found = open_input(schema, columns, column).schema
        check_columns(queries, stream, schema, found)
        unit = stream.unit_for(found.field(stream.ts).type)
    told = facts(queries[0].plan, unit, Reach.of(stream, unit))
    told["hints"] = hints(stream, [queries[0].plan], "Stream(max_ahead='1 min')")
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told, Console())
