"""Engines on the Java virtual machine: fetched from package registries when first asked for, compiled, run.

Rule: versions are pinned and every jar's checksum is compared before it is used. The drivers in ``java/`` feed events
from memory, in one thread where the engine allows, keep the ids of all matches, and take the time themselves, so that
neither the start of the machine nor reading files counts. Each driver makes one shorter run first, as a warm-up.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Timing
from benchmarks.limit import IntArray
from benchmarks.shapes import Shape
from latecomer.errors import ConfigError
from latecomer.testing import jars

ROOT = Path(__file__).resolve().parent
#: Where engines and compiled drivers are kept.
CACHE = ROOT.parent / ".cache" / "bench-peers"

FLINK, ESPER = "2.3.0", "9.0.0"

_CHECKSUMS = ROOT / "java" / "checksums.txt"
_OPENS = [
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
]


def flink_jars() -> list[Path]:
    """Flink and its CEP library, which the package ``apache-flink-libraries`` carries."""
    folder = CACHE / f"flink-{FLINK}"
    stamp = folder / ".complete"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        package = f"apache-flink-libraries=={FLINK}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), package]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        if done.returncode:
            raise ConfigError(f"{package} could not be installed:\n{done.stdout[-2000:]}")
        stamp.touch()
    names = (f"flink-dist-{FLINK}.jar", f"flink-cep-{FLINK}.jar", "log4j-api-2.25.3.jar", "log4j-core-2.25.3.jar")
    return [folder / "pyflink" / "lib" / name for name in (*names, "log4j-slf4j-impl-2.25.3.jar")]


def esper_jars() -> list[Path]:
    """Esper's compiler and runtime, with what they need."""
    wanted = [f"com.espertech:esper-{part}:{ESPER}" for part in ("common", "compiler", "runtime")]
    return sorted(jars.fetch(wanted, CACHE).glob("*.jar"))


def checked(files: Sequence[Path]) -> list[str]:
    """The files as a class path; raises ConfigError where one is not what was pinned."""
    pinned = dict(reversed(line.split()) for line in _CHECKSUMS.read_text().splitlines())
    for file in files:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if pinned.get(file.name) != found:
            raise ConfigError(
                f"{file.name} has the checksum {found}, and {pinned.get(file.name, 'none')} is pinned: remove "
                "the folder that holds it, to fetch it again"
            )
    return [str(file) for file in files]


def compiled() -> Path:
    """The folder of compiled drivers, made anew when a source has changed."""
    sources = sorted((ROOT / "java").glob("*.java"))
    name = hashlib.sha256(b"".join(s.read_bytes() for s in sources)).hexdigest()[:12]
    folder = CACHE / f"drivers-{name}"
    if not folder.exists():
        compiler = shutil.which("javac")
        if compiler is None:
            raise ConfigError("there is no javac: install a JDK of version 17 or newer")
        path = ":".join(checked(flink_jars() + esper_jars()))
        scratch = Path(tempfile.mkdtemp(dir=CACHE))
        command = [compiler, "-nowarn", "-proc:none", "-d", str(scratch), "-cp", path, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            shutil.rmtree(scratch)
            raise ConfigError(f"the drivers do not compile:\n{done.stderr[-2000:]}")
        scratch.rename(folder)
    return folder


def write(events: pa.Table, path: Path) -> None:
    """The columns that drivers read, as words of eight bytes."""
    kinds = pa.array([chr(ord("A") + i) for i in range(26)])
    columns = [events["id"], pc.index_in(events["kind"], value_set=kinds), events["key"], events["ts"]]
    words = [np.asarray(c, np.int64) for c in columns] + [np.asarray(events["price"], np.float64).view(np.int64)]
    np.concatenate(words).astype("<i8").tofile(path)


def run(main: str, files: Sequence[Path], shape: Shape, events: pa.Table, repeats: int, **options: object) -> tuple[
    Timing, IntArray
]:  # fmt: skip
    """Run a driver ``repeats`` times after its warm-up: (seconds, ids of the matches of the last run)."""
    path = ":".join([str(compiled()), *checked(files)])
    with tempfile.TemporaryDirectory() as scratch:
        given, answer = Path(scratch) / "events", Path(scratch) / "matches"
        write(events, given)
        words = {"events": given, "matches": answer, "runs": repeats, "warm": events.num_rows // 4, **options}
        command = [jars.java(), "-Xmx4g", f"-Djava.io.tmpdir={scratch}", *_OPENS, "-cp", path, main]
        command += [f"{name}={value}" for name, value in words.items()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1_200, preexec_fn=_die_with_parent)
        if done.returncode:
            raise ConfigError(f"{main} failed with {done.returncode}:\n{done.stderr[-3000:]}")
        ids = np.fromfile(answer, "<i8").astype(np.int64).reshape(-1, len(shape.positives))
    seconds = [tuple(map(float, line.split())) for line in done.stdout.splitlines() if line[:1].isdigit()][1:]
    return Timing([wall for wall, _ in seconds], [cpu for _, cpu in seconds]), ids


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def flink(
    shape: Shape, events: pa.Table, repeats: int, *, bound: int, filtered: bool, slots: int = 1
) -> tuple[Timing, IntArray]:
    """Flink CEP with watermarks ``bound`` ms behind; ``filtered``: other types are dropped in front of the pattern.
    With several ``slots`` the pattern runs in each, by key; the events still come from one source, in order."""
    return run(
        "FlinkCep", flink_jars(), shape, events, repeats, parts=",".join(shape.parts), window=shape.window,
        keyed=int(shape.keyed), rise=int(shape.rise), bound=bound, filter=int(filtered), slots=slots,
    )  # fmt: skip


def esper(shape: Shape, events: pa.Table, repeats: int) -> tuple[Timing, IntArray]:
    """Esper, fed in the order of the rows."""
    fields = ",".join(p.lower() for p in shape.positives)
    return run("EsperEpl", esper_jars(), shape, events, repeats, epl=epl(shape), fields=fields)


def epl(shape: Shape) -> str:
    """The shape as an EPL pattern. A timer runs out before the event of its very time, so it has a millisecond more."""
    first = shape.positives[0]
    inner = _follow(shape, 1)
    if shape.trailing:
        inner = inner.replace("TIMER", f"timer:interval({shape.window + 1} msec)")
    else:
        inner = f"({inner}) where timer:within({shape.window + 1} msec)"
    fields = ", ".join(f"{p.lower()}.id as {p.lower()}" for p in shape.positives)
    return f"select {fields} from pattern [every {first.lower()}={_event(shape, first)} -> ({inner})]"


def _follow(shape: Shape, at: int) -> str:
    absent = []
    while at < len(shape.parts) and shape.parts[at].startswith("!"):
        absent.append(f" and not {_event(shape, shape.parts[at][1:])}")
        at += 1
    if at == len(shape.parts):
        return "TIMER" + "".join(absent)
    part = shape.parts[at]
    step = f"every {part.lower()}={_event(shape, part)}{''.join(absent)}"
    return step if at == len(shape.parts) - 1 else f"({step}) -> ({_follow(shape, at + 1)})"


def _event(shape: Shape, kind: str) -> str:
    first, last = shape.positives[0], shape.positives[-1]
    conditions = [f"kind='{kind}'"]
    if shape.keyed and kind != first:
        conditions.append(f"key={first.lower()}.key")
    if shape.rise and kind == last:
        conditions.append(f"price>{first.lower()}.price")
    return f"E({', '.join(conditions)})"
