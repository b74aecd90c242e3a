"""Java libraries by name from Maven Central, for tests that need a real server, kept in a cache folder.

Rules: a folder is complete or not used (a stamp file, written last, names what it holds); several processes may ask
at once, and one of them fetches; nothing is fetched again while the stamp says what is asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from latecomer.errors import ConfigError

#: Seconds for one attempt to fetch: the downloads are small, but machines in CI may be slow.
TIME = 600

_IVY = """<ivy-module version="2.0">
  <info organisation="local" module="jars"/>
  <dependencies>{}</dependencies>
</ivy-module>
"""
_IVY_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default"/>'
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_POM_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def java() -> str:
    """The command that runs Java: of ``JAVA_HOME``, else of the path. Raises ConfigError when there is none."""
    home = os.environ.get("JAVA_HOME")
    found = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if found is None:
        raise ConfigError("there is no Java: install version 17 or newer, or set JAVA_HOME")
    return found


def fetch(coordinates: Sequence[str], cache: str | os.PathLike[str]) -> Path:
    """The folder that holds these libraries (``"group:artifact:version"``) and all that they need to run.

    Raises ConfigError, with what was said, when they cannot be fetched.
    """
    name = hashlib.sha256("\n".join(coordinates).encode()).hexdigest()[:12]
    root = Path(cache).absolute()
    folder, stamp = root / name, root / name / ".complete"
    if stamp.exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / f"{name}.lock"):
        if not stamp.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _fetch([c.split(":") for c in coordinates], folder)
            stamp.write_text("\n".join(coordinates) + "\n")
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(coordinates: Sequence[Sequence[str]], folder: Path) -> None:
    ivy = _ivy()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / ("ivy.xml" if ivy else "pom.xml")
        if ivy is not None:
            file.write_text(_IVY.format("".join(_IVY_DEPENDENCY.format(*c) for c in coordinates)))
            pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
            # Ivy's own folder is named too, so that nothing is written into the user's home.
            command = [
                java(), f"-Divy.default.ivy.user.dir={scratch}", "-jar", str(ivy), "-cache", f"{scratch}/cache",
                "-ivy", str(file), "-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern,
            ]  # fmt: skip
        elif (mvn := shutil.which("mvn")) is not None:
            file.write_text(_POM.format("".join(_POM_DEPENDENCY.format(*c) for c in coordinates)))
            command = [
                mvn, "-q", "-B", "-ntp", "-f", str(file), "dependency:copy-dependencies", "-DincludeScope=runtime",
                f"-DoutputDirectory={folder}",
            ]  # fmt: skip
        else:
            raise ConfigError(
                "fetching Java libraries needs the package pyspark, which brings Ivy, or the program mvn: "
                "pip install 'latecomer[spark]', or install Maven"
            )
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIME)
    found = {path.name for path in folder.glob("*.jar")}
    missing = [":".join(c) for c in coordinates if f"{c[1]}-{c[2]}.jar" not in found]
    if done.returncode or missing:
        raise ConfigError(
            f"{', '.join(missing) or 'the libraries'} could not be fetched from Maven Central:\n{done.stdout[-3000:]}"
        )


def _ivy() -> Path | None:
    """The Ivy that PySpark brings."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))), None)
