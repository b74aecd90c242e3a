"""Prometheus metrics of the service, beside those of its runtime: requests, the inbox, the journal, readers.

Labels are paths as they are documented, status codes and reasons; never anything that a client chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from latecomer.errors import MissingDependency

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

#: Figures of the service that are counters, and those that are gauges: name and meaning.
_COUNTERS = {
    "acknowledged": ("accepted_events", "Events that were acknowledged"),
    "dead": ("dead_letters", "Lines that are no events"),
    "refused": ("refused_requests", "Requests that were told to wait, since the inbox was full"),
}
_GAUGES = {
    "inbox_bytes": ("inbox_bytes", "Bytes of requests that are taken in and not worked off"),
    "inbox_limit_bytes": ("inbox_limit_bytes", "Bytes that the inbox may hold"),
    "inbox_batches": ("inbox_requests", "Requests that wait for the worker"),
    "journal_bytes": ("journal_bytes", "Bytes of the journal"),
    "state_bytes_on_disk": ("disk_bytes", "Bytes of logs and of written state"),
    "readers": ("readers", "Readers of event streams"),
    "changes": ("changes_position", "Position of the newest change"),
}


class ServiceMetrics:
    """The metrics of a process; ``figures`` gives the service's. ``registry``: None: one of its own.

    Raises MissingDependency without prometheus_client.
    """

    def __init__(self, figures: Callable[[], Mapping[str, float]], registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
        except ImportError:
            raise MissingDependency("prometheus-client", "serve", "The service") from None
        self._figures = figures
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry: CollectorRegistry = registry
        self.requests = Counter(
            "latecomer_http_requests", "Requests that were answered", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "latecomer_http_acknowledge_seconds",
            "From the arrival of events to their acknowledgement",
            registry=self.registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        self.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """All metrics of the service, without samples."""
        return self._families({})

    def collect(self) -> Iterable[Metric]:
        """The figures as they are now."""
        return self._families(self._figures())

    def _families(self, figures: Mapping[str, float]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for key, (name, meaning) in table.items():
                family = kind(f"latecomer_serve_{name}", meaning)
                if key in figures:
                    family.add_metric([], figures[key])
                yield family
