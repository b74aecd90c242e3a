"""Whether partitions are independent: does a message's key bring together the events that belong together?

The rule: all events that can be in one match, or in the scope of its negations, must be in one partition. The
components of a query agree on each attribute of its ``[…]``. So partitions are independent when the columns that decide
a message's partition are some of those that *every* query has in its ``[…]``; and there is no question with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from latecomer.query import Query

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How a pipeline's events are spread.

    Attributes:
        key: the columns on which the events of every query agree; empty: there are none.
        independent: the topics' own partitions can be worked on one by one, or the internal topic sees to that.
        advice: what to do otherwise; None when nothing is to be done.
    """

    key: tuple[str, ...]
    independent: bool
    advice: str | None


def common_key(queries: Sequence[Query]) -> tuple[str, ...]:
    """The columns on which the events of every query agree."""
    return tuple(name for name in queries[0].plan.key if all(name in query.plan.key for query in queries))


def partitioning(pipeline: Pipeline) -> Partitioning:
    """How this pipeline's events are spread, as far as its file says."""
    key = common_key(pipeline.queries)
    if pipeline.repartition is not None:
        return Partitioning(pipeline.repartition.by or key, True, None)
    torn = [given for given in pipeline.inputs if not given.key or not set(given.key) <= set(key)]
    if not torn:
        return Partitioning(key, True, None)
    if not key:
        asked = "; ".join(f"{q.name} [{', '.join(q.plan.key)}]" for q in pipeline.queries)
        return Partitioning(
            key,
            False,
            f"The queries have no column in common on which their events agree ({asked}), so all events must meet in "
            "one partition: use topics of one partition, write [column] into each WHERE, or let all go through an "
            f"internal topic of one partition:\n\n{_offer(pipeline, 1)}",
        )
    first = torn[0]
    topics, agreed = ", ".join(first.topics), ", ".join(key)
    if first.key:
        problem = f"but the message key of {topics} is made of [{', '.join(first.key)}]"
        remedy = "Use"
    else:
        problem = f"and of {topics} the file does not say what the message key is made of"
        remedy = f"If it is made of some of these columns, say so in [[input]], as in key = {_listed(key)}. Else use"
    return Partitioning(
        key,
        False,
        f"The events of every query agree on [{agreed}], {problem}: events that belong together may be in different "
        f"partitions. {remedy} topics of one partition, or let all go through an internal topic:\n\n"
        f"{_offer(pipeline, 8)}",
    )


def _offer(pipeline: Pipeline, partitions: int) -> str:
    return f'    [repartition]\n    topic = "{pipeline.name}-by-key"\n    partitions = {partitions}'


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
