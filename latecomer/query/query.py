"""Query: a validated query with its name and consistency level; it is its plan, and prints as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from latecomer.consistency.levels import Level, check_level
from latecomer.errors import ConfigError, QueryError
from latecomer.query.parse import parse
from latecomer.query.plan import Plan
from latecomer.query.types import check
from latecomer.query.validate import validate
from latecomer.stream import Stream

#: The name of a query that was given none.
DEFAULT_NAME = "query"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Query:
    """A pattern query: what to look for, and how long to wait for late events.

    Args:
        text: the query (``docs/language.md``).
        name: what its changes are called in the output; ``"query"`` unless given.
        level: :class:`KSlack`, :class:`Conservative` or :class:`Aggressive`, unless the text ends with CONSISTENCY.

    Raises QueryError, with line and caret, when the text is no query that can be kept; ConfigError for a ``level`` that
    is none. Queries are equal when their plans are. To build one without text see :func:`latecomer.query.seq`.

    >>> query = Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="gap", level=Aggressive("1 min"))
    >>> print(query.text)
    PATTERN SEQ(A a, !B _2, C c)
    WITHIN 10 s
    CONSISTENCY aggressive(max_delay = 1 min)
    """

    plan: Plan
    #: The text as it was given, into which carets point; None for queries built without text.
    source: str | None = field(default=None, compare=False)

    def __init__(self, text: str, *, name: str | None = None, level: Level | None = None) -> None:
        if level is not None:
            check_level(level)
        plan = validate(parse(text), name=check_name(name), level=level, text=text)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "source", text)

    @classmethod
    def from_plan(cls, plan: Plan) -> Query:
        """The query of a plan that was validated before."""
        query = cls.__new__(cls)
        object.__setattr__(query, "plan", plan)
        object.__setattr__(query, "source", None)
        return query

    def check(self, stream: Stream, schema: pa.Schema | None = None) -> None:
        """Check attributes and operations against the columns of a stream; raises QueryError with line and caret.

        Without a schema only what the stream itself decides is checked.
        """
        check(self.plan, stream, schema, self.source)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def level(self) -> Level:
        return self.plan.level

    @property
    def text(self) -> str:
        """The canonical text with its CONSISTENCY clause: ``Query(q.text, name=q.name) == q``."""
        return f"{self.plan.text}\nCONSISTENCY {self.level}"

    def __repr__(self) -> str:
        return f"Query({self.text!r}, name={self.name!r})"

    def __str__(self) -> str:
        return self.text


def queries_of(given: Any) -> tuple[Query, ...]:
    """One query, or several; raises ConfigError for what is none."""
    if isinstance(given, Query):
        return (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"queries={given!r}: give latecomer.Query(text, name=…, level=…), or a list of them")
    queries = tuple(given)
    for query in queries:
        if not isinstance(query, Query):
            raise ConfigError(f"{query!r} is not a query: give latecomer.Query(text, name=…, level=…)")
    return queries


def check_name(name: str | None) -> str:
    """The name of a query, or its default; raises QueryError for what is no name."""
    if name is None:
        return DEFAULT_NAME
    if not isinstance(name, str) or not name.strip():
        raise QueryError(f"{name!r} is not a name for a query", hint="give a text, like name='theft'")
    return name
