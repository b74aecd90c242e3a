"""Canonical text: expressions and plans written so that reading them back gives an equal tree.

Parentheses are written only where the grammar needs them. The order of WHERE is fixed (equivalences, filters,
conditions of negations, conditions of the match), so two texts with the same plan have the same canonical text.
"""

from __future__ import annotations

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
from latecomer.query.plan import Confidence, Plan
from latecomer.query.syntax import DEFAULT_STRATEGY
from latecomer.query.words import write_moment, write_name, write_string
from latecomer.units import Duration

# How tightly a node binds; an operand that binds less than its place asks for goes into parentheses.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _UNARY, _ATOM = range(1, 9)


def write(expr: Expr) -> str:
    """The text of an expression.

    >>> from latecomer.query.expressions import Attribute, Comparison, Literal, Not
    >>> write(Not(Comparison("<>", Attribute("c", "till"), Literal("it's"))))
    "NOT c.till <> 'it''s'"
    """
    return _written(expr, _OR)


def write_plan(plan: Plan) -> str:
    """The text of a plan, without name and level (see :attr:`Plan.text`)."""
    steps = ", ".join(f"{'!' * c.negated}{write_name(c.type)} {write_name(c.var)}" for c in plan.components)
    lines = [f"PATTERN SEQ({steps})"]
    conditions = [f"[{', '.join(map(write_name, plan.key))}]"] if plan.key else []
    groups = [*(c.filter for c in plan.components), *(n.conjuncts for n in plan.negations), plan.conjuncts]
    conditions += [_written(conjunct, _NOT) for group in groups for conjunct in group]
    if conditions:
        lines.append("WHERE " + " AND ".join(conditions))
    lines.append(f"WITHIN {plan.window}")
    if plan.returns:
        lines.append("RETURN " + ", ".join(f"{write(expr)} AS {write_name(alias)}" for alias, expr in plan.returns))
    if plan.strategy != DEFAULT_STRATEGY:
        lines.append(f"STRATEGY {plan.strategy}")
    if plan.confidence != Confidence():
        lines.append(f"CONFIDENCE {plan.confidence}")
    return "\n".join(lines)


def _written(expr: Expr, place: int) -> str:
    binds, text = _form(expr)
    return text if binds >= place else f"({text})"


def _form(expr: Expr) -> tuple[int, str]:
    match expr:
        case Or(operands=operands):
            return _OR, " OR ".join(_written(o, _AND) for o in operands)
        case And(operands=operands):
            return _AND, " AND ".join(_written(o, _NOT) for o in operands)
        case Not(operand=In() | Between() | Like() | IsNull() as inner):
            return _PREDICATE, _predicate(inner, "NOT ")
        case Not(operand=operand):
            return _NOT, f"NOT {_written(operand, _NOT)}"
        case In() | Between() | Like() | IsNull():
            return _PREDICATE, _predicate(expr, "")
        case Comparison(op=op, left=left, right=right):
            return _PREDICATE, f"{_written(left, _SUM)} {op} {_written(right, _SUM)}"
        case Arithmetic(op=op, left=left, right=right):
            binds = _SUM if op in "+-" else _PRODUCT
            return binds, f"{_written(left, binds)} {op} {_written(right, binds + 1)}"
        case Negative(operand=operand):
            # Not _UNARY: two minus signs in a row would begin a comment.
            return _UNARY, f"-{_written(operand, _ATOM)}"
        case Attribute(var=var, name=name):
            return _ATOM, f"{write_name(var)}.{write_name(name)}"
        case Call(function=function, var=var):
            return _ATOM, f"{function}({'' if var is None else write_name(var)})"
        case Literal(value=value):
            return _constant(value)


def _predicate(expr: In | Between | Like | IsNull, negation: str) -> str:
    operand = _written(expr.operand, _SUM)
    match expr:
        case In(choices=choices):
            return f"{operand} {negation}IN ({', '.join(_written(c, _SUM) for c in choices)})"
        case Between(low=low, high=high):
            return f"{operand} {negation}BETWEEN {_written(low, _SUM)} AND {_written(high, _SUM)}"
        case Like(pattern=pattern):
            return f"{operand} {negation}LIKE {write_string(pattern)}"
        case IsNull():
            return f"{operand} IS {negation}NULL"


def _constant(value: bool | int | float | str | Duration | Moment | None) -> tuple[int, str]:
    match value:
        case None | bool():
            return _ATOM, "NULL" if value is None else str(value).upper()
        case int() | float():
            return (_UNARY, repr(value)) if repr(value).startswith("-") else (_ATOM, repr(value))
        case str():
            return _ATOM, write_string(value)
        case Duration():
            return _ATOM, str(value)
        case Moment():
            return _ATOM, f"TIMESTAMP '{write_moment(value)}'"
