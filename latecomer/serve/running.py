"""Running a service: the backend, the application and the server, from the start to an end in order."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latecomer.connectors.metrics import Metrics
from latecomer.errors import ConfigError
from latecomer.serve.config import HttpPipeline, KafkaPipeline, Serve, Served, Site
from latecomer.serve.inbox import Closed, Overloaded
from latecomer.serve.live import Live
from latecomer.serve.metrics import ServiceMetrics
from latecomer.serve.reading import BodyReader, Form, Parsed
from latecomer.serve.service import Service

if TYPE_CHECKING:
    from latecomer.runtime import Runtime
    from latecomer.serve.backend import Backend

log = logging.getLogger("latecomer.serve")
#: Told once connections are accepted: the address.
Announce = Callable[[str], None]


def run(pipeline: Served, token: str | None, announce: Announce) -> None:
    """Serve a pipeline until SIGTERM or SIGINT.

    Raises ConfigError for an address that cannot be had, StateError for a state that cannot be used, and what made the
    worker fail.
    """
    live = Live(pipeline.queries, pipeline.stream, name=pipeline.name, paired=isinstance(pipeline, HttpPipeline))
    backend: Backend
    if isinstance(pipeline, KafkaPipeline):
        from latecomer.serve.kafka import KafkaService

        clustered = backend = KafkaService(pipeline, live)
        metrics = ServiceMetrics(clustered.figures, clustered.registry)
    else:
        service = backend = _service(pipeline, live)
        metrics = _metrics(service, pipeline.name)
    _serve(
        backend, Site(pipeline.name, pipeline.serve, token, pipeline, pipeline.operation.shutdown), metrics, announce
    )


def run_demo(options: Serve, token: str | None, announce: Announce, *, speed: float, start: str | None) -> None:
    """Serve the flights, as if they arrived now; nothing is kept."""
    from latecomer.serve.demo import play, reel, setting

    film = reel(speed=speed, start=start)
    stream, queries = setting()
    live = Live(queries, stream, name="flights")
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="latecomer-demo-") as folder:
        service = Service(stream, queries, _table, Path(folder), interval=60, live=live)

        def submit(table: pa.Table) -> None:
            """Hand over a table, and wait while there is no room."""
            body = _stream_of(table)
            while not stop.is_set():
                try:
                    service.submit(body, "arrow").result()
                    return
                except Overloaded:
                    stop.wait(0.05)
                except Closed:
                    stop.set()

        player = threading.Thread(target=play, args=(film, submit, stop), name="latecomer-demo", daemon=True)

        def announced(address: str) -> None:
            announce(address)
            player.start()

        try:
            _serve(service, Site("flights", options, token), _metrics(service, "flights"), announced)
        finally:
            stop.set()


def _service(pipeline: HttpPipeline, live: Live) -> Service:
    options = pipeline.serve
    return Service(
        pipeline.stream,
        pipeline.queries,
        BodyReader(pipeline),
        Path(pipeline.state.uri),
        memory=pipeline.memory,
        interval=pipeline.state.interval,
        idle_check=pipeline.operation.idle_check,
        inbox=options.inbox,
        keep=options.keep,
        matches=options.matches,
        live=live,
    )


def _metrics(service: Service, name: str) -> ServiceMetrics:
    """The service's metrics and its runtime's, which counts from where this process begins."""
    metrics = ServiceMetrics(service.figures)
    own = Metrics(name, metrics.registry, since=service.runtime.explain())

    def look(runtime: Runtime) -> None:
        own.update(runtime)

    service.on_look(look)
    return metrics


def _serve(backend: Backend, site: Site, metrics: ServiceMetrics, announce: Announce) -> None:
    import uvicorn

    from latecomer.serve.app import Api
    from latecomer.serve.server import IDLE_SECONDS, Protocol, Server, listen, more_files

    more_files()
    options, api = site.options, Api(backend, site, metrics)
    try:
        listener = listen(options.host, options.port)
    except OSError as problem:
        raise ConfigError(
            f"the port {options.port} of {options.host} cannot be had: {problem.strerror}; give another one, or 0 for "
            "any that is free"
        ) from None
    config: Any = uvicorn.Config(
        api.asgi,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(int(site.shutdown), 1),
    )
    host = f"[{options.host}]" if ":" in options.host else options.host

    def started(port: int) -> None:
        log.info("serving", extra={"fields": {"address": f"http://{host}:{port}/"}})
        announce(f"http://{host}:{port}/")

    server = Server(config, started, api.end)
    watcher = threading.Thread(target=_end_with, args=(backend, server), name="latecomer-watch", daemon=True)
    watcher.start()
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        backend.stop()
    if backend.failed is not None:
        raise backend.failed


def _end_with(backend: Backend, server: Any) -> None:
    """Where the worker fails the process ends, so that whoever looks after it starts it again."""
    while not server.should_exit:
        if backend.failed is not None:
            server.should_exit = True
        time.sleep(0.2)


def _table(form: Form, body: bytes, number: int, at: int) -> Parsed:
    """A table of our own making, as it is."""
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    return Parsed(table, (), table.num_rows)


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
