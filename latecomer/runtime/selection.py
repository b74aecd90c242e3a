"""Selections: which of a batch's events a store takes in, and under which key hash.

A selection is the identity of a store: (event type, local filter, key attributes). Queries that ask for the same
selection share it, whatever they call their variables. A null (or NaN) in a key attribute joins nothing, so such
events are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.query.expressions import Attribute, Expr, renamed
from latecomer.query.plan import Component
from latecomer.query.types import EVENT_TIME
from latecomer.runtime.evaluate import Condition, Lookup
from latecomer.storage import kernels
from latecomer.storage.columns import I64
from latecomer.storage.hashing import U64, combine, hash_column
from latecomer.storage.store import Bools


@dataclass(frozen=True, slots=True)
class Selection:
    """Events of ``type`` that pass ``filter`` (conjuncts over the nameless variable), by ``key`` attributes."""

    type: str
    filter: tuple[Expr, ...]
    key: tuple[str, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Stores are looked up many times in a batch, and a filter's expressions may be large.
        object.__setattr__(self, "_hash", hash((self.type, self.filter, self.key)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, component: Component, key: tuple[str, ...]) -> Selection:
        return _known(component.type, renamed(component.filter, lambda _: ""), key)


@lru_cache(4_096)
def _known(type: str, filter: tuple[Expr, ...], key: tuple[str, ...]) -> Selection:
    """The selection, as one object, so that looking up its store need not compare expressions."""
    return Selection(type, filter, key)


_NO_ROWS, _THE_ONE = np.zeros(0, np.int64), np.zeros(1, np.int64)
_NO_HASHES = np.zeros(0, np.uint64)


class Selector:
    """Applies selections to one batch of accepted events; what several selections share is computed once."""

    def __init__(
        self,
        types: I64,
        numbers: Mapping[str, int],
        ts: I64,
        columns: Mapping[str, pa.Array],
        conditions: Mapping[Expr, Condition],
        hashes: Mapping[str, U64 | None] = MappingProxyType({}),
    ) -> None:
        """``hashes``: of columns that have no nulls and no NaN, as far as they are known already."""
        self._types, self._numbers, self._ts, self._columns, self._conditions = types, numbers, ts, columns, conditions
        self._of_type: dict[str, I64] = {}
        self._filtered: dict[tuple[str, tuple[Expr, ...]], I64] = {}
        self._hashes: dict[str, U64] = {}
        self._usable: dict[str, Any] = {}
        for name, known in hashes.items():
            if known is not None and name != EVENT_TIME:
                self._hashes[name], self._usable[name] = known, None
        #: Keys of which hashes are known, and all of whose values join.
        self._plain_keys = {(), *((name,) for name in self._usable)}

    def select(self, selection: Selection) -> tuple[I64, U64]:
        """Positions in the batch, ascending, and their key hashes."""
        rows = self._filter(selection)
        if not len(rows):
            return rows, _NO_HASHES
        for name in selection.key:
            usable = self._usable_keys(name)
            if usable is not None:
                rows = rows[usable[rows]]
        if not selection.key:
            return rows, np.zeros(len(rows), np.uint64)
        hashes = self._hash(selection.key[0]).take(rows)
        for name in selection.key[1:]:
            hashes = combine(hashes, self._hash(name).take(rows))
        return rows, hashes

    def picked(self, selection: Selection, mask: Bools | None, refs: I64) -> tuple[U64, I64, I64]:
        """Key hashes, times and references (``refs`` of the batch's rows) of the selection's events among those that
        ``mask`` marks (None: all).
        """
        if kernels.COMPILED and not selection.filter and selection.key in self._plain_keys:
            hashes = self._hashes[selection.key[0]] if selection.key else None
            number = self._numbers[selection.type]
            picked: tuple[U64, I64, I64] = kernels.pick(self._types, number, mask, hashes, self._ts, refs)
            return picked
        at, hashes = self.select(selection)
        if mask is not None and len(at):
            marked = mask.take(at)
            at, hashes = at[marked], hashes[marked]
        return (hashes, self._ts.take(at), refs.take(at)) if len(at) else (hashes, at, at)

    def _filter(self, selection: Selection) -> I64:
        known = self._filtered.get((selection.type, selection.filter))
        if known is not None:
            return known
        rows = self._of_type.get(selection.type)
        if rows is None:
            rows = self._of_type[selection.type] = self._rows_of(self._numbers[selection.type])
        for conjunct in selection.filter:
            if len(rows):
                rows = rows[self._conditions[conjunct](self._lookup(rows), len(rows))]
        self._filtered[selection.type, selection.filter] = rows
        return rows

    def _rows_of(self, number: int) -> I64:
        if len(self._types) == 1:  # many streams come one event at a time
            return _THE_ONE if self._types[0] == number else _NO_ROWS
        rows: I64 = (self._types == number).nonzero()[0]
        return rows

    def _lookup(self, rows: I64) -> Lookup:
        positions = pa.array(rows)
        ts = self._ts

        def lookup(attribute: Attribute) -> pa.Array:
            if attribute.name == EVENT_TIME:
                return pa.array(ts[rows])
            return self._columns[attribute.name].take(positions)

        return lookup

    def _hash(self, name: str) -> U64:
        if name not in self._hashes:
            column = pa.array(self._ts) if name == EVENT_TIME else self._columns[name]
            self._hashes[name] = hash_column(column)
        return self._hashes[name]

    def _usable_keys(self, name: str) -> Any:
        """A mask of the events whose key attribute is a real value; None when all are."""
        if name not in self._usable:
            column = pa.array(self._ts) if name == EVENT_TIME else self._columns[name]
            usable = None
            if pa.types.is_floating(column.type):
                usable = pc.fill_null(pc.invert(pc.is_nan(column)), False).to_numpy(zero_copy_only=False)
            elif column.null_count:
                usable = column.is_valid().to_numpy(zero_copy_only=False)
            self._usable[name] = usable
        return self._usable[name]
