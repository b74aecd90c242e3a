"""The demo's two queries, and the levels at which each of them runs."""

from __future__ import annotations

from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level
from latecomer.query.query import Query

#: Flights of one carrier scheduled one after another from one airport leave over an hour late, none on time between;
#: and: after a late flight the next ones go on time.
TEXTS = {
    "cascade": """
        PATTERN SEQ(Late a, !OnTime x, Late b, !OnTime y, Late c)
        WHERE   [carrier, origin]
        WITHIN  3 hours
        RETURN  a.carrier AS carrier, a.origin AS origin, a.flight AS first, c.flight AS last, c.dep_delay AS delay
        """,
    "recovery": """
        PATTERN SEQ(Late a, !Late x, OnTime b)
        WHERE   [carrier, origin]
        WITHIN  2 hours
        """,
}

#: The longest delay behind the running clock is 21 h 40 min, so 22 hours are a promise that holds, and 3 hours are not.
LEVELS: dict[str, Level] = {
    "kslack-3h": KSlack("3 hours"),
    "kslack-22h": KSlack("22 hours"),
    "conservative": Conservative(),
    "aggressive-22h": Aggressive(max_delay="22 hours"),
    "aggressive-22h-patience-30min": Aggressive(max_delay="22 hours", patience="30 minutes"),
}

#: What watermark users do today: an event more than an hour behind the clock is dropped.
WATERMARK = "watermark-1h"
WATERMARK_MINUTES = 60


def queries() -> list[Query]:
    """Each query at each level, named like ``cascade@kslack-3h``."""
    return [
        Query(text, name=f"{name}@{label}", level=level)
        for name, text in TEXTS.items()
        for label, level in LEVELS.items()
    ]
