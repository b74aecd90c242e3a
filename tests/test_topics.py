"""The tests' own reader of topics."""

import threading
import time

import pytest
from confluent_kafka import Producer

from tests import topics

pytestmark = pytest.mark.kafka


def test_an_open_transaction_is_waited_for(kafka):
    """Of a process that dies with a transaction open, others' messages behind it are read, too."""
    topic = kafka.topic()
    dead, other = (
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{name}", "log_level": 0})
        for name in ("dead", "other")
    )
    for producer in (dead, other):
        producer.init_transactions(30)
    for producer, value in ((other, b"first"), (dead, b"never"), (other, b"second")):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(30) == 0
        if producer is other:
            other.commit_transaction(30)

    def end():
        time.sleep(2)
        dead.abort_transaction(30)

    ending = threading.Thread(target=end)
    ending.start()
    assert [message.value() for message in topics.read(kafka.bootstrap, topic)] == [b"first", b"second"]
    ending.join()
    everything = topics.read(kafka.bootstrap, topic, "read_uncommitted")
    assert [message.value() for message in everything] == [b"first", b"never", b"second"]
