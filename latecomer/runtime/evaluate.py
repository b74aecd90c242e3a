"""Evaluation: expressions over columns of candidate rows, with SQL's three-valued logic.

An expression is compiled once into nested closures and then called for every batch, however small; subexpressions
without attributes are computed when it is compiled. Whether operations make sense was checked before, with the schema
(:func:`latecomer.query.types.check`); what slips through raises QueryError here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
from latecomer.query.types import EVENT_TIME, arithmetic_kind, kind_of_constant
from latecomer.runtime.values import (
    Value,
    both,
    compare,
    compute,
    count,
    either,
    load,
    negate,
    opposite,
    store,
    unknown,
)
from latecomer.units import UNITS, Duration

#: Gives the column of an attribute for all candidate rows; ``ts`` as int64 in the stream's unit, others as they are.
Lookup = Callable[[Attribute], pa.Array]
#: Where a condition is true, for a lookup and the number of candidate rows.
Condition = Callable[[Lookup, int], npt.NDArray[np.bool_]]
#: The values of an expression, for a lookup and the number of candidate rows.
Column = Callable[[Lookup, int], pa.Array]

_Node = Callable[[Lookup], Value]

#: So many compiled expressions are remembered, so that compiling one again costs no more than looking it up.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Times:
    """How a stream counts time: ``unit`` (as in ``Stream.unit``) and the Arrow type of its time column."""

    unit: str
    type: pa.DataType

    @property
    def scale(self) -> int:
        """Nanoseconds per unit."""
        return UNITS[self.unit]


@lru_cache(_REMEMBERED)
def compile_truth(expr: Expr, times: Times) -> Condition:
    """Compile a condition: the result says for each row whether it is *true*, so neither false nor unknown.

    >>> from latecomer.query.expressions import Attribute, Comparison, Literal
    >>> cheap = compile_truth(Comparison("<", Attribute("s", "price"), Literal(10)), Times("s", pa.int64()))
    >>> cheap(lambda attribute: pa.array([5, None, 15]), 3)
    array([ True, False, False])
    """
    node = _guarded(expr, times)

    def condition(lookup: Lookup, n: int) -> npt.NDArray[np.bool_]:
        value = node(lookup)
        if value.kind not in ("bool", "null"):
            raise QueryError(f"a condition is needed, and this is {value.kind}")
        data: npt.NDArray[np.bool_] = value.data
        return data if len(data) == n else np.repeat(data, n)

    return condition


@lru_cache(_REMEMBERED)
def compile_value(expr: Expr, times: Times, type: pa.DataType | None = None) -> Column:
    """Compile a value: the result is an Arrow array of ``type`` (by default the one that the kind of value suggests).

    ``type`` should be what :func:`latecomer.query.types.result_type` says. Times and durations that are no whole number
    of its unit are rounded down.
    """
    if isinstance(expr, Attribute) and expr.name != EVENT_TIME:
        attribute = expr

        def column(lookup: Lookup, n: int) -> pa.Array:
            values = lookup(attribute)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if pa.types.is_floating(values.type):
                values = pc.if_else(pc.is_nan(values), None, values)
            return values if type is None or values.type == type else values.cast(type)

        return column
    node = _guarded(expr, times)
    return lambda lookup, n: _stored(node(lookup), n, times, type)


def truth(expr: Expr, lookup: Lookup, times: Times, n: int) -> npt.NDArray[np.bool_]:
    """Where ``expr`` is true, see :func:`compile_truth`."""
    return compile_truth(expr, times)(lookup, n)


def evaluate(expr: Expr, lookup: Lookup, times: Times, n: int, type: pa.DataType | None = None) -> pa.Array:
    """The values of ``expr``, see :func:`compile_value`."""
    return compile_value(expr, times, type)(lookup, n)


def _stored(value: Value, n: int, times: Times, type: pa.DataType | None) -> pa.Array:
    if value.kind in ("time", "duration"):
        if type is None:
            type = times.type if value.kind == "time" else _duration_type(value, times)
        timed = pa.types.is_timestamp(type) or pa.types.is_duration(type)
        scale = UNITS[type.unit] if timed else times.scale
        return store(count(value, scale, whole=not pa.types.is_floating(type)), n, type)
    if type is None:
        natural = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string()}
        type = natural.get(value.kind, pa.null())
    return store(value, n, type)


def _duration_type(value: Value, times: Times) -> pa.DataType:
    if pa.types.is_timestamp(times.type):
        return pa.duration(times.type.unit)
    whole = value.data.dtype == np.int64 and value.scale % times.scale == 0
    return pa.int64() if whole else pa.float64()


def _guarded(expr: Expr, times: Times) -> _Node:
    node = _compile(expr, times)
    if not any(isinstance(e, (Arithmetic, Negative)) for e in _walk(expr)):
        return node

    def quiet(lookup: Lookup) -> Value:
        # Overflow and NaN become nulls; NumPy need not warn of them as well.
        with np.errstate(all="ignore"):
            return node(lookup)

    return quiet


def _walk(expr: Expr) -> Iterable[Expr]:
    yield expr
    for child in children(expr):
        yield from _walk(child)


def _compile(expr: Expr, times: Times) -> _Node:
    node = _node(expr, times)
    if any(True for _ in attributes(expr)):
        return node
    with np.errstate(all="ignore"):
        constant = node(_no_columns)
    return lambda lookup: constant


def _no_columns(attribute: Attribute) -> pa.Array:
    raise AssertionError(f"a constant expression asks for {attribute}")


def _node(expr: Expr, times: Times) -> _Node:
    match expr:
        case Literal(value=value):
            known = constant(value, times)
            return lambda lookup: known
        case Attribute(name=name):
            return _event_time(expr, times) if name == EVENT_TIME else lambda lookup: load(lookup(expr))
        case Call():
            raise AssertionError(f"{expr} is put in terms of attributes before it is compiled")
        case Arithmetic(op=op, left=left, right=right):
            return _arithmetic(op, _compile(left, times), _compile(right, times), times)
        case Negative(operand=operand):
            return _negative(_compile(operand, times))
        case Comparison(op=op, left=left, right=right):
            a, b, unit = _compile(left, times), _compile(right, times), times.scale
            return lambda lookup: compare(op, a(lookup), b(lookup), unit)
        case And(operands=operands):
            return _chain(both, [_compile(o, times) for o in operands])
        case Or(operands=operands):
            return _chain(either, [_compile(o, times) for o in operands])
        case Not(operand=operand):
            inner = _compile(operand, times)
            return lambda lookup: opposite(inner(lookup))
        case In():
            return _in(expr, times)
        case Between(operand=operand, low=low, high=high):
            return _between(_compile(operand, times), _compile(low, times), _compile(high, times), times.scale)
        case Like(operand=operand, pattern=pattern):
            return _like(_compile(operand, times), pattern)
        case IsNull(operand=operand):
            return _is_null(_compile(operand, times))


def _event_time(attribute: Attribute, times: Times) -> _Node:
    scale = times.scale

    def node(lookup: Lookup) -> Value:
        value = load(lookup(attribute))
        return Value("time", value.data, value.null, scale)

    return node


def constant(value: bool | int | float | str | Duration | Moment | None, times: Times) -> Value:
    """A constant of a query as a value of one row."""
    kind = kind_of_constant(value)
    match value:
        case None:
            return Value(kind, np.zeros(1, np.bool_), np.ones(1, np.bool_))
        case str():
            return Value(kind, pa.scalar(value, pa.string()))
        case Duration() if value.plain:
            return _counted(Value(kind, np.zeros(0)), value.amount * times.scale, times)
        case Duration():
            return _counted(Value(kind, np.zeros(0)), value.amount, times)
        case Moment():
            return _counted(Value(kind, np.zeros(0)), Fraction(value.nanoseconds), times)
        case bool():
            return Value(kind, np.array([value], np.bool_))
        case int():
            return Value(kind, np.array([value], np.int64))
        case _:
            return Value(kind, np.array([value], np.float64))


def _counted(value: Value, nanoseconds: Fraction, times: Times) -> Value:
    """A constant time or duration in the stream's unit where it is whole, else in the coarsest unit where it is."""
    for scale in (times.scale, *sorted(UNITS.values(), reverse=True)):
        amount = nanoseconds / scale
        if amount.denominator == 1 and abs(amount) < 2**63:
            return value._replace(data=np.array([int(amount)], np.int64), scale=scale)
    return value._replace(data=np.array([float(nanoseconds / times.scale)]), scale=times.scale)


def _arithmetic(op: str, left: _Node, right: _Node, times: Times) -> _Node:
    unit = times.scale

    def node(lookup: Lookup) -> Value:
        a, b = left(lookup), right(lookup)
        kind = arithmetic_kind(op, a.kind, b.kind)
        if kind is None:
            raise QueryError(f"cannot compute {a.kind} {op} {b.kind}")
        return unknown(a, b) if kind == "null" else compute(op, kind, a, b, unit)

    return node


def _negative(operand: _Node) -> _Node:
    def node(lookup: Lookup) -> Value:
        value = operand(lookup)
        if value.kind not in ("int", "float", "duration", "null"):
            raise QueryError(f"cannot compute -{value.kind}")
        return value if value.kind == "null" else negate(value)

    return node


def _chain(join: Callable[[Value, Value], Value], nodes: list[_Node]) -> _Node:
    first, *rest = nodes

    def node(lookup: Lookup) -> Value:
        result = first(lookup)
        for other in rest:
            result = join(result, other(lookup))
        return result

    return node


def _between(operand: _Node, low: _Node, high: _Node, unit: int) -> _Node:
    def node(lookup: Lookup) -> Value:
        value = operand(lookup)
        return both(compare(">=", value, low(lookup), unit), compare("<=", value, high(lookup), unit))

    return node


def _in(expr: In, times: Times) -> _Node:
    operand, unit = _compile(expr.operand, times), times.scale
    choices = [_compile(choice, times) for choice in expr.choices]
    values = [choice.value for choice in expr.choices if isinstance(choice, Literal)]
    texts = pc.SetLookupOptions(pa.array(values, pa.string())) if all(isinstance(v, str) for v in values) else None
    as_set = texts is not None and len(values) == len(choices)

    def node(lookup: Lookup) -> Value:
        value = operand(lookup)
        if as_set and value.kind == "text":
            return _tested(value, lambda texts_: pc.is_in(texts_, options=texts))
        result = compare("=", value, choices[0](lookup), unit)
        for choice in choices[1:]:
            result = either(result, compare("=", value, choice(lookup), unit))
        return result

    return node


def _tested(value: Value, test: Callable[[pa.Array], pa.Array]) -> Value:
    """A test of text that is no comparison; null stays null."""
    texts = pa.array([value.data.as_py()], pa.string()) if isinstance(value.data, pa.Scalar) else value.data
    data = load(test(texts)).data
    return Value("bool", data if value.null is None else data & ~value.null, value.null)


def _is_null(operand: _Node) -> _Node:
    def node(lookup: Lookup) -> Value:
        value = operand(lookup)
        length = 1 if isinstance(value.data, pa.Scalar) else len(value.data)
        null = np.zeros(length, np.bool_) if value.null is None else np.broadcast_to(value.null, (length,))
        return Value("bool", null)

    return node


def _like(operand: _Node, pattern: str) -> _Node:
    options = pc.MatchSubstringOptions(like_regex(pattern))

    def node(lookup: Lookup) -> Value:
        value = operand(lookup)
        if value.kind == "null":
            return value
        if value.kind != "text":
            raise QueryError(f"LIKE needs text, and this is {value.kind}")
        return _tested(value, lambda texts: pc.match_substring_regex(texts, options=options))

    return node


def like_regex(pattern: str) -> str:
    r"""A LIKE pattern as an RE2 expression: ``%`` any text, ``_`` one character, ``\`` takes the next one as it is.

    >>> like_regex("50\\%_%")
    '(?s)\\A50\\x{25}..*\\z'
    """
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    return r"(?s)\A" + "".join(wild.get(part) or _plain(part[-1]) for part in parts) + r"\z"


def _plain(character: str) -> str:
    return character if character.isalnum() else rf"\x{{{ord(character):x}}}"
