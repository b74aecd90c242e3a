"""``latecomer serve``: a pipeline behind HTTP, with a page that shows what it does."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from latecomer.errors import ConfigError, LatecomerError, MissingDependency
from latecomer.texts import read_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from latecomer.serve.config import Served

#: Where the token may be, instead of a file.
TOKEN = "LATECOMER_TOKEN"
#: Loggers of libraries, whose warnings are shown.
_OTHERS = ("uvicorn.error", "asyncio")


def serve(
    pipeline: Annotated[
        Path | None, typer.Argument(metavar="PIPELINE", help="A pipeline's file, with or without \\[kafka].")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where to listen; else 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="0: any free one; else 8321.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the token that clients must know; else ${TOKEN}, if it is set."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show real flights, without a pipeline or a broker.")] = False,
    speed: Annotated[float, typer.Option(min=0.001, help="With --demo: so many times as fast as the flights.")] = 600.0,
    start: Annotated[str | None, typer.Option(metavar="DATE", help="With --demo: the day of 2013 to begin at.")] = None,
) -> None:
    """Serve a pipeline: events in and changes out by HTTP, and a page that shows what happens.

    Prints the address once it accepts connections, and runs until SIGTERM or Ctrl+C. A pipeline without \\[kafka] keeps
    what it has acknowledged in its state folder; one with it reads and writes its topics.

    Example:

    [bold]latecomer serve theft.toml --port 8321[/bold]

    [bold]latecomer serve --demo[/bold]
    """
    if demo == (pipeline is not None):
        raise ConfigError("give either a pipeline's file, or --demo")
    _need()
    variable = _token(token_file)
    address = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    if demo:
        from latecomer.serve import run_demo
        from latecomer.serve.config import Serve

        options = Serve(**address)  # type: ignore[arg-type]
        token = options.checked(variable)
        with _logging("auto", "warning", {token} if token else set()):
            run_demo(options, token, typer.echo, speed=speed, start=start)
        return
    from latecomer.serve import run

    read = load_served(str(pipeline))
    read = read.model_copy(update={"serve": read.serve.model_copy(update=address)}) if address else read
    token = read.serve.checked(variable)
    with _logging(read.operation.log, read.operation.log_level, {*read.secrets, *([token] if token else [])}):
        run(read, token, typer.echo)


def load_served(path: str) -> Served:
    """A pipeline that can be served, with brokers or without. Raises PipelineError with all that is wrong in it."""
    _need()
    from latecomer.serve.config import load

    return load(path)


def _token(file: Path | None) -> str | None:
    """The token of the command line or the environment; raises ConfigError, without it, where it cannot be had."""
    if file is not None:
        return read_text(file, "token file").strip()
    return os.environ.get(TOKEN) or None


def _need() -> None:
    try:
        import confluent_kafka  # noqa: F401 (a pipeline's file is checked by it)
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import pydantic  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(str(error.name), "serve", "Serving a pipeline") from None


@contextmanager
def _logging(
    form: Literal["auto", "json", "text"], level: Literal["debug", "info", "warning", "error"], secrets: Collection[str]
) -> Iterator[None]:
    """Logs to stderr without secrets: the pipeline's, the service's, and warnings of libraries."""
    from latecomer.connectors.kafka.operation.logs import ROOT, logging_to

    shown = form if form != "auto" else "text" if sys.stderr.isatty() else "json"
    with logging_to(None, form=shown, level=level, secrets=frozenset(secrets)):
        handlers = list(logging.getLogger(ROOT).handlers)
        loggers = [logging.getLogger(name) for name in ("latecomer.serve", *_OTHERS)]
        for logger in loggers:
            logger.handlers[:], logger.propagate = handlers, False
            logger.setLevel(logging.WARNING if logger.name in _OTHERS else level.upper())
        try:
            yield
        except LatecomerError:
            raise
        finally:
            for logger in loggers:
                logger.handlers.clear()
