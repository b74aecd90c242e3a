"""Kafka pipelines under test: a scenario of events with everything that can be wrong with them, the members that run
it as processes of their own, and the verdict of the oracle on what a reader of committed messages finds."""

import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from zlib import crc32

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import latecomer as lc
from latecomer.connectors.kafka.config import loads
from tests import oracle, topics

ROOT = Path(__file__).parent.parent
MINUTE = 60_000
DAY = 1440 * MINUTE

QUERY = "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND c.x >= a.x WITHIN 10 minutes RETURN a.k AS k, c.x - a.x AS more"

PIPELINE = """
name = "{name}"
guarantee = "{guarantee}"
transaction = "20 ms"
{top}
[kafka]
brokers = "{brokers}"
{secure}
"reconnect.backoff.max.ms" = 200
[kafka.consumer]
"session.timeout.ms" = 1000
"heartbeat.interval.ms" = 200
[kafka.producer]
"transaction.timeout.ms" = 2000
[columns]
k = "text"
x = "float"
[[input]]
topic = [{topics}]
format = "json"
type = "kind"
time = "at"
id = "id"
{input}
[[query]]
name = "{query}"
text = "{text}"
level = "{level}"
[output]
changes = "{changes}"
matches = "{matches}"
late = "{late}"
dead_letters = "{dead}"
[state]
uri = "{state}"
interval = "100 ms"
[limits]
batch = 100
max_message = 2000
{more}
"""


@dataclass
class Scenario:
    """Topics, the pipeline's file, and what has been sent so far."""

    kafka: object
    folder: Path
    partitions: int = 4
    topics: int = 1
    level: str = "aggressive(max_delay = 3 days)"
    text: str = QUERY
    guarantee: str = "exactly-once"
    key: str = 'key = ["k"]'
    input: str = ""
    top: str = ""
    more: str = ""
    seed: int = 0
    brokers: str = ""  # the pipeline's address of them, if not the one at which everything is allowed
    secure: str = ""
    scatter: bool = False  # messages go anywhere, whatever their key
    sent: list = field(default_factory=list)  # (topic, partition, event or None for poison, reason)

    def __post_init__(self):
        self.name = f"p{uuid.uuid4().hex[:8]}"
        self.inputs = [self.kafka.topic(partitions=self.partitions) for _ in range(self.topics)]
        self.changes, self.late, self.dead = (self.kafka.topic(partitions=2) for _ in range(3))
        self.matches = self.kafka.topic(partitions=2, **{"cleanup.policy": "compact"})
        self.rng = random.Random(self.seed)
        self.now = 20 * DAY
        self.file = self.folder / f"{self.name}.toml"
        self.file.write_text(
            PIPELINE.format(
                name=self.name, guarantee=self.guarantee, top=self.top, secure=self.secure,
                brokers=self.brokers or self.kafka.bootstrap,
                topics=", ".join(f'"{t}"' for t in self.inputs), input=f"{self.key}\n{self.input}", query="q",
                text=self.text, level=self.level, changes=self.changes, matches=self.matches, late=self.late,
                dead=self.dead, state=self.folder / f"{self.name}-state", more=self.more,
            )
        )  # fmt: skip
        self.pipeline = loads(self.file.read_text())
        self.producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 1, "log_level": 0})

    # --- events ------------------------------------------------------------------------------------------------------

    def send(self, count, keys=40, poison=0.01, disorder=3 * DAY, beyond=0.0):
        """Send so many messages: events that are late by up to ``disorder``, some beyond, some twice, some poison."""
        for _ in range(count):
            self.now += self.rng.randrange(2000)
            key = f"k{self.rng.randrange(keys)}"
            late = self.rng.random() < 0.2
            delay = int(disorder * self.rng.random() ** 4 * 0.99) if late else 0
            if self.rng.random() < beyond:
                delay = disorder + 10 * MINUTE + self.rng.randrange(DAY)
            number = len(self.sent)
            event = {
                "id": f"e{number}", "kind": self.rng.choice("AABCC"), "at": self.now - delay, "k": key,
                "x": round(self.rng.random() * 3, 1), "nonsense": {"deep": [1, None]},
            }  # fmt: skip
            if self.rng.random() < 0.01 and self.sent and self.sent[-1][2] is not None:
                event = self.sent[-1][2]
            reason = None
            value = json.dumps(event).encode()
            if self.rng.random() < poison:
                reason, value = self._spoil(event)
            self._produce(event["k"], value, event if reason is None else None, reason)
        self.flush()

    def finish(self):
        """Events far in the future, one per partition, so that every clock passes all that came before."""
        for topic in self.inputs:
            for partition in range(self.partitions):
                event = {"id": f"end-{topic}-{partition}", "kind": "A", "at": self.now + 30 * DAY, "k": "end", "x": 0.0}
                self.producer.produce(topic, json.dumps(event).encode(), b"end", partition)
                self.sent.append((topic, partition, event, None))
        self.flush()

    def send_to(self, partition, event):
        """Send one event to a partition of the first topic."""
        self.producer.produce(self.inputs[0], json.dumps(event).encode(), event["k"].encode(), partition)
        self.sent.append((self.inputs[0], partition, event, None))
        self.flush()

    def flush(self):
        assert self.producer.flush(60) == 0

    def _produce(self, key, value, event, reason):
        number = crc32(key.encode())
        if self.scatter:
            number = self.rng.randrange(10**6)
        topic, partition = self.inputs[number // 97 % len(self.inputs)], number % self.partitions
        self.producer.produce(topic, value, key.encode(), partition, headers=[("trace", b"\xff\0")])
        self.producer.poll(0)
        self.sent.append((topic, partition, event, (reason, value) if reason else None))

    def _spoil(self, event):
        return self.rng.choice(
            [
                ("unreadable", b'{"id": "e'),
                ("null_payload", None),
                ("bad_timestamp", json.dumps({**event, "at": "soon"}).encode()),
                ("bad_timestamp", json.dumps({**event, "at": None}).encode()),
                ("bad_value", json.dumps({**event, "x": "much"}).encode()),
                ("unknown_type", json.dumps({**event, "kind": 7}).encode()),
                ("oversized", json.dumps({**event, "nonsense": "x" * 3000}).encode()),
            ]
        )

    # --- verdict -----------------------------------------------------------------------------------------------------

    def laid(self):
        """What lies in the topics, as in ``sent``. A broker that died before it had answered may have a message twice,
        and others before it.
        """
        values = [reason[1] if reason else json.dumps(event).encode() for *_, event, reason in self.sent]
        known = {value: what[2:] for value, what in zip(values, self.sent, strict=True)}
        messages = [message for topic in self.inputs for message in self.read(topic)]
        if any(message.value() not in known for message in messages):  # some are in another format
            return self.sent
        lost = Counter(values) - Counter(message.value() for message in messages)
        assert not lost, f"sent, but not there: {lost}"
        return [(m.topic(), m.partition(), *known[m.value()]) for m in messages]

    def expected(self):
        """Matches by the oracle, late ids by embedded runtimes, and dead letters, of what was sent."""
        pipeline, laid = self.pipeline, self.laid()
        query = pipeline.queries[0]
        late, admitted = Counter(), {}
        for partition in range(self.partitions):
            for topic in self.inputs:
                rows = [
                    {"type": e["kind"], "ts": e["at"], "id": e["id"], "k": e["k"], "x": e["x"]}
                    for t, p, e, _ in laid
                    if (t, p) == (topic, partition) and e is not None
                ]
                if not rows:
                    continue
                found = lc.Runtime(pipeline.stream, [query]).process(rows).late.to_pylist()
                late.update(row["late_id"] for row in found)  # of an event that is late twice there are two rows
                once = {}
                for row in rows:
                    once.setdefault(row["id"], row)  # of two copies the first decides
                first = lc.Runtime(pipeline.stream, [query]).process(list(once.values()))
                gone = set(first.late.column("id").to_pylist())
                for row in rows:
                    if row["id"] not in gone:
                        admitted.setdefault(row["k"] if query.plan.key else None, {})[row["id"]] = row
        matches = set()
        for events in admitted.values():
            matches |= matches_of(query.plan, list(events.values()))
        dead = Counter((reason[0], reason[1]) for *_, reason in laid if reason)
        return matches, late, dead

    def check(self, late=True):
        """Nothing missing, nothing twice, for a reader of committed messages."""
        matches, late_ids, dead = self.expected()
        alive, told = {}, Counter()
        for message in self.read(self.changes):
            change = json.loads(message.value())
            assert message.key().decode() == change["match_id"]
            before = alive.get(change["match_id"])
            told[change["op"]] += 1
            if change["op"] == "insert":
                assert before is None, f"inserted twice: {change}, of messages {self._places(change['events'])}"
                alive[change["match_id"]] = tuple(change["events"])
            else:
                assert before is not None, f"deleted, but not there: {change}"
                alive[change["match_id"]] = None
        assert_same({ids for ids in alive.values() if ids}, matches)
        held = {}
        for message in self.read(self.matches):
            held[message.key()] = message.value()
        current = {tuple(json.loads(value)["events"]) for value in held.values() if value is not None}
        assert_same(current, matches)
        if late:
            assert_same(Counter(message.key().decode() for message in self.read(self.late)), late_ids)
        letters = self.read(self.dead)
        assert_same(Counter((header(m, "reason"), m.value()) for m in letters), dead)
        places = [(header(m, "topic"), header(m, "partition"), header(m, "offset")) for m in letters]
        assert len(set(places)) == len(places)
        assert all(("trace", b"\xff\0") in m.headers() for m in letters)
        return told

    def _places(self, ids):
        """Which of the messages that were sent have these ids."""
        return [place for place, sent in enumerate(self.sent) if sent[2] and sent[2]["id"] in ids]

    def check_at_least_once(self):
        """Nothing missing, and what came twice changes nothing for a reader that goes by the keys."""
        matches, late_ids, dead = self.expected()
        for topic in (self.changes, self.matches):
            last = {}
            for message in self.read(topic):
                value = None if message.value() is None else json.loads(message.value())
                gone = value is None or value.get("op") == "delete"
                last[message.key()] = None if gone else tuple(value["events"])
            assert_same({ids for ids in last.values() if ids}, matches)
        assert_same({message.key().decode() for message in self.read(self.late)}, set(late_ids))
        letters = {(header(m, "topic"), header(m, "partition"), header(m, "offset")): m for m in self.read(self.dead)}
        assert Counter((header(m, "reason"), m.value()) for m in letters.values()) == dead

    def read(self, topic, isolation="read_committed"):
        return topics.read(self.kafka.bootstrap, topic, isolation)

    def committed(self):
        """How many messages are behind the group's committed offsets, and how many there are."""
        config = {"bootstrap.servers": self.kafka.bootstrap, "group.id": self.name, "log_level": 0}
        consumer = Consumer(config)
        try:
            parts = [TopicPartition(t, p) for t in self.inputs for p in range(self.partitions)]
            for _ in range(50):  # a broker that has just started does not know yet
                try:
                    done = sum(max(part.offset, 0) for part in consumer.committed(parts, 10))
                    return done, sum(consumer.get_watermark_offsets(part, 10)[1] for part in parts)
                except KafkaException as problem:
                    last = problem
                    time.sleep(0.1)
            raise last
        finally:
            consumer.close()

    def drain_internal(self, topic, partitions, member):
        """Wait until all that was forwarded is committed."""
        config = {"bootstrap.servers": self.kafka.bootstrap, "group.id": self.name, "log_level": 0}
        consumer = Consumer(config)
        try:
            wanted = [max([m.offset() + 1 for m in self.read(topic) if m.partition() == p]) for p in range(partitions)]
            until = time.monotonic() + 60
            parts = [TopicPartition(topic, p) for p in range(partitions)]
            while [part.offset for part in consumer.committed(parts, 10)] != wanted:
                assert member.running and time.monotonic() < until, member.said()
                time.sleep(0.1)
        finally:
            consumer.close()

    def drain(self, seconds=60, members=()):
        """Wait until all that is there is committed; ``seconds`` may pass without any progress."""
        before, until = -1, 0.0
        while True:
            done, there = self.committed()
            if done == there:
                return
            if done > before:
                before, until = done, time.monotonic() + seconds
            for member in members:
                assert member.running, member.said()
            assert time.monotonic() < until, (
                f"{done} of {there} messages are committed after {seconds} s: {[m.said() for m in members]}"
            )
            time.sleep(0.1)


def matches_of(plan, events, stretches=4):
    """The oracle's answer, found in stretches of so many windows, since what the oracle tries grows with the square of
    the events."""
    window = plan.window.units("ms")
    events = sorted(events, key=itemgetter("ts"))
    times = [event["ts"] for event in events]
    at, length = {event["id"]: event["ts"] for event in events}, stretches * window
    found = set()
    for number in {ts // length for ts in times}:
        begin, end = number * length, (number + 1) * length
        # A match looks at events from a window before its first one to a window after it.
        near = events[bisect_left(times, begin - 2 * window) : bisect_right(times, end + 2 * window)]
        found |= {ids for ids in map(tuple, oracle.matches(plan, near, "ms")) if begin <= at[ids[0]] < end}
    return found


def header(message, name):
    return next(value.decode() for key, value in message.headers() if key == f"latecomer.{name}")


def assert_same(found, wanted):
    missing, surplus = sorted(wanted - found)[:5], sorted(found - wanted)[:5]
    assert found == wanted, f"{len(found)} found, {len(wanted)} wanted, missing {missing}, surplus {surplus}"


class Nursery:
    """Starts processes of members; one for all tests."""

    def __init__(self):
        self._process = None

    def __call__(self, *request):
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kafka_member", str(os.getpid())],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


NURSERY = Nursery()


class Forked:
    """A process of the nursery, with what tests need of :class:`subprocess.Popen`."""

    def __init__(self, file, log, die):
        self.pid = NURSERY("start", str(file), str(log), die)
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            self.returncode = NURSERY("ask", self.pid)
        return self.returncode

    def wait(self, seconds=60):
        until = time.monotonic() + seconds
        while self.poll() is None:
            assert time.monotonic() < until, f"the process has not ended within {seconds} s"
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Member:
    """A process that runs the pipeline; it dies with its parent."""

    def __init__(self, scenario, *, die=""):
        self.log = scenario.folder / f"member-{uuid.uuid4().hex[:8]}.log"
        self.log.touch()
        self.process = Forked(scenario.file, self.log, die)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.running:
            self.process.kill()
        self.process.wait()

    @property
    def running(self):
        return self.process.poll() is None

    def said(self):
        return self.log.read_text()[-3000:]

    def wait_for(self, text, seconds=30, times=1):
        """Wait until its log has a line with this text."""
        self._wait(lambda: self.log.read_text().count(text) >= times, f"no {text!r}", seconds)

    def tasks(self):
        """The partitions that are open, by its log."""
        held = set()
        for line in self.log.read_text().splitlines():
            if opened := re.search(r" opened \{'task': '(.+?)'", line):
                held.add(opened[1])
            elif gone := re.search(r" revoked \{'partitions': (\[.*?\])", line):
                held.difference_update(ast.literal_eval(gone[1]))
        return held

    def wait_for_tasks(self, count, seconds=30):
        """Wait until it has so many partitions open."""
        self._wait(lambda: len(self.tasks()) == count, f"not {count} tasks", seconds)

    def _wait(self, done, missing, seconds):
        until = time.monotonic() + seconds
        while not done():
            assert self.running, self.said()
            assert time.monotonic() < until, f"{missing} within {seconds} s: {self.said()}"
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ask it to end, once it can hear that, and see that it does so in order."""
        self.wait_for("\n")
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.said()
