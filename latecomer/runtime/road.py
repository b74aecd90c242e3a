"""Roads: join orders as programs, which the compiled kernels follow from seed to match in one call.

Rule: a road says exactly what its join order says to the NumPy road of :mod:`latecomer.runtime.sequence`; what it has
no words for raises :class:`Unpaved`, and that query goes the other road. A program is a list of whole numbers, in the
order in which ``native/program.h`` reads them: how many components, sources and columns there are, what seeds bind and
must pass, then each component with how it is found, and at last what complete matches must pass.

Conditions are written in postfix, with the types that :mod:`latecomer.runtime.values` would find at run time: codes for
integers, codes for floats, and between them a widening or a comparison of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from latecomer.query.expressions import (
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    Expr,
    In,
    IsNull,
    Literal,
    Negative,
    Not,
    Or,
)
from latecomer.query.types import EVENT_TIME, Kind, arithmetic_kind
from latecomer.runtime.evaluate import Times, constant
from latecomer.runtime.pattern import JoinOrder, Pattern, Probe, Step, Test
from latecomer.runtime.selection import Selection
from latecomer.storage.columns import plain_layout
from latecomer.units import UNITS

#: The limits of ``native/conditions.h``.
_PARTS, _DEPTH, _WIDE = 32, 24, 1 << 10
#: That of ``native/program.h``.
_TEXTS = 4_096

#: Which bits of a hash count: all.
HASHED = -1

#: What a source shows besides the view of a component: all that may kill, or the new negatives alone.
NEGATIVES, NEW = -1, -2


class Unpaved(Exception):
    """There is no compiled road for this."""


class _Code(IntEnum):
    LOAD = 0
    LOAD_TIME = auto()
    INTEGER = auto()
    FLOAT = auto()
    WIDEN = auto()
    WIDEN_BELOW = auto()
    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    REMAINDER = auto()
    NEGATE = auto()
    ADD_F = auto()
    SUBTRACT_F = auto()
    MULTIPLY_F = auto()
    DIVIDE_F = auto()
    REMAINDER_F = auto()
    NEGATE_F = auto()
    COMPARE = auto()
    COMPARE_F = auto()
    COMPARE_IF = auto()
    COMPARE_FI = auto()
    SAME_TEXT = auto()
    TEXT_IS = auto()
    AND = auto()
    OR = auto()
    NOT = auto()
    IS_NULL = auto()


_LESS, _EQUAL, _GREATER = 1, 2, 4
_OUTCOMES = {
    "=": _EQUAL,
    "<>": _LESS | _GREATER,
    "<": _LESS,
    "<=": _LESS | _EQUAL,
    ">": _GREATER,
    ">=": _GREATER | _EQUAL,
}
#: Comparisons with their sides changed.
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WHOLE = {"+": _Code.ADD, "-": _Code.SUBTRACT, "*": _Code.MULTIPLY, "%": _Code.REMAINDER}
_REAL = {
    "+": _Code.ADD_F,
    "-": _Code.SUBTRACT_F,
    "*": _Code.MULTIPLY_F,
    "/": _Code.DIVIDE_F,
    "%": _Code.REMAINDER_F,
}


#: Codes with their two operands.
Ops = list[tuple[int, int, int]]


class _Typed(NamedTuple):
    """What the operand on top of the stack is, as :class:`latecomer.runtime.values.Value` would have it."""

    kind: Kind
    real: bool = False
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Road:
    """A program, and what it wants with each call: the log's ``columns``, and a source for each of ``looks``, which are
    a selection and the component whose view is meant, or :data:`NEGATIVES`, or :data:`NEW`; ``bound`` are the
    components that seeds bind.
    """

    words: tuple[int, ...]
    bound: tuple[int, ...]
    columns: tuple[str, ...]
    looks: tuple[tuple[Selection, int], ...]


def road_of(order: JoinOrder, pattern: Pattern, columns: Mapping[str, pa.DataType]) -> Road:
    """The road of an order that completes matches. ``columns``: the event log's."""
    writer = _Writer(pattern, pattern.times, columns)
    return writer.road((order.seed,), _conditions(order.tests), order.negations, order.steps, ())


def killing_road(j: int, pattern: Pattern, columns: Mapping[str, pa.DataType]) -> Road:
    """The road from new negatives of negation ``j`` to the matches that each is the first to kill."""
    order = pattern.deletes[j]
    writer = _Writer(pattern, pattern.times, columns)
    return writer.road((order.seed,), _conditions(order.tests), order.negations, order.steps, pattern.probes[: j + 1])


def checking_road(probes: Sequence[Probe], new: bool, pattern: Pattern, columns: Mapping[str, pa.DataType]) -> Road:
    """The road on which complete matches stay that no negative kills (``new``: no new one)."""
    writer = _Writer(pattern, pattern.times, columns)
    return writer.road(pattern.positives, (), () if new else probes, (), probes if new else ())


def refining_road(
    tests: Sequence[Expr],
    probes: Sequence[Probe],
    first: Sequence[Probe],
    pattern: Pattern,
    columns: Mapping[str, pa.DataType],
) -> Road:
    """The road on which those matches of a wider query stay that pass ``tests``, and that no negative of ``probes``
    kills, nor a new one of ``first``.
    """
    writer = _Writer(pattern, pattern.times, columns)
    return writer.road(pattern.positives, tests, probes, (), first)


def filtering_road(filter: Sequence[Expr], times: Times, columns: Mapping[str, pa.DataType]) -> Road:
    """The road on which the events stay that pass the conjuncts of a selection, which name no variable."""
    return _Writer(None, times, columns).road((0,), filter, (), (), ())


@dataclass(slots=True)
class _Writer:
    """``pattern``: whose conditions they are; None: those of one component alone, which they do not name."""

    pattern: Pattern | None
    times: Times
    types: Mapping[str, pa.DataType]
    columns: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    looks: list[tuple[Selection, int]] = field(default_factory=list)

    def road(
        self,
        bound: tuple[int, ...],
        tests: Iterable[Expr],
        negations: Sequence[Probe],
        steps: Sequence[Step],
        lasts: Sequence[Probe],
    ) -> Road:
        """``lasts``: negations of which new negatives alone count; where one is that of the seed, those before it."""
        body = [len(bound), *bound, *self._tests(tests), *self._negations(negations, None), len(steps)]
        for step in steps:
            body += self._look(step, step.index, self._between(step), step.index)
            body += [*self._tests(_conditions(step.tests)), *self._negations(step.negations, step)]
        body.append(len(lasts))
        for probe in lasts:
            own = probe.step.index in bound
            body += self._negation(probe, NEW, None, probe.step.index if own else -1)
        parts = 1 if self.pattern is None else len(self.pattern.components)
        if parts > _PARTS or len(self.columns) >= _WIDE or len(self.looks) > _WIDE or len(self.texts) > _TEXTS:
            raise Unpaved
        head = [HASHED, parts, len(self.looks), len(self.columns)]
        for name in self.columns:
            head += _layout(self.types, name)
        head.append(len(self.texts))
        for text in self.texts:
            head += _text(text)
        return Road((*head, *body), bound, tuple(self.columns), tuple(self.looks))

    @property
    def _whole(self) -> Pattern:
        assert self.pattern is not None, "there are other components"
        return self.pattern

    def _part(self, attribute: Attribute) -> int:
        return 0 if self.pattern is None else self.pattern.index_of(attribute.var)

    # --- looking for events ------------------------------------------------------------------------------------------

    def _look(self, step: Step, part: int, between: Sequence[int], view: int) -> list[int]:
        self.looks.append((step.selection, view))
        words = [part, len(self.looks) - 1, int(step.carried), *between, len(step.links)]
        for link in step.links:
            if EVENT_TIME in (link.attr, link.other_attr):
                for name in {link.attr, link.other_attr} - {EVENT_TIME}:
                    if self.types[name] != pa.int64():
                        raise Unpaved
            words += [self._column(link.attr), link.other, self._column(link.other_attr)]
        return words

    def _between(self, step: Step) -> list[int]:
        """:func:`latecomer.runtime.pattern.time_range`: from which component's time to which one's, and what is added
        to them."""
        before = [b for b in step.bound if b < step.index]
        after = [b for b in step.bound if b > step.index]
        window = self._whole.window
        if not before:
            return [max(after), -window, min(after), -1]
        if not after:
            return [max(before), 1, min(before), window]
        return [max(before), 1, min(after), -1]

    def _scope(self, probe: Probe) -> list[int]:
        """:func:`latecomer.runtime.sequence.scope`, in the same words."""
        negation, positives, window = probe.negation, self._whole.positives, self._whole.window
        if negation.left is None:
            return [positives[-1], -window, positives[0], -1]
        if negation.right is None:
            return [positives[-1], 1, positives[0], window]
        return [positives[negation.left], 1, positives[negation.right], -1]

    def _negations(self, probes: Sequence[Probe], step: Step | None) -> list[int]:
        words = [len(probes)]
        for probe in probes:
            words += self._negation(probe, NEGATIVES, step, -1)
        return words

    def _negation(self, probe: Probe, view: int, step: Step | None, before: int) -> list[int]:
        cut, anchor = 0, 0
        if probe.bounds and step is not None:
            negation, positives = probe.negation, self._whole.positives
            assert negation.left is not None and negation.right is not None, "it lies between two"
            left, right = positives[negation.left], positives[negation.right]
            cut, anchor = (1, right) if step.index == left else (2, left)
        look = self._look(probe.step, probe.step.index, self._scope(probe), view)
        return [*look, *self._tests(_conditions(probe.step.tests)), cut, anchor, before]

    def _column(self, name: str) -> int:
        if name == EVENT_TIME:
            return -1
        _layout(self.types, name)  # or else unpaved
        return self.columns.setdefault(name, len(self.columns))

    # --- conditions --------------------------------------------------------------------------------------------------

    def _tests(self, tests: Iterable[Expr]) -> list[int]:
        words = [0]
        for test in tests:
            words[0] += 1
            ops: Ops = []
            if self._write(test, ops).kind != "bool" or _depth(ops) > _DEPTH:
                raise Unpaved
            words += [len(ops), *(word for op in ops for word in op)]
        return words

    def _write(self, expr: Expr, ops: Ops) -> _Typed:
        """Write the expression's codes behind ``ops``."""
        match expr:
            case Literal():
                return self._constant(expr, ops)
            case Attribute():
                return self._attribute(expr, ops)
            case Arithmetic(op=op, left=left, right=right):
                return self._arithmetic(op, left, right, ops)
            case Negative(operand=operand):
                typed = self._write(operand, ops)
                if typed.kind not in ("int", "float", "duration"):
                    raise Unpaved
                ops.append((_Code.NEGATE_F if typed.real else _Code.NEGATE, 0, 0))
                return typed
            case Comparison(op=op, left=left, right=right):
                return self._comparison(op, left, right, ops)
            case And(operands=operands):
                return self._chain(_Code.AND, [self._condition(o) for o in operands], ops)
            case Or(operands=operands):
                return self._chain(_Code.OR, [self._condition(o) for o in operands], ops)
            case In(operand=operand, choices=choices):
                return self._chain(_Code.OR, [self._compare("=", operand, choice) for choice in choices], ops)
            case Between(operand=operand, low=low, high=high):
                sides = [self._compare(">=", operand, low), self._compare("<=", operand, high)]
                return self._chain(_Code.AND, sides, ops)
            case Not(operand=operand):
                self._condition(operand)(ops)
                ops.append((_Code.NOT, 0, 0))
                return _Typed("bool")
            case IsNull(operand=operand):
                self._write(operand, ops)
                ops.append((_Code.IS_NULL, 0, 0))
                return _Typed("bool")
        raise Unpaved

    def _condition(self, expr: Expr) -> Callable[[Ops], None]:
        def write(ops: Ops) -> None:
            if self._write(expr, ops).kind != "bool":
                raise Unpaved

        return write

    def _compare(self, op: str, left: Expr, right: Expr) -> Callable[[Ops], None]:
        def write(ops: Ops) -> None:
            self._comparison(op, left, right, ops)

        return write

    def _chain(
        self,
        code: _Code,
        parts: Iterable[Callable[[Ops], None]],
        ops: Ops,
    ) -> _Typed:
        for number, part in enumerate(parts):
            part(ops)
            if number:
                ops.append((code, 0, 0))
        return _Typed("bool")

    def _constant(self, expr: Literal, ops: Ops) -> _Typed:
        value = constant(expr.value, self.times)
        if value.kind not in ("bool", "int", "float", "time", "duration"):
            raise Unpaved
        if value.data.dtype == np.float64:
            ops.append((_Code.FLOAT, int(value.data.view(np.int64)[0]), 0))
            return _Typed(value.kind, True, value.scale)
        ops.append((_Code.INTEGER, int(value.data[0]), 0))
        return _Typed(value.kind, False, value.scale)

    def _attribute(self, expr: Attribute, ops: Ops) -> _Typed:
        part = self._part(expr)
        if expr.name == EVENT_TIME:
            ops.append((_Code.LOAD_TIME, part, 0))
            return _Typed("time", scale=self.times.scale)
        typed = _typed(self.types[expr.name])
        ops.append((_Code.LOAD, part, self._column(expr.name)))
        return typed

    def _arithmetic(self, op: str, left: Expr, right: Expr, ops: Ops) -> _Typed:
        a, b = self._write(left, ops), self._write(right, ops)
        kind = arithmetic_kind(op, a.kind, b.kind)
        if kind not in ("int", "float", "time", "duration"):
            raise Unpaved
        scale = a.scale or b.scale
        if (a.scale and b.scale) or (kind in ("time", "duration") and op in "+-"):
            scale = a.scale or self.times.scale
            if scale != (b.scale or self.times.scale):
                raise Unpaved
        real = a.real or b.real or op == "/"
        if real:
            _widened(ops, not a.real, not b.real)
        ops.append((_REAL[op] if real else _WHOLE[op], 0, 0))
        return _Typed(kind, real, scale if kind in ("time", "duration") else 0)

    def _comparison(self, op: str, left: Expr, right: Expr, ops: Ops) -> _Typed:
        if isinstance(left, Attribute) and isinstance(right, Attribute) and self._texts(left, right):
            if op not in ("=", "<>"):
                raise Unpaved
            a, b = (self._place(side) for side in (left, right))
            return _same((_Code.SAME_TEXT, a, b), op, ops)
        if isinstance(left, Literal) and isinstance(right, Attribute):
            left, right, op = right, left, _TURNED.get(op, op)
        if isinstance(left, Attribute) and self._texts(left) and isinstance(right, Literal):
            if op not in ("=", "<>") or not isinstance(right.value, str):
                raise Unpaved
            number = self.texts.setdefault(right.value, len(self.texts))
            return _same((_Code.TEXT_IS, self._place(left), number), op, ops)
        x, y = self._write(left, ops), self._write(right, ops)
        unlike = (x.kind == "bool") != (y.kind == "bool") or {x.kind, y.kind} == {"time", "duration"}
        unit = self.times.scale
        if unlike or ((x.scale or y.scale) and (x.scale or unit) != (y.scale or unit)):
            raise Unpaved
        code = {
            (False, False): _Code.COMPARE,
            (True, True): _Code.COMPARE_F,
            (False, True): _Code.COMPARE_IF,
            (True, False): _Code.COMPARE_FI,
        }[x.real, y.real]
        ops.append((code, _OUTCOMES[op], 0))
        return _Typed("bool")

    def _place(self, attribute: Attribute) -> int:
        return _WIDE * self._part(attribute) + self._column(attribute.name)

    def _texts(self, *sides: Attribute) -> bool:
        kinds = [self.types[side.name] for side in sides if side.name != EVENT_TIME]
        return len(kinds) == len(sides) and all(pa.types.is_string(k) or pa.types.is_large_string(k) for k in kinds)


def _conditions(tests: Iterable[Test]) -> Iterable[Expr]:
    return (test.expr for test in tests)


def _text(text: str) -> list[int]:
    """A text as words: how many bytes it has, and these."""
    data = text.encode()
    return [len(data), *np.frombuffer(data + bytes(-len(data) % 8), np.int64).tolist()]


def _same(code: tuple[int, int, int], op: str, ops: Ops) -> _Typed:
    """Write that two texts are the same, or (``<>``) are not."""
    ops.append(code)
    if op == "<>":
        ops.append((_Code.NOT, 0, 0))
    return _Typed("bool")


def _widened(ops: Ops, below: bool, top: bool) -> None:
    if below:
        ops.append((_Code.WIDEN_BELOW, 0, 0))
    if top:
        ops.append((_Code.WIDEN, 0, 0))


def _layout(types: Mapping[str, pa.DataType], name: str) -> tuple[int, int]:
    layout = plain_layout(types[name])
    if layout is None:
        raise Unpaved
    return layout


def _typed(kind: pa.DataType) -> _Typed:
    """As :func:`latecomer.runtime.values.load` types a column."""
    t = pa.types
    if t.is_boolean(kind):
        return _Typed("bool")
    if t.is_integer(kind):
        return _Typed("int")
    if t.is_floating(kind):
        return _Typed("float", True)
    if t.is_timestamp(kind):
        return _Typed("time", scale=UNITS[kind.unit])
    if t.is_duration(kind):
        return _Typed("duration", scale=UNITS[kind.unit])
    if t.is_date(kind):
        return _Typed("time", scale=UNITS["d" if t.is_date32(kind) else "ms"])
    raise Unpaved


def _depth(ops: Sequence[tuple[int, int, int]]) -> int:
    """The most operands that are on the stack at a time."""
    depth = most = 0
    for code, _, _ in ops:
        if code <= _Code.FLOAT or code in (_Code.SAME_TEXT, _Code.TEXT_IS):
            depth += 1
        elif code not in _UNARY:
            depth -= 1
        most = max(most, depth)
    return most


_UNARY = {_Code.WIDEN, _Code.WIDEN_BELOW, _Code.NEGATE, _Code.NEGATE_F, _Code.NOT, _Code.IS_NULL}
