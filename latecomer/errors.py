"""The exception tree. Each message says what was given, what is allowed, and what to do.

    LatecomerError
    ├── QueryError          a query that cannot be understood or kept (carries the line and the column)
    ├── ConfigError         an option of a stream, level, runtime or sink that makes no sense
    ├── SchemaError         a batch whose columns are missing or have the wrong type
    ├── StateError          a snapshot or state folder that cannot be used, or a call out of order
    └── MissingDependency   an optional package that is not installed

Bad *rows* never raise: they go to the late output (see ``docs/late-events.md``).
"""

from __future__ import annotations

from collections.abc import Iterable


class LatecomerError(Exception):
    """Root of all errors that Latecomer raises on purpose."""


class QueryError(LatecomerError):
    """A query is wrong; ``line`` and ``column`` count from 1, and the message draws a caret below the place.

    >>> raise QueryError("unknown variable 'x'", text="WHERE x.a > 1", position=6, hint="declared: s, e")
    Traceback (most recent call last):
    ...
    latecomer.errors.QueryError: unknown variable 'x'
      line 1, column 7
        WHERE x.a > 1
              ^
      declared: s, e
    """

    def __init__(
        self, problem: str, *, text: str | None = None, position: int | None = None, hint: str | None = None
    ) -> None:
        self.problem = problem
        self.hint = hint
        self.line: int | None = None
        self.column: int | None = None
        lines = [problem]
        if text is not None and position is not None:
            position = min(max(position, 0), len(text))
            start = text.rfind("\n", 0, position) + 1
            end = text.find("\n", position)
            shown = text[start : end if end >= 0 else len(text)]
            self.line = text.count("\n", 0, position) + 1
            self.column = position - start + 1
            pad = "".join("\t" if c == "\t" else " " for c in shown[: self.column - 1])
            lines += [f"  line {self.line}, column {self.column}", f"    {shown}", f"    {pad}^"]
        if hint:
            lines.append(f"  {hint}")
        super().__init__("\n".join(lines))


class ConfigError(LatecomerError):
    """An option makes no sense."""


class SchemaError(LatecomerError):
    """A batch does not have the columns, or the column types, that the stream declares."""


class StateError(LatecomerError):
    """A saved state cannot be used, or a call came out of order."""


class MissingDependency(LatecomerError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'latecomer[{extra}]'")


def options(values: Iterable[object]) -> str:
    """How error messages list what is allowed: ``a, b or c``."""
    names = [str(v) for v in values]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}" if names else "nothing"
