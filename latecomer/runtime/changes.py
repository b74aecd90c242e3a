"""Changes: how matches become rows of the output table.

A match's id is a stable 128-bit hash of the query's name and the constituents' ids in pattern order, written as 32
hex digits: the same match has the same id on every run, machine and batch split, so that every sink can be
idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.levels import Aggressive
from latecomer.errors import ConfigError
from latecomer.query.expressions import Attribute, Call, Expr, Literal, replaced
from latecomer.query.plan import Plan
from latecomer.query.types import EVENT_TIME, INTERVAL_COLUMNS, result_type
from latecomer.runtime.evaluate import Lookup, Times, compile_value
from latecomer.runtime.intervals.lane import Told
from latecomer.runtime.intervals.matcher import Revision
from latecomer.runtime.lane import Delta
from latecomer.runtime.pattern import Pattern, Tester
from latecomer.runtime.rows import Answer, Rows, joined
from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, hash_halves
from latecomer.storage.log import EventLog
from latecomer.stream import Stream
from latecomer.units import UNITS


def change_schema(
    plans: Sequence[Plan], stream: Stream, schema: pa.Schema, id_type: pa.DataType, ts_type: pa.DataType
) -> pa.Schema:
    """The columns of the output for these queries: the fixed ones, then the union of their RETURN fields.

    Raises ConfigError when two queries return a field of one name with different types.
    """
    fields: dict[str, tuple[pa.DataType, str]] = {}
    for plan in plans:
        for alias, expr in plan.returns:
            if stream.uncertain and alias in INTERVAL_COLUMNS:
                continue  # confidence() under its own name: every change has it
            kind = result_type(expr, stream, schema)
            before = fields.setdefault(alias, (kind, plan.name))
            if before[0] != kind:
                raise ConfigError(
                    f"queries {before[1]!r} and {plan.name!r} both return {alias!r}, as {before[0]} and as {kind}: "
                    "give one of them another name with AS"
                )
    fixed = [
        ("op", pa.string()),
        ("query", pa.string()),
        ("match_id", pa.string()),
        ("events", pa.list_(id_type)),
        ("first_ts", ts_type),
        ("last_ts", ts_type),
    ]
    if stream.uncertain:
        fixed += [("earliest", ts_type), ("latest", ts_type), ("confidence", pa.float64())]
        if any(p.confidence.error is not None for p in plans):
            fixed.append(("confidence_error", pa.float64()))
    if any(p.level.on_late == "amend" for p in plans):
        fixed.append(("amended", pa.bool_()))
    if any(isinstance(p.level, Aggressive) and p.level.corrections == "replace" for p in plans):
        fixed.append(("revision", pa.int64()))
    return pa.schema(fixed + [(name, kind) for name, (kind, _) in fields.items()])


#: Whether matches come, and how many of them; one after another.
Ops = Sequence[tuple[bool, int]]

#: The columns that all changes have.
_FIXED = ("op", "query", "match_id", "events", "first_ts", "last_ts")


class Repeated:
    """A text many times over, made once: batches take pieces of one array."""

    def __init__(self, text: str) -> None:
        self._text, self._array = text, pa.array([], pa.string())

    def take(self, n: int) -> pa.Array:
        """The text ``n`` times."""
        if len(self._array) < n:
            self._array = pa.repeat(self._text, max(2 * n, 256))
        return self._array.slice(0, n)


class ChangeWriter:
    """Turns one query's matches into rows of the common schema."""

    def __init__(
        self,
        pattern: Pattern,
        schema: pa.Schema,
        id_name: str,
        log: EventLog,
        tester: Tester,
        times: Times,
        uncertain: bool = False,
    ) -> None:
        self._pattern, self._schema, self._id, self._log, self._tester = pattern, schema, id_name, log, tester
        self._times = times
        self._name = [int(half[0]) for half in hash_halves(pa.array([pattern.plan.name]))]
        self._fields = [(f.name, f.type) for f in schema]
        self._id_type = schema.field("events").type.value_type
        self._ts_type = schema.field("first_ts").type
        self._texts = {text: Repeated(text) for text in ("insert", "delete")} | {"query": Repeated(pattern.plan.name)}
        self._fixed = pa.schema([schema.field(name) for name in _FIXED])
        self._signed = pa.types.is_signed_integer(self._id_type)
        self._scale = 1, 1  # what times are multiplied by, and divided by, for the output
        if pa.types.is_timestamp(self._ts_type):
            per_unit, per_value = times.scale, UNITS[self._ts_type.unit]
            self._scale = max(per_unit // per_value, 1), max(per_value // per_unit, 1)
        self._slot = np.zeros(10, np.uint64)  # where a struct ArrowArray is handed over
        self._address = self._slot.ctypes.data
        level = pattern.plan.level
        self._amends = level.on_late == "amend"
        self._revises = isinstance(level, Aggressive) and level.corrections == "replace"
        #: Whether times are intervals, so that changes say what is known of them.
        self._uncertain = uncertain
        self._returns = {
            alias: compile_value(replaced(expr, _apart if uncertain else _exactly), times, schema.field(alias).type)
            for alias, expr in pattern.plan.returns
        }

    def write(self, deltas: Sequence[Delta]) -> pa.RecordBatch:
        """One row for each match, in the order of the deltas."""
        rows = joined([d.rows for d in deltas])
        positives = self._pattern.positives
        refs = np.empty((len(rows), len(positives)), np.int64)
        for column, index in enumerate(positives):
            refs[:, column] = rows.ref(index)
        if self._uncertain:
            first, last = _joint(deltas, "earliest", 0), _joint(deltas, "latest", -1)
        else:
            first, last = rows.time(positives[0]), rows.time(positives[-1])
        columns = self._fixed_columns([(d.insert, len(d.rows)) for d in deltas], refs, first, last)
        if self._uncertain:
            columns |= {"earliest": columns["first_ts"], "latest": columns["last_ts"]}
            columns["confidence"] = _joint_confidence(deltas)
            columns["confidence_error"] = pa.array(np.concatenate([r.error for r in _revisions(deltas)]))
        if self._amends:
            columns["amended"] = pa.concat_arrays([pa.repeat(d.amended, len(d.rows)) for d in deltas])
        if self._revises:
            columns["revision"] = pa.array(np.concatenate([self._causes(d) for d in deltas]))
        return self._together(columns, rows, deltas)

    @property
    def output(self) -> tuple[Any, ...] | None:
        """What ``native/plan.h`` has to know to write answers; None: it cannot, there are more columns."""
        if len(self._fields) > len(_FIXED):
            return None
        return self._pattern.plan.name, *self._name, self._signed, *self._scale

    def take(self, address: int) -> pa.RecordBatch:
        """An answer that has been written so, taken from the struct ArrowArray at this address."""
        return pa.RecordBatch._import_from_c(address, self._fixed)

    def write_answer(self, answer: Answer) -> pa.RecordBatch:
        """One row for each match."""
        if kernels.write_changes is not None and len(self._fields) == len(_FIXED):
            return self._whole(answer.ops, answer.refs, answer.ts[:, 0], answer.ts[:, -1])
        columns = self._fixed_columns(answer.ops, answer.refs, answer.ts[:, 0], answer.ts[:, -1])
        return self._together(columns, answer.rows(self._pattern.positives, len(self._pattern.components)), ())

    def _together(self, columns: dict[str, pa.Array], rows: Rows, deltas: Sequence[Delta]) -> pa.RecordBatch:
        """All columns of the schema: those that there are, RETURN fields of ``rows``, and nulls for other queries'."""
        n = len(rows)
        if self._returns:
            lookup = self._tester.lookup(rows)
            if self._uncertain:
                lookup = self._known(deltas, lookup)
            for alias, value in self._returns.items():
                columns[alias] = value(lookup, n)
        arrays = [columns[name] if name in columns else pa.nulls(n, kind) for name, kind in self._fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _fixed_columns(self, ops: Ops, refs: I64, first: I64, last: I64) -> dict[str, pa.Array]:
        """The columns that all changes have; ``first`` and ``last`` are times in the stream's units."""
        if kernels.write_changes is None:
            return self._by_column(ops, refs, self._moments(first), self._moments(last))
        return dict(zip(_FIXED, self._whole(ops, refs, first, last).columns, strict=True))

    def _whole(self, ops: Ops, refs: I64, first: I64, last: I64) -> pa.RecordBatch:
        """They in one go."""
        ids, places, shift = self._log.raw(self._id, refs.ravel())
        moments = self._moments(first), self._moments(last)
        name = self._pattern.plan.name
        kernels.write_changes(self._slot, ops, name, ids, self._signed, places, shift, *moments, *self._name)
        return self.take(self._address)

    def _by_column(self, ops: Ops, refs: I64, first: I64, last: I64) -> dict[str, pa.Array]:
        """They one after another."""
        n, each = refs.shape
        ids = self._log.take(self._id, refs.ravel())
        return {
            "op": self._ops(ops),
            "query": self._texts["query"].take(n),
            "match_id": texts_of(kernels.match_digits(*hash_halves(ids), each, *self._name), n),
            "events": self._lists(_as(ids, self._id_type), n, each),
            "first_ts": self._times_of(first),
            "last_ts": self._times_of(last),
        }

    def _known(self, deltas: Sequence[Delta], lookup: Lookup) -> Lookup:
        """A lookup that knows what functions say too."""
        places = {c.var: place for place, c in enumerate(self._pattern.plan.positives)}

        def column(attribute: Attribute) -> pa.Array:
            if not attribute.var.startswith(_APART):
                return lookup(attribute)
            function, _, var = attribute.var.removeprefix(_APART).partition(_APART)
            if function == "confidence":
                return _joint_confidence(deltas)
            return pa.array(_joint(deltas, function, places[var]))

        return column

    def _lists(self, ids: pa.Array, n: int, each: int) -> pa.Array:
        """The ids of each match as a list."""
        offsets = np.arange(0, (n + 1) * each, each, dtype=np.int32)
        kind = self._schema.field("events").type
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(offsets)], children=[ids])

    def _ops(self, ops: Ops) -> pa.Array:
        pieces = [self._texts["insert" if insert else "delete"].take(n) for insert, n in ops]
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    def _moments(self, ts: I64) -> I64:
        """Times in the stream's units in those of the output's type."""
        factor, divisor = self._scale
        return ts * factor if factor > 1 else ts // divisor if divisor > 1 else ts

    def _times_of(self, moments: I64) -> pa.Array:
        """A column of the output's type."""
        return pa.Array.from_buffers(self._ts_type, len(moments), [None, pa.py_buffer(np.ascontiguousarray(moments))])

    def _causes(self, delta: Delta) -> I64:
        """The arrival number of the event that caused each change: the negative that killed, or the match's last to
        arrive.

        Changes of one event share the number, so a consumer can replace what it deleted by what it inserted.
        """
        if delta.cause is not None:
            return delta.cause
        return np.maximum.reduce([delta.rows.ref(i) for i in self._pattern.positives])  # type: ignore[no-any-return]


def _exactly(call: Call) -> Expr:
    """What a function says where times are exact."""
    return Literal(1.0) if call.var is None else Attribute(call.var, EVENT_TIME)


#: Begins the names of variables that stand for functions.
_APART = "\0"


def _apart(call: Call) -> Expr:
    """A function as an attribute of a variable that no query can have."""
    var = f"{_APART}{call.function}{_APART}{call.var or ''}"
    return Attribute(var, call.function if call.var is None else EVENT_TIME)


def _revisions(deltas: Sequence[Delta]) -> list[Revision]:
    return [d.revision for d in deltas if isinstance(d, Told) and d.revision is not None]


def _joint(deltas: Sequence[Delta], side: str, place: int) -> I64:
    """The ``earliest`` or ``latest`` of one positive in all matches."""
    result: I64 = np.concatenate([getattr(r, side)[place] for r in _revisions(deltas)])
    return result


def _joint_confidence(deltas: Sequence[Delta]) -> pa.Array:
    """The confidences of all matches, null where that was too costly to find out."""
    values = np.concatenate([r.confidence for r in _revisions(deltas)])
    return pa.array(values, mask=np.isnan(values))


def texts_of(digits: Any, n: int) -> pa.Array:
    """Ids of 32 hex digits each, given as bytes, as texts."""
    offsets = np.arange(0, 32 * (n + 1), 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def hex_ids(high: U64, low: U64) -> pa.Array:
    """128-bit ids as texts of 32 hex digits."""
    raw = np.stack((high, low), axis=1).astype(">u8").tobytes().hex().encode()
    return texts_of(raw, len(high))


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """``values`` in the type that the schema wants."""
    return values if values.type == kind else values.cast(kind, safe=False)


def check_names(plans: Sequence[Plan]) -> None:
    """Names tell queries apart in the output."""
    names = [p.name for p in plans]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two queries are called {name!r}: give each its own, Query(…, name=…)")
