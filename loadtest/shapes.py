"""How the load goes over time: how many sources send, and how many of them are cut off.

Rule: a shape is a pure function of the time since the start. ``step`` is also ended by who runs it, as soon as the
latency is past its limit: there the pipeline breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.errors import ConfigError, options

#: Every shape, and what it does.
SHAPES = {
    "steady": "all sources from the start",
    "step": "a tenth of the sources more in each tenth of the time, until the latency is past its limit",
    "spike": "a quarter of the sources, all of them in the middle fifth of the time, a quarter again",
    "outage": "all sources; half of them are cut off in the second quarter of the time, then all catch up",
    "soak": "all sources, with the time and patience that you give",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """What holds now: sources that send, sources cut off."""

    sources: int
    outage: int = 0


def phase(shape: str, at: float, length: float, sources: int) -> Phase | None:
    """What holds ``at`` seconds after the start of a run of ``length``; None: the run is over.

    >>> phase("spike", 50, 100, 8), phase("spike", 90, 100, 8), phase("outage", 30, 100, 8)
    (Phase(sources=8, outage=0), Phase(sources=2, outage=0), Phase(sources=8, outage=4))
    """
    if shape not in SHAPES:
        raise ConfigError(f"shape={shape!r}: allowed are {options(SHAPES)}")
    if at >= length:
        return None
    part = at / length
    if shape == "step":
        return Phase(max(sources * (int(part * 10) + 1) // 10, 1))
    if shape == "spike":
        return Phase(sources if 0.4 <= part < 0.6 else max(sources // 4, 1))
    if shape == "outage":
        return Phase(sources, sources // 2 if 0.25 <= part < 0.5 else 0)
    return Phase(sources)
