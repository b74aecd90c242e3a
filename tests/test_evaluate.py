"""The evaluator against a scalar reference that was written from the language's description, one row at a time."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.errors import QueryError
from latecomer.query import expressions as x
from latecomer.query.parse import parse
from latecomer.query.types import result_type
from latecomer.query.unparse import write
from latecomer.runtime.evaluate import Times, compile_truth, compile_value, evaluate, truth
from latecomer.stream import Stream
from latecomer.units import UNITS, Duration

INT64 = range(-(2**63), 2**63)

# The reference. Times and durations are ("time" | "duration", exact nanoseconds); None is null.


def scalar(expr, row, unit):
    """The value of ``expr`` for one row of Python values."""
    match expr:
        case x.Literal(value=Duration() as d):
            return ("duration", d.exact("ns"))
        case x.Literal(value=x.Moment() as m):
            return ("time", Fraction(m.nanoseconds))
        case x.Literal(value=v):
            return v
        case x.Attribute(name="ts"):
            return ("time", Fraction(row["ts"] * UNITS[unit]))
        case x.Attribute(name=name):
            return clean(row[name])
        case x.Negative(operand=o):
            return negated(scalar(o, row, unit))
        case x.Arithmetic(op=op, left=a, right=b):
            return computed(op, scalar(a, row, unit), scalar(b, row, unit), unit)
        case x.Comparison(op=op, left=a, right=b):
            return compared(op, scalar(a, row, unit), scalar(b, row, unit), unit)
        case x.And(operands=parts):
            return conjunction([scalar(p, row, unit) for p in parts])
        case x.Or(operands=parts):
            return inverse(conjunction([inverse(scalar(p, row, unit)) for p in parts]))
        case x.Not(operand=o):
            return inverse(scalar(o, row, unit))
        case x.In(operand=o, choices=choices):
            v = scalar(o, row, unit)
            return inverse(conjunction([compared("<>", v, scalar(c, row, unit), unit) for c in choices]))
        case x.Between(operand=o, low=low, high=high):
            v = scalar(o, row, unit)
            ends = [compared(">=", v, scalar(low, row, unit), unit), compared("<=", v, scalar(high, row, unit), unit)]
            return conjunction(ends)
        case x.Like(operand=o, pattern=pattern):
            v = scalar(o, row, unit)
            return None if v is None else like(v, pattern)
        case x.IsNull(operand=o):
            return scalar(o, row, unit) is None


def clean(v):
    return None if isinstance(v, float) and math.isnan(v) else v


def inverse(v):
    return None if v is None else not v


def conjunction(values):
    if any(v is False for v in values):
        return False
    return None if any(v is None for v in values) else True


def negated(v):
    if v is None:
        return None
    if isinstance(v, tuple):
        return (v[0], -v[1])
    return -v if isinstance(v, float) or -v in INT64 else None


def timed(a, b, unit):
    """Both as exact nanoseconds; a plain number counts the stream's unit."""
    return [v[1] if isinstance(v, tuple) else Fraction(v) * UNITS[unit] for v in (a, b)]


def compared(op, a, b, unit):
    if a is None or b is None:
        return None
    if isinstance(a, tuple) or isinstance(b, tuple):
        a, b = timed(a, b, unit)
    return {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]


def computed(op, a, b, unit):
    if a is None or b is None:
        return None
    if isinstance(a, tuple) or isinstance(b, tuple):
        return computed_time(op, a, b, unit)
    if op in "/%" and b == 0:
        return None
    if op == "/" or isinstance(a, float) or isinstance(b, float):
        return clean(computed_float(op, float(a), float(b)))
    v = {"+": a + b, "-": a - b, "*": a * b, "%": (abs(a) % abs(b or 1)) * (-1 if a < 0 else 1)}[op]
    return v if v in INT64 else None


def computed_float(op, a, b):
    if op == "%":
        return math.nan if math.isinf(a) else math.fmod(a, b)
    return a / b if op == "/" else {"+": a + b, "-": a - b, "*": a * b}[op]


def computed_time(op, a, b, unit):
    kinds = [v[0] if isinstance(v, tuple) else "number" for v in (a, b)]
    if op == "*":
        number = a if kinds[0] == "number" else b
        return ("duration", Fraction(number) * (b if kinds[0] == "number" else a)[1])
    a, b = timed(a, b, unit)
    if op in "/%" and b == 0:
        return None
    if op == "/":
        return float(a / b)
    if op == "%":
        return ("duration", (abs(a) % abs(b)) * (-1 if a < 0 else 1))
    kind = "time" if kinds.count("time") == 1 else "duration"
    return (kind, a + b if op == "+" else a - b)


def like(text, pattern):
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(text[i:], pattern[1:]) for i in range(len(text) + 1))
    if pattern[0] == "\\" and len(pattern) > 1:
        return text[:1] == pattern[1] and like(text[1:], pattern[2:])
    return bool(text) and pattern[0] in (text[0], "_") and like(text[1:], pattern[1:])


# Expressions of one kind each, over the columns below.

SCHEMA = {
    "i": pa.int64(),
    "k": pa.int8(),
    "u": pa.uint32(),
    "f": pa.float64(),
    "g": pa.float32(),
    "s": pa.string(),
    "l": pa.large_string(),
    "d": pa.dictionary(pa.int8(), pa.string()),
    "b": pa.bool_(),
    "due": pa.timestamp("us"),
    "zoned": pa.timestamp("s", "Europe/Paris"),
    "length": pa.duration("ms"),
    "ts": pa.int64(),
}
HUGE = [0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, 3037000500]
TEXTS = st.text("ab%_\\é€\U0001f600\n'", max_size=4)
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 2.0**53, 2.0**63, -(2.0**63), math.nan, math.inf, 0.5])
VALUES = {
    "i": st.integers(-3, 3) | st.sampled_from(HUGE),
    "k": st.integers(-128, 127),
    "u": st.integers(0, 2**32 - 1),
    "f": FLOATS,
    "g": st.floats(width=32),
    "s": TEXTS,
    "l": TEXTS,
    "d": TEXTS,
    "b": st.booleans(),
    "due": st.integers(-(10**12), 10**12),
    "zoned": st.integers(-(10**6), 10**6),
    "length": st.integers(-(10**9), 10**9),
}
ROW = st.fixed_dictionaries({n: st.none() | v for n, v in VALUES.items()} | {"ts": st.integers(-(10**5), 10**5)})


def attribute(*names):
    return st.builds(x.Attribute, st.sampled_from(["a", "b"]), st.sampled_from(names))


def literal(values):
    return st.builds(x.Literal, values)


def arithmetic(ops, left, right):
    return st.builds(x.Arithmetic, st.sampled_from(ops), left, right)


SMALL = attribute("k") | literal(st.integers(-9, 9))
NUMBER = st.recursive(
    attribute("i", "k", "u", "f", "g") | literal(VALUES["i"] | FLOATS.filter(math.isfinite) | st.none()),
    lambda n: arithmetic("+-*/%", n, n) | st.builds(x.Negative, n),
    max_leaves=4,
)
TEXT = attribute("s", "l", "d") | literal(TEXTS | st.none())
TIME_LEAF = attribute("ts", "due", "zoned") | literal(
    st.sampled_from([0, 10**9 + 1, -60 * 10**9, 10**15 + 1000]).map(x.Moment)
)
LENGTH = st.recursive(
    attribute("length") | literal(st.sampled_from(["90 s", "1 min", "2 d", "3 us", "1 ms"]).map(Duration.of)),
    lambda d: (
        arithmetic("+-", d, d | SMALL)
        | arithmetic("%", d, d)
        | arithmetic("*", d, SMALL)
        | arithmetic("*", SMALL, d)
        | arithmetic("-", TIME_LEAF, TIME_LEAF)
        | st.builds(x.Negative, d)
    ),
    max_leaves=3,
)
TIME = TIME_LEAF | arithmetic("+-", TIME_LEAF, LENGTH | SMALL) | arithmetic("+", LENGTH | SMALL, TIME_LEAF)
SIGN = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def predicates(kind, other):
    return (
        st.builds(x.Comparison, SIGN, kind, other)
        | st.builds(x.Comparison, SIGN, other, kind)
        | st.builds(lambda o, c: x.In(o, tuple(c)), kind, st.lists(other, min_size=1, max_size=3))
        | st.builds(x.Between, kind, other, other)
        | st.builds(x.IsNull, kind)
    )


TRUTH = st.recursive(
    attribute("b")
    | literal(st.booleans() | st.none())
    | predicates(NUMBER, NUMBER)
    | predicates(TEXT, TEXT)
    | predicates(TIME, TIME | SMALL)
    | predicates(LENGTH, LENGTH | SMALL)
    | st.builds(x.Like, TEXT, TEXTS),
    lambda t: (
        st.builds(lambda p: x.And(tuple(p)), st.lists(t, min_size=2, max_size=3))
        | st.builds(lambda p: x.Or(tuple(p)), st.lists(t, min_size=2, max_size=3))
        | st.builds(x.Not, t)
        | st.builds(x.Comparison, st.sampled_from(["=", "<>"]), t, t)
        | st.builds(x.IsNull, t)
    ),
    max_leaves=5,
)


def columns(rows, offset):
    """Two rows of values, for variables a and b, as a lookup; ``offset`` rows before them are cut off again."""
    padded = [rows[0]] * offset + rows if rows else rows
    cut = offset if rows else 0
    arrays = {n: pa.array([r[n] for r in padded], column_type(t)) for n, t in SCHEMA.items()}
    arrays["d"] = arrays["d"].dictionary_encode().cast(SCHEMA["d"])
    arrays["g"] = arrays["g"].cast(pa.float32())
    return lambda attribute: arrays[attribute.name][cut:]


def column_type(type):
    if pa.types.is_dictionary(type):
        return pa.string()
    return type


def python_row(row):
    """A row as the reference wants it."""
    scales = {"due": ("time", 10**3), "zoned": ("time", 10**9), "length": ("duration", 10**6)}
    made = dict(row)
    for name, (kind, scale) in scales.items():
        made[name] = None if row[name] is None else (kind, Fraction(row[name] * scale))
    return made


UNIT = st.sampled_from(["ms", "s", "min"])


@settings(max_examples=250)
@given(TRUTH, st.lists(ROW, max_size=4), UNIT, st.integers(0, 9))
def test_conditions_are_true_where_the_reference_says_so(expr, rows, unit, offset):
    expected = [scalar(expr, python_row(r), unit) is True for r in rows]
    found = truth(expr, columns(rows, offset), Times(unit, pa.int64()), len(rows))
    assert found.dtype == np.bool_
    assert found.tolist() == expected, write(expr)


@settings(max_examples=250)
@given(NUMBER | TEXT | TRUTH, st.lists(ROW, max_size=4), UNIT, st.integers(0, 9))
def test_values_are_those_of_the_reference(expr, rows, unit, offset):
    kind = result_type(expr, Stream(unit=unit), pa.schema(SCHEMA.items()))
    found = evaluate(expr, columns(rows, offset), Times(unit, pa.int64()), len(rows), kind)
    expected = [scalar(expr, python_row(r), unit) for r in rows]
    assert found.type == kind
    assert found.to_pylist() == expected, write(expr)


@settings(max_examples=200)
@given(TIME | LENGTH, st.lists(ROW, max_size=4), UNIT, st.sampled_from([None, "s", "ms", "us"]))
def test_times_are_rounded_down_to_the_unit_of_the_time_column(expr, rows, unit, column):
    ts_type = pa.int64() if column is None else pa.timestamp(column, "UTC")
    schema = pa.schema([(n, ts_type if n == "ts" else t) for n, t in SCHEMA.items()])
    kind = result_type(expr, Stream(unit=unit), schema)
    found = evaluate(expr, columns(rows, 0), Times(unit, ts_type), len(rows), kind)
    assert found.type == kind
    bare = isinstance(expr, x.Attribute) and expr.name != "ts"
    scale = UNITS[kind.unit if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else unit]
    values = [scalar(expr, python_row(r), unit) for r in rows]
    exact = [None if v is None else v[1] / scale for v in values]
    if pa.types.is_floating(kind):
        assert found.to_pylist() == pytest.approx([None if v is None else float(v) for v in exact]), write(expr)
    else:
        whole = [None if v is None else math.floor(v) for v in exact]
        assert found.cast(pa.int64()).to_pylist() == whole, (write(expr), bare)


# Single facts, one by one.


def expression(text):
    return parse(f"PATTERN SEQ(A a, B b) RETURN {text} AS v").returns[0].expr


SECONDS = Times("s", pa.int64())


def values(text, times=SECONDS, **arrays):
    rows = max([len(a) for a in arrays.values()], default=1)
    return evaluate(expression(text), lambda attribute: arrays[attribute.name], times, rows).to_pylist()


def test_division_is_true_division_and_by_zero_null():
    assert values("a.i / 2", i=pa.array([3, -3, 0])) == [1.5, -1.5, 0.0]
    assert values("3 / a.i", i=pa.array([0, 2])) == [None, 1.5]
    assert values("3.0 / a.f", f=pa.array([0.0, -0.0, 2.0])) == [None, None, 1.5]


def test_the_rest_has_the_sign_of_the_dividend():
    assert values("a.i % 3", i=pa.array([7, -7, 7])) == [1, -1, 1]
    assert values("a.i % -3", i=pa.array([7, -7])) == [1, -1]
    assert values("a.i % 0", i=pa.array([7])) == [None]
    assert values("a.f % 2", f=pa.array([-7.5, math.inf])) == [-1.5, None]


def test_integers_that_leave_64_bits_are_null():
    top, bottom = 2**63 - 1, -(2**63)
    assert values("a.i + 1", i=pa.array([top, top - 1])) == [None, top]
    assert values("a.i - 1", i=pa.array([bottom, bottom + 1])) == [None, bottom]
    assert values("a.i * 2", i=pa.array([2**62, 2**62 - 1, -(2**62)])) == [None, 2**63 - 2, bottom]
    assert values("-a.i", i=pa.array([bottom, top])) == [None, -top]
    assert values("a.u + 0", u=pa.array([2**63, 5], pa.uint64())) == [None, 5]


def test_nan_is_null_even_as_a_bare_field():
    f = pa.array([math.nan, 1.0, None])
    assert values("a.f", f=f) == [None, 1.0, None]
    assert values("a.f IS NULL", f=f) == [True, False, True]
    assert values("a.f <> 1", f=f) == [None, False, None]


def test_integers_and_floats_compare_exactly():
    i = pa.array([2**53 + 1, 2**63 - 1, -(2**63)])
    assert values("a.i = a.f", i=i, f=pa.array([2.0**53, 2.0**63, -(2.0**63)])) == [False, False, True]
    assert values("a.f < a.i", i=i, f=pa.array([2.0**53, 2.0**63, -math.inf])) == [True, False, True]


def test_text_compares_by_code_points():
    assert values("a.s < 'a'", s=pa.array(["Z", "a", "é", "", None])) == [True, False, False, True, None]
    # U+FFFF before U+10000, unlike in UTF-16.
    assert values("a.s < '\U00010000'", s=pa.array(["\uffff"])) == [True]


def test_like_has_no_surprises():
    s = pa.array(["50%", "50x", "a.c", "abc", "a\nc", "", None])
    assert values(r"a.s LIKE '50\%'", s=s) == [True, False, False, False, False, False, None]
    assert values("a.s LIKE 'a.c'", s=s) == [False, False, True, False, False, False, None]
    assert values("a.s LIKE 'a_c'", s=s) == [False, False, True, True, True, False, None]
    assert values("a.s LIKE '%'", s=s) == [True] * 6 + [None]
    assert values("a.s LIKE '_'", s=pa.array(["é", "ab", "\U0001f600"])) == [True, False, True]
    assert values("a.s LIKE 'a\\'", s=pa.array(["a\\", "a"])) == [True, False]
    assert values("'abc' LIKE 'A%'") == [False]


def test_in_with_null_is_unknown_unless_found():
    assert values("a.i IN (1, NULL)", i=pa.array([1, 2, None])) == [True, None, None]
    assert values("a.i NOT IN (1, NULL)", i=pa.array([1, 2, None])) == [False, None, None]
    assert values("a.s IN ('x', 'y')", s=pa.array(["x", "z", None])) == [True, False, None]


def test_conditions_without_attributes_hold_for_all_rows_or_none():
    for text, expected in [("1 < 2", [True] * 3), ("NULL", [False] * 3), ("NOT 1 = 1 OR 'a' = 'b'", [False] * 3)]:
        assert truth(expression(text), None, SECONDS, 3).tolist() == expected


def test_constants_fill_a_column():
    for text, expected in [("1", 1), ("'x'", "x"), ("1.5", 1.5), ("TRUE", True), ("NULL", None), ("90 s", 90)]:
        assert evaluate(expression(text), None, SECONDS, 2).to_pylist() == [expected] * 2


def test_plain_numbers_count_the_streams_unit():
    arrays = {"ts": pa.array([0, 10]), "n": pa.array([600, None])}
    minutes = Times("min", pa.int64())
    assert values("a.ts - TIMESTAMP '1970-01-01' >= 10", minutes, **arrays) == [False, True]
    assert values("a.ts + 90 s", minutes, **arrays) == [1, 11]
    assert values("a.ts - b.ts > 0.5", minutes, **arrays) == [False, False]
    assert values("90 s > 1", minutes, **arrays) == [True, True]
    assert values("90 s < 1.5", minutes, **arrays) == [False, False]
    assert values("10 h = a.n", minutes, **arrays) == [True, None]


def test_durations_divide_and_multiply():
    minutes = Times("min", pa.int64())
    length = pa.array([90_000, None], pa.duration("ms"))
    assert values("a.d / 1 min", minutes, d=length) == [1.5, None]
    assert values("a.d / 2", minutes, d=length) == [0.75, None]
    assert values("a.d * 2", minutes, d=length) == [3.0, None]
    assert values("0.5 * a.d", minutes, d=length) == [0.75, None]
    assert values("a.d % 1 min", minutes, d=length) == [0.5, None]
    assert values("a.d / 0", minutes, d=length) == [None, None]


def test_times_of_other_columns_compare_as_instants():
    due = pa.array([1_000_000_000, 59_999_999_999], pa.timestamp("ns", "America/New_York"))
    ts = pa.array([0, 1])
    assert values("a.due > a.ts", Times("min", pa.int64()), due=due, ts=ts) == [True, False]
    assert values("a.day = a.ts", Times("h", pa.int64()), day=pa.array([1], pa.date32()), ts=pa.array([24])) == [True]


@pytest.mark.parametrize("op", ["=", "<>", "<", "<=", ">", ">="])
def test_counts_of_different_units_compare_exactly(op):
    """Around equality, on both sides of zero, and where the coarser count has no 64 bits in the finer unit."""
    days = [-1, -1, -1, 0, 1, 1, 1, 2**31 - 1, -(2**31)]
    times = [t * 3_600 * 10**9 for t in (-25, -24, -23, 0, 23, 24, 25)] + [2**63 - 1, -(2**63)]
    arrays = {"day": pa.array(days, pa.int32()).cast(pa.date32()), "ts": pa.array(times)}
    decide = {"=": int.__eq__, "<>": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    pairs = [(day * UNITS["d"], time) for day, time in zip(days, times, strict=True)]
    nanoseconds = Times("ns", pa.int64())
    assert values(f"a.day {op} a.ts", nanoseconds, **arrays) == [decide[op](d, t) for d, t in pairs]
    assert values(f"a.ts {op} a.day", nanoseconds, **arrays) == [decide[op](t, d) for d, t in pairs]


def test_other_types_of_columns():
    decimals = pa.array([None, "1.50"]).cast(pa.decimal128(10, 2))
    assert values("a.d > 1.4", d=decimals) == [None, True]
    assert values("a.n = 1", n=pa.nulls(2)) == [None, None]
    assert values("a.h + 1", h=pa.array([1.5], pa.float16())) == [2.5]
    assert values("a.x = a.x", x=pa.array([b"x", None])) == [True, None]
    assert values("a.x IS NULL", x=pa.array([[1], None])) == [False, True]
    assert values("a.v = 'x'", v=pa.array(["x", None], pa.string_view())) == [True, None]
    assert values("a.d", d=pa.array(["x", None]).dictionary_encode()) == ["x", None]


def test_slices_are_read_at_their_offset():
    flags = pa.array([i % 3 == 0 for i in range(40)])[13:]
    assert values("a.b", b=flags) == [i % 3 == 0 for i in range(13, 40)]
    assert values("NOT a.b", b=flags) == [i % 3 != 0 for i in range(13, 40)]
    numbers = pa.array([None if i % 5 == 0 else i for i in range(40)])[17:33]
    assert values("a.i + 0", i=numbers) == [None if i % 5 == 0 else i for i in range(17, 33)]


def test_empty_batches_give_empty_columns():
    for text in ("a.i + 1", "a.s LIKE 'x'", "a.i IN (1, 2)", "1", "'x'", "a.b AND TRUE"):
        arrays = {"i": pa.array([], pa.int64()), "s": pa.array([], pa.string()), "b": pa.array([], pa.bool_())}
        assert values(text, **arrays) == []


@pytest.mark.parametrize("text", ["a.s > 1", "a.s + 1", "-a.s", "a.i LIKE 'x'", "a.x < a.x", "a.b > 1", "a.x = a.i"])
def test_what_no_schema_has_checked_is_refused_when_it_runs(text):
    arrays = {"s": pa.array(["x"]), "i": pa.array([1]), "x": pa.array([[1]]), "b": pa.array([True])}
    with pytest.raises(QueryError, match=r"cannot compute|cannot compare|LIKE needs text"):
        values(text, **arrays)


def test_a_condition_must_be_one():
    with pytest.raises(QueryError, match="a condition is needed, and this is int"):
        truth(expression("a.i"), lambda a: pa.array([1]), SECONDS, 1)


def test_compiling_again_gives_the_same_closure():
    times = SECONDS
    assert compile_truth(expression("a.i > 1"), times) is compile_truth(expression("a.i  >  1"), times)
    assert compile_truth(expression("a.i > 1"), times) is not compile_truth(expression("a.i > 1.0"), times)
    assert compile_value(expression("a.i"), times) is not compile_value(expression("b.i"), times)
