"""What levels promise, in words and lengths."""

from __future__ import annotations

from latecomer.consistency.levels import Aggressive, KSlack
from latecomer.units import Duration


def slack_of(level: KSlack) -> str:
    """What is added to the end of a match."""
    if level.k is None:
        return f"the slack it chooses (at most {level.max})"
    return f"{level.k}{' (other sources have their own slack)' * bool(level.sources)}"


def promise_of(level: KSlack | Aggressive, unit: str | None) -> tuple[Duration, str, Duration | None]:
    """How far behind the clock events may come at most, what that is called, and the patience of a level that has one.

    With a patience that is longer, it has its name.
    """
    if isinstance(level, Aggressive):
        longer = widest([level.max_delay, level.patience], unit) is level.patience
        return level.max_delay, "patience" if longer else "max_delay", level.patience
    waits = [slack for slack in (level.k, level.max) if slack is not None] + [slack for _, slack in level.sources]
    name = "max" if level.k is None else "the largest slack" if level.sources else "k"
    return widest(waits, unit), name, None


def widest(lengths: list[Duration], unit: str | None) -> Duration:
    """The longest of some lengths; plain ones count only where the unit is known, or the first is plain."""
    alike = [length for length in lengths if unit is not None or length.plain == lengths[0].plain]
    return max(alike, key=lambda length: length.exact(unit or "ns"))
