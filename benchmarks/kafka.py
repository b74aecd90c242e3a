"""``python -m benchmarks.kafka``: pipelines from topic to topic, on a broker of its own.

*Speed*: the same messages are read by bare confluent-kafka with decoding (into dicts; into structs, the quickest way to
decode; into Arrow columns, as the pipeline does) and by the pipeline, exactly once, with a query that few events match.
The figure is the pipeline's rate over that of the bare programs in the same run; its answer is compared with that of a
runtime that was given the same events. It is measured from when it has its partition: joining takes seconds.

*Latency*: events are offered at a steady rate, each with the moment at which it was *meant* to be sent as its time, so
a sender that falls behind cannot hide a delay. What is measured is from then until a reader has the change that the
event caused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
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


def pipeline(broker: Broker, topic: str, **more: Any) -> Pipeline:
    """A pipeline over ``topic`` with output topics and a state of its own."""
    facts = {
        "guarantee": "exactly-once",
        "transaction": "100 ms",
        "price": 297,
        "window": "5 s",
        "interval": "1 s",
        **more,
    }
    changes, late, dead = broker.topic(), broker.topic(), broker.topic()
    state = tempfile.mkdtemp(dir=broker.folder)
    text = PIPELINE.format(
        name=f"bench-{changes}", brokers=broker.bootstrap, topic=topic, changes=changes, late=late, dead=dead,
        state=state, **facts,
    )  # fmt: skip
    return loads(text)


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
    report = harness.Report("kafka", {"events": count, "repeats": repeats, "seed": 1})
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


# --- latency ---------------------------------------------------------------------------------------------------------


def offer(brokers: str, topic: str, rate: int, seconds: float, begin: float) -> None:
    """Send ``rate`` events a second; one in fifty completes a match. Each says when it was meant to be sent."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000})
    step, rng = 0.001, random.Random(2)
    sent, total, each = 0, int(rate * seconds), max(int(rate * step), 1)
    while sent < total:
        ahead = begin + sent / rate - time.time()
        if ahead > 0:
            time.sleep(ahead)
        messages = []
        for number in range(sent, min(sent + each, total)):
            meant = int((begin + number / rate) * 1e6)
            tag = number // 50
            kind = {0: "Shelf", 49: "Exit"}.get(number % 50, "Counter")
            if kind == "Counter":
                tag = 1_000_000_000 + rng.randrange(10_000)
            text = f'{{"id":"e{number}","kind":"{kind}","tag":"t{tag}","ts":{meant},"price":1.0,"till":"main"}}'
            messages.append({"value": text, "key": f"t{tag}"})
        sent += producer.produce_batch(topic, messages)
        producer.poll(0)
    producer.flush(30)


_MEMBER = (
    "import signal, sys\n"
    "from latecomer.connectors.kafka.config import load\n"
    "from latecomer.connectors.kafka.loop import run\n"
    "from latecomer.connectors.kafka.operation.watch import Watch\n"
    "watch = Watch()\n"
    "signal.signal(signal.SIGTERM, lambda *_: watch.stop())\n"
    "run(load(sys.argv[1]), watch)\n"
)


def latency(guarantee: str, rate: int, seconds: float) -> np.ndarray[Any, Any]:
    """Milliseconds from when an event was meant to be sent until its change was read; the first two seconds apart."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker", cache=CACHE) as broker:
        topic = broker.topic()
        # Who wants short delays writes versions seldom: a restart then reads more of the input once more.
        transaction = "20 ms" if guarantee == "exactly-once" else "200 ms"
        given = {"guarantee": guarantee, "transaction": transaction, "interval": "10 s"}
        facts = pipeline(broker, topic, price=0, window="1 s", **given)
        assert facts.output.changes is not None
        text = PIPELINE.format(
            name=facts.name, brokers=broker.bootstrap, topic=topic, changes=facts.output.changes.topic, price=0,
            late=facts.output.late.topic, dead=facts.output.dead_letters, state=tempfile.mkdtemp(dir=folder),
            window="1 s", **given,
        )  # fmt: skip
        file = Path(folder) / "pipeline.toml"
        file.write_text(text)
        member = subprocess.Popen([sys.executable, "-c", _MEMBER, str(file)])
        begin = time.time() + 6  # until then the member has joined
        arguments = (broker.bootstrap, topic, rate, seconds, begin)
        sender = multiprocessing.get_context("spawn").Process(target=offer, args=arguments, daemon=True)
        config = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "fetch.wait.max.ms": 10}
        consumer = Consumer({**config, "isolation.level": "read_committed", "fetch.queue.backoff.ms": 1})
        found: list[tuple[float, float]] = []
        try:
            sender.start()
            consumer.assign([TopicPartition(facts.output.changes.topic, 0, 0)])
            while time.time() < begin + seconds + 3 and member.poll() is None:
                first = consumer.consume(1, 0.1)
                messages = [*first, *consumer.consume(1000, 0)] if first else []
                now = time.time()
                good = [message for message in messages if message.error() is None]
                found += [(json.loads(message.value() or b"")["last_ts"] / 1e6, now) for message in good]
        finally:
            consumer.close()
            member.send_signal(signal.SIGTERM)
            member.wait(60)
            sender.join(10)
            if sender.is_alive():
                sender.kill()
    expected = int(rate * seconds) // 50
    if len(found) != expected and guarantee == "exactly-once":
        raise harness.Disqualified(f"{len(found)} changes instead of {expected}")
    return np.array([(read - meant) * 1e3 for meant, read in found if meant >= begin + 2])


def histogram(values: np.ndarray[Any, Any]) -> str:
    """Counts by powers of the square root of two, as bars."""
    edges = [0.0, *(2.0 ** (n / 2) for n in range(24))]
    counts, _ = np.histogram(values, [*edges, np.inf])
    most = max(int(counts.max()), 1)
    rows = [
        f"  {low:8.1f} ms  {count:8,}  {'#' * round(50 * count / most)}"
        for low, count in zip(edges, counts.tolist(), strict=True)
        if count
    ]
    return "\n".join(rows)


def run_latency(rate: int, seconds: float) -> harness.Report:
    """Measure both guarantees and print the histograms."""
    report = harness.Report("kafka-latency", {"rate": rate, "seconds": seconds})
    for guarantee in ("at-least-once", "exactly-once"):
        values = latency(guarantee, rate, seconds)
        quantiles = {f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99, 99.9)}
        report.rows.append({"guarantee": guarantee, "changes": len(values), **quantiles})
        shown = ", ".join(f"{name} {value:.1f} ms" for name, value in quantiles.items())
        print(f"\n{guarantee}, {rate:,} events/s offered: {shown} ({len(values):,} changes)\n{histogram(values)}")
    return report


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 when an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description="Measure pipelines on Kafka.")
    parser.add_argument("parts", nargs="*", default=["speed", "latency"], help="speed, latency (default: both)")
    parser.add_argument("--events", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", type=int, default=50_000, help="events per second offered")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    about = harness.machine()
    print(f"{about['cpu']}, {about['cores']} cores, load {about['load'][0]:.1f}")
    try:
        if "speed" in options.parts:
            print(f"results: {run(options.repeats, count=options.events).save()}")
        if "latency" in options.parts:
            print(f"results: {run_latency(options.rate, options.seconds).save()}")
    except harness.Disqualified as problem:
        print(f"DISQUALIFIED: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
