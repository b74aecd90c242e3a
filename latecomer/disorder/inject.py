"""From a table in order of event time to the table as it arrives.

Rule: the result holds the rows of the input, as many times as the model sends them, in order of arrival, unchanged but
for the time column where a model stamps wrongly. The same table, model and seed give the same result on every machine.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from latecomer.disorder.flow import Flow, Model
from latecomer.disorder.measure import encoded, integers
from latecomer.errors import ConfigError, SchemaError
from latecomer.stream import Stream


def inject(
    events: pa.Table, model: Model, stream: Stream, *, seed: int | np.random.Generator, arrival: str = "arrival"
) -> pa.Table:
    """Send a stream through a model of delay and disorder.

    Args:
        events: events in order of event time (ties in any order), without null times.
        model: one of :mod:`latecomer.disorder`, or anything with the same ``apply``.
        stream: names the column of time, its unit, and, for models that speak of sources, the column of the sender.
        seed: a number or a NumPy generator. There is no default: a test or benchmark that cannot be repeated is of no
            use.
        arrival: name of the new column.

    Returns:
        The rows in order of arrival, with the new column ``arrival`` last: time of arrival, of the same type as the
        time.

    Raises SchemaError when a column is missing, is taken, or holds no times, and when the events are not in order of
    time.

    >>> from latecomer.disorder import Delayed, Uniform
    >>> events = pa.table({"ts": [1, 2, 3, 4], "n": ["a", "b", "c", "d"]})
    >>> inject(events, Delayed(0.5, Uniform(9)), Stream(ts="ts", unit="s"), seed=1).to_pydict()["n"]
    ['a', 'b', 'd', 'c']
    """
    for name in [stream.ts] + ([stream.source] if stream.source is not None else []):
        if name not in events.column_names:
            raise SchemaError(f"the events have no column {name!r}: they have {', '.join(events.column_names)}")
    if arrival in events.column_names:
        raise SchemaError(f"the events already have a column {arrival!r}: give another name with arrival=")
    column = events.column(stream.ts)
    unit = stream.unit_for(column.type)
    if pa.types.is_timestamp(column.type) and unit != column.type.unit:
        raise ConfigError(
            f"the stream counts in {unit} and column {stream.ts!r} holds {column.type}: leave out Stream(unit=…) here"
        )
    ts = integers(column, f"column {stream.ts!r}")
    if (ts[1:] < ts[:-1]).any():
        raise SchemaError(f"the events are not in order of {stream.ts!r}: sort them first, .sort_by({stream.ts!r})")
    names, source = ((), None) if stream.source is None else encoded(events.column(stream.source))
    rng = np.random.default_rng(seed)
    start, end = (int(ts[0]), int(ts[-1])) if len(ts) else (0, 0)
    flow = Flow(np.arange(len(ts)), ts, ts, source, len(names), unit, start, end)
    out = model.apply(flow, rng)
    sent = events.take(pa.array(out.row))
    if out.ts is not ts:
        at = sent.column_names.index(stream.ts)
        sent = sent.set_column(at, sent.field(at), pa.array(out.ts).cast(column.type))
    return sent.append_column(arrival, pa.array(out.arrival).cast(column.type))
