"""Where the engine's time goes, by function and by line of the call tree, for one workload and one batch size.

``python -m benchmarks --profile 256 --workload W2`` runs the workload once under cProfile (which charges every call, so
cheap functions called often look dearer than they are) and once untouched, and prints both the seconds and the
functions in order of own time.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from pathlib import Path

from benchmarks.shapes import WORKLOADS
from benchmarks.speed import EVENTS, FEW, Replay, Setting

_ROOT = str(Path(__file__).resolve().parent.parent)


def profile(size: int, *, workload: str = "W2", quick: bool = False, lines: int = 35) -> str:
    """Run the workload in batches of ``size`` and return the report as text."""
    setting = Setting(WORKLOADS[workload], size, events=FEW if quick else EVENTS)
    replay = Replay(setting, setting.workload.events(setting.events, setting.late))
    replay.run(replay.filled()[0])  # imports, caches
    engine, _ = replay.filled()
    began = time.perf_counter()
    replay.run(engine)
    plain = time.perf_counter() - began
    engine, _ = replay.filled()
    profiler = cProfile.Profile()
    profiler.runcall(replay.run, engine)
    out = io.StringIO()
    speed, each = setting.measured / plain, plain / len(replay.measured) * 1e6
    out.write(f"{workload}, batches of {size:,}: {speed:,.0f} events/s, {each:,.0f} µs per batch without profiler\n")
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler, stream=out).sort_stats(order).print_stats(lines)
    return out.getvalue().replace(_ROOT + "/", "")
