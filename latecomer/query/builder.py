"""Queries built in Python, without text; the result is the same plan that the text would give.

    s, c, e = event("Shelf", "s"), absent("Counter", "c"), event("Exit", "e")
    theft = (
        seq(s, c, e)
        .same("tag")
        .where(e.price > 100, c.till != "training")
        .within("10 minutes")
        .returns(tag=s.tag, taken=s.ts, left=e.ts)
        .query(name="theft", level=Aggressive(max_delay="5 minutes"))
    )

Rule: everything here is immutable, and each method gives a new object; nothing is checked before :meth:`Pattern.query`,
but for what could not be written down at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import isfinite
from numbers import Integral, Real
from typing import Any

from latecomer.consistency.levels import Level, check_level
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
)
from latecomer.query.plan import Confidence
from latecomer.query.query import Query, check_name
from latecomer.query.syntax import Draft, Returned, Step
from latecomer.query.unparse import write
from latecomer.query.validate import validate
from latecomer.query.words import INT_MAX, INT_MIN
from latecomer.units import Duration, DurationLike

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def event(type: str, var: str | None = None) -> Event:
    """A component that must occur; its attributes are Python attributes, or ``s["odd name"]``.

    >>> s = event("Shelf", "s")
    >>> (s.price > 100) & s["odd name"].is_null()
    s.price > 100 AND s."odd name" IS NULL
    """
    return Event(type, var, negated=False)


def absent(type: str, var: str | None = None) -> Event:
    """A component that must not occur: ``!Counter c``."""
    return Event(type, var, negated=True)


def confidence() -> Term:
    """How probable the match is, for RETURN: 1.0 where all times are exact."""
    return Term(Call("confidence", None))


def earliest(event: Event) -> Term:
    """The earliest time that the event may have in the match, for RETURN.

    >>> earliest(event("Shelf", "s"))
    earliest(s)
    """
    return event._call("earliest")


def latest(event: Event) -> Term:
    """The latest time that the event may have in the match, for RETURN."""
    return event._call("latest")


def seq(*events: Event) -> Pattern:
    """The pattern of these components, one strictly after the other.

    >>> from latecomer.consistency.levels import Conservative
    >>> pattern = seq(event("A", "a"), absent("B"), event("C", "c")).same("k").within("10 s")
    >>> print(pattern.query(level=Conservative()))
    PATTERN SEQ(A a, !B _2, C c)
    WHERE [k]
    WITHIN 10 s
    CONSISTENCY conservative
    """
    for part in events:
        if not isinstance(part, Event):
            raise QueryError(
                f"seq() takes events, not {part!r}", hint="make them with event('Shelf', 's') or absent(…)"
            )
    return Pattern(Draft(tuple(Step(e._type, e._var, e._negated) for e in events)))


class Event:
    """One component of a pattern, made by :func:`event` or :func:`absent`."""

    __slots__ = ("_negated", "_type", "_var")

    def __init__(self, type: str, var: str | None, *, negated: bool) -> None:
        for what, name in (("an event type", type), ("a variable", var)):
            if name is not None and (not isinstance(name, str) or not name):
                raise QueryError(f"{name!r} is not the name of {what}", hint="give a text, like event('Shelf', 's')")
        self._type, self._var, self._negated = type, var, negated

    def __getattr__(self, name: str) -> Term:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Term:
        if self._var is None:
            raise QueryError(
                f"the component {self._type!r} has no variable, so its attribute {name!r} cannot be named",
                hint=f"give it one, like event({self._type!r}, {self._type[0].lower()!r})",
            )
        if not isinstance(name, str) or not name:
            raise QueryError(f"{name!r} is not the name of an attribute", hint="give a text, like s['odd name']")
        return Term(Attribute(self._var, name))

    def _call(self, function: str) -> Term:
        if self._var is None:
            raise QueryError(
                f"the component {self._type!r} has no variable, so {function}() cannot name it",
                hint=f"give it one, like event({self._type!r}, {self._type[0].lower()!r})",
            )
        return Term(Call(function, self._var))

    def __repr__(self) -> str:
        return f"{'!' * self._negated}{self._type} {self._var or ''}".rstrip()


class Term:
    """An expression under construction; operators and methods give new ones.

    ``& | ~`` are AND, OR and NOT: put comparisons beside them into parentheses.
    """

    __slots__ = ("_expr",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def __repr__(self) -> str:
        return write(self._expr)

    def __bool__(self) -> bool:
        raise QueryError(
            f"{self!r} is true or false only when events come, so 'and', 'or', 'not', 'in' and a < b < c cannot use it",
            hint="write & | ~ with parentheses, .isin(…) and .between(…)",
        )

    def _compare(self, op: str, other: Any) -> Term:
        if other is None:
            raise QueryError(f"{self!r} {op} None would never be true", hint="write .is_null(), or ~ in front of it")
        return Term(Comparison(op, self._expr, constant(other)))

    def __eq__(self, other: Any) -> Term:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: Any) -> Term:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: Any) -> Term:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Term:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Term:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Term:
        return self._compare(">=", other)

    def __add__(self, other: Any) -> Term:
        return Term(Arithmetic("+", self._expr, constant(other)))

    def __radd__(self, other: Any) -> Term:
        return Term(Arithmetic("+", constant(other), self._expr))

    def __sub__(self, other: Any) -> Term:
        return Term(Arithmetic("-", self._expr, constant(other)))

    def __rsub__(self, other: Any) -> Term:
        return Term(Arithmetic("-", constant(other), self._expr))

    def __mul__(self, other: Any) -> Term:
        return Term(Arithmetic("*", self._expr, constant(other)))

    def __rmul__(self, other: Any) -> Term:
        return Term(Arithmetic("*", constant(other), self._expr))

    def __truediv__(self, other: Any) -> Term:
        return Term(Arithmetic("/", self._expr, constant(other)))

    def __rtruediv__(self, other: Any) -> Term:
        return Term(Arithmetic("/", constant(other), self._expr))

    def __mod__(self, other: Any) -> Term:
        return Term(Arithmetic("%", self._expr, constant(other)))

    def __rmod__(self, other: Any) -> Term:
        return Term(Arithmetic("%", constant(other), self._expr))

    def __neg__(self) -> Term:
        return Term(Negative(self._expr))

    def __and__(self, other: Any) -> Term:
        first = self._expr.operands if isinstance(self._expr, And) else (self._expr,)
        return Term(And((*first, constant(other))))

    def __or__(self, other: Any) -> Term:
        first = self._expr.operands if isinstance(self._expr, Or) else (self._expr,)
        return Term(Or((*first, constant(other))))

    def __invert__(self) -> Term:
        return Term(Not(self._expr))

    def isin(self, *choices: Any) -> Term:
        """``IN (…)``; takes the choices one by one, or as one list, tuple or set."""
        if len(choices) == 1 and isinstance(choices[0], (list, tuple, set, frozenset)):
            choices = tuple(choices[0])
        if not choices:
            raise QueryError(f"{self!r} IN () would never be true", hint="give at least one choice")
        return Term(In(self._expr, tuple(map(constant, choices))))

    def between(self, low: Any, high: Any) -> Term:
        """``BETWEEN low AND high``, both ends included."""
        return Term(Between(self._expr, constant(low), constant(high)))

    def like(self, pattern: str) -> Term:
        r"""``LIKE``: ``%`` any text, ``_`` one character, ``\`` escapes."""
        if not isinstance(pattern, str):
            raise QueryError(f"LIKE takes a text, not {pattern!r}")
        return Term(Like(self._expr, pattern))

    def is_null(self) -> Term:
        """``IS NULL``; ``~`` in front gives IS NOT NULL."""
        return Term(IsNull(self._expr))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A query under construction, made by :func:`seq`."""

    draft: Draft

    def same(self, *attributes: str) -> Pattern:
        """``[a, b]``: all components, negated ones too, agree on these attributes."""
        for name in attributes:
            if not isinstance(name, str) or not name:
                raise QueryError(f"same() takes names of attributes, not {name!r}", hint="like .same('tag')")
        return Pattern(replace(self.draft, key=tuple(dict.fromkeys((*self.draft.key, *attributes)))))

    def where(self, *conditions: Term | bool) -> Pattern:
        """Add conditions, joined by AND."""
        parts = [part for condition in conditions for part in _split(constant(condition))]
        return Pattern(replace(self.draft, conjuncts=(*self.draft.conjuncts, *parts)))

    def within(self, window: DurationLike) -> Pattern:
        """At most this may pass between the first and the last event of a match."""
        return Pattern(replace(self.draft, window=Duration.of(window)))

    def returns(self, *attributes: Term, **fields: Any) -> Pattern:
        """Fields of the output: attributes under their own name, or ``name=expression``."""
        items = [Returned(constant(term), None) for term in attributes]
        items += [Returned(constant(term), alias) for alias, term in fields.items()]
        return Pattern(replace(self.draft, returns=(*self.draft.returns, *items)))

    def strategy(self, name: str) -> Pattern:
        """Which combinations count: ``"skip-till-any-match"`` (the default) or ``"skip-till-next-match"``."""
        if not isinstance(name, str):
            raise QueryError(f"{name!r} is not the name of a strategy", hint="like .strategy('skip-till-next-match')")
        return Pattern(replace(self.draft, strategy=name.lower().replace("_", "-")))

    def confidence(
        self, *, at_least: float | None = None, more_than: float | None = None, sampled: float | None = None
    ) -> Pattern:
        """How probable a match must be, from 0 to 1: at least so much, or more than so much.

        ``sampled``: where computing it exactly would cost too much, sample it with this standard error.
        """
        least = more_than if at_least is None else at_least
        if least is None or (at_least is not None and more_than is not None):
            raise QueryError("confidence() takes one limit", hint="like .confidence(at_least=0.8) or (more_than=0.5)")
        for value in (least, sampled):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1
            ):
                raise QueryError(f"{value!r} is no probability", hint="allowed are numbers from 0 to 1")
        wanted = Confidence(float(least), at_least is not None, None if sampled is None else float(sampled))
        return Pattern(replace(self.draft, confidence=wanted))

    def query(self, *, level: Level, name: str | None = None) -> Query:
        """The finished query; raises QueryError when it is none that can be kept."""
        plan = validate(self.draft, name=check_name(name), level=check_level(level), text=None)
        return Query.from_plan(plan)


def constant(value: Any) -> Expr:
    """The expression for a term or a Python constant.

    Datetimes without zone are UTC; timedeltas and :class:`Duration` are durations. Raises QueryError for anything else.
    """
    match value:
        case Term():
            return value._expr
        case None | bool() | str():
            return Literal(value)
        case Duration():
            return _number(value.amount) if value.plain else Literal(value)
        case timedelta():
            length = Duration.of(abs(value))
            return Literal(length) if value >= timedelta(0) else Negative(Literal(length))
        case datetime():
            since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
            return Literal(Moment((since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000))
        case date():
            return constant(datetime(value.year, value.month, value.day, tzinfo=UTC))
        case Real():
            return _number(value)
        case Event():
            raise QueryError(f"{value!r} is an event, not a value", hint="name one of its attributes, like s.ts")
    kinds = "None, bool, int, float, str, datetime or timedelta"
    raise QueryError(f"{value!r} cannot stand in a query", hint=f"allowed are attributes, and constants: {kinds}")


def _number(value: Fraction | Any) -> Literal:
    if isinstance(value, Integral) or (isinstance(value, Fraction) and value.denominator == 1):
        whole = int(value)
        if not INT_MIN <= whole <= INT_MAX:
            raise QueryError(
                f"{whole} is too large for an integer of 64 bits", hint=f"allowed are {INT_MIN} to {INT_MAX}"
            )
        return Literal(whole)
    real = float(value)
    if not isfinite(real):
        raise QueryError(f"{real} cannot stand in a query", hint="give a finite number")
    return Literal(real)


def _split(expr: Expr) -> Iterable[Expr]:
    if isinstance(expr, And):
        for operand in expr.operands:
            yield from _split(operand)
    else:
        yield expr
