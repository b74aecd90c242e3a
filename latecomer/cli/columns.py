"""The options of commands that read a file of events: which column is what, and what is known about its times.

A command takes them as one argument, ``columns: StreamOptions = NAMES``, and is decorated with :func:`stream_options`;
each field below then is an option of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from latecomer.stream import Stream

_INTERVALS = "Uncertain times"


@dataclass(frozen=True)
class StreamOptions:
    """What options say of a file's columns, as they were given."""

    type: Annotated[str, typer.Option("--type", metavar="COLUMN", help="Column of the event types.")] = "type"
    ts: Annotated[str, typer.Option("--ts", metavar="COLUMN", help="Column of the event times.")] = "ts"
    id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COLUMN", help="Column of the event ids; else events are numbered from 0 as they arrive."
        ),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="COLUMN", help="Column of the events' sources; late events are told by source."
        ),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option("--unit", help="Unit of event times that are plain numbers: ns, us, ms, s, min, h or d."),
    ] = None
    lower: Annotated[
        str | None,
        typer.Option(
            "--lower",
            metavar="COLUMN",
            help="Column of the first time at which the event may have happened, in place of --ts.",
            rich_help_panel=_INTERVALS,
        ),
    ] = None
    upper: Annotated[
        str | None,
        typer.Option("--upper", metavar="COLUMN", help="Column of the last such time.", rich_help_panel=_INTERVALS),
    ] = None
    longest: Annotated[
        str | None,
        typer.Option(
            "--longest", metavar="LENGTH", help="How far apart the two are at most.", rich_help_panel=_INTERVALS
        ),
    ] = None
    uncertainty: Annotated[
        list[str] | None,
        typer.Option(
            "--uncertainty",
            metavar="[SOURCE=]LENGTH",
            help="By how much times may be wrong, like '200 ms'; of one source, 'sensor-7=200 ms'. May be repeated.",
            rich_help_panel=_INTERVALS,
        ),
    ] = None
    granularity: Annotated[
        str | None,
        typer.Option(
            "--granularity",
            metavar="LENGTH",
            help="To what times were rounded, like '1 min'.",
            rich_help_panel=_INTERVALS,
        ),
    ] = None
    rounding: Annotated[
        str,
        typer.Option(
            "--rounding", metavar="down|nearest|up", help="How they were rounded.", rich_help_panel=_INTERVALS
        ),
    ] = "down"
    distribution: Annotated[
        list[str] | None,
        typer.Option(
            "--distribution",
            metavar="[SOURCE=]SHAPE",
            help="How likely the times of an interval are: uniform, triangular, 'triangular(0.2)', normal, 'normal(2)' "
            "or weights of its parts, 1,3,1. May be repeated for sources.",
            rich_help_panel=_INTERVALS,
        ),
    ] = None
    pmf: Annotated[
        str | None,
        typer.Option(
            "--pmf",
            metavar="COLUMN",
            help="Column of lists with a weight for each unit of the event's interval.",
            rich_help_panel=_INTERVALS,
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not what they are by default."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value and value != _DEFAULTS[name]}

    @property
    def time(self) -> str:
        """The column by which events are ordered."""
        return self.ts if self.lower is None else self.lower

    def stream(self, **more: Any) -> Stream:
        """The stream that is meant; ``more`` are further options of it."""
        from latecomer.stream import Stream

        options = {field.name: getattr(self, field.name) for field in fields(self)}  # of the same names as Stream's
        options["uncertainty"] = _by_source("uncertainty", self.uncertainty, str)
        options["distribution"] = _by_source("distribution", self.distribution, _shape)
        return Stream(**options, **more)


#: As a command declares them: all are options, and what is not given is as it is by default.
NAMES = StreamOptions()
_DEFAULTS = {field.name: field.default for field in fields(StreamOptions)}


def _by_source(option: str, given: Sequence[str] | None, read: Callable[[str], Any]) -> Any:
    """``["200 ms"]`` as one value, ``["a=1 s", "5 ms"]`` as values by source, None for all others."""
    if not given:
        return None
    values: dict[str | None, Any] = {}
    for text in given:
        source, separator, value = text.rpartition("=")
        name = source if separator else None
        if name in values:
            whom = "all sources that are not named" if name is None else f"source {name!r}"
            raise ConfigError(f"--{option} is given twice for {whom}: give it once")
        values[name] = read(value.strip())
    return values[None] if values.keys() == {None} else values


def _shape(text: str) -> Any:
    """``1,3,1`` as weights, all else as it is."""
    if "," not in text:
        return text
    try:
        return [float(weight) for weight in text.split(",")]
    except ValueError:
        raise ConfigError(f"--distribution {text!r}: weights are numbers, like 1,3,1") from None


def stream_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``columns: StreamOptions`` an option for each field, in the place of that argument."""
    signature = inspect.signature(command, eval_str=True)
    hints = get_type_hints(StreamOptions, include_extras=True)
    options = [
        inspect.Parameter(f"{name}_", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in _DEFAULTS.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += (
            options if parameter.name == "columns" else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        )

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        columns = StreamOptions(**{name: given.pop(f"{name}_") for name in _DEFAULTS})
        command(columns=columns, **given)

    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what Typer reads
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped
