"""Play a script: source to runtime to sink, with crashes and restarts as a real job has them.

The rule of a restart: the snapshot and the position of the source belong together; everything behind them comes again,
to the runtime and to the sink, under the same batch numbers. What does not come again is time: each batch is given the
``now`` that it had at first, since ``now`` is an input like any other.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from latecomer.errors import ConfigError
from latecomer.runtime import Output, Runtime
from latecomer.testing.script import Aborted, ScriptedSource
from latecomer.testing.sink import CollectingSink


def play(
    runtime: Runtime,
    source: ScriptedSource,
    sink: CollectingSink | None = None,
    *,
    every: int | None = None,
    finish: bool = True,
) -> Runtime:
    """Give all batches of ``source`` to ``runtime`` and what comes out to ``sink``.

    Args:
        runtime: a runtime that may have seen events before.
        source: where it has a clock, the runtime is told the time (``advance``) before and after each batch.
        sink: anything with the ``apply`` of a sink; batch numbers are positions in the script.
        every: take a snapshot after so many batches. At an ``Abort`` the runtime is thrown away, the last snapshot
            restored, and the source goes back to the position that belongs to it. None: ``Aborted`` reaches the caller.
        finish: the script's end is the stream's end.

    Returns the runtime at the end: after a restart it is another one than was given.

    >>> import latecomer as lc
    >>> from latecomer.testing import Abort
    >>> query = lc.Query("PATTERN SEQ(A a, C c) WITHIN 10 s", name="q", level=lc.KSlack("2 s"))
    >>> source = ScriptedSource([{"id": 1, "type": "A", "ts": 1}, Abort(), {"id": 2, "type": "C", "ts": 5}])
    >>> sink = CollectingSink()
    >>> runtime = play(lc.Runtime(lc.Stream(id="id", unit="s"), query), source, sink, every=1)
    >>> sink.net(), runtime.counters["events"]
    ({(1, 2)}, 2)
    """
    if every is not None and every < 1:
        raise ConfigError(f"every={every!r}: snapshots are taken after 1 batch or more; None takes none")
    nows: dict[int, int | datetime] = {}
    saved = None if every is None else (source.position, runtime.snapshot())
    while True:
        try:
            for number, batch in enumerate(source, 1):
                if source.clock is None:
                    outputs = [runtime.process(batch)]
                else:  # before the batch for the events that may be ahead, after it for the sources that have spoken
                    now = nows.setdefault(source.position, source.clock.now())
                    outputs = [runtime.advance(now), runtime.process(batch), runtime.advance(now)]
                _deliver(sink, source.position, outputs)
                if every is not None and number % every == 0:
                    saved = source.position, runtime.snapshot()
            break
        except Aborted:
            if saved is None:
                raise
            source.seek(saved[0])
            runtime = type(runtime).restore(saved[1])
    if finish:
        _deliver(sink, source.position + 1, [runtime.finish()])
    return runtime


def _deliver(sink: CollectingSink | None, batch_id: int, outputs: list[Output]) -> None:
    if sink is not None:
        changes, late = zip(*((o.changes, o.late) for o in outputs), strict=True)
        sink.apply(batch_id, _joined(changes), _joined(late))


def _joined(tables: tuple[pa.Table, ...]) -> pa.Table:
    """One table. Empty ones are left out: before a runtime has seen an event it does not know the types of columns."""
    filled = [t for t in tables if t.num_rows] or tables[-1:]
    return pa.concat_tables(filled, promote_options="permissive")
