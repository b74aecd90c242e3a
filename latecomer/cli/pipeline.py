"""A Kafka pipeline on the command line: what ``check`` says of its file, and how ``run`` runs it.

Logs go to stderr: JSON lines where nobody looks, text with a line of progress below on a terminal, unless the file says
which. Nothing here prints a setting that could be a secret.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from latecomer.cli.serve import load_served
from latecomer.errors import ConfigError, LatecomerError, MissingDependency
from latecomer.texts import read_text

if TYPE_CHECKING:
    from latecomer.connectors.kafka.advice import Partitioning
    from latecomer.connectors.kafka.check import Finding
    from latecomer.connectors.kafka.config import Pipeline
    from latecomer.connectors.kafka.operation.watch import Watch

#: The exit code of a pipeline that cannot run as its cluster is.
UNFIT = 2

_log = logging.getLogger("latecomer.kafka.run")
_STYLES = {"ok": "green", "warning": "yellow", "unknown": "yellow", "error": "bold red"}


def is_pipeline(given: str) -> bool:
    """Whether a name on the command line is that of a pipeline's file.

    >>> is_pipeline("theft.toml"), is_pipeline("theft.query")
    (True, False)
    """
    return given.endswith(".toml")


def refuse(path: str, **given: object) -> None:
    """Raise ConfigError for options that a pipeline takes from its file."""
    for option, value in given.items():
        if value:
            raise ConfigError(
                f"--{option.replace('_', '-')} is for queries on the command line: {path} says what it is about itself"
            )


def check_pipeline(path: str, *, connect: bool, as_json: bool) -> None:
    """Check a pipeline's file and, with ``connect``, its cluster; print what was found.

    Ends with exit code 2 when the cluster does not have what the pipeline needs. One without [kafka] is a service's.
    """
    from latecomer.cli.intervals import Reach
    from latecomer.cli.report import facts, hints, show

    clustered = has_brokers(path)
    if connect and not clustered:
        raise ConfigError(f"--connect asks the cluster of a pipeline, and {path} has no [kafka]: leave it out")
    pipeline = load_pipeline(path) if clustered else load_served(path)
    from latecomer.connectors.kafka.advice import partitioning

    spread = partitioning(pipeline) if clustered else None
    findings: list[Finding] = []
    if connect:
        from latecomer.connectors.kafka.check import look

        with Console(stderr=True).status("Asking the cluster"):
            findings = look(pipeline)
    stream = pipeline.stream
    told = [facts(query.plan, stream.unit, Reach.of(stream, stream.unit)) for query in pipeline.queries]
    minds = hints(stream, [query.plan for query in pipeline.queries], "max_ahead = '1 min' in [stream]")
    if as_json:
        document = {
            "pipeline": _facts(pipeline, spread) | {"hints": minds},
            "queries": told,
            "cluster": [asdict(finding) for finding in findings] if connect else None,
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console = Console()
        _show(pipeline, spread, minds, console)
        for query in told:
            console.print()
            show(query, console)
        if connect:
            _show_findings(findings, console)
    if any(finding.verdict in ("error", "unknown") for finding in findings):
        raise typer.Exit(UNFIT)


def run_pipeline(path: str) -> None:
    """Run one process of a pipeline until SIGTERM or SIGINT; how it ends otherwise is in its log and its exit code."""
    from latecomer.cli.app import exit_code

    pipeline = load_pipeline(path)
    from latecomer.connectors.kafka.advice import partitioning
    from latecomer.connectors.kafka.check import ready
    from latecomer.connectors.kafka.loop import run
    from latecomer.connectors.kafka.operation.explaining import Explaining
    from latecomer.connectors.kafka.operation.http import serving
    from latecomer.connectors.kafka.operation.logs import logging_to
    from latecomer.connectors.kafka.operation.metrics import PipelineMetrics
    from latecomer.connectors.kafka.operation.progress import Progress
    from latecomer.connectors.kafka.operation.signals import ending_on_signals
    from latecomer.connectors.kafka.operation.watch import Listener, Watch

    operation = pipeline.operation
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    terminal = sys.stderr.isatty()
    form = operation.log if operation.log != "auto" else "text" if terminal else "json"
    metrics = PipelineMetrics(pipeline.name)
    explaining = Explaining()
    listeners: list[Listener] = [metrics, explaining]
    with ExitStack() as stack:
        write = None
        if terminal:
            status = stack.enter_context(console.status(Text("starting")))
            listeners.append(Progress(lambda line: status.update(Text(line))))
            write = console.print
        stack.enter_context(logging_to(write, form=form, level=operation.log_level, secrets=pipeline.secrets))
        watch = Watch(listeners)
        stack.enter_context(ending_on_signals(watch, operation.shutdown))
        if operation.port is not None:
            address = stack.enter_context(serving(watch, metrics.registry, explaining, operation.host, operation.port))
            _log.info("serving", extra={"fields": {"address": address}})
        advice = partitioning(pipeline).advice
        if advice is not None:
            _log.warning(advice)
        _log.info(
            "starting",
            extra={"fields": {"pipeline": pipeline.name, "guarantee": pipeline.guarantee, "topics": pipeline.topics}},
        )
        try:
            ready(pipeline, lambda: _waits(watch))
            if not watch.stopping:
                run(pipeline, watch)
        except (LatecomerError, OSError) as error:
            # By the log and not as on other commands, since what the cluster says could hold a secret.
            _log.error(str(error))
            raise typer.Exit(exit_code(error)) from None
        except Exception:  # noqa: BLE001 (told in the log, which loses secrets, and by the exit code)
            _log.exception("a defect ended the process")
            raise typer.Exit(1) from None
        _log.info("stopped")


def _waits(watch: Watch) -> bool:
    """Tell the watch that the process is alive; whether it shall go on."""
    watch.beat()
    return not watch.stopping


def has_brokers(path: str) -> bool:
    """Whether a pipeline's file has [kafka]. Raises ConfigError for what is no file of TOML."""
    _need()
    from latecomer.connectors.kafka.config import parsed

    return "kafka" in parsed(read_text(path, "pipeline"), Path(path).name).values


def load_pipeline(path: str) -> Pipeline:
    """A pipeline of topics. Raises ConfigError for a file without [kafka], PipelineError for all that is wrong."""
    if not has_brokers(path):
        raise ConfigError(
            f"{path} has no [kafka], so there are no topics to read: 'latecomer serve {path}' takes its events by "
            "HTTP; for topics add [kafka], [[input]] and [output]"
        )
    from latecomer.connectors.kafka.config import load

    return load(path)


def _need() -> None:
    try:
        import confluent_kafka  # noqa: F401 (to say what is missing before anything else fails)
        import pydantic  # noqa: F401
    except ImportError as error:
        raise MissingDependency(str(error.name), "kafka", "A Kafka pipeline") from None


def _facts(pipeline: Pipeline, spread: Partitioning | None) -> dict[str, Any]:
    """A pipeline as plain data; ``spread`` is None where it has no brokers."""
    if spread is None:
        return {"name": pipeline.name, "columns": dict(pipeline.columns_written), "state": pipeline.state.uri}
    output, internal = pipeline.output, pipeline.repartition
    return {
        "name": pipeline.name,
        "guarantee": pipeline.guarantee,
        "transaction_seconds": pipeline.transaction,
        "group": pipeline.group,
        "inputs": [
            {"topics": list(given.topics), "format": given.format, "key": list(given.key)} for given in pipeline.inputs
        ],
        "columns": dict(pipeline.columns_written),
        "outputs": {purpose: {"topic": t.topic, "format": t.format} for purpose, t in output.topics.items()},
        "dead_letters": output.dead_letters,
        "key": list(spread.key),
        "independent": spread.independent,
        "repartition": None if internal is None else {"topic": internal.topic, "partitions": internal.partitions},
        "advice": spread.advice,
    }


def _show(pipeline: Pipeline, spread: Partitioning | None, minds: Sequence[str], console: Console) -> None:
    from latecomer.cli.report import grid

    rows = _served(pipeline) if spread is None else _clustered(pipeline, spread)
    rows += [("Mind", Text(hint)) for hint in minds]
    console.print(Text(pipeline.name, style="bold"))
    console.print(Padding(grid(rows), (0, 0, 0, 2), expand=False))


def _served(pipeline: Pipeline) -> list[tuple[str, RenderableType]]:
    return [
        ("Reads", Text("events that come by HTTP, once 'latecomer serve' runs it")),
        ("Writes", Text(f"changes, late events and dead letters for HTTP, and its state, in {pipeline.state.uri}")),
    ]


def _clustered(pipeline: Pipeline, spread: Partitioning) -> list[tuple[str, RenderableType]]:
    output = pipeline.output
    inputs = [f"{', '.join(given.topics)} ({given.format})" for given in pipeline.inputs]
    outputs = [f"{purpose} to {topic.topic} ({topic.format})" for purpose, topic in output.topics.items()]
    return [
        ("Reads", Text("; ".join(inputs))),
        ("Writes", Text(", ".join([*outputs, f"dead letters to {output.dead_letters}"]))),
        ("Promises", Text(f"{pipeline.guarantee}, a commit every {pipeline.transaction * 1000:g} ms")),
        ("Partitions", Text(_partitions(pipeline, spread))),
    ]


def _partitions(pipeline: Pipeline, spread: Partitioning) -> str:
    internal = pipeline.repartition
    if internal is not None:
        by = f"by {', '.join(spread.key)}" if spread.key else "all together"
        return f"through the internal topic {internal.topic} of {internal.partitions}, {by}"
    return spread.advice or f"each for itself: [{', '.join(spread.key)}] is equal in all events of a match"


def _show_findings(findings: list[Finding], console: Console) -> None:
    console.print()
    console.print(Text("The cluster", style="bold"))
    for finding in findings:
        verdict = Text(f"  {finding.verdict:<8}", style=_STYLES[finding.verdict])
        console.print(verdict + Text(f"{finding.subject}: {finding.text}", style=""), highlight=False)
