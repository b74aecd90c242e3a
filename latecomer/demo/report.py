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
    "kslack-3h": "K-slack 3 h",
    "kslack-22h": "K-slack 22 h",
    "conservative": "conservative",
    "aggressive-22h": "aggressive",
    "aggressive-22h-patience-30min": "aggressive, patient",
    WATERMARK: "dropping > 1 h late",
}

#: What the columns mean, to be printed below the table.
LEGEND = """
wait: until a match leaves, from the arrival of its last event (median, 95 %)
precision, recall: what holds in the end, against the complete, sorted year
aggressive: corrects itself for 22 h; patient: waits 30 min before it answers"""


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
            net = results.table("SELECT events FROM matches WHERE query = ?", name)["events"]
            back = results.table("SELECT count(*) AS n FROM changes WHERE query = ? AND op = 'delete'", name)["n"]
            waits = timeline.waits(query, level, given)
            found.append(_row(query, label, _matches(net), back[0].as_py(), waits, true[query]))
        given = pa.chunked_array([pa.array(list(kept[query]), pa.list_(pa.string()))])
        waits = timeline.waits(query, KSlack(WATERMARK_MINUTES), given)
        found.append(_row(query, WATERMARK, kept[query], 0, waits, true[query]))
    return found


def _matches(lists: pa.ChunkedArray) -> set[truth.Match]:
    """Lists of ids, all of one length, as tuples."""
    ids = pc.list_flatten(lists).to_pylist()
    width = len(ids) // max(len(lists), 1)
    return {tuple(ids[at : at + width]) for at in range(0, len(ids), width)} if ids else set()


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
    """The rows for a terminal of 80 columns."""
    shown = Table(box=None, padding=(0, 1, 0, 0))
    shown.add_column("", no_wrap=True)
    for name in ("matches", "taken back", "wait", "95 %", "precision", "recall"):
        shown.add_column(name, justify="right", no_wrap=True)
    for query in TEXTS:
        shown.add_row()
        shown.add_row(f"[bold]{query}[/bold]")
        for row in (row for row in found if row.query == query):
            shown.add_row(
                f"  {_TITLES[row.level]}",
                f"{row.matches:,}",
                f"{row.corrections:,} ({row.taken_back or 0:.0%})" if row.corrections else "0",
                _minutes(row.wait_median_min),
                _minutes(row.wait_p95_min),
                _percent(row.precision),
                _percent(row.recall),
            )
    return shown


def _minutes(value: float | None) -> str:
    """A wait as text.

    >>> _minutes(0.0), _minutes(87.5), _minutes(1207.0)
    ('0 min', '88 min', '20.1 h')
    """
    if value is None:
        return "–"
    return f"{value:.0f} min" if value < 100 else f"{value / 60:.1f} h"


def _percent(share: float | None) -> str:
    """A share as text; 100 % is only written where nothing is missing.

    >>> _percent(0.99999), _percent(1.0)
    ('99.9 %', '100 %')
    """
    if share is None:
        return "–"
    return "100 %" if share == 1 else f"{np.floor(share * 1000) / 10:.1f} %"
