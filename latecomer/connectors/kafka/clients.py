"""The consumer, the producer and the registry's client of a process, with the properties that its promises need."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

log = logging.getLogger("latecomer.kafka.client")

#: A transaction that a dead process leaves open holds readers back for so long (ms), or for three times as long as one
#: usually takes, unless the file says otherwise.
TRANSACTION_TIMEOUT = 10_000
#: The partitions of a dead process stand still for so long (ms), unless the file says otherwise. librdkafka tells the
#: brokers that it is alive from a thread of its own, so no batch is too long for it.
SESSION_TIMEOUT = 10_000


def consumer_properties(pipeline: Pipeline, several: bool) -> tuple[dict[str, Any], bool]:
    """The consumer's properties, and whether its group rebalances eagerly, all partitions at once.

    Where there is no committed offset the tasks say where to begin. An offset that the topic no longer has is an error,
    since going on elsewhere would skip events without a word.
    """
    config = pipeline.consumer_config()
    eager = False
    usual: dict[str, Any] = {"fetch.queue.backoff.ms": 1, "logger": log}
    if config.get("group.protocol") == "consumer":
        if several:
            config["group.remote.assignor"] = "range"
    else:
        usual["session.timeout.ms"] = SESSION_TIMEOUT  # in the other protocol it is the brokers' business
        # Of several topics equal numbers must come together, which only this strategy sees to.
        eager = several
        config["partition.assignment.strategy"] = "range" if several else "cooperative-sticky"
    return {**usual, **config, "auto.offset.reset": "error"}, eager


def producer_properties(pipeline: Pipeline, transactional_id: str | None, **more: Any) -> dict[str, Any]:
    """The producer's properties. Brokers say "not yet" for a moment after each transaction; by default librdkafka would
    wait 100 ms before it asks again. The end of a transaction waits for no further messages; without one they are sent
    once the loop has written all that a batch has to say."""
    usual: dict[str, Any] = {"linger.ms": 1, "retry.backoff.ms": 1, "logger": log}
    if transactional_id is not None:
        usual["transaction.timeout.ms"] = max(TRANSACTION_TIMEOUT, int(3_000 * pipeline.transaction))
    else:
        usual["linger.ms"] = 0.2
    return {**usual, **pipeline.producer_config(transactional_id), **more}


def registry_client(pipeline: Pipeline) -> Any:
    """The schema registry's client; None where there is none."""
    config = pipeline.registry_config()
    if config is None:
        return None
    from latecomer.connectors.kafka.registry import client_of

    return client_of(config)
