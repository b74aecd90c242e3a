"""The loop of one process of a pipeline: a member of the consumer group that reads, matches, writes and commits.

One turn, in this order (:meth:`Member.turn`):

1. *Take in.* Wait for messages, a moment longer for more of them, and give each partition's to its task. While output
   of earlier ones still waits, the partitions are paused instead, so nothing grows.
2. *Write* what follows from them, as far as the producer's queue has room.
3. *Tell the time*, now and then, where idle sources or events from the future matter.
4. *Commit*, when it is time (:mod:`latecomer.connectors.kafka.commit`).

Partitions come and go between turns. Who gives one up commits first; who gets one opens the state that the committed
offset names, reads in silence what lies between the two, and goes on. After anything that makes a commit impossible
the tasks go back to what is committed, in the same way; where that does not help, the process joins anew.
"""

from __future__ import annotations

import gc
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from latecomer.connectors.kafka.advice import partitioning
from latecomer.connectors.kafka.clients import consumer_properties, producer_properties, registry_client
from latecomer.connectors.kafka.commit import (
    Aborted,
    Answers,
    Aside,
    AtLeastOnce,
    Commits,
    ExactlyOnce,
    Fenced,
    Outbox,
    Rejoin,
    Stale,
    attempt,
)
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.encode import Encoder
from latecomer.connectors.kafka.formats import RegistryUnavailable
from latecomer.connectors.kafka.opening import Opener, several
from latecomer.connectors.kafka.operation.watch import Figures, Watch
from latecomer.connectors.kafka.partitions import Task, absent, prepare
from latecomer.connectors.kafka.places import Message
from latecomer.connectors.kafka.state import StateKeeper
from latecomer.connectors.kafka.task import Counts, Partition
from latecomer.errors import ConfigError, LatecomerError, StateError
from latecomer.units import UNITS

if TYPE_CHECKING:
    from latecomer.connectors.kafka.config import Pipeline

log = logging.getLogger("latecomer.kafka.loop")

#: Seconds without messages after which the loop looks whether it shall stop.
QUIET = 0.1
#: Seconds after which it looks for what brokers say to a pending commit, when no messages come.
SOON = 0.01
#: How long the loop gathers more messages after the first one: in seconds at least, and at most,
LEAST, MOST = 0.0005, 0.005
#: and between them this part of what the last turn took. Each turn costs something however few messages it has: on a
#: busy machine turns are longer and fewer, and none is waited for that is worth less than the wait.
GATHER = 0.5
#: The topic no longer has, or never had, what should be read.
_HOPELESS = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)
#: Failures in a row, without a commit between them, after which the process gives up.
PATIENCE = 40


def run(pipeline: Pipeline, watch: Watch) -> None:
    """Run one process of the pipeline until ``watch.stopping``.

    Returns after a graceful stop: what was taken in is committed and the group is left. Raises ConfigError for topics
    that do not fit, StateError for a state that does not, or when another process took this one's name.
    """
    admin = AdminClient(pipeline.admin_config())
    inputs = prepare(admin, pipeline)
    spread = partitioning(pipeline)
    if not spread.independent and max(inputs.values()) > 1:
        raise ConfigError(str(spread.advice))
    failures, total = 0, Counts()
    instance = pipeline.instance or uuid.uuid4().hex
    gc.collect()
    gc.freeze()  # what was imported stays: to look through it again and again would cost 60 ms each time
    while True:
        member = Member(pipeline, watch, inputs, total, instance)
        try:
            member.run()
            return
        except Rejoin as problem:
            failures = 1 if member.commits.done else failures + 1
            if failures >= PATIENCE or (isinstance(problem, Fenced) and pipeline.instance is not None):
                raise StateError(
                    f"this process cannot go on ({problem}): if another one runs under the same 'instance', give each "
                    "its own, or none"
                ) from problem
            missing = _missing(admin, pipeline)  # librdkafka says of a message that is refused not even to which topic
            gone = {"missing_topics": missing} if missing else {}
            log.warning("joining anew", extra={"fields": {"reason": str(problem), **gone}})


def _missing(admin: AdminClient, pipeline: Pipeline) -> list[str]:
    """The output topics that do not exist (any more), as far as brokers can be asked."""
    output = pipeline.output
    try:
        known = admin.list_topics(timeout=5).topics
    except KafkaException:
        return []
    return absent(known, [*(topic.topic for topic in output.topics.values()), output.dead_letters])


class Member:
    """One life of a consumer and its producer. ``instance`` names the process: its next life ends the transaction that
    this one may leave open."""

    def __init__(
        self, pipeline: Pipeline, watch: Watch, inputs: Mapping[str, int], total: Counts, instance: str
    ) -> None:
        self.pipeline = pipeline
        self.watch = watch
        self.tasks: dict[str, Task] = {}
        self._of: dict[Partition, Task] = {}
        self._failures = 0
        self._gone = False
        self._paused = False
        self._total = total
        self._committed_at = self._looked_at = time.monotonic()
        registry = registry_client(pipeline)
        decoders = {topic: Decoder(pipeline.input_of(topic), pipeline, registry) for topic in pipeline.topics}
        encoder, keeper = Encoder(pipeline, registry), StateKeeper(pipeline)
        self._keeper = keeper
        config, self._eager = consumer_properties(pipeline, several(pipeline))
        answers = Answers()
        self._consumer = Consumer({**config, "on_commit": answers.on_commit})
        self._opener = Opener(pipeline, inputs, decoders, encoder, keeper, self._consumer, watch.beat)
        self._exact = pipeline.guarantee == "exactly-once"
        self.commits: Commits
        if self._exact:
            self._producer = Producer(producer_properties(pipeline, f"{pipeline.group}-{instance}"))
            self.commits = ExactlyOnce(self._consumer, self._producer, keeper, pipeline.state.interval)
        else:
            self._producer = Producer(producer_properties(pipeline, None, on_delivery=answers.on_delivery))
            self.commits = AtLeastOnce(self._consumer, self._producer, keeper, pipeline.state.interval, answers)
        self._outbox = Outbox(self._producer, encoder, self.commits)
        stream = pipeline.stream
        self._timed = stream.idle_timeout is not None or stream.max_ahead is not None
        self._took = 0.0  # seconds of the last turn in which messages came
        self._counted = 0  # commits

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Join the group and turn until it is time to stop."""
        topics = list(self.pipeline.topics)
        if self.pipeline.repartition is not None:
            topics.append(self.pipeline.repartition.topic)
        try:
            if self._exact:
                self._begin_transactions()
            self._consumer.subscribe(topics, self._assigned, self._revoked, self._lost)
            while not self.watch.stopping:
                self.turn()
            self._guarded(self._commit_all)
        finally:
            self._gone = True  # what there was to commit is committed, or cannot be
            self.watch.ready(False)
            self._leave()
            self.commits.close()
            for name in self.tasks:
                self._keeper.release(name)

    def _leave(self) -> None:
        """Leave the group. Where a rebalance is under way librdkafka may never come back from that, though brokers have
        seen the process leave; then the consumer is left to itself. At worst it counts as a member until it has asked
        for nothing for ``max.poll.interval.ms``."""
        aside = Aside()
        try:
            aside.call(self._consumer.close, self.watch.beat)
        except Rejoin as problem:
            log.warning("left without an answer", extra={"fields": {"reason": str(problem)}})
        finally:
            aside.close()

    def _begin_transactions(self) -> None:
        try:
            attempt(lambda: self._producer.init_transactions(5), self.watch.beat)
        except Aborted as problem:
            raise Rejoin(str(problem)) from problem

    def turn(self) -> None:
        """One turn of the loop, steps as in the module's head."""
        self.watch.beat()
        self._guarded(self._turn)
        if self.watch.due:
            self._show()

    def _turn(self) -> None:
        began = None
        if self._outbox:
            self._pause()
            # For the group's sake; a partition that comes just now may give a message although all are paused.
            self._give(self._consumer.consume(1, 0))
        else:
            self._resume()
            began = self._take_in()
        written = self._outbox.pump()
        if began is not None:
            self._took = time.monotonic() - began
        if written:
            self._tell_time()
        self._producer.poll(0)
        self.commits.proceed()
        now = time.monotonic()
        taken = sum(task.taken for task in self.tasks.values())
        full = taken >= self.pipeline.limits.max_in_flight
        due = full or (now - self._committed_at >= self.pipeline.transaction and not self.commits.pending)
        if due and not self._outbox and (taken or self.commits.open):
            self._committed_at = now
            self.commits.commit(list(self.tasks.values()), self.watch.beat)
        self._count_commits()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step; go back to what is committed when it cannot be completed."""
        try:
            step()
        except (Aborted, RegistryUnavailable) as problem:
            self._back(problem)

    def _back(self, problem: LatecomerError) -> None:
        """Go back to what is committed. Raises StateError after too many failures without a commit between them."""
        log.warning("going back to what is committed", extra={"fields": {"reason": str(problem)}})
        self._total.aborted += 1
        self._failures += 1
        if self._failures > PATIENCE and isinstance(problem, Aborted):
            raise StateError(f"nothing can be committed, the last reason being: {problem}") from problem
        self.watch.ready(False)
        self._outbox.clear()
        time.sleep(min(0.05 * 2**self._failures, 2.0))
        try:
            self.commits.abort(self.watch.beat)
            if isinstance(problem, Stale):
                raise Rejoin(str(problem)) from problem  # to open the states again would shut their new owner out
            parts = [TopicPartition(*partition) for partition in self._of]
            self._forget(self._of)
            if parts:
                if self._eager:
                    self._consumer.unassign()
                else:
                    self._consumer.incremental_unassign(parts)
                self._open(parts)
        except Aborted as again:
            raise Rejoin(str(again)) from again
        self.watch.ready(True)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _take_in(self) -> float | None:
        """Wait for messages and give them to their tasks; returns when the work on them began, None without any."""
        wait, due = QUIET, self._committed_at + self.pipeline.transaction
        if self.commits.pending:
            wait = SOON
        elif self.commits.open or any(task.taken for task in self.tasks.values()):
            wait = max(min(QUIET, due - time.monotonic()), 0)
        messages: list[Any] = self._consumer.consume(1, wait)
        if not messages:
            return None
        tasks = dict(self._of)
        if self.pipeline.limits.batch > 1:
            gather = max(min(self._took * GATHER, MOST), LEAST, self.commits.quiet_until - time.monotonic())
            messages += self._consumer.consume(self.pipeline.limits.batch - 1, gather)
        began = time.monotonic()
        opened = [partition for partition, task in self._of.items() if tasks.get(partition) is not task]
        if opened:
            messages = self._without(messages, opened)
        self._give(messages)
        return began

    def _without(self, messages: Sequence[Any], opened: Sequence[Partition]) -> list[Any]:
        """Messages but those of partitions that were opened while they were gathered. Some may be from before, and what
        was taken in before them may lie behind a commit that failed; so all of these come again."""
        starts = [TopicPartition(*partition, self._of[partition].positions[partition]) for partition in opened]
        if self._eager:  # then all have been opened
            self._consumer.assign(starts)
        else:
            self._consumer.incremental_unassign(starts)
            self._consumer.incremental_assign(starts)
        return [m for m in messages if m.error() is not None or (m.topic(), m.partition()) not in opened]

    def _give(self, messages: Sequence[Any]) -> None:
        """Give messages to their tasks."""
        given: dict[str, dict[Partition, list[Message]]] = {}
        for partition, batch in _by_partition(messages, len(self._of)):
            task = self._of.get(partition)
            # A rebalance may have happened between the first message and the last.
            fresh = [] if task is None else _from(batch, task.positions[partition])
            if task is not None and fresh:
                given.setdefault(task.name, {})[partition] = fresh
        for name, batches in given.items():
            self._outbox.add(self.tasks[name].take(batches))

    def _tell_time(self) -> None:
        """Tell the runtimes the time, now and then."""
        if self._timed and time.monotonic() - self._looked_at >= self.pipeline.operation.idle_check:
            self._looked_at = time.monotonic()
            now = time.time_ns() // UNITS[self.pipeline.stream_options.unit]
            for task in self.tasks.values():
                self._outbox.add(task.advance(now))
            self._outbox.pump()

    def _pause(self) -> None:
        if not self._paused:
            self._consumer.pause([TopicPartition(*partition) for partition in self._of])
            self._paused = True

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume([TopicPartition(*partition) for partition in self._of])
            self._paused = False

    # --- commits -----------------------------------------------------------------------------------------------------

    def _count_commits(self) -> None:
        if self.commits.done > self._counted:
            self._total.commits += self.commits.done - self._counted
            self._counted = self.commits.done
            self._failures = 0

    def _commit_all(self) -> None:
        """Write all that waits and commit it, with versions of all states: for whoever goes on."""
        while not self._outbox.pump():
            self.watch.beat()
        if any(task.taken for task in self.tasks.values()) or self.commits.open or self.commits.pending:
            self.commits.commit(list(self.tasks.values()), self.watch.beat, every=True)
            self._count_commits()

    # --- partitions come and go --------------------------------------------------------------------------------------

    def _assigned(self, _: Consumer, parts: list[TopicPartition]) -> None:
        log.info("assigned", extra={"fields": {"partitions": _shown(parts)}})
        if self._gone:
            return  # these come too late, while the group is being left
        self.watch.ready(False)
        try:
            self._open(parts)
        except Aborted as problem:
            raise Rejoin(str(problem)) from problem
        self.watch.ready(True)

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        log.info("revoked", extra={"fields": {"partitions": _shown(parts)}})
        if not self._gone:
            try:
                self._commit_all()
            except Aborted as problem:
                self._give_up(parts, problem)
        self._forget([(part.topic, part.partition) for part in parts])

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        """Others own these already: nothing may be committed any more."""
        if not self._gone:
            self._give_up(parts, Aborted("partitions were lost"))
        self._forget([(part.topic, part.partition) for part in parts])

    def _give_up(self, parts: Sequence[TopicPartition], problem: LatecomerError) -> None:
        """Abort what is open while partitions leave; those that stay go back to what is committed."""
        log.warning("aborted", extra={"fields": {"partitions": _shown(parts), "reason": str(problem)}})
        self._total.aborted += 1
        self._outbox.clear()
        self.commits.abort(self.watch.beat)
        if isinstance(problem, Stale):
            raise Rejoin(str(problem)) from problem
        leaving = {(part.topic, part.partition) for part in parts}
        staying = [TopicPartition(*partition) for partition in self._of if partition not in leaving]
        if staying:
            self._forget([(part.topic, part.partition) for part in staying])
            self._consumer.incremental_unassign(staying)
            self._open(staying)

    def _open(self, parts: list[TopicPartition]) -> None:
        """Take over partitions, from where their tasks have to be read."""
        starts = []
        for task in self._opener.open(parts):
            self.tasks[task.name] = task
            self._of.update(dict.fromkeys(task.positions, task))
            starts += [TopicPartition(*partition, position) for partition, position in task.positions.items()]
            if task.runtime is not None:
                self.watch.begin(task.name, task.runtime)
        self._paused = False
        (self._consumer.assign if self._eager else self._consumer.incremental_assign)(starts)

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for partition in list(partitions):
            task = self._of.pop(partition, None)
            if task is not None and self.tasks.pop(task.name, None) is not None:
                self._total.add(task.counts)
                self._keeper.release(task.name)

    # --- figures -----------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Tell the watch what has been done and what is held."""
        lag = {}
        for partition, task in self._of.items():
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            lag[partition] = max(high - task.positions[partition], 0)
        tasks = list(self.tasks.values())
        total = self._total
        for task in tasks:
            total.add(task.counts)
        figures = Figures(
            lag=lag,
            consumed=total.consumed,
            bytes=total.bytes,
            changes=total.changes,
            late=total.late,
            dead=dict(total.dead),
            transactions=total.commits,
            aborted=total.aborted,
            in_flight=sum(task.taken for task in tasks),
            paused=len(self._of) if self._paused else 0,
        )
        self.watch.show(figures, {task.name: task.runtime for task in tasks if task.runtime is not None})


_error, _offset = methodcaller("error"), methodcaller("offset")


def _by_partition(messages: Sequence[Message], owned: int) -> Iterator[tuple[Partition, list[Message]]]:
    """Messages by partition, each in order; raises where the consumer reports that it cannot go on."""
    good, failed = list(messages), any(map(_error, messages))
    if failed:
        good = [message for message in messages if message.error() is None]
    for message in messages if failed else ():
        error = message.error()
        if error is not None and error.fatal():
            raise Fenced(error.str())
        if error is not None and error.code() in _HOPELESS:
            raise StateError(
                f"{message.topic()}-{message.partition()} cannot be read on: {error.str()}. If its messages were "
                "removed before they were read, set the group's offset to where it shall go on, or begin under another "
                "name"
            )
        if error is not None:
            log.warning("consumer", extra={"fields": {"reason": error.str()}})
    if owned == 1 and good:
        yield (good[0].topic(), good[0].partition()), good
        return
    groups: dict[Partition, list[Message]] = {}
    for message in good:
        groups.setdefault((message.topic(), message.partition()), []).append(message)
    yield from groups.items()


def _from(messages: list[Message], position: int) -> list[Message]:
    """The messages from ``position`` on, each once: after a rebalance some may have been fetched again."""
    offsets = np.fromiter(map(_offset, messages), np.int64, len(messages))
    if offsets[0] >= position and bool((offsets[1:] > offsets[:-1]).all()):
        return messages
    highest = np.maximum.accumulate(np.concatenate([[position - 1], offsets]))
    return [messages[number] for number in np.flatnonzero(offsets > highest[:-1]).tolist()]


def _shown(parts: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{part.topic}-{part.partition}" for part in parts)
