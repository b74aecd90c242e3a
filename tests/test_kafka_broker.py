"""The broker of the test kit: data outlives its process, and it does not outlive ours."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latecomer.errors import ConfigError
from latecomer.testing import jars
from latecomer.testing.kafka import Broker, BrokerError
from tests.kafka_fixture import CACHE

pytestmark = pytest.mark.kafka


def _produce(bootstrap, topic, values):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def _consume(bootstrap, topic, count):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "look", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, until = [], time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += [m.value() for m in consumer.consume(100, 0.2) if m.error() is None]
    consumer.close()
    return found


def test_data_outlives_a_kill_and_a_stop(own_kafka):
    topic, address = own_kafka.topic(), own_kafka.bootstrap
    _produce(address, topic, [b"1"])
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.start()
    _produce(address, topic, [b"2"])
    own_kafka.stop()
    own_kafka.start()
    assert own_kafka.bootstrap == address
    assert _consume(address, topic, 2) == [b"1", b"2"]


def test_the_broker_dies_with_the_process_that_started_it(tmp_path):
    script = (
        "import sys, time\n"
        "from latecomer.testing.kafka import Broker\n"
        f"broker = Broker({str(tmp_path / 'kafka')!r}, cache={str(CACHE)!r})\n"
        "broker.start()\n"
        "print(broker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_what_a_broker_says_is_told_when_it_does_not_start(tmp_path):
    broker = Broker(tmp_path / "kafka", cache=CACHE, settings={"log.retention.hours": "soon"})
    with pytest.raises(BrokerError, match=r"log\.retention\.hours"):
        broker.start()
    assert not broker.running


def test_calls_out_of_order_say_what_to_do(tmp_path):
    broker = Broker(tmp_path, cache=CACHE)
    for call in (lambda: broker.bootstrap, lambda: broker.pid):
        with pytest.raises(ConfigError, match=r"start\(\)"):
            call()
    broker.stop()  # nothing to stop


def test_two_processes_fetch_once(tmp_path):
    """The second one waits at the lock and then finds all there."""
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from latecomer.testing import jars\n"
        "def slow(coordinates, folder):\n"
        "    time.sleep(0.5)\n"
        "    (folder / 'x-1.jar').touch()\n"
        "    Path(sys.argv[1], f'fetched-{time.monotonic_ns()}').touch()\n"
        "jars._fetch = slow\n"
        "print(jars.fetch(['g:x:1'], sys.argv[1]))\n"
    )
    each = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate(timeout=60)[0].strip() for process in each}
    assert [process.returncode for process in each] == [0, 0]
    assert len(list(tmp_path.glob("fetched-*"))) == 1
    assert {path.name for path in Path(folders.pop()).iterdir()} == {"x-1.jar", ".complete"}
    assert not folders


def test_what_cannot_be_fetched_is_named_and_leaves_no_complete_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"org\.nowhere:nothing:1"):
        jars.fetch(["org.nowhere:nothing:1"], tmp_path)
    assert not list(tmp_path.glob("*/.complete"))
