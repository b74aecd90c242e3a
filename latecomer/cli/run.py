"""``latecomer run``: replay a file of events through the engine in this process, and write what it finds to files."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

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
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from latecomer.query import Query

#: Large enough that the cost per batch vanishes, small enough that a batch fits the processor's cache.
BATCH = 8_192


def run(
    query: Annotated[
        list[str],
        typer.Option("--query", "-q", metavar="QUERY", help="A query: its text or a file of it; may be repeated."),
    ],
    input_: Annotated[
        Path,
        typer.Option(
            "--input", "-i", metavar="FILE", help="The events: .parquet, .csv, .tsv or .jsonl (text also .gz)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where the changes go: .parquet, .csv, .tsv or .jsonl."),
    ],
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
    type_: TypeOption = "type",
    ts: TsOption = "ts",
    id_: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COLUMN", help="Column of the event ids; else events are numbered from 0 as they arrive."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the events' sources; late events are told by source."),
    ] = None,
    punctuation: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the rows that are punctuation; their column 'of' names the type they speak of.",
        ),
    ] = None,
    unit: UnitOption = None,
    column: ColumnsOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Events per batch; the answer does not depend on it.")] = BATCH,
    as_json: JsonOption = False,
) -> None:
    """Replay a file of events and write the changes: one row per match found (insert) or taken back (delete).

    Example:

    [bold]latecomer run -q theft.query -i events.csv --unit s -o changes.csv --late late.csv[/bold]
    """
    from latecomer.connectors.files import EventWriter, open_events
    from latecomer.runtime import Runtime
    from latecomer.stream import Stream

    check_paths(input_, output, late)
    queries = read_queries(query, level)
    events = open_events(input_, time=ts, text=(type_,), types=read_columns(column))
    stream = Stream(type=type_, ts=ts, id=id_, source=source, unit=unit, punctuation=punctuation, schema=events.schema)
    check_columns(queries, stream, input_, events.schema)
    runtime = Runtime(stream, queries)
    tally = Tally(queries)
    begun = time.perf_counter()
    with ExitStack() as stack:
        changes_file = stack.enter_context(EventWriter(output))
        late_file = stack.enter_context(EventWriter(late)) if late is not None else None
        console = Console(stderr=True, quiet=as_json)
        status = stack.enter_context(console.status("Reading"))

        def steps() -> Iterator[Any]:
            for chunk in events.chunks(batch_size, arrival=arrival):
                tally.events += chunk.table.num_rows + len(chunk.rejects)
                yield from runtime.stream_pieces(chunk.table)  # of bounded size, however many matches there are
                if chunk.rejects:
                    yield runtime.reject(chunk.rejects)
                status.update(f"{tally.events:,} events, {tally.net:,} matches")
            yield runtime.finish()

        for out in steps():
            tally.take(out.changes, out.late)
            changes_file.write(out.changes)
            if late_file is not None:
                late_file.write(out.late)
    tally.seconds = time.perf_counter() - begun
    tally.duplicates = int(runtime.counters["duplicates"])
    if as_json:
        typer.echo(json.dumps(tally.told(input_, output, late), indent=2, ensure_ascii=False))
    else:
        tally.show(Console(), output, late)


def check_paths(source: Path, output: Path, late: Path | None) -> None:
    """Raise ConfigError when one file is named for two purposes."""
    named = [path.resolve() for path in (source, output, late) if path is not None]
    if len(set(named)) != len(named):
        raise ConfigError("one file is named for two purposes: --input, --output and --late must differ")


@dataclass
class Tally:
    """What came in and what came out, counted from the outputs themselves."""

    queries: Sequence[Query]
    events: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    #: (query, op) -> changes
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: (query or None for the stream itself, reason) -> late rows
    late: Counter[tuple[str | None, str]] = field(default_factory=Counter)

    def take(self, changes: pa.Table, late: pa.Table) -> None:
        """Count one output."""
        self.changes.update(_count(changes, "query", "op"))
        self.late.update(_count(late, "query", "reason"))

    @property
    def net(self) -> int:
        """Matches that stand: insertions minus deletions."""
        return sum(n if op == "insert" else -n for (_, op), n in self.changes.items())

    def told(self, source: Path, output: Path, late: Path | None) -> dict[str, Any]:
        """The summary for machines."""
        return {
            "input": str(source),
            "output": str(output),
            "late_output": None if late is None else str(late),
            "events": self.events,
            "duplicates": self.duplicates,
            "seconds": round(self.seconds, 3),
            "queries": [
                {
                    "name": q.name,
                    "level": str(q.level),
                    "matches": self.changes[q.name, "insert"] - self.changes[q.name, "delete"],
                    "inserted": self.changes[q.name, "insert"],
                    "deleted": self.changes[q.name, "delete"],
                    "late": self._reasons(q.name),
                }
                for q in self.queries
            ],
            "late": self._reasons(None),
        }

    def _reasons(self, query: str | None) -> dict[str, int]:
        return {reason: n for (name, reason), n in sorted(self.late.items(), key=str) if name == query}

    def show(self, console: Console, output: Path, late: Path | None) -> None:
        """The summary for a reader."""
        rate = f", {self.events / self.seconds:,.0f} per second" if self.seconds else ""
        console.print(f"{self.events:,} events in {self.seconds:.2f} s{rate}", highlight=False)
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for name in ("query", "level"):
            table.add_column(name)
        for name in ("matches", "taken back", "late events"):
            table.add_column(name, justify="right")
        for q in self.queries:
            inserted, deleted = self.changes[q.name, "insert"], self.changes[q.name, "delete"]
            reasons = self._reasons(q.name)
            late_text = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items()) or "0"
            table.add_row(q.name, str(q.level), f"{inserted - deleted:,}", f"{deleted:,}", late_text)
        console.print(table)
        for reason, n in self._reasons(None).items():
            console.print(f"{n:,} rows {reason}", highlight=False)
        if self.duplicates:
            console.print(f"{self.duplicates:,} events came twice and counted once", highlight=False)
        console.print(f"Changes are in {output}" + (f", late rows in {late}" if late else ""), highlight=False)
        if late is None and self.late:
            console.print("Late rows were counted and not kept: --late FILE keeps them", highlight=False)


def _count(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], int]:
    """How many rows have each combination of values."""
    if not table.num_rows:
        return {}
    counted = table.group_by(list(columns)).aggregate([([], "count_all")]).to_pylist()
    return {tuple(row[c] for c in columns): row["count_all"] for row in counted}
