"""A sink that keeps everything and checks what every sink may rely on.

Invariants, asserted with every batch: a match is inserted only while it is absent and deleted only while it is present
(its multiplicity is 0 or 1); one ``match_id`` always stands for the same events; a batch that is delivered again says
what it said before.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from latecomer.runtime import Output

Ids = tuple[Any, ...]


class CollectingSink:
    """Keeps changes and late rows; says which matches hold now.

    A sink as connectors want it (``open``, ``apply``, ``close``), and a place to ``add`` the outputs of a runtime:

    >>> import latecomer as lc
    >>> query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="q", level=lc.Aggressive("5 s"))
    >>> runtime, sink = lc.Runtime(lc.Stream(id="id", unit="s"), query), CollectingSink()
    >>> sink.add(runtime.process([{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "C", "ts": 5}]))
    >>> sink.net()
    {(1, 2)}
    >>> sink.add(runtime.process([{"id": 3, "type": "B", "ts": 3}]))
    >>> sink.net(), sink.changes.column("op").to_pylist()
    (set(), ['insert', 'delete'])

    ``add`` and ``apply`` raise AssertionError when an invariant of this module breaks.
    """

    def __init__(self) -> None:
        self.job: str | None = None
        self._changes: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self._present: dict[tuple[str, str], dict[str, Any]] = {}  # (query, match_id) -> the row that inserted it
        self._events: dict[str, list[Any]] = {}
        self._delivered: dict[int, tuple[pa.Table, pa.Table]] = {}

    # --- taking in ---------------------------------------------------------------------------------------------------

    def add(self, output: Output) -> None:
        """Take in what a call of a runtime gave."""
        self._take(output.changes, output.late)

    def open(self, job: str) -> None:
        """Get ready for a job; its name is kept."""
        self.job = job

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Take in a numbered batch. One that was taken in before is compared with what it was, and skipped."""
        before = self._delivered.get(batch_id)
        if before is None:
            self._take(changes, late)
            self._delivered[batch_id] = changes, late
            return
        for what, table, again in (("changes", before[0], changes), ("late rows", before[1], late)):
            first, now = table.to_pylist(), again.to_pylist()
            assert first == now, f"batch {batch_id} came again with other {what}:\n  first {first}\n  now   {now}"

    def close(self) -> None:
        """Nothing to let go of: what was collected stays."""

    def _take(self, changes: pa.Table, late: pa.Table) -> None:
        for row in changes.to_pylist():
            key, events = (row["query"], row["match_id"]), row["events"]
            known = self._events.setdefault(row["match_id"], events)
            assert known == events, f"match_id {row['match_id']} stands for {known} and for {events}"
            if row["op"] == "insert":
                assert key not in self._present, f"query {row['query']!r}: the match {events} was inserted twice"
                self._present[key] = row
            else:
                assert key in self._present, f"query {row['query']!r}: the match {events} was deleted while absent"
                del self._present[key]
        if changes.num_rows:
            self._changes.append(changes)
        if late.num_rows:
            self._late.append(late)

    # --- what came ---------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> pa.Table:
        """All changes in order, as one table (without columns when there were none)."""
        return _joined(self._changes)

    @property
    def late(self) -> pa.Table:
        """All late rows in order, as one table (without columns when there were none)."""
        return _joined(self._late)

    def net(self, query: str | None = None) -> set[Ids]:
        """The matches that hold now: tuples of event ids in pattern order, of one query or of all together."""
        return {tuple(row["events"]) for row in self.rows(query)}

    def rows(self, query: str | None = None) -> list[dict[str, Any]]:
        """The matches that hold now as rows with their RETURN fields, in the order in which they were inserted."""
        return [row for (name, _), row in self._present.items() if query in (None, name)]


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
