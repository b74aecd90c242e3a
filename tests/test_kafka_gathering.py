"""What the loop gathers, without a broker: partitions that come anew while messages are in hand."""

import time
from types import SimpleNamespace

import pytest

from latecomer.connectors.kafka.loop import Member


class Message:
    def __init__(self, partition, offset):
        self._place = "in", partition, offset

    def topic(self):
        return self._place[0]

    def partition(self):
        return self._place[1]

    def offset(self):
        return self._place[2]

    def error(self):
        return None


class Task:
    def __init__(self, partition, position):
        self.name = f"in-{partition}"
        self.positions = {("in", partition): position}
        self.taken = 0
        self.given = []

    def take(self, batches):
        self.given += [m.offset() for messages in batches.values() for m in messages]
        return iter(())


class Consumer:
    """Gives a message, and then others, while something happens to the member."""

    def __init__(self, first, others, meanwhile):
        self.calls = [(first, lambda: None), (others, meanwhile)]
        self.assigned = []

    def consume(self, count, seconds):
        messages, meanwhile = self.calls.pop(0)
        meanwhile()
        return messages

    def incremental_unassign(self, parts):
        self.assigned.append([("without", p.partition, p.offset) for p in parts])

    def incremental_assign(self, parts):
        self.assigned.append([("with", p.partition, p.offset) for p in parts])

    def assign(self, parts):
        self.assigned.append([("only", p.partition, p.offset) for p in parts])


@pytest.mark.parametrize("eager", [False, True])
def test_messages_from_before_a_partition_was_opened_anew_are_read_again(eager):
    """A commit failed while a message was in hand: the partition goes back to offset 3, and 7 is not what follows."""
    member = Member.__new__(Member)
    before, stays, anew = Task(0, 7), Task(1, 5), Task(0, 3)

    def reopen():
        member.tasks[before.name] = anew
        member._of["in", 0] = anew
        if eager:
            del member.tasks[stays.name], member._of["in", 1]

    member.tasks = {task.name: task for task in (before, stays)}
    member._of = {("in", 0): before, ("in", 1): stays}
    member._consumer = Consumer([Message(0, 7)], [Message(1, 5), Message(0, 8), Message(1, 6)], reopen)
    member._eager, member._took, member._committed_at = eager, 0.0, time.monotonic()
    member.pipeline = SimpleNamespace(limits=SimpleNamespace(batch=10), transaction=1.0)
    member.commits = SimpleNamespace(pending=False, open=False, quiet_until=0.0)
    member._outbox = SimpleNamespace(add=list)
    member._take_in()
    assert before.given == anew.given == []
    assert stays.given == ([] if eager else [5, 6])
    assert member._consumer.assigned == ([[("only", 0, 3)]] if eager else [[("without", 0, 3)], [("with", 0, 3)]])
