"""Expressions of a query: an immutable tree, the same whether it was parsed from text or built in Python.

Every node knows its ``position`` in the text (an offset, or -1 when built in Python); positions do not count when two
nodes are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

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


Expr = Literal | Attribute | Arithmetic | Negative | Comparison | And | Or | Not | In | Between | Like | IsNull


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, left to right."""
    match expr:
        case Literal() | Attribute():
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


def variables(expr: Expr) -> frozenset[str]:
    """The variables that ``expr`` names."""
    return frozenset(a.var for a in attributes(expr))


def equality(expr: Expr) -> tuple[Attribute, Attribute] | None:
    """The two sides of ``a.x = b.y`` with different variables, which may serve as a join key; else None."""
    match expr:
        case Comparison("=", Attribute() as left, Attribute() as right) if left.var != right.var:
            return left, right
    return None
