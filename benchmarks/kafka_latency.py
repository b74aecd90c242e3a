"""How long it takes from a message to the change that it causes, for a reader of another topic, at a steady rate.

Rule: every event has an *intended* time of sending, which does not move when the sender falls behind, and which is its
event time. Latency counts from there until a reader has the change in hand. So what the sender, the broker, the
pipeline and the reader cost is all in it, pauses are charged to all events that they delay, and a change that does not
come disqualifies the run.

Everything shares one machine: broker, sender, pipeline and reader. What each takes of the processors is told with the
figures. The first seconds, in which the broker's Java compiles itself, are sent and not measured.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness import Disqualified, Report, table
from benchmarks.kafka import CACHE, pipeline_text
from latecomer.testing.kafka import Broker

RATE = 50_000
#: Seconds that are sent before and while it is measured.
WARM, SECONDS = 10.0, 30.0
#: Seconds that the pipeline has to join its group, that the sender has to start, and until the last change must have
#: come.
JOIN, START, REST = 60.0, 4.0, 15.0
#: One event in so many completes a match.
SPARSE = 50
#: Milliseconds that are wanted for 99 of 100 changes.
GOALS = {"at-least-once": 10.0, "exactly-once": 50.0}
#: What the pipelines are told for short delays. Versions are written seldom; a restart then reads more of the input.
SETTINGS = {
    "at-least-once": {"transaction": "500 ms", "interval": "10 s"},
    "exactly-once": {"transaction": "20 ms", "interval": "10 s"},
}
_MEMBER = (
    "import ctypes, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "from latecomer.connectors.kafka.config import load\n"
    "from latecomer.connectors.kafka.loop import run\n"
    "from latecomer.connectors.kafka.operation.watch import Watch\n"
    "class Told(Watch):\n"
    "    def ready(self, ready):\n"
    "        super().ready(ready)\n"
    "        if ready:\n"
    "            print('ready', flush=True)\n"
    "watch = Told()\n"
    "signal.signal(signal.SIGTERM, lambda *_: watch.stop())\n"
    "run(load(sys.argv[1]), watch)\n"
)


def offer(brokers: str, topic: str, rate: int, seconds: float, begin: float) -> None:
    """Send ``rate`` events a second, each at its time; one in fifty completes a match."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1, "queue.buffering.max.messages": 1_000_000})
    chance = random.Random(2).random
    others = [f"t{1_000_000_000 + number}" for number in range(10_000)]
    sent, total, each = 0, int(rate * seconds), max(rate // 1000, 1)
    while sent < total:
        ahead = begin + (sent + each) / rate - time.time()
        if ahead > 0:
            time.sleep(ahead)
        messages = []
        for number in range(sent, min(sent + each, total)):
            meant = int((begin + number / rate) * 1e6)
            kind = {0: "Shelf", SPARSE - 1: "Exit"}.get(number % SPARSE, "Counter")
            tag = others[int(chance() * 10_000)] if kind == "Counter" else f"t{number // SPARSE}"
            text = f'{{"id":"e{number}","kind":"{kind}","tag":"{tag}","ts":{meant},"price":1.0,"till":"main"}}'
            messages.append({"value": text, "key": tag})
        sent += producer.produce_batch(topic, messages)
        producer.poll(0)
    producer.flush(30)


def _wait_until_ready(member: subprocess.Popen[bytes]) -> None:
    """Wait until the pipeline has its partition. Raises Disqualified when it has not within its time."""
    assert member.stdout is not None
    if not select.select([member.stdout], [], [], JOIN)[0] or not member.stdout.readline():
        member.kill()
        raise Disqualified(f"the pipeline did not join its group within {JOIN:g} s")


def _busy(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of processor time that each process has had."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = {name: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for name, pid in pids.items()}
    return {name: (int(fields[11]) + int(fields[12])) / ticks for name, fields in stats.items()}


def measure(
    guarantee: str, rate: int = RATE, warm: float = WARM, seconds: float = SECONDS
) -> tuple[np.ndarray[Any, Any], dict[str, float]]:
    """Milliseconds of each change, and the processors that each process took meanwhile. Raises Disqualified when
    changes are missing, or come twice though they must not."""
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker", cache=CACHE) as broker:
        topic, changes = broker.topic(), broker.topic()
        facts = {"guarantee": guarantee, "price": 0, "window": "1 s", **SETTINGS[guarantee]}
        file = Path(folder) / "pipeline.toml"
        file.write_text(pipeline_text(broker, topic, changes, **facts))
        member = subprocess.Popen([sys.executable, "-c", _MEMBER, str(file)], stdout=subprocess.PIPE)
        _wait_until_ready(member)
        begin = time.time() + START
        arguments = (broker.bootstrap, topic, rate, warm + seconds, begin)
        sender = multiprocessing.get_context("spawn").Process(target=offer, args=arguments, daemon=True)
        sender.start()
        assert sender.pid is not None
        pids = {"broker": broker.pid, "sender": sender.pid, "pipeline": member.pid, "reader": os.getpid()}
        expected = int(rate * (warm + seconds)) // SPARSE
        marks = [begin + warm, begin + warm + seconds - 0.5]
        looks: list[dict[str, float]] = []
        raw: list[tuple[float, bytes]] = []
        config = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        consumer = Consumer({**config, "fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 1})
        try:
            consumer.assign([TopicPartition(changes, 0, 0)])
            while len(raw) < expected and time.time() < begin + warm + seconds + REST and member.poll() is None:
                first = consumer.consume(1, 0.1)
                messages = [*first, *consumer.consume(1000, 0)] if first else []
                now = time.time()
                raw += [(now, message.value() or b"") for message in messages if message.error() is None]
                if len(looks) < len(marks) and now >= marks[len(looks)]:
                    looks.append(_busy(pids))
        finally:
            consumer.close()
            member.send_signal(signal.SIGTERM)
            member.wait(60)
            sender.join(10)
            if sender.is_alive():
                sender.kill()
    found = [(now, json.loads(value)) for now, value in raw]
    told = {change["match_id"] for _, change in found}
    if len(told) != expected or (guarantee == "exactly-once" and len(found) != expected):
        raise Disqualified(f"{guarantee}: {len(found)} changes of {len(told)} matches instead of {expected}")
    if len(looks) < len(marks):
        raise Disqualified(f"{guarantee}: the run was too short to see what it took")
    shares = {name: (looks[1][name] - looks[0][name]) / (marks[1] - marks[0]) for name in pids}
    delays = [(now - change["last_ts"] / 1e6) * 1e3 for now, change in found if change["last_ts"] / 1e6 >= marks[0]]
    return np.array(delays), shares


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


def run(
    repeats: int = 1, *, quick: bool = False, say: Callable[[str], None] = print, rate: int | None = None
) -> Report:
    """Measure both guarantees and show the histograms. ``repeats`` is of no use: one run has enough changes."""
    rate = rate or (5_000 if quick else RATE)
    warm, seconds = (2.0, 4.0) if quick else (WARM, SECONDS)
    report = Report("kafka-latency", {"rate": rate, "seconds": seconds, "settings": SETTINGS, "quick": quick})
    for guarantee, goal in GOALS.items():
        values, shares = measure(guarantee, rate, warm, seconds)
        quantiles = {f"p{q:g}": float(np.percentile(values, q)) for q in (50, 90, 99, 99.9)}
        within = float((values <= goal).mean())
        edges = [0.0, *(2.0 ** (n / 2) for n in range(24)), float("inf")]
        counts = np.histogram(values, edges)[0].tolist()
        report.rows.append(
            {"guarantee": guarantee, "changes": len(values), **quantiles, "goal_ms": goal, "within_goal": within,
             "processors": shares, "histogram": [[low, count] for low, count in zip(edges, counts, strict=False)]}
        )  # fmt: skip
        say(f"\n{guarantee}, {rate:,} events/s offered, {len(values):,} changes, wanted p99 ≤ {goal:g} ms")
        say(table(["ms", *quantiles], [["", *(f"{value:.1f}" for value in quantiles.values())]]))
        say(histogram(values))
        say("processors: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
    return report
