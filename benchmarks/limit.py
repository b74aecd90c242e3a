"""What the machine can do: the NumPy program that has the whole file at once.

It sorts all events by (type, key, time), finds for each A by ``searchsorted`` its first B and the stretch of C that
lies before it and within the window, and writes the pairs. It knows nothing of arrival, lateness or corrections;
nothing that answers as events come can be expected to be faster. It is written for this one shape of query; it also
says what the right answer is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def columns(events: pa.Table) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """(type, key, ts, id) of a table as integer arrays; A is 0, B is 1, C is 2, anything else 3."""
    kind = pc.index_in(events["kind"], value_set=pa.array(["A", "B", "C"])).fill_null(3)
    key = events["key"]
    if not pa.types.is_integer(key.type):
        key = key.combine_chunks().dictionary_encode().indices
    kind, key, ts, ids = (np.asarray(c, dtype=np.int64) for c in (kind, key, events["ts"], events["id"]))
    return kind, key, ts, ids


def seq_neg(kind: IntArray, key: IntArray, ts: IntArray, ids: IntArray, window: int) -> tuple[IntArray, IntArray]:
    """Matches of ``SEQ(A a, !B b, C c) WHERE [key] WITHIN window``: (ids of a, ids of c), by key and time of a.

    ``kind`` is 0 for A, 1 for B, 2 for C; keys are small numbers of 0 or more; ``window`` is in units of ``ts``.
    """
    time = ts - ts.min()
    shift = int(time.max() + window + 2).bit_length()  # codes of two keys are further apart than any window reaches
    code = key << shift | time
    packed = kind << (int(key.max()).bit_length() + shift) | code
    order = np.argsort(packed)
    code, ids = code[order], ids[order]
    bounds = np.searchsorted(kind[order], [0, 1, 2, 3])
    a, b, c = (slice(bounds[i], bounds[i + 1]) for i in range(3))
    return _pairs(code[a], ids[a], code[b], code[c], ids[c], window)


def _pairs(
    a: IntArray, a_id: IntArray, b: IntArray, c: IntArray, c_id: IntArray, window: int
) -> tuple[IntArray, IntArray]:
    """Pairs with ``a < c <= a + window`` and no b between them; all sorted."""
    following = np.append(b, np.iinfo(np.int64).max)[np.searchsorted(b, a, side="right")]
    first = np.searchsorted(c, a, side="right")
    last = np.searchsorted(c, np.minimum(a + window, following), side="right")
    n = last - first
    owner = np.repeat(np.arange(len(a)), n)
    at = np.arange(len(owner)) + np.repeat(first - (np.cumsum(n) - n), n)
    return a_id[owner], c_id[at]
