"""Explain: what a runtime holds, how long, and what its matches wait for, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.consistency.clock import BEGINNING, END
from latecomer.query.plan import Plan
from latecomer.runtime.engine import Engine
from latecomer.runtime.intervals.lane import AnyLane
from latecomer.runtime.rows import Rows
from latecomer.runtime.timekeeper import QUANTILES, WATCHED
from latecomer.storage.store import View

#: How many waiting matches a query shows.
SAMPLE = 10
#: Under which name sources that are not watched one by one are told.
OTHERS = "(others)"


def explain(plans: Sequence[Plan], engine: Engine | None, counters: Mapping[str, Any]) -> dict[str, Any]:
    """One entry per query, and the state that they share.

    Keys: ``clock`` and ``now`` (units or None), ``longest`` (units; None where times are exact), ``unit``,
    ``timestamps`` (whether times count from 1970), ``events`` (also those on the shelf) and ``bytes`` (in memory) of
    state, ``memory`` (None without a state folder: ``budget`` and ``in_memory`` in bytes, ``events_on_shelf``,
    ``pending`` events, blobs read and written and their bytes),
    ``counters``, ``sources`` (by name: ``events`` and ``late`` since the start, ``clock``,
    ``idle``, ``heard`` (the ``now`` of its last event), and of the last events ``share_late`` and ``lateness``
    quantiles in units), ``bounds`` (punctuation by type), and ``queries``: by name ``level``, ``window``,
    ``retention`` (units behind the clock, or None where punctuation decides), ``retention_rule`` in words,
    ``gives_up`` (what ``on_late="amend"`` costs), ``horizon``, the slack ``k`` or the ``patience`` in use, ``stored``
    and ``buffered`` events, ``bytes`` of stores, ``held`` matches, and ``waiting``: a sample of them with the time
    since which each waits (of its last event), the scopes still open, and for each the promise that is missing and the
    source that holds it back.
    """
    if engine is None:
        return {
            "clock": None,
            "now": None,
            "unit": None,
            "timestamps": False,
            "longest": None,
            "sources": {},
            "events": 0,
            "bytes": 0,
            "memory": None,
            "bounds": {},
            "counters": dict(counters),
            "queries": {p.name: {"level": str(p.level), "held": 0, "buffered": 0, "waiting": []} for p in plans},
        }
    clock = engine.time.clock.value
    bounds = {name: engine.time.bounds.bound(i) for i, name in enumerate(engine.types)}
    queries = {}
    for lane in engine.lanes:
        for query in lane.queries:
            queries[query.pattern.plan.name] = _query(engine, lane, query)
    return {
        "clock": None if clock == BEGINNING else clock,
        "unit": engine.unit,
        "longest": None if engine.intake.intervals is None else engine.intake.intervals.longest,
        "timestamps": pa.types.is_timestamp(engine.intake.ts_type),
        "events": engine.log.held,
        "bytes": engine.nbytes,
        "memory": None if engine.memory is None else engine.memory.facts(),
        "now": None if engine.time.now == BEGINNING else engine.time.now,
        "sources": _sources(engine),
        "bounds": {name: bound for name, bound in bounds.items() if bound != BEGINNING},
        "counters": dict(counters),
        "queries": {p.name: queries[p.name] for p in plans if p.name in queries},
    }


def _query(engine: Engine, lane: AnyLane, query: Any) -> dict[str, Any]:
    plan, window = query.pattern.plan, query.pattern.window
    retention = lane.policy.retention(query.reach)
    # A leading and a trailing scope are a window each, where the level looks back for both.
    windows = "twice the window" if plan.negates_both_ends and query.reach >= 2 * window else "the window"
    if retention is None:
        types, unit = ", ".join(plan.types), engine.unit
        rule = (
            f"until punctuation for {types} has passed an event by {windows} ({window} {unit}); "
            "without punctuation until finish()"
        )
    else:
        rule = f"{retention} {engine.unit} behind the clock: {windows} ({window}) + what the level may still need"
    stores = {s: lane.stores[s] for s in query.pattern.selections()}
    waiting = query.holding.waiting()
    waiting = waiting.take(lane.alive(query, waiting))  # the others are known to be none
    return {
        "level": str(plan.level),
        "window": window,
        "retention": retention,
        "retention_rule": rule,
        "gives_up": _gives_up(lane) if lane.amends else None,
        "horizon": _horizon(lane, query),
        **lane.policy.facts(),
        "stored": sum(s.count(View.ALL) for s in stores.values()),
        "bytes": sum(s.nbytes for s in stores.values()) + query.holding.nbytes,
        "buffered": lane.buffered(),
        "held": len(waiting),
        "waiting": _sample(engine, lane, query, waiting),
    }


def _slowest(engine: Engine, lane: AnyLane, kind: str) -> Any:
    """The source whose promise, or whose clock, holds the scope open; None where no single source does."""
    time = engine.time
    if not time.sources:
        return None
    if lane.policy.proves:
        own = time.bounds.own(engine.types.index(kind), len(time.sources)).tolist()
    elif engine.stream.clock == "source":
        own = [time.clock.own(number) for number in range(len(time.sources))]
    else:
        return None
    active = [number for number in range(len(own)) if not time.idle(number)]
    reached = {own[number] for number in active}
    if not reached or max(reached) == BEGINNING or (len(active) > 1 and len(reached) == 1):
        return None  # nobody has said anything, or all the same, so nobody is behind the others
    return time.sources[min(active, key=own.__getitem__)]


def _horizon(lane: AnyLane, query: Any) -> int | None:
    """Up to where everything that the query waits for is taken as known: the least over its negations, or how far
    sorted events have come."""
    known = [h for h in query.horizons if h > BEGINNING]
    if query.horizons:
        return min(query.horizons) if len(known) == len(query.horizons) else None
    entry = lane.policy.entry()
    return entry - 1 if BEGINNING < entry < END else None


def _gives_up(lane: AnyLane) -> str:
    if lane.policy.final:
        order = ", and amended matches come out of order" if lane.policy.ordered else ""
        return f"finality: late events are applied, so matches that have left may be taken back{order}"
    return "nothing but the bound on when corrections come: late events are applied as far as state is still held"


def _sources(engine: Engine) -> dict[Any, dict[str, Any]]:
    """The watched sources by name; all others together under ``OTHERS``."""
    time = engine.time
    if not len(time.events_of):
        return {}
    recent = time.summaries()
    result: dict[Any, dict[str, Any]] = {}
    for number, events in enumerate(time.events_of.tolist()):
        watched = number < WATCHED
        name = time.sources[number] if watched else OTHERS
        clock = int(time.latest_of[number])
        _, share, quantiles = recent.get(number, (0, None, [None] * len(QUANTILES)))
        result[name] = {
            "events": events,
            "late": int(time.late_of[number]) if number < len(time.late_of) else 0,
            "clock": None if clock == BEGINNING else clock,
            "idle": watched and time.idle(number),
            "heard": time.heard(number) if watched else None,
            "share_late": share,
            "lateness": {str(q): value for q, value in zip(QUANTILES, quantiles, strict=True)},
        }
    return result


def _sample(engine: Engine, lane: AnyLane, query: Any, rows: Rows) -> list[dict[str, Any]]:
    """Some of the waiting matches: their events, and for each scope still open its end and the promise that is
    missing."""
    rows = rows.take(np.arange(min(SAMPLE, len(rows))))
    ends = query.holding.ends(rows)
    result = []
    for i in range(len(rows)):
        refs = [rows.ref(p)[i : i + 1] for p in query.pattern.positives]
        open_scopes = []
        for negation, end, horizon in zip(query.pattern.plan.negations, ends, query.horizons, strict=True):
            if int(end[i]) > horizon:
                kind = negation.component.type
                what = f"punctuation for {kind}" if lane.policy.proves else "the clock"
                open_scopes.append(
                    {
                        "type": kind,
                        "ends": int(end[i]),
                        "horizon": horizon if horizon > BEGINNING else None,
                        "waits_for": what,
                        "source": _slowest(engine, lane, kind),
                    }
                )
        events = [engine.log.take(engine.intake.id_name, r)[0].as_py() for r in refs]
        since = int(rows.time(query.pattern.positives[-1])[i])
        result.append({"events": events, "since": since, "scopes": open_scopes})
    return result
