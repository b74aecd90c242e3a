"""Where the engine's time goes, by function and by line of the call tree, for one part and one batch size.

``python -m benchmarks --profile 256`` runs the workload once under cProfile (which charges every call, so cheap
functions called often look dearer than they are) and once untouched, and prints both the seconds and the functions in
order of own time.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from pathlib import Path

from benchmarks.seq_neg import EVENTS, FEW, replay
from benchmarks.workloads import batches, keyed

_ROOT = str(Path(__file__).resolve().parent.parent)


def profile(size: int, *, quick: bool = False, text_keys: bool = False, lines: int = 35) -> str:
    """Run the workload in batches of ``size`` and return the report as text."""
    events = keyed(FEW if quick else EVENTS, text_keys=text_keys)
    prepared = batches(events, size)
    replay(prepared[: max(len(prepared) // 10, 1)])  # imports, caches
    began = time.perf_counter()
    replay(prepared)
    plain = time.perf_counter() - began
    profiler = cProfile.Profile()
    profiler.runcall(replay, prepared)
    out = io.StringIO()
    speed, each = events.num_rows / plain, plain / len(prepared) * 1e6
    out.write(f"batches of {size:,}: {speed:,.0f} events/s, {each:,.0f} µs per batch without the profiler\n")
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler, stream=out).sort_stats(order).print_stats(lines)
    return out.getvalue().replace(_ROOT + "/", "")
