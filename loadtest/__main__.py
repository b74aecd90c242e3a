"""A load test on this machine alone: a broker, the pipeline as a process of its own, Locust headless, a verdict.

    python -m loadtest                                  a minute of 10 sources, 10 % of the events late
    python -m loadtest -u 20 -t 5m --shape outage --late 0.3 --tail pareto
    python -m loadtest --engine spark                   the same query as a Spark job on Kafka
    python -m loadtest --engine serve                   the same query as a service, by HTTP and without a broker

What follows goes to Locust. The exit code is Locust's: 0 where nothing was missed, wrong, duplicated or lost.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from latecomer.connectors.kafka.config import load
from latecomer.testing.kafka import Broker

HERE = Path(__file__).resolve().parent
#: Where Java's libraries are kept.
CACHE = HERE.parent / ".cache"
#: Runs a command that is killed when this process dies.
_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "sys.exit(1) if os.getppid() != int(sys.argv[1]) else os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
#: Partitions of the topic under load.
PARTITIONS = 4
DEFAULTS = {"-u": "10", "-t": "60s"}


def create_topics(broker: Broker, pipeline: Path) -> None:
    """The topics that the pipeline reads and writes."""
    read = load(pipeline)
    for topic in read.topics:
        broker.topic(PARTITIONS, topic)
    for written in (read.output.changes, read.output.late):
        if written is not None:
            broker.topic(PARTITIONS, written.topic)
    broker.topic(1, read.output.dead_letters)


def python(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A Python process that ends with this one."""
    command = [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *arguments]
    return subprocess.Popen(command, **options)


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def joined(port: int) -> bool:
    """Whether a pipeline has joined its group: what it does before would count as its latency."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return True
    except OSError:
        return False


def ready(running: subprocess.Popen[bytes], is_ready: Callable[[], bool], seconds: float = 180.0) -> bool:
    """Wait until a process is ready; False where it ends or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and running.poll() is None:
        if is_ready():
            return True
        time.sleep(0.1)
    return False


@contextmanager
def pipeline_under_test(
    broker: Broker, folder: Path, text: str | None = None, engine: str = "latecomer"
) -> Iterator[Path]:
    """Its topics, and the pipeline as a process that is ready; yields its file, which finds the broker and the state by
    the environment. ``text``: another file than the one beside this module. ``engine``: ``latecomer`` (run), or
    ``spark``.

    Raises RuntimeError, with the end of its log, where it does not start or does not end in order.
    """
    port, pipeline = free_port(), folder / "pipeline.toml"
    given = text if text is not None else (HERE / "pipeline.toml").read_text(encoding="utf-8")
    pipeline.write_text(re.sub(r"^port = \d+", f"port = {port}", given, flags=re.MULTILINE), encoding="utf-8")
    os.environ |= {"BROKERS": broker.bootstrap, "STATE": str(folder / "state")}
    create_topics(broker, pipeline)
    log = folder / "pipeline.log"
    command, is_ready = ["-m", "latecomer", "run", str(pipeline)], partial(joined, port)
    if engine == "spark":
        mark = folder / "ready"
        command, is_ready = [str(HERE / "spark_job.py"), str(pipeline), str(mark), str(CACHE / "spark")], mark.exists
    with log.open("wb") as file:
        running = python(*command, stdout=file, stderr=file)
    try:
        if not ready(running, is_ready):
            raise RuntimeError(f"the pipeline was not ready in time\n{log.read_text()[-4_000:]}")
        yield pipeline
        running.send_signal(signal.SIGTERM)
        if running.wait(60) != 0:
            raise RuntimeError(f"the pipeline ended with exit code {running.returncode}\n{log.read_text()[-4_000:]}")
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()


@contextmanager
def service_under_test(folder: Path, text: str | None = None) -> Iterator[str]:
    """A service without a broker as a process that is ready; yields its address. ``text``: another pipeline's file than
    ``served.toml`` beside this module.

    Raises RuntimeError, with the end of its log, where it does not start or does not end in order.
    """
    pipeline = folder / "served.toml"
    pipeline.write_text(text if text is not None else (HERE / "served.toml").read_text(encoding="utf-8"))
    os.environ["STATE"] = str(folder / "state")
    log = folder / "service.log"
    with log.open("wb") as file:
        command = ["-m", "latecomer", "serve", str(pipeline), "--port", "0"]
        running = python(*command, stdout=subprocess.PIPE, stderr=file)
    try:
        assert running.stdout is not None
        address = running.stdout.readline().decode().strip()  # empty where it has ended
        if not address:
            raise RuntimeError(f"the service did not start\n{log.read_text()[-4_000:]}")
        yield address
        running.send_signal(signal.SIGTERM)
        if running.wait(60) != 0:
            raise RuntimeError(f"the service ended with exit code {running.returncode}\n{log.read_text()[-4_000:]}")
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()


def locust(pipeline: Path, arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Locust on a pipeline, as a process."""
    return python("-m", "locust", "-f", str(HERE / "locustfile.py"), "--pipeline", str(pipeline), *arguments, **options)


def main(arguments: list[str]) -> int:
    """Run it all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", allow_abbrev=False, add_help=False)
    parser.add_argument("--engine", choices=("latecomer", "spark", "serve"), default="latecomer")
    own, arguments = parser.parse_known_args(arguments)
    given = [word for option, value in DEFAULTS.items() if option not in arguments for word in (option, value)]
    folder = Path(tempfile.mkdtemp(prefix="latecomer-loadtest-"))
    arguments = ["--headless", "--only-summary", *given, *arguments]
    try:
        if own.engine == "serve":
            with service_under_test(folder) as address:
                return locust(HERE / "served.toml", ["--service", address, *arguments]).wait()
        with (
            Broker(folder / "kafka", cache=CACHE / "kafka") as broker,
            pipeline_under_test(broker, folder, engine=own.engine) as pipeline,
        ):
            return locust(pipeline, arguments).wait()
    except RuntimeError as problem:
        print(f"FAILED: {problem}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
