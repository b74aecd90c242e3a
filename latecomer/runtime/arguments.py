"""What the runtime's calls are given besides batches, checked: clocks, cuts, moments, names of queries.

Rule: what cannot be meant is refused with a ConfigError before anything changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np

from latecomer.consistency.clock import END
from latecomer.errors import ConfigError
from latecomer.storage.columns import I64


def clocks_of(given: Any, rows: int) -> I64 | None:
    """The stream's clock at each of so many rows; None: not known from elsewhere."""
    if given is None:
        return None
    values = np.asarray(given)
    if values.shape != (rows,) or (rows and values.dtype.kind not in "iu"):
        raise ConfigError(
            f"clocks={given!r:.80} for {rows} rows: give one whole number for each row, in order of arrival"
        )
    return values.astype(np.int64, copy=False)


def cuts_of(given: Any, rows: int) -> tuple[int, ...]:
    """Rows at which parts of a batch of so many rows begin."""
    if not isinstance(given, (Sequence, np.ndarray)) or isinstance(given, (str, bytes)):
        raise ConfigError(f"cuts={given!r}: give the numbers of the rows at which parts begin, like [100, 200]")
    cuts = list(given)
    if not all(map(_whole, cuts)):
        raise ConfigError(f"cuts={cuts!r}: give whole numbers of rows, like [100, 200]")
    edges = [0, *map(int, cuts), rows]
    if any(begin > end for begin, end in pairwise(edges)):
        raise ConfigError(f"cuts={cuts!r}: give ascending numbers of rows, of the {rows} that the batch has")
    return tuple(edges[1:-1])


def reached(ts: Any) -> int:
    """A clock that is known from elsewhere."""
    if not _whole(ts):
        raise ConfigError(f"ts={ts!r} is no clock: give a whole number of the stream's units")
    if not -END <= ts <= END:
        raise ConfigError(f"ts={ts!r} is beyond ±{END}, which no clock can reach: is it in the stream's units?")
    return int(ts)


def check_moment(name: str, value: Any) -> None:
    """A moment may be a number of units, or a date or time."""
    if not _whole(value) and not isinstance(value, date):
        raise ConfigError(f"{name}={value!r} is no time: give a whole number of the stream's units, or a datetime")


def _whole(value: Any) -> bool:
    """Whether it is a whole number; a truth value is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def names_of(given: Any, known: Collection[str]) -> set[str]:
    """Names of queries, each of which there is, or was."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"names={given!r}: give a list of names of queries, like [{next(iter(known), 'q')!r}]")
    names = set(given)
    if strange := sorted(map(repr, names - set(known))):
        raise ConfigError(f"no query is called {', '.join(strange)}: there are {', '.join(map(repr, known))}")
    return names
