"""Reading rows in one pass: what ``Intake`` and the hashes of ``storage/hashing.py`` say column by column, from one
look at each row, where the compiled kernels are in use.

Rule: a batch in which anything is out of the ordinary (a type, time or id that is null, a time beyond all bounds, types
of columns that few streams have) is not read here, but column by column. Nobody who uses a batch can tell how it was
read (``tests/test_reading.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.clock import FAR
from latecomer.storage import kernels
from latecomer.storage.columns import I64, Raw
from latecomer.storage.hashing import U64
from latecomer.stream import Stream
from latecomer.units import UNITS

# What a column is to the stream, as ``native/intake.h`` has it.
_TYPE, _TIME, _ID, _SAID, _HASHED, _KEPT = (1 << bit for bit in range(6))


@dataclass(slots=True)
class Reading:
    """What is known of n rows.

    Attributes:
        numbers: of the types (n,), as in ``Batch``, punctuation as the number behind the last type.
        ts: event times (n,), in the stream's units.
        ids: hashes of the ids (n,).
        content: hashes of all else that rows say (n,).
        hashes: of the columns that are keys, by name; None where there are nulls or floats.
        raw: the values of the columns that the event log keeps, by name; None where there are nulls.
    """

    numbers: I64
    ts: I64
    ids: U64
    content: U64
    hashes: Mapping[str, U64 | None]
    raw: Mapping[str, Raw | None]


class RowReader:
    """Reads record batches of ``schema``, whose event types have ``names``, of which queries ask for ``types``.

    Args:
        stream: what the columns mean.
        unit: of event times.
        keys: columns whose hashes are wanted.
        kept: columns whose values are wanted as they lie in memory.
    """

    def __init__(
        self,
        stream: Stream,
        unit: str,
        schema: pa.Schema,
        names: pa.Array,
        types: int,
        keys: Collection[str],
        kept: Collection[str],
    ) -> None:
        self._names = schema.names
        roles = []
        for name in schema.names:
            role = {stream.type: _TYPE, stream.ts: _TIME, stream.id: _ID}.get(name, _SAID)
            roles.append(role | _HASHED * (name in keys) | _KEPT * (name in kept))
        #: Columns whose hashes there are.
        self.keys = [name for name in schema.names if name in keys]
        self._kept = [name for name in schema.names if name in kept]
        _, edges, letters = names.buffers()
        ends = np.frombuffer(edges, np.int32, len(names) + 1)
        texts = np.frombuffer(letters, np.uint8) if letters is not None else np.zeros(0, np.uint8)
        timed = schema.field(stream.ts).type
        per_value, per_unit = (UNITS[timed.unit], UNITS[unit]) if pa.types.is_timestamp(timed) else (1, 1)
        scale = max(per_value // per_unit, 1), max(per_unit // per_value, 1)
        #: What does not depend on the batch, as kernels want it.
        self.words: tuple[Any, ...] = np.array(roles, np.int64), ends, texts, *scale, FAR, types

    def field(self, name: str) -> int | None:
        """The place of a column in batches; None: it has none."""
        return self._names.index(name) if name in self._names else None

    def read(self, given: pa.RecordBatch, first: int) -> Reading | None:
        """What is known of each row, or None: not to be read here. ``first``: the number of the first row, where the
        stream has no ids.
        """
        found = kernels.read_rows(*given.__arrow_c_array__(), *self.words, first)
        if found is None:
            return None
        numbers, ts, content, ids, hashes, raw = found
        return Reading(
            numbers,
            ts,
            ids,
            content,
            dict(zip(self.keys, hashes, strict=True)),
            dict(zip(self._kept, raw, strict=True)),
        )
