"""Types of text columns: which type all values of a column fit, and which cells do not fit a given one.

A column has the first type of ``KINDS`` that all its values fit, and is text otherwise. Digits are not always numbers:
``007`` stays text, since as a number it would lose its zeros, and so do whole numbers too long for 64 bits. An empty
cell is null; the usual spellings of null (``NA``, ``null`` …) are null in columns of numbers, times and booleans, and
text in columns of text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import ConfigError, options

WHOLE = pa.int64()
REAL = pa.float64()
TRUTH = pa.bool_()
TEXT = pa.string()
TIMES = (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))

#: A weight for each unit of an interval. In text they are written as JSON, and they are never guessed.
WEIGHTS = pa.list_(pa.float64())

#: Narrowest first.
KINDS: tuple[pa.DataType, ...] = (WHOLE, REAL, TRUTH, *TIMES)

#: How a user names a type.
NAMES: dict[str, pa.DataType | None] = {
    "int": WHOLE,
    "float": REAL,
    "bool": TRUTH,
    "text": TEXT,
    "time": None,
    "weights": WEIGHTS,
}

_NULLS = pa.array(["NA", "N/A", "NULL", "Null", "null", "None", "NaN", "nan", "-"])
_NOT_WHOLE = r"^[+-]?0[0-9xX]"
_NOT_REAL = r"^[+-]?0[0-9xX]|^[+-]?[0-9]{17,}$"
_SAMPLE = 100
_HEAD = 4


def parse_types(declared: Mapping[str, str]) -> dict[str, tuple[pa.DataType, ...]]:
    """Column name -> the types it may have, from names as users write them: ``{"price": "float"}``."""
    for column, name in declared.items():
        if name not in NAMES:
            raise ConfigError(f"column {column!r} is declared as {name!r}: allowed are {options(NAMES)}")
    return {column: TIMES if (kind := NAMES[name]) is None else (kind,) for column, name in declared.items()}


def convert(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """A text column as ``kind``, and which of its cells do not fit (those are null in the result)."""
    bad = np.zeros(len(column), dtype=bool)
    if kind == TEXT:
        return column, bad
    if kind == WEIGHTS:
        return _weights(column, bad)
    column = pc.if_else(pc.is_in(column, _NULLS), None, column)
    if kind in (WHOLE, REAL):
        refused = pc.match_substring_regex(column, _NOT_WHOLE if kind == WHOLE else _NOT_REAL)
        bad |= refused.fill_null(False).to_numpy(zero_copy_only=False)
    _mark_misfits(column, kind, bad)
    if bad.any():
        column = pc.if_else(pa.array(bad), None, column)
    return column.cast(kind), bad


def _weights(column: pa.Array, bad: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Lists of numbers from JSON text; what is none is null and bad."""
    found: list[list[float] | None] = []
    for row, text in enumerate(column.to_pylist()):
        try:
            value = None if text is None else json.loads(text)
        except ValueError:
            value = text
        good = value is None or is_weights(value)
        found.append(value if good else None)
        bad[row] = not good
    return pa.array(found, WEIGHTS), bad


def is_weights(value: object) -> bool:
    """Whether a value is a list of numbers, any of which may be missing."""
    return isinstance(value, list) and all(type(weight) in (int, float, type(None)) for weight in value)


def _mark_misfits(column: pa.Array, kind: pa.DataType, bad: np.ndarray) -> None:
    """Set ``bad`` where a cell cannot be cast: by halving, so that few misfits cost few casts."""
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        if len(column) == 1:
            bad[0] = True
            return
        for start, stop in pairwise((0, len(column) // 2, len(column))):
            _mark_misfits(column.slice(start, stop - start), kind, bad[start:stop])


class Guess:
    """The type of one text column, found by seeing all its values.

    Args:
        kinds: the types it may have; the first that all values fit is taken.
        majority: take the type that most values fit instead, so that a few broken cells do not make the column text.
        otherwise: the type when none fits.
    """

    __slots__ = ("_fits", "_majority", "_otherwise", "_seen")

    def __init__(
        self, kinds: tuple[pa.DataType, ...], *, majority: bool = False, otherwise: pa.DataType = TEXT
    ) -> None:
        self._fits: dict[pa.DataType, int] = dict.fromkeys(kinds, 0)
        self._majority = majority
        self._otherwise = otherwise
        self._seen = 0

    def see_all(self, column: pa.ChunkedArray) -> None:
        """Take in the next values."""
        for piece in column.chunks:
            self._see(piece)

    def _see(self, column: pa.Array) -> None:
        self._seen += len(column) - column.null_count
        whole = [kind for kind in self._fits if _all_fit(column, kind)]
        if self._majority and not whole:
            for kind in self._fits:
                self._fits[kind] += _count_fits(column, kind)
            return
        # What a type fits no other type fits in part: texts that are whole numbers are no times, and so on.
        for kind in whole:
            self._fits[kind] += len(column)
        if not self._majority:
            self._fits = {kind: self._fits[kind] for kind in whole}

    @property
    def type(self) -> pa.DataType:
        """The type so far."""
        if not self._seen:
            return next(iter(self._fits)) if self._majority else self._otherwise
        best = max(self._fits, key=lambda kind: self._fits[kind], default=self._otherwise)
        return best if self._fits.get(best) else self._otherwise


def _count_fits(column: pa.Array, kind: pa.DataType) -> int:
    # A type that fits nothing at all would be halved down to single cells; a sample spares that.
    sample = column.drop_null().slice(0, _SAMPLE)
    if convert(sample, kind)[1].all():
        return 0
    return len(column) - int(convert(column, kind)[1].sum())


def guess_for(
    name: str,
    time: str | None,
    declared: Mapping[str, tuple[pa.DataType, ...]],
    otherwise: tuple[pa.DataType, ...] = KINDS,
) -> Guess:
    """How the type of column ``name`` is found: declared, a time of either kind, or one of ``otherwise``."""
    if name in declared:
        return Guess(declared[name], majority=True, otherwise=declared[name][0])
    if name == time:
        return Guess((WHOLE, *TIMES), majority=True)
    return Guess(otherwise)


def _all_fit(column: pa.Array, kind: pa.DataType) -> bool:
    if kind == WEIGHTS:
        return not convert(column, kind)[1].any()
    column = pc.if_else(pc.is_in(column, _NULLS), None, column)
    if kind in (WHOLE, REAL):
        refused = pc.match_substring_regex(column, _NOT_WHOLE if kind == WHOLE else _NOT_REAL)
        if pc.any(refused).as_py():
            return False
    try:
        column.slice(0, _HEAD).cast(kind)  # a cast that fails is slow, and most fail at once
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def misfit(column: str, value: object, kind: pa.DataType) -> str:
    """What is wrong with a cell, in words."""
    if kind == WHOLE:
        wanted = "a whole number"
    elif kind == REAL:
        wanted = "a number"
    elif kind == TRUTH:
        wanted = "true or false"
    elif kind == WEIGHTS:
        wanted = "a list of numbers"
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        wanted = f"a time like 2013-01-31 05:15:00{zone}"
    else:
        wanted = f"of type {kind}"
    return f"column {column!r}: {value!r} is not {wanted}"
