"""A load test on this machine alone: a broker, the pipeline as a process of its own, Locust headless, a verdict.

    python -m loadtest                                  a minute of 10 sources, 10 % of the events late
    python -m loadtest -u 20 -t 5m --shape outage --late 0.3 --tail pareto

What follows goes to Locust. The exit code is Locust's: 0 where nothing was missed, wrong, duplicated or lost.
"""

from __future__ import annotations

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
from pathlib import Path

from latecomer.connectors.kafka.config import load
from latecomer.testing.kafka import Broker

HERE = Path(__file__).parent
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


def python(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """A Python process that ends with this one."""
    command = [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *arguments]
    return subprocess.Popen(command, **options)  # type: ignore[call-overload, no-any-return]


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ready(running: subprocess.Popen[bytes], port: int, seconds: float = 60.0) -> None:
    """Wait until the pipeline has joined its group: what comes before would count as its latency."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and running.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"the pipeline was not ready within {seconds:.0f} s")


def main(arguments: list[str]) -> int:
    """Run it all; returns the exit code."""
    given = [word for word, value in DEFAULTS.items() if word not in arguments for word in (word, value)]
    folder = Path(tempfile.mkdtemp(prefix="latecomer-loadtest-"))
    try:
        with Broker(folder / "kafka", cache=HERE.parent / ".cache" / "kafka") as broker:
            port, pipeline = free_port(), folder / "pipeline.toml"
            text = (HERE / "pipeline.toml").read_text(encoding="utf-8")
            pipeline.write_text(re.sub(r"^port = \d+", f"port = {port}", text, flags=re.MULTILINE), encoding="utf-8")
            os.environ |= {"BROKERS": broker.bootstrap, "STATE": str(folder / "state")}
            create_topics(broker, pipeline)
            with (folder / "pipeline.log").open("wb") as log:
                running = python("-m", "latecomer", "run", str(pipeline), stdout=log, stderr=log)
            try:
                ready(running, port)
                locust = ["-m", "locust", "-f", str(HERE / "locustfile.py"), "--headless", "--only-summary"]
                locust += ["--pipeline", str(pipeline)]
                code = python(*locust, *given, *arguments).wait()
            finally:
                running.send_signal(signal.SIGTERM)
                try:
                    stopped = running.wait(30)
                except subprocess.TimeoutExpired:
                    running.kill()
                    stopped = running.wait()
            if stopped != 0:
                print((folder / "pipeline.log").read_text()[-4_000:], file=sys.stderr)
                print(f"FAILED: the pipeline ended with exit code {stopped}", file=sys.stderr)
            return code or int(stopped != 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
