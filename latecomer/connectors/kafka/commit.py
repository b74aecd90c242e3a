"""Commits: outputs, consumed offsets and state versions become valid together.

A commit in exactly-once mode, step by step:

1. *Written.* Everything that follows from the messages taken in so far is on its way, within the transaction.
2. *Version.* The name of a state version that has been written meanwhile goes into step 3. Where the offset must name a
   version of its own position, that is written now. If the process dies now, no offset names it.
3. *Offsets.* The offsets, each with the name of its version, join the transaction, under the consumer's membership: a
   process that lost its partitions meanwhile is refused here.
4. *Commit.* From now on all of it holds, for every reader of committed messages, and for whoever takes over.
5. *Settle.* What other attempts to begin have left is removed. Of tasks that are due the state is frozen, to be written
   beside the next batches.

Whatever fails before step 4 is aborted, and the tasks go back to what is committed.

In at-least-once mode a commit holds up nobody: the offsets are noted when it begins, a plain commit of them is asked
for once the brokers have everything that was written until then, and steps 4 and 5 follow with the answer, while the
loop goes on. What was written since the last commit is written again after a failure, under the same keys.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from latecomer.connectors.kafka.encode import Encoder, Outgoing
from latecomer.connectors.kafka.partitions import Task
from latecomer.connectors.kafka.state import StateKeeper
from latecomer.connectors.kafka.task import MatchTask
from latecomer.errors import LatecomerError, StateError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

#: Seconds of one try of a call that waits for brokers: between two the loop shows that it is alive.
SLICE = 1.0
#: Seconds after which a call that should have ended after a slice never will.
STUCK = 10.0
#: Seconds for which the same may be asked for again and again. Now and then librdkafka never finds a transaction's
#: coordinator again after it has gone; another producer does.
PATIENCE = 30.0
#: Seconds after a transaction in which nothing is written: brokers still put it away, would refuse the first message
#: of the next one, and librdkafka asks again only after 20 ms.
PAUSE = 0.005
#: The next version of a state is begun no sooner than after so many times what it took to begin the last one: so that
#: versions of large states take no more than this part of the loop's time.
SPACING = 10

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


def attempt(call: Callable[[], T], alive: Callable[[], None], seconds: float = PATIENCE) -> T:
    """Call until it works, for at most ``seconds``; raises Aborted or Fenced as the error demands."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except KafkaException as problem:
            _raise_unless_retriable(problem.args[0], end)
        alive()
        time.sleep(0.005)


def _raise_unless_retriable(error: KafkaError, end: float) -> None:
    """Raise as the error demands, unless the same may be tried once more; ``end``: until when."""
    if error.fatal() or error.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
        raise Fenced(f"this process was replaced or given up: {error.str()}") from KafkaException(error)
    if error.code() in _STALE:
        raise Stale(error.str()) from KafkaException(error)
    if error.txn_requires_abort() or not error.retriable() or time.monotonic() > end:
        raise Aborted(error.str()) from KafkaException(error)


class Aside:
    """A thread for calls of librdkafka that may never return: ``send_offsets_to_transaction`` forgets its time limit
    when the group's coordinator goes away at the wrong moment, ``close`` when a rebalance is under way. Who calls
    through here gets its own back."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # No executor: the end of the process would wait for its thread.
        threading.Thread(target=self._run, name="latecomer-aside", daemon=True).start()

    def call(self, job: Callable[[], T], alive: Callable[[], None]) -> T:
        """What ``job`` returns or raises. Raises Rejoin when it does neither within :data:`STUCK` seconds: then what it
        works with is of no more use, and neither is this."""
        done: Future[T] = Future()
        self._jobs.put((job, done))
        for _ in range(round(STUCK / SLICE)):
            with suppress(TimeoutError):
                return done.result(SLICE)
            alive()
        raise Rejoin(f"the brokers have not answered for {STUCK:g} s")

    def close(self) -> None:
        """No more calls; the thread ends once it can."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, done = given
            try:
                done.set_result(job())
            except BaseException as problem:  # noqa: BLE001 (it is raised where the result is waited for)
                done.set_exception(problem)
            del given, job, done


class Outbox:
    """What is to be written, in order; it holds no more than the tasks have begun to tell."""

    def __init__(self, producer: Producer, encoder: Encoder, commits: Commits) -> None:
        self._producer = producer
        self._encoder = encoder
        self._commits = commits
        self._waiting: deque[Iterator[Outgoing]] = deque()
        self._stuck: Outgoing | None = None

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return self._stuck is not None or bool(self._waiting)

    def add(self, messages: Iterator[Outgoing]) -> None:
        """Write these after all that waits."""
        self._waiting.append(messages)

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self._stuck = None

    def pump(self) -> bool:
        """Write until nothing waits or the producer's queue is full; returns whether all was written.

        Raises Aborted or Fenced when the producer is not able to go on.
        """
        if self._stuck is not None and not self._write(self._stuck):
            return False
        self._stuck = None
        while self._waiting:
            try:
                for message in self._waiting[0]:
                    if not self._write(message):
                        self._stuck = message
                        return False
            except StateError as problem:  # another process has opened the state, or it cannot be read
                raise Rejoin(str(problem)) from problem
            self._waiting.popleft()
        return True

    def _write(self, message: Outgoing) -> bool:
        topic, key, value, _, headers, partition, timestamp = message
        more: dict[str, Any] = {} if headers is None else {"headers": headers}
        self._commits.begin()
        try:
            self._producer.produce(topic, value, key, partition, timestamp=timestamp, **more)
            self._commits.handed += 1
        except BufferError:
            self._producer.poll(0.01)
            return False
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE and (message.kind != "cut" or message.value):
                return self._write(self._encoder.too_large(message))
            raise (Fenced if error.fatal() else Aborted)(error.str()) from problem
        return True


class Commits(ABC):
    """What both modes have in common."""

    def __init__(self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float) -> None:
        self._consumer = consumer
        self._producer = producer
        self._keeper = keeper
        self._interval = interval
        self._due: dict[str, float] = {}  # when a task's next version is due
        self.open = False  # something was written that no commit covers
        self.handed = 0  # messages that the producer has taken
        self.done = 0
        self.quiet_until = 0.0  # by time.monotonic: better not to write before

    @property
    def pending(self) -> bool:
        """Whether a commit was begun that is not done."""
        return False

    def begin(self) -> None:
        """Something is about to be written."""
        self.open = True

    @abstractmethod
    def commit(self, tasks: Sequence[Task], alive: Callable[[], None], every: bool = False) -> None:
        """Commit what the tasks have taken in, all of which has been given to the producer (step 1). With ``every``
        states have new versions, and it is done in the end; else it may be pending."""

    def proceed(self) -> None:  # noqa: B027 (only some are ever pending)
        """Go on with a commit that is pending, as far as that goes without waiting."""

    @abstractmethod
    def abort(self, alive: Callable[[], None]) -> None:
        """Give up what is open or pending. Raises Fenced when the producer is of no more use."""

    def close(self) -> None:  # noqa: B027 (only some have something to close)
        """There will be no more commits."""

    def _versions(self, tasks: Iterable[Task], every: bool) -> list[tuple[MatchTask, str]]:
        """Step 2; ``every``: new versions of all states, since they are about to be handed over."""
        written, begun = [], []
        try:
            for task in tasks:
                if not isinstance(task, MatchTask):
                    continue
                now = every or task.needs_version
                if task.saving is not None and (now or task.saving.done.done()):
                    written.append((task, task.saved()))
                if now:
                    self._begin(task)
                    begun.append(task)
            written += [(task, task.saved()) for task in begun]  # they are written side by side
        except StateError as problem:  # another process has opened the state, or the folder is full
            raise Rejoin(str(problem)) from problem
        return written

    def _begin(self, task: MatchTask) -> None:
        """Begin to write a version."""
        began = time.monotonic()
        task.freeze(self._keeper)
        self._due[task.name] = began + max(self._interval, SPACING * (time.monotonic() - began))

    def _begun(self, tasks: Sequence[Task], every: bool) -> Begun:
        """What a commit that begins now is to make valid (step 2)."""
        tasks = [task for task in tasks if not task.replaying]
        versions = self._versions(tasks, every)
        offsets = [
            TopicPartition(topic, partition, position, metadata=mark.text())
            for task in tasks
            for (topic, partition), position, mark in task.marks()
        ]
        return Begun([(task, task.taken) for task in tasks], versions, offsets, self.handed)

    def _settle(self, begun: Begun) -> None:
        """Step 5."""
        for task, taken in begun.tasks:
            task.taken -= taken
        for written_task, version in begun.versions:
            self._keeper.settle(written_task.name, version)
        self.done += 1
        now = time.monotonic()
        for task, _ in begun.tasks:
            if isinstance(task, MatchTask) and now >= self._due.get(task.name, now) and task.saving is None:
                self._begin(task)


@dataclass(slots=True)
class Begun:
    """A commit that was begun: tasks with the messages that it covers of each, versions that are written, offsets that
    name them, and how many messages had been written before.

    ``asked``: whether the brokers were asked to; ``until``: when it is given up.
    """

    tasks: Sequence[tuple[Task, int]]
    versions: Sequence[tuple[MatchTask, str]]
    offsets: list[TopicPartition]
    handed: int
    asked: bool = False
    until: float = field(default_factory=lambda: time.monotonic() + PATIENCE)


class ExactlyOnce(Commits):
    """Commits in transactions."""

    def __init__(self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float) -> None:
        super().__init__(consumer, producer, keeper, interval)
        self._aside = Aside()

    def close(self) -> None:
        self._aside.close()

    def begin(self) -> None:
        """Begin a transaction unless one is open."""
        if not self.open:
            try:
                self._producer.begin_transaction()
            except KafkaException as problem:
                raise (Fenced if problem.args[0].fatal() else Aborted)(problem.args[0].str()) from problem
            self.open = True

    def commit(self, tasks: Sequence[Task], alive: Callable[[], None], every: bool = False) -> None:
        self.begin()
        begun = self._begun(tasks, every)
        if begun.offsets:
            membership = self._consumer.consumer_group_metadata()

            def send() -> None:
                self._producer.send_offsets_to_transaction(begun.offsets, membership, SLICE)

            attempt(lambda: self._aside.call(send, alive), alive)
        attempt(lambda: self._producer.commit_transaction(SLICE), alive)
        self.open = False
        self.quiet_until = time.monotonic() + PAUSE
        self._settle(begun)

    def abort(self, alive: Callable[[], None]) -> None:
        if self.open:
            attempt(lambda: self._producer.abort_transaction(SLICE), alive)
        self.open = False


class Answers:
    """What brokers say to a producer's messages and a consumer's requests for commits, in their order."""

    def __init__(self) -> None:
        self.delivered = 0
        self.failed: list[KafkaError] = []
        self.commits: deque[KafkaError | None] = deque()

    def on_delivery(self, error: KafkaError | None, _: Any) -> None:
        """For the producer."""
        self.delivered += 1
        if error is not None:
            self.failed.append(error)

    def on_commit(self, error: KafkaError | None, parts: Sequence[TopicPartition]) -> None:
        """For the consumer."""
        self.commits.append(error or next((part.error for part in parts if part.error is not None), None))


class AtLeastOnce(Commits):
    """Commits offsets once all that follows from them is written. ``answers``: of this consumer and this producer."""

    def __init__(
        self, consumer: Consumer, producer: Producer, keeper: StateKeeper, interval: float, answers: Answers
    ) -> None:
        super().__init__(consumer, producer, keeper, interval)
        self._answers = answers
        self._pending: Begun | None = None
        self._unheard = 0  # answers on their way that nobody waits for any more

    @property
    def pending(self) -> bool:
        return self._pending is not None

    def commit(self, tasks: Sequence[Task], alive: Callable[[], None], every: bool = False) -> None:
        self._complete(alive)
        self._pending = self._begun(tasks, every)
        self.open = False
        if every:
            self._complete(alive)
        else:
            self.proceed()

    def proceed(self) -> None:
        self._raise_failed()
        begun = self._pending
        if begun is None:
            return
        if not begun.asked and self._answers.delivered >= begun.handed:
            self._ask(begun)
        while self._unheard and self._answers.commits:
            self._answers.commits.popleft()
            self._unheard -= 1
        if begun.asked and self._answers.commits:
            error = self._answers.commits.popleft()
            if error is None:
                self._done(begun)
                return
            _raise_unless_retriable(error, begun.until)
            begun.asked = False
        if time.monotonic() > begun.until:
            raise Aborted(f"the brokers have not taken a commit within {PATIENCE:g} s")

    def _ask(self, begun: Begun) -> None:
        """Ask the brokers for a commit; the answer comes while messages are awaited."""
        if not begun.offsets:
            self._done(begun)
            return
        try:
            self._consumer.commit(offsets=begun.offsets, asynchronous=True)
            begun.asked = True
        except KafkaException as problem:
            _raise_unless_retriable(problem.args[0], begun.until)

    def _complete(self, alive: Callable[[], None]) -> None:
        """Wait for what is pending."""
        begun = self._pending
        if begun is None:
            return
        while self._producer.flush(SLICE):
            alive()
        self._raise_failed()
        if begun.offsets:
            attempt(lambda: self._consumer.commit(offsets=begun.offsets, asynchronous=False), alive)
        self._unheard += begun.asked
        self._done(begun)

    def _done(self, begun: Begun) -> None:
        self._pending = None
        self._settle(begun)

    def _raise_failed(self) -> None:
        if self._answers.failed:
            raise Aborted(self._answers.failed[0].str())

    def abort(self, alive: Callable[[], None]) -> None:
        """Nothing can be taken back; what was written comes again, under the same keys."""
        while self._producer.flush(SLICE):
            alive()
        self._answers.failed.clear()
        if self._pending is not None:
            self._unheard += self._pending.asked
        self.open, self._pending = False, None
