"""Locust's statistics, many values at a time: one call per event would cost more than sending it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from locust.stats import RequestStats


def log_many(stats: RequestStats, method: str, name: str, times: Iterable[int], size: int = 0) -> None:
    """As if ``stats.log_request(method, name, t, …)`` had been called for each time (ms); ``size`` is that of all."""
    values = np.maximum(np.fromiter(times, np.int64), 0)
    if not len(values):
        return
    now = time.time()
    # Locust keeps two digits, so that its tables stay small.
    digits = np.select([values < 100, values < 1_000, values < 10_000], [1, 10, 100], 1_000)
    rounded, counts = np.unique(np.rint(values / digits).astype(np.int64) * digits, return_counts=True)
    for entry in (stats.total, stats.get(name, method)):
        entry.num_requests += len(values)
        entry.num_reqs_per_sec[int(now)] = entry.num_reqs_per_sec.get(int(now), 0) + len(values)
        entry.last_request_timestamp = now
        entry.total_response_time += int(values.sum())
        low, high = int(values.min()), int(values.max())
        entry.min_response_time = low if entry.min_response_time is None else min(entry.min_response_time, low)
        entry.max_response_time = max(entry.max_response_time, high)
        entry.total_content_length += size
        for value, count in zip(rounded.tolist(), counts.tolist(), strict=True):
            entry.response_times[value] = entry.response_times.get(value, 0) + count
