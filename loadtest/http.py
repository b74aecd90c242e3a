"""The fleet's events by HTTP, and a service's answers from there: the same as ``wire.py``, without Kafka.

Rules: a source has one connection and sends its events in order, each request under a key of its own; one that is told
to wait, or hears nothing, sends the same again. The reader follows the changes as they come, and looks for late events
and dead letters a few times a second.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from latecomer.errors import ConfigError
from loadtest.outbox import Events
from loadtest.truth import LONE
from loadtest.wire import TYPES, Answers, Change, broken_ids, late_ids, messages, now_ms

#: Events in one request.
AT_ONCE = 5_000
#: Seconds between two looks for late events and dead letters.
LOOK = 0.2
#: Seconds for which a request is tried again.
PATIENCE = 60.0
LINES, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Service:
    """A service under test: its address, and the form in which it is sent events, ``lines`` or ``arrow``."""

    url: str
    form: str = "lines"

    def sender(self, source: int) -> HttpSender:
        """A connection of its own for a source."""
        return HttpSender(self, source)

    def reader(self) -> HttpReader:
        """Whoever reads the answers."""
        return HttpReader(self)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigError(f"{self.url!r} is no address of a service: give one like http://127.0.0.1:8321")
        return parts.hostname, parts.port or 80

    @property
    def headers(self) -> dict[str, str]:
        """What every request needs: the token, where the environment has one."""
        token = os.environ.get("LATECOMER_TOKEN")
        return {"Authorization": f"Bearer {token}"} if token else {}


class HttpSender:
    """One connection to the service, which belongs to one source."""

    def __init__(self, service: Service, source: int) -> None:
        self._service, self._source = service, source
        self._connection: http.client.HTTPConnection | None = None
        self._name, self._number = uuid.uuid4().hex[:12], 0

    def send(self, events: Events) -> int:
        """Hand over events in order; returns how many bytes. Waits where the service says so."""
        size = 0
        for begin in range(0, len(events), AT_ONCE):
            for kind, body in self._bodies(events[begin : begin + AT_ONCE]):
                self._post(kind, body)
                size += len(body)
        return size

    def close(self, seconds: float = 10.0) -> int:
        """Nothing is on its way: what was sent is acknowledged."""
        if self._connection is not None:
            self._connection.close()
        return 0

    def _bodies(self, events: Events) -> Iterator[tuple[str, bytes]]:
        broken = events["poison"]
        if self._service.form == "arrow":
            if not broken.all():
                yield ARROW, arrow_body(events[~broken], self._source)
            events = events[broken]
        if len(events):
            yield LINES, b"\n".join(message["value"] for message in messages(events, self._source)) + b"\n"

    def _post(self, kind: str, body: bytes) -> None:
        self._number += 1
        headers = {"Content-Type": kind, "Idempotency-Key": f"{self._name}-{self._number}", **self._service.headers}
        end = time.monotonic() + PATIENCE
        problem: object = None
        while time.monotonic() < end:
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(*self._service.address, timeout=PATIENCE)
                self._connection.request("POST", "/v1/events", body, headers)
                answer = self._connection.getresponse()
                told = answer.read()
            except (OSError, http.client.HTTPException) as failed:
                problem, self._connection = failed, None
                time.sleep(0.1)
                continue
            if answer.status in (202, 422):  # 422: all of it was broken, and is dead letters now
                return
            problem = told[:200]
            if answer.status not in (429, 503):
                break
            time.sleep(min(float(answer.headers.get("Retry-After", 1)), 1.0) / 4)
        raise RuntimeError(f"the service does not take events: {problem!r}")


def arrow_body(events: Events, source: int) -> bytes:
    """Events as an Arrow stream."""
    number, part = events["id"] >> 2, events["id"] & 3
    table = pa.table(
        {
            "id": pa.array(events["id"]).cast(pa.string()),
            "type": pa.DictionaryArray.from_arrays(part.astype("int8"), TYPES),
            "ts": pa.array(events["ts"]),
            "key": [f"{'n' if p == LONE else 'k'}{n}" for n, p in zip(number.tolist(), part.tolist(), strict=True)],
            "source": pa.array([f"s{source}"] * len(events)),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class HttpReader:
    """Reads changes, late events and dead letters, from where they ended when it was made."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decode = msgspec.json.Decoder(Change).decode
        self._asking: http.client.HTTPConnection | None = None
        self._looked = 0.0
        self._places = {name: int(self._ask(f"/v1/{name}?limit=1")["newest"]) for name in ("late", "dead")}
        self._buffer, self._last = b"", None
        self._stream: socket.socket | None = None
        self._follow()

    def read(self, seconds: float = 0.05) -> Answers:
        """What has come; waits up to so long for the first."""
        answers = Answers()
        self._changes(answers, seconds)
        answers.at = now_ms()
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            answers.late = late_ids(self._rows("late"))
            answers.dead = broken_ids(row.get("text", "").encode() for row in self._rows("dead"))
        return answers

    def close(self) -> None:
        for connection in (self._stream, self._asking):
            if connection is not None:
                connection.close()

    def _follow(self) -> None:
        """Open the stream of changes, behind the last one that was read. HTTP/1.0, so that it comes as it is."""
        place = "" if self._last is None else f"?after={self._last}"
        host, port = self._service.address
        more = "".join(f"{name}: {value}\r\n" for name, value in self._service.headers.items())
        stream = socket.create_connection((host, port), timeout=10)
        stream.sendall(f"GET /v1/changes{place} HTTP/1.0\r\nHost: {host}:{port}\r\n{more}\r\n".encode())
        head = b""
        while b"\n\n" not in head.partition(b"\r\n\r\n")[2]:  # the head, and the first words of the stream
            found = stream.recv(65_536)
            if not found:
                raise ConfigError(f"the service does not tell changes: {head[:200]!r}")
            head += found
        self._buffer = head.partition(b"\r\n\r\n")[2]
        self._stream = stream

    def _changes(self, answers: Answers, seconds: float) -> None:
        try:
            if self._stream is None:
                self._follow()
            assert self._stream is not None
            self._stream.settimeout(seconds)
            found = self._stream.recv(1 << 20)
            if not found:
                raise ConnectionError("the stream has ended")
            self._buffer += found
        except TimeoutError:
            pass
        except (OSError, ConfigError):
            self._stream = None
            time.sleep(0.1)
        whole, mark, rest = self._buffer.rpartition(b"\n\n")
        self._buffer = rest if mark else self._buffer
        for event in whole.split(b"\n\n"):
            _, mark, data = event.partition(b"\ndata: ")
            if mark and not event.startswith(b"event: gap"):
                answers.take(self._decode(data))
                self._last = event.partition(b"id: ")[2].partition(b"\n")[0].decode()

    def _rows(self, name: str) -> list[dict[str, Any]]:
        try:
            told = self._ask(f"/v1/{name}?after={self._places[name]}&limit=10000")
        except (OSError, http.client.HTTPException):
            return []
        if told["rows"]:
            self._places[name] = told["rows"][-1]["position"]
        return list(told["rows"])

    def _ask(self, path: str) -> dict[str, Any]:
        if self._asking is None:
            self._asking = http.client.HTTPConnection(*self._service.address, timeout=30)
        try:
            self._asking.request("GET", path, headers=self._service.headers)
            answer = self._asking.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._asking = None
            raise
        if answer.status != 200:
            raise ConfigError(f"{self._service.url}{path}: {answer.status} {body[:200]!r}")
        return dict(json.loads(body))
