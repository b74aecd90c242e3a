"""Disorder for tests in one call: any form of events, in any order, to a table in order of arrival."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from latecomer.disorder import Model, inject
from latecomer.stream import Stream
from latecomer.testing.events import as_table


def disordered(events: Any, model: Model, stream: Stream, *, seed: int) -> pa.Table:
    """Events as they arrive when ``model`` happens to them; :func:`latecomer.disorder.inject` without the ceremony.

    Args:
        events: a list of dicts, an Arrow table, a pandas or Polars data frame; in any order, without null times.
        model: one of :mod:`latecomer.disorder`.
        stream: names the column of time, its unit, and the column of the sender where the model needs one.
        seed: the same seed gives the same order on every machine.

    Returns a table in order of arrival with the columns of ``events``, ready for ``Runtime.process``.

    >>> from latecomer.disorder import Delayed, Uniform
    >>> rows = [{"id": i, "ts": i, "type": "A"} for i in (3, 1, 2, 4)]
    >>> disordered(rows, Delayed(0.5, Uniform(9)), Stream(id="id", unit="s"), seed=1).column("id").to_pylist()
    [1, 2, 4, 3]
    """
    table = as_table(events, stream)
    arrival = "arrival"
    while arrival in table.column_names:
        arrival += "_"
    order = table.column(stream.ts).to_pylist() if stream.ts in table.column_names else []
    if order and None not in order:
        table = table.take(pa.array(sorted(range(len(order)), key=order.__getitem__), pa.int64()))
    return inject(table, model, stream, seed=seed, arrival=arrival).drop_columns([arrival])
