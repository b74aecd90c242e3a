"""A small HTTP server for those who watch a process: ``/healthz``, ``/readyz``, ``/metrics``, ``/explain``.

| path | 200 | 503 |
|---|---|---|
| ``/healthz`` | the loop goes round | it has not for 30 seconds: start the process again |
| ``/readyz`` | it has its partitions and their state | it is starting, rebalancing or stopping |
| ``/metrics`` | Prometheus's text | – |
| ``/explain`` | by partition what is held and what each match waits for, as JSON | the loop is busy |
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from latecomer.connectors.kafka.operation.explaining import Explaining
from latecomer.connectors.kafka.operation.watch import Watch
from latecomer.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Seconds after which a client that says nothing is let go.
PATIENCE = 10


@contextmanager
def serving(watch: Watch, registry: CollectorRegistry, explaining: Explaining, host: str, port: int) -> Iterator[str]:
    """Serve while the block runs; what is yielded is the address. Port 0 means any free one.

    Raises ConfigError when the port cannot be had.
    """

    class Handler(_Handler):
        pass

    Handler.watch, Handler.registry, Handler.explaining = watch, registry, explaining
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as problem:
        raise ConfigError(
            f"the port {port} of {host} cannot be had: {problem.strerror}; give another one in [operation], or 0 for "
            "any that is free"
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="latecomer-http", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    watch: Watch
    registry: CollectorRegistry
    explaining: Explaining
    timeout = PATIENCE

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._say(self.watch.alive, {"alive": self.watch.alive})
        elif path == "/readyz":
            self._say(self.watch.is_ready, {"ready": self.watch.is_ready, "stopping": self.watch.stopping})
        elif path == "/metrics":
            from prometheus_client.exposition import choose_encoder

            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._send(200, kind, encode(self.registry))
        elif path == "/explain":
            told = self.explaining.ask()
            self._say(told is not None, {"busy": True} if told is None else told)
        else:
            self._send(404, "text/plain; charset=utf-8", b"there are /healthz, /readyz, /metrics and /explain\n")

    def _say(self, good: bool, told: Mapping[str, Any]) -> None:
        self._send(200 if good else 503, "application/json", json.dumps(told, default=str).encode() + b"\n")

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: probes come every few seconds."""
