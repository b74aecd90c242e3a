"""Expressions of a query: an immutable tree, the same whether it was parsed from text or built in Python.

Every node knows its ``position`` in the text (an offset, or -1 when built in Python); positions do not count when two
nodes are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

from latecomer.units import Duration


def _at() -> int:
    return field(default=-1, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: None, bool, int, float, str, a Duration, or a :class:`Moment`."""

    value: bool | int | float | str | Duration | Moment | None
    position: int = _at()

    # In Python 1 == 1.0 == True; in a query they are different constants.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time of a TIMESTAMP literal: exact nanoseconds since 1970-01-01 UTC."""

    nanoseconds: int
    text: str = field(default="", compare=False)

    def units(self, per_unit: int) -> Fraction:
        """The moment counted in units of ``per_unit`` nanoseconds."""
        return Fraction(self.nanoseconds, per_unit)


@dataclass(frozen=True, slots=True)
class Attribute:
    """``var.name``: an attribute of the event bound to a variable. ``name`` is ``ts`` for the event's time."""

    var: str
    name: str
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Call:
    """``earliest(var)`` or ``latest(var)``: between which times the event may lie in the match; ``confidence()``: how
    probable the match is (``var`` is None). Only RETURN may ask for them.
    """

    function: str
    var: str | None
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``left op right`` with op in ``+ - * / %``."""

    op: str
    left: Expr
    right: Expr
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Negative:
    """``-operand`` of a number or duration."""

    operand: Expr
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left op right`` with op in ``= <> < <= > >=``."""

    op: str
    left: Expr
    right: Expr
    position: int = _at()


@dataclass(frozen=True, slots=True)
class And:
    operands: tuple[Expr, ...]
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Or:
    operands: tuple[Expr, ...]
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expr
    position: int = _at()


@dataclass(frozen=True, slots=True)
class In:
    """``operand [NOT] IN (choices)``; the NOT form is ``Not(In(…))``."""

    operand: Expr
    choices: tuple[Expr, ...]
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Between:
    """``operand BETWEEN low AND high`` (both ends included); the NOT form is ``Not(Between(…))``."""

    operand: Expr
    low: Expr
    high: Expr
    position: int = _at()


@dataclass(frozen=True, slots=True)
class Like:
    """``operand LIKE pattern``: ``%`` any text, ``_`` one character, ``\\`` escapes.

    The NOT form is ``Not(Like(…))``.
    """

    operand: Expr
    pattern: str
    position: int = _at()


@dataclass(frozen=True, slots=True)
class IsNull:
    """``operand IS NULL``; ``IS NOT NULL`` is ``Not(IsNull(…))``. Never unknown."""

    operand: Expr
    position: int = _at()


Expr = Literal | Attribute | Call | Arithmetic | Negative | Comparison | And | Or | Not | In | Between | Like | IsNull


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, left to right."""
    match expr:
        case Literal() | Attribute() | Call():
            return ()
        case Arithmetic(left=left, right=right) | Comparison(left=left, right=right):
            return (left, right)
        case And(operands=operands) | Or(operands=operands):
            return operands
        case In(operand=operand, choices=choices):
            return (operand, *choices)
        case Between(operand=operand, low=low, high=high):
            return (operand, low, high)
        case Negative(operand=operand) | Not(operand=operand) | Like(operand=operand) | IsNull(operand=operand):
            return (operand,)


def attributes(expr: Expr) -> Iterator[Attribute]:
    """All attribute references in ``expr``, left to right."""
    if isinstance(expr, Attribute):
        yield expr
    for child in children(expr):
        yield from attributes(child)


def calls(expr: Expr) -> Iterator[Call]:
    """All function calls in ``expr``, left to right."""
    if isinstance(expr, Call):
        yield expr
    for child in children(expr):
        yield from calls(child)


def parts(expr: Expr) -> Iterator[Attribute | Call]:
    """All that names a variable in ``expr``."""
    yield from attributes(expr)
    yield from calls(expr)


def variables(expr: Expr) -> frozenset[str]:
    """The variables that ``expr`` names."""
    return frozenset(part.var for part in parts(expr) if part.var is not None)


def replaced(expr: Expr, other: Callable[[Call], Expr]) -> Expr:
    """``expr`` with ``other(call)`` in the place of each call."""

    def new(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(new, value))
        return replaced(value, other) if isinstance(value, Expr) else value

    if isinstance(expr, Call):
        return other(expr)
    return replace(expr, **{f.name: new(getattr(expr, f.name)) for f in fields(expr) if f.name != "position"})


def renamed(expr: Any, name: Callable[[str], str]) -> Any:
    """``expr`` with ``name(var)`` for each variable of its attributes."""
    if isinstance(expr, Attribute):
        return replace(expr, var=name(expr.var))
    if isinstance(expr, tuple):
        return tuple(renamed(e, name) for e in expr)
    if is_dataclass(expr) and not isinstance(expr, type):
        return replace(expr, **{f.name: renamed(getattr(expr, f.name), name) for f in fields(expr)})
    return expr


def equality(expr: Expr) -> tuple[Attribute, Attribute] | None:
    """The two sides of ``a.x = b.y`` with different variables, which may serve as a join key; else None."""
    match expr:
        case Comparison("=", Attribute() as left, Attribute() as right) if left.var != right.var:
            return left, right
    return None
