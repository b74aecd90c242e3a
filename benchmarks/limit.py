"""What the machine can do: the NumPy program that has the whole file at once.

It keeps the types that are asked for, sorts each by (key, time), and follows the pattern from part to part with
``searchsorted``, writing all matches. It knows nothing of arrival, lateness or corrections; nothing that answers as
events come can be expected to be faster. It also says what the right answer is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.shapes import Shape

IntArray = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one type: codes of (key, time), sorted, and the row of each."""

    code: IntArray
    row: IntArray


def matches(events: pa.Table, shapes: Sequence[Shape]) -> list[IntArray]:
    """For each shape the ids of its matches, one row each, one column per positive part, in any order."""
    ids = np.asarray(events["id"], np.int64)
    price = np.asarray(events["price"], np.float64) if any(s.rise or s.above is not None for s in shapes) else None
    parts: dict[bool, dict[str, Part]] = {}
    for keyed in sorted({s.keyed for s in shapes}):
        kinds = sorted({p.lstrip("!") for s in shapes if s.keyed == keyed for p in s.parts})
        longest = max(s.window for s in shapes if s.keyed == keyed)
        parts[keyed] = split(events, kinds, keyed, longest)
    return [ids[rows(shape, parts[shape.keyed], price)] for shape in shapes]


def split(events: pa.Table, kinds: Sequence[str], keyed: bool, longest: int) -> dict[str, Part]:
    """The events of these types, each sorted. Codes of two keys are further apart than any window reaches."""
    kind = np.asarray(pc.index_in(events["kind"], value_set=pa.array(kinds)).fill_null(len(kinds)), np.int64)
    kept = np.flatnonzero(kind < len(kinds))
    kind = kind[kept]
    code = np.asarray(events["ts"], np.int64)[kept]
    code = code - code.min() if len(code) else code
    shift = (int(code.max(initial=0)) + longest + 2).bit_length()
    if keyed:
        key = events["key"]
        if not pa.types.is_integer(key.type):
            key = key.combine_chunks().dictionary_encode().indices
        code = np.asarray(key, np.int64)[kept] << shift | code
    packed = kind << int(code.max(initial=0)).bit_length() | code
    order = np.argsort(packed)
    bounds = np.cumsum(np.bincount(kind, minlength=len(kinds)))[:-1]
    return {name: Part(code[at], kept[at]) for name, at in zip(kinds, np.split(order, bounds), strict=True)}


def rows(shape: Shape, parts: dict[str, Part], price: NDArray[np.float64] | None) -> IntArray:
    """The rows of the matches of a shape, one column per positive part."""
    first = _dear(parts[shape.positives[0]], shape, price)
    start, limit = first.code, first.code + shape.window
    found, code = first.row[:, None], start
    absent = np.full(len(code), _NEVER)
    for part in shape.parts[1:]:
        if part.startswith("!"):  # the next part must come no later than the first of these
            absent = np.minimum(absent, _following(parts[part[1:]].code, code))
            continue
        other = _dear(parts[part], shape, price)
        owner, at = _follow(other.code, code, np.minimum(limit, absent))
        if shape.rise and part == shape.positives[-1]:
            assert price is not None
            rising = price[other.row[at]] > price[found[owner, 0]]
            owner, at = owner[rising], at[rising]
        found = np.column_stack((found[owner], other.row[at]))
        limit, code = limit[owner], other.code[at]
        absent = np.full(len(code), _NEVER)
    return found[absent > limit] if shape.trailing else found


def _dear(part: Part, shape: Shape, price: NDArray[np.float64] | None) -> Part:
    if shape.above is None:
        return part
    assert price is not None
    kept = price[part.row] > shape.above
    return Part(part.code[kept], part.row[kept])


def _following(sorted_codes: IntArray, after: IntArray) -> IntArray:
    """The first code behind each."""
    return np.append(sorted_codes, _NEVER)[np.searchsorted(sorted_codes, after, side="right")]


def _follow(sorted_codes: IntArray, after: IntArray, until: IntArray) -> tuple[IntArray, IntArray]:
    """All pairs of an ``after`` and a code with ``after < code <= until``: which after, and where the code is."""
    begin = np.searchsorted(sorted_codes, after, side="right")
    count = np.maximum(np.searchsorted(sorted_codes, until, side="right") - begin, 0)
    owner = np.repeat(np.arange(len(after)), count)
    return owner, np.arange(len(owner)) + np.repeat(begin - (np.cumsum(count) - count), count)


def program(events: pa.Table, shapes: Sequence[Shape]) -> Callable[[], list[IntArray]]:
    """The whole program on these events, ready to be measured."""
    return lambda: matches(events, shapes)


def seq_neg(kind: IntArray, key: IntArray, ts: IntArray, ids: IntArray, window: int) -> tuple[IntArray, IntArray]:
    """Matches of ``SEQ(A a, !B b, C c) WHERE [key] WITHIN window``: (ids of a, ids of c).

    ``kind`` is 0 for A, 1 for B, 2 for C; keys are small numbers of 0 or more; ``window`` is in units of ``ts``.
    """
    names = pa.array(["A", "B", "C", "D"]).take(pa.array(kind))
    events = pa.table({"id": ids, "kind": names, "key": key, "ts": ts})
    (found,) = matches(events, [Shape("gap", ("A", "!B", "C"), window=window)])
    return found[:, 0], found[:, 1]


def columns(events: pa.Table) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(type, key, ts, id) of a table as integer arrays; A is 0, B is 1, C is 2, anything else 3."""
    kind = pc.index_in(events["kind"], value_set=pa.array(["A", "B", "C"])).fill_null(3)
    key = events["key"]
    if not pa.types.is_integer(key.type):
        key = key.combine_chunks().dictionary_encode().indices
    kind, key, ts, ids = (np.asarray(c, dtype=np.int64) for c in (kind, key, events["ts"], events["id"]))
    return kind, key, ts, ids
