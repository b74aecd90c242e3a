"""A real Kafka broker on this machine, for tests: Apache Kafka in KRaft mode, one process, loopback only.

It needs Java 17 or newer, and for the first start Maven Central, from where Kafka's jars come (46 of them, 45 MB) into
a cache folder: by the Ivy that PySpark brings, else by ``mvn``. After that a start takes about four seconds.

Rules: ports are free ones of 127.0.0.1; data lives in the folder that is given; a restart keeps ports and data; the
broker dies with the process that started it, however that dies. As a pytest fixture, once per test session::

    @pytest.fixture(scope="session")
    def kafka(tmp_path_factory):
        with Broker(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker

    def test_something(kafka):
        topic = kafka.topic(partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})

The settings make a group's start, rebalances and restarts quick; they are none for production.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from latecomer.errors import ConfigError, LatecomerError, MissingDependency
from latecomer.testing.jars import fetch, java

#: What the broker consists of. With slf4j-simple its warnings can be read; without it would be silent.
JARS = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL",
    "auto.create.topics.enable": "false",
    "log.retention.hours": "-1",
    "num.network.threads": "2",
    "num.io.threads": "2",
    # One broker holds the only copy of everything.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A group begins at once, and members may be called lost after one second.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    # After SIGKILL a new start waits for the end of the dead broker's session.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    # A transaction whose producer is gone is aborted soon after its own time-out.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
#: Runs a command that gets SIGKILL when its parent dies (prctl PR_SET_PDEATHSIG), and does not start if it has died.
_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
_PORT_TAKEN = ("Address already in use", "Socket server failed to bind")


class BrokerError(LatecomerError):
    """The broker did not start; the message ends with what it said."""


class Broker:
    """One broker, which is its own controller. It may be stopped, killed and started again on the same data.

    Args:
        folder: where its data, configuration and log live.
        cache: where the jars are kept.
        users: names and passwords; if there are any, a second listener (``sasl_bootstrap``, SASL_PLAINTEXT with PLAIN)
            lets these in, with the rights that ``allow`` gives them. Who comes through ``bootstrap`` may do everything.
        tls: a PEM file with a private key (PKCS 8) and its certificates; a third listener (``tls_bootstrap``, SASL_SSL
            with SCRAM-SHA-512) then lets the users in.
        settings: more of Kafka's broker settings.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str] = ".cache/kafka",
        users: Mapping[str, str] | None = None,
        tls: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._cache = Path(folder).absolute(), Path(cache)
        self._users, self._more = dict(users or {}), dict(settings or {})
        self._tls = None if tls is None else Path(tls).absolute()
        if self._tls is not None and not self._users:
            raise ConfigError("tls lets users in: give users={'name': 'password'} too")
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] | None = None
        self.log = self.folder / "broker.log"

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- addresses ---------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """The address for clients that may do everything."""
        return f"127.0.0.1:{self._known_ports[0]}"

    @property
    def sasl_bootstrap(self) -> str:
        """The address for clients that must say who they are."""
        return f"127.0.0.1:{self._known_ports[2]}"

    @property
    def tls_bootstrap(self) -> str:
        """The address for clients that must say who they are, and are told who the broker is."""
        return f"127.0.0.1:{self._known_ports[3]}"

    @property
    def _known_ports(self) -> list[int]:
        if self._ports is None:
            raise ConfigError("the broker has no address before its first start()")
        return self._ports

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of its process; raises ConfigError when it does not run."""
        if self._process is None or not self.running:
            raise ConfigError("the broker does not run: start() it")
        return self._process.pid

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 90.0) -> None:
        """Start, on the data of an earlier life if there was one; return when clients can work.

        Raises BrokerError with what the broker said when it ends or is not ready within ``timeout`` seconds.
        """
        if self.running:
            raise ConfigError("the broker runs already: stop() or kill() it first")
        jars = fetch(JARS, self._cache)
        self.folder.mkdir(parents=True, exist_ok=True)
        first = self._ports is None
        for attempt in range(3):
            if first:
                self._configure()
            if not (self.folder / "data" / "meta.properties").exists():
                cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
                form = ["format", f"--cluster-id={cluster}", "-c", str(self._properties)]  # it may begin with "-"
                for name, word in self._users.items() if self._tls is not None else ():
                    form += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={word}]"]
                self._run(jars, "kafka.tools.StorageTool", *form)
            offset = self.log.stat().st_size if self.log.exists() else 0
            self._launch(jars)
            try:
                self._wait(time.monotonic() + timeout, offset)
                return
            except BrokerError as error:
                self.kill()
                # A port that was free a moment ago may have been taken by someone else.
                if not first or attempt == 2 or not any(text in str(error) for text in _PORT_TAKEN):
                    raise

    def stop(self) -> None:
        """End it in order (SIGTERM); nothing happens when it does not run."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGCONT)  # a paused process would not hear of it
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL); nothing happens when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Let it stand still (SIGSTOP), as a network that has stalled would look to its clients."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    # --- topics and rights -------------------------------------------------------------------------------------------

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic, by default with a name of its own; ``config`` as in ``cleanup_policy="compact"``."""
        from confluent_kafka import admin

        api: Any = admin  # it does not declare all of its names as its own
        name = name or f"t{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        client = _client(self.bootstrap)  # held here until the topic is there: its end would cancel the request
        client.create_topics([api.NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        return name

    def allow(self, user: str, topic: str, *operations: str) -> None:
        """Let a user of ``users`` do something with a topic: ``"read"``, ``"write"``, ``"describe"``. Rights for
        groups and transactional ids are given with the first call for a user."""
        from confluent_kafka import admin

        api: Any = admin  # it does not declare all of its names as its own

        def rule(kind: Any, name: str, operation: str) -> Any:
            pattern, allowed = api.ResourcePatternType.LITERAL, api.AclPermissionType.ALLOW
            return api.AclBinding(
                kind, name, pattern, f"User:{user}", "*", api.AclOperation[operation.upper()], allowed
            )

        rules = [rule(api.ResourceType.TOPIC, topic, operation) for operation in operations]
        rules += [rule(kind, "*", "all") for kind in (api.ResourceType.GROUP, api.ResourceType.TRANSACTIONAL_ID)]
        client = _client(self.bootstrap)
        for future in client.create_acls(rules).values():
            future.result(30)

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _configure(self) -> None:
        port, controller, sasl, tls = self._ports = _free_ports(4)
        listeners = [f"PLAINTEXT://127.0.0.1:{port}"] + [f"SASL://127.0.0.1:{sasl}"] * bool(self._users)
        listeners += [f"TLS://127.0.0.1:{tls}"] * (self._tls is not None)
        settings = _SETTINGS | {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"]),
            "advertised.listeners": ",".join(listeners),
            "log.dirs": str(self.folder / "data"),
        }
        if self._users:
            known = " ".join(f'user_{name}="{word}"' for name, word in self._users.items())
            settings |= {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
                ),
            }
        if self._tls is not None:
            settings |= {
                "listener.name.tls.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.tls.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                "listener.name.tls.ssl.keystore.type": "PEM",
                "listener.name.tls.ssl.keystore.location": str(self._tls),
            }
        lines = [f"{key}={value}\n" for key, value in (settings | self._more).items()]
        self._properties.write_text("".join(lines))

    def _run(self, jars: Path, *arguments: str) -> None:
        done = subprocess.run(
            self._command(jars, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
        )
        if done.returncode:
            raise BrokerError(f"Kafka could not prepare its folder {str(self.folder)!r}:\n{done.stdout[-2000:]}")

    def _launch(self, jars: Path) -> None:
        command = self._command(jars, "kafka.Kafka", str(self._properties))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self, jars: Path, *arguments: str) -> list[str]:
        return [java(), *_JVM, "-cp", f"{jars}/*", *arguments]

    def _wait(self, until: float, offset: int) -> None:
        """Wait until it tells clients that it is there: an open port is not enough."""
        assert self._process is not None
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise BrokerError(f"the broker ended with code {self._process.returncode}:\n{self._said(offset)}")
            try:
                socket.create_connection(("127.0.0.1", self._known_ports[0]), 0.2).close()
            except OSError:
                time.sleep(0.05)
                continue
            if _answers(self.bootstrap):
                return
        raise BrokerError(f"the broker was not ready in time:\n{self._said(offset)}")

    def _said(self, offset: int) -> str:
        return self.log.read_bytes()[offset:].decode(errors="replace")[-4000:]


def _client(bootstrap: str) -> Any:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError:
        raise MissingDependency("confluent-kafka", "kafka", "Broker") from None
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _answers(bootstrap: str) -> bool:
    from confluent_kafka import KafkaException

    client = _client(bootstrap)
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _free_ports(count: int) -> list[int]:
    """Different ports that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
