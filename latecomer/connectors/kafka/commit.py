"""Commits: outputs, consumed offsets and state versions become valid together.

A commit in exactly-once mode, step by step:

1. *Written.* Everything that follows from the messages taken in so far is on its way, within the transaction. Then the
   loop goes on with the next messages; what follows from those is held back until step 4 is over.
2. *Version.* The name of a state version that has been written meanwhile goes into step 3. Where the offset must name a
   version of its own position, the commit waits for that to be written. If the process dies now, no offset names it.
3. *Offsets.* The offsets, each with the name of its version, join the transaction, under the consumer's membership: a
   process that lost its partitions meanwhile is refused here.
4. *Commit.* From now on all of it holds, for every reader of committed messages, and for whoever takes over.

The state of tasks that are due is frozen after step 1, to be written beside the next batches; a later commit names it.
After step 4 what other attempts to begin have left is removed.

Whatever fails before step 4 is aborted, and the tasks go back to what is committed. In at-least-once mode step 1 waits
until the brokers have everything, and steps 3 and 4 are a plain commit of offsets; what was written since the last one
is written again after a failure, under the same keys.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from latecomer.connectors.kafka.encode import Encoder, Outgoing
from latecomer.connectors.kafka.partitions import Task
from latecomer.connectors.kafka.state import Saving, StateKeeper
from latecomer.connectors.kafka.task import MatchTask
from latecomer.errors import LatecomerError, StateError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

#: Seconds of one try of a call that waits for brokers: between two the loop shows that it is alive.
SLICE = 1.0
#: Seconds after which a call that should have ended after a slice never will.
STUCK = 10.0
#: Seconds for which brokers still complete a transaction after they have said that it is committed. A producer that
#: writes meanwhile is told to wait, and librdkafka asks again only 20 ms later, so the next outputs wait this long.
COMPLETION = 0.005
#: Outputs, and bytes of them, that may wait to be written before the tasks have to wait too.
HELD, HELD_BYTES = 10_000, 16 << 20

_STALE = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.FENCED_INSTANCE_ID)


T = TypeVar("T")


class Aborted(LatecomerError):
    """The commit cannot be completed; the tasks go back to what is committed."""


class Stale(Aborted):
    """The partitions belong to another process by now, though this one has not been told yet."""


class Rejoin(LatecomerError):
    """This membership is of no more use: the process has to join the group anew."""


class Fenced(Rejoin):
    """This producer may not write any more: another process took its place, or the brokers gave it up as dead."""


def attempt(call: Callable[[], T], alive: Callable[[], None], seconds: float = 120.0) -> T:
    """Call until it works, for at most ``seconds``; raises Aborted or Fenced as the error demands."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except KafkaException as problem:
            error: KafkaError = problem.args[0]
            if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
                raise Fenced(f"this process was replaced or given up: {error.str()}") from problem
            if error.code() in _STALE:
                raise Stale(error.str()) from problem
            if error.txn_requires_abort() or not error.retriable() or time.monotonic() > end:
                raise Aborted(error.str()) from problem
        alive()
        time.sleep(0.005)


def given_up(problem: KafkaException) -> LatecomerError:
    """What an error of the producer means that no second try mends. A fatal one is raised by whatever call is next."""
    error: KafkaError = problem.args[0]
    return (Fenced if error.fatal() else Aborted)(error.str())


class Aside:
    """A thread for commits. It also keeps the loop's hands free of calls of librdkafka that may never return:
    ``send_offsets_to_transaction`` forgets its time limit when the group's coordinator goes away at the wrong moment.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[Callable[[], None]], None], Future[None]] | None] = SimpleQueue()
        self._done: Future[None] | None = None
        self._alive_at = 0.0
        # No executor: the end of the process would wait for its thread.
        threading.Thread(target=self._run, name="latecomer-aside", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a job was begun whose end nobody has heard of."""
        return self._done is not None

    def begin(self, job: Callable[[Callable[[], None]], None]) -> None:
        """Begin a job; it calls what it is given now and then, to show that it is alive."""
        assert self._done is None
        self._alive_at, self._done = time.monotonic(), Future()
        self._jobs.put((job, self._done))

    def ended(self, wait: float = 0.0) -> bool:
        """Whether the job has ended; raises what it has raised. Raises Rejoin when it has shown no life for
        :data:`STUCK` seconds: then what it works with is of no more use, and neither is this."""
        assert self._done is not None
        try:
            problem = self._done.exception(wait)
        except TimeoutError:
            if time.monotonic() - self._alive_at > STUCK:
                raise Rejoin(f"the brokers have not answered for {STUCK:g} s") from None
            return False
        self._done = None
        if problem is not None:
            raise problem
        return True

    def close(self) -> None:
        """No more jobs; the thread ends once it can."""
        self._jobs.put(None)

    def _alive(self) -> None:
        self._alive_at = time.monotonic()

    def _run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, done = given
            try:
                job(self._alive)
                done.set_result(None)
            except BaseException as problem:  # noqa: BLE001 (it is raised where the result is waited for)
                done.set_exception(problem)
            del given, job, done


class Outbox:
    """What is to be written, in order. What the tasks tell is worked out as far as there is room for it, also while
    nothing may be written."""

    def __init__(self, producer: Producer, encoder: Encoder, begin: Callable[[], None]) -> None:
        self._producer = producer
        self._encoder = encoder
        self._begin = begin
        self._waiting: deque[Iterator[Outgoing]] = deque()
        self._told: deque[Outgoing] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._told) or bool(self._waiting)

    @property
    def between(self) -> bool:
        """Whether the tasks have told all that follows from their messages."""
        return not self._waiting

    def add(self, messages: Iterator[Outgoing]) -> None:
        """Write these after all that waits."""
        self._waiting.append(messages)

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self._told.clear()
        self._bytes = 0

    def pump(self, *, hold: bool = False) -> None:
        """Work out what is to be written, and unless ``hold`` write it, until nothing waits or there is no more room.

        Raises Aborted or Fenced when the producer is not able to go on.
        """
        while True:
            if not hold and not self._write_all():
                return
            if not self._waiting or not self._hear():
                return

    def serve(self, wait: float = 0.0) -> None:
        """Let the producer tell what has become of its messages. Raises Aborted or Fenced as :meth:`pump` does."""
        try:
            self._producer.poll(wait)
        except KafkaException as problem:
            raise given_up(problem) from problem

    def _hear(self) -> bool:
        """Let the tasks tell what follows, as far as there is room for it; returns whether there was."""
        if len(self._told) >= HELD or self._bytes >= HELD_BYTES:
            return False
        try:
            for message in self._waiting[0]:
                self._told.append(message)
                self._bytes += len(message.value or b"")
                if len(self._told) >= HELD or self._bytes >= HELD_BYTES:
                    return True
        except StateError as problem:  # another process has opened the state, or it cannot be read
            raise Rejoin(str(problem)) from problem
        self._waiting.popleft()
        return True

    def _write_all(self) -> bool:
        """Write what was told; returns whether the producer's queue had room for all of it."""
        while self._told:
            if not self._write(self._told[0]):
                return False
            self._told.popleft()
        self._bytes = 0
        return True

    def _write(self, message: Outgoing) -> bool:
        topic, key, value, _, headers, partition, timestamp = message
        more: dict[str, Any] = {} if headers is None else {"headers": headers}
        self._begin()
        try:
            self._producer.produce(topic, value, key, partition, timestamp=timestamp, **more)
        except BufferError:
            self.serve(0.01)
            return False
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and (message.kind != "cut" or message.value):
                return self._write(self._encoder.too_large(message))
            raise given_up(problem) from problem
        return True


class _Commits:
    """What both modes have in common. Steps 2 to 4 are a job of a thread of their own, while the loop goes on."""

    def __init__(self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float) -> None:
        self._consumer = consumer
        self._producer = producer
        self._keeper = keeper
        self._interval = interval
        self._versioned: dict[str, float] = {}
        self._written: list[tuple[str, str]] = []  # task and version, of the commit under way
        self._aside = Aside()
        self.open = False
        self.done = 0
        self.committing = 0  # messages of the commit under way

    @property
    def busy(self) -> bool:
        """Whether a commit is under way."""
        return self._aside.busy

    @property
    def holding(self) -> bool:
        """Whether nothing may be written now."""
        raise NotImplementedError

    def begin(self) -> None:
        """Something is about to be written."""
        raise NotImplementedError

    def close(self) -> None:
        """There will be no more commits."""
        self._aside.close()

    def start(self, tasks: Sequence[Task], every: bool = False) -> None:
        """Begin to commit what the tasks have taken in; all that follows from it has been given to the producer (step
        1). ``every``: with new versions of all states, since they are about to be handed over."""
        tasks = [task for task in tasks if not task.replaying]
        saving = self._versions(tasks, every)
        offsets = [
            TopicPartition(topic, partition, position, metadata=mark.text())
            for task in tasks
            for (topic, partition), position, mark in task.marks()
        ]
        membership = self._consumer.consumer_group_metadata() if offsets else None
        self.committing = sum(task.taken for task in tasks)
        for task in tasks:
            task.taken = 0

        def job(alive: Callable[[], None]) -> None:
            self._deliver(alive)
            try:
                for each in saving:
                    while not each.written(SLICE):
                        alive()
            except StateError as problem:  # another process has opened the state, or the folder is full
                raise Rejoin(str(problem)) from problem
            self._commit(offsets, membership, alive)

        self._aside.begin(job)
        now = time.monotonic()
        for task in tasks:
            due = now - self._versioned.get(task.name, 0.0) >= self._interval
            if isinstance(task, MatchTask) and due and task.saving is None:
                self._freeze(task)

    def ended(self, wait: float = 0.0) -> bool:
        """Whether the commit under way has ended, after at most ``wait`` seconds; raises what has prevented it."""
        if not self._aside.ended(wait):
            return False
        self.done += 1
        self.committing = 0
        for task, version in self._written:
            self._keeper.settle(task, version)
        self._written = []
        return True

    def finish(self, alive: Callable[[], None]) -> None:
        """Wait for the commit under way, if there is one; raises what has prevented it."""
        while self.busy and not self.ended(SLICE):
            alive()

    def abort(self, alive: Callable[[], None]) -> None:
        """Give up what is open, once the commit under way has ended one way or the other. Raises Rejoin when this
        membership is of no more use."""
        try:
            self.finish(alive)
        except Stale as problem:
            raise Rejoin(str(problem)) from problem
        except Aborted:
            pass
        self.committing, self._written = 0, []
        self._abort(alive)

    def _versions(self, tasks: Iterable[Task], every: bool) -> list[Saving]:
        """Let the tasks' marks name the versions that were written meanwhile, or new ones; returns those that must be
        there before they are named."""
        begun = []
        try:
            for task in tasks:
                if not isinstance(task, MatchTask):
                    continue
                if every or task.needs_version:
                    self._freeze(task)
                    assert task.saving is not None
                    begun.append(task.saving)
                elif task.saving is None or not task.saving.written(0):
                    continue
                self._written.append((task.name, task.name_version()))
        except StateError as problem:
            raise Rejoin(str(problem)) from problem
        return begun

    def _freeze(self, task: MatchTask) -> None:
        """Begin to write a version."""
        self._versioned[task.name] = time.monotonic()
        task.freeze(self._keeper)

    def _deliver(self, alive: Callable[[], None]) -> None:
        """What is left of step 1."""

    def _commit(self, offsets: list[TopicPartition], membership: Any, alive: Callable[[], None]) -> None:
        """Steps 3 and 4."""
        raise NotImplementedError

    def _abort(self, alive: Callable[[], None]) -> None:
        raise NotImplementedError


class ExactlyOnce(_Commits):
    """Commits in transactions."""

    def __init__(self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float) -> None:
        super().__init__(consumer, producer, keeper, interval)
        self._until = 0.0

    @property
    def holding(self) -> bool:
        return self.busy or time.monotonic() < self._until

    def begin(self) -> None:
        """Begin a transaction unless one is open."""
        if not self.open:
            try:
                self._producer.begin_transaction()
            except KafkaException as problem:
                raise given_up(problem) from problem
            self.open = True

    def start(self, tasks: Sequence[Task], every: bool = False) -> None:
        self.begin()
        super().start(tasks, every)

    def ended(self, wait: float = 0.0) -> bool:
        if not super().ended(wait):
            return False
        self.open = False
        return True

    def _commit(self, offsets: list[TopicPartition], membership: Any, alive: Callable[[], None]) -> None:
        if offsets:
            attempt(lambda: self._producer.send_offsets_to_transaction(offsets, membership, SLICE), alive)
        attempt(lambda: self._producer.commit_transaction(SLICE), alive)
        self._until = time.monotonic() + COMPLETION

    def _abort(self, alive: Callable[[], None]) -> None:
        if self.open:
            attempt(lambda: self._producer.abort_transaction(SLICE), alive)
        self.open = False


class AtLeastOnce(_Commits):
    """Commits offsets once all that follows from them is written. Its producer reports failures to ``failed``."""

    def __init__(
        self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float, failed: list[KafkaError]
    ) -> None:
        super().__init__(consumer, producer, keeper, interval)
        self.failed = failed
        self._flushing = False

    @property
    def holding(self) -> bool:
        return self._flushing

    def begin(self) -> None:
        self.open = True

    def start(self, tasks: Sequence[Task], every: bool = False) -> None:
        self.open, self._flushing = False, True
        super().start(tasks, every)

    def _flush(self, alive: Callable[[], None]) -> None:
        try:
            while self._producer.flush(SLICE):
                alive()
        except KafkaException as problem:
            raise given_up(problem) from problem

    def _deliver(self, alive: Callable[[], None]) -> None:
        self._flush(alive)
        failed = list(self.failed)
        self._flushing = False  # what is written from now on belongs to the next commit
        if failed:
            raise Aborted(failed[0].str())

    def _commit(self, offsets: list[TopicPartition], membership: Any, alive: Callable[[], None]) -> None:
        if offsets:
            attempt(lambda: self._consumer.commit(offsets=offsets, asynchronous=False), alive)

    def _abort(self, alive: Callable[[], None]) -> None:
        """Nothing can be taken back; what was written comes again, under the same keys."""
        self._flush(alive)
        self.failed.clear()
        self.open = self._flushing = False
