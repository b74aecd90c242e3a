"""Kafka for tests: one real broker per session, and one of its own for a test that kills it."""

from pathlib import Path

import pytest

from latecomer.testing.kafka import Broker

CACHE = Path(__file__).parent.parent / ".cache" / "kafka"

#: Who may come in through ``kafka.sasl_bootstrap``, each with only the rights that a test gives.
USERS = {"reader": "rather-secret", "writer": "even-more-secret"}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("kafka"), cache=CACHE, users=USERS) as broker:
        yield broker


@pytest.fixture
def own_kafka(tmp_path):
    with Broker(tmp_path / "kafka", cache=CACHE) as broker:
        yield broker
