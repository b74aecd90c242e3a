"""PatternSink: pattern queries over a Spark stream, as the function of ``foreachBatch``.

What happens with a micro-batch (the steps run in this order, and each may be run again):

1. the version before the batch is looked up in the state folder;
2. ``Tag`` packs the rows of each bucket where they are read, with the stream's clock at each row;
3. the packs are shuffled by bucket, together with one control row per bucket, so that every bucket runs;
4. ``Detect`` gives them to the engine and writes what has changed in the buckets' states under new names; changes come
   back to the driver (one Spark action);
5. the driver's commit makes the new states version *n*;
6. changes and late rows go to the sinks, which skip a batch that they have.

A batch that Spark runs again therefore starts from the same state, gives the same changes, and reaches each sink once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.connectors import spark_detect
from latecomer.connectors.sinks import Sink, SinkFunction, as_sink, deliver
from latecomer.connectors.spark_progress import Progress, Show, summed
from latecomer.connectors.spark_split import Split, controls
from latecomer.connectors.versions import Version, VersionStore
from latecomer.consistency.levels import KSlack
from latecomer.errors import ConfigError, StateError
from latecomer.query.query import Query
from latecomer.runtime import Runtime
from latecomer.storage.shelf import MemoryShelf
from latecomer.stream import Stream
from latecomer.units import DurationLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Micro-batches whose progress stays known, for listeners that come later than the batch.
_REMEMBERED = 16


class PatternSink(Split):
    """Finds the patterns of ``queries`` in a streaming DataFrame and gives the changes to ``sinks``.

    Args:
        stream: which columns say what. An ``id`` column is needed: a replayed event must have the id it had before.
        queries: one or more queries, with different names and any levels.
        state: where the engine's state is kept between batches: a local folder (one machine), or a URI that
            ``pyarrow.fs`` opens and all executors reach. One folder belongs to one checkpoint.
        sinks: where changes go: sinks such as :class:`~latecomer.connectors.duckdb.DuckDBSink`, or functions of
            ``(batch_id, changes, late)``.
        buckets: into how many buckets the stream is split by its key; fixed for the life of a state folder. 32 unless
            given, and 1 where the queries have no attribute in common to split by.
        key: the attributes that decide the bucket; unless given, all that the queries have in common in ``[…]``.
        arrival: a column that orders the rows of a micro-batch (an offset, an ingest time). Without one the order is
            taken to be that of Spark's input partitions, and within one that of its rows (see ``docs/spark.md``).
        step: take a micro-batch in steps of this much arrival time (a duration; needs an arrival column of whole
            numbers in the stream's unit, or of timestamps), so that a batch that catches up on much time gives the same
            log of answers and corrections as if it had come in batches of that length. The net result is the same with
            and without.
        progress: who is told of each micro-batch, when its sinks have it: functions of a
            :class:`~latecomer.connectors.spark_progress.Progress`, like ``LiveLine()`` and
            ``PrometheusProgress("job")`` from there.

    Raises ConfigError for options that make no sense; in a batch SchemaError for missing columns, and StateError for a
    state folder that was made with other queries, another stream mapping or another number of buckets.

    Example (``events`` is any streaming DataFrame)::

        sink = PatternSink(Stream(type="kind", ts="event_time", id="event_id"), [theft],
                           state="state/theft", sinks=[DuckDBSink("theft.duckdb")])
        events.writeStream.foreachBatch(sink).option("checkpointLocation", "checkpoints/theft").start()
    """

    def __init__(
        self,
        stream: Stream,
        queries: Sequence[Query] | Query,
        *,
        state: str | os.PathLike[str],
        sinks: Sequence[Sink | SinkFunction] | Sink | SinkFunction = (),
        buckets: int | None = None,
        key: Sequence[str] | str | None = None,
        arrival: str | None = None,
        step: DurationLike | None = None,
        progress: Show | Sequence[Show] = (),
    ) -> None:
        super().__init__(stream, queries, buckets=buckets, key=key, arrival=arrival, step=step)
        if not isinstance(state, (str, os.PathLike)) or not os.fspath(state):
            raise ConfigError(f"state={state!r}: give the folder, or its URI, where the state is kept")
        self.sinks = [as_sink(s) for s in (sinks if isinstance(sinks, (list, tuple)) else (sinks,))]
        self._shows = (progress,) if callable(progress) else tuple(progress)
        if not all(callable(show) for show in self._shows):
            raise ConfigError(f"progress={progress!r}: functions of a Progress are needed, like [LiveLine()]")
        self._progress: dict[int, Progress] = {}
        self._store = VersionStore(state)
        self._opened: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take in one micro-batch; this is what ``foreachBatch`` calls."""
        began = time.perf_counter()
        spark = batch.sparkSession
        job = _job_of(spark)
        if job is None and _connected(spark):
            self._not_behind(batch_id)
        before = self._store.open(batch_id, self._settings(), job)
        schema, _ = self._check(batch)
        step = self._step_units(schema)
        cells = self._cells(batch, before.clock if before else None).union(controls(spark, self.buckets))
        fresh = b"" if before else self._fresh(schema)
        self._run(cells, batch_id, before, job, began, fresh=fresh, step=step)

    def finish(self, spark: SparkSession) -> None:
        """Declare the stream complete, after its query has ended: what still waits is decided, and goes to the sinks.

        Counts as the batch after the last one, and may be called again. A stream that was finished cannot go on: the
        state folder refuses further batches.
        """
        began = time.perf_counter()
        done = self._store.batches()
        if not done:
            raise StateError(f"there is nothing to finish: the state folder {self._store.uri!r} has no version yet")
        last = self._store.read(done[-1])
        batch_id = last.batch if last.finished else last.batch + 1
        before = self._store.open(batch_id, self._settings(), last.job, finish=True)
        self._run(controls(spark, self.buckets), batch_id, before, last.job, began, finish=True)

    def explain(self) -> dict[str, Any]:
        """How the stream is split and how far it has come: key, buckets, last version, the stream's clock; and of the
        last micro-batch of this process the buckets that carry most (``load``, see ``Progress.shares``) and those that
        carry far more than the others (``hot``)."""
        done = self._store.batches()
        last = self._store.read(done[-1]) if done else None
        return {
            "key": list(self.key),
            "buckets": self.buckets,
            "queries": {q.name: str(q.level) for q in self.queries},
            "state": self._store.uri,
            "batch": last.batch if last else None,
            "clock": last.clock if last else None,
            "finished": bool(last and last.finished),
            "load": self.progress.shares()[:10] if self.progress else [],
            "hot": self.progress.hot() if self.progress else [],
        }

    @property
    def progress(self) -> Progress | None:
        """What the last micro-batch of this process brought; None before the first."""
        return self._progress[max(self._progress)] if self._progress else None

    def progress_of(self, batch: int) -> Progress | None:
        """What one of the last micro-batches brought; None when that is not known."""
        return self._progress.get(batch)

    def close(self) -> None:
        """Close the sinks, when nothing more is to come."""
        if self._opened is not None:
            for sink in self.sinks:
                sink.close()
            self._opened = None

    def _run(
        self,
        cells: DataFrame,
        batch_id: int,
        before: Version | None,
        job: str | None,
        began: float,
        *,
        fresh: bytes = b"",
        step: int | None = None,
        finish: bool = False,
    ) -> None:
        """Steps 3 to 6: shuffle, detect, make the version valid, hand over to the sinks."""
        states = self._store.buckets(before.batch) if before else {}
        detect = spark_detect.Detect(
            begin=self._store.attempts(),
            residues={bucket: state.residue for bucket, state in states.items()},
            fresh=fresh,
            clocks={bucket: state.clock for bucket, state in states.items()},
            stream=self.stream,
            arrival=self.arrival,
            step=step,
            finish=finish,
            key=self.key,
        )
        found = self._to_partitions(cells).mapInArrow(detect, spark_detect.RESULT_SCHEMA)
        result = spark_detect.gather(found.toArrow(), states)
        missing = set(range(self.buckets)) - set(result.buckets)
        if missing:
            raise StateError(f"batch {batch_id}: no result for buckets {sorted(missing)}; the batch has to run again")
        clocks = [before.clock if before else None, result.clock]
        clock = max((c for c in clocks if c is not None), default=None)
        self._store.write(Version(batch_id, clock, self._settings(), job, finish), result.buckets, result.files)
        changes = self._in_order(result.changes)
        name = job or self._store.uri
        for sink in self.sinks:
            if self._opened != name:
                sink.open(name)
        self._opened = name
        deliver(self.sinks, batch_id, changes, result.late)
        loads = {bucket: state.load for bucket, state in result.buckets.items()}
        progress = summed(batch_id, time.perf_counter() - began, loads)
        self._progress = {n: p for n, p in self._progress.items() if n > batch_id - _REMEMBERED} | {batch_id: progress}
        for show in self._shows:
            show(progress)

    def _fresh(self, schema: pa.Schema) -> bytes:
        """The residue that a bucket begins with."""
        runtime = Runtime.resume(Runtime(self.stream, self.queries).snapshot(), MemoryShelf())
        runtime.process(schema.empty_table())
        return runtime.residue()[0]

    def _not_behind(self, batch_id: int) -> None:
        """StateError for a batch that cannot be a repeated one. Without a job's name it would pass for one, and the
        sinks would skip it."""
        done = self._store.batches()
        if done and batch_id < done[-1]:
            raise StateError(
                f"the state folder {self._store.uri!r} is at batch {done[-1]}, and this is batch {batch_id}; Spark "
                "repeats the last batch only, so the checkpoint was replaced. Use the old checkpoint, or begin with a "
                "new state folder too"
            )

    def _in_order(self, changes: pa.Table) -> pa.Table:
        """Changes with those of each K-slack query in order of completion, as within a bucket."""
        ordered = [q.plan for q in self.queries if isinstance(q.level, KSlack)]
        if self.buckets == 1 or not ordered or not changes.num_rows:
            return changes
        names = np.asarray(changes["query"].to_numpy())
        order = np.arange(changes.num_rows)
        for plan in ordered:
            of = np.flatnonzero(names == plan.name)
            # A match is complete with its last event, or one window after its first where a trailing scope has to pass.
            trailing = any(n.kind == "trailing" for n in plan.negations)
            done = np.asarray(changes["first_ts" if trailing else "last_ts"].cast(pa.int64()).to_numpy())
            order[of] = of[np.argsort(done[of], kind="stable")]
        return changes.take(order)

    def _settings(self) -> dict[str, Any]:
        """What the state depends on, in values that JSON gives back equal."""
        stream = {name: _plain(getattr(self.stream, name)) for name in self.stream.__dataclass_fields__}
        return {
            "queries": {q.name: q.text for q in self.queries},
            "stream": stream,
            "buckets": self.buckets,
            "key": list(self.key),
        }


def _plain(value: Any) -> Any:
    """An option of a stream in values that JSON gives back equal."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _connected(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _job_of(spark: SparkSession) -> str | None:
    """The streaming query's id; None where no stream runs, and with Spark Connect, which does not tell it here."""
    if _connected(spark):
        return None
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId")
