"""Kinds of values and what may be done with them; the same rules check a query beforehand and evaluate it.

A *kind* is what the language sees of an Arrow type: ``bool int float text time duration``, ``other`` for what it can
only pass on, ``null`` for the constant, ``any`` where no schema is known. The rules:

- numbers compare with numbers, text with text, booleans with booleans; null with everything (the result is unknown);
- ``time - time`` is a duration, ``time ± duration`` a time, ``duration / duration`` a number;
- a number compared with, added to or taken from a time or duration counts in the stream's units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Literal as Choice

import pyarrow as pa

from latecomer.errors import QueryError
from latecomer.query.expressions import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Moment,
    Negative,
    Not,
    Or,
    attributes,
    children,
)
from latecomer.query.plan import Plan
from latecomer.query.syntax import DEFAULT_STRATEGY
from latecomer.query.unparse import write
from latecomer.query.words import write_name
from latecomer.stream import Stream
from latecomer.units import UNITS, Duration

Kind = Choice["bool", "int", "float", "text", "time", "duration", "other", "null", "any"]

#: The attribute that every event has: its event time, whatever the column is called.
EVENT_TIME = "ts"

#: Columns that every change of an interval stream has besides.
INTERVAL_COLUMNS = ("earliest", "latest", "confidence", "confidence_error")

_NUMBERS = ("int", "float")
_TIMES = ("time", "duration")
_WORDS: dict[Kind, str] = {
    "bool": "a boolean",
    "int": "an integer",
    "float": "a number",
    "text": "text",
    "time": "a time",
    "duration": "a duration",
    "other": "a value of another type",
    "null": "NULL",
    "any": "a value of unknown type",
}


def kind_of(column: pa.DataType) -> Kind:
    """The kind of a column's values.

    >>> kind_of(pa.dictionary(pa.int32(), pa.string())), kind_of(pa.timestamp("us", "UTC"))
    ('text', 'time')
    """
    types = pa.types
    if types.is_dictionary(column):
        return kind_of(column.value_type)
    if types.is_boolean(column):
        return "bool"
    if types.is_integer(column):
        return "int"
    if types.is_floating(column) or types.is_decimal(column):
        return "float"
    if types.is_string(column) or types.is_large_string(column) or column == pa.string_view():
        return "text"
    if types.is_timestamp(column) or types.is_date(column):
        return "time"
    if types.is_duration(column):
        return "duration"
    return "null" if types.is_null(column) else "other"


def kind_of_constant(value: object) -> Kind:
    """The kind of a literal's value."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "text"
        case Duration():
            return "duration"
        case Moment():
            return "time"
    raise TypeError(f"no constant: {value!r}")


def comparable(left: Kind, right: Kind) -> bool:
    """Whether ``left = right`` (and ``<``, IN, BETWEEN) makes sense."""
    if left == right or left in ("null", "any") or right in ("null", "any"):
        return True
    return left in (*_NUMBERS, *_TIMES) and right in (*_NUMBERS, *_TIMES) and {left, right} != set(_TIMES)


def arithmetic_kind(op: str, left: Kind, right: Kind) -> Kind | None:
    """The kind of ``left op right``; None where it makes no sense. ``/`` is true division."""
    if left == "any" or right == "any":
        known = left if right == "any" else right
        return None if known in ("bool", "text", "other") else "any"
    if left == "null" or right == "null":
        return None if {left, right} & {"bool", "text", "other"} else "null"
    if left in _NUMBERS and right in _NUMBERS:
        return "float" if op == "/" or "float" in (left, right) else "int"
    if op in "+-":
        return _sum_kind(op, left, right)
    if left == "duration" and right in _NUMBERS and op in "*/":
        return "duration"
    if left in _NUMBERS and right == "duration" and op == "*":
        return "duration"
    if left == right == "duration" and op in "/%":
        return "float" if op == "/" else "duration"
    return None


def _sum_kind(op: str, left: Kind, right: Kind) -> Kind | None:
    """``+`` and ``-`` where a time or a duration takes part; a number beside it counts in the stream's units."""
    allowed = (*_NUMBERS, *_TIMES)
    if left not in allowed or right not in allowed:
        return None
    if left == "time":
        return ("duration" if op == "-" else None) if right == "time" else "time"
    if right == "time":
        return "time" if op == "+" else None
    return "duration"


def check(plan: Plan, stream: Stream, schema: pa.Schema | None, text: str | None = None) -> None:
    """Check every attribute and operation of a plan against the columns of the stream.

    Args:
        schema: the columns; None when they are not known, then only what the query itself shows is checked.
        text: what the query was parsed from, for carets.

    Raises QueryError for unknown columns and for operations that make no sense, such as comparing text with a number.
    """
    groups = [*(c.filter for c in plan.components), *(n.conjuncts for n in plan.negations), plan.conjuncts]
    conditions = [conjunct for group in groups for conjunct in group]
    check_clauses(plan.key, conditions, [expr for _, expr in plan.returns], stream, schema, text)
    if stream.uncertain:
        _Checker(stream, schema, text).over_intervals(plan)


def check_clauses(
    key: Iterable[str],
    conditions: Iterable[Expr],
    values: Iterable[Expr],
    stream: Stream,
    schema: pa.Schema | None,
    text: str | None,
) -> None:
    """What :func:`check` does, for a query that is no plan yet: ``[…]``, the conjuncts of WHERE, and RETURN."""
    checker = _Checker(stream, schema, text)
    for name in key:
        checker.key(name)
    for condition in conditions:
        checker.condition(condition, "WHERE")
    for value in values:
        checker.kind(value)


def result_type(expr: Expr, stream: Stream, schema: pa.Schema) -> pa.DataType:
    """The Arrow type of a RETURN field.

    A bare attribute keeps its column's type (of a dictionary, its value type). Computed times have the type of the
    stream's time column. Durations are Arrow durations where that is a timestamp; else integers of the stream's units,
    or floats where they need not be whole.
    """
    ts_type = _ts_type(stream, schema)
    if isinstance(expr, Attribute):
        if expr.name != EVENT_TIME and expr.name not in schema.names:
            raise _Checker(stream, schema, None).unknown(expr)
        column = ts_type if expr.name == EVENT_TIME else schema.field(expr.name).type
        return column.value_type if pa.types.is_dictionary(column) else column
    match _Checker(stream, schema, None).kind(expr):
        case "bool":
            return pa.bool_()
        case "int":
            return pa.int64()
        case "float":
            return pa.float64()
        case "text":
            return pa.string()
        case "time":
            return ts_type
        case "duration":
            if pa.types.is_timestamp(ts_type):
                return pa.duration(ts_type.unit)
            return pa.int64() if _whole(expr, stream, schema) else pa.float64()
        case _:
            return pa.null()


def _ts_type(stream: Stream, schema: pa.Schema) -> pa.DataType:
    return schema.field(stream.ts).type if stream.ts in schema.names else pa.int64()


def _whole(expr: Expr, stream: Stream, schema: pa.Schema) -> bool:
    """Whether a duration is sure to be a whole number of the stream's units."""
    unit = UNITS[stream.unit_for(_ts_type(stream, schema))]
    match expr:
        case Literal(value=Duration() as length):
            return length.plain or (length.amount / unit).denominator == 1
        case Literal(value=Moment() as moment):
            return Fraction(moment.nanoseconds, unit).denominator == 1
        case Literal(value=value):
            return not isinstance(value, float)
        case Attribute(name=name):
            if name == EVENT_TIME:
                return True
            column = schema.field(name).type
            if pa.types.is_timestamp(column) or pa.types.is_duration(column):
                return UNITS[column.unit] % unit == 0
            return bool(pa.types.is_integer(column))
        case Call():
            return True
        case Arithmetic(op="/"):
            return False
        case _:
            return all(_whole(child, stream, schema) for child in children(expr))


@dataclass
class _Checker:
    """Kinds from the leaves up; ``text`` is None for queries built in Python, then messages quote the expression."""

    stream: Stream
    schema: pa.Schema | None
    text: str | None

    def fail(self, problem: str, expr: Expr, hint: str | None = None) -> QueryError:
        if self.text is None or expr.position < 0:
            return QueryError(f"{problem}: {write(expr)}", hint=hint)
        return QueryError(problem, text=self.text, position=expr.position, hint=hint)

    def over_intervals(self, plan: Plan) -> None:
        """Where an event's time is an interval, a condition on the times of a match's own events holds in some worlds
        and not in others, and that has a probability. Elsewhere a time has no single value. More names of fields are
        taken; ``confidence()`` may call itself what it is.
        """
        for negation in plan.negations:
            tests = (*negation.component.filter, *negation.conjuncts)
            self.no_time(tests, "where an absent component is judged", "PATTERN and WITHIN say when it must not come")
        if plan.strategy != DEFAULT_STRATEGY:
            tests = (*plan.conjuncts, *(f for c in plan.positives for f in c.filter))
            self.no_time(tests, f"under {plan.strategy}", "conditions on times go with skip-till-any-match only")
        said = "earliest(…) and latest(…) say where it may lie"
        self.no_time([expr for _, expr in plan.returns], "in RETURN", said)
        for alias, expr in plan.returns:
            itself = alias == "confidence" and isinstance(expr, Call) and expr.function == "confidence"
            if alias in INTERVAL_COLUMNS and not itself:
                problem = f"a field cannot be called {alias!r}: every change of an interval stream has such a column"
                raise self.fail(problem, expr, f"give it another name with AS; taken are {', '.join(INTERVAL_COLUMNS)}")

    def names(self) -> list[str]:
        """What may stand after the dot, when that is known."""
        assert self.schema is not None
        own = (self.stream.type, self.stream.ts, self.stream.id, self.stream.source)
        return list(dict.fromkeys([*self.schema.names, EVENT_TIME, *(name for name in own if name is not None)]))

    def unknown(self, expr: Attribute) -> QueryError:
        problem, hint = self.missing(expr.name)
        return self.fail(problem, expr, hint)

    def missing(self, name: str) -> tuple[str, str]:
        near = get_close_matches(name, self.names(), 1)
        guess = f" — did you mean {near[0]!r}?" if near else ""
        return f"the stream has no column {name!r}{guess}", f"its columns are {', '.join(self.names())}"

    def no_time(self, exprs: Iterable[Expr], where: str, hint: str) -> None:
        for attribute in (a for expr in exprs for a in attributes(expr) if a.name == EVENT_TIME):
            if self.stream.ts != EVENT_TIME:
                hint += f"; columns may be named, like {attribute.var}.{write_name(self.stream.ts)}"
            problem = f"the time of an event is an interval here: it has no single value {where}"
            raise self.fail(problem, attribute, hint)

    def key(self, name: str) -> None:
        if name == EVENT_TIME and self.stream.uncertain:
            at = -1 if self.text is None else self.text.find("[")
            raise QueryError(
                "[ts] cannot compare times that are intervals",
                text=self.text,
                position=at if at >= 0 else None,
                hint="leave it out; order is said by PATTERN, nearness by WITHIN",
            )
        if self.schema is None or (name in self.names() and name not in self.schema.names):
            return
        at = -1 if self.text is None else self.text.find(write_name(name), self.text.find("["))
        position = at if at >= 0 else None
        if name not in self.schema.names:
            problem, hint = self.missing(name)
            raise QueryError(problem, text=self.text, position=position, hint=hint)
        column = self.schema.field(name).type
        if pa.types.is_nested(column):
            raise QueryError(
                f"[{name}] cannot compare values of type {column}",
                text=self.text,
                position=position,
                hint="an equivalence takes columns of numbers, text, booleans or times",
            )

    def attribute(self, expr: Attribute) -> Kind:
        if expr.name == EVENT_TIME:
            return "time"
        if self.schema is None:
            return "any"
        if expr.name not in self.schema.names:
            if expr.name in self.names():
                return "any"
            raise self.unknown(expr)
        return kind_of(self.schema.field(expr.name).type)

    def condition(self, expr: Expr, where: str) -> None:
        kind = self.kind(expr)
        if kind not in ("bool", "null", "any"):
            hint = "compare it with something, like s.price > 100"
            raise self.fail(f"{where} needs a condition, and this is {_WORDS[kind]}", expr, hint)

    def kind(self, expr: Expr) -> Kind:
        match expr:
            case Literal(value=value):
                return kind_of_constant(value)
            case Attribute():
                return self.attribute(expr)
            case Call(function=function):
                return "float" if function == "confidence" else "time"
            case Negative(operand=operand):
                kind = self.kind(operand)
                if kind in ("int", "float", "duration", "null", "any"):
                    return kind
                raise self.fail(f"'-' needs a number or a duration, and this is {_WORDS[kind]}", operand)
            case Arithmetic(op=op, left=left, right=right):
                return self.arithmetic(expr, op, self.kind(left), self.kind(right))
            case Comparison(op=op, left=left, right=right):
                self.compare(expr, op, self.kind(left), self.kind(right))
            case In(operand=operand, choices=choices):
                kind = self.kind(operand)
                for choice in choices:
                    self.compare(choice, "IN", kind, self.kind(choice))
            case Between(operand=operand, low=low, high=high):
                kind = self.kind(operand)
                self.compare(low, "BETWEEN", kind, self.kind(low))
                self.compare(high, "BETWEEN", kind, self.kind(high))
            case Like(operand=operand):
                kind = self.kind(operand)
                if kind not in ("text", "null", "any"):
                    raise self.fail(f"LIKE needs text, and this is {_WORDS[kind]}", operand)
            case IsNull(operand=operand):
                self.kind(operand)
            case And(operands=operands) | Or(operands=operands):
                for operand in operands:
                    self.condition(operand, "AND" if isinstance(expr, And) else "OR")
            case Not(operand=operand):
                self.condition(operand, "NOT")
        return "bool"

    def arithmetic(self, expr: Expr, op: str, left: Kind, right: Kind) -> Kind:
        kind = arithmetic_kind(op, left, right)
        if kind is None:
            hint = (
                "arithmetic works on numbers; with times: time - time, time ± duration, duration times or by a number"
            )
            raise self.fail(f"cannot compute {_WORDS[left]} {op} {_WORDS[right]}", expr, hint)
        return kind

    def compare(self, expr: Expr, op: str, left: Kind, right: Kind) -> None:
        if not comparable(left, right):
            hint = f"both sides must be of one kind{self.advice(expr, left, right)}"
            raise self.fail(f"cannot compare {_WORDS[left]} with {_WORDS[right]}", expr, hint)
        if "other" in (left, right) and op not in ("=", "<>"):
            column = next((f"{a.var}.{a.name}" for a in attributes(expr)), "the value")
            raise self.fail(f"{column} has no order", expr, "its type allows only =, <> and IS NULL")

    def advice(self, expr: Expr, left: Kind, right: Kind) -> str:
        if {left, right} == {"text", "time"}:
            return ": a constant time is written TIMESTAMP '2013-01-01 10:00'"
        if {left, right} == {"time", "duration"}:
            return ": a difference of two times is a duration"
        if "text" in (left, right) and any(
            isinstance(child, Literal) and isinstance(child.value, str) for child in (expr, *children(expr))
        ):
            return ": numbers, TRUE and FALSE are written without quotes"
        return ""
