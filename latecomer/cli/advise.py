"""``latecomer advise``: what a recorded sample says of lateness, and which level to choose, as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from latecomer.cli.columns import NAMES, StreamOptions, stream_options
from latecomer.cli.inputs import (
    ColumnsOption,
    JsonOption,
    check_columns,
    open_input,
    read_queries,
    read_query_text,
)
from latecomer.cli.pipeline import is_pipeline, load_pipeline, refuse
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from latecomer.advise import Advice, Sample
    from latecomer.query import Query

#: Any level serves to read a query whose own does not count.
_ANY = "conservative"


@stream_options
def advise(
    sample: Annotated[
        Path,
        typer.Argument(
            metavar="SAMPLE",
            help="Recorded events: .parquet, .csv, .tsv or .jsonl (text also .gz); or a Kafka pipeline "
            "('pipeline.toml') whose input topics are read.",
        ),
    ],
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", metavar="QUERY", help="A query to try: its text or a file; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the page goes; else SAMPLE-advice.html, here."),
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column that says when each event arrived; else rows arrived as the file has them."
        ),
    ] = None,
    columns: StreamOptions = NAMES,
    column: ColumnsOption = None,
    recall: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="The least share of the matches that a level must find.")
    ] = 0.99,
    wrong: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="The largest share of alarms that may be wrong until they are taken back."),
    ] = 0.05,
    rows: Annotated[
        int, typer.Option(min=1_000, help="Read at most about so many rows, spread evenly over a larger file.")
    ] = 1_000_000,
    kafka: Annotated[
        str | None, typer.Option("--kafka", metavar="TOPIC", help="Of a pipeline's topics read this one only.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how late the events of a sample are, which promises would have held, and what each level would cost.

    Writes one HTML page that needs nothing else, and with --json prints its figures. Of a pipeline the newest messages
    are read, and its own queries tried.

    Example:

    [bold]latecomer advise events.parquet --ts event_time --arrival received --source device -q theft.query[/bold]

    [bold]latecomer advise pipeline.toml --kafka exits[/bold]
    """
    from latecomer.advise import advise as judge
    from latecomer.advise import take, thin
    from latecomer.advise.sample import STRETCH

    target = output if output is not None else Path(f"{sample.name.split('.')[0]}-advice.html")
    if target.resolve() == sample.resolve():
        raise ConfigError(f"{str(target)!r} is the sample itself: name another file with --output")
    with Console(stderr=True, quiet=as_json).status("Reading") as status:
        if is_pipeline(str(sample)):
            refuse(str(sample), arrival=arrival, column=column, **columns.given)
            taken, queries, own = _of_pipeline(sample, kafka, query or [], rows)
        else:
            if kafka is not None:
                raise ConfigError("--kafka picks a topic of a pipeline: give the pipeline's file, 'pipeline.toml'")
            queries, own = _queries(query or [])
            events = open_input(sample, columns, column)
            stream = columns.stream()
            check_columns(queries, stream, sample, events.schema)
            taken = take(thin(events.chunks(STRETCH), rows), stream, name=sample.name, arrival=arrival)
        status.update("Measuring, and replaying the queries")
        advice = judge(taken, queries, own=own, recall=recall, wrong=wrong)
        target.write_text(advice.html(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(advice.as_dict() | {"page": str(target)}, indent=2, ensure_ascii=False))
    else:
        _show(advice, target)


def _queries(given: Sequence[str]) -> tuple[list[Query], list[str]]:
    """The queries, and the names of those that came with a level of their own."""
    queries = read_queries(given, _ANY)
    return queries, [q.name for q, text in zip(queries, given, strict=True) if _has_level(text)]


def _of_pipeline(
    path: Path, topic: str | None, query: Sequence[str], rows: int
) -> tuple[Sample, list[Query], list[str]]:
    """The newest events of a pipeline's topics; the queries given, else its own."""
    pipeline = load_pipeline(str(path))
    from latecomer.advise.topics import take_topics

    queries, own = _queries(query)
    if not queries:
        queries = list(pipeline.queries)
        own = [q.name for q in queries]
    return take_topics(pipeline, rows, topic), queries, own


def _has_level(text: str) -> bool:
    """Whether a query ends with CONSISTENCY."""
    from latecomer.query.parse import parse

    return parse(read_query_text(text)[0]).level is not None


def _show(advice: Advice, target: Path) -> None:
    """The gist, on a terminal."""
    from latecomer.advise.page import headlines

    page = Console()
    for sentence in headlines(advice):
        page.print(sentence, highlight=False, markup=False)
    for trial, said in advice.trials:
        page.print(f"\n{trial.query.name}: {said.why}", highlight=False, markup=False)
        for choice in said.choices:
            page.print(f"  {choice.when}: {choice.point.clause}", highlight=False, markup=False)
            if choice.point.promises:
                page.print(f"    Stream(…, promises=[{choice.point.promises}])", highlight=False, markup=False)
            page.print(f"    {choice.means}", highlight=False, markup=False)
    for limit in advice.sample.limits:
        page.print(f"\n{limit}", highlight=False, markup=False)
    page.print(f"\nThe page is {target}", highlight=False, markup=False)
