"""Prometheus metrics of a pipeline: how far behind it is, what it wrote, and its runtimes' own metrics.

Labels are topics, partitions and reasons, never anything from a message. Figures change once a second, in the loop's
thread; a scrape sees those of the last time, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from latecomer.connectors.kafka.operation.watch import Figures
from latecomer.connectors.metrics import Metrics
from latecomer.errors import MissingDependency
from latecomer.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

_COUNTERS = {
    "consumed": ("messages", "Messages taken in"),
    "bytes": ("bytes", "Bytes of the values of messages taken in"),
    "changes": ("changes", "Changes written"),
    "late": ("late_rows", "Late rows written"),
    "transactions": ("commits", "Commits of outputs, offsets and state"),
    "aborted": ("aborted_transactions", "Transactions that were given up"),
}
_GAUGES = {
    "in_flight": ("in_flight_messages", "Messages taken in and not yet committed"),
    "paused": ("paused_partitions", "Partitions that are paused"),
}


class PipelineMetrics:
    """The metrics of one process: a listener of its :class:`Watch`, and a collector of its registry.

    Raises MissingDependency without prometheus_client.
    """

    def __init__(self, pipeline: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError:
            raise MissingDependency("prometheus-client", "kafka", "Serving metrics") from None
        self.registry: CollectorRegistry = CollectorRegistry()
        self._pipeline = pipeline
        self._figures = Figures()
        self._runtimes: dict[str, Metrics] = {}
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def begin(self, name: str, runtime: Runtime) -> None:
        """Count from here: what a restored runtime counted before was shown before."""
        if name in self._runtimes:
            self._runtimes.pop(name).close()
        self._runtimes[name] = Metrics(name, self.registry, since=runtime.explain())

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """Take the figures as they are now; partitions that are gone have no series any more."""
        for name in self._runtimes.keys() - runtimes.keys():
            self._runtimes.pop(name).close()
        for name, runtime in runtimes.items():
            if name not in self._runtimes:
                self.begin(name, runtime)
            self._runtimes[name].update(runtime)
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """All metrics without samples."""
        return self._families(Figures())

    def collect(self) -> Iterable[Metric]:
        """The figures of the last look."""
        return self._families(self._figures)

    def _families(self, figures: Figures) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        own = [self._pipeline]
        for key, (name, meaning) in _COUNTERS.items():
            family = CounterMetricFamily(f"latecomer_kafka_{name}", meaning, labels=["pipeline"])
            family.add_metric(own, getattr(figures, key))
            yield family
        for key, (name, meaning) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"latecomer_kafka_{name}", meaning, labels=["pipeline"])
            gauge.add_metric(own, getattr(figures, key))
            yield gauge
        dead = CounterMetricFamily(
            "latecomer_kafka_dead_letters", "Messages that are no events", labels=["pipeline", "reason"]
        )
        for reason, count in figures.dead.items():
            dead.add_metric([*own, reason], count)
        yield dead
        lag = GaugeMetricFamily(
            "latecomer_kafka_lag_messages",
            "Messages that are there and not yet taken in",
            labels=["pipeline", "topic", "partition"],
        )
        for (topic, partition), count in figures.lag.items():
            lag.add_metric([*own, topic, str(partition)], count)
        yield lag
