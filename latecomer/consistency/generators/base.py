"""Generators of promises: what a user knows about the order of a stream, turned into punctuation.

A generator is a pair. The *config* is a small frozen dataclass that the user puts into ``Stream(promises=[…])``; its
``start`` makes the *logic*, a pure state machine: arrivals in, promises out, no clock, no I/O, no randomness.

Rules:

* a promise says what punctuation says: from its position on, no event of the type from the source with time ``<= ts``
  will arrive any more. It may be late, repeated or weaker than an earlier one, but it is never taken back;
* it holds for the arrivals *after* its position, so an event is never judged by what it says itself;
* what is promised depends on the arrivals and on ``now``, never on how the arrivals are cut into batches;
* promises of several generators combine: per type and source the strongest one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Protocol, TypeVar

import numpy as np

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.clock import I64
from latecomer.consistency.punctuation import ANY
from latecomer.errors import ConfigError, StateError, options
from latecomer.stream import Stream
from latecomer.units import Duration


@dataclass(frozen=True, slots=True)
class Setting:
    """What a logic is told before it starts: the stream, the unit of its times, and the types that queries ask for."""

    stream: Stream
    unit: str
    types: Sequence[str]

    def number(self, type: str) -> int | None:
        """The number of an event type, or None when no query asks for it (nothing need be promised of it)."""
        return self.types.index(type) if type in self.types else None


@dataclass(frozen=True, slots=True)
class Promises:
    """m promises, in any order.

    Attributes:
        position: the promise holds for the arrivals after this one (m,); -1: for all of them.
        type: number of the event type, or ``ANY`` (m,).
        source: number of the sender, or ``ANY`` (m,).
        ts: no event at or below this time will follow (m,).

    >>> Promises.of([0, 2], [5, 9], source=1)
    Promises(position=array([0, 2]), type=array([-1, -1]), source=array([1, 1]), ts=array([5, 9]))
    """

    position: I64
    type: I64
    source: I64
    ts: I64

    @classmethod
    def of(cls, position: Any, ts: Any, *, type: Any = ANY, source: Any = ANY) -> Promises:
        """Promises from arrays, lists or single numbers, which are repeated as needed."""
        parts = np.broadcast_arrays(*(np.atleast_1d(np.asarray(p, np.int64)) for p in (position, type, source, ts)))
        return cls(*parts)

    @classmethod
    def none(cls) -> Promises:
        """No promise."""
        return cls.of([], [])

    @classmethod
    def join(cls, parts: Iterable[Promises]) -> Promises:
        """All promises of several."""
        found = [part for part in parts if len(part)]
        if len(found) == 1:
            return found[0]
        if not found:
            return cls.none()
        return cls(*(np.concatenate([getattr(part, f.name) for part in found]) for f in fields(cls)))

    def __len__(self) -> int:
        return len(self.position)


class Logic(Protocol):
    """The running half of a generator."""

    def observe(self, arrivals: Arrivals) -> Promises:
        """What can be promised as these events arrive; also called without events, when a clock has moved."""
        ...

    def dump(self) -> dict[str, Any]:
        """The state as plain data: numbers, text, arrays, and lists and dicts of them."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a dumped state."""
        ...


class Stateless:
    """The state of a logic that has none."""

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class Generator(Protocol):
    """The half of a generator that a user holds: a frozen dataclass whose fields are plain, see :func:`to_plain`.

    ``columns`` names the columns that it reads, so that a missing one is found before anything is processed.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    def start(self, setting: Setting) -> Logic:
        """The logic for a stream; raises ConfigError for what makes no sense on it."""
        ...


_KNOWN: dict[str, type[Any]] = {}
_C = TypeVar("_C", bound=type[Any])


def generator(cls: _C) -> _C:
    """Class decorator: makes the config known by its name, so that snapshots can hold it."""
    other = _KNOWN.setdefault(cls.__name__, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ConfigError(f"{cls.__name__!r} is the name of another generator, {other.__module__}: choose another")
    _KNOWN[cls.__name__] = cls
    return cls


def to_plain(config: Generator) -> dict[str, Any]:
    """A config as plain data: its name and its fields. Durations become text, tuples lists."""
    name = type(config).__name__
    if _KNOWN.get(name) is not type(config):
        raise ConfigError(f"{name} is not a known generator: decorate the class with @generator")
    return {"generator": name} | {f.name: _plain(getattr(config, f.name)) for f in fields(config)}  # type: ignore[arg-type]


def from_plain(plain: Mapping[str, Any]) -> Generator:
    """The config of :func:`to_plain`; raises StateError when its class is not known here, or has other options."""
    arguments = dict(plain)
    name = arguments.pop("generator", None)
    if name not in _KNOWN:
        raise StateError(
            f"{name!r} is not a known generator: known are {options(_KNOWN)}; import the module that defines it first"
        )
    has = signature(_KNOWN[name]).parameters
    named = f"its options are {options(has)}" if has else "it has none"
    if unknown := sorted(arguments.keys() - has.keys()):
        raise StateError(f"the generator {name} has no option {unknown[0]!r}: {named}")
    if missing := [p.name for p in has.values() if p.default is p.empty and p.name not in arguments]:
        raise StateError(f"the generator {name} needs {' and '.join(missing)}: {named}")
    made: Generator = _KNOWN[name](**arguments)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
