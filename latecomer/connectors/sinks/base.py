"""What a sink is, and how several take a batch.

The rule: a batch may be delivered more than once (a job that died before it could note that the batch was done
brings it again, with the same content), and a sink must end up as if it had come once. Two things make that simple: a
batch has a number that never means anything else within its job, and a match has the same ``match_id`` on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from latecomer.errors import ConfigError

#: A function that is given ``(batch_id, changes, late)``.
SinkFunction = Callable[[int, pa.Table, pa.Table], object]


@runtime_checkable
class Sink(Protocol):
    """What a sink offers. The methods are called in this order: ``open`` once, ``apply`` per batch, ``close`` once."""

    def open(self, job: str) -> None:
        """Get ready. ``job`` names the stream job; batch numbers of two jobs have nothing to do with each other."""

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Take in the changes and the late rows of one batch, all or nothing; skip a batch that was taken in before."""

    def close(self) -> None:
        """Let go of what ``open`` took."""


class FunctionSink:
    """A plain function as a sink. It is called again for a batch that is delivered again."""

    def __init__(self, function: SinkFunction) -> None:
        self._function = function

    def __repr__(self) -> str:
        return f"the function {getattr(self._function, '__qualname__', repr(self._function))}"

    def open(self, job: str) -> None:
        """Nothing to get ready."""

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Call the function."""
        self._function(batch_id, changes, late)

    def close(self) -> None:
        """Nothing to let go of."""


def as_sink(value: Any) -> Sink:
    """``value`` itself if it is a sink, a sink around it if it is a function; raises ConfigError for anything else.

    >>> sink = as_sink(lambda batch_id, changes, late: print(batch_id, changes.num_rows))
    >>> sink.apply(0, pa.table({"op": ["insert"]}), pa.table({}))
    0 1
    """
    if isinstance(value, Sink) and not isinstance(value, type):
        return value
    if callable(value) and not isinstance(value, type):
        return FunctionSink(value)
    raise ConfigError(
        f"{value!r} is no sink: give a sink such as DuckDBSink('results.duckdb'), "
        "or a function of (batch_id, changes, late)"
    )


def deliver(sinks: Sequence[Sink], batch_id: int, changes: pa.Table, late: pa.Table) -> None:
    """Give one batch to all ``sinks``, in their order; one that fails keeps none of the others from it.

    Raises what the sink raised, or an ExceptionGroup where several failed. The batch is then to be delivered again, to
    all of them: those that have it skip it.
    """
    failed: list[Exception] = []
    for sink in sinks:
        try:
            sink.apply(batch_id, changes, late)
        except Exception as error:  # noqa: BLE001 - raised below, when the others have had their turn
            error.add_note(f"batch {batch_id} did not get into {sink!r}; it has to be delivered again")
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise ExceptionGroup(f"batch {batch_id} did not get into {len(failed)} of {len(sinks)} sinks", failed)
