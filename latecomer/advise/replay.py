"""Replay a recorded stream at a level, and judge what came out: how right it was, how often it changed its mind, how
long it made one wait.

Rule: a level is judged by its changes alone, against a truth that is given. Batches end at given rows, so the same
recording and the same cuts give the same verdict on every machine.

    precision    share of the net matches that are true
    recall       share of the true matches that are in the net output
    wrong        insertions of matches that are not true, taken back later or not, as a share of all insertions
    taken back   deletions as a share of insertions
    wait         for each match in the net output: from the arrival of its last event to its own leaving, in time of
                 arrival; matches that leave only because the stream ends are left out
    peak         the most events in stores and sort buffers, and the most bytes, after any of the batches looked at
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.disorder.measure import IntArray
from latecomer.errors import LatecomerError
from latecomer.runtime import Runtime


class TooMany(LatecomerError):
    """A replay found more matches than it was allowed to."""


@dataclass(frozen=True, slots=True)
class Log:
    """What one replay gave.

    Attributes:
        changes: ``op``, ``match_id`` and ``events`` of every change, in order.
        batch: the batch in which each change left (n,); the number of batches itself for what left at the end.
        late: rows of the late output.
        peak_events, peak_bytes: the most that was held.
    """

    changes: pa.Table
    batch: IntArray
    late: int
    peak_events: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out; shares are 0 to 1, waits in units of time (None when no match left before the end)."""

    truth: int
    net: int
    precision: float
    recall: float
    wrong: float
    taken_back: float
    wait_median: float | None
    wait_95: float | None
    late: int
    peak_events: int
    peak_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def replay(
    runtime: Runtime,
    rows: pa.Table,
    edges: Sequence[int],
    *,
    promises: Mapping[str, IntArray] | None = None,
    clocks: IntArray | None = None,
    reached: IntArray | None = None,
    looks: int = 40,
    most: int | None = None,
) -> Log:
    """Hand a stream over in batches, then finish it.

    Args:
        runtime: a fresh one, with one query.
        rows: the events in order of arrival.
        edges: where the batches begin, and the end of the last one (b + 1,), ascending.
        promises: for each type up to where it is promised after each batch (b,).
        clocks, reached: where ``rows`` are a part of a larger stream, that stream's clock at each row (n,) and after
            each batch (b,).
        looks: how many batches are followed by a look at the state.
        most: stop at more changes than this.

    Raises TooMany where ``most`` is passed.
    """
    given: list[pa.Table] = []
    number: list[IntArray] = []
    late, total, peak_events, peak_bytes = 0, 0, 0, 0
    batches = len(edges) - 1
    every = max(batches // looks, 1)

    def take(changes: pa.Table, late_rows: pa.Table, batch: int) -> None:
        nonlocal late, total
        late += late_rows.num_rows
        total += changes.num_rows
        if changes.num_rows:
            given.append(changes.select(["op", "match_id", "events"]))
            number.append(np.full(changes.num_rows, batch, np.int64))
        if most is not None and total > most:
            raise TooMany(f"more than {most:,} matches: replay a smaller part of the stream")

    for batch, (begin, end) in enumerate(pairwise(edges)):
        if end > begin:
            part = None if clocks is None else clocks[begin:end]
            for out in runtime.stream_pieces(rows.slice(begin, end - begin), clocks=part):
                take(out.changes, out.late, batch)
        if reached is not None and runtime.clock is not None:
            out = runtime.observe(int(reached[batch]))
            take(out.changes, out.late, batch)
        for kind, bounds in (promises or {}).items():
            out = runtime.punctuate(int(bounds[batch]), type=kind)
            take(out.changes, out.late, batch)
        if batch % every == 0:
            held = runtime.explain()
            [query] = held["queries"].values()
            peak_events = max(peak_events, query.get("stored", 0) + query["buffered"])
            peak_bytes = max(peak_bytes, held["bytes"])
    out = runtime.finish()
    take(out.changes, out.late, batches)
    changes = pa.concat_tables(given).combine_chunks() if given else out.changes.select(["op", "match_id", "events"])
    batch_of = np.concatenate(number) if number else np.zeros(0, np.int64)
    return Log(changes, batch_of, late, peak_events, peak_bytes)


def verdict(log: Log, match: IntArray, right: IntArray, came: IntArray, ends: IntArray) -> Verdict:
    """Judge a replay.

    Args:
        match: which match each change is about (n,): any numbers, equal for the same match.
        right: the numbers of the true matches.
        came: the batch in which the last event of each change's match arrived (n,).
        ends: the time of arrival at which each batch is complete (b,).
    """
    sign = np.where(np.asarray(pc.equal(log.changes["op"], "insert")), 1, -1)
    matches, at = np.unique(match, return_inverse=True)
    true = np.isin(matches, right)
    net = np.bincount(at, weights=sign, minlength=len(matches)) > 0
    left, last = np.zeros(len(matches), np.int64), np.zeros(len(matches), np.int64)
    np.maximum.at(left, at, np.where(sign > 0, log.batch, 0))  # the insertion that stands is the last one
    np.maximum.at(last, at, came)
    told = net & (left < len(ends))
    wait = np.sort(ends[left[told]] - ends[last[told]])
    inserted = int((sign > 0).sum())
    found = int((net & true).sum())
    return Verdict(
        truth=len(right),
        net=int(net.sum()),
        precision=float(found / net.sum()) if net.any() else 1.0,
        recall=float(found / len(right)) if len(right) else 1.0,
        wrong=float(((sign > 0) & ~true[at]).sum() / max(inserted, 1)),
        taken_back=float((sign < 0).sum() / max(inserted, 1)),
        wait_median=float(np.quantile(wait, 0.5)) if len(wait) else None,
        wait_95=float(np.quantile(wait, 0.95)) if len(wait) else None,
        late=log.late,
        peak_events=log.peak_events,
        peak_bytes=log.peak_bytes,
    )


def last_arrival(events: pa.ChunkedArray, ids: pa.Array) -> IntArray:
    """For each list of event ids the row at which the last of them arrived: ``ids`` are those of all rows, in order of
    arrival; of copies the first one counts. The lists are of equal length.

    >>> last_arrival(pa.chunked_array([[["a", "c"], ["b", "a"]]]), pa.array(["a", "b", "a", "c"])).tolist()
    [3, 1]
    """
    if not len(events):
        return np.zeros(0, np.int64)
    coded = ids.dictionary_encode()
    _, first = np.unique(np.asarray(coded.indices), return_index=True)
    flat = pc.list_flatten(events).cast(ids.type)
    row = first[np.asarray(pc.index_in(flat, value_set=coded.dictionary), np.int64)]
    return np.asarray(row.reshape(len(events), -1).max(axis=1), np.int64)


def by_hindsight(kinds: pa.ChunkedArray, ts: IntArray, new: Any, edges: Sequence[int], window: int) -> dict[str, Any]:
    """The best punctuation there can be: after each batch, for each type, up to where nothing of it comes any more.

    Args:
        kinds, ts: type and time of every row in order of arrival.
        new: which rows are no copies of an earlier one (n,).
        edges: as for :func:`replay`.
        window: what is promised beyond the last event once nothing follows.
    """
    names = np.asarray(kinds)
    ever = int(ts.max(initial=0)) + window + 1
    promises = {}
    for kind in dict.fromkeys(names.tolist()):
        open_ts = np.where(new & (names == kind), ts, ever)
        least = np.minimum.accumulate(open_ts[::-1])[::-1]
        promises[kind] = np.append(least, ever)[np.asarray(edges[1:], np.int64)] - 1
    return promises
