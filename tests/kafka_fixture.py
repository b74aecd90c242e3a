"""Kafka for tests: one real broker per session, and one of its own for a test that kills it."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from latecomer.testing.kafka import Broker

CACHE = Path(__file__).parent.parent / ".cache" / "kafka"

#: Who may come in through ``kafka.sasl_bootstrap`` or ``tls_bootstrap``, each with only the rights that a test gives.
USERS = {"reader": "rather-secret", "writer": "even-more-secret", "guest": "secret-as-well"}


@pytest.fixture(scope="session")
def authority():
    """Who vouches for the broker's certificate."""
    return trustme.CA()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory, authority):
    folder = tmp_path_factory.mktemp("kafka")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # Java reads no other form
    tls = folder / "broker.pem"
    tls.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    with Broker(folder, cache=CACHE, users=USERS, tls=tls) as broker:
        yield broker


@pytest.fixture
def own_kafka(tmp_path):
    with Broker(tmp_path / "kafka", cache=CACHE) as broker:
        yield broker
