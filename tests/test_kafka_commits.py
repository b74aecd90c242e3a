"""Commits at least once, without a broker: who asks for them goes on at once, and nothing is committed of which the
brokers do not have everything."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from latecomer.connectors.kafka import commit
from latecomer.connectors.kafka.commit import Aborted, Answers, AtLeastOnce, Stale
from latecomer.connectors.kafka.loop import Member
from latecomer.connectors.kafka.state import Saving
from latecomer.connectors.kafka.task import Mark, MatchTask

RETRIABLE = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "not yet", retriable=True)
GONE = KafkaError(KafkaError.ILLEGAL_GENERATION, "moved")


class Task:
    """A task that writes one message for each that it takes in."""

    name = "in-0"
    replaying = False

    def __init__(self):
        self.position = self.taken = 0

    def marks(self):
        yield ("in", 0), self.position, Mark()


class Brokers:
    """Both clients: what was asked for, and answers when the test says so."""

    def __init__(self, answers):
        self.answers = answers
        self.asked, self.committed, self.waiting = [], [], 0

    def commit(self, offsets, asynchronous):
        self.asked.append(offsets[0].offset)
        if not asynchronous:
            self.committed.append(offsets[0].offset)

    def flush(self, seconds):
        self.deliver(self.waiting)
        return 0

    def deliver(self, count, error=None):
        for _ in range(count):
            self.waiting -= 1
            self.answers.on_delivery(error, None)

    def answer(self, error=None):
        if error is None:
            self.committed.append(self.asked[-1])
        self.answers.on_commit(error, [])


@pytest.fixture
def scene():
    answers, task = Answers(), Task()
    brokers = Brokers(answers)
    commits = AtLeastOnce(brokers, brokers, SimpleNamespace(), 1.0, answers)

    def take(count):
        task.position += count
        task.taken += count
        commits.begin()
        commits.handed += count
        brokers.waiting += count

    def begin(**more):
        commits.commit([task], lambda: None, **more)

    return SimpleNamespace(commits=commits, task=task, brokers=brokers, take=take, begin=begin)


def test_a_commit_waits_for_all_that_was_written_before_it_and_for_nothing_else(scene):
    scene.take(3)
    scene.begin()
    scene.take(2)  # the loop goes on
    scene.brokers.deliver(2)
    scene.commits.proceed()
    assert scene.brokers.asked == [] and scene.commits.pending
    scene.brokers.deliver(1)
    scene.commits.proceed()
    assert scene.brokers.asked == [3] and scene.commits.done == 0 and scene.task.taken == 5
    scene.brokers.answer()
    scene.commits.proceed()
    assert scene.commits.done == 1 and scene.task.taken == 2 and not scene.commits.pending
    assert scene.commits.open  # two more were written


def test_the_next_commit_completes_a_pending_one_first(scene):
    scene.take(3)
    scene.begin()
    scene.brokers.deliver(3)
    scene.commits.proceed()
    scene.take(4)
    scene.begin(every=True)
    assert scene.brokers.committed == [3, 7] and scene.task.taken == 0 and scene.commits.done == 2
    scene.brokers.answer(GONE)  # of the first request, which nobody waits for any more
    scene.take(1)
    scene.begin()
    scene.brokers.deliver(1)
    scene.commits.proceed()
    assert scene.commits.pending
    scene.brokers.answer()
    scene.commits.proceed()
    assert scene.brokers.committed[-1] == 8 and scene.commits.done == 3


def test_it_asks_again_where_that_helps(scene):
    scene.take(1)
    scene.begin()
    scene.brokers.deliver(1)
    for _ in range(3):
        scene.commits.proceed()
        scene.brokers.answer(RETRIABLE)
        scene.commits.proceed()
    scene.commits.proceed()
    scene.brokers.answer()
    scene.commits.proceed()
    assert scene.brokers.asked == [1, 1, 1, 1] and scene.commits.done == 1


def test_a_partition_that_moved_is_given_up(scene):
    scene.take(1)
    scene.begin()
    scene.brokers.deliver(1)
    scene.commits.proceed()
    scene.brokers.answer(GONE)
    with pytest.raises(Stale):
        scene.commits.proceed()
    scene.commits.abort(lambda: None)
    assert not scene.commits.pending and scene.task.taken == 1


def test_what_could_not_be_written_is_never_committed(scene):
    scene.take(2)
    scene.begin()
    scene.brokers.deliver(1)
    scene.brokers.deliver(1, KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(Aborted):
        scene.commits.proceed()
    scene.commits.abort(lambda: None)
    assert scene.brokers.asked == []
    scene.take(1)
    scene.begin()
    scene.brokers.deliver(1)
    scene.commits.proceed()
    scene.brokers.answer()
    scene.commits.proceed()
    assert scene.commits.done == 1


def test_brokers_that_never_answer(scene):
    scene.take(1)
    scene.begin()
    scene.brokers.deliver(1)
    scene.commits.proceed()
    scene.commits._pending.until = 0.0
    with pytest.raises(Aborted, match="not taken a commit"):
        scene.commits.proceed()


class Large(MatchTask):
    """A task whose state is so large that to tell a version what to write takes three seconds."""

    def __init__(self, clock):
        super().__init__("in-0", {}, None, None, {("in", 0): 0})
        self.clock, self.begun = clock, []

    def freeze(self, keeper):
        self.begun.append(self.clock[0])
        self.clock[0] += 3
        done = Future()
        done.set_result(None)
        self.saving = Saving(f"life/{len(self.begun)}-a", done)


def test_versions_of_a_large_state_take_a_tenth_of_the_time(monkeypatch):
    clock, answers = [100.0], Answers()
    monkeypatch.setattr(commit, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None))
    brokers, task = Brokers(answers), Large(clock)
    commits = AtLeastOnce(brokers, brokers, SimpleNamespace(settle=lambda *_: None), 1.0, answers)
    while clock[0] < 200:
        task.taken += 1
        commits.commit([task], lambda: None)
        brokers.answer()
        commits.proceed()
        clock[0] += 0.5
    gaps = np.diff(task.begun)
    assert len(gaps) >= 2 and (gaps >= 30).all() and (gaps < 35).all()


def test_a_producer_that_cannot_begin_is_given_up_for_another(monkeypatch):
    """As when librdkafka looks for a coordinator that it never finds again."""

    class Lost:
        def init_transactions(self, seconds):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no coordinator", retriable=True))

    times = iter([0.0, 10.0, 31.0])
    monkeypatch.setattr(commit.time, "monotonic", lambda: next(times))
    member, beats = Member.__new__(Member), []
    member._producer, member.watch = Lost(), SimpleNamespace(beat=lambda: beats.append(1))
    with pytest.raises(commit.Rejoin, match="no coordinator"):
        member._begin_transactions()
    assert len(beats) == 1


def test_a_consumer_that_never_closes_is_left_behind(monkeypatch, caplog):
    """As when librdkafka is in the middle of a rebalance that nobody ends any more."""
    monkeypatch.setattr(commit, "SLICE", 0.01)
    monkeypatch.setattr(commit, "STUCK", 0.05)
    end, closed, beats = threading.Event(), [], []

    class Stuck:
        def close(self):
            closed.append(end.wait(30))

    member = Member.__new__(Member)
    member._consumer, member.watch = Stuck(), SimpleNamespace(beat=lambda: beats.append(1))
    member._leave()
    assert not closed and len(beats) == 5 and "left without an answer" in caplog.text
    end.set()
    member._leave()
    assert True in closed
    assert caplog.text.count("left without an answer") == 1
