"""One member of a pipeline, as a process of its own: ``python -m tests.kafka_member FILE PARENT [DIE]``.

It dies with its parent. ``DIE`` (``step:n``) makes it kill itself, as if by SIGKILL, at the n-th time that a commit
comes to this step.
"""

import ctypes
import logging
import os
import signal
import sys

from latecomer.connectors.kafka import commit, loop, shelf, task
from latecomer.connectors.kafka.config import load
from latecomer.connectors.kafka.operation.watch import Watch


def die_at(step, number):
    """Kill this process when the commit comes to this step for the n-th time."""
    left = [number]

    def strike():
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner, name, *, after):
        original = getattr(owner, name)

        def wrapped(*args, **more):
            if not after:
                strike()
            result = original(*args, **more)
            if after:
                strike()
            return result

        setattr(owner, name, wrapped)

    match step:
        case "write":  # some of a batch's changes are on their way, others not
            around(commit.Outbox, "_write", after=True)
        case "before-version":  # the state is frozen, and nothing of the version written
            around(shelf.WrittenBeside, "_commit", after=False)
        case "after-version":  # the version is there, and no offset names it
            around(shelf.WrittenBeside, "_commit", after=True)
        case "before-naming":  # an offset is about to name it
            around(task.MatchTask, "saved", after=True)
        case "after-offsets":
            original = commit.attempt

            def attempt(call, alive, seconds=120.0):
                result = original(call, alive, seconds)
                strike()  # offsets, commit, offsets, commit …
                return result

            commit.attempt = attempt
        case "after-commit":
            around(commit.ExactlyOnce, "_settle", after=False)
        case _:
            raise ValueError(step)


class Fields(logging.Formatter):
    def format(self, record):
        return f"{super().format(record)} {getattr(record, 'fields', '')}"


def main(file, parent, die=""):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Fields("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if die:
        step, _, number = die.partition(":")
        die_at(step, int(number))
    watch = Watch()
    signal.signal(signal.SIGTERM, lambda *_: watch.stop())
    loop.run(load(file), watch)


if __name__ == "__main__":
    main(*sys.argv[1:])
