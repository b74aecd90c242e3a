"""The queries of a live page, each a lane: its counts, the matches that are shown, and what it waits for.

Matches have a *state*, standing or taken back, and numbers: ``n``, of the call in which it last changed, and ``seq``,
of that change. A match that is kept is told in its newest state to every reader; the one whose last change is longest
ago is forgotten first, and readers forget what is below ``oldest``. ``told`` is the number of the call in which it was
first kept: a reader who has come further may have seen it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.query.plan import Negation
from latecomer.query.query import Query
from latecomer.serve.arrivals import Arrived, Recent, texts, whole_units
from latecomer.serve.samples import clip, pick, plain, size
from latecomer.storage.columns import I64

#: Bytes of a frame for matches, for those taken back, and for those that wait; of all lanes together.
STANDING, TAKEN_BACK, WAITING = 14_000, 7_000, 4_000
#: Queries that are shown; the others are counted.
SHOWN = 6
#: Of one batch at most so many new matches of each query are shown, and so many that were not shown before they fell.
INSERTS, DELETES = 16, 12
#: In a batch of more rows the event that took a match back is not looked for.
SMALL = 4096
#: RETURN fields, and events of a match, that are shown.
FIELDS, EVENTS = 6, 8
#: The columns of changes that are not RETURN fields.
_FIXED = ("op", "query", "match_id", "events", "first_ts", "last_ts", "earliest", "latest", "revision", "amended")
_FACTS = ("window", "retention", "horizon", "k", "patience", "held", "buffered", "stored", "retention_rule")


class Lane:
    """One query."""

    def __init__(self, query: Query, keep: int) -> None:
        self.plan = query.plan
        self.inserted = self.deleted = self.late = 0
        self._keep, self._seq = keep, 0
        self._matches: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()
        self._waits: deque[int] = deque(maxlen=200)
        self._facts: dict[str, Any] = {}
        self._waiting: list[dict[str, Any]] = []

    @property
    def ids(self) -> list[str]:
        """The matches that are kept."""
        return list(self._matches)

    def match(self, match_id: str) -> dict[str, Any] | None:
        """A match that is kept."""
        found = self._matches.get(match_id)
        return None if found is None else found[0]

    def put(self, match_id: str, item: dict[str, Any]) -> None:
        """A match has changed."""
        self._seq += 1
        item = {**item, "seq": self._seq}
        self._matches[match_id] = item, size(item)
        self._matches.move_to_end(match_id)
        if len(self._matches) > self._keep:
            self._matches.popitem(last=False)
        if item["back"] is None and item["wait"] is not None:
            self._waits.append(item["wait"])

    def told(self, since: int, share: int) -> dict[str, Any]:
        """What a frame says; ``share``: of how many lanes this is one."""
        plan = self.plan
        said = {
            "name": clip(plan.name),
            "level": clip(plan.level, 80),
            "kind": type(plan.level).__name__.lower(),
            "types": [clip(kind, 32) for kind in plan.types][:16],
            "positives": [clip(component.type, 32) for component in plan.positives][:EVENTS],
            "negated": [clip(negation.component.type, 32) for negation in plan.negations][:16],
            "inserted": self.inserted,
            "deleted": self.deleted,
            "late": self.late,
            "wait": median_low(self._waits) if self._waits else None,
            **self._facts,
            "waiting": self._waiting,
            **self._changed(since, STANDING // share, TAKEN_BACK // share),
        }
        return said if since else {**said, "text": clip(plan.text, 400)}

    def _changed(self, since: int, standing: int, back: int) -> dict[str, Any]:
        """The matches that changed after ``since``, in bytes of at most ``standing`` and ``back``, the newest first to
        be chosen; of the others that may have been shown the id, and whether they were taken back."""
        matches: list[Any] = []
        rest: list[Any] = []
        for item, weight in reversed(self._matches.values()):
            if item["n"] <= since:
                break
            if item["back"] is None:
                standing -= weight
                fits = standing >= 0
            else:
                back -= weight
                fits = back >= 0
            if fits:
                matches.append(item)
            elif item["told"] <= since:
                rest.append([item["id"], item["back"] is not None, item["seq"]])
        oldest = next(iter(self._matches.values()))[0]["seq"] if self._matches else 0
        return {"matches": matches[::-1], "rest": rest, "oldest": oldest}

    def describe(self, told: Mapping[str, Any], clock: int | None, recent: Recent, room: int) -> None:
        """What :meth:`Runtime.explain` says of the query; ``room`` bytes for what waits."""
        self._facts = {name: plain(told[name], 160) for name in _FACTS if told.get(name) is not None}
        if told.get("horizon") is not None and clock is not None:
            self._facts["lag"] = clock - told["horizon"] - 1
        samples = told.get("waiting") or []
        known = recent.find(_ids(samples))
        self._waiting = []
        for one in samples:
            events = [str(event) for event in one["events"][:EVENTS]]
            item = {
                "events": [clip(event, 40) for event in events],
                "times": [known[event][0] if event in known else None for event in events],
                "since": one["since"],
                "scopes": [
                    {key: plain(scope.get(key), 40) for key in ("type", "ends", "horizon", "waits_for", "source")}
                    for scope in one["scopes"][:3]
                ],
            }
            room -= size(item)
            if room < 0:
                break
            self._waiting.append(item)


class Lanes:
    """All queries; those beyond the first few are counted only. ``keep``: matches that are kept, together."""

    def __init__(self, queries: Sequence[Query], keep: int) -> None:
        share = max(min(len(queries), SHOWN), 1)
        self._lanes = [Lane(query, max(keep // share, 16)) for query in queries]
        self._names = pa.array([lane.plan.name for lane in self._lanes], pa.string())

    def types(self) -> list[str]:
        """The event types that the queries ask for, in order."""
        return list(dict.fromkeys(kind for lane in self._lanes for kind in lane.plan.types))

    def told(self, since: int) -> list[dict[str, Any]]:
        """What a frame says of the queries."""
        shown = self._lanes[:SHOWN]
        return [lane.told(since, len(shown)) for lane in shown]

    @property
    def more(self) -> int:
        """Queries that are not shown."""
        return max(len(self._lanes) - SHOWN, 0)

    def describe(self, told: Mapping[str, Mapping[str, Any]], clock: int | None, recent: Recent) -> None:
        """What :meth:`Runtime.explain` says of the queries."""
        shown = self._lanes[:SHOWN]
        for lane in shown:
            lane.describe(told.get(lane.plan.name) or {}, clock, recent, WAITING // len(shown))

    def late(self, queries: pa.Array) -> I64:
        """Late rows: count them, and give the number of each row's query, -1 where there is none (n,)."""
        codes = self._codes(queries)
        for lane, count in zip(
            self._lanes, np.bincount(codes[codes >= 0], minlength=len(self._lanes)).tolist(), strict=True
        ):
            lane.late += count
        return codes

    def change(
        self, changes: pa.Table, number: int, unit: str, clock: int | None, recent: Recent, batch: Arrived | None
    ) -> tuple[int, int]:
        """Changes that call ``number`` gave; returns how many matches came and how many were taken back.

        ``batch``: the events that brought them about, where that is known.
        """
        codes = self._codes(texts(changes.column("query")))
        deleted = pc.equal(changes.column("op"), "delete").to_numpy()
        known = codes >= 0
        counts = np.bincount(codes[known] * 2 + deleted[known], minlength=2 * len(self._lanes)).reshape(-1, 2)
        for lane, (inserts, deletes) in zip(self._lanes, counts.tolist(), strict=True):
            lane.inserted += inserts
            lane.deleted += deletes
        rows = self._rows_to_show(changes.column("match_id"), codes, deleted)
        if len(rows):
            maker = _Items(changes, rows, number, unit, clock, recent, batch)
            for row, lane in zip(maker.rows, codes[rows].tolist(), strict=True):
                maker.apply(self._lanes[lane], row)
        inserted, taken = counts.sum(axis=0).tolist()
        return inserted, taken

    def _codes(self, queries: pa.Array) -> I64:
        found = pc.index_in(queries, value_set=self._names).fill_null(-1)
        codes: I64 = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return codes

    def _rows_to_show(self, match_ids: Any, codes: I64, deleted: Any) -> I64:
        """The rows that say what became of the matches to show: those kept already, and a few of the new ones."""
        chosen: dict[str, None] = {}
        for number, lane in enumerate(self._lanes[:SHOWN]):
            own = codes == number
            if not own.any():
                continue
            for among, most in ((own & ~deleted, INSERTS), (own & deleted, DELETES)):
                rows = np.flatnonzero(among)
                rows = rows[pick(len(rows), np.zeros(len(rows), np.int64), most)]
                chosen |= dict.fromkeys(match_ids.take(pa.array(rows)).to_pylist())
            chosen |= dict.fromkeys(lane.ids)
        found = pc.index_in(match_ids, value_set=pa.array(list(chosen), pa.string()))
        at = found.fill_null(-1).to_numpy().astype(np.int64)
        last = np.full(len(chosen) + 1, -1)
        last[at] = np.arange(len(at))  # of equal indices the last assignment holds; -1 is the spare one at the end
        return np.sort(last[:-1][last[:-1] >= 0])


class _Items:
    """Rows of changes as items of lanes."""

    def __init__(
        self,
        changes: pa.Table,
        rows: I64,
        number: int,
        unit: str,
        clock: int | None,
        recent: Recent,
        batch: Arrived | None,
    ) -> None:
        self._number, self._unit, self._clock, self._batch = number, unit, clock, batch
        self._fields = [name for name in changes.column_names if name not in _FIXED][:FIELDS]
        chosen = changes.take(pa.array(rows))
        self.rows = chosen.select([*_FIXED[:4], *self._fields]).to_pylist()
        for name in ("first_ts", "last_ts"):
            times = whole_units(chosen.column(name), unit)
            assert times is not None
            for row, time in zip(self.rows, times[0].tolist(), strict=True):
                row[f" {name}"] = time  # a blank is in no alias
        self._known = recent.find(_ids(self.rows))

    def apply(self, lane: Lane, row: dict[str, Any]) -> None:
        match_id = row["match_id"]
        before = lane.match(match_id)
        taken_back = row["op"] == "delete"
        if before is not None and (before["back"] is not None) == taken_back:
            return  # it was taken back, or came, more than once in this call, and is as it was
        item = before if before is not None and taken_back else self._item(row)
        told = self._number if before is None else before["told"]
        lane.put(
            match_id,
            {**item, "n": self._number, "told": told, "back": self._cause(lane, row) if taken_back else None},
        )

    def _item(self, row: dict[str, Any]) -> dict[str, Any]:
        events = [str(event) for event in row["events"][:EVENTS]]
        found = [self._known.get(event) for event in events]
        complete = max((at for _, at in filter(None, found)), default=None) if all(found) else None
        return {
            "id": row["match_id"][:12],
            "first": row[" first_ts"],
            "last": row[" last_ts"],
            "events": [clip(event, 40) for event in events],
            "times": [None if one is None else one[0] for one in found],
            "left": self._clock,
            "wait": None if complete is None or self._clock is None else max(self._clock - complete, 0),
            "values": {clip(name, 24): plain(row[name], 32) for name in self._fields if row[name] is not None},
        }

    def _cause(self, lane: Lane, row: dict[str, Any]) -> dict[str, Any]:
        """The clock, and the event that took the match back: where the batch has just one that can have."""
        batch = self._batch
        if batch is None or not 0 < len(batch.ts) <= SMALL:
            return {"clock": self._clock, "by": None}
        first, last = row[" first_ts"], row[" last_ts"]
        can = np.zeros(len(batch.ts), bool)
        for negation in lane.plan.negations:
            low, high = _scope(negation, first, last, lane.plan.window.units(self._unit))
            same = pc.equal(batch.types, negation.component.type).to_numpy(zero_copy_only=False)
            can |= same & (batch.ts >= low) & (batch.ts <= high)
        rows = np.flatnonzero(can)
        if len(rows) != 1:
            return {"clock": self._clock, "by": None}
        at = int(rows[0])
        late = max(int(batch.judged(self._clock)[at] - batch.ts[at]), 0)
        name = None if batch.ids is None else batch.ids[at].as_py()
        event = {
            "id": None if name is None else clip(name, 40),
            "type": clip(batch.types[at].as_py(), 32),
            "ts": int(batch.ts[at]),
            "late": late,
        }
        return {"clock": self._clock, "by": event}


def _ids(matches: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(event) for match in matches for event in match["events"][:EVENTS]))


def _scope(negation: Negation, first: int, last: int, window: int) -> tuple[int, int]:
    """Between which times an event of the negation can take a match back, as far as the match's ends tell."""
    if negation.kind == "leading":
        return last - window, first
    if negation.kind == "trailing":
        return last, first + window
    return first, last
