"""What a sample says of its own disorder: by type and source, over time, in bursts; copies, wrong stamps, wrong clocks.

Rule: every figure is plain data in the stream's units, and follows from the sample alone. Lateness is counted against
the clock of the whole stream, as levels count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.advise.sample import BLOCK, Bools, Sample
from latecomer.disorder import measure
from latecomer.disorder.measure import IntArray
from latecomer.storage.hashing import hash_columns

#: Shares whose quantiles are told.
SHARES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
#: Sources told one by one, those with most events; all others are told as one.
WATCHED = 100
OTHERS = "(others)"
#: Stretches of time that the development over time is told in.
PERIODS = 60
#: Fewer unusually late events in a row than this are no burst.
IN_A_ROW = 10
#: Bursts and pauses told one by one.
TOLD = 12


def findings(sample: Sample) -> dict[str, Any]:
    """All that the report says of lateness, as plain data."""
    names, source = watched(sample)
    whole = measure(sample.ts, quantiles=SHARES)
    delays = None if sample.arrival is None else sample.arrival - sample.ts
    return {
        "events": len(sample),
        "span": int(sample.ts.max() - sample.ts.min()),
        "arrival_span": int(sample.came[-1] - sample.came[0]),
        "all": _plain(whole.as_dict()) | {"delays": _delays(delays)},
        "types": _groups(sample, sample.kinds, sample.kind, delays),
        "sources": {} if source is None else _groups(sample, names, source, delays),
        "histogram": histogram(sample.lateness),
        "over_time": over_time(sample),
        "drift": drift(sample),
        "bursts": [] if source is None else bursts(sample, names, source),
        "copies": copies(sample),
        "ahead": ahead(sample),
        "skew": {} if source is None else skew(sample, names, source),
        "pauses": {} if source is None else pauses(sample, names, source),
    }


def watched(sample: Sample) -> tuple[list[str], IntArray | None]:
    """Names of the sources that are told one by one, and each event's index into them (None where none is named)."""
    if sample.sources is None or sample.source is None:
        return [], None
    count = np.bincount(sample.source, minlength=len(sample.sources))
    order = np.argsort(-count, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.minimum(np.arange(len(order)), WATCHED)
    names = ["(none)" if sample.sources[i] is None else str(sample.sources[i]) for i in order[:WATCHED].tolist()]
    return names + [OTHERS] * (len(order) > WATCHED), place[sample.source]


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key not in ("per_source", "delays")}


def _delays(delays: IntArray | None) -> dict[str, int] | None:
    return None if delays is None else {str(q): int(np.quantile(delays, q, method="inverted_cdf")) for q in SHARES}


def _groups(sample: Sample, names: Sequence[str], code: IntArray, delays: IntArray | None) -> dict[str, Any]:
    """Lateness of each group against the clock of the whole stream."""
    texts = pa.array(names, pa.string()).take(pa.array(code))
    parts = measure(sample.ts, source=texts, quantiles=SHARES).per_source
    number = {name: i for i, name in enumerate(names)}
    return {
        str(name): _plain(part.as_dict())
        | {"delays": None if delays is None else _delays(delays[code == number[name]])}
        for name, part in sorted(parts.items(), key=lambda pair: -pair[1].events)
        if name is not None
    }


def histogram(lateness: IntArray, bins: int = 24) -> dict[str, Any]:
    """How many events were on time, and how many were late by how much, in bins that grow evenly in proportion.

    ``edges`` has one entry more than ``counts``; a bin holds what is above its lower edge, up to its upper one.
    """
    late = lateness[lateness > 0]
    if not len(late):
        return {"on_time": len(lateness), "edges": [], "counts": []}
    top = int(late.max())
    edges = np.unique(np.floor(np.geomspace(1, max(top, 2), bins + 1)).astype(np.int64))
    edges[-1] = max(edges[-1], top)
    edges = np.concatenate(([0], edges))
    counts = np.histogram(late, edges + 0.5)[0]
    return {"on_time": len(lateness) - len(late), "edges": edges.tolist(), "counts": counts.tolist()}


def over_time(sample: Sample) -> list[dict[str, Any]]:
    """Share late and lateness quantiles in even stretches of arrival; stretches without events are left out."""
    came, lateness = sample.came, sample.lateness
    first, last = int(came[0]), int(came[-1])
    length = max(-(-(last - first + 1) // PERIODS), 1)
    period = (came - first) // length
    bounds = np.searchsorted(period, np.arange(int(period[-1]) + 2))
    told = []
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        part = lateness[bounds[number] : bounds[number + 1]]
        q50, q90, q99 = (int(q) for q in np.quantile(part, (0.5, 0.9, 0.99), method="inverted_cdf"))
        told.append(
            {
                "from": number * length,
                "events": len(part),
                "share_late": float((part > 0).mean()),
                "q50": q50,
                "q90": q90,
                "q99": q99,
                "max": int(part.max()),
            }
        )
    return told


def drift(sample: Sample) -> dict[str, Any]:
    """The 99 % quantile of lateness in the first and in the last third of the arrivals."""
    third = max(len(sample) // 3, 1)
    parts = {"first": sample.lateness[:third], "last": sample.lateness[-third:]}
    return {
        name: {
            "share_late": float((part > 0).mean()),
            "q99": int(np.quantile(part, 0.99, method="inverted_cdf")),
            "max": int(part.max()),
        }
        for name, part in parts.items()
    }


def bursts(sample: Sample, names: Sequence[str], source: IntArray) -> list[dict[str, Any]]:
    """Stretches in which one source sent unusually late events in a row, so many that chance does not explain it.

    Unusual is what is later than nine of ten of the source's own events, or later than a quarter of its latest one
    where an outage makes up more than a tenth, and in any case twice what is usual. A row counts when independent
    delays would give one as long less than once in a thousand such samples. The longest come first.
    """
    order = np.argsort(source, kind="stable")
    late, own = sample.lateness[order], source[order]
    bounds = np.searchsorted(own, np.arange(len(names) + 1))
    told: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        part = late[bounds[number] : bounds[number + 1]]
        if name == OTHERS or len(part) < IN_A_ROW:
            continue
        nine, half = (int(q) for q in np.quantile(part, (0.9, 0.5), method="inverted_cdf"))
        unusual = part > max(min(nine, int(part.max()) // 4), 2 * half)
        if not unusual.any():
            continue
        least = max(IN_A_ROW, log(1e-3 / len(sample)) / log(unusual.mean()))
        turns = np.flatnonzero(np.diff(np.concatenate(([False], unusual, [False]))))
        for b, e in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            if e - b >= least:
                rows = order[bounds[number] + b : bounds[number] + e]
                told.append(
                    {
                        "source": name,
                        "at": int(sample.came[rows[0]] - sample.came[0]),
                        "events": e - b,
                        "took": int(sample.came[rows[-1]] - sample.came[rows[0]]),
                        "max_lateness": int(part[b:e].max()),
                    }
                )
    return sorted(told, key=lambda burst: (-burst["events"], burst["at"]))[:TOLD]


def copies(sample: Sample) -> dict[str, Any] | None:
    """Events whose id had come before; None where events have no ids."""
    if sample.stream.id is None:
        return None
    count = int(sample.copy.sum())
    if not count:
        return {"events": 0, "share": 0.0, "conflicting": 0, "after": {}}
    ids = sample.table[sample.stream.id].combine_chunks().dictionary_encode(null_encoding="encode").indices
    number = np.asarray(ids, np.int64)
    columns = [sample.table[name].combine_chunks() for name in sample.table.column_names]
    content = hash_columns([column for column in columns if not pa.types.is_nested(column.type)])
    _, first = np.unique(number, return_index=True)
    original = first[number[sample.copy]]
    after = sample.came[sample.copy] - sample.came[original]
    return {
        "events": count,
        "share": count / len(sample),
        "conflicting": int((content[sample.copy] != content[original]).sum()),
        "after": {str(q): int(np.quantile(after, q, method="inverted_cdf")) for q in (0.5, 0.99, 1.0)},
    }


def ahead(sample: Sample) -> dict[str, Any]:
    """Events far ahead of their neighbours, which were set aside, and events stamped after their own arrival."""
    early = None
    if sample.arrival is not None:
        lead = sample.ts - sample.arrival
        early = {"events": int((lead > 0).sum()), "most": int(max(lead.max(), 0))}
    shown = [{"ts": ts, "source": source, "by": by} for ts, source, by in sample.ahead[:TOLD]]
    return {"set_aside": len(sample.ahead), "events": shown, "stamped_after_arrival": early}


def skew(sample: Sample, names: Sequence[str], source: IntArray) -> dict[str, Any]:
    """How far each source's clock seems to be ahead (above 0) or behind, against the middle one of all sources.

    With times of arrival it is judged by the source's fastest events (its 5 % quantile of delay), since a delay only
    ever makes an event look older. Without them by how far its events lead their neighbours, which cannot tell a slow
    way from a slow clock. ``first`` and ``last`` are the same for the two halves of its events: a clock that drifts
    has different ones.
    """
    if sample.arrival is not None:
        lead, share = sample.ts - sample.arrival, 0.95
    else:
        lead, share = _lead(sample.ts), 0.5
    order = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source[order], np.arange(len(names) + 1))
    own: dict[str, tuple[float, float, float, int]] = {}
    for number, name in enumerate(names):
        part = lead[order[bounds[number] : bounds[number + 1]]]
        if name == OTHERS or len(part) < IN_A_ROW:
            continue
        half = len(part) // 2
        whole, first, last = (float(np.quantile(p, share)) for p in (part, part[:half], part[half:]))
        own[name] = (whole, first, last, len(part))
    if not own:
        return {}
    middle = [float(np.median([values[i] for values in own.values()])) for i in range(3)]
    return {
        name: {
            "offset": round(whole - middle[0]),
            "first": round(first - middle[1]),
            "last": round(last - middle[2]),
            "events": events,
        }
        for name, (whole, first, last, events) in own.items()
    }


def _lead(ts: IntArray) -> IntArray:
    """How far each event is ahead of the middle of its neighbours (n,)."""
    if len(ts) < BLOCK:
        return np.asarray(ts - np.median(ts), np.int64)
    blocks = len(ts) // BLOCK
    middle = np.median(ts[: blocks * BLOCK].reshape(blocks, BLOCK), axis=1)
    return np.asarray(ts - middle[np.minimum(np.arange(len(ts)) // BLOCK, blocks - 1)], np.int64)


def pauses(sample: Sample, names: Sequence[str], source: IntArray) -> dict[str, Any]:
    """The longest silence of each source in time of arrival, and the 99 % quantile of its silences."""
    order = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source[order], np.arange(len(names) + 1))
    told = {}
    for number, name in enumerate(names):
        gaps = np.diff(sample.came[order[bounds[number] : bounds[number + 1]]])
        if name != OTHERS and len(gaps):
            told[name] = {"longest": int(gaps.max()), "q99": int(np.quantile(gaps, 0.99, method="inverted_cdf"))}
    return told


def own_order(ts: IntArray, source: IntArray | None) -> tuple[Bools, Bools]:
    """Which events come after a later one of their own source, and which after one of equal time (n,)."""
    if source is None:
        source = np.zeros(len(ts), np.int64)
    order = np.argsort(source, kind="stable")
    time, own = ts[order], source[order]
    # One running maximum for all sources: each source's times are lifted above those of the one before.
    lift = own * (int(time.max(initial=0)) - int(time.min(initial=0)) + 1)
    lifted = time - int(time.min(initial=0)) + lift
    before = np.maximum.accumulate(lifted)
    back, equal = np.zeros(len(ts), bool), np.zeros(len(ts), bool)
    back[order] = lifted < before
    same = np.zeros(len(ts), bool)
    same[1:] = (lifted[1:] == before[:-1]) & (own[1:] == own[:-1])
    equal[order] = same
    return back, equal
