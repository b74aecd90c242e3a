"""Split: how a DataFrame is split for the engine, for the sink and for ``detect`` alike.

It holds what both are told (stream, queries, buckets, key, order of arrival, steps), refuses what cannot work, and
makes the cells that go through the shuffle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.connectors import spark_cells, spark_keys
from latecomer.connectors.spark_tag import Tag
from latecomer.errors import ConfigError, MissingDependency, SchemaError
from latecomer.query.query import Query, queries_of
from latecomer.runtime import Runtime
from latecomer.stream import Stream
from latecomer.units import Duration, DurationLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class Split:
    """What is asked of a stream, and how its rows reach the engine. Raises ConfigError for options without sense."""

    def __init__(
        self,
        stream: Stream,
        queries: Sequence[Query] | Query,
        *,
        buckets: int | None,
        key: Sequence[str] | str | None,
        arrival: str | None,
        step: DurationLike | None,
        default: int,
    ) -> None:
        _need_spark()
        name = type(self).__name__
        if not isinstance(stream, Stream):
            raise ConfigError(f"{stream!r} is no stream: give Stream(type=…, ts=…, id=…)")
        if arrival is not None and not isinstance(arrival, str):
            raise ConfigError(f"arrival={arrival!r}: give the name of the column that says when a row arrived")
        self.stream = stream
        self.queries = queries_of(queries)
        if not self.queries:
            raise ConfigError(f"at least one query is needed: {name}(stream, [query], …)")
        if stream.id is None:
            raise ConfigError(
                f"{name} needs Stream(id=…): events numbered by arrival would have other ids after a replay. "
                "Name a column that identifies an event; with Kafka, concat(topic, partition, offset) does"
            )
        self.buckets, self.key = spark_keys.choose(self.queries, buckets, key, default)
        if self.buckets > 1:
            _check_parts(stream)
        if step is not None and arrival is None:
            raise ConfigError(f"step={step!r} needs arrival=…: the column that says when a row arrived")
        self.arrival = arrival
        self.step = None if step is None else Duration.of(step)
        if self.step is not None and self.step.amount == 0:
            raise ConfigError(f"step={step!r}: a length of time above 0 is needed, like '15 minutes'")
        self._checked: tuple[StructType, pa.Schema] | None = None
        self._numbers: dict[int, tuple[int, ...]] = {}
        Runtime(stream, self.queries)  # refuses what the engine would refuse, before the stream starts

    def _cells(self, rows: DataFrame, clock: int | None, buckets: int) -> DataFrame:
        """The rows as cells, each with its bucket; ``clock`` is the stream's before them."""
        tag = Tag(buckets=buckets, key=self.key, stream=self.stream, arrival=self.arrival, clock=clock)
        return rows.mapInArrow(tag, spark_cells.CELL_SCHEMA)

    def _check(self, batch: DataFrame) -> pa.Schema:
        """The batch's schema in Arrow; SchemaError when columns are missing or wrong."""
        if self._checked is None or self._checked[0] != batch.schema:
            schema = _arrow_schema(batch)
            wanted = [(name, "to split the stream by") for name in self.key]
            if self.arrival is not None:
                wanted.append((self.arrival, "to order rows by"))
            for name, purpose in wanted:
                if name not in schema.names:
                    raise SchemaError(f"there is no column {name!r} {purpose}; columns: {schema.names}")
            if spark_cells.CLOCK in schema.names:
                raise SchemaError(f"the column name {spark_cells.CLOCK!r} is taken: rename the column")
            Runtime(self.stream, self.queries).process(schema.empty_table())
            self._checked = batch.schema, schema
        return self._checked[1]

    def _step_units(self, schema: pa.Schema) -> int | None:
        """The step in the arrival column's own units."""
        if self.step is None or self.arrival is None:
            return None
        kind = schema.field(self.arrival).type
        if pa.types.is_timestamp(kind):
            units = self.step.units(kind.unit)
        elif pa.types.is_integer(kind):
            units = self.step.units(self.stream.unit_for(schema.field(self.stream.ts).type))
        else:
            raise SchemaError(
                f"step={self.step} needs a time of arrival, and column {self.arrival!r} holds {kind}: whole "
                "numbers in the stream's unit or timestamps are allowed"
            )
        if units < 1:
            raise ConfigError(f"step={self.step} is less than one unit of column {self.arrival!r}: give a longer one")
        return units

    def _settings(self, queries: Sequence[Query]) -> dict[str, Any]:
        """What the state depends on, in values that JSON gives back equal."""
        stream = {name: _plain(getattr(self.stream, name)) for name in self.stream.__dataclass_fields__}
        return {
            "queries": {q.name: q.text for q in queries},
            "stream": stream,
            "buckets": self.buckets,
            "key": list(self.key),
        }

    def _to_partitions(self, cells: DataFrame, buckets: int) -> DataFrame:
        """Shuffle so that bucket b is in partition ``b % partitions``.

        Spark partitions by hash, and hashes of the bucket numbers themselves would fall together by chance: of 8
        buckets on 2 partitions 6 may share one. So each partition has a number that hashes to it.
        """
        from pyspark.sql import functions as F

        spark = cells.sparkSession
        partitions = min(buckets, int(str(spark.conf.get("spark.sql.shuffle.partitions"))))
        if partitions not in self._numbers:
            self._numbers[partitions] = _numbers_of_partitions(spark, partitions)
        numbers = ", ".join(map(str, self._numbers[partitions]))
        return cells.repartition(partitions, F.expr(f"element_at(array({numbers}), bucket % {partitions} + 1)"))


def _arrow_schema(batch: DataFrame) -> pa.Schema:
    """The schema in Arrow; SchemaError for columns that Spark does not hand to Python."""
    from pyspark.errors import PySparkException

    names = batch.columns
    doubled, dotted = [n for n in names if names.count(n) > 1], [n for n in names if "." in n or "`" in n]
    if doubled:
        raise SchemaError(f"two columns are called {doubled[0]!r}: leave one out with select, or rename it")
    if dotted:
        raise SchemaError(
            f"the column name {dotted[0]!r} has a dot or a backtick in it, and Spark does not hand such a column to "
            "Python: rename it with withColumnRenamed, or leave it out with select"
        )
    try:
        return batch.limit(0).toArrow().schema
    except PySparkException as error:
        if error.getCondition() != "UNSUPPORTED_DATA_TYPE_FOR_ARROW_CONVERSION":
            raise
        raise SchemaError(
            f"a column has a type that Spark does not hand to Python: leave it out with select, or cast it ({error})"
        ) from error


def _plain(value: Any) -> Any:
    """An option of a stream in values that JSON gives back equal."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _check_parts(stream: Stream) -> None:
    """Raise ConfigError for what only a runtime that sees the whole stream can do."""
    if stream.clock == "source" or stream.quorum > 1:
        given = "clock='source'" if stream.clock == "source" else f"quorum={stream.quorum}"
        raise ConfigError(
            f"{given} needs buckets=1 here: a bucket sees the events of some sources only, and cannot compare their "
            "clocks. Use buckets=1, or clock='stream' with quorum=1"
        )
    if stream.promises:
        raise ConfigError(
            f"promises={list(stream.promises)} needs buckets=1 here: what promises are made of is the whole "
            "stream, and a bucket sees a part. Use buckets=1, or let punctuation travel in the stream: "
            "Stream(punctuation=…)"
        )


def _numbers_of_partitions(spark: SparkSession, partitions: int) -> tuple[int, ...]:
    """For each partition an integer that Spark's hash partitioning sends there."""
    from pyspark.sql import functions as F

    found: dict[int, int] = {}
    tried = 16 * partitions
    while len(found) < partitions:
        number = F.col("id").cast("int")
        rows = spark.range(tried).select("id", F.pmod(F.hash(number), F.lit(partitions)).alias("partition")).toArrow()
        found = dict(zip(rows["partition"].to_pylist(), rows["id"].to_pylist(), strict=True))
        tried *= 2
    return tuple(found[partition] for partition in range(partitions))


def controls(spark: SparkSession, buckets: int) -> DataFrame:
    """One row per bucket without content: what runs every bucket where there is no input that would."""
    from pyspark.sql import functions as F

    return spark.range(0, buckets, 1, 1).select(
        F.col("id").cast("int").alias("bucket"),
        F.lit(-1).alias("part"),
        F.lit(0).alias("seq"),
        F.lit(None).cast("long").alias("clock"),
        F.lit(None).cast("binary").alias("rows"),
    )


def _need_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingDependency("pyspark", "spark", "PatternSink") from error
