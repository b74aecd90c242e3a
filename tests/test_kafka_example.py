"""The example as its README has it: a month of flights through Kafka gives what the embedded runtime gives."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import latecomer as lc
from latecomer.connectors.kafka.config import load
from latecomer.demo import flights
from tests import topics

pytestmark = pytest.mark.kafka
FOLDER = Path(__file__).parent.parent / "examples" / "kafka"


def _module(name):
    spec = importlib.util.spec_from_file_location(f"kafka_example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


broker, matches, producer = (_module(name) for name in ("broker", "matches", "producer"))


def _log(kafka, topic):
    """All that was committed, by partition in order."""
    return [json.loads(message.value()) for message in topics.read(kafka.bootstrap, topic)]


def _wait_until_committed(brokers, process, *, all_of_it):
    """Until the group has committed something, or the end of every partition."""
    group = Consumer({"bootstrap.servers": brokers, "group.id": "flights", "enable.auto.commit": False})
    try:
        partitions = [TopicPartition("flights", number) for number in range(4)]
        ends = [group.get_watermark_offsets(partition, 30)[1] for partition in partitions]
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            offsets = [part.offset for part in group.committed(partitions, 30)]
            if offsets == ends or (max(offsets) > 0 and not all_of_it):
                return
            time.sleep(0.1)
        raise AssertionError("the pipeline did not reach the end of its topic")
    finally:
        group.close()


def _embedded(queries):
    """What one runtime says of the same month: matches that hold, by id, and how often one was taken back."""
    runtime = lc.Runtime(flights.STREAM, queries)
    rows = producer.arrivals(1)
    held, deleted = {}, 0
    for start in range(0, rows.num_rows, 500):
        out = runtime.process(rows.slice(start, 500))
        assert out.late.num_rows == 0
        for change in out.changes.to_pylist():
            if change["op"] == "insert":
                assert change["match_id"] not in held
                held[change["match_id"]] = change
            else:
                del held[change["match_id"]]
                deleted += 1
    assert deleted > 0  # the month has corrections, so there is something to get wrong
    return held


def test_a_month_of_flights_gives_what_the_embedded_runtime_gives(kafka, tmp_path, monkeypatch):
    broker.create_topics(kafka)
    for name in ("pipeline.toml", "cascade.query"):
        shutil.copy(FOLDER / name, tmp_path)
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace("port = 9464", "port = 0") + "[limits]\nbatch = 500\n")
    environment = os.environ | {"BROKERS": kafka.bootstrap}
    latecomer = [str(Path(sys.executable).parent / "latecomer")]
    checked = subprocess.run(
        [*latecomer, "check", "pipeline.toml", "--connect", "--json"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {finding["verdict"] for finding in json.loads(checked.stdout)["cluster"]} == {"ok"}
    sent = subprocess.run(
        [sys.executable, str(FOLDER / "producer.py"), "--brokers", kafka.bootstrap, "--months", "1",
         "--hours-per-second", "0"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    for last in (False, True):  # it is stopped in the middle, as soon as something is committed, and goes on
        with subprocess.Popen(
            [*latecomer, "run", "pipeline.toml"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                _wait_until_committed(kafka.bootstrap, process, all_of_it=last)
                process.send_signal(signal.SIGTERM)
                log = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
            finally:
                process.kill()
        assert process.returncode == 0, log
        assert {"stopping", "stopped"} <= {entry["message"] for entry in log}
        # What librdkafka says of connections passes by itself.
        assert [e for e in log if e["level"] in ("error", "critical") and e["logger"] != "latecomer.kafka.client"] == []

    monkeypatch.setenv("BROKERS", kafka.bootstrap)
    expected = _embedded(load(file).queries)
    assert {match["query"] for match in expected.values()} == {"cascade", "recovery"}
    assert sent.stdout.split()[0].replace(",", "").isdigit()
    now = matches.current(kafka.bootstrap, "flights-matches")
    assert {key: match["events"] for key, match in now.items()} == {key: m["events"] for key, m in expected.items()}
    some = next(key for key, match in now.items() if match["query"] == "cascade")
    for name in ("carrier", "origin", "first", "last", "delay"):
        assert now[some][name] == expected[some][name]

    held = set()
    for change in _log(kafka, "flights-changes"):
        if change["op"] == "insert":
            assert change["match_id"] not in held
            held.add(change["match_id"])
        else:
            held.remove(change["match_id"])
    assert held == expected.keys()
    assert _log(kafka, "flights-late") == _log(kafka, "flights-dead") == []
