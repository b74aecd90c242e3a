"""The application: its commands, and what their errors become.

| exit code | meaning |
|---|---|
| 0 | all is well |
| 1 | an unexpected error: a defect, shown with its traceback; or damage that ``state verify`` has found |
| 2 | a wrong query, option or file name, or a package that is missing |
| 3 | an input whose columns are missing or of the wrong type |
| 4 | a state that cannot be used |
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from latecomer.cli.advise import advise
from latecomer.cli.check import check
from latecomer.cli.demo import demo
from latecomer.cli.explain import explain
from latecomer.cli.folders import state
from latecomer.cli.rebucket import rebucket
from latecomer.cli.run import run
from latecomer.cli.serve import serve
from latecomer.errors import LatecomerError, SchemaError, StateError

EXIT_CODES = (
    "Exit codes: 0 all is well; 1 unexpected error, or damage found by state verify; 2 wrong query, option or file "
    "name; 3 wrong columns in an input; 4 unusable state."
)


def exit_code(error: LatecomerError | OSError) -> int:
    """The exit code for an error; a file that cannot be read or written counts as a wrong file name."""
    if isinstance(error, SchemaError):
        return 3
    return 4 if isinstance(error, StateError) else 2


def _said(error: LatecomerError | OSError) -> str:
    """The error in words: which file, and what the system says of it."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)!r} cannot be used: {error.strerror}"
    return str(error)


class Commands(TyperGroup):
    """Prints the project's own errors as text and gives each kind its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (LatecomerError, OSError) as error:
            if isinstance(error, BrokenPipeError):  # whoever read the output has gone: no error of ours
                raise
            # A message may hold brackets, which are no markup, and a caret, which must stay below its place.
            message = Text("error: ", style="bold red") + Text(_said(error))
            Console(stderr=True, soft_wrap=True).print(message, highlight=False)
            ctx.exit(exit_code(error))


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
app.command()(check)
app.command()(run)
app.command()(explain)
app.command()(advise)
app.command()(serve)
app.command()(demo)
state.command()(rebucket)
app.add_typer(state, name="state")


def _version(asked: bool) -> None:
    if asked:
        from latecomer import __version__

        typer.echo(f"latecomer {__version__}")
        raise typer.Exit


@app.callback()
def latecomer(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Find patterns in event streams whose events arrive late and out of order."""
