"""The event log: the payload of every event that state still refers to, once, in order of arrival.

Stores, sort buffers and held matches keep *references* (row numbers that never change); columns are gathered only for
candidates. Rows leave from the front once nothing can refer to them any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.storage.columns import I64, Buffer, BytesColumn, Column, FixedColumn, make_column
from latecomer.storage.hashing import U64

Bools = npt.NDArray[np.bool_]

_FIRST_LOOK = 1_024  # events; below this a look is not worth its call


class EventLog:
    """Columns ``names`` of ``types``, plus each event's time, type number and content hash.

    A reference is the event's number since the log began; ``base`` is the first one still present. After a
    ``compact`` the log begins with a sparse stretch, whose references are listed; from ``_dense`` on every event is
    present.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.columns: dict[str, Column] = {name: make_column(kind) for name, kind in types.items()}
        self._ts = Buffer(np.dtype(np.int64))
        self._types = Buffer(np.dtype(np.int32))
        self._content = Buffer(np.dtype(np.uint64))
        self._sparse = np.zeros(0, np.int64)
        self._dense = 0
        self._look_at = _FIRST_LOOK

    def __len__(self) -> int:
        return len(self._ts)

    @property
    def base(self) -> int:
        """The first reference that is present."""
        return int(self._sparse[0]) if len(self._sparse) else self._dense

    @property
    def end(self) -> int:
        """The reference that the next event will get."""
        return self._dense + len(self._ts) - len(self._sparse)

    def _at(self, refs: I64) -> I64:
        """Positions of events that are present."""
        positions = refs - (self._dense - len(self._sparse))
        if len(self._sparse):
            old = refs < self._dense
            positions[old] = self._sparse.searchsorted(refs[old])
        return positions

    def present(self, refs: I64) -> Bools:
        """Which events are still here."""
        here = refs >= self._dense
        if len(self._sparse):
            at = self._sparse.searchsorted(refs)
            here |= self._sparse[np.minimum(at, len(self._sparse) - 1)] == refs
        return here

    def append(
        self, ts: I64, types: I64, content: U64, columns: Mapping[str, pa.Array], rows: I64 | None = None
    ) -> None:
        """Add events; ``columns`` holds an array for each of the log's names, of which ``rows`` are the events' (None:
        all)."""
        self._ts.append(ts)
        self._types.append(types)
        self._content.append(content)
        at = None if rows is None else pa.array(rows)
        for name, column in self.columns.items():
            values = columns[name]
            if at is None:
                column.append(values)
            elif isinstance(column, FixedColumn):
                column.append(values, rows)
            else:
                column.append(values.take(at))

    def ts(self, refs: I64) -> I64:
        return self._ts.live().take(self._at(refs))

    def types(self, refs: I64) -> I64:
        return self._types.live().take(self._at(refs))

    def content(self, refs: I64) -> U64:
        return self._content.live().take(self._at(refs))

    def take(self, name: str, refs: I64) -> pa.Array:
        """Values of a column at ``refs``, as an Arrow array (texts come as large_string)."""
        return self.columns[name].take(self._at(refs))

    def equal(self, name: str, refs: I64, other: str, other_refs: I64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the real values agree, row by row; False where either is null."""
        left, right = self.columns[name], self.columns[other]
        if _plain_integers(left) and _plain_integers(right) and left.type == right.type:
            return left.values.live().take(self._at(refs)) == right.values.live().take(self._at(other_refs))  # type: ignore[no-any-return]
        if _plain_texts(left) and _plain_texts(right) and left.type == right.type:
            return left.same(self._at(refs), right, self._at(other_refs))
        result = pc.equal(self.take(name, refs), self.take(other, other_refs))
        if result.null_count:
            result = result.fill_null(False)
        return result.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def drop_before(self, floor: int) -> None:
        """Forget the longest prefix of events whose time is below ``floor``.

        Looks only after the log has grown by half since it last looked, so that the cost per event stays constant.
        """
        if len(self._ts) < self._look_at:
            return
        ts = self._ts.live()
        keep = ts >= floor
        n = int(keep.argmax()) if keep.any() else len(ts)
        if n:
            for own in (self._ts, self._types, self._content):
                own.drop(n)
            for column in self.columns.values():
                column.drop(n)
            self._dense += max(n - len(self._sparse), 0)
            self._sparse = self._sparse[n:]
        self._look_at = max(_FIRST_LOOK, len(self._ts) * 3 // 2)

    def compact(self, live: I64) -> None:
        """Keep only the events at ``live`` (ascending references); the others must not be asked for any more. O(n)."""
        at, end = self._at(live), self.end
        for name in ("_ts", "_types", "_content"):
            old: Buffer = getattr(self, name)
            fresh = Buffer(old.live().dtype)
            fresh.append(old.live()[at])
            setattr(self, name, fresh)
        for name, column in self.columns.items():
            kept = make_column(column.type)
            kept.append(column.take(at))
            self.columns[name] = kept
        self._sparse, self._dense = live, end

    @property
    def nbytes(self) -> int:
        own = self._ts.nbytes + self._types.nbytes + self._content.nbytes + int(self._sparse.nbytes)
        return own + sum(c.nbytes for c in self.columns.values())

    def dump(self) -> dict[str, Any]:
        return {
            "dense": self._dense,
            "sparse": self._sparse,
            "ts": self._ts.live(),
            "types": self._types.live(),
            "content": self._content.live(),
            "columns": {name: column.live() for name, column in self.columns.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        columns = {
            name: saved.cast(self.columns[name].type) if pa.types.is_null(saved.type) else saved
            for name, saved in state["columns"].items()  # a column that was all null may have found its type since
        }
        self.append(state["ts"], state["types"], state["content"], columns)
        self._dense, self._sparse = state["dense"], state["sparse"]


def _plain_integers(column: Column) -> TypeGuard[FixedColumn]:
    """Whether values may be compared as they lie in memory."""
    return isinstance(column, FixedColumn) and pa.types.is_integer(column.type) and column.no_nulls


def _plain_texts(column: Column) -> TypeGuard[BytesColumn]:
    return isinstance(column, BytesColumn) and column.no_nulls
