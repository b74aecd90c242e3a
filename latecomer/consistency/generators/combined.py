"""All generators of a stream as one logic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.generators.base import Generator, Logic, Promises, Setting
from latecomer.consistency.punctuation import ANY
from latecomer.errors import ConfigError, StateError


class Combined:
    """Asks every generator and passes all promises on, in order of position. The strongest one counts; which that is
    can only be told together with the promises in the stream itself, so it is left to the state of all promises.

    Raises ConfigError, with the generator's name, for promises that make no sense; then nothing of the batch was used
    by anyone but the generators.
    """

    def __init__(self, configs: Sequence[Generator], setting: Setting) -> None:
        for config in configs:
            if not callable(getattr(config, "start", None)) or isinstance(config, type):
                raise ConfigError(
                    f"Stream(promises=[{config!r}]) is not a generator of promises: give for example SourcesInOrder() "
                    "or BoundedDelay({'OnTime': '15 min'})"
                )
        self._setting = setting
        self._names = [type(config).__name__ for config in configs]
        self._logics: list[Logic] = [config.start(setting) for config in configs]

    def observe(self, arrivals: Arrivals) -> Promises:
        """What all generators promise, sorted by position."""
        found = [logic.observe(arrivals) for logic in self._logics]
        for name, promises in zip(self._names, found, strict=True):
            self._check(name, promises, arrivals)
        joined = Promises.join(found)
        if len(joined) < 2 or (joined.position[1:] >= joined.position[:-1]).all():
            return joined
        order = joined.position.argsort(kind="stable")
        return Promises(joined.position[order], joined.type[order], joined.source[order], joined.ts[order])

    def _check(self, name: str, promises: Promises, arrivals: Arrivals) -> None:
        for what, values, end in (
            ("position", promises.position, len(arrivals)),
            ("type", promises.type, len(self._setting.types)),
            ("source", promises.source, len(arrivals.names)),
        ):
            if len(values) and (int(values.min()) < -1 or int(values.max()) >= end):
                wrong = int(values[np.flatnonzero((values < -1) | (values >= end))[0]])
                raise ConfigError(f"{name} made a promise with {what} {wrong}: allowed are {ANY} to {end - 1}")

    def dump(self) -> list[Any]:
        return [[name, logic.dump()] for name, logic in zip(self._names, self._logics, strict=True)]

    def load(self, state: Sequence[Any]) -> None:
        names = [name for name, _ in state]
        if names != self._names:
            raise StateError(f"the saved state is of the promises {names}, the stream has {self._names}")
        for logic, (_, saved) in zip(self._logics, state, strict=True):
            logic.load(saved)
