"""Progress of a PatternSink: what each micro-batch brought, what is held, and which buckets carry the load.

Each bucket measures itself where it runs (:class:`Meter`); the driver sums up (:func:`summed`) and hands one
:class:`Progress` per micro-batch to whoever shows it: a live line on a terminal, Prometheus, a function of your own, or
a ``StreamingQueryListener``, which adds what Spark itself knows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.errors import MissingDependency
from latecomer.runtime import Runtime
from latecomer.units import UNITS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import StreamingQueryListener

#: Rows of a bucket that are looked at to find its most frequent key.
_SAMPLE = 4096

#: A bucket is called hot when it carries so many times its fair share of rows, state or time.
HOT = 4.0

#: What a bucket's load is told in.
LOADS = ("rows", "bytes", "seconds")

#: Below so much in all buckets together a bucket's share says nothing.
_LITTLE = {"rows": 100, "bytes": 1_000_000, "seconds": 1.0}


class Meter:
    """Measures one bucket in one micro-batch, from its making to :meth:`report`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._before = runtime.counters
        self._began = time.perf_counter()

    def report(self, rows: pa.Table | None, key: Sequence[str], state_bytes: int) -> dict[str, Any]:
        """What the bucket did, in values that JSON gives back equal."""
        told, before = self._runtime.explain(), self._before
        counters, unit = told["counters"], told.get("unit")
        queries = told["queries"].items()
        lag = {
            name: (told["clock"] - facts["horizon"]) * UNITS[unit] / 1e9
            for name, facts in queries
            if unit is not None and told["clock"] is not None and facts["horizon"] is not None
        }
        return {
            "rows": (counters["rows"] - counters["punctuation"]) - (before["rows"] - before["punctuation"]),
            "seconds": time.perf_counter() - self._began,
            "bytes": state_bytes,
            "events": told["events"],
            "late": {q: _less(found, before["late"].get(q, {})) for q, found in counters["late"].items()},
            "inserted": _less(counters["inserted"], before["inserted"]),
            "deleted": _less(counters["deleted"], before["deleted"]),
            "held": {name: facts["held"] for name, facts in queries},
            "lag": lag,
            "key": _most_frequent(rows, key),
        }


def together(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The reports of a bucket's runtimes, which share its rows, as one."""
    first, *others = reports
    total = dict(first)
    for report in others:
        for name in ("seconds", "bytes", "events"):
            total[name] += report[name]
        for name in ("late", "inserted", "deleted", "held", "lag"):
            total[name] = {**total[name], **report[name]}
    return total


def idle(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a bucket did that was not looked at, after the batch in which it made this report."""
    nothing = {"rows": 0, "seconds": 0.0, "late": {}, "inserted": {}, "deleted": {}, "key": None}
    return {**report, **nothing}


@dataclass(frozen=True, slots=True)
class BucketLoad:
    """What one bucket carried in a micro-batch.

    Attributes:
        bucket: its number.
        rows: rows that it was given.
        bytes: size of its state afterwards.
        seconds: time that the engine spent on it, reading state and writing pages included.
        key: the most frequent key among its rows, as text; None without rows.
        key_share: that key's share of the bucket's rows.
    """

    bucket: int
    rows: int
    bytes: int
    seconds: float
    key: str | None
    key_share: float


@dataclass(frozen=True, slots=True)
class Progress:
    """One micro-batch of a PatternSink.

    Attributes:
        batch: its number.
        rows: rows that came, punctuation not counted.
        seconds: wall time from the call to the last sink.
        late: late events by query and reason.
        inserted, deleted: matches that left, and those that were taken back (retractions), by query.
        held: matches that wait, by query.
        lag: how far behind the clock everything is taken as known, by query, in seconds of event time.
        state_events, state_bytes: size of the state afterwards.
        loads: what each bucket carried.
        spark: what Spark said of the batch, where a listener heard it: ``StreamingQueryProgress`` as a dict.
    """

    batch: int
    rows: int
    seconds: float
    late: Mapping[str, Mapping[str, int]]
    inserted: Mapping[str, int]
    deleted: Mapping[str, int]
    held: Mapping[str, int]
    lag: Mapping[str, float]
    state_events: int
    state_bytes: int
    loads: tuple[BucketLoad, ...]
    spark: Mapping[str, Any] | None = None

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def shares(self) -> list[dict[str, Any]]:
        """For each bucket its ``bucket`` number, its shares (0 to 1) of ``rows``, ``bytes`` and ``seconds``, and the
        most frequent ``key`` with its ``key_share`` of all rows; the hottest bucket first."""
        totals = {what: sum(getattr(load, what) for load in self.loads) for what in LOADS}
        found = []
        for load in self.loads:
            share = {what: getattr(load, what) / totals[what] if totals[what] else 0.0 for what in LOADS}
            found.append({"bucket": load.bucket, **share, "key": load.key, "key_share": load.key_share * share["rows"]})
        return sorted(found, key=lambda s: (-max(s[what] for what in LOADS), s["bucket"]))

    def hot(self) -> list[dict[str, Any]]:
        """Those of :meth:`shares` that are more than :data:`HOT` times the fair share of one bucket, of something of
        which there is much enough to speak of shares."""
        fair = 1 / max(len(self.loads), 1)
        much = self._much()
        return [
            s for s in self.shares() if max((s[what] for what in much), default=0) > min(HOT * fair, 0.5 + fair / 2)
        ]

    def _much(self) -> list[str]:
        """The loads whose shares mean something."""
        return [what for what in LOADS if sum(getattr(load, what) for load in self.loads) >= _LITTLE[what]]

    def line(self) -> str:
        """One line for people.

        >>> load = BucketLoad(0, 10, 1000, 0.1, "tag=A7", 1.0)
        >>> counts = {"late": {"q": {"after_k": 1}}, "inserted": {"q": 3}, "deleted": {"q": 1}, "held": {"q": 2}}
        >>> Progress(batch=4, rows=10, seconds=0.5, lag={"q": 5.0}, state_events=7, state_bytes=1000, loads=(load,),
        ...          **counts).line()
        'batch 4: 10 rows, 20 rows/s, 1 late, 3 matches, 1 retracted, 2 held, horizon 5 s behind, state 7 events, 1 kB'
        """
        late = sum(sum(reasons.values()) for reasons in self.late.values())
        words = [
            f"{self.rows:,} rows",
            f"{self.rows_per_second:,.0f} rows/s",
            f"{late:,} late",
            f"{sum(self.inserted.values()):,} matches",
            f"{sum(self.deleted.values()):,} retracted",
            f"{sum(self.held.values()):,} held",
        ]
        if self.lag:
            behind = max(self.lag.values())
            words.append(f"horizon {behind if behind >= 0.001 else 0:,.3g} s behind")
        words.append(f"state {self.state_events:,} events, {_bytes(self.state_bytes)}")
        for share in self.hot()[:1]:
            what = max(self._much(), key=lambda name: share[name])
            often = f", key {share['key']} is {share['key_share']:.0%} of all rows" if share["key"] else ""
            words.append(f"hot: bucket {share['bucket']} has {share[what]:.0%} of {what}{often}")
        return f"batch {self.batch}: " + ", ".join(words)


def summed(batch: int, seconds: float, reports: Mapping[int, Mapping[str, Any]]) -> Progress:
    """The progress of a batch from what its buckets reported."""
    counts: dict[str, dict[str, int]] = {what: {} for what in ("inserted", "deleted", "held")}
    late: dict[str, dict[str, int]] = {}
    lag: dict[str, float] = {}
    for report in reports.values():
        for what, found in counts.items():
            for query, n in report[what].items():
                found[query] = found.get(query, 0) + n
        for query, reasons in report["late"].items():
            of = late.setdefault(query, {})
            for reason, n in reasons.items():
                of[reason] = of.get(reason, 0) + n
        for query, behind in report["lag"].items():
            lag[query] = max(lag.get(query, 0.0), behind)
    loads = tuple(
        BucketLoad(bucket, r["rows"], r["bytes"], r["seconds"], *(r["key"] or (None, 0.0)))
        for bucket, r in sorted(reports.items())
    )
    return Progress(
        batch=batch,
        rows=sum(load.rows for load in loads),
        seconds=seconds,
        late=late,
        lag=lag,
        state_events=sum(r["events"] for r in reports.values()),
        state_bytes=sum(load.bytes for load in loads),
        loads=loads,
        **counts,
    )


#: Whoever is told of progress.
Show = Callable[[Progress], object]


class LiveLine:
    """Shows progress as one line that is written anew with each batch; where ``file`` is no terminal, line by line.

    Example::

        sink = PatternSink(stream, [theft], state="state", sinks=[…], progress=LiveLine())
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        file, line = self._file or sys.stderr, progress.line()
        if file.isatty():
            file.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            file.write(line + "\n")
        file.flush()


class PrometheusProgress:
    """Shows progress as Prometheus metrics, in ``registry`` or the default one, under the label ``job``.

    Counters begin at 0 with this object; a batch that runs again within its life is counted once.

    >>> from prometheus_client import CollectorRegistry
    >>> show = PrometheusProgress("theft", CollectorRegistry())
    """

    def __init__(self, job: str, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Gauge
        except ImportError as error:
            raise MissingDependency("prometheus_client", "metrics", "PrometheusProgress") from error
        where = REGISTRY if registry is None else registry

        def counter(name: str, meaning: str, *labels: str) -> Any:
            return Counter(f"latecomer_spark_{name}", meaning, ("job", *labels), registry=where)

        def gauge(name: str, meaning: str, *labels: str) -> Any:
            return Gauge(f"latecomer_spark_{name}", meaning, ("job", *labels), registry=where)

        self._job, self._last = job, -1
        self._rows = counter("rows", "Rows taken in, punctuation not counted")
        self._batches = counter("batches", "Micro-batches")
        self._late = counter("late_events", "Events that broke the promise of a query's level", "query", "reason")
        self._inserted = counter("matches_inserted", "Matches that left", "query")
        self._deleted = counter("matches_deleted", "Matches that were taken back", "query")
        self._batch = gauge("batch", "Number of the last micro-batch")
        self._seconds = gauge("batch_seconds", "Wall time of the last micro-batch")
        self._speed = gauge("rows_per_second", "Rows per second of the last micro-batch")
        self._held = gauge("held_matches", "Matches that wait to be known", "query")
        self._lag = gauge("horizon_lag_seconds", "How far behind the clock everything is taken as known", "query")
        self._events = gauge("state_events", "Events in the state")
        self._bytes = gauge("state_bytes", "Bytes of state")
        self._hottest = gauge("hottest_bucket_share", "Share of the bucket that carries most", "of")

    def __call__(self, progress: Progress) -> None:
        job = self._job
        self._batch.labels(job).set(progress.batch)
        self._seconds.labels(job).set(progress.seconds)
        self._speed.labels(job).set(progress.rows_per_second)
        self._events.labels(job).set(progress.state_events)
        self._bytes.labels(job).set(progress.state_bytes)
        for query, n in progress.held.items():
            self._held.labels(job, query).set(n)
        for query, behind in progress.lag.items():
            self._lag.labels(job, query).set(behind)
        for what in LOADS:
            self._hottest.labels(job, what).set(max((s[what] for s in progress.shares()), default=0.0))
        if progress.batch <= self._last:
            return
        self._last = progress.batch
        self._batches.labels(job).inc()
        self._rows.labels(job).inc(progress.rows)
        for query, reasons in progress.late.items():
            for reason, n in reasons.items():
                self._late.labels(job, query, reason).inc(n)
        for found, family in ((progress.inserted, self._inserted), (progress.deleted, self._deleted)):
            for query, n in found.items():
                family.labels(job, query).inc(n)


class Reporting(Protocol):
    """What a listener asks: a PatternSink."""

    def progress_of(self, batch: int) -> Progress | None:
        """The progress of a batch; None when it is not known (any more)."""


def listener(sink: Reporting, *shows: Show) -> StreamingQueryListener:
    """A listener for ``spark.streams.addListener`` that tells ``shows`` the progress of ``sink``, batch by batch, with
    what Spark says of it in :attr:`Progress.spark` (durations, source offsets, input rates).

    Example::

        spark.streams.addListener(listener(sink, LiveLine(), PrometheusProgress("theft")))
    """
    import json
    from dataclasses import replace

    from pyspark.sql.streaming.listener import StreamingQueryListener

    class _Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            """Nothing is known yet."""

        def onQueryProgress(self, event: Any) -> None:
            progress = sink.progress_of(event.progress.batchId)
            if progress is not None:
                told = replace(progress, spark=json.loads(event.progress.json))
                for show in shows:
                    show(told)

        def onQueryIdle(self, event: Any) -> None:
            """Nothing has changed."""

        def onQueryTerminated(self, event: Any) -> None:
            """The last progress stays."""

    return _Listener()


def _less(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: n - before.get(name, 0) for name, n in now.items() if n != before.get(name, 0)}


def _most_frequent(rows: pa.Table | None, key: Sequence[str]) -> tuple[str, float] | None:
    """The key that most of the rows have, among a sample that is spread over them, and its share there."""
    if rows is None or not rows.num_rows or not key:
        return None
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, _SAMPLE)).astype(np.int64)
    sample = rows.select(list(key)).take(pa.array(places))
    counts = sample.group_by(list(key), use_threads=False).aggregate([([], "count_all")])
    first = int(pc.index(counts["count_all"], pc.max(counts["count_all"])).as_py())
    words = [f"{name}={counts[name][first].as_py()}" for name in key]
    return ", ".join(words), counts["count_all"][first].as_py() / len(places)


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.1f} TB"
