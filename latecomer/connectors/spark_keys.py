"""Which rows must meet: the attributes that decide an event's bucket.

The rule: all events that can be in one match, or in the scope of its negations, must be in one bucket. The
components of a query agree on each attribute of its ``[…]``, so any set of attributes that every query has in its
``[…]`` will do. Without one there is a single bucket, that is, no parallel work.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.errors import ConfigError
from latecomer.query.query import Query
from latecomer.storage.hashing import combine, hash_column

Ints = npt.NDArray[np.int64]

#: Buckets in use per core, so that uneven ones even out, and at the least. Each costs some 7 ms of processor time in
#: every micro-batch, whatever is in it.
_PER_CORE, _LEAST = 4, 8

_HALF = np.uint64(32)

#: More buckets than anyone has cores for.
MOST = 1 << 16


def choose(
    queries: Sequence[Query], buckets: int | None, key: Sequence[str] | str | None, default: int
) -> tuple[int, tuple[str, ...]]:
    """The number of buckets and the attributes that decide the bucket.

    ``buckets`` None means ``default``, and ``key`` None all attributes that the queries have in common. Raises
    ConfigError for a key that would tear matches apart, and for several buckets without a common key; warns when one
    bucket is all that is possible.
    """
    if buckets is not None and (not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets <= MOST):
        raise ConfigError(f"buckets={buckets!r}: give a whole number of at least 1 and at most {MOST}")
    common = tuple(a for a in queries[0].plan.key if all(a in q.plan.key for q in queries))
    if key is not None:
        chosen = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, (list, tuple)) else ()
        if not chosen:
            raise ConfigError(
                f"key={key!r}: give names of attributes, or None for all that the queries have in common: "
                f"{list(common) or 'none'}"
            )
        for query in queries:
            torn = [a for a in chosen if a not in query.plan.key]
            if torn:
                raise ConfigError(
                    f"key={list(chosen)}: query {query.name!r} does not say that its events agree on {torn[0]!r}, "
                    "so its matches would be torn apart. Attributes that all queries have in [ ]: "
                    f"{list(common) or 'none'}"
                )
        common = chosen
    if common:
        return buckets or default, common
    shown = "; ".join(f"{q.name} [{', '.join(q.plan.key)}]" for q in queries)
    if buckets is not None and buckets > 1:
        raise ConfigError(
            f"buckets={buckets} needs an attribute on which the events of every query agree, and there is none "
            f"({shown}). Write [attribute] into WHERE, use buckets=1, or give each query a sink of its own"
        )
    if buckets is None:
        warnings.warn(
            f"the queries have no attribute in common on which their events agree ({shown}), so there is one "
            "bucket and no parallel work; write [attribute] into WHERE, or say buckets=1 to agree",
            stacklevel=4,
        )
    return 1, ()


def buckets_of(columns: Sequence[pa.Array], buckets: int) -> Ints:
    """The bucket of each row, of arrays with the values of its key: the stream's keys by hash, in equal parts.

    Each of ``n`` buckets is made of ``k`` whole ones of ``n * k``. A row with a null there joins nothing anyway.

    >>> half, quarter = (buckets_of([pa.array(["a", "b", None])], n) for n in (2, 4))
    >>> (quarter // 2 == half).all()
    np.True_
    """
    if buckets == 1 or not columns:
        return np.zeros(len(columns[0]) if columns else 0, np.int64)
    hashes = reduce(combine, map(hash_column, columns))
    return ((hashes >> _HALF) * np.uint64(buckets) >> _HALF).view(np.int64)


def in_use(limit: int, before: int, cores: int) -> int:
    """How many buckets a job uses that may use up to ``limit``, used ``before`` (0: is new) and has so many cores.

    They only ever double, since a bucket's state can be parted and not joined.

    >>> in_use(256, 0, 2), in_use(256, 8, 16), in_use(256, 64, 2), in_use(5, 0, 2)
    (8, 64, 64, 5)
    """
    wanted = max(_LEAST, _PER_CORE * cores)
    number = before or min(limit, _LEAST)
    while number < wanted and 2 * number <= limit:
        number *= 2
    return number
