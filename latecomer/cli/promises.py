"""What levels promise, in words and lengths: how late events may be, and how long state is kept for them.

``longest`` is how long a stream's intervals are at most, in its units: 0 where times are exact, None where it is not
known.
"""

from __future__ import annotations

from typing import Any

from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.consistency.policy import whole_units
from latecomer.errors import options
from latecomer.query.plan import Plan
from latecomer.units import Duration


def retention(plan: Plan, unit: str | None, *, longest: int | None = 0, twice: bool = False) -> dict[str, Any]:
    """How long state is kept; ``twice``: for two windows, since a match may be changed from both sides."""
    windows, named = (f"twice {plan.window}", "two windows") if twice else (str(plan.window), "the window")
    if isinstance(plan.level, Conservative):
        types = options(plan.types).replace(" or ", " and ")
        text = (
            f"{windows}{intervals(longest, unit)} behind what punctuation has proven: an event is kept until "
            f"punctuation of {types} has passed it by that; without any, until the end"
        )
        return {"text": text, "units": None, "unit": unit}
    slack, name, patience = promise_of(plan.level, unit)
    wait = slack if patience is None else widest([slack, patience], unit)
    length = f"{windows} + {wait}" if twice else _sum(plan.window, wait)
    text = f"{length}{intervals(longest, unit, 2)} of event time behind the clock: {named} and {name}"
    units = None
    if unit is not None and longest is not None:
        waits = max(whole_units(slack, unit) + longest, 0 if patience is None else whole_units(patience, unit))
        units = whole_units(plan.window, unit) * (2 if twice else 1) + longest + waits
    return {"text": text, "units": units, "unit": unit}


def intervals(longest: int | None, unit: str | None, times: int = 1) -> str:
    """What the longest interval adds to a length, so many times.

    >>> intervals(5, "s"), intervals(5, "s", 2), intervals(None, "s"), intervals(0, "s")
    (' + 5 s (the longest interval)', ' + 10 s (twice the longest interval)', ' + the longest interval', '')
    """
    if longest == 0:
        return ""
    name = f"{'twice ' * (times > 1)}the longest interval"
    return f" + {name}" if longest is None else f" + {longest * times} {unit} ({name})"


def _sum(a: Duration, b: Duration) -> str:
    if a.plain == b.plain:
        return str(Duration(a.amount + b.amount, a.plain))
    return f"{a} + {b}"


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
