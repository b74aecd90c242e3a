"""detect: changes as a DataFrame, to be filtered, joined and written like any other.

The rule: it is the same split, the same engine and the same order of rows as in ``PatternSink``; only the state lives
elsewhere. On a streaming DataFrame each bucket is a group of ``transformWithState``, and its state a few binary values
in Spark's own state store, so that checkpoints, recovery and rescaling are Spark's. A static DataFrame is one pass with
no state left: the stream has ended.

What passes between the steps are Arrow tables in binary cells, since the stateful step of Spark speaks pandas, which
has no whole numbers with nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from latecomer.connectors.spark_cells import pack, unpack, unpack_cells
from latecomer.connectors.spark_detect import RESULT_SCHEMA, Buckets, Heard, Parcel
from latecomer.connectors.spark_split import Split
from latecomer.connectors.versions import check_settings
from latecomer.errors import ConfigError
from latecomer.query.query import Query
from latecomer.runtime import Runtime
from latecomer.storage import packing
from latecomer.stream import Stream
from latecomer.units import UNITS, Duration, DurationLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Buckets when nothing else is said: each is a group of Spark's, and costs some 10 ms in every micro-batch.
_BUCKETS = 32

#: Bytes of one value in Spark's state store.
_PIECE = 1 << 20

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def detect(
    rows: DataFrame,
    stream: Stream,
    queries: Sequence[Query] | Query,
    *,
    buckets: int | None = None,
    key: Sequence[str] | str | None = None,
    arrival: str | None = None,
    step: DurationLike | None = None,
    output: Literal["changes", "late"] = "changes",
) -> DataFrame:
    """The changes that ``queries`` find in ``rows``, or with ``output="late"`` the late rows, as a DataFrame.

    Args:
        rows: a streaming or a static DataFrame. A static one is taken as the whole stream, with its end.
        stream, queries, buckets, key, arrival, step: as in :class:`~latecomer.connectors.spark.PatternSink`.
        output: which of the two outputs. Who wants both writes two queries, each with a state of its own.

    A streaming result has output mode ``append`` and needs Spark's RocksDB state store. With an ``idle_timeout`` in the
    stream a timer per bucket wakes it, so that sources that fell silent hold nothing back. The checkpoint belongs to
    the stream's mapping, the number of buckets and the key, and the query fails with a sentence where one of them has
    changed, or the text of a query. Queries may be added (they begin with the events from then on) and removed.

    Raises ConfigError for options that make no sense, and SchemaError for missing columns, before anything runs.

    Example (``events`` is any DataFrame)::

        changes = detect(events, Stream(type="kind", ts="event_time", id="event_id"), [theft])
        changes.where("op = 'insert'").writeStream.format("parquet").option("checkpointLocation", …).start("thefts")
    """
    if not hasattr(rows, "isStreaming"):
        raise ConfigError(
            f"detect takes a DataFrame of Spark's, and this is a {type(rows).__name__}: for Arrow, pandas and Polars "
            "there is latecomer.Runtime"
        )
    if output not in ("changes", "late"):
        raise ConfigError(f"output={output!r}: allowed are 'changes' or 'late'")
    asked = _Asked(stream, queries, buckets=buckets, key=key, arrival=arrival, step=step, default=_BUCKETS)
    return asked.streaming(rows, output) if rows.isStreaming else asked.static(rows, output)


class _Asked(Split):
    """One call of ``detect``."""

    def static(self, rows: DataFrame, kind: str) -> DataFrame:
        engine, schema = self._engine(rows, kind, finish=True)
        cells = self._to_partitions(self._cells(rows, None, self.buckets), self.buckets)
        found = cells.mapInArrow(engine, RESULT_SCHEMA)
        return _typed(found.select("data"), schema)

    def streaming(self, rows: DataFrame, kind: str) -> DataFrame:
        spark = rows.sparkSession
        if not str(spark.conf.get(_PROVIDER, "")).endswith("RocksDBStateStoreProvider"):
            raise ConfigError(
                "detect on a stream needs Spark's RocksDB state store: "
                f"spark.conf.set({_PROVIDER!r}, {_ROCKSDB!r}) before the query starts"
            )
        engine, schema = self._engine(rows, kind, finish=False)
        timed = self.stream.idle_timeout is not None
        found = (
            self._cells(rows, None, self.buckets)
            .mapInArrow(_wrapped, "bucket int, cell binary")
            .groupBy("bucket")
            .transformWithStateInPandas(
                statefulProcessor=_processor(engine),
                outputStructType="data binary",
                outputMode="Append",
                timeMode="ProcessingTime" if timed else "None",
            )
        )
        return _typed(found, schema)

    def _engine(self, rows: DataFrame, kind: str, *, finish: bool) -> tuple[OneBucket, pa.Schema]:
        schema = self._check(rows.sparkSession.createDataFrame([], rows.schema))
        runtime = Runtime(self.stream, self.queries)
        output = runtime.process(schema.empty_table())
        engine = OneBucket(
            fresh=runtime.snapshot(),
            settings=self._settings(self.queries),
            schema=schema,
            stream=self.stream,
            arrival=self.arrival,
            step=self._step_units(schema),
            finish=finish,
            kind=kind,
        )
        return engine, getattr(output, kind).schema


@dataclass(frozen=True, slots=True)
class OneBucket(Buckets):
    """Runs the engine over the cells of a bucket, with the state at hand instead of in a folder; ``fresh`` is a
    snapshot.

    Attributes:
        settings: what the state depends on; it is kept in the state, and compared.
        schema: the columns of the stream.
        kind: which output counts, ``changes`` or ``late``.
    """

    settings: Mapping[str, Any]
    schema: pa.Schema
    kind: str = "changes"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for bucket, cells in self._by_bucket(batches):
            rows, clock = unpack_cells(cells, self.arrival)
            parcel = Parcel(bucket, self.kind)
            for output in self._outputs(Runtime.restore(self.fresh), rows, clock):
                yield from parcel.add(getattr(output, self.kind))
            yield from parcel.rest()

    def go_on(self, state: bytes | None, cells: pa.Table | None, now: int | None) -> tuple[list[bytes], bytes, bool]:
        """What the bucket says to more ``cells`` (None: only time passes), packed; its new state; and whether anything
        waits for time to pass. ``now``: the time of day in milliseconds, where silent sources matter.

        Raises StateError for a state that was made with other settings; queries may be added and removed.
        """
        tables: list[pa.Table] = []
        snapshots: list[bytes] = []
        waits = False
        heard = Heard()
        rows, clock = (None, None) if cells is None else unpack_cells(cells, self.arrival)
        for runtime in self._runtimes(state):
            outputs = [] if cells is None else list(self._outputs(runtime, rows, clock))
            if now is not None:
                outputs.append(runtime.advance(now * 1_000_000 // UNITS[runtime.explain()["unit"]]))
            tables += [o.changes if self.kind == "changes" else heard.new(o.late) for o in outputs]
            waits |= any(facts["held"] or facts["buffered"] for facts in runtime.explain()["queries"].values())
            snapshots.append(runtime.snapshot())
            heard.next()
        said = [pack(table.combine_chunks()) for table in tables if table.num_rows]
        return said, packing.pack({"settings": self.settings, "runtimes": snapshots}), waits

    def _runtimes(self, state: bytes | None) -> Iterator[Runtime]:
        """The runtimes that the state consists of: one for each set of queries that began together."""
        if state is None:
            yield Runtime.restore(self.fresh)
            return
        saved = packing.unpack(state)
        check_settings(saved["settings"], self.settings, "the state in this checkpoint")
        texts = self.settings["queries"]
        reached: int | None = None
        for snapshot in saved["runtimes"]:
            runtime = Runtime.restore(snapshot)
            reached = runtime.clock
            gone = {query.name for query in runtime.queries} - texts.keys()
            if len(gone) < len(runtime.queries):
                runtime.drop(gone)
                yield runtime
        added = [Query(text, name=name) for name, text in texts.items() if name not in saved["settings"]["queries"]]
        if added:
            runtime = Runtime(self.stream, added)
            runtime.process(self.schema.empty_table())
            if reached is not None and self.one_clock:
                runtime.observe(reached)
            yield runtime


def _wrapped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each cell as one binary value beside its bucket."""
    for batch in batches:
        cells = [pack(batch.slice(row, 1)) for row in range(batch.num_rows)]
        yield pa.record_batch({"bucket": batch["bucket"], "cell": pa.array(cells, pa.binary())})


def _processor(engine: OneBucket) -> Any:
    """The stateful processor; pyspark's base class is only there where pyspark is."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    timeout = engine.stream.idle_timeout
    wait = None if timeout is None else max(int(Duration.of(timeout).units("ms")), 1)

    class _Buckets(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._handle = handle
            self._state = handle.getMapState("frames", "piece int", "data binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            tables = [unpack(cell) for frame in rows for cell in frame["cell"]]
            order = [("part", "ascending"), ("seq", "ascending")]
            yield from self._advanced(pa.concat_tables(tables).sort_by(order), timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            yield from self._advanced(None, timerValues)

        def _advanced(self, cells: pa.Table | None, timerValues: Any) -> Iterator[Any]:
            now = None if wait is None else timerValues.getCurrentProcessingTimeInMs()
            pieces = sorted((piece[0], bytes(data[0])) for piece, data in self._state.iterator())
            before = b"".join(data for _, data in pieces) if pieces else None
            said, after, waits = engine.go_on(before, cells, now)
            count = -(-len(after) // _PIECE)
            for piece in range(count):
                part = after[piece * _PIECE : (piece + 1) * _PIECE]
                if piece >= len(pieces) or pieces[piece][1] != part:
                    self._state.updateValue((piece,), (part,))
            for piece, _ in pieces[count:]:
                self._state.removeKey((piece,))
            if wait is not None and now is not None:
                for old in list(self._handle.listTimers()):
                    self._handle.deleteTimer(old)
                if waits:
                    self._handle.registerTimer(now + wait + 1)
            yield pd.DataFrame({"data": said})

        def close(self) -> None:
            """Nothing is held between calls."""

    return _Buckets()


def _typed(found: DataFrame, schema: pa.Schema) -> DataFrame:
    """The tables in a column ``data`` as rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Spark has times in microseconds only; where they have a zone it is the session's, which moves no moment.
    wanted = pa.schema(
        pa.field(f.name, pa.timestamp("us", f.type.tz) if pa.types.is_timestamp(f.type) else f.type) for f in schema
    )
    columns = from_arrow_schema(wanted, prefer_timestamp_ntz=True)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch["data"]:
                table = unpack(data.as_buffer())
                yield from pa.table([_column(table, f) for f in wanted], names=wanted.names).to_batches()

    return found.mapInArrow(rows, columns)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """A column as wanted; nulls where it is not, since queries that began at different times tell different columns."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table[field.name]
    # A null that is made of parts which are never null cannot be cast, not even to its own type.
    return column if column.type == field.type else column.cast(field.type)
