"""Explain: what a runtime holds, how long, and what its matches wait for, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latecomer.consistency.clock import BEGINNING
from latecomer.query.plan import Plan
from latecomer.runtime.engine import Engine
from latecomer.runtime.lane import Lane, QueryState
from latecomer.storage.store import View

#: How many waiting matches a query shows.
SAMPLE = 10


def explain(plans: Sequence[Plan], engine: Engine | None, counters: Mapping[str, Any]) -> dict[str, Any]:
    """One entry per query, and the state that they share.

    Keys: ``clock`` (units or None), ``unit``, ``events`` and ``bytes`` of state, ``counters``, ``bounds``
    (punctuation by type), and ``queries``: by name ``level``, ``window``, ``retention`` (units behind the clock, or
    None where punctuation decides), ``retention_rule`` in words, ``held`` matches, ``buffered`` events, ``waiting``:
    a sample of held matches with what each waits for.
    """
    if engine is None:
        return {
            "clock": None,
            "unit": None,
            "events": 0,
            "bytes": 0,
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
        "events": len(engine.log),
        "bytes": engine.nbytes,
        "bounds": {name: bound for name, bound in bounds.items() if bound != BEGINNING},
        "counters": dict(counters),
        "queries": {p.name: queries[p.name] for p in plans},
    }


def _query(engine: Engine, lane: Lane, query: QueryState) -> dict[str, Any]:
    plan, window = query.pattern.plan, query.pattern.window
    retention = lane.policy.retention(window)
    if retention is None:
        rule = (
            f"until punctuation for {', '.join(plan.types)} has passed an event by the window ({window} {engine.unit})"
        )
    else:
        rule = f"{retention} {engine.unit} behind the clock: window {window} + what the level may still need"
    stores = {s: lane.stores[s] for s in query.pattern.selections()}
    return {
        "level": str(plan.level),
        "window": window,
        "retention": retention,
        "retention_rule": rule,
        "stored": sum(s.count(View.ALL) for s in stores.values()),
        "buffered": lane.buffered(),
        "held": len(query.holding),
        "waiting": _waiting(engine, lane, query),
    }


def _waiting(engine: Engine, lane: Lane, query: QueryState) -> list[dict[str, Any]]:
    """A sample of held matches: their events, and for each scope still open its end and the promise that is missing."""
    if not query.horizons or not len(query.holding):
        return []
    rows = query.holding.waiting()
    ends = query.holding.ends(rows)
    result = []
    for i in range(min(SAMPLE, len(rows))):
        refs = [rows.ref(p)[i : i + 1] for p in query.pattern.positives]
        open_scopes = []
        for negation, end, horizon in zip(query.pattern.plan.negations, ends, query.horizons, strict=True):
            if int(end[i]) > horizon:
                what = f"punctuation for {negation.component.type}" if lane.policy.proves else "the clock"
                open_scopes.append(
                    {"type": negation.component.type, "ends": int(end[i]), "horizon": horizon, "waits_for": what}
                )
        events = [engine.log.take(engine.intake.id_name, r)[0].as_py() for r in refs]
        result.append({"events": events, "scopes": open_scopes})
    return result
