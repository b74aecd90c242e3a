"""What the commands are given: queries, levels, names of columns; and the options that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latecomer.errors import ConfigError, QueryError, SchemaError
from latecomer.texts import read_text

if TYPE_CHECKING:
    import pyarrow as pa

    from latecomer.cli.columns import StreamOptions
    from latecomer.connectors.files import EventFile
    from latecomer.consistency.levels import Level
    from latecomer.query import Query
    from latecomer.stream import Stream

LevelOption = Annotated[
    str | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="Consistency level for queries that do not end with CONSISTENCY: 'kslack(5 minutes)', 'conservative' or "
        "'aggressive(max_delay = 5 minutes, patience = 10 seconds)'.",
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=TYPE",
        help="Declare a column of a CSV or JSON lines file as int, float, bool, text or time; may be repeated.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def read_query_text(given: str) -> tuple[str, str | None]:
    """The text of a query and, where it came from a file, the file's stem.

    ``@`` marks a file; without it, what has no blanks in it is a file too, since no query is one word.

    >>> read_query_text("PATTERN SEQ(A a, B b) WITHIN 5 s CONSISTENCY conservative")[1] is None
    True
    """
    if not given.startswith("@") and any(c.isspace() for c in given.strip()):
        return given, None
    path = Path(given.removeprefix("@"))
    return read_text(path, "query file"), path.stem


def read_level(text: str | None) -> Level | None:
    """A level as the CONSISTENCY clause writes it; raises ConfigError for what is none."""
    from latecomer.query.parse import parse

    if text is None:
        return None
    try:
        level = parse(f"PATTERN SEQ(A a) WITHIN 1 s CONSISTENCY {text}").level
    except QueryError as error:
        raise ConfigError(
            f"--level {text!r}: {error.problem}\n  write 'kslack(5 minutes)', 'conservative' or "
            "'aggressive(max_delay = 5 minutes, patience = 10 seconds)'"
        ) from None
    assert level is not None
    return level


def read_queries(given: Sequence[str], level: str | None, name: str | None = None) -> list[Query]:
    """Queries with names that differ: the file's stem, else ``query``, ``query2`` …

    ``level`` is for those whose text has no CONSISTENCY clause.
    """
    from latecomer.query import Query
    from latecomer.query.parse import parse

    fallback = read_level(level)
    queries: list[Query] = []
    taken: set[str] = set()
    for text, stem in map(read_query_text, given):
        base = name or stem or "query"
        own, number = base, 2
        while own in taken:
            own, number = f"{base}{number}", number + 1
        taken.add(own)
        written = parse(text).level
        if written is None and fallback is None:
            raise ConfigError(
                f"{own} has no consistency level: how long may it wait, and may it correct itself? Give --level, or "
                "end the query with CONSISTENCY, and one of these:\n"
                "  'kslack(5 minutes)' waits a fixed slack, then is final and in order\n"
                "  'conservative' waits for punctuation, then is final\n"
                "  'aggressive(max_delay = 5 minutes)' answers at once, and takes answers back when late events come"
            )
        queries.append(Query(text, name=own, level=None if written is not None else fallback))
    return queries


def open_input(path: Path, columns: StreamOptions, declared: Sequence[str] | None) -> EventFile:
    """Open a file of events; both ends of intervals are read as times of one kind."""
    import pyarrow as pa

    from latecomer.connectors.files import open_events

    types, time = read_columns(declared), columns.time
    if columns.pmf is not None:
        types.setdefault(columns.pmf, "weights")
    events = open_events(path, time=time, text=(columns.type,), types=types)
    if columns.upper is None or columns.upper in types or time not in events.schema.names:
        return events
    types[columns.upper] = "time" if pa.types.is_timestamp(events.schema.field(time).type) else "int"
    return open_events(path, time=time, text=(columns.type,), types=types)


def check_columns(queries: Sequence[Query], stream: Stream, path: Path, schema: pa.Schema) -> None:
    """Check the stream's columns and the queries against the columns of a file, before anything is read from it.

    Raises SchemaError for a column of the stream that is missing, QueryError with a caret for a wrong use.
    """
    import pyarrow as pa

    for column in (stream.type, stream.ts, stream.upper, stream.id, stream.source, stream.pmf):
        if column is not None and column not in schema.names:
            has = ", ".join(map(repr, schema.names)) or "no columns at all"
            raise SchemaError(f"{path.name!r} has no column {column!r}: it has {has}")
    times = schema.field(stream.ts).type
    if stream.unit is None and (pa.types.is_integer(times) or pa.types.is_floating(times)):
        raise ConfigError(
            f"{path.name!r} tells times as numbers ({stream.ts}: {times}): say what they count, like --unit s or ms"
        )
    for query in queries:
        query.check(stream, schema)


def read_columns(given: Sequence[str] | None) -> dict[str, str]:
    """``["price=float"]`` as a mapping; raises ConfigError for what is no such pair."""
    pairs = {}
    for text in given or ():
        column, separator, kind = text.rpartition("=")
        if not separator or not column:
            raise ConfigError(f"--column {text!r}: write NAME=TYPE, like price=float")
        pairs[column] = kind
    return pairs
