"""Prometheus metrics of a runtime: how much came, how late, what matched, what is held.

Rules:

* *Bounded labels.* A label is the runtime's name, a query, a late reason, a quantile, or a source; never an event, key
  or id. Of sources, only the first few get a name for the life of the process (of those that are new together, the ones
  with the most events); the rest are summed up as ``other``. So a churn of sources makes no new series.
* *Counters never fall.* A runtime that is restored from an older snapshot counts the same events again; a counter
  stays where it was until they are through, as a sink would have it.
* *Reading is separate from counting.* :meth:`Metrics.update` looks at the runtime, in the thread that runs it; a scrape
  only sees the figures of the last update, whole.

Times are in seconds, as Prometheus wants them, whatever the stream's unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.errors import ConfigError, MissingDependency
from latecomer.query import Query
from latecomer.runtime import Runtime
from latecomer.units import UNITS, Duration

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

#: The label of all sources that have no series of their own.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name (Prometheus adds ``_total`` to counters), what it means, and its labels besides
    ``runtime``."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    counter: bool = False


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"latecomer_{name}", meaning, labels, counter=True)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"latecomer_{name}", meaning, labels)


#: Counters of the stream, by their key in ``Runtime.counters``.
STREAM = {
    "rows": _counter("rows", "Rows taken in, of every kind"),
    "events": _counter("events", "Rows that are events"),
    "other_types": _counter("other_type_events", "Events of types that no query asks for"),
    "punctuation": _counter("punctuation_rows", "Rows that are punctuation"),
    "duplicates": _counter("duplicate_events", "Events whose id had come before"),
    "conflicts": _counter("conflicting_events", "Duplicates with other content than the first"),
    "malformed": _counter("malformed_rows", "Rows that are no events: no time, type or id"),
    "ahead": _counter("ahead_events", "Events too far ahead of the wall clock to be believed"),
}
LATE = _counter("late_events", "Events that broke the promise of a query's level", "query", "reason")
INSERTED = _counter("matches_inserted", "Matches that left", "query")
DELETED = _counter("matches_deleted", "Matches that were taken back", "query")
SOURCE_EVENTS = _counter("source_events", "Events by sender", "source")
SOURCE_LATE = _counter("source_late_events", "Events by sender that came after a later one", "source")

CLOCK = _gauge("clock_seconds", "How far event time has come")
STATE_EVENTS = _gauge("state_events", "Events in memory")
STATE_BYTES = _gauge("state_bytes", "Bytes of state in memory")
LAG = _gauge("horizon_lag_seconds", "How far behind the clock everything is taken as known", "query")
SLACK = _gauge("slack_seconds", "Slack in use by a K-slack query", "query")
PATIENCE = _gauge("patience_seconds", "Patience in use by an aggressive query", "query")
RETENTION = _gauge("retention_seconds", "How far behind the clock state is kept", "query")
#: Gauges of queries, by their key in ``Runtime.explain()``.
HELD = {
    "held": _gauge("held_matches", "Matches that wait to be known", "query"),
    "buffered": _gauge("buffered_events", "Events in sort buffers", "query"),
    "stored": _gauge("stored_events", "Events that a query may still need", "query"),
}
SOURCE_LAG = _gauge("source_lag_seconds", "How far a sender is behind the stream's clock", "source")
SOURCE_IDLE = _gauge("source_idle", "1 for an idle sender; under other, how many are", "source")
SOURCE_LATENESS = _gauge("source_lateness_seconds", "Lateness of a sender's events", "source", "quantile")

FAMILIES = (
    *STREAM.values(), LATE, INSERTED, DELETED, SOURCE_EVENTS, SOURCE_LATE,
    CLOCK, STATE_EVENTS, STATE_BYTES, LAG, SLACK, PATIENCE, RETENTION, *HELD.values(),
    SOURCE_LAG, SOURCE_IDLE, SOURCE_LATENESS,
)  # fmt: skip

#: A sample: its family, the values of its labels, its value.
Sample = tuple[Family, tuple[str, ...], float]

_REASONS = {KSlack: "after_k", Conservative: "after_punctuation", Aggressive: "after_max_delay"}


class Metrics:
    """The metrics of one runtime.

    Args:
        runtime_name: the label ``runtime``; several runtimes may share a registry under names of their own. Making
            another one of the same name begins anew.
        registry: a prometheus_client registry; None: the default one.
        sources: how many senders may have series of their own.
        since: the counters from which to count: after ``Runtime.restore`` in a new process give ``runtime.counters``.
            Prometheus takes a counter that starts below its last value for one that began at 0 and adds it whole, so
            counters of a new process must begin at 0, not at a snapshot's figures. None: from the stream's start.

    Raises MissingDependency without prometheus_client, ConfigError for a number of sources below 0.

    >>> import latecomer as lc
    >>> from prometheus_client import CollectorRegistry
    >>> query = lc.Query("PATTERN SEQ(A a, B b) WITHIN 10 s", name="pair", level=lc.KSlack("1 s"))
    >>> runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    >>> registry = CollectorRegistry()
    >>> metrics = Metrics("demo", registry)
    >>> out = runtime.process([{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "B", "ts": 5}])
    >>> metrics.update(runtime)
    >>> registry.get_sample_value("latecomer_events_total", {"runtime": "demo"})
    2.0
    """

    def __init__(
        self,
        runtime_name: str,
        registry: CollectorRegistry | None = None,
        *,
        sources: int = 20,
        since: Mapping[str, Any] | None = None,
    ) -> None:
        if sources < 0:
            raise ConfigError(f"sources={sources!r}: 0 or more senders may have series of their own")
        self.name = runtime_name
        self._collector = _collector_of(registry)
        self._room = sources
        self._named: set[str] = set()
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}
        self._since = {(f.name, labels): value for f, labels, value in _counts(since or {})}
        self._collector.samples[self.name] = []

    def update(self, runtime: Runtime) -> None:
        """Take the figures of the runtime as they are now; call it after a batch, or every few seconds."""
        explained = runtime.explain()
        samples = list(_counts(explained.get("counters", {})))
        samples += [
            (LATE, (q.name, _REASONS[type(q.level)]), 0.0) for q in runtime.queries
        ]  # so that a series is there before the first late event
        samples += _state(explained)
        for query in runtime.queries:
            samples += _query(query, explained)
        samples += self._sources(explained)
        self._collector.samples[self.name] = list(self._never_falling(samples))

    def close(self) -> None:
        """Show no series of this runtime any more."""
        self._collector.samples.pop(self.name, None)

    def _never_falling(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        shown: dict[tuple[str, tuple[str, ...]], Sample] = {}
        for family, labels, value in samples:
            key = family.name, labels
            if family.counter:
                value = max(value - self._since.get(key, 0.0), self._highest.get(key, 0.0))
                self._highest[key] = value
            shown[key] = family, labels, value
        return iter(shown.values())

    def _sources(self, explained: Mapping[str, Any]) -> Iterator[Sample]:
        """Figures by sender, those without a name summed up."""
        found = {"null" if name is None else str(name): facts for name, facts in explained.get("sources", {}).items()}
        fresh = sorted(found.keys() - self._named - {OTHER}, key=lambda name: (-found[name].get("events", 0), name))
        self._named.update(fresh[: self._room - len(self._named)])
        clock, unit = explained.get("clock"), explained.get("unit")
        rest = [facts for name, facts in found.items() if name not in self._named]
        for name in sorted(self._named & found.keys()):
            yield from _source(name, [found[name]], clock, unit)
            for quantile, value in found[name].get("lateness", {}).items():
                if unit is not None and value is not None:
                    yield SOURCE_LATENESS, (name, str(quantile)), _seconds(value, unit)
        if rest:
            yield from _source(OTHER, rest, clock, unit)


def _counts(counters: Mapping[str, Any]) -> Iterator[Sample]:
    """The counters of a runtime as samples."""
    for key, family in STREAM.items():
        if key in counters:
            yield family, (), float(counters[key])
    for query, reasons in counters.get("late", {}).items():
        for reason, count in reasons.items():
            yield LATE, (query, reason), float(count)
    for key, family in (("inserted", INSERTED), ("deleted", DELETED)):
        for query, count in counters.get(key, {}).items():
            yield family, (query,), float(count)


def _state(explained: Mapping[str, Any]) -> Iterator[Sample]:
    yield STATE_EVENTS, (), float(explained.get("events", 0))
    yield STATE_BYTES, (), float(explained.get("bytes", 0))
    if explained.get("clock") is not None:
        yield CLOCK, (), _seconds(explained["clock"], explained["unit"])


def _query(query: Query, explained: Mapping[str, Any]) -> Iterator[Sample]:
    facts, label = explained.get("queries", {}).get(query.name, {}), (query.name,)
    for key, family in HELD.items():
        if facts.get(key) is not None:
            yield family, label, float(facts[key])
    clock, unit = explained.get("clock"), explained.get("unit")
    if unit is None:
        return
    facts = {**_by_level(query, explained, unit), **facts}
    for key, family in (("k", SLACK), ("patience", PATIENCE), ("retention", RETENTION)):
        if facts.get(key) is not None:
            yield family, label, _seconds(facts[key], unit)
    if clock is not None and facts.get("horizon") is not None:
        yield LAG, label, _seconds(max(clock - facts["horizon"], 0), unit)


def _by_level(query: Query, explained: Mapping[str, Any], unit: str) -> dict[str, int]:
    """What follows from the level alone, in units, where the runtime does not say what is in use: fixed slack or
    patience, and the horizon.
    """
    clock = explained.get("clock")
    match query.level:
        case KSlack(k=Duration() as k):
            facts, behind = {"k": k.units(unit)}, k.units(unit)
        case Aggressive(patience=patience, retractions=None):
            facts, behind = {"patience": patience.units(unit)}, patience.units(unit)
        case Conservative():
            bounds = [explained.get("bounds", {}).get(n.component.type) for n in query.plan.negations]
            return {"horizon": min(bounds)} if bounds and None not in bounds else {}
        case _:
            return {}
    return facts if clock is None else facts | {"horizon": clock - behind - 1}


def _source(name: str, facts: list[Mapping[str, Any]], clock: int | None, unit: str | None) -> Iterator[Sample]:
    """Figures of one sender, or of several together."""
    for key, family in (("events", SOURCE_EVENTS), ("late", SOURCE_LATE)):
        if any(key in f for f in facts):
            yield family, (name,), float(sum(f.get(key, 0) for f in facts))
    own = [f["clock"] for f in facts if f.get("clock") is not None]
    if own and clock is not None and unit is not None:
        yield SOURCE_LAG, (name,), _seconds(clock - min(own), unit)
    yield SOURCE_IDLE, (name,), float(sum(bool(f.get("idle")) for f in facts))


def _seconds(units: float, unit: str) -> float:
    return units * UNITS[unit] / 1e9


class _Collector:
    """What a registry scrapes: the last samples of every runtime that shares it."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}

    def describe(self) -> Iterable[Metric]:
        """All metrics without samples, by which a registry knows whose names they are."""
        return self._families().values()

    def collect(self) -> Iterable[Metric]:
        """All metrics with the samples of the last updates."""
        families = self._families()
        for runtime, samples in sorted(self.samples.copy().items()):
            for family, labels, value in samples:
                families[family.name].add_metric((runtime, *labels), value)
        return [f for f in families.values() if f.samples]

    @staticmethod
    def _families() -> dict[str, Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        return {
            f.name: (CounterMetricFamily if f.counter else GaugeMetricFamily)(
                f.name, f.meaning, labels=("runtime", *f.labels)
            )
            for f in FAMILIES
        }


_COLLECTORS: WeakKeyDictionary[CollectorRegistry, _Collector] = WeakKeyDictionary()


def _collector_of(registry: CollectorRegistry | None) -> _Collector:
    """The one collector of a registry: two would offer the same metric twice, which no scraper accepts."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        raise MissingDependency("prometheus_client", "metrics", "Metrics") from None
    registry = REGISTRY if registry is None else registry
    collector = _COLLECTORS.get(registry)
    if collector is None:
        collector = _Collector()
        registry.register(collector)
        _COLLECTORS[registry] = collector
    return collector
