"""Whether the tables of a pipeline fit each other: topics, columns, formats, queries, promises, secrets.

Each table alone was checked when its model was made; here is what only shows when they are seen together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from latecomer.connectors.kafka.advice import common_key
from latecomer.connectors.kafka.config_clients import check_properties, unavailable
from latecomer.connectors.kafka.config_errors import Misfit, guess
from latecomer.connectors.kafka.config_lines import Document, Path
from latecomer.connectors.kafka.config_values import Place
from latecomer.errors import LatecomerError, QueryError, options
from latecomer.runtime import Runtime

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline
    from latecomer.connectors.kafka.config_parts import Input

#: Columns that the pipeline makes itself.
RESERVED = ("type", "ts", "id", "source", "of")
#: Formats whose schemas are in the registry.
REGISTERED = ("avro", "protobuf")
#: Places for state that can be named in a URI.
PLACES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: Where a message about an option of the stream begins with its name.
_OPTION = re.compile(r"(?:Stream\()?(\w+)=")


def misfits(pipeline: Pipeline, document: Document) -> Iterator[tuple[int, Misfit]]:
    """All that does not fit, with its line."""
    found = [*_secrets(pipeline)]
    found += [] if found else check_properties(pipeline.kafka)
    found += [*_transaction(pipeline), *_state(pipeline), *_topics(pipeline), *_registry(pipeline), *_columns(pipeline)]
    for number, given in enumerate(pipeline.inputs):
        found += _input(pipeline, number, given)
    found += _punctuation(pipeline)
    for misfit in found:
        yield document.line(misfit.path), misfit
    intervals = [*_intervals(pipeline)]
    yield from ((document.line(misfit.path), misfit) for misfit in intervals)
    engine = [] if intervals else [*_stream(pipeline, document)]
    yield from engine
    if not found and not intervals and not engine:
        yield from ((document.line(misfit.path), misfit) for misfit in _repartition(pipeline))


def _secrets(pipeline: Pipeline) -> Iterator[Misfit]:
    for path, setting in pipeline.settings():
        problem = unavailable(setting)
        if problem is not None:
            yield Misfit(path, f"{path[-1]}: {problem}")


def _topics(pipeline: Pipeline) -> Iterator[Misfit]:
    """No topic has two purposes: output that comes in again would never end, and compaction would delete a log."""
    output = pipeline.output
    named: list[tuple[Path, str, str]] = [
        (("input", number, "topic"), topic, "an input")
        for number, given in enumerate(pipeline.inputs)
        for topic in given.topics
    ]
    named += [(("output", key), topic.topic, f"the output of {key}") for key, topic in output.topics.items()]
    named.append((("output", "dead_letters"), output.dead_letters, "the output of dead letters"))
    if pipeline.repartition is not None:
        named.append((("repartition", "topic"), pipeline.repartition.topic, "the internal topic"))
    taken: dict[str, str] = {}
    for path, name, purpose in named:
        if not _TOPIC.fullmatch(name) or name in (".", ".."):
            yield Misfit(
                path, f"no topic can be called {name!r}: allowed are up to 249 letters, digits, '.', '_' and '-'"
            )
        if name in taken:
            yield Misfit(path, f"the topic {name!r} is {taken[name]} already: each purpose needs a topic of its own")
        taken.setdefault(name, purpose)


def _transaction(pipeline: Pipeline) -> Iterator[Misfit]:
    """Brokers must not give a transaction up before it is meant to end."""
    name = "transaction.timeout.ms"
    for side, settings in ((("producer",), pipeline.kafka.producer), ((), pipeline.kafka.common)):
        setting = settings.get(name)
        if setting is None or unavailable(setting) is not None or not setting.reveal().isdecimal():
            continue
        if int(setting.reveal()) <= 1_000 * pipeline.transaction and pipeline.guarantee == "exactly-once":
            yield Misfit(
                ("kafka", *side, name),
                f"{name}: after this time brokers give a transaction up, and transaction at the top of the file says "
                f"that each lasts {1_000 * pipeline.transaction:g} ms: give more than that here, or less there",
            )
        return


def _state(pipeline: Pipeline) -> Iterator[Misfit]:
    """Whether the kind of place is known; whether it can be reached is found out when it is used."""
    setting = pipeline.state.location
    if unavailable(setting) is None:
        scheme, mark, _ = setting.reveal().partition("://")
        if not scheme:
            yield Misfit(("state", "uri"), "uri: it is empty: a path is needed, or a URI")
        if mark and scheme.lower() not in PLACES:
            yield Misfit(
                ("state", "uri"), f"uri: a path is needed, or a URI that begins with {options(PLACES)} and ://"
            )


def _registry(pipeline: Pipeline) -> Iterator[Misfit]:
    """Avro and Protobuf need to know where schemas are."""
    if pipeline.schema_registry is not None:
        return
    formats: list[tuple[Path, str]] = [
        (("input", number, "format"), given.format) for number, given in enumerate(pipeline.inputs)
    ]
    formats += [(("output", key), topic.format) for key, topic in pipeline.output.topics.items()]
    for path, format in formats:
        if format in REGISTERED:
            yield Misfit(path, f'format = "{format}" needs a schema registry: [schema_registry] url = "http://…"')


def _columns(pipeline: Pipeline) -> Iterator[Misfit]:
    reserved = [*RESERVED, *(name for name in ("upper", "pmf") if any(getattr(i, name) for i in pipeline.inputs))]
    for name in pipeline.columns_written:
        if name in reserved:
            yield Misfit(
                ("columns", name),
                f"{name!r} is a column that every event has ({options(reserved)}): give the attribute another name, "
                f'and say in [[input]] where it is: fields = {{ other = "{name}" }}',
            )


def _input(pipeline: Pipeline, number: int, given: Input) -> Iterator[Misfit]:
    """Whether the columns that an input speaks of are declared, and can be found where it says."""
    at = ("input", number)
    columns = pipeline.columns_written
    declared = options(columns) if columns else "none, as there is no [columns]"
    for name, place in given.fields.items():
        if name not in columns:
            yield Misfit(
                (*at, "fields", name), f"{name!r} is not in [columns]{guess(name, columns)}; declared are {declared}"
            )
        elif place.unit is not None and columns[name] != "time":
            yield Misfit((*at, "fields", name), f"{name!r} has a unit, but [columns] does not say that it is a time")
    for name in given.key:
        if name not in (*columns, "type", "id", "source"):
            yield Misfit((*at, "key"), f"{name!r} is not in [columns]{guess(name, columns)}; declared are {declared}")
    if given.csv is not None:
        yield from _csv(at, given, given.csv.columns)


def _intervals(pipeline: Pipeline) -> Iterator[Misfit]:
    """Whether it is known how long intervals are."""
    options = pipeline.stream_options
    uncertain = options.uncertainty is not None or options.granularity is not None
    for number, given in enumerate(pipeline.inputs):
        if given.upper is not None and options.longest is None:
            yield Misfit(
                ("input", number, "upper"),
                'upper needs to be told how long an interval may be at most, [stream] longest = "10 minutes": without '
                "it no event would ever be known to have come",
            )
        if given.pmf is not None and not uncertain and not any(other.upper for other in pipeline.inputs):
            yield Misfit(
                ("input", number, "pmf"),
                "pmf weighs the times of an interval, and all times are exact: allowed with upper in [[input]], or "
                "with uncertainty or granularity in [stream]",
            )


def _csv(at: tuple[str | int, ...], given: Input, columns: tuple[str, ...]) -> Iterator[Misfit]:
    roles: list[tuple[tuple[str, ...], Place | None]] = [
        (("type",), given.type), (("time",), given.time), (("id",), given.id), (("source",), given.source),
        (("upper",), given.upper),
        *((("fields", name), place) for name, place in given.fields.items()),
    ]  # fmt: skip
    for path, place in roles:
        if place is not None and place.field is not None and place.field not in columns:
            yield Misfit(
                (*at, *path),
                f"{path[-1]} is the field {place.field!r}, which csv.columns does not name{guess(place.field, columns)}"
                f"; it names {options(columns)}",
            )


def _punctuation(pipeline: Pipeline) -> Iterator[Misfit]:
    first = pipeline.punctuation_type
    for number, given in enumerate(pipeline.inputs):
        named = None if given.punctuation is None else given.punctuation.type
        if named is not None and named != first:
            yield Misfit(
                ("input", number, "punctuation", "type"),
                f"punctuation has the type {named!r} here and {first!r} elsewhere: all inputs must use one",
            )


def _stream(pipeline: Pipeline, document: Document) -> Iterator[tuple[int, Misfit]]:
    """Whether the engine can be built: the stream, each query on it, and all of them together."""
    queries = [*_queries(pipeline, document)]
    yield from queries
    try:
        stream = pipeline.stream
    except (LatecomerError, TypeError) as error:
        named = _OPTION.match(str(error))
        path = (
            "stream",
            "promises" if isinstance(error, TypeError) or "generator" in str(error) else named[1] if named else "",
        )
        yield document.line(path), Misfit(path, f"{error}")
        return
    if queries:
        return
    for number, query in enumerate(pipeline.queries):
        try:
            query.check(stream, pipeline.schema)
        except LatecomerError as error:
            yield _query_misfit(pipeline, document, number, error)
            queries.append((0, Misfit((), "")))
    if not queries:
        try:
            Runtime(stream, pipeline.queries)
        except LatecomerError as error:
            yield document.line(("stream",)), Misfit(("stream",), str(error))


def _queries(pipeline: Pipeline, document: Document) -> Iterator[tuple[int, Misfit]]:
    names: set[str] = set()
    for number, given in enumerate(pipeline.query_options):
        if given.name in names:
            path = ("query", number, "name")
            yield document.line(path), Misfit(path, f"there is a query {given.name!r} already: names must differ")
        names.add(given.name)
        try:
            pipeline.query(number)
        except LatecomerError as error:
            yield _query_misfit(pipeline, document, number, error)


def _query_misfit(pipeline: Pipeline, document: Document, number: int, error: LatecomerError) -> tuple[int, Misfit]:
    """What is wrong with a query, at its line in this file, or with its place in its own."""
    given = pipeline.query_options[number]
    path: tuple[str | int, ...] = ("query", number, "text" if given.text is not None else "file")
    if not isinstance(error, QueryError):
        key = "level" if str(error).startswith("level ") else path[-1]
        return document.line(("query", number, key)), Misfit(path, f"query {given.name!r}: {error}")
    line = document.line(path)
    told = str(error).split("\n")
    where = ""
    if error.line is not None:
        place = told.pop(1).strip()
        if given.text is not None:
            line = document.first_line_of_text(path) + error.line - 1
        else:
            where = f" ({given.file}, {place})"
    return line, Misfit(path, f"query {given.name!r}{where}: " + "\n".join(told))


def _repartition(pipeline: Pipeline) -> Iterator[Misfit]:
    """Whether the internal topic brings together what belongs together."""
    given = pipeline.repartition
    if given is None:
        return
    common = common_key(pipeline.queries)
    torn = [name for name in given.by or () if name not in common]
    shown = "; ".join(f"{q.name} [{', '.join(q.plan.key)}]" for q in pipeline.queries)
    if torn:
        yield Misfit(
            ("repartition", "by"),
            f"not all queries say that their events agree on {torn[0]!r} ({shown}), so matches would be torn apart: "
            f"allowed are {options(common) if common else 'none'}",
        )
    elif not common and given.partitions > 1:
        yield Misfit(
            ("repartition", "partitions"),
            f"the queries have no column in common on which their events agree ({shown}), so all events must meet: "
            "partitions = 1 is needed, or [column] in each WHERE",
        )
