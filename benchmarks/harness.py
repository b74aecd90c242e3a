"""How everything here is measured.

Rule: a figure is a ratio of two programs that had the same events in the same run and gave the same answer. Each is
warmed up, then they take turns, so that a noisy machine disturbs both alike. Speeds are events per second of processor
time, which other work on the machine disturbs least; wall time is kept beside it. The minimum is what a program costs;
median and spread say how far to trust it. A figure whose answer is wrong is not printed: it is *disqualified*, and the
run fails.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from latecomer.storage import kernels

#: Where results are kept unless told otherwise; built files only.
RESULTS = Path(__file__).resolve().parent.parent / "artifacts" / "bench"


class Disqualified(Exception):
    """A program's answer differs from the truth, so its speed means nothing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of several runs of one program: by the clock on the wall and of processor time of the whole process."""

    wall: list[float]
    cpu: list[float]

    def add(self, other: Timing) -> None:
        """Take over the runs of another one."""
        self.wall.extend(other.wall)
        self.cpu.extend(other.cpu)

    @property
    def best(self) -> float:
        """The shortest run by the wall clock, in seconds."""
        return min(self.wall)

    @property
    def best_cpu(self) -> float:
        """The least processor time of a run, in seconds."""
        return min(self.cpu)

    def as_dict(self) -> dict[str, Any]:
        return {
            "wall_s": self.wall,
            "cpu_s": self.cpu,
            "min_s": self.best,
            "min_cpu_s": self.best_cpu,
            "median_s": statistics.median(self.wall),
            "median_cpu_s": statistics.median(self.cpu),
            "spread": (max(self.cpu) - self.best_cpu) / self.best_cpu,
        }


@dataclass(slots=True)
class Report:
    """What one part found: rows for a table, and the tables as printed."""

    part: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path = RESULTS) -> Path:
        """Write the report with the machine described to ``folder/<part>.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.part}.json"
        content = {
            "part": self.part,
            "machine": machine(),
            "settings": self.settings,
            "rows": self.rows,
            "notes": self.notes,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def take_turns(
    programs: Mapping[str, Callable[..., Any]],
    repeats: int,
    warmups: int = 1,
    prepare: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, Timing]:
    """Run every program ``warmups`` times unmeasured, then ``repeats`` times in turns.

    With ``prepare``, every program is given what its preparation (None: nothing) has just made, unmeasured.
    """
    timings = {name: Timing([], []) for name in programs}
    for turn in range(warmups + repeats):
        for name, program in programs.items():
            given = () if prepare is None else (prepare[name]() if name in prepare else None,)
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            program(*given)
            if turn >= warmups:
                timings[name].cpu.append(time.process_time() - cpu)
                timings[name].wall.append(time.perf_counter() - wall)
    return timings


def machine() -> dict[str, Any]:
    """What ran it: processor, cores, memory, load, versions, commit; never a name of host or folder."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "kernel": "compiled" if kernels.COMPILED else "numpy",
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit that is checked out, with a plus where files differ from it; None outside of a checkout."""
    git = ["git", "-C", str(Path(__file__).resolve().parent.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "latecomer"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return head.stdout.strip() + "+" * bool(changed.stdout.strip()) if head.returncode == 0 else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is aligned left, the others right."""
    widths = [max(len(r[i]) for r in [headers, *rows]) for i in range(len(headers))]

    def line(cells: list[str]) -> str:
        return (
            "| "
            + " | ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
            )
            + " |"
        )

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(headers), rule, *map(line, rows)])
