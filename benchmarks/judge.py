"""What a level makes of a stream: how right it is, how often it changes its mind, how long it makes one wait.

Rule: the truth is the answer on the complete stream in order of event time, computed by the offline program of
:mod:`benchmarks.limit`, which shares no code with the engine. A level is judged by its net output at the end of the
stream.

    precision    share of the net matches that are true
    recall       share of the true matches that are in the net output
    taken back   deletions as a share of insertions
    wait         for each match in the net output: from the arrival of its last event to its own leaving, in time of
    arrival;
                 matches that leave only because the stream ends are left out
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import latecomer as lc
from benchmarks.limit import IntArray, seq_neg
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out; shares are 0 to 1, waits in units of time (None when no match left before the end)."""

    truth: int
    net: int
    precision: float
    recall: float
    taken_back: float
    wait_median: float | None
    wait_95: float | None
    late: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


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
    promises = _promises(case, edges) if isinstance(level, lc.Conservative) else {}
    rows = case.events.drop_columns(["arrival"]).combine_chunks()
    given: list[pa.Table] = []
    number: list[int] = []

    def collect(output: lc.Output, batch: int) -> int:
        given.append(output.changes.select(["op", "events"]))
        number.extend([batch] * output.changes.num_rows)
        return int(output.late.num_rows)

    late = 0
    for batch, (begin, end) in enumerate(pairwise(edges)):
        late += collect(engine.process(rows.slice(begin, end - begin)), batch)
        for kind, bounds in promises.items():
            late += collect(engine.punctuate(int(bounds[batch]), type=kind), batch)
    late += collect(engine.finish(), len(edges) - 1)
    return _verdict(case, right, pa.concat_tables(given).combine_chunks(), np.array(number, np.int64), edges, late)


def _promises(case: Case, edges: list[int]) -> dict[str, IntArray]:
    """The best punctuation there can be, by hindsight: after each batch, for each type, what does not come any more."""
    ids, names = np.asarray(case.events["id"]), np.asarray(case.events[case.stream.type])
    ts = np.asarray(case.events[case.stream.ts], np.int64)
    new = np.zeros(len(ids), bool)
    new[np.unique(ids, return_index=True)[1]] = True
    ever = int(ts.max()) + case.window + 1
    promises = {}
    for kind in dict.fromkeys(case.kinds):
        open_ts = np.where(new & (names == kind), ts, ever)
        least = np.minimum.accumulate(open_ts[::-1])[::-1]
        promises[kind] = np.append(least, ever)[edges[1:]] - 1
    return promises


def _verdict(case: Case, right: IntArray, changes: pa.Table, batch: IntArray, edges: list[int], late: int) -> Verdict:
    ids = np.asarray(pc.list_flatten(changes["events"]).cast(pa.int64())).reshape(-1, 2)
    sign = np.where(np.asarray(pc.equal(changes["op"], "insert")), 1, -1)
    code = _code(ids[:, 0], ids[:, 1])
    pairs, at = np.unique(code, return_inverse=True)
    net = np.bincount(at, weights=sign, minlength=len(pairs)) > 0
    left = np.zeros(len(pairs), np.int64)
    np.maximum.at(left, at, np.where(sign > 0, batch, 0))  # the insertion that stands is the last one
    arrival = np.asarray(case.events["arrival"], np.int64)
    unique_ids, first = np.unique(np.asarray(case.events["id"]), return_index=True)
    last = np.zeros(len(pairs), np.int64)
    for part in (pairs >> 32, pairs & (2**32 - 1)):
        last = np.maximum(last, first[np.searchsorted(unique_ids, part)])
    came = np.searchsorted(np.array(edges[1:]), last, side="right")
    ends = arrival[np.array(edges[1:]) - 1]
    told = net & (left < len(ends))
    wait = np.sort(ends[left[told]] - ends[came[told]])
    true = np.isin(pairs[net], right).sum()
    return Verdict(
        truth=len(right),
        net=int(net.sum()),
        precision=float(true / net.sum()) if net.any() else 1.0,
        recall=float(true / len(right)) if len(right) else 1.0,
        taken_back=float((sign < 0).sum() / max((sign > 0).sum(), 1)),
        wait_median=float(np.quantile(wait, 0.5)) if len(wait) else None,
        wait_95=float(np.quantile(wait, 0.95)) if len(wait) else None,
        late=late,
    )


def max_lateness(case: Case) -> int:
    """The least slack that loses nothing, by hindsight."""
    return measure(case.events[case.stream.ts]).max_lateness


def _code(a: IntArray, c: IntArray) -> IntArray:
    return a << 32 | c
