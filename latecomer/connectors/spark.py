"""PatternSink: pattern queries over a Spark stream, as the function of ``foreachBatch``.

What happens with a micro-batch (the steps run in this order, and each may be run again):

1. the version before the batch is looked up in the state folder;
2. ``Tag`` packs the rows of each bucket where they are read, with the stream's clock at each row;
3. the packs are shuffled by bucket; each part of the input also tells every bucket its clock, so that all buckets hear;
4. ``Detect`` gives them to the engine and writes what has changed in the buckets' states under new names; changes come
   back to the driver (one Spark action);
5. the driver's commit makes the new states version *n*;
6. changes and late rows go to the sinks, which skip a batch that they have.

A batch that Spark runs again therefore starts from the same state, gives the same changes, and reaches each sink once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from latecomer.connectors import spark_detect
from latecomer.connectors.sinks import Sink, SinkFunction, as_sink, deliver
from latecomer.connectors.spark_keys import in_use
from latecomer.connectors.spark_progress import Progress, Show, summed
from latecomer.connectors.spark_split import Split, controls
from latecomer.connectors.versions import BucketState, Version, VersionStore
from latecomer.consistency.levels import KSlack
from latecomer.errors import ConfigError, StateError
from latecomer.query.query import Query
from latecomer.runtime import Runtime
from latecomer.runtime.spill import memory_size
from latecomer.storage.shelf import MemoryShelf
from latecomer.stream import Stream
from latecomer.units import DurationLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Buckets at most, when nothing else is said: as many as keep 64 cores busy.
_BUCKETS = 256

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
        buckets: into how many buckets the stream may be split by its key, 256 unless given, and 1 where the queries
            have no attribute in common to split by. As few are in use as the cores ask for, and more when cores are
            added. Fixed for the life of a state folder, but for ``latecomer state rebucket``.
        key: the attributes that decide the bucket; unless given, all that the queries have in common in ``[…]``.
        arrival: a column that orders the rows of a micro-batch (an offset, an ingest time). Without one the order is
            taken to be that of Spark's input partitions, and within one that of its rows (see ``docs/spark.md``).
        step: take a micro-batch in steps of this much arrival time (a duration; needs an arrival column of whole
            numbers in the stream's unit, or of timestamps), so that a batch that catches up on much time gives the same
            log of answers and corrections as if it had come in batches of that length. The net result is the same with
            and without.
        memory: how much of the state a task may have in memory at once, in bytes or as text like ``"512 MiB"``, beside
            the rows of a bucket in one micro-batch; the rest is read when events ask for it. None: no limit.
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
        memory: int | str | None = None,
        progress: Show | Sequence[Show] = (),
    ) -> None:
        super().__init__(stream, queries, buckets=buckets, key=key, arrival=arrival, step=step, default=_BUCKETS)
        if not isinstance(state, (str, os.PathLike)) or not os.fspath(state):
            raise ConfigError(f"state={state!r}: give the folder, or its URI, where the state is kept")
        self.sinks = [as_sink(s) for s in (sinks if isinstance(sinks, (list, tuple)) else (sinks,))]
        self._shows = tuple(progress) if isinstance(progress, (list, tuple)) else (progress,)
        if not all(map(callable, self._shows)):
            raise ConfigError(f"progress={progress!r}: functions of a Progress are needed, like [LiveLine()]")
        self._progress: dict[int, Progress] = {}
        self._memory = None if memory is None else memory_size(memory)
        self._store = VersionStore(state)
        self._opened: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take in one micro-batch; this is what ``foreachBatch`` calls."""
        began = time.perf_counter()
        spark = batch.sparkSession
        job = _job_of(spark)
        if job is None and _connected(spark):
            self._not_behind(batch_id)
        before = self._store.open(batch_id, self._settings(self.queries), job)
        schema = self._check(batch)
        queries = self._queries_of(batch_id)
        known = before.settings["queries"] if before else {}
        fresh = self._fresh(schema, [query for query in queries if query.name not in known])
        states = self._store.buckets(before.batch) if before else {}
        buckets = in_use(self.buckets, len(states), _cores(spark))
        cells = self._cells(batch, before.clock if before else None, buckets)
        step = self._step_units(schema)
        detect = self._detect(before, states, buckets, queries, fresh=fresh, step=step)
        self._run(cells, detect, states, buckets, Version(batch_id, None, self._settings(queries), job), began)

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
        before = self._store.open(batch_id, self._settings(self.queries), last.job, finish=True)
        assert before is not None
        # A query that no batch has seen has nothing to say.
        queries = [q for q in self._queries_of(batch_id) if q.name in before.settings["queries"]]
        if not queries:
            raise StateError(f"no query of the state folder {self._store.uri!r} is left: there is nothing to finish")
        states = self._store.buckets(before.batch)
        detect = self._detect(before, states, len(states), queries, finish=True)
        version = Version(batch_id, None, self._settings(queries), last.job, finished=True)
        self._run(controls(spark, len(states)), detect, states, len(states), version, began)

    def explain(self) -> dict[str, Any]:
        """How the stream is split and how far it has come: key, buckets, last version, the stream's clock; and of the
        last micro-batch of this process the buckets that carry most (``load``, see ``Progress.shares``) and those that
        carry far more than the others (``hot``)."""
        done = self._store.batches()
        last = self._store.read(done[-1]) if done else None
        return {
            "key": list(self.key),
            "buckets": self.buckets,
            "in_use": len(self._store.buckets(done[-1])) if done else 0,
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

    def _detect(
        self,
        before: Version | None,
        states: Mapping[int, BucketState],
        buckets: int,
        queries: Sequence[Query],
        *,
        fresh: bytes = b"",
        step: int | None = None,
        finish: bool = False,
    ) -> spark_detect.Detect:
        """What runs where the buckets are, of which there are as many as in ``states``, or several of each."""
        names = frozenset(query.name for query in queries)
        of = {bucket: states[bucket * len(states) // buckets] for bucket in range(buckets)} if states else {}
        parted = bool(states) and len(states) != buckets
        return spark_detect.Detect(
            begin=self._store.attempts(),
            residues={bucket: state.residues for bucket, state in of.items()},
            fresh=fresh,
            clocks={bucket: state.clock for bucket, state in of.items()},
            clock=before.clock if before else None,
            asked=names,
            stream=self.stream,
            arrival=self.arrival,
            step=step,
            finish=finish,
            key=self.key,
            parted=buckets if parted else None,
            anew=parted or bool(before and names != set(before.settings["queries"])),
            memory=self._memory,
        )

    def _run(
        self,
        cells: DataFrame,
        detect: spark_detect.Detect,
        states: Mapping[int, BucketState],
        buckets: int,
        version: Version,
        began: float,
    ) -> None:
        """Steps 3 to 6: shuffle, detect, make the version valid, hand over to the sinks."""
        batch_id = version.batch
        found = self._found(cells, buckets, detect)
        if not found.num_rows:  # the input has no parts, so no bucket has heard anything
            found = self._found(controls(cells.sparkSession, buckets), buckets, detect)
        result = spark_detect.gather(found, states)
        missing = set(range(buckets)) - set(result.buckets)
        if missing:
            raise StateError(f"batch {batch_id}: no result for buckets {sorted(missing)}; the batch has to run again")
        clock = max((c for c in (detect.clock, result.clock) if c is not None), default=None)
        self._store.write(replace(version, clock=clock), result.buckets, result.files)
        changes = self._in_order(result.changes, buckets)
        name = version.job or self._store.uri
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

    def _found(self, cells: DataFrame, buckets: int, detect: spark_detect.Detect) -> pa.Table:
        """What the buckets give back, in rows of ``RESULT_SCHEMA``: the one Spark action of a micro-batch."""
        return self._to_partitions(cells, buckets).mapInArrow(detect, spark_detect.RESULT_SCHEMA).toArrow()

    def _queries_of(self, batch_id: int) -> Sequence[Query]:
        """The queries that a batch is run with: a batch that ran before has the ones that it had, since sinks may have
        it already, and what was changed counts from the next one on."""
        if batch_id not in self._store.batches():
            return self.queries
        texts = self._store.read(batch_id).settings["queries"]
        own = {query.name: query for query in self.queries}
        return [own.get(name) or Query(text, name=name) for name, text in texts.items()]

    def _fresh(self, schema: pa.Schema, queries: Sequence[Query]) -> bytes:
        """The residue that these queries begin with in each bucket; empty where there are none."""
        if not queries:
            return b""
        runtime = Runtime.resume(Runtime(self.stream, queries).snapshot(), MemoryShelf())
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

    def _in_order(self, changes: pa.Table, buckets: int) -> pa.Table:
        """Changes with those of each K-slack query in order of completion, as within a bucket."""
        ordered = [q.plan for q in self.queries if isinstance(q.level, KSlack)]
        if buckets == 1 or not ordered or not changes.num_rows:
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


def _cores(spark: SparkSession) -> int:
    """How many tasks run at once."""
    from pyspark.sql import functions as F

    if not _connected(spark):
        return int(spark.sparkContext.defaultParallelism)
    # Connect does not tell, but splits a range into so many parts.
    return int(spark.range(1 << 12).select(F.spark_partition_id()).distinct().count())


def _connected(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _job_of(spark: SparkSession) -> str | None:
    """The streaming query's id; None where no stream runs, and with Spark Connect, which does not tell it here."""
    if _connected(spark):
        return None
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId")
