"""Punctuation behind a repartition: what all input partitions together have promised.

The rule: punctuation speaks of the partition that it stands in, since only there is it in order with the events. Behind
a repartition the events of all partitions are mixed, so a promise holds there once every input partition has made it,
and up to the earliest of their times. A promise about a source that *is* a partition needs no other's word.

Whoever writes punctuation therefore writes it to every partition of the input topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class PromisesOfPartitions:
    """Combines promises. ``partitions``: how many input partitions there are; ``type``: how punctuation rows are
    called; ``sources``: whether each source is a partition.

    >>> merge = PromisesOfPartitions(2, "PUNCT", sources=False)
    >>> row = pa.RecordBatch.from_pylist([{"type": "PUNCT", "ts": 7, "of": None, "source": None}])
    >>> merge.apply(row, [("t", 0)])[0].num_rows, merge.apply(row, [("t", 1)])[0].column("ts").to_pylist()
    (0, [7])
    """

    def __init__(self, partitions: int, type: str | None, *, sources: bool) -> None:
        self._partitions = partitions
        self._type = type
        self._sources = sources
        self._said: dict[tuple[str | None, str | None], dict[str, int]] = {}

    def apply(
        self, batch: pa.RecordBatch, partitions: Sequence[tuple[str, int]]
    ) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """The batch with only the punctuation that holds for all; ``partitions``: where each row comes from. Returns
        also the numbers of the rows that stay."""
        count = batch.num_rows
        if self._type is None:
            return batch, np.arange(count)
        rows = np.flatnonzero(
            pc.equal(batch.column("type"), self._type).fill_null(False).to_numpy(zero_copy_only=False)
        )
        if not len(rows):
            return batch, np.arange(count)
        keep = np.ones(count, bool)
        ts = batch.column("ts").to_numpy(zero_copy_only=False).copy()
        of = batch.column("of").to_pylist()
        sources = batch.column("source").to_pylist() if "source" in batch.schema.names else [None] * count
        for row in rows.tolist():
            if self._sources and sources[row] is not None:
                continue
            said = self._said.setdefault((of[row], sources[row]), {})
            before = min(said.values()) if len(said) == self._partitions else None
            place = "-".join(map(str, partitions[row]))
            said[place] = max(said.get(place, int(ts[row])), int(ts[row]))
            if len(said) < self._partitions or min(said.values()) == before:
                keep[row] = False
            else:
                ts[row] = min(said.values())
        position = batch.schema.get_field_index("ts")
        batch = batch.set_column(position, batch.schema.field(position), pa.array(ts, pa.int64()))
        return batch.filter(pa.array(keep)), np.flatnonzero(keep)

    def dump(self) -> list[Any]:
        """As plain data."""
        return [[*key, said] for key, said in self._said.items()]

    def load(self, saved: Sequence[Any]) -> None:
        """The state that :meth:`dump` gave."""
        self._said = {(of, source): dict(_texts(said)) for of, source, said in saved}


def _texts(said: Mapping[Any, int]) -> Mapping[str, int]:
    return {str(place): int(ts) for place, ts in said.items()}
