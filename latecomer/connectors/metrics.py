"""Prometheus metrics of a runtime: how much came, how late, what matched, what is held.

Rules:

* *Bounded labels.* A label is the runtime's name, a query, a late reason, a quantile, or a source; never an event, key
  or id. Of sources, only the first few get a name for the life of the process (of those that are new together, the ones
  with the most events); the rest are summed up as ``other``. So a churn of sources makes no new series.
* *Counters never fall.* A runtime that is restored from an older snapshot counts the same events again; a counter
  stays where it was until they are through, as a sink would have it. None that was shown is missing later.
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
from latecomer.runtime.explain import OTHERS
from latecomer.units import UNITS

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
CONFIDENCES = {
    "steps": _counter("confidence_steps", "Elementary steps, of a few ns, that confidences of matches took", "query"),
    "unknown": _counter("unknown_confidences", "Matches whose confidence would have cost too much to compute", "query"),
    "sampled": _counter("sampled_confidences", "Matches whose confidence is an estimate", "query"),
}
DELETED = _counter("matches_deleted", "Matches that were taken back", "query")
SOURCE_EVENTS = _counter("source_events", "Events by sender", "source")
SOURCE_LATE = _counter("source_late_events", "Late events by sender, once for each query they are late for", "source")

CLOCK = _gauge("clock_seconds", "How far event time has come")
STATE_EVENTS = _gauge("state_events", "Events in memory")
STATE_BYTES = _gauge("state_bytes", "Bytes of state in memory")
LAG = _gauge("horizon_lag_seconds", "How far behind the clock everything is taken as known", "query")
SLACK = _gauge("slack_seconds", "Slack in use by a K-slack query", "query")
PATIENCE = _gauge("patience_seconds", "Patience in use by an aggressive query", "query")
RETENTION = _gauge("retention_seconds", "How far behind the clock state is kept", "query")
PROMISE_LAG = _gauge("promise_lag_seconds", "How far behind the clock a type of event is proven complete", "type")
#: Gauges of queries, by their key in ``Runtime.explain()``.
HELD = {
    "held": _gauge("held_matches", "Matches that wait to be known", "query"),
    "buffered": _gauge("buffered_events", "Events in sort buffers", "query"),
    "stored": _gauge("stored_events", "Events that a query may still need", "query"),
}
SOURCE_LAG = _gauge("source_lag_seconds", "How far a sender is behind the stream's clock", "source")
SOURCE_IDLE = _gauge("source_idle", "1 for an idle sender; under other, how many are", "source")
SOURCE_SHARE = _gauge("source_late_ratio", "Share of a sender's last events that came after later ones", "source")
SOURCE_LATENESS = _gauge("source_lateness_seconds", "Lateness of a sender's events", "source", "quantile")

FAMILIES = (
    *STREAM.values(), LATE, INSERTED, DELETED, *CONFIDENCES.values(), SOURCE_EVENTS, SOURCE_LATE,
    CLOCK, STATE_EVENTS, STATE_BYTES, LAG, SLACK, PATIENCE, RETENTION, PROMISE_LAG, *HELD.values(),
    SOURCE_LAG, SOURCE_IDLE, SOURCE_SHARE, SOURCE_LATENESS,
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
        since: from where to count: after ``Runtime.restore`` in a new process give ``runtime.explain()``. Prometheus
            takes a counter that starts below its last value for one that began at 0 and adds it whole, so counters of
            a new process must begin at 0, not at a snapshot's figures. None: from the stream's start.

    Raises MissingDependency without prometheus_client, ConfigError for a number of sources below 0 and for a
    ``since`` that is nothing that ``explain`` said.

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
        if since is not None and not {"counters", "sources"} <= since.keys():
            raise ConfigError("since= takes what Runtime.explain() says: Metrics(…, since=runtime.explain())")
        self.name = runtime_name
        self._collector = _collector_of(registry)
        self._room = sources
        self._named: set[str] = set()
        self._highest: dict[tuple[str, tuple[str, ...]], Sample] = {}
        begun = since or {"counters": {}, "sources": {}}
        self._since = {(f.name, labels): value for f, labels, value in _counts(begun["counters"])}
        self._sources_since: Mapping[Any, Mapping[str, Any]] = begun["sources"]
        self._collector.samples[self.name] = []

    def update(self, runtime: Runtime) -> None:
        """Take the figures of the runtime as they are now; call it after a batch, or every few seconds."""
        explained = runtime.explain()
        samples = [
            (family, labels, value - self._since.get((family.name, labels), 0.0))
            for family, labels, value in _counts(explained["counters"])
        ]
        samples += [
            (LATE, (q.name, _REASONS[type(q.level)]), 0.0) for q in runtime.queries
        ]  # so that a series is there before the first late event
        samples += _state(explained)
        for query in runtime.queries:
            samples += _query(query, explained)
        samples += self._sources(explained)
        self._collector.samples[self.name] = self._never_falling(samples)

    def close(self) -> None:
        """Show no series of this runtime any more."""
        self._collector.samples.pop(self.name, None)

    def _never_falling(self, samples: Iterable[Sample]) -> list[Sample]:
        """The samples, counters at the highest value that they ever had, in the place of those that are given."""
        gauges = []
        for sample in samples:
            family, labels, value = sample
            key = family.name, labels
            if not family.counter:
                gauges.append(sample)
            elif key not in self._highest or value > self._highest[key][2]:
                self._highest[key] = sample
        return [*self._highest.values(), *gauges]

    def _sources(self, explained: Mapping[str, Any]) -> Iterator[Sample]:
        """Figures by sender, those without a name summed up."""
        facts = {name: self._begun(name, told) for name, told in explained["sources"].items()}
        rest = [facts.pop(OTHERS)] if OTHERS in facts else []
        found = {"null" if name is None else str(name): told for name, told in facts.items()}
        fresh = sorted(found.keys() - self._named - {OTHER}, key=lambda name: (-found[name]["total"], name))
        self._named.update(fresh[: self._room - len(self._named)])
        clock, unit = explained["clock"], explained["unit"]
        rest += [told for name, told in found.items() if name not in self._named]
        for name in sorted(self._named & found.keys()):
            told = found[name]
            yield from _source(name, [told], clock, unit)
            if told["share_late"] is not None:  # None: nothing came since a restart
                yield SOURCE_SHARE, (name,), float(told["share_late"])
                for quantile, value in told["lateness"].items():
                    yield SOURCE_LATENESS, (name, str(quantile)), _seconds(value, unit)
        if rest:
            yield from _source(OTHER, rest, clock, unit)

    def _begun(self, name: Any, told: Mapping[str, Any]) -> dict[str, Any]:
        """What a sender did since this process began to count, and in total."""
        before = {key: self._sources_since.get(name, {}).get(key, 0) for key in ("events", "late")}
        fresh = {key: told[key] - before[key] for key in before}
        return {**told, "total": told["events"], **fresh}


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
    for query, kinds in counters.get("confidences", {}).items():
        for kind, count in kinds.items():
            yield CONFIDENCES[kind], (query,), float(count)


def _state(explained: Mapping[str, Any]) -> Iterator[Sample]:
    yield STATE_EVENTS, (), float(explained["events"])
    yield STATE_BYTES, (), float(explained["bytes"])
    clock, unit = explained["clock"], explained["unit"]
    if clock is not None:
        yield CLOCK, (), _seconds(clock, unit)
        for type, bound in explained["bounds"].items():
            yield PROMISE_LAG, (type,), _seconds(max(clock - bound, 0), unit)


def _query(query: Query, explained: Mapping[str, Any]) -> Iterator[Sample]:
    facts, label = explained["queries"][query.name], (query.name,)
    for key, family in HELD.items():
        if facts.get(key) is not None:
            yield family, label, float(facts[key])
    clock, unit = explained["clock"], explained["unit"]
    for key, family in (("k", SLACK), ("patience", PATIENCE), ("retention", RETENTION)):
        if facts.get(key) is not None:
            yield family, label, _seconds(facts[key], unit)
    if clock is not None and facts.get("horizon") is not None:
        yield LAG, label, _seconds(max(clock - facts["horizon"], 0), unit)


def _source(name: str, facts: list[dict[str, Any]], clock: int | None, unit: str) -> Iterator[Sample]:
    """Figures of one sender, or of several together."""
    for key, family in (("events", SOURCE_EVENTS), ("late", SOURCE_LATE)):
        yield family, (name,), float(sum(told[key] for told in facts))
    own = [told["clock"] for told in facts if told["clock"] is not None]
    if own and clock is not None:
        yield SOURCE_LAG, (name,), _seconds(clock - min(own), unit)
    yield SOURCE_IDLE, (name,), float(sum(bool(told["idle"]) for told in facts))


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
