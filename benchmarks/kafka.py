"""How fast a pipeline is from topic to topic, on a broker of its own, against programs that only read.

The same messages are read by bare confluent-kafka with decoding (into dicts; into structs, the quickest way to
decode; into Arrow columns, as the pipeline does) and by the pipeline, exactly once, with a query that few events match.
The figure is the pipeline's rate over that of the bare programs in the same run; its answer is compared with that of a
runtime that was given the same events. It is measured from when it has its partition: joining takes seconds.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

import latecomer as lc
from benchmarks import harness
from latecomer.connectors.kafka import loop
from latecomer.connectors.kafka.config import Pipeline, loads
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.operation.watch import Figures, NullWatch
from latecomer.connectors.kafka.places import Origins
from latecomer.testing.kafka import Broker

CACHE = Path(__file__).parent.parent / ".cache" / "kafka"
PIPELINE = """
name = "{name}"
guarantee = "{guarantee}"
transaction = "{transaction}"
[kafka]
brokers = "{brokers}"
[stream]
unit = "us"
[columns]
tag = "text"
price = "float"
[[input]]
topic = "{topic}"
format = "json"
type = "kind"
id = "id"
key = ["tag"]
[[query]]
name = "theft"
text = "PATTERN SEQ(Shelf s, !Counter c, Exit e) WHERE [tag] AND e.price > {price} WITHIN {window} RETURN e.tag AS tag"
level = "aggressive(max_delay = 1 s)"
[output]
changes = "{changes}"
late = "{late}"
dead_letters = "{dead}"
[state]
uri = "{state}"
interval = "{interval}"
"""


def pipeline_text(broker: Broker, topic: str, changes: str, **facts: Any) -> str:
    """The file of a pipeline from ``topic`` to ``changes``, with other output topics and a state of its own."""
    usual = {"guarantee": "exactly-once", "transaction": "100 ms", "price": 297, "window": "5 s", "interval": "1 s"}
    return PIPELINE.format(
        name=f"bench-{changes}", brokers=broker.bootstrap, topic=topic, changes=changes, late=broker.topic(),
        dead=broker.topic(), state=tempfile.mkdtemp(dir=broker.folder), **usual | facts,
    )  # fmt: skip


def pipeline(broker: Broker, topic: str, **facts: Any) -> Pipeline:
    """A pipeline over ``topic`` with output topics and a state of its own."""
    return loads(pipeline_text(broker, topic, broker.topic(), **facts))


def events(count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Events of 20,000 tags in the order of their times, one per 10 µs, every tenth up to 0.9 s late."""
    kinds = ["Shelf", "Counter", "Counter", "Exit"]
    return [
        {
            "id": f"e{n:09d}", "kind": rng.choice(kinds), "tag": f"tag{rng.randrange(20_000):05d}",
            "ts": n * 10 - (rng.randrange(900_000) if rng.random() < 0.1 else 0), "price": round(rng.random() * 300, 2),
            "till": rng.choice(["main", "training"]),
        }
        for n in range(count)
    ]  # fmt: skip


def send(broker: Broker, topic: str, rows: list[dict[str, Any]]) -> None:
    """Write all events to partition 0."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for row in rows:
        while True:
            try:
                producer.produce(topic, msgspec.json.encode(row), row["tag"].encode(), 0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("the broker did not take all events within two minutes")


def read_bare(broker: Broker, topic: str, count: int, decode: Callable[[list[Any]], object], size: int) -> None:
    """Read ``count`` messages, as a program does that only decodes them."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "bare", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        done, until = 0, time.monotonic() + 600
        while done < count and time.monotonic() < until:
            messages = consumer.consume(size, 1)
            decode(messages)
            done += len(messages)
    finally:
        consumer.close()


class _UntilDone(NullWatch):
    """Stops the loop when so many messages are through."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count, self._every = count, 0.02
        self.began: tuple[float, float] | None = None
        self.took = (0.0, 0.0)

    def ready(self, ready: bool) -> None:
        super().ready(ready)
        if ready and self.began is None:
            self.began = time.perf_counter(), time.process_time()

    def show(self, figures: Figures, runtimes: Any) -> None:
        super().show(figures, runtimes)
        if figures.consumed >= self._count and not figures.in_flight:
            assert self.began is not None
            self.took = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
            self.stop()


def read_changes(broker: Broker, given: Pipeline) -> set[tuple[str, ...]]:
    """The matches that hold by the log of changes."""
    assert given.output.changes is not None
    topic = given.output.changes.topic
    config = {"bootstrap.servers": broker.bootstrap, "group.id": "check", "enable.partition.eof": True}
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    held: set[tuple[str, ...]] = set()
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            change = json.loads(message.value() or b"")
            (held.add if change["op"] == "insert" else held.discard)(tuple(change["events"]))
        return held
    finally:
        consumer.close()


def run(repeats: int, *, quick: bool = False, count: int | None = None) -> harness.Report:
    """Measure the speed; raises Disqualified when the pipeline's matches are not those of a runtime."""
    count = count or (50_000 if quick else 500_000)
    rows = events(count, random.Random(1))
    report = harness.Report("kafka-speed", {"events": count, "repeats": repeats, "seed": 1})
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker", cache=CACHE) as broker:
        topic = broker.topic()
        send(broker, topic, rows)
        given = pipeline(broker, topic)
        fields = [("id", str), ("kind", str), ("tag", str), ("ts", int), ("price", float)]
        struct = msgspec.json.Decoder(msgspec.defstruct("Event", fields)).decode
        dicts, columns = msgspec.json.Decoder().decode, Decoder(given.inputs[0], given)
        made: list[Pipeline] = []
        spans: list[tuple[float, float]] = []

        def bare(decode: Callable[[list[Any]], object], size: int = 1000) -> Callable[[], None]:
            return lambda: read_bare(broker, topic, count, decode, size)

        def whole() -> None:
            made.append(pipeline(broker, topic))
            watch = _UntilDone(count)
            loop.run(made[-1], watch)
            spans.append(watch.took)

        programs = {
            "consume only": bare(lambda messages: None),
            "consume, json.loads": bare(lambda messages: [json.loads(m.value()) for m in messages]),
            "consume, msgspec into dicts": bare(lambda messages: [dicts(m.value()) for m in messages]),
            "consume, msgspec into structs": bare(lambda messages: [struct(m.value()) for m in messages]),
            "consume, Arrow columns": bare(lambda messages: columns.decode(messages, Origins(topic)), 10_000),
            "pipeline, exactly once": whole,
        }
        timings = harness.take_turns(programs, repeats)
        out = lc.Runtime(given.stream, given.queries).process(
            [{"type": r["kind"], **{k: r[k] for k in ("ts", "id", "tag", "price")}} for r in rows]
        )
        wanted: set[tuple[str, ...]] = set()
        for change in out.changes.select(["op", "events"]).to_pylist():
            (wanted.add if change["op"] == "insert" else wanted.discard)(tuple(change["events"]))
        for one in made:
            if read_changes(broker, one) != wanted:
                raise harness.Disqualified("the pipeline's matches are not those of a runtime")
    own = harness.Timing([wall for wall, _ in spans[1:]], [cpu for _, cpu in spans[1:]])  # the first is the warm-up
    timings["pipeline, exactly once"] = own
    lines = []
    for name, timing in timings.items():
        row = {"program": name, "rate": count / timing.best, "rate_cpu": count / timing.best_cpu, **timing.as_dict()}
        row["pipeline_is"] = timing.best / own.best
        row["pipeline_is_cpu"] = timing.best_cpu / own.best_cpu
        report.rows.append(row)
        rates = [f"{row['rate']:,.0f}", f"{row['rate_cpu']:,.0f}"]
        lines.append([name, *rates, f"{row['pipeline_is']:.2f}", f"{row['pipeline_is_cpu']:.2f}"])
    print(f"\nKafka to Kafka, {count:,} messages, {len(wanted):,} matches, best of {repeats}")
    print(harness.table(["", "messages/s", "per CPU second", "pipeline is", "by CPU"], lines))
    return report
