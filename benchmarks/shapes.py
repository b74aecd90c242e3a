"""The six workloads W1 to W6: the shape of each pattern, from which every engine's own query is written.

Rule: a pattern is *data* here, a :class:`Shape`. Our query text, the offline program, the SQL, the EPL and the
arguments of the Java drivers are all made from it, so that no two engines are asked different questions. Events of one
key never have the same time, since engines order ties differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.workloads import delayed, keyed

#: The largest delay of a late event, in ms; levels promise it.
MAX_DELAY = 5_000


@dataclass(frozen=True, slots=True)
class Shape:
    """``SEQ(…) WHERE [key] … WITHIN window``.

    Attributes:
        name: of the query.
        parts: event types in pattern order; ``"!B"`` is a negation. Variables are the types in small letters.
        window: in ms.
        keyed: whether all parts must have the same ``key``.
        rise: whether the last positive part's price must be above the first one's.
        above: what the price of each positive part must be above, if anything.
    """

    name: str
    parts: tuple[str, ...]
    window: int = 10_000
    keyed: bool = True
    rise: bool = False
    above: int | None = None

    @property
    def positives(self) -> tuple[str, ...]:
        return tuple(p for p in self.parts if not p.startswith("!"))

    @property
    def trailing(self) -> bool:
        """Whether the pattern ends in a negation, so that a match is known only when its window has passed."""
        return self.parts[-1].startswith("!")

    @property
    def text(self) -> str:
        """Our query, without CONSISTENCY."""
        parts = ", ".join(f"{p} {p.lstrip('!').lower()}" for p in self.parts)
        first, last = self.positives[0].lower(), self.positives[-1].lower()
        where = ["[key]"] if self.keyed else []
        where += [f"{last}.price > {first}.price"] if self.rise else []
        where += [f"{p.lower()}.price > {self.above}" for p in self.positives] if self.above is not None else []
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return f"PATTERN SEQ({parts}){condition} WITHIN {self.window} ms"


@dataclass(frozen=True, slots=True)
class Workload:
    """Queries, and the events that they run on.

    ``events(n, late, seed)`` gives ``n`` events in order of arrival, a share ``late`` of them delayed by 1 to
    :data:`MAX_DELAY` ms. The first ``fill`` of them bring the state to its steady size.
    """

    name: str
    shapes: tuple[Shape, ...]
    events: Callable[[int, float], pa.Table]
    fill: int = 100_000


def _keyed(n: int, late: float) -> pa.Table:
    return keyed(n, late=late, most=MAX_DELAY)


def _texts(n: int, late: float) -> pa.Table:
    return keyed(n, late=late, most=MAX_DELAY, text_keys=True)


def _dear(n: int, late: float) -> pa.Table:
    """A costs 300 to 500 and everything else up to 310, so that few C are dearer than an A."""
    events = keyed(n, late=late, most=MAX_DELAY)
    price = events["price"].to_numpy()
    price = np.where(np.asarray(pc.equal(events["kind"], "A")), 300 + 0.4 * price, 0.62 * price).round(2)
    return events.set_column(events.column_names.index("price"), "price", pa.array(price))


def _twenty(n: int, late: float) -> pa.Table:
    """Twenty types, a hundred events a second, and a key that no query asks for."""
    rng = np.random.default_rng(4)
    kinds = [chr(ord("A") + i) for i in range(20)]
    events = pa.table(
        {
            "id": pa.array(np.arange(n)),
            "kind": pa.array(kinds).take(pa.array(rng.integers(0, len(kinds), n))),
            "key": pa.array(rng.integers(0, 10_000, n)),
            "ts": pa.array(100_000 + np.arange(n) * 10),
            "place": pa.array([f"aisle {i:02d}" for i in range(100)]).take(pa.array(rng.integers(0, 100, n))),
            "price": pa.array(rng.uniform(1, 500, n).round(2)),
        }
    )
    return delayed(events, late, MAX_DELAY, rng)


W1 = Workload("W1", (Shape("three", ("A", "B", "C")),), _keyed)
W2 = Workload("W2", (Shape("gap", ("A", "!B", "C")),), _keyed)
W3 = Workload("W3", (Shape("dearer", ("A", "!B", "C"), rise=True),), _dear)
W4 = Workload("W4", (Shape("any", ("A", "B", "C"), window=1_000, keyed=False, rise=True),), _twenty, fill=10_000)
W5 = Workload("W5", (Shape("overdue", ("A", "!B")),), _keyed)
W6 = Workload(
    "W6",
    (
        Shape("three", ("A", "B", "C")),
        Shape("gap", ("A", "!B", "C")),
        Shape("dearer", ("A", "!B", "C"), rise=True),
        Shape("overdue", ("A", "!B")),
        Shape("next", ("B", "!C", "D"), window=5_000),
        Shape("round", ("C", "!D", "A")),
        Shape("soon", ("D", "A"), window=2_000),
        Shape("quiet", ("A", "!B", "!D", "C")),
        Shape("dear", ("B", "D"), above=400),
        Shape("rising", ("B", "C", "D"), window=5_000, rise=True),
    ),
    _dear,
)

#: W2 with keys that are texts of nine bytes.
W2_TEXT = Workload("W2-text", W2.shapes, _texts)

WORKLOADS = {w.name: w for w in (W1, W2, W3, W4, W5, W6, W2_TEXT)}
