"""The service of a pipeline with brokers: the process of ``latecomer run``, with HTTP in front.

The rules:

* Events that come by HTTP are written to an input topic and acknowledged when the brokers have them; from there on they
  are events like all others. What is no event becomes a dead letter where it is read.
* The loop is the one of ``latecomer run``, in a thread of its own: a member of the pipeline's consumer group beside
  others, exactly once as the file says.
* What comes out is read from the topics (:mod:`latecomer.serve.tail`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaError, Producer

from latecomer.connectors.kafka.check import ready
from latecomer.connectors.kafka.clients import producer_properties
from latecomer.connectors.kafka.loop import run
from latecomer.connectors.kafka.operation.explaining import Explaining
from latecomer.connectors.kafka.operation.metrics import PipelineMetrics
from latecomer.connectors.kafka.operation.watch import Figures, Watch
from latecomer.errors import ConfigError, StateError
from latecomer.runtime import Runtime
from latecomer.serve.arrow import table_of
from latecomer.serve.inbox import Closed, Inbox, Never, Receipt, Submission
from latecomer.serve.journal import JournalFull
from latecomer.serve.keys import KeyOf
from latecomer.serve.reading import Form, Refused
from latecomer.serve.sse import Feed
from latecomer.serve.tail import Tail

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from latecomer.serve.config import KafkaPipeline
    from latecomer.serve.live import Live

log = logging.getLogger("latecomer.serve")

#: Receipts of request keys that are remembered, by this process only.
KEYS = 10_000


class KafkaService:
    """A pipeline with brokers, running from :meth:`start` to :meth:`stop`.

    Raises ConfigError where no input takes JSON, since bodies are passed on as lines of it.
    """

    def __init__(self, pipeline: KafkaPipeline, live: Live | None = None) -> None:
        self.pipeline, self.live = pipeline, live
        self.inbox = Inbox(pipeline.serve.inbox)
        self.failed: BaseException | None = None
        self.readers = self.accepted = 0
        self._metrics = PipelineMetrics(pipeline.name)
        self.registry: CollectorRegistry = self._metrics.registry
        self._explaining = Explaining()
        self.watch = Watch([self._metrics, self._explaining, self])
        self._listeners: list[Callable[[], None]] = []
        self._tail = Tail(pipeline, live, self._tell)
        self._began = time.monotonic()
        takers = [given for given in pipeline.inputs if given.format == "json"]
        self._topic = takers[0].topics[0] if takers else None
        self._keys = KeyOf(takers[0], pipeline) if takers else None
        self._done: dict[str, Future[Receipt]] = {}
        self._pool = ThreadPoolExecutor(2, "latecomer-explain")
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._loop,), name="latecomer-loop", daemon=True),
            threading.Thread(target=self._guarded, args=(self._send,), name="latecomer-producer", daemon=True),
        ]

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take no more, hand over what has come, commit, and leave the group."""
        self.inbox.close("the service is ending")
        self.watch.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self.pipeline.operation.shutdown)
        self._tail.stop()
        self._pool.shutdown(wait=False)
        if any(thread.is_alive() for thread in self._threads):
            raise StateError("the pipeline has not ended in time; what was not committed is done again")

    @property
    def alive(self) -> bool:
        """Whether the loop goes round."""
        return self.failed is None and self._tail.failed is None and self.watch.alive

    @property
    def ready(self) -> bool:
        """Whether the loop has its partitions."""
        return self.alive and self.watch.is_ready

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # told by whoever runs the service
            if not isinstance(problem, ConfigError | StateError):
                log.exception("a thread of the pipeline has failed")
            self.failed = problem
            self.inbox.close(f"the service has failed: {problem}")

    def _loop(self) -> None:
        def alive() -> bool:
            self.watch.beat()
            return not self.watch.stopping

        ready(self.pipeline, alive)
        self._tail.start()
        if not self.watch.stopping:
            run(self.pipeline, self.watch)

    # --- what others ask for -----------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call this after something has come out."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """``changes``, ``late`` and ``dead``."""
        return self._tail.feeds

    def matches(self, limit: int, query: str | None = None) -> tuple[int, int, list[bytes]]:
        """How many matches hold, as far as they were read, how many are left out, and the newest."""
        board = self._tail.board
        return len(board) + board.left_out, board.left_out, board.newest(limit, query)

    def submit(self, body: bytes, form: Form, key: str | None = None, *, reserved: bool = False) -> Future[Receipt]:
        """Write the events of a body to the first input topic of JSON; resolved when the brokers have them.

        A key is remembered by this process; besides, an event with an id of its own counts once anyway.
        """
        if self._topic is None:
            if reserved:
                self.inbox.release(len(body))
            raise Never("no input of this pipeline takes JSON, so events cannot come by HTTP: write to its topics")
        if key is not None and key in self._done and not _failed(self._done[key]):
            if reserved:
                self.inbox.release(len(body))
            return _again(self._done[key])
        done = self.inbox.admit(form, body, key, reserved=reserved)
        if key is not None:
            self._done[key] = done
            while len(self._done) > KEYS:
                del self._done[next(iter(self._done))]
        return done

    def control(self, word: str, **arguments: Any) -> Future[dict[str, Any]]:
        """No word: what holds for all partitions is not this process's to say."""
        raise Never(
            f"{word}: a pipeline with brokers takes no words about time by HTTP, since it may have more processes than "
            "this one; punctuation comes in its topics, advance is done by itself, and topics have no end"
        )

    def explain(self) -> Future[dict[str, Any]]:
        """By partition what is held, and what it waits for."""

        def ask() -> dict[str, Any]:
            told = self._explaining.ask()
            if told is None:
                raise Closed("the loop is busy")
            return dict(told)

        return self._pool.submit(ask)

    def figures(self) -> dict[str, float]:
        """How it goes, as numbers."""
        return {
            "inbox_batches": len(self.inbox),
            "inbox_bytes": self.inbox.nbytes,
            "inbox_limit_bytes": self.inbox.limit,
            "readers": self.readers,
            "uptime_seconds": round(time.monotonic() - self._began, 1),
            "refused": self.inbox.refused,
            "acknowledged": self.accepted,
        }

    # --- a listener of the loop --------------------------------------------------------------------------------------

    def begin(self, name: str, runtime: Runtime) -> None:
        """Nothing is told before the first look."""

    def show(self, figures: Figures, runtimes: Mapping[str, Runtime]) -> None:
        """Tell the page what is held, of all partitions together."""
        if self.live is not None and runtimes:
            told = merged([runtime.explain() for runtime in runtimes.values()])
            self.live.described(told, self.figures(), time.time())

    # --- the producer ------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Write what comes to the topic, and acknowledge what the brokers have."""
        producer = Producer(producer_properties(self.pipeline, None))
        while self.inbox.closed is None or len(self.inbox):
            group = self.inbox.take(0.02)
            for submission in group:
                self._produce(producer, submission)
            producer.poll(0 if group else 0.02)
        producer.flush(self.pipeline.operation.shutdown)

    def _produce(self, producer: Any, submission: Submission) -> None:
        assert submission.form is not None and self._topic is not None and self._keys is not None
        try:
            lines = lines_of(submission.form, submission.body)
        except Refused as problem:
            self.inbox.release(submission.size)
            submission.done.set_exception(problem)
            return
        delivery = _Delivery(self, submission, len(lines))
        if not lines:
            delivery.finish()
        for line, key in zip(lines, self._keys(lines), strict=True):
            while True:
                try:
                    producer.produce(self._topic, line, key, on_delivery=delivery.one)
                    break
                except BufferError:
                    producer.poll(0.05)


class _Delivery:
    """Counts the messages of one request that the brokers have."""

    __slots__ = ("_failed", "_left", "_lines", "_service", "_submission")

    def __init__(self, service: KafkaService, submission: Submission, lines: int) -> None:
        self._service, self._submission = service, submission
        self._lines = self._left = lines
        self._failed: KafkaError | None = None

    def one(self, error: KafkaError | None, message: Any) -> None:
        self._left -= 1
        self._failed = self._failed or error
        if not self._left:
            self.finish()

    def finish(self) -> None:
        self._service.inbox.release(self._submission.size)
        if self._failed is not None:
            told = f"the brokers did not take all of it ({self._failed.str()}): send it again, under the same event ids"
            self._submission.done.set_exception(JournalFull(told))
            return
        self._service.accepted += self._lines
        self._submission.done.set_result(Receipt(self._lines))


def lines_of(form: Form, body: bytes) -> list[bytes]:
    """The events of a body as values of messages; raises Refused for a body that is none."""
    if form == "lines":
        return [line for line in body.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line and not line.isspace()]
    try:
        if form == "json":
            given = msgspec.json.decode(body, type=list[msgspec.Raw] | dict[str, Any])
            elements = [bytes(raw) for raw in given] if isinstance(given, list) else [body.strip()]
            for element in elements:
                msgspec.json.decode(element, type=dict[str, Any])
            return elements
        rows = _plain_times(table_of(body)).to_pylist()
        return [msgspec.json.encode(row, enc_hook=str) for row in rows]
    except (ValueError, RecursionError) as problem:
        raise Refused(f"the body cannot be read: {problem}") from problem


def _plain_times(table: pa.Table) -> pa.Table:
    """Timestamps as whole numbers of their own unit, as they are in JSON."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.int64()))
    return table


def _failed(future: Future[Receipt]) -> bool:
    return future.done() and future.exception() is not None


def _again(first: Future[Receipt]) -> Future[Receipt]:
    """What the first request of a key got, marked as repeated."""
    second: Future[Receipt] = Future()

    def done(found: Future[Receipt]) -> None:
        problem = found.exception()
        if problem is not None:
            second.set_exception(problem)
        else:
            second.set_result(Receipt(found.result().accepted, repeated=True))

    first.add_done_callback(done)
    return second


def merged(explained: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several runtimes of the same queries hold, as if they were one."""
    told = dict(explained[0])
    clocks = [one["clock"] for one in explained if one["clock"] is not None]
    told["clock"] = min(clocks, default=None)
    told["events"], told["bytes"] = (sum(one[name] for one in explained) for name in ("events", "bytes"))
    told["sources"] = {name: facts for one in explained for name, facts in one["sources"].items()}
    queries = {name: dict(facts) for name, facts in explained[0]["queries"].items()}
    for one in explained[1:]:
        for name, facts in one["queries"].items():
            for key in ("held", "buffered", "stored", "bytes"):
                if key in facts:
                    queries[name][key] = queries[name].get(key, 0) + facts[key]
            queries[name]["waiting"] = (queries[name]["waiting"] + facts["waiting"])[:10]
    return told | {"queries": queries}
