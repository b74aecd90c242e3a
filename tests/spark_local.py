"""What runs in Spark's tasks, called in this process: micro-batches as ``PatternSink`` and ``detect`` take them.

No Spark is started, so a test can try hundreds of queries, and sees each blob that is read or written.
"""

from dataclasses import replace
from unittest import mock

import pyarrow as pa

from latecomer.connectors.spark import PatternSink
from latecomer.connectors.spark_detect import gather
from latecomer.connectors.spark_stream import OneBucket
from latecomer.connectors.spark_tag import Tag
from latecomer.connectors.versions import Version
from latecomer.runtime import Runtime

ORDER = [("bucket", "ascending"), ("part", "ascending"), ("seq", "ascending")]


def slices(table, parts):
    size = max(-(-table.num_rows // parts), 1)
    return [table.slice(n * size, size) for n in range(parts)]


class Context:
    """Stands for pyspark's TaskContext: which input partition a task reads."""

    def __init__(self, part):
        self._part = part

    def get(self):
        return self

    def partitionId(self):
        return self._part


def tagged(split, table, clock, buckets, parts):
    """The cells of a micro-batch whose rows Spark reads in so many partitions."""
    tag = Tag(buckets=buckets, key=split.key, stream=split.stream, arrival=split.arrival, clock=clock)
    cells = []
    for number, part in enumerate(slices(table, parts)):
        with mock.patch("pyspark.TaskContext", Context(number)):
            cells += tag(part.to_batches())
    return pa.Table.from_batches(cells).sort_by(ORDER)


class Local(PatternSink):
    """A PatternSink without Spark: ``take`` is what ``__call__`` and ``finish`` do."""

    #: What makes the shelf of a task; None: the store's own.
    begin = None

    def take(self, number, table, *, parts=1, tasks=2, finish=False):
        """One micro-batch that is read in ``parts`` partitions and runs in so many tasks: what ``gather`` gives."""
        before = self._store.open(number, self._settings(self.queries), finish=finish)
        states = self._store.buckets(before.batch) if before else {}
        queries = self._queries_of(number)
        known = before.settings["queries"] if before else {}
        fresh = self._fresh(table.schema, [query for query in queries if query.name not in known])
        cells = self.cells(table, before.clock if before else None, parts)
        detect = self._detect(before, states, self.buckets, queries, fresh=fresh, finish=finish)
        if self.begin is not None:
            detect = replace(detect, begin=self.begin)
        said = []
        for task in range(tasks):
            own = pa.array([bucket % tasks == task for bucket in cells["bucket"].to_pylist()], pa.bool_())
            said += self.task(detect, cells.filter(own))
        result = gather(pa.Table.from_batches(said), states)
        version = Version(number, result.clock, self._settings(queries), finished=finish)
        self._store.write(version, result.buckets, result.files)
        return result

    def cells(self, table, clock, parts=1):
        return tagged(self, table, clock, self.buckets, parts)

    def task(self, detect, cells):
        return list(detect(cells.to_batches()))


def engine(split, schema, kind, *, finish):
    """The engine of a bucket, as ``detect`` makes it."""
    runtime = Runtime(split.stream, split.queries)
    runtime.process(schema.empty_table())
    return OneBucket(
        fresh=runtime.snapshot(),
        settings=split._settings(split.queries),
        schema=schema,
        stream=split.stream,
        arrival=split.arrival,
        step=None,
        finish=finish,
        kind=kind,
    )
