"""Merging: what several workers say, as one runtime would say it.

What is known of the whole stream each worker knows alike; what is counted of events, stores and matches is a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.consistency.levels import KSlack
from latecomer.query.plan import Plan
from latecomer.runtime.explain import SAMPLE
from latecomer.storage.columns import I64

#: Late rows of these reasons are found before events are shared out: each worker finds them all.
_BEFORE = pa.array(["malformed", "ahead"])


def own_late(number: int, late: pa.Table) -> pa.Table:
    """What a worker adds to the late output: rows that all find are told by the first."""
    return late if not number else late.filter(pc.invert(pc.is_in(late["reason"], value_set=_BEFORE)))


def in_order(changes: pa.Table, plans: Sequence[Plan], window_of: Callable[[Plan], int]) -> pa.Table:
    """Changes by query, those of sorted levels by when their matches are complete; else as the workers gave them, who
    tell query after query: so what one of them says of one lies together, and no row is moved."""
    names = [plan.name for plan in plans]
    said: list[list[pa.RecordBatch]] = [[] for _ in plans]
    for batch in filter(len, changes.to_batches()):
        for query, part in _by_query(batch, names):
            said[query].append(part)
    for query, plan in enumerate(plans):
        if said[query] and isinstance(plan.level, KSlack):
            table = pa.Table.from_batches(said[query], changes.schema)
            order = _completion(table, plan, window_of(plan)).argsort(kind="stable")
            said[query] = table.take(pa.array(order)).to_batches()
    return pa.Table.from_batches([part for parts in said for part in parts], changes.schema)


def _by_query(changes: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """What lies together, and of which query it is."""
    column = changes.column("query")
    first = column[0].as_py()
    if column[-1].as_py() == first:  # as of nearly all, since each query writes its own
        yield names.index(first), changes
        return
    query = np.asarray(pc.index_in(column, value_set=pa.array(names)))
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(query)) + 1).tolist(), len(query)]):
        yield int(query[begin]), changes.slice(begin, end - begin)


def _completion(changes: pa.Table, plan: Plan, window: int) -> I64:
    last = _whole(changes["latest" if "latest" in changes.column_names else "last_ts"])
    if any(negation.kind == "trailing" for negation in plan.negations):
        return np.maximum(_whole(changes["first_ts"]) + window, last)
    return last


def _whole(column: pa.ChunkedArray) -> I64:
    return np.asarray(column.cast(pa.int64()).to_numpy())


def counters(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``Runtime.counters`` of all. Rows are counted by every worker, events of the queries by the one that has them."""
    own = ("duplicates", "conflicts", "late", "inserted", "deleted", "confidences")
    shared = {name for name in parts[0] if name not in own}
    return {name: parts[0][name] if name in shared else total([part[name] for part in parts]) for name in parts[0]}


def total(parts: Sequence[Any]) -> Any:
    """The sum of numbers, or of dicts key by key."""
    if not isinstance(parts[0], Mapping):
        return sum(parts)
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: total([part[key] for part in parts if key in part]) for key in keys}


def explained(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``Runtime.explain`` of all."""
    first = parts[0]
    memory = [part["memory"] for part in parts]
    return first | {
        "events": sum(part["events"] for part in parts),
        "bytes": sum(part["bytes"] for part in parts),
        "memory": None if None in memory else {k: _sum_or_none([m[k] for m in memory]) for k in memory[0]},
        "counters": counters([part["counters"] for part in parts]),
        "sources": {
            name: told | {"late": sum(part["sources"][name]["late"] for part in parts)}
            for name, told in first["sources"].items()
        },
        "queries": {name: _query([part["queries"][name] for part in parts]) for name in first["queries"]},
        "workers": [{"events": part["events"], "bytes": part["bytes"]} for part in parts],
    }


def _query(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    added = {name: sum(part[name] for part in parts) for name in _SUMMED if name in parts[0]}
    waiting = [match for part in parts for match in part["waiting"]][:SAMPLE]
    return parts[0] | added | {"waiting": waiting}


def _sum_or_none(values: Sequence[Any]) -> Any:
    return None if any(value is None for value in values) else sum(values)


_SUMMED = ("stored", "bytes", "buffered", "held")
