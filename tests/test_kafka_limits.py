"""What is too much or out of reach for a moment: full queues, messages that are too large to be written, a schema
registry that does not answer."""

import io
import json
import threading
import time
from contextlib import contextmanager

import fastavro
from confluent_kafka.admin import AdminClient

from latecomer.connectors.kafka import loop
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.operation.watch import NullWatch
from tests.kafka_pipelines import Scenario, header
from tests.kafka_registry import Registry


class Seen(NullWatch):
    """Keeps the most that was ever paused."""

    paused = 0

    @property
    def due(self):
        return True

    def show(self, figures, runtimes):
        self.paused = max(self.paused, figures.paused)


@contextmanager
def running(pipeline):
    """The loop in a thread; stopped and waited for in the end, and its error raised."""
    watch, failed = Seen(), []

    def work():
        try:
            loop.run(pipeline, watch)
        except BaseException as problem:
            failed.append(problem)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join(60)
    assert not thread.is_alive() and not failed


def changed(scenario, **replaced):
    """The scenario's pipeline with other text in its file."""
    text = scenario.file.read_text()
    for old, new in replaced.values():
        assert old in text
        text = text.replace(old, new)
    return loads(text)


def test_a_full_queue_pauses_the_partitions(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=2)
    more = '"transaction.timeout.ms" = 2000\n"queue.buffering.max.messages" = 5\n"linger.ms" = 20'
    given = changed(scenario, queue=('"transaction.timeout.ms" = 2000', more))
    scenario.send(1500, keys=5)
    scenario.finish()
    with running(given) as watch:
        scenario.drain()
    assert watch.paused == 2
    assert scenario.check()["insert"] > 300


def test_what_is_too_large_to_be_written_is_cut_short(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=1)
    more = '"transaction.timeout.ms" = 2000\n"message.max.bytes" = 1000'
    given = changed(scenario, size=('"transaction.timeout.ms" = 2000', more))
    for number, key in enumerate(("k" * 900, "short")):
        for n, kind in enumerate("AC"):
            event = {"id": f"{kind}{number}", "kind": kind, "at": scenario.now + n, "k": key, "x": 0.0}
            scenario.send_to(0, event)
    with running(given):
        scenario.drain()
    changes = [json.loads(m.value()) for m in scenario.read(scenario.changes)]
    assert [c["events"] for c in changes] == [["A1", "C1"]]
    letters = scenario.read(scenario.dead)
    assert {header(m, "topic") for m in letters} == {scenario.changes, scenario.matches}
    assert all(header(m, "reason") == "output_too_large" and b"C0" in m.value() for m in letters)


def test_a_registry_that_is_away_for_a_while(kafka, tmp_path):
    """Messages wait for it; none becomes a dead letter."""
    kinds = {"id": "string", "kind": "string", "at": "long", "k": "string", "x": "double"}
    schema = {"type": "record", "name": "E", "fields": [{"name": n, "type": t} for n, t in kinds.items()]}
    with Registry().running() as registry:
        number = registry.register("in-value", {"schema": json.dumps(schema)})
        scenario = Scenario(kafka, tmp_path, partitions=1)
        given = changed(
            scenario,
            format=('format = "json"', 'format = "avro"'),
            registry=("[columns]", f'[schema_registry]\nurl = "{registry.url}"\n"max.retries" = 0\n[columns]'),
        )
        for n, kind in enumerate("AC"):
            out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
            out.seek(5)
            event = {"id": kind, "kind": kind, "at": scenario.now + n, "k": "k", "x": 0.0}
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), event)
            scenario.producer.produce(scenario.inputs[0], out.getvalue(), b"k", 0)
            scenario.sent.append((scenario.inputs[0], 0, event, None))
        scenario.flush()
        registry.down = True
        with running(given):
            until = time.monotonic() + 30
            while len(registry.asked) < 2:
                assert time.monotonic() < until
                time.sleep(0.05)
            assert scenario.committed()[0] == 0
            registry.down = False
            scenario.drain()
        assert scenario.check()["insert"] == 1


def test_an_output_topic_that_goes_is_named_and_waited_for(kafka, tmp_path, caplog):
    scenario = Scenario(kafka, tmp_path, partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with running(scenario.pipeline):
        scenario.send(100, poison=0)
        scenario.drain()
        admin.delete_topics([scenario.dead])[scenario.dead].result(30)
        scenario.send(50, poison=0.5)
        until = time.monotonic() + 60
        while not any(getattr(r, "fields", {}).get("missing_topics") == [scenario.dead] for r in caplog.records):
            assert time.monotonic() < until, caplog.text[-3000:]
            time.sleep(0.1)
        kafka.topic(2, scenario.dead)
        scenario.drain()
    assert scenario.check()["insert"] > 0
