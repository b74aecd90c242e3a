"""Values: columns as NumPy sees them, and the operations on them, with SQL's nulls.

A :class:`Value` is data and a null mask, both of length n or 1 (a constant; NumPy broadcasts it). Small batches are the
common case, and there a NumPy operation costs a fraction of an Arrow call; only text stays in Arrow. Invariants:

- numbers are int64 or float64, and a float that is NaN is null;
- a boolean is False where it is null, so the data of a condition says where it is true;
- a time or duration counts ``scale`` nanoseconds, a number that meets one counts the stream's unit;
- integer overflow and division by zero give null; whatever stands under a null does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import QueryError
from latecomer.query.types import Kind
from latecomer.units import UNITS

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_] | None

_INT_MIN = -(2**63)
#: Integers up to here are exact as floats.
_EXACT = 2**53
_DAY = UNITS["d"]


class Value(NamedTuple):
    """``data`` is a NumPy array, for text and other kinds an Arrow array or scalar; ``null`` is None without nulls."""

    kind: Kind
    data: Any
    null: Mask = None
    scale: int = 0


def load(column: pa.Array) -> Value:
    """An Arrow column of any type as a value; dictionaries are decoded, decimals become floats."""
    loader = _LOADERS.get(column.type.id)
    return Value("other", column, nulls(column)) if loader is None else loader(column)


def nulls(column: pa.Array) -> Mask:
    """Where an Arrow column is null; None when it has no nulls."""
    if not column.null_count:
        return None
    validity = column.buffers()[0]
    if validity is None:
        return np.ones(len(column), np.bool_)
    return ~_bits(validity, column.offset, len(column))


def _bits(buffer: pa.Buffer, offset: int, length: int) -> npt.NDArray[np.bool_]:
    first = offset // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8)[first : (offset + length + 7) // 8], bitorder="little")
    start = offset - 8 * first
    return bits[start : start + length].view(np.bool_)


def _fixed(column: pa.Array, dtype: npt.DTypeLike) -> Array:
    """The values of a fixed-width column, without a copy."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype)
    return np.frombuffer(buffer, dtype)[column.offset : column.offset + len(column)]


def _load_bool(column: pa.Array) -> Value:
    null = nulls(column)
    if not len(column) or column.buffers()[1] is None:
        return Value("bool", np.zeros(len(column), np.bool_), null)
    data = _bits(column.buffers()[1], column.offset, len(column))
    return Value("bool", data if null is None else data & ~null, null)


def _load_int(dtype: npt.DTypeLike) -> Callable[[pa.Array], Value]:
    def loader(column: pa.Array) -> Value:
        return Value("int", _fixed(column, dtype).astype(np.int64, copy=False), nulls(column))

    return loader


def _load_uint64(column: pa.Array) -> Value:
    data = _fixed(column, np.uint64).view(np.int64)
    return Value("int", data, _either(nulls(column), _some(data < 0)))


def _load_float(dtype: npt.DTypeLike) -> Callable[[pa.Array], Value]:
    def loader(column: pa.Array) -> Value:
        return _floats("float", _fixed(column, dtype).astype(np.float64, copy=False), nulls(column))

    return loader


def _load_decimal(column: pa.Array) -> Value:
    return load(column.cast(pa.float64()))


def _load_timestamp(column: pa.Array) -> Value:
    return Value("time", _fixed(column, np.int64), nulls(column), UNITS[column.type.unit])


def _load_duration(column: pa.Array) -> Value:
    return Value("duration", _fixed(column, np.int64), nulls(column), UNITS[column.type.unit])


def _load_date32(column: pa.Array) -> Value:
    return Value("time", _fixed(column, np.int32).astype(np.int64), nulls(column), _DAY)


def _load_date64(column: pa.Array) -> Value:
    return Value("time", _fixed(column, np.int64), nulls(column), UNITS["ms"])


def _load_text(column: pa.Array) -> Value:
    return Value("text", column if column.type == pa.string() else column.cast(pa.string()), nulls(column))


def _load_null(column: pa.Array) -> Value:
    return Value("null", np.zeros(len(column), np.bool_), np.ones(len(column), np.bool_))


def _load_dictionary(column: pa.Array) -> Value:
    return load(column.dictionary_decode())


_LOADERS: dict[int, Callable[[pa.Array], Value]] = {
    pa.bool_().id: _load_bool,
    **{t.id: _load_int(t.to_pandas_dtype()) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{t.id: _load_int(t.to_pandas_dtype()) for t in (pa.uint8(), pa.uint16(), pa.uint32())},
    pa.uint64().id: _load_uint64,
    **{t.id: _load_float(t.to_pandas_dtype()) for t in (pa.float16(), pa.float32(), pa.float64())},
    **{t.id: _load_decimal for t in (pa.decimal128(1), pa.decimal256(1))},
    pa.timestamp("s").id: _load_timestamp,
    pa.duration("s").id: _load_duration,
    pa.date32().id: _load_date32,
    pa.date64().id: _load_date64,
    **{t.id: _load_text for t in (pa.string(), pa.large_string(), pa.string_view())},
    pa.null().id: _load_null,
    pa.dictionary(pa.int8(), pa.int8()).id: _load_dictionary,
}


# Three-valued logic


def both(left: Value, right: Value) -> Value:
    """Kleene AND."""
    data = left.data & right.data
    if left.null is None and right.null is None:
        return Value("bool", data)
    return Value("bool", data, _possible(left) & _possible(right) & ~data)


def either(left: Value, right: Value) -> Value:
    """Kleene OR."""
    data = left.data | right.data
    null = _either(left.null, right.null)
    return Value("bool", data, None if null is None else null & ~data)


def opposite(operand: Value) -> Value:
    """Kleene NOT."""
    return Value("bool", ~_possible(operand), operand.null)


def _possible(value: Value) -> Array:
    """Where a boolean is true or unknown."""
    return value.data if value.null is None else value.data | value.null  # type: ignore[no-any-return]


def _either(left: Mask, right: Mask) -> Mask:
    if left is None:
        return right
    return left if right is None else left | right


def _some(mask: npt.NDArray[np.bool_]) -> Mask:
    return mask if mask.any() else None


def _condition(data: Array, null: Mask) -> Value:
    return Value("bool", data if null is None else data & ~null, null)


def unknown(like: Value, other: Value) -> Value:
    """The null that any operation with a null has for a result."""
    length = np.broadcast_shapes(_shape(like), _shape(other))
    return Value("null", np.zeros(length, np.bool_), np.ones(length, np.bool_))


def _shape(value: Value) -> tuple[int, ...]:
    return (1,) if isinstance(value.data, pa.Scalar) else (len(value.data),)


# Comparisons

_NUMPY = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARROW = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(op: str, left: Value, right: Value, unit: int) -> Value:
    """``left op right``; ``unit`` is the stream's unit in nanoseconds. Integers and floats compare exactly."""
    if left.kind == "null" or right.kind == "null":
        return _condition(np.zeros(1, np.bool_), unknown(left, right).null)
    if left.kind in ("text", "other") or right.kind in ("text", "other"):
        return _compare_arrow(op, left, right)
    if (left.kind == "bool") != (right.kind == "bool") or {left.kind, right.kind} == {"time", "duration"}:
        raise _mismatch(left, right)
    a, b = left.data, right.data
    scales = left.scale or unit, right.scale or unit
    if (left.scale or right.scale) and scales[0] != scales[1]:
        data = _compare_scaled(op, a, b, *scales)
    elif a.dtype != b.dtype:
        data = _compare_mixed(op, a, b)
    else:
        data = _NUMPY[op](a, b)
    return _condition(data, _either(left.null, right.null))


def _mismatch(left: Value, right: Value) -> QueryError:
    return QueryError(
        f"cannot compare {left.kind} with {right.kind}", hint="check the query against the columns of the stream"
    )


def _compare_arrow(op: str, left: Value, right: Value) -> Value:
    if left.kind != right.kind:
        raise _mismatch(left, right)
    try:
        result = _ARROW[op](left.data, right.data)
    except pa.ArrowNotImplementedError:
        raise _mismatch(left, right) from None
    return load(pa.array([result.as_py()], pa.bool_()) if isinstance(result, pa.Scalar) else result)


def _compare_mixed(op: str, a: Array, b: Array) -> Array:
    """An integer with a float. Beyond 2^53 a float stands for many integers, so ties are decided on integers."""
    if a.dtype == np.float64:
        return _compare_mixed(_FLIPPED[op], b, a)
    rounded = a.astype(np.float64)
    data = _NUMPY[op](rounded, b)
    tie = (rounded == b) & (np.abs(rounded) >= _EXACT)
    if tie.any():
        # float(2^63 - 1) is 2^63, which is no int64 any more; every int64 is below it.
        top = rounded >= 2.0**63
        whole = np.where(tie & ~top, b, 0.0).astype(np.int64)
        exact = np.where(top, _NUMPY[op](0, 1), _NUMPY[op](a, whole))
        data = np.where(tie, exact, data)
    return data


_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compare_scaled(op: str, a: Array, b: Array, scale_a: int, scale_b: int) -> Array:
    """Counts of different units. Whole numbers are compared exactly, by dividing the finer count."""
    if scale_a < scale_b:
        return _compare_scaled(_FLIPPED[op], b, a, scale_b, scale_a)
    ratio = scale_a // scale_b
    if a.dtype == np.float64 or b.dtype == np.float64:
        return _NUMPY[op](a * float(ratio), b)
    # a * ratio op b, with b = quotient * ratio + rest and 0 <= rest < ratio
    quotient, rest = np.divmod(b, ratio)
    match op:
        case "=":
            return (a == quotient) & (rest == 0)  # type: ignore[no-any-return]
        case "<>":
            return (a != quotient) | (rest != 0)  # type: ignore[no-any-return]
        case "<":
            return (a < quotient) | ((a == quotient) & (rest > 0))  # type: ignore[no-any-return]
        case "<=":
            return a <= quotient
        case ">":
            return a > quotient
        case _:
            return (a > quotient) | ((a == quotient) & (rest == 0))  # type: ignore[no-any-return]


# Arithmetic


def compute(op: str, kind: Kind, left: Value, right: Value, unit: int) -> Value:
    """``left op right`` of result ``kind`` (see :func:`latecomer.query.types.arithmetic_kind`)."""
    null = _either(left.null, right.null)
    a, b = left.data, right.data
    scale = left.scale or right.scale
    if (left.scale and right.scale) or (kind in ("time", "duration") and op in "+-"):
        # Both sides count time: bring them to the finer unit.
        scale = min(left.scale or unit, right.scale or unit)
        a, null = rescale(a, left.scale or unit, scale, null)
        b, null = rescale(b, right.scale or unit, scale, null)
    data, null = _number(op, a, b, null)
    return Value(kind, data, null, scale if kind in ("time", "duration") else 0)


def negate(operand: Value) -> Value:
    """``-operand``; the smallest integer has no opposite and gives null."""
    data = -operand.data
    null = operand.null
    if data.dtype == np.int64:
        null = _either(null, _some(operand.data == _INT_MIN))
    return Value(operand.kind, data, null, operand.scale)


def rescale(data: Array, scale: int, finer: int, null: Mask) -> tuple[Array, Mask]:
    """Counts of ``scale`` nanoseconds as counts of a finer (or equal) unit."""
    if scale == finer:
        return data, null
    return _number("*", data, np.array([scale // finer], np.int64), null)


def _number(op: str, a: Array, b: Array, null: Mask) -> tuple[Array, Mask]:
    if op == "/":
        return _divided(np.divide, a, b, null)
    if op == "%":
        return _divided(np.fmod, a, b, null)
    if a.dtype == np.int64 and b.dtype == np.int64:
        return _integer(op, a, b, null)
    data = a + b if op == "+" else a - b if op == "-" else a * b
    return _checked(data, null)


def _divided(function: Callable[[Array, Array], Array], a: Array, b: Array, null: Mask) -> tuple[Array, Mask]:
    """``/`` and ``%``; the rest has the sign of the dividend, as in SQL."""
    zero = _some(b == 0)
    if zero is not None:
        b = np.where(zero, 1, b)
        null = _either(null, np.broadcast_to(zero, np.broadcast_shapes(a.shape, b.shape)))
    return _checked(function(a, b), null)


def _integer(op: str, a: Array, b: Array, null: Mask) -> tuple[Array, Mask]:
    if op == "*":
        return _product(a, b, null)
    if op == "+":
        data = a + b
        wrapped = ((a ^ data) & (b ^ data)) < 0
    else:
        data = a - b
        wrapped = ((a ^ b) & (a ^ data)) < 0
    return data, _either(null, _some(wrapped))


def _product(a: Array, b: Array, null: Mask) -> tuple[Array, Mask]:
    data = a * b
    # A float product is right to 52 bits: only beyond 2^62 may the integer have wrapped; those few are redone.
    large = np.flatnonzero(np.abs(a.astype(np.float64) * b) > 2.0**62)
    if not len(large):
        return data, null
    a, b = np.broadcast_to(a, data.shape), np.broadcast_to(b, data.shape)
    wrapped = np.zeros(data.shape, np.bool_)
    wrapped[large] = [not -(2**63) <= int(a[i]) * int(b[i]) < 2**63 for i in large]
    return data, _either(null, _some(wrapped))


def _checked(data: Array, null: Mask) -> tuple[Array, Mask]:
    """NaN is null."""
    if data.dtype == np.float64:
        null = _either(null, _some(np.isnan(data)))
    return data, null


def _floats(kind: Kind, data: Array, null: Mask) -> Value:
    data, null = _checked(data, null)
    return Value(kind, data, null)


# Back to Arrow


def store(value: Value, length: int, type: pa.DataType) -> pa.Array:
    """A value as an Arrow array of ``length`` rows; times and durations must count the unit of ``type`` already."""
    if value.kind == "null":
        return pa.nulls(length, type)
    if isinstance(value.data, pa.Scalar):
        return pa.repeat(value.data, length).cast(type)
    if isinstance(value.data, pa.Array):
        return value.data if value.data.type == type else value.data.cast(type)
    data, null = value.data, value.null
    if len(data) != length:
        data = np.repeat(data, length)
    if null is not None and len(null) != length:
        null = np.repeat(null, length)
    column = pa.array(data, mask=null)
    return column if column.type == type else column.cast(type, safe=False)


def count(value: Value, scale: int, *, whole: bool) -> Value:
    """A time or duration that counts ``scale`` nanoseconds: ``whole`` integers, rounded down, or else floats."""
    data, null = value.data, value.null
    if not whole:
        return Value(value.kind, data * (value.scale / scale), null, scale)
    if value.scale > scale:
        data, null = rescale(data, value.scale, scale, null)
    elif value.scale < scale:
        ratio = scale // value.scale
        data = data // ratio if data.dtype == np.int64 else data / ratio
    if data.dtype == np.float64:
        data = np.floor(data)
        null = _either(null, _some(~(np.abs(data) < 2.0**63)))
        data = np.where(np.abs(data) < 2.0**63, data, 0.0).astype(np.int64)
    return Value(value.kind, data, null, scale)
