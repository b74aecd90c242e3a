"""Stream: which columns of a batch say what an event is, when it happened, and who sent it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from latecomer.errors import ConfigError, options
from latecomer.uncertainty import Intervals, check_options, intervals_of, plain
from latecomer.units import UNITS, Duration, DurationLike, canonical_unit


@dataclass(frozen=True, slots=True)
class Stream:
    """The meaning of a batch's columns.

    Args:
        type: column with the event's type (text).
        ts: column with the event's time: integers in ``unit``, or Arrow timestamps (then ``unit`` follows from the
            column).
        id: column with the event's identity. Without one, events are numbered in order of arrival, which is
            only repeatable when the whole stream is replayed from its start.
        source: column with the name of the sender; late events are counted per source.
        unit: one of ``ns us ms s min h d``; the unit of integer times and of plain numbers given as durations. For a
            column of Arrow timestamps it may be coarser or finer than the column's own and defaults to that.
        clock: ``"stream"``: one clock, the largest event time seen. ``"source"``: the least of the sources' own clocks.
        punctuation: the type of rows that are punctuation: their ``ts`` is the bound, column ``of`` names the event
            type that they speak of (null: all), ``source`` limits them to one source (null: all).
        of: name of that column.
        of_key: columns that limit a punctuation row to one key ("this container is closed"), whoever sent it, where
            they are all given; only queries with an equivalence on all of them release matches by it.
        sources: names of the sources, where they are known beforehand: with a clock per source, one that has not spoken
            holds the clock until it idles.
        idle_timeout: a source that was silent for so long, by ``Runtime.advance(now)``, holds nothing back; when all
            are, the clock follows ``now - idle_timeout``.
        max_ahead: an event further ahead of the latest ``Runtime.advance(now)`` goes to the late output (``ahead``)
            and moves nothing. Without any ``advance``, as in a replay, it is off.
        promises: generators of punctuation: what is known about the order of the stream (``docs/punctuation.md``), like
            ``[SourcesInOrder()]``.
        quorum: the clock is the q-th largest of the sources' clocks, so that q - 1 broken sources cannot move it.
        schema: Arrow types of the attributes, where they are known beforehand; else the first batch fixes them.
        lower, upper: columns of the first and the last time at which the event may have happened, in place of ``ts``.
            Times then are intervals, and matches have a confidence (``docs/intervals.md``).
        longest: how far apart the two may be; a longer interval is ``malformed``.
        uncertainty: the event happened at ``ts`` give or take this: one duration, or durations by source (None: all
            others; a source that is not named is exact).
        granularity: ``ts`` was rounded to this, like ``"1 minute"``.
        rounding: ``"down"``, ``"nearest"`` or ``"up"``. Samples that tell what came since the last one are ``"up"``.
        distribution: how likely the times of an interval are: ``"uniform"`` (default), ``"triangular"``, ``"normal"``
            or a list of weights of equal parts; one for all, or by source.
        pmf: column with each event's own weights, one for each unit of its interval; null where ``distribution`` holds.

    >>> stream = Stream(type="kind", ts="event_time", id="event_id", unit="ms")
    >>> sensors = Stream(source="device", unit="ms", uncertainty={"sensor-7": "200 ms", None: "5 ms"})
    """

    type: str = "type"
    ts: str = "ts"
    id: str | None = None
    source: str | None = None
    unit: str | None = None
    clock: Literal["stream", "source"] = "stream"
    punctuation: str | None = None
    of: str = "of"
    of_key: Sequence[str] = ()
    sources: Sequence[str] | None = None
    idle_timeout: DurationLike | None = None
    max_ahead: DurationLike | None = None
    quorum: int = 1
    promises: Sequence[Any] = ()
    schema: pa.Schema | Mapping[str, Any] | None = None
    lower: str | None = None
    upper: str | None = None
    longest: DurationLike | None = None
    uncertainty: DurationLike | Mapping[Any, DurationLike] | Sequence[Any] | None = None
    granularity: DurationLike | None = None
    rounding: Literal["down", "nearest", "up"] = "down"
    distribution: str | Sequence[Any] | Mapping[Any, Any] | None = None
    pmf: str | None = None

    def __post_init__(self) -> None:
        for option in ("type", "ts", "id", "source", "punctuation", "of", "lower", "upper", "pmf"):
            name = getattr(self, option)
            if not isinstance(name, str) and not (name is None and option not in ("type", "ts", "of")):
                raise ConfigError(f"Stream({option}={name!r}): a name is needed, as text")
        if self.unit is not None:
            object.__setattr__(self, "unit", canonical_unit(self.unit))
        self._check_intervals()
        if self.clock not in ("stream", "source"):
            raise ConfigError(f"clock={self.clock!r}: allowed are {options(['stream', 'source'])}")
        if self.clock == "source" and self.source is None:
            raise ConfigError("clock='source' needs the column that names the source: Stream(source='device', …)")
        if isinstance(self.quorum, bool) or not isinstance(self.quorum, int) or self.quorum < 1:
            raise ConfigError(f"quorum={self.quorum!r}: a whole number from 1 is needed")
        if self.quorum > 1 and (self.source is None or self.clock == "source"):
            raise ConfigError(
                "quorum counts sources under one clock: Stream(source='device', clock='stream', quorum=2)"
            )
        for name in ("idle_timeout", "max_ahead"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Duration.of(getattr(self, name)))
        keys = (self.of_key,) if isinstance(self.of_key, str) else tuple(self.of_key)
        object.__setattr__(self, "of_key", keys)
        promises = self.promises if isinstance(self.promises, (list, tuple)) else [self.promises]
        for promise in promises:
            if isinstance(promise, type) or not callable(getattr(promise, "start", None)):
                raise ConfigError(
                    f"promises={promise!r} is no generator of promises: give some like [SourcesInOrder()] or "
                    "[BoundedDelay({'Exit': '15 min'})]"
                )
        object.__setattr__(self, "promises", tuple(promises))
        named = [c for c in (self.type, self.ts, self.id, self.source, self.upper, self.pmf) if c is not None]
        if len(set(named)) != len(named):
            times = "ts" if self.lower is None else "lower, upper"
            raise ConfigError(f"one column has two purposes: type, {times}, id and source must differ, given {named}")
        object.__setattr__(self, "schema", self.declared)
        if self.sources is not None and (self.source is None or isinstance(self.sources, str)):
            raise ConfigError(
                f"sources={self.sources!r}: give a list of names, and their column, Stream(source='device')"
            )
        if self.punctuation is not None and self.of in named:
            raise ConfigError(f"of={self.of!r} is the column of something else; punctuation needs one of its own")
        if self.sources is not None:
            object.__setattr__(self, "sources", tuple(self.sources))

    def _check_intervals(self) -> None:
        """The options that make intervals. With a pair of columns ``ts`` is the lower one: the time by which the stream
        is ordered.
        """
        check_options(self, ts_given=self.ts not in ("ts", self.lower))
        if self.lower is not None:
            object.__setattr__(self, "ts", self.lower)
        for name in ("longest", "granularity"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Duration.of(getattr(self, name)))
        for name in ("uncertainty", "distribution"):
            object.__setattr__(self, name, plain(name, getattr(self, name), self.source))

    @property
    def uncertain(self) -> bool:
        """Whether the times of events are intervals."""
        return self.lower is not None or self.uncertainty is not None or self.granularity is not None

    def intervals(self, unit: str) -> Intervals | None:
        """The intervals in ``unit``; None where times are exact."""
        return intervals_of(self, unit) if self.uncertain else None

    @property
    def declared(self) -> pa.Schema | None:
        """The declared columns as an Arrow schema."""
        schema = self.schema
        return schema if schema is None or isinstance(schema, pa.Schema) else pa.schema(list(schema.items()))

    def unit_for(self, column: pa.DataType) -> str:
        """The unit of time for a time column of this Arrow type; raises ConfigError when it cannot be told."""
        if self.unit is not None:
            return self.unit
        if pa.types.is_timestamp(column):
            return str(column.unit)
        raise ConfigError(
            f"column {self.ts!r} holds no timestamps, so its unit is not known: Stream(unit=…) with {options(UNITS)}"
        )
