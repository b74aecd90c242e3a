"""Members of a pipeline, each a process of its own, and the nursery that forks them.

The nursery (``python -m tests.kafka_member PARENT``) has imported everything once, which takes longer than most members
live. It is told what to do by lines of JSON, and answers each by one: ``["start", file, log, die]`` by the
new member's process id, ``["ask", id]`` by its exit code, or null while it runs.

Members die with the nursery, and this with its parent. ``die`` (``step:n``) makes a member kill itself, as if by
SIGKILL, at the n-th time that a commit comes to this step; ``work:seconds`` after so much processor time since it
opened its first partition, wherever it is then: time on the wall would say nothing on a busy machine.
"""

import ctypes
import json
import logging
import os
import signal
import sys
import traceback

from latecomer.connectors.kafka import commit, loop, shelf, task
from latecomer.connectors.kafka.config import load
from latecomer.connectors.kafka.operation.watch import Watch


def die_after(seconds):
    """Kill this process after so much processor time since it opened its first partition."""
    original = loop.Member._open

    def opened(member, parts):
        original(member, parts)
        if parts and not signal.getitimer(signal.ITIMER_PROF)[0]:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # whose signal ends a process that does not catch it at once

    loop.Member._open = opened


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


def run(file, die=""):
    """Be a member until SIGTERM, or until ``die``."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Fields("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    step, _, number = die.partition(":")
    if step == "work":
        die_after(float(number))
    elif step:
        die_at(step, int(number))
    watch = Watch()
    signal.signal(signal.SIGTERM, lambda *_: watch.stop())
    loop.run(load(file), watch)


def die_with(parent):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def start(file, log, die):
    """Fork a member; returns its process id."""
    nursery, pid = os.getpid(), os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(nursery)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        os.dup2(1, 2)
        run(file, die)
        code = 0
    except BaseException:  # noqa: BLE001 (it is told, and must not go on in the nursery's loop)
        traceback.print_exc()
    finally:
        os._exit(code)


def ask(pid):
    """A member's exit code; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def main(parent):
    die_with(int(parent))
    for line in sys.stdin:
        name, *given = json.loads(line)
        sys.stdout.write(json.dumps({"start": start, "ask": ask}[name](*given)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
