"""What a level makes of a stream: how right it is, how often it changes its mind, how long it makes one wait.

Rule: the truth is the answer on the complete stream in order of event time, computed by the offline program of
:mod:`benchmarks.limit`, which shares no code with the engine. A level is judged by its net output at the end of the
stream. What its figures mean stands in :mod:`latecomer.advise.replay`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks.limit import IntArray, seq_neg
from latecomer.advise.replay import Verdict, by_hindsight, last_arrival, replay, verdict
from latecomer.consistency.levels import Level
from latecomer.disorder import measure


@dataclass(frozen=True, slots=True)
class Case:
    """A stream in order of arrival, with a query of the shape ``SEQ(A a, !B b, C c) WHERE [keys] WITHIN window``.

    Attributes:
        name: what the tables call it.
        events: columns as ``stream`` names them, ids int64 below 2**31, times int64, and ``arrival``.
        query: text without CONSISTENCY.
        kinds: the types of a, b and c.
        keys: the columns that must be equal.
        window: in units of time.
        step: the stream is handed over in batches that span this much time of arrival; waits are told to within a step.
    """

    name: str
    events: pa.Table
    stream: lc.Stream
    query: str
    kinds: tuple[str, str, str]
    keys: tuple[str, ...]
    window: int
    step: int


def truth(case: Case) -> IntArray:
    """The true matches as sorted codes; copies of an event count once."""
    events = case.events
    _, first = np.unique(np.asarray(events["id"]), return_index=True)
    events = events.take(pa.array(first))
    key = np.zeros(events.num_rows, np.int64)
    for name in case.keys:
        coded = np.asarray(events[name].combine_chunks().dictionary_encode().indices, np.int64)
        key = np.unique(key * (int(coded.max()) + 1) + coded, return_inverse=True)[1].astype(np.int64)
    names = np.asarray(events[case.stream.type])
    columns = [np.asarray(events[name], np.int64) for name in (case.stream.ts, "id")]
    # one event may be both an a and a negative: it is listed once for each part that it can play
    parts = [np.flatnonzero(names == kind) for kind in case.kinds]
    part = np.repeat(np.arange(3), [len(p) for p in parts])
    row = np.concatenate(parts)
    a, c = seq_neg(part, key[row], columns[0][row], columns[1][row], case.window)
    return np.sort(_code(a, c))


def judge(case: Case, level: Level, right: IntArray) -> Verdict:
    """Run the engine over the case at this level; ``right`` is :func:`truth` of the case."""
    engine = lc.Runtime(case.stream, [lc.Query(case.query, name="judged", level=level)])
    arrival = np.asarray(case.events["arrival"], np.int64)
    cuts = np.flatnonzero(np.diff(arrival // case.step, prepend=arrival[0] // case.step - 1))
    edges = [*cuts.tolist(), len(arrival)]
    ids = case.events["id"].combine_chunks()
    new = np.zeros(len(ids), bool)
    new[np.unique(np.asarray(ids), return_index=True)[1]] = True
    names, ts = case.events[case.stream.type], np.asarray(case.events[case.stream.ts], np.int64)
    proven = by_hindsight(names, ts, new, edges, case.window) if isinstance(level, lc.Conservative) else {}
    wanted = {kind: proven[kind] for kind in dict.fromkeys(case.kinds) if kind in proven}
    log = replay(engine, case.events.drop_columns(["arrival"]).combine_chunks(), edges, promises=wanted)
    pairs = np.asarray(pc.list_flatten(log.changes["events"]).cast(pa.int64())).reshape(-1, 2)
    came = np.searchsorted(np.array(edges[1:]), last_arrival(log.changes["events"], ids), side="right")
    return verdict(log, _code(pairs[:, 0], pairs[:, 1]), right, came, arrival[np.array(edges[1:]) - 1])


def max_lateness(case: Case) -> int:
    """The least slack that loses nothing, by hindsight."""
    return measure(case.events[case.stream.ts]).max_lateness


def _code(a: IntArray, c: IntArray) -> IntArray:
    return a << 32 | c
