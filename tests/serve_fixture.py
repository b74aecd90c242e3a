"""``latecomer serve`` as a process of its own, and a small client."""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "sys.exit(1) if os.getppid() != int(sys.argv[1]) else os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)

PIPELINE = """
name = "served"
{top}
[columns]
k = "text"
x = "float"
n = "int"
[[input]]
types = ["A", "B", "C"]
source = "from"
{input}
[[query]]
name = "q"
level = "aggressive(max_delay = 30 d)"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND c.x >= a.x WITHIN 10 minutes RETURN a.k AS k"
[state]
uri = "{state}"
interval = "{interval}"
[limits]
max_message = {most}
[serve]
{serve}
"""
MINUTE = 60_000


def pipeline(folder, *, top="", input="", serve="", interval="300 ms", state="state", most=2_000):
    """A pipeline's file in a folder, with a state folder beside it."""
    file = folder / "served.toml"
    file.write_text(
        PIPELINE.format(top=top, input=input, serve=serve, interval=interval, state=folder / state, most=most),
        encoding="utf-8",
    )
    return file


def events(count, seed=0, keys=12, late=0.3, long=0):
    """Events with ids of their own, some of them late by up to a day. Their keys begin with ``long`` characters."""
    rng = random.Random(seed)
    now, made = 20 * 1440 * MINUTE, []
    for number in range(count):
        now += rng.randrange(20_000)
        delay = int(1440 * MINUTE * rng.random() ** 4) if rng.random() < late else 0
        made.append(
            {
                "id": f"e{number}", "type": rng.choice("AABCC"), "ts": now - delay,
                "k": f"{'k' * long}k{rng.randrange(keys)}", "x": round(rng.random() * 3, 1), "from": f"s{number % 3}",
            }
        )  # fmt: skip
    return made


def lines(given):
    """Events as JSON lines."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in given)


class Server:
    """A running service. ``address``: host and port."""

    def __init__(self, arguments, log, env=None):
        self._log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", WITH_PARENT, str(os.getpid()), "-m", "latecomer", "serve", *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=file, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
            )  # fmt: skip
        end, told = time.monotonic() + 60, b""
        while not told.endswith(b"\n") and time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.2)[0]:
                more = os.read(self.process.stdout.fileno(), 4096)
                assert more, f"it has ended: {self.said()}"
                told += more
        assert told.endswith(b"/\n"), self.said()
        self.url = told.decode().strip()
        host, _, port = self.url.removeprefix("http://").rstrip("/").rpartition(":")
        self.address = host.strip("[]"), int(port)

    def said(self):
        return self._log.read_text()[-4000:]

    def connection(self, timeout=30):
        return http.client.HTTPConnection(*self.address, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=30):
        """Status, headers and body of an answer."""
        connection = self.connection(timeout)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path, headers=None):
        status, _, body = self.ask("GET", path, headers=headers)
        assert status == 200, (status, body, self.said())
        return json.loads(body)

    def send(self, body, kind="application/x-ndjson", **headers):
        """Status and document of an answer to events."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, told = self.ask("POST", "/v1/events", body, {"Content-Type": kind, **headers})
        return status, json.loads(told)

    def say(self, word, **arguments):
        body, kind = json.dumps(arguments).encode(), {"Content-Type": "application/json"}
        status, _, told = self.ask("POST", f"/v1/{word}", body, kind)
        return status, json.loads(told)

    def changes(self, after="0", wait=0, headers=None):
        """The changes behind a place, as (id, change)."""
        query = f"/v1/changes?wait={wait}" + (f"&after={after}" if after is not None else "")
        status, _, body = self.ask("GET", query, headers=headers)
        assert status == 200, (status, body)
        return list(parsed(body))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, seconds=30):
        """End it in order; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(seconds)
        self.process.stdout.close()
        return code


def parsed(body):
    """Server-sent events as (id, change); gaps as (id, None)."""
    for piece in body.decode().split("\n\n"):
        told = dict(line.split(": ", 1) for line in piece.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in told:
            change = json.loads(told["data"])
            if told["event"] == "gap":
                yield told["id"], None
            else:
                assert told["event"] == change["op"]
                yield told["id"], change


@contextmanager
def serving(*arguments, log, env=None):
    """A service for the block."""
    server = Server([*arguments, "--port", "0"], log, env)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def net(found):
    """The matches that hold after these changes; none may come or go twice."""
    alive = {}
    for _, change in found:
        assert change is not None
        if change["op"] == "insert":
            assert change["match_id"] not in alive, f"inserted twice: {change}"
            alive[change["match_id"]] = tuple(change["events"])
        else:
            assert alive.pop(change["match_id"], None) is not None, f"deleted, but not there: {change}"
    return sorted(alive.values())
