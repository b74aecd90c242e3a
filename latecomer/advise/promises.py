"""Which promises this sample would have kept: what a level or a generator of punctuation could have relied on.

Rule: a promise is *kept* when not one event of the sample broke it, copies apart. That it was kept is no proof that
it will be: so each is told with the number of events that it rests on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.advise.lateness import own_order
from latecomer.advise.sample import Bools, Sample
from latecomer.disorder.measure import IntArray

#: Shares of the events for which the slack is told.
SHARES = (0.99, 0.999, 1.0)


def promises(sample: Sample) -> dict[str, Any]:
    """Slack, bounded delay by type, order by source and numbers without gaps, as plain data."""
    fresh = ~sample.copy
    return {
        "slack": slack(sample.lateness[fresh]),
        "delays": {
            name: slack(sample.lateness[fresh & (sample.kind == i)])
            for i, name in enumerate(sample.kinds)
            if (fresh & (sample.kind == i)).any()
        },
        "order": order(sample, fresh),
        "sequences": sequences(sample, fresh),
    }


def slack(lateness: IntArray) -> dict[str, Any]:
    """For each share the least slack that keeps it, and how many events were later than that.

    >>> slack(np.array([0, 0, 0, 7]))["k"]["1.0"]
    7
    """
    k = {str(q): int(np.quantile(lateness, q, method="inverted_cdf")) for q in SHARES}
    return {"events": len(lateness), "k": k, "later": {q: int((lateness > v).sum()) for q, v in k.items()}}


def order(sample: Sample, fresh: Bools) -> dict[str, Any]:
    """Whether each source sends in order of time (``kept``), and never two events of one time (``strict``)."""
    ts = sample.ts[fresh]
    source = None if sample.source is None else sample.source[fresh]
    back, equal = own_order(ts, source)
    told: dict[str, Any] = {
        "events": len(ts),
        "out_of_order": int(back.sum()),
        "kept": not back.any(),
        "strict": not back.any() and not equal.any(),
        "sources": None,
        "sources_in_order": None,
        "worst": [],
    }
    if source is not None and sample.sources is not None:
        wrong = np.bincount(source[back], minlength=len(sample.sources))
        present = np.bincount(source, minlength=len(sample.sources)) > 0
        told["sources"] = int(present.sum())
        told["sources_in_order"] = int((present & (wrong == 0)).sum())
        worst = np.argsort(-wrong, kind="stable")[:5]
        told["worst"] = [[str(sample.sources[i]), int(wrong[i])] for i in worst.tolist() if wrong[i]]
    return told


def sequences(sample: Sample, fresh: Bools) -> list[dict[str, Any]]:
    """Columns of whole numbers in which each source counts its events up by one.

    A column is told when at least nine of ten steps, from one event of a source to its next in number, are 1; it is
    *kept* when all are, and the numbers follow the events' times.
    """
    if sample.thinned:
        return []
    told = []
    source = np.zeros(len(sample), np.int64) if sample.source is None else sample.source
    source, ts = source[fresh], sample.ts[fresh]
    table = sample.table.filter(pa.array(fresh))
    for name in table.column_names:
        column = table[name]
        if name == sample.stream.ts or not pa.types.is_integer(column.type) or column.null_count:
            continue
        value = np.asarray(column.cast(pa.int64()), np.int64)
        by = np.lexsort((ts, value, source))
        same = source[by][1:] == source[by][:-1]
        step = np.diff(value[by])[same]
        if not len(step) or (step == 1).mean() < 0.9:
            continue
        backwards = int((np.diff(ts[by])[same] < 0).sum())
        told.append(
            {
                "column": name,
                "steps": len(step),
                "gaps": int((step > 1).sum()),
                "repeated": int((step == 0).sum()),
                "against_time": backwards,
                "kept": bool((step == 1).all()) and not backwards,
            }
        )
    return told
