"""What each level would have cost: a query replayed under the three levels, across their parameters.

Rules:

* all levels see the same events in the same batches, and are judged against the query's own answer on the complete
  sample in order of event time;
* parameters are quantiles of the sample's own lateness, rounded up to what a person would write;
* of a long sample the last part is replayed, as long as its waits can be told finely enough; of a dense one some of
  the query's keys, chosen by hash: what a match is does not depend on other keys. Clock and promises are always those
  of the whole sample;
* the time it takes is bounded by counts (events, batches, matches), never by a clock, so that two runs agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, log10
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.advise.lateness import own_order
from latecomer.advise.replay import Log, TooMany, Verdict, by_hindsight, last_arrival, verdict
from latecomer.advise.replay import replay as run
from latecomer.advise.sample import Bools, Sample
from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level
from latecomer.disorder.measure import IntArray
from latecomer.query import Query
from latecomer.runtime import Runtime
from latecomer.storage.hashing import hash_columns
from latecomer.stream import Stream
from latecomer.units import UNITS, Duration

#: Events that one replay sees at most.
MOST_EVENTS = 40_000
#: Batches of a replay: waits are told to within one of them.
BATCHES = 600
#: A batch spans at most this part of the window, or of the slack that 99 % of the events need, whichever is less.
FINE = 8
#: Changes that one replay may give; a query that gives more is replayed on fewer events.
MOST_CHANGES = 200_000
#: Shares of events whose lateness becomes a parameter.
SHARES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
#: Name of the column of ids where the sample has none.
ROW = "latecomer_row"


@dataclass(frozen=True, slots=True)
class Point:
    """One level, as it did on the sample.

    Attributes:
        name: how charts and tables call it.
        family: ``kslack``, ``conservative`` or ``aggressive``.
        level: the level.
        clause: what to write at the end of the query.
        promises: what to write into ``Stream(promises=[…])``; None where nothing is needed, empty where no one can
            write it, since it is known by hindsight only.
        verdict: what came out.
        best: whether no other point is at least as good in every respect and better in one.
        own: whether it is the level that the query came with.
    """

    name: str
    family: str
    level: Level
    clause: str
    promises: str | None
    verdict: Verdict
    best: bool = False
    own: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "family": self.family,
            "clause": self.clause,
            "promises": self.promises,
            "best": self.best,
            "own": self.own,
            **self.verdict.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """A query and all its points, with what they rest on: of the ``of`` events that it looks at ``events`` were
    replayed, a ``share`` of those in the last ``stretch`` units of arrival, in batches of ``step`` units.
    """

    query: Query
    unit: str
    window: int
    events: int
    of: int
    share: float
    stretch: int
    step: int
    truth: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What of the sample is replayed: rows, their numbers in the sample, and the batches' edges in both."""

    rows: pa.Table
    number: IntArray
    edges: list[int]
    whole: IntArray
    share: float
    step: int


def trial(sample: Sample, query: Query, own: bool) -> Trial:
    """Replay ``query`` under all levels that come into question. ``own``: whether its own level does, too.

    Raises QueryError where the query asks for what the sample does not have.
    """
    stream = Stream(type=sample.stream.type, ts=sample.stream.ts, id=sample.stream.id or ROW, unit=sample.stream.unit)
    table = sample.table
    if sample.stream.id is None:
        table = table.append_column(ROW, pa.array(np.arange(len(sample))))
    query.check(stream, table.schema)
    wanted = np.isin(np.asarray(sample.kinds, object)[sample.kind], np.asarray(query.plan.types, object))
    most = MOST_EVENTS
    while True:
        part = _part(sample, table, query, wanted, most)
        try:
            right = _truth(sample, stream, part, query)
            points = list(_points(sample, stream, part, query, wanted, right, own))
            break
        except TooMany:
            most //= 2
    return Trial(
        query=query,
        unit=sample.unit,
        window=query.plan.window.units(sample.unit),
        events=part.rows.num_rows,
        of=int(wanted.sum()),
        share=part.share,
        stretch=int(sample.came[-1] - sample.came[part.whole[0]]),
        step=part.step,
        truth=len(right),
        points=tuple(_marked(points)),
    )


def _part(sample: Sample, table: pa.Table, query: Query, wanted: Bools, most: int) -> _Part:
    """The last part of the sample that ``BATCHES`` fine batches cover, and of it at most about ``most`` events that
    the query looks at: those of some keys, or else the last ones.
    """
    whole, step = _batches(sample, query, wanted)
    chosen = wanted & (np.arange(len(sample)) >= whole[0])
    total = int(chosen.sum())
    if total > most and query.plan.key:
        hashes = hash_columns([table[name].combine_chunks() for name in query.plan.key])
        # The hash's upper bits as a number from 0 to 1; keys of the same value go together.
        chosen &= (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 < most / total
    if int(chosen.sum()) > 2 * most or (total > most and not query.plan.key):
        begin = int(np.flatnonzero(chosen)[-most])
        whole = np.append(begin, whole[whole > begin])
        chosen &= np.arange(len(sample)) >= begin
    number = np.flatnonzero(chosen)
    share = len(number) / max(int(wanted[whole[0] :].sum()), 1)
    rows = table.take(pa.array(number))
    return _Part(rows, number, np.searchsorted(number, whole).tolist(), whole, share, step)


def _batches(sample: Sample, query: Query, wanted: Bools) -> tuple[IntArray, int]:
    """The edges of the batches among the sample's rows, and how much time of arrival each spans."""
    lateness = sample.lateness[wanted & ~sample.copy]
    slack = int(np.quantile(lateness, 0.99, method="inverted_cdf")) if len(lateness) else 0
    lengths = [length for length in (query.plan.window.units(sample.unit), slack) if length > 0]
    fine = max(min(lengths, default=0) // FINE, 1)
    came = sample.came[sample.whole :]
    span = int(came[-1] - came[0]) + 1
    step = max(-(-span // BATCHES), 1)
    if step > 2 * fine:
        step = fine
    turns = np.flatnonzero(np.diff((came - came[0]) // step, prepend=-1)) + sample.whole
    return np.append(turns[-BATCHES:], len(sample)), step


def _truth(sample: Sample, stream: Stream, part: _Part, query: Query) -> pa.Array:
    """Ids of the matches on the part's events in order of event time, each event once."""
    fresh = np.flatnonzero(~sample.copy[part.number])
    order = fresh[np.argsort(sample.ts[part.number[fresh]], kind="stable")]
    rows = part.rows.take(pa.array(order))
    runtime = Runtime(stream, [_at(query, KSlack(0))])
    edges = [*range(0, rows.num_rows, 8_192), rows.num_rows]
    log = run(runtime, rows, edges, looks=1, most=MOST_CHANGES)
    return log.changes["match_id"].combine_chunks()


def _at(query: Query, level: Level) -> Query:
    return Query.from_plan(replace(query.plan, level=level))


def _points(
    sample: Sample, stream: Stream, part: _Part, query: Query, wanted: Bools, right: pa.Array, own: bool
) -> Iterator[Point]:
    ids = part.rows[stream.id].combine_chunks()
    clocks, reached = sample.clock[part.number], sample.clock[part.whole[1:] - 1]
    ends = sample.came[part.whole[1:] - 1]
    edges = np.array(part.edges[1:])
    number = {text.as_py(): i for i, text in enumerate(right)}

    def judged(level: Level, promises: Mapping[str, IntArray] | None) -> Verdict:
        runtime = Runtime(stream, [_at(query, level)])
        log: Log = run(
            runtime,
            part.rows,
            part.edges,
            promises=promises,
            clocks=clocks,
            reached=None if isinstance(level, Conservative) else reached,
            most=MOST_CHANGES * 2,
        )
        match = np.array([number.setdefault(text, len(number)) for text in log.changes["match_id"].to_pylist()], int)
        came = np.searchsorted(edges, last_arrival(log.changes["events"], ids), side="right")
        found = verdict(log, match, np.arange(len(right)), came, ends)
        held = round(found.peak_events / part.share), round(found.peak_bytes / part.share)
        return replace(found, peak_events=held[0], peak_bytes=held[1])

    levels = list(_levels(sample, query, wanted))
    if own and all(str(query.level) != str(level) for level, _ in levels):
        levels.append((query.level, str(query.level)))
    for level, name in levels:
        family = {KSlack: "kslack", Aggressive: "aggressive"}.get(type(level))
        if family is not None:
            mine = own and str(level) == str(query.level)
            yield Point(name, family, level, f"CONSISTENCY {level}", None, judged(level, None), own=mine)
    for name, text, bounds in _proofs(sample, part, query, wanted):
        level = Conservative()
        yield Point(name, "conservative", level, f"CONSISTENCY {level}", text, judged(level, bounds))


def _levels(sample: Sample, query: Query, wanted: Bools) -> Iterator[tuple[Level, str]]:
    """K-slack and the aggressive level, across their parameters."""
    used = wanted & ~sample.copy
    slacks = _steps(sample.lateness[used], sample.unit)
    for slack in slacks:
        yield KSlack(slack), f"k = {slack}"
    most = slacks[-1]
    if most.amount:
        yield KSlack(recall=0.99, max=most), "recall = 0.99"
    for delay in slacks[-3:]:
        yield Aggressive(max_delay=delay), f"max_delay = {delay}"
    absent = {n.component.type for n in query.plan.negations}
    if absent and most.amount:
        negative = np.isin(np.asarray(sample.kinds, object)[sample.kind], np.asarray(sorted(absent), object))
        for patience in _steps(sample.lateness[used & negative], sample.unit):
            if patience.amount:
                yield Aggressive(max_delay=most, patience=patience), f"patience = {patience}"
        yield Aggressive(max_delay=most, retractions=0.01), "retractions = 0.01"


def _steps(lateness: IntArray, unit: str) -> list[Duration]:
    """0 and quantiles of lateness, rounded up, each once."""
    if not len(lateness):
        return [Duration.of(0)]
    quantiles = np.quantile(lateness, SHARES, method="inverted_cdf").tolist()
    steps = {rounded(0, unit)} | {rounded(int(q), unit) for q in quantiles}
    return sorted(steps, key=lambda d: d.exact(unit))


def rounded(units: int, unit: str) -> Duration:
    """A duration rounded up to two digits, in the largest unit in which it is 10 or more.

    >>> str(rounded(1_234, "s")), str(rounded(182, "min")), str(rounded(7, "s"))
    ('21 min', '190 min', '7 s')
    """
    nanoseconds = units * UNITS[unit]
    for larger in reversed(UNITS):
        whole = nanoseconds / UNITS[larger]
        if whole >= 10 and UNITS[larger] >= UNITS[unit]:
            digits = max(ceil(log10(whole + 1)) - 2, 0)
            return Duration.of(f"{ceil(round(whole / 10**digits, 9)) * 10**digits} {larger}")
    return Duration.of(f"{units} {unit}")


def _proofs(sample: Sample, part: _Part, query: Query, wanted: Bools) -> Iterator[tuple[str, str, dict[str, IntArray]]]:
    """What the conservative level may live by: (name, what to write, up to where each type is promised by batch)."""
    types, whole = query.plan.types, part.whole
    last = whole[1:] - 1
    used = wanted & ~sample.copy
    number = {kind: i for i, kind in enumerate(sample.kinds)}
    lateness = {t: sample.lateness[used & (sample.kind == number[t])] for t in types if t in number}
    told = set()
    for share, words in ((0.99, "99 %"), (0.999, "99.9 %"), (1.0, "100 %")):
        delays = {
            t: rounded(int(np.quantile(v, share, method="inverted_cdf")) if len(v) else 0, sample.unit)
            for t, v in lateness.items()
        }
        text = ", ".join(f"{t!r}: {str(d)!r}" for t, d in delays.items())
        if text in told or not delays:
            continue
        told.add(text)
        bounds = {t: sample.clock[last] - d.units(sample.unit) - 1 for t, d in delays.items()}
        yield f"bounded delay, {words}", f"BoundedDelay({{{text}}})", bounds
    if sample.source is not None and not own_order(sample.ts[~sample.copy], sample.source[~sample.copy])[0].any():
        least = _least_of_sources(sample, last)
        yield "sources in order", "SourcesInOrder()", dict.fromkeys(lateness, least)
    kinds = pa.chunked_array([pa.array(sample.kinds).take(pa.array(sample.kind))])
    window = query.plan.window.units(sample.unit)
    # A batch that begins later than the sample does counts from there.
    best = by_hindsight(kinds, sample.ts, ~sample.copy, whole.tolist(), window)
    yield "best possible promises, by hindsight", "", {t: best[t] for t in lateness}


def _least_of_sources(sample: Sample, rows: IntArray) -> IntArray:
    """What is closed when each source sends in order: the least of the sources' latest times, less one unit (b,).

    Sources that have not spoken yet hold everything open.
    """
    assert sample.source is not None and sample.sources is not None, "asked for only where sources are named"
    least = np.full(len(rows), np.iinfo(np.int64).max)
    nothing = int(sample.ts.min()) - 2
    for number in range(len(sample.sources)):
        own = np.flatnonzero(sample.source == number)
        if len(own):
            latest = np.concatenate(([nothing], np.maximum.accumulate(sample.ts[own])))
            least = np.minimum(least, latest[np.searchsorted(own, rows, side="right")])
    return least - 1


def objectives(point: Point) -> tuple[float, ...]:
    """What is better when less: matches missed, matches wrong at the end, wrong alarms, wait, state."""
    found = point.verdict
    wait = found.wait_95 if found.wait_95 is not None else float("inf") if found.truth else 0.0
    return (1 - found.recall, 1 - found.precision, found.wrong, wait, float(found.peak_events))


def front(values: list[tuple[float, ...]]) -> list[bool]:
    """Which of some points are on the Pareto front: no other is as good in every respect and better in one.

    >>> front([(1, 3), (2, 2), (3, 3)])
    [True, True, False]
    """
    table = np.array(values, float)
    told = []
    for row in table:
        no_worse, better = (table <= row).all(axis=1), (table < row).any(axis=1)
        told.append(not (no_worse & better).any())
    return told


def _marked(points: list[Point]) -> list[Point]:
    """The points, each with whether it is on the front; promises known by hindsight compete with nobody."""
    real = [p for p in points if p.promises != ""]
    best = dict(zip(map(id, real), front([objectives(p) for p in real]), strict=True))
    return [replace(p, best=best.get(id(p), False)) for p in points]
