"""``latecomer run``: replay a file of events through the engine in this process, and write what it finds to files; or
run one process of a Kafka pipeline.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from latecomer.cli.pipeline import is_pipeline, refuse, run_pipeline
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from latecomer.runtime import Runtime

#: Large enough that the cost per batch vanishes, small enough that a batch fits the processor's cache.
BATCH = 8_192
#: Seconds between two looks at the runtime for whoever scrapes its metrics.
LOOK = 1.0


@stream_options
def run(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE", help="A Kafka pipeline ('pipeline.toml'), which says all that the options say of files."
        ),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option("--query", "-q", metavar="QUERY", help="A query: its text or a file of it; may be repeated."),
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="The events: .parquet, .csv, .tsv or .jsonl (text also .gz)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the changes go: .parquet, .csv, .tsv or .jsonl."),
    ] = None,
    late: Annotated[
        Path | None,
        typer.Option("--late", metavar="FILE", help="Where late and malformed rows go; else they are only counted."),
    ] = None,
    level: LevelOption = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column that says the order of arrival; else rows arrive as the file has them."
        ),
    ] = None,
    columns: StreamOptions = NAMES,
    clock: Annotated[
        str,
        typer.Option(
            metavar="stream|source",
            help="How far time has come: the largest event time seen, or the least of the sources' own.",
        ),
    ] = "stream",
    punctuation: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", help="Type of the rows that are punctuation: no event up to their time will follow."
        ),
    ] = None,
    of: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Column that names the type a punctuation speaks of; empty: all types."),
    ] = "of",
    column: ColumnsOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Events per batch; the answer does not depend on it.")] = BATCH,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the state here as it is before the end, for 'latecomer explain'."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what is held before the end, and what each match waits for.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            metavar="PORT",
            help="While it runs, show Prometheus metrics on this port of this machine (0: any free one).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a file of events and write the changes: one row per match found (insert) or taken back (delete).

    With the end of the file all that still waits is decided. A pipeline runs until it is told to stop (SIGTERM or
    Ctrl-C); start it on as many machines as its topics have partitions.

    Example:

    [bold]latecomer run -q theft.query -i events.csv --unit s -o changes.csv --late late.csv[/bold]

    [bold]latecomer run pipeline.toml[/bold]
    """
    if pipeline is not None:
        if not is_pipeline(pipeline):
            raise ConfigError(f"{pipeline!r} is no pipeline, a file that ends in .toml; queries are given with --query")
        refuse(
            pipeline,
            query=query,
            input=input_,
            output=output,
            late=late,
            level=level,
            snapshot=snapshot,
            **columns.given,
        )
        run_pipeline(pipeline)
        return
    if not query or input_ is None or output is None:
        missing = "--query" if not query else "--input" if input_ is None else "--output"
        raise ConfigError(f"{missing} is missing: give --query, --input and --output, or a pipeline")
    from latecomer.cli.state import plain, show
    from latecomer.cli.tally import Tally
    from latecomer.connectors.files import EventWriter
    from latecomer.query.plan import Confidence
    from latecomer.runtime import Runtime

    check_paths(input=input_, output=output, late=late, snapshot=snapshot)
    if clock == "source" and columns.source is None:
        raise ConfigError("--clock source needs to know who sends what: --source COLUMN")
    queries = read_queries(query, level)
    events = open_input(input_, columns, column)
    stream = columns.stream(clock=clock, punctuation=punctuation, of=of, schema=events.schema)
    check_columns(queries, stream, input_, events.schema)
    runtime = Runtime(stream, queries)
    for idle in () if stream.uncertain or as_json else queries:
        if idle.plan.confidence != Confidence():
            Console(stderr=True).print(
                f"{idle.name}: times are exact here, so CONFIDENCE {idle.plan.confidence} keeps every match. Say what "
                "is uncertain: --uncertainty, --granularity, or --lower, --upper and --longest",
                highlight=False,
                markup=False,
            )
    tally = Tally(queries)
    told: dict[str, Any] = {}
    saved = b""
    begun = time.perf_counter()
    with ExitStack() as stack:
        console = Console(stderr=True, quiet=as_json)
        look = stack.enter_context(metrics(runtime, metrics_port, console))
        changes_file = stack.enter_context(EventWriter(output))
        late_file = stack.enter_context(EventWriter(late)) if late is not None else None
        status = stack.enter_context(console.status("Reading"))

        def steps() -> Iterator[Any]:
            nonlocal told, saved
            for chunk in events.chunks(batch_size, arrival=arrival):
                tally.events += chunk.table.num_rows + len(chunk.rejects)
                yield from runtime.stream_pieces(chunk.table)  # of bounded size, however many matches there are
                if chunk.rejects:
                    yield runtime.reject(chunk.rejects)
                status.update(f"{tally.events:,} events, {tally.net:,} matches")
                look()
            told = runtime.explain() if explain else {}
            saved = runtime.snapshot() if snapshot is not None else b""
            yield runtime.finish()

        for out in steps():
            tally.take(out.changes, out.late)
            changes_file.write(out.changes)
            if late_file is not None:
                late_file.write(out.late)
    if snapshot is not None:
        write_whole(snapshot, saved)
    tally.seconds = time.perf_counter() - begun
    tally.duplicates = int(runtime.counters["duplicates"])
    if as_json:
        document = tally.told(input_, output, late) | ({"explain": plain(told)} if explain else {})
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        page = Console()
        tally.show(page, output, late)
        if explain:
            page.print("\nBefore the end:\n", highlight=False)
            show(told, [q.plan for q in queries], page)


@contextmanager
def metrics(runtime: Runtime, port: int | None, console: Console) -> Iterator[Callable[[], None]]:
    """Serve the runtime's metrics to this machine, if a port is given; what is yielded brings them up to date, now and
    then.
    """
    if port is None:
        yield lambda: None
        return
    from latecomer.connectors.metrics import Metrics

    shown = Metrics("run")  # says what is missing, if it is
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr="127.0.0.1")
    except OSError as problem:
        raise ConfigError(f"--metrics-port {port}: {problem.strerror}; give another port, or 0 for any free") from None
    console.print(f"Metrics are at http://127.0.0.1:{server.server_port}/metrics", highlight=False)
    due = 0.0

    def look() -> None:
        nonlocal due
        if time.monotonic() >= due:
            shown.update(runtime)
            due = time.monotonic() + LOOK

    try:
        yield look
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        shown.close()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_paths(**files: Path | None) -> None:
    """Raise ConfigError when one file is named for two purposes."""
    purposes: dict[Path, str] = {}
    for purpose, path in files.items():
        if path is not None:
            other = purposes.setdefault(path.resolve(), purpose)
            if other != purpose:
                raise ConfigError(f"{str(path)!r} is named for two purposes: --{other} and --{purpose} must differ")
