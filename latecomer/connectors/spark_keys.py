"""Which rows must meet: the attributes that decide an event's bucket.

The rule: all events that can be in one match, or in the scope of its negations, must be in one bucket. The
components of a query agree on each attribute of its ``[…]``, so any set of attributes that every query has in its
``[…]`` will do. Without one there is a single bucket, that is, no parallel work.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from latecomer.errors import ConfigError
from latecomer.query.query import Query

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

#: Buckets when nothing else is said. Every bucket runs in every micro-batch and costs about 7 ms of processor time
#: there, whatever is in it: 32 are 0.2 s, and 256 would be 1.8 s. They keep up to 32 cores busy.
DEFAULT_BUCKETS = 32


def choose(
    queries: Sequence[Query], buckets: int | None, key: Sequence[str] | str | None
) -> tuple[int, tuple[str, ...]]:
    """The number of buckets and the attributes that decide the bucket.

    ``key`` None means all attributes that the queries have in common. Raises ConfigError for a key that would tear
    matches apart, and for several buckets without a common key; warns when one bucket is all that is possible.
    """
    if buckets is not None and (not isinstance(buckets, int) or isinstance(buckets, bool) or buckets < 1):
        raise ConfigError(f"buckets={buckets!r}: give a whole number of at least 1")
    common = tuple(a for a in queries[0].plan.key if all(a in q.plan.key for q in queries))
    if key is not None:
        chosen = (key,) if isinstance(key, str) else tuple(key)
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
        return buckets or DEFAULT_BUCKETS, common
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


def bucket_column(key: Sequence[str], buckets: int, schema: StructType) -> Column:
    """The bucket of a row, as a Spark column: xxhash64 over the key. A row with a null there joins nothing anyway."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if buckets == 1:
        return F.lit(0)
    parts = []
    for name in key:
        column, kind = F.col(f"`{name}`"), schema[name].dataType
        if isinstance(kind, (T.FloatType, T.DoubleType)):
            column = column.cast("double") + F.lit(0.0)  # -0.0 equals 0.0, and must meet it
        elif isinstance(kind, T.TimestampType):
            column = F.unix_micros(column)  # as text it would depend on the session's time zone
        elif isinstance(kind, T.IntegralType):
            column = column.cast("long")  # a column that is widened one day keeps its buckets
        else:
            column = column.cast("string")
        parts.append(column)
    return F.pmod(F.xxhash64(*parts), F.lit(buckets)).cast("int")
