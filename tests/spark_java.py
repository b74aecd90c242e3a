"""How tests start the Java of Spark: small, and from an archive of classes that are loaded already.

Half of what a session costs until its first answer is loading and checking some ten thousand classes. Java can keep
them as it has them in memory; the archive is made once, by a small job, and lies in the cache of this checkout.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from latecomer.testing import jars

CACHE = Path(__file__).parent.parent / ".cache" / "spark"

#: Options for sessions that do little.
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"

#: Settings of sessions that do little. Without the last two, Spark writes a checksum beside each of a checkpoint's many
#: small files, and starts four times ``readlink`` for each, which takes longer than the writing.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

#: Where the job that the archive is made of finds its options.
_MAKING = "LATECOMER_TEST_JAVA"


def options():
    """The options for drivers and executors; without the archive where this Java makes none."""
    if _MAKING in os.environ:
        return os.environ[_MAKING]
    java = os.path.realpath(jars.java())
    about = f"{java} {os.stat(java).st_mtime} {pyspark.__file__} {pyspark.__version__}"
    archive = CACHE / f"classes-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa"
    CACHE.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return f"{SMALL} -XX:SharedArchiveFile={archive}" if archive.stat().st_size else SMALL


def _make(archive):
    """Run a job in a Java that keeps its classes as it ends; an empty file tells that it kept none."""
    from tests import spark_job

    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        new = Path(folder) / "new.jsa"
        spark_job.write_input(Path(folder) / "0", [spark_job.events(1)])
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        own = {_MAKING: f"{SMALL} -XX:ArchiveClassesAtExit={new}", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.spark_job", folder, "local[2]"]
        # Java ends after its parent, and until then it holds the pipes.
        subprocess.run(command, env=os.environ | own, capture_output=True, check=True)
        new.touch()
        new.rename(archive)
