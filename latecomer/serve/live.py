"""Live: what the page shows of a running service, in frames of bounded size.

The worker tells it what arrives and what the runtime answers; readers ask for *frames*. The rules:

* *Totals and samples.* Every frame has the exact totals since the start. Of events, matches, late rows and dead letters
  it has the newest, as many as fit; what a reader was not shown is the growth of a total minus what he was shown. So
  a frame can be asked for at any pace: a slow reader gets one frame that says as much as the many of a fast one.
* *Bounded.* Memory is bounded by constants and the number of queries, a frame by 50 KB, the cost of a batch by a few
  passes over its columns and a sample of fixed size.
* *Pure.* No I/O, no clock, no randomness: time comes in with each call. One lock makes it safe for threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.query.query import Query
from latecomer.runtime.explain import OTHERS
from latecomer.serve.arrivals import Arrived, Names, Recent, read, texts, whole_units
from latecomer.serve.lanes import Lanes
from latecomer.serve.samples import Tail, clip, pick, plain
from latecomer.stream import Stream

#: Bytes of a frame for its events, late rows and dead letters.
EVENT_BYTES, LATE_BYTES, DEAD_BYTES = 16_000, 3_000, 1_500
#: Of one batch at most so many events, late rows and dead letters are shown.
EVENTS, LATE, DEAD = 64, 24, 12
#: Names of types and of sources that are told apart, and sources with a line of their own.
TYPES, SOURCES, SOURCE_LINES = 16, 24, 10
#: Events whose times are known by id.
RECENT = 8192
#: Seconds of history, and seconds over which rates are taken.
HISTORY, RATE = 60, 5
_REASONS = ("after_k", "after_punctuation", "after_max_delay", "ahead", "duplicate", "malformed")
_LATE_FIELDS = ("id", "type", "source", "reason", "late_by", "detail", "missed", "wrong")


class Live:
    """What happens, for the page.

    Args:
        queries: the runtime's queries.
        stream: the meaning of the columns.
        name: what the service is called.
        keep: matches that are kept to be shown, of all queries together.
        paired: whether each ``answered`` belongs to the ``arrived`` just before it, as in a loop around a runtime.

    >>> import latecomer as lc
    >>> stream = lc.Stream(id="id", unit="s")
    >>> query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="q", level=lc.Aggressive("5 s"))
    >>> runtime, live = lc.Runtime(stream, [query]), Live([query], stream)
    >>> batch = pa.table({"id": ["1", "2"], "type": ["A", "C"], "ts": [1, 5]})
    >>> live.arrived(batch, now=0.0)
    >>> out = runtime.process(batch)
    >>> live.answered(out.changes, out.late, now=0.0, clock=runtime.clock)
    >>> frame = live.frame(0)
    >>> frame["totals"]["events"], frame["queries"][0]["matches"][0]["events"]
    (2, ['1', '2'])
    """

    def __init__(
        self,
        queries: Sequence[Query],
        stream: Stream,
        *,
        name: str = "latecomer",
        keep: int = 400,
        paired: bool = True,
    ) -> None:
        self.number = 0
        self._lock = Lock()
        self._stream, self._name, self._paired = stream, clip(name), paired
        self._lanes = Lanes(queries, keep)
        self._types, self._sources = Names(self._lanes.types(), TYPES), Names([], SOURCES)
        self._type_counts = np.zeros(TYPES + 1, np.int64)
        self._totals = dict.fromkeys(("rows", "events", "batches", "behind", "inserted", "deleted", "late", "dead"), 0)
        self._reasons = dict.fromkeys((*_REASONS, "other"), 0)
        self._events, self._late, self._dead = Tail(1000), Tail(100), Tail(50)
        self._recent = Recent(RECENT)
        self._batch: Arrived | None = None
        self._unit, self._timestamps = stream.unit, False
        self._clock: int | None = None
        self._front: int | None = None
        self._state: dict[str, Any] = {}
        self._source_lines: list[dict[str, Any]] = []
        self._more_sources = 0
        self._now = 0.0
        self._seconds: OrderedDict[int, list[int]] = OrderedDict()
        named = {stream.type: clip(next(iter(self._lanes.types()), "A"), 32), stream.ts: 1}
        self._example = {**({} if stream.id is None else {clip(stream.id, 32): "1"}), **named}

    # --- told by the worker ------------------------------------------------------------------------------------------

    def arrived(self, batch: pa.Table | pa.RecordBatch, now: float) -> None:
        """A batch is about to be processed. Columns that are missing, or are of odd types, are no error here."""
        with self._lock:
            self._begin(now)
            self._settle(None)  # an earlier batch that nothing was said of
            self._totals["rows"] += batch.num_rows
            self._totals["batches"] += 1
            at = batch.schema.get_field_index(self._stream.ts)
            if at >= 0 and pa.types.is_timestamp(batch.schema.field(at).type):
                self._timestamps, self._unit = True, self._unit or batch.schema.field(at).type.unit
            self._batch = read(batch, self._stream, self._unit, self._front)
            if not self._paired:
                self._settle(None)

    def answered(self, changes: pa.Table, late: pa.Table, now: float, *, clock: int | None = None) -> None:
        """What a call of the runtime gave, and its ``clock`` after it."""
        with self._lock:
            self._begin(now)
            batch = self._settle(clock)
            if changes.num_rows:
                cause = batch if self._paired and not self._stream.uncertain else None
                inserted, taken_back = self._lanes.change(
                    changes, self.number, self._unit or "s", self._clock, self._recent, cause
                )
                self._totals["inserted"] += inserted
                self._totals["deleted"] += taken_back
                self._tally(1, inserted)
                self._tally(2, taken_back)
            if late.num_rows:
                self._lates(late)

    def described(self, explain: Mapping[str, Any], metrics: Mapping[str, Any], now: float) -> None:
        """What the runtime holds and waits for (:meth:`Runtime.explain`), and the service's figures."""
        with self._lock:
            self._begin(now)
            clock = explain.get("clock")
            if self._batch is not None:  # it changed nothing, so nothing was answered
                self._settle(clock)
            self._unit = explain.get("unit") or self._unit
            self._timestamps = bool(explain.get("timestamps")) or self._timestamps
            if clock is not None:
                self._clock = clock if self._clock is None else max(self._clock, clock)
            memory = explain.get("memory") or {}
            state = {key: explain.get(key) for key in ("events", "bytes")}
            state |= {key: memory.get(key) for key in ("budget", "events_on_shelf", "pending")}
            state |= {clip(key, 32): plain(value) for key, value in islice(metrics.items(), 24)}
            self._state = {key: value for key, value in state.items() if value is not None}
            self._describe_sources(explain.get("sources") or {}, clock)
            self._lanes.describe(explain.get("queries") or {}, clock, self._recent)

    def dead(self, letters: Sequence[Any], now: float) -> None:
        """Input that is no event: objects with ``reason``, ``detail``, ``text`` and ``line``."""
        with self._lock:
            self._begin(now)
            self._totals["dead"] += len(letters)
            for row in pick(len(letters), np.zeros(len(letters), np.int64), DEAD).tolist():
                letter = letters[row]
                item = {name: clip(getattr(letter, name), 80) for name in ("reason", "detail", "text")}
                self._dead.add(self.number, {**item, "line": letter.line})

    # --- asked by readers --------------------------------------------------------------------------------------------

    def frame(self, since: int) -> dict[str, Any]:
        """What is to be shown, with the samples that came after frame number ``since`` (0, or a number of another
        process: all that is kept). Plain values for JSON, below 50 KB.

        Keys: ``frame`` (its number) and ``since``; ``name``, ``unit``, ``timestamps``, ``clock`` (units), ``now`` (wall
        seconds); ``totals``, ``types`` (name, events), ``rates`` per second; ``events``: time, lateness, type, source,
        id; ``queries``: counts, ``lag`` of the horizon behind the clock, wait, what waits, and the matches of each,
        those taken back with what came just before; ``late``, ``dead``, ``sources``, ``state``; with ``since`` 0
        ``history``, one entry per second, and ``example``, an event.
        """
        with self._lock:
            since = since if 0 <= since <= self.number else 0
            frame = {
                "frame": self.number,
                "since": since,
                "name": self._name,
                "unit": self._unit,
                "timestamps": self._timestamps,
                "clock": self._clock,
                "now": self._now,
                "totals": dict(self._totals),
                "types": [*map(list, zip(self._types.shown, self._type_counts.tolist(), strict=False))],
                "other_types": int(self._type_counts[-1]),
                "source_names": list(self._sources.shown),
                "reasons": {reason: count for reason, count in self._reasons.items() if count},
                "rates": self._rates(),
                "events": self._events.since(since, EVENT_BYTES),
                "queries": self._lanes.told(since),
                "more_queries": self._lanes.more,
                "late": self._late.since(since, LATE_BYTES),
                "dead": self._dead.since(since, DEAD_BYTES),
                "sources": self._source_lines,
                "more_sources": self._more_sources,
                "state": self._state,
            }
            if since == 0:
                frame["example"] = self._example
                frame["history"] = [list(self._seconds.get(second, (0, 0, 0))) for second in self._stretch(HISTORY)]
            return frame

    # --- time and rates ----------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self.number += 1
        self._now = max(self._now, now)
        if int(self._now) not in self._seconds:
            self._seconds[int(self._now)] = [0, 0, 0]
            while len(self._seconds) > HISTORY + RATE:
                self._seconds.popitem(last=False)

    def _tally(self, kind: int, count: int) -> None:
        self._seconds[int(self._now)][kind] += count

    def _stretch(self, seconds: int) -> range:
        """The last whole seconds."""
        return range(int(self._now) - seconds, int(self._now))

    def _rates(self) -> list[float]:
        """Events, matches inserted and taken back, per second."""
        counts = [self._seconds.get(second, [0, 0, 0]) for second in self._stretch(RATE)]
        return [sum(column) / RATE for column in zip(*counts, strict=True)]

    # --- events ------------------------------------------------------------------------------------------------------

    def _count(self, batch: Arrived) -> None:
        self._totals["events"] += batch.rows
        self._tally(0, batch.rows)
        codes = self._types.codes(batch.types)
        self._type_counts += np.bincount(np.where(codes < 0, TYPES, codes), minlength=TYPES + 1)

    def _settle(self, clock: int | None) -> Arrived | None:
        """The batch that arrived is through, and this is the clock now, where it is known."""
        batch, self._batch = self._batch, None
        if batch is not None:
            self._count(batch)
        if batch is not None and len(batch.ts):
            self._show(batch, clock)
            if clock is None:
                self._front = int(batch.seen[-1])
                self._clock = self._front if self._clock is None else max(self._clock, self._front)
        if clock is not None:
            self._clock = self._front = clock
        return batch

    def _show(self, batch: Arrived, clock: int | None) -> None:
        at = batch.judged(clock)
        late = np.maximum(at - batch.ts, 0)
        self._totals["behind"] += int(np.count_nonzero(late))
        if batch.ids is not None:
            self._recent.add(batch.ids, batch.ts, at)
        rows = pick(len(batch.ts), late, EVENTS)
        where = pa.array(rows)
        kinds = self._types.codes(batch.types.take(where)).tolist()
        sources = [-1] * len(rows) if batch.sources is None else self._sources.codes(batch.sources.take(where)).tolist()
        ids = [None] * len(rows) if batch.ids is None else batch.ids.take(where).to_pylist()
        for ts, behind, kind, source, name in zip(
            batch.ts[rows].tolist(), late[rows].tolist(), kinds, sources, ids, strict=True
        ):
            self._events.add(self.number, [ts, behind, kind, source, None if name is None else clip(name)])

    # --- late rows, sources ------------------------------------------------------------------------------------------

    def _lates(self, late: pa.Table) -> None:
        self._totals["late"] += late.num_rows
        reasons = pc.index_in(texts(late.column("reason")), value_set=pa.array(_REASONS, pa.string()))
        counts = np.bincount(reasons.fill_null(len(_REASONS)).to_numpy(), minlength=len(self._reasons))
        for reason, count in zip(self._reasons, counts.tolist(), strict=True):
            self._reasons[reason] += count
        codes = self._lanes.late(texts(late.column("query")))
        rows = pick(late.num_rows, np.zeros(late.num_rows, np.int64), LATE)
        chosen = late.take(pa.array(rows))
        times: list[Any] = [None] * len(rows)
        if "ts" in late.column_names and (found := whole_units(chosen.column("ts"), self._unit or "s")) is not None:
            times = [ts if usable else None for ts, usable in zip(found[0].tolist(), found[1].tolist(), strict=True)]
        told = chosen.select([name for name in _LATE_FIELDS if name in late.column_names])
        for row, ts, code in zip(told.to_pylist(), times, codes[rows].tolist(), strict=True):
            item = {key: plain(value) for key, value in row.items() if value is not None}
            self._late.add(self.number, {**item, "ts": ts, "query": None if code < 0 else code})

    def _describe_sources(self, sources: Mapping[Any, Mapping[str, Any]], clock: int | None) -> None:
        def lag(name: Any) -> int | None:
            own = sources[name].get("clock")
            return None if own is None or clock is None else max(clock - own, 0)

        named = [name for name in sources if name != OTHERS]
        if len(named) > SOURCE_LINES:  # those that are furthest behind
            named = sorted(named, key=lambda name: lag(name) or 0, reverse=True)[:SOURCE_LINES]
        self._more_sources = len(sources) - len(named)
        self._source_lines = [
            {
                "name": clip(name, 40),
                "lag": lag(name),
                **{key: plain(sources[name].get(key)) for key in ("events", "late", "idle", "share_late")},
                "lateness": [plain(value) for value in (sources[name].get("lateness") or {}).values()],
            }
            for name in sorted(named, key=str)
        ]
