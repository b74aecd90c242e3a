"""Delay and disorder: measure them in a stream, or put them into one.

    measure(ts, arrival, source)          -> Disorder: share late, lateness quantiles, runs, inversions, per source
    inject(events, model, stream, seed=…) -> the events as they arrive, with a column ``arrival``

Models: Ordered, Delayed(late, tail), Outage, ClockSkew, GroupShuffle, Duplicates, Replay, FromFuture, Stragglers.
Tails of delay: Uniform, Exponential, Pareto. Models of models: Chain, Mix, Shift.
All randomness comes from the seed given to :func:`inject`.
"""

from __future__ import annotations

from latecomer.disorder.flow import Flow, Model
from latecomer.disorder.inject import inject
from latecomer.disorder.measure import Disorder, measure
from latecomer.disorder.mixing import Chain, Mix, Shift
from latecomer.disorder.models import (
    ClockSkew,
    Delayed,
    Duplicates,
    FromFuture,
    GroupShuffle,
    Ordered,
    Outage,
    Replay,
    Stragglers,
)
from latecomer.disorder.tails import Exponential, Pareto, Tail, Uniform

__all__ = [
    "Chain",
    "ClockSkew",
    "Delayed",
    "Disorder",
    "Duplicates",
    "Exponential",
    "Flow",
    "FromFuture",
    "GroupShuffle",
    "Mix",
    "Model",
    "Ordered",
    "Outage",
    "Pareto",
    "Replay",
    "Shift",
    "Stragglers",
    "Tail",
    "Uniform",
    "inject",
    "measure",
]
