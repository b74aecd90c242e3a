"""Joint reading: a batch that several engines of one process see, each in a thread of its own, has each row read once.

Each engine reads what the others have not begun (``native/joint.h``), and goes on with the events of its share when all
rows are read. An engine that takes no step with the batch reads it for itself, and none waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.storage import kernels


class Joint:
    """One batch at a time."""

    def __init__(self) -> None:
        self._batch: pa.RecordBatch | None = None
        self._rows: Any = None

    @contextmanager
    def showing(self, batch: Any) -> Iterator[None]:
        """Let engines read this batch jointly meanwhile, if it is one that can be."""
        if kernels.joint is not None and isinstance(batch, pa.RecordBatch):
            slot = np.zeros(10, np.uint64)  # where a struct ArrowArray is handed over
            batch._export_to_c(slot.ctypes.data)
            self._batch, self._rows = batch, kernels.joint(slot)
        try:
            yield
        finally:
            self._batch = self._rows = None

    def rows(self, batch: pa.RecordBatch) -> Any:
        """What steps read this batch from; None: it is not read jointly."""
        return self._rows if batch is self._batch else None
