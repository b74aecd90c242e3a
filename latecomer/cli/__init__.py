"""The command line: ``latecomer check``, ``run``, ``explain`` and ``demo``.

Rules: results go to stdout, everything else to stderr; ``--json`` prints one JSON document and nothing besides; an
error is a text, not a traceback, and its kind is the exit code. The engine is imported by the commands that need it, so
``--help`` answers at once.
"""

from latecomer.cli.app import app


def main() -> None:
    """Entry point of the ``latecomer`` command."""
    app()


__all__ = ["app", "main"]
