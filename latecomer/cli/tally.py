"""What a run took in and what came out, counted from the outputs themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from latecomer.cli.report import some, unknown

if TYPE_CHECKING:
    import pyarrow as pa

    from latecomer.query import Query


@dataclass
class Tally:
    """Counts of one run of ``queries``."""

    queries: Sequence[Query]
    events: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    #: (query, op) -> changes
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: query -> matches inserted without a confidence, since computing it would have cost too much
    unknown: Counter[str] = field(default_factory=Counter)
    #: (query or None for the stream itself, reason) -> late rows
    late: Counter[tuple[str | None, str]] = field(default_factory=Counter)

    def take(self, changes: pa.Table, late: pa.Table) -> None:
        """Count one output."""
        self.changes.update(_count(changes, "query", "op"))
        if "confidence" in changes.column_names and changes["confidence"].null_count:
            nulls = changes.filter(pc.is_null(changes["confidence"]))
            self.unknown.update(nulls.filter(pc.equal(nulls["op"], "insert"))["query"].to_pylist())
        self.late.update(_count(late, "query", "reason"))

    @property
    def net(self) -> int:
        """Matches that stand: insertions minus deletions."""
        return sum(n if op == "insert" else -n for (_, op), n in self.changes.items())

    def told(self, source: Path, output: Path, late: Path | None) -> dict[str, Any]:
        """The summary for machines."""
        return {
            "input": str(source),
            "output": str(output),
            "late_output": None if late is None else str(late),
            "events": self.events,
            "duplicates": self.duplicates,
            "seconds": round(self.seconds, 3),
            "queries": [
                {
                    "name": q.name,
                    "level": str(q.level),
                    "matches": self.changes[q.name, "insert"] - self.changes[q.name, "delete"],
                    "inserted": self.changes[q.name, "insert"],
                    "deleted": self.changes[q.name, "delete"],
                    "late": self._reasons(q.name),
                    **({"unknown_confidences": self.unknown[q.name]} if self.unknown[q.name] else {}),
                }
                for q in self.queries
            ],
            "late": self._reasons(None),
        }

    def _reasons(self, query: str | None) -> dict[str, int]:
        return {reason: n for (name, reason), n in sorted(self.late.items(), key=str) if name == query}

    def show(self, console: Console, output: Path, late: Path | None) -> None:
        """The summary for a reader."""
        rate = f", {self.events / self.seconds:,.0f} per second" if self.seconds else ""
        console.print(f"{some(self.events, 'event')} in {self.seconds:.2f} s{rate}", highlight=False)
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for name in ("query", "level"):
            table.add_column(name)
        for name in ("matches", "taken back", "late events"):
            table.add_column(name, justify="right")
        for q in self.queries:
            inserted, deleted = self.changes[q.name, "insert"], self.changes[q.name, "delete"]
            reasons = self._reasons(q.name)
            late_text = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items()) or "0"
            table.add_row(q.name, str(q.level), f"{inserted - deleted:,}", f"{deleted:,}", late_text)
        console.print(table)
        for q in self.queries:
            if self.unknown[q.name]:
                console.print(f"{q.name}: {unknown(self.unknown[q.name], q.plan)}", highlight=False)
        for reason, n in self._reasons(None).items():
            console.print(f"{some(n, 'row')} {reason}", highlight=False)
        if self.duplicates:
            console.print(f"{some(self.duplicates, 'event')} came again and counted once", highlight=False)
        console.print(f"Changes are in {output}" + (f", late rows in {late}" if late else ""), highlight=False)
        if late is None and self.late:
            console.print("Late rows were counted and not kept: --late FILE keeps them", highlight=False)


def _count(table: pa.Table, *columns: str) -> dict[tuple[Any, ...], int]:
    """How many rows have each combination of values."""
    if not table.num_rows:
        return {}
    counted = table.group_by(list(columns)).aggregate([([], "count_all")]).to_pylist()
    return {tuple(row[c] for c in columns): row["count_all"] for row in counted}
