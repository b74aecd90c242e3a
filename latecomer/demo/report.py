"""The demo's table: how each level did, against the truth, and against dropping what is late."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from latecomer.connectors.duckdb import DuckDBSink
from latecomer.consistency.levels import KSlack
from latecomer.demo import truth
from latecomer.demo.queries import LEVELS, TEXTS, WATERMARK, WATERMARK_MINUTES
from latecomer.demo.release import Timeline

#: How the table calls the levels.
_TITLES = {
    "kslack-3h": "K-slack, 3 h",
    "kslack-22h": "K-slack, 22 h",
    "conservative": "conservative (punctuation)",
    "aggressive-22h": "aggressive, at once",
    "aggressive-22h-patience-30min": "aggressive, patience 30 min",
    WATERMARK: "today: drop what is > 1 h late",
}


@dataclass(frozen=True, slots=True)
class Row:
    """How one query did at one level.

    Attributes:
        query, level: names, as in the name under which the query ran: ``query@level``.
        matches: net matches: answers given and not taken back.
        corrections: answers taken back.
        taken_back: share of all answers that were taken back.
        wait_median_min, wait_p95_min: minutes of arrival time from the arrival of a match's last event to its leaving;
            None without matches.
        precision: share of the net matches that are true; None without matches.
        recall: share of the true matches that are among the net matches; None without true ones.
    """

    query: str
    level: str
    matches: int
    corrections: int
    taken_back: float | None
    wait_median_min: float | None
    wait_p95_min: float | None
    precision: float | None
    recall: float | None


def rows(stream: pa.Table, results: DuckDBSink) -> list[Row]:
    """Compare the tables of ``results`` with the truth about ``stream`` (as of "
    ":func:`latecomer.demo.flights.arrivals`)."""
    timeline = Timeline(stream)
    events = stream.filter(pc.is_valid(stream["id"]))
    true = truth.matches(events)
    kept = truth.matches(_within_watermark(events))
    found = []
    for query in TEXTS:
        for label, level in LEVELS.items():
            name = [f"{query}@{label}"]
            given = results.table("SELECT events FROM changes WHERE query = ? AND op = 'insert'", name)["events"]
            net = results.table("SELECT events FROM matches WHERE query = ?", name)["events"].to_pylist()
            back = results.table("SELECT count(*) AS n FROM changes WHERE query = ? AND op = 'delete'", name)["n"]
            waits = timeline.waits(query, level, given)
            found.append(_row(query, label, {tuple(m) for m in net}, back[0].as_py(), waits, true[query]))
        given = pa.chunked_array([pa.array(list(kept[query]), pa.list_(pa.string()))])
        waits = timeline.waits(query, KSlack(WATERMARK_MINUTES), given)
        found.append(_row(query, WATERMARK, kept[query], 0, waits, true[query]))
    return found


def _within_watermark(events: pa.Table) -> pa.Table:
    """The events that a watermark of one hour behind the largest event time lets through."""
    times = np.asarray(events["scheduled"].cast(pa.int64()).to_numpy()) // 60_000_000
    return events.filter(pa.array(times >= np.maximum.accumulate(times) - WATERMARK_MINUTES))


def _row(
    query: str,
    level: str,
    net: Set[truth.Match],
    corrections: int,
    waits: npt.NDArray[np.int64],
    true: Set[truth.Match],
) -> Row:
    hits = len(net & true)
    return Row(
        query=query,
        level=level,
        matches=len(net),
        corrections=corrections,
        taken_back=corrections / len(waits) if len(waits) else None,
        wait_median_min=float(np.quantile(waits, 0.5)) if len(waits) else None,
        wait_p95_min=float(np.quantile(waits, 0.95)) if len(waits) else None,
        precision=hits / len(net) if net else None,
        recall=hits / len(true) if true else None,
    )


def table(found: list[Row]) -> Table:
    """The rows for a terminal."""
    shown = Table(title="A year of flights, each query at each level", caption=_CAPTION, caption_justify="left")
    for name in ("query", "level"):
        shown.add_column(name)
    for name in ("matches", "taken back", "waited (median)", "waited (95 %)", "precision", "recall"):
        shown.add_column(name, justify="right")
    for i, row in enumerate(found):
        shown.add_row(
            row.query if i == 0 or found[i - 1].query != row.query else "",
            _TITLES[row.level],
            f"{row.matches:,}",
            f"{row.corrections:,} ({_percent(row.taken_back, 1)})" if row.corrections else "0",
            _minutes(row.wait_median_min),
            _minutes(row.wait_p95_min),
            _percent(row.precision, 2),
            _percent(row.recall, 2),
            end_section=i + 1 < len(found) and found[i + 1].query != row.query,
        )
    return shown


_CAPTION = (
    "waited: from the arrival of a match's last event to the moment its level lets it go, in arrival time\n"
    "precision, recall: of the matches that hold at the end, against the complete sorted year"
)


def _minutes(value: float | None) -> str:
    if value is None:
        return "–"
    if value < 1:
        return "0 min"
    return f"{value:.0f} min" if value < 60 else f"{int(value) // 60} h {int(value) % 60:02d} min"


def _percent(share: float | None, digits: int) -> str:
    """A share as text; 100 % is only written for all of them.

    >>> _percent(0.99999, 2), _percent(1.0, 2)
    ('99.99 %', '100 %')
    """
    if share is None:
        return "–"
    if share == 1:
        return "100 %"
    return f"{np.floor(share * 100 * 10**digits) / 10**digits:.{digits}f} %"
