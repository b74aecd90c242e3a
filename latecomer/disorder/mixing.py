"""Models made of models: one after another, side by side by weight, or one that gives way to another in mid-stream.

Rule: whatever is composed, each event goes through with its row number, so the whole loses and invents nothing if its
parts don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latecomer.disorder.flow import Flow, Model, merged, share
from latecomer.errors import ConfigError


@dataclass(frozen=True, slots=True, init=False)
class Chain:
    """One model after another, each applied to what the one before lets out: a slow network, then a gateway."""

    models: tuple[Model, ...]

    def __init__(self, *models: Model) -> None:
        object.__setattr__(self, "models", models)

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        for model in self.models:
            flow = model.apply(flow, rng)
        return flow


@dataclass(frozen=True, slots=True, init=False)
class Mix:
    """Every event takes one of several ways, drawn by weight.

    Args:
        models: the ways.
        weights: as many numbers of 0 or more, not all 0; they need not add up to 1. None: equal.
    """

    models: tuple[Model, ...]
    weights: tuple[float, ...]

    def __init__(self, models: Sequence[Model], weights: Sequence[float] | None = None) -> None:
        given = (1.0,) * len(models) if weights is None else tuple(float(w) for w in weights)
        if not models or len(given) != len(models) or min(given) < 0 or sum(given) <= 0:
            raise ConfigError(
                f"{len(models)} models with weights {given}: give at least one model and, for each, "
                "a weight of 0 or more, not all of them 0"
            )
        object.__setattr__(self, "models", tuple(models))
        object.__setattr__(self, "weights", given)

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        way = rng.choice(len(self.models), len(flow), p=np.array(self.weights) / sum(self.weights))
        return merged([m.apply(flow.take(way == i), rng) for i, m in enumerate(self.models)])


@dataclass(frozen=True, slots=True)
class Shift:
    """The way changes in mid-stream: ``before`` up to ``at``, ``after`` from then on.

    Args:
        before, after: the two models.
        at: where the change begins, as a share of the stream's span.
        over: how long it takes, as a share of the span; meanwhile the probability of the new way rises evenly.
    """

    before: Model
    after: Model
    at: float = 0.5
    over: float = 0.0

    def __post_init__(self) -> None:
        share(self.at, "at")
        share(self.over, "over")

    def apply(self, flow: Flow, rng: np.random.Generator) -> Flow:
        begin, length = flow.instant(self.at), round(self.over * (flow.end - flow.start))
        ready = np.clip((flow.ts - begin) / length, 0, 1) if length else flow.ts >= begin
        new = rng.random(len(flow)) < ready
        return merged([self.before.apply(flow.take(~new), rng), self.after.apply(flow.take(new), rng)])
