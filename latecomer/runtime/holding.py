"""When a match leaves: it waits until the horizon covers each of its negation scopes.

Whether a match has left is a function of its times and of the horizons alone (``closed``), so a correction need not
look for the match: if it had not left, it is still here and will be found dead when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latecomer.consistency.clock import END
from latecomer.runtime.pattern import Pattern
from latecomer.runtime.rows import Rows
from latecomer.runtime.sequence import scope
from latecomer.storage import kernels
from latecomer.storage.columns import I64, Array
from latecomer.storage.log import EventLog
from latecomer.storage.pager import Pager
from latecomer.storage.store import Bools
from latecomer.storage.timeline import Timeline

_NO_SCOPE = -(2**63)  # below every horizon, even before the clock has begun
_PART = 64  # of a window: what is shown to steps ahead of time


class Holding:
    """The matches of one query that wait, kept as event references by the last moment that they wait for."""

    def __init__(self, pattern: Pattern, log: EventLog, pager: Pager | None = None) -> None:
        self._pattern, self._log = pattern, log
        self._timeline = Timeline(len(pattern.positives) + 1, pager)
        #: What steps hold, and what they will ask for next: see :meth:`draw`.
        self.recent: Any = None
        if kernels.Waiting is not None and pager is None:
            self.recent = kernels.Waiting(len(pattern.positives))
        self._trailing = any(negation.kind == "trailing" for negation in pattern.plan.negations)
        #: With a leading scope and a trailing one a match may wait so long that negatives in the leading scope are
        #: purged meanwhile: those must strike when they come. All other negatives are still there when it leaves.
        self.outlives_its_killers = pattern.plan.negates_both_ends

    def __len__(self) -> int:
        return len(self._timeline) + (0 if self.recent is None else self.recent.count)

    @property
    def timeline(self) -> Timeline:
        """All that waits: so whoever asks anything of it finds it there."""
        if self._shown:
            self._timeline.add(*self.recent.take(END))
            self.recent.until = _NO_SCOPE
        return self._timeline

    @property
    def _shown(self) -> bool:
        """Whether steps look at what is :attr:`recent`: then all that they may ask for is there."""
        return self.recent is not None and self.recent.until > _NO_SCOPE

    def draw(self, moment: int) -> None:
        """Show to compiled code all that waits until ``moment``, and some more: each call has its price."""
        moment += self._pattern.window // _PART
        moments, columns = self._timeline.take(moment)
        self.recent.add(moments, tuple(columns), False)
        self.recent.until = moment if len(self._timeline) else END

    def ends(self, rows: Rows) -> list[I64]:
        """For each negation the last time of its scope, per row; a scope that holds no whole time has ended before
        all time."""
        result = []
        for probe in self._pattern.probes:
            lo, hi = scope(rows, probe, self._pattern)
            result.append(np.where(lo > hi, _NO_SCOPE, hi))
        return result

    def closed(self, rows: Rows, horizons: Sequence[int | I64]) -> Bools:
        """The rows whose scopes are all covered; ``horizons`` has one time for each negation, or one for each of its
        rows."""
        mask = np.ones(len(rows), bool)
        for end, horizon in zip(self.ends(rows), horizons, strict=True):
            mask &= end <= horizon
        return mask

    def all_closed(self, rows: Rows, horizons: Sequence[int]) -> bool:
        """Whether it takes no look at each row to see that its scopes are covered: all times lie below the horizons."""
        if not len(rows) or not horizons:
            return True
        last = int(np.maximum.reduce(rows.time(self._pattern.positives[-1])))
        if self._trailing:
            last = max(last, int(np.maximum.reduce(rows.time(self._pattern.positives[0]))) + self._pattern.window)
        return last <= min(horizons) + (not self._trailing)

    def reach(self, rows: Rows) -> I64:
        """The earliest time that each match depends on: of its first event, or of a leading scope's begin."""
        first = rows.time(self._pattern.positives[0])
        for probe in self._pattern.probes:
            first = np.minimum(first, scope(rows, probe, self._pattern)[0])
        return first

    def delays(self, rows: Rows, clock: int) -> I64:
        """How far ``clock`` has passed the last scope of each match."""
        last: I64 = np.maximum.reduce(self.ends(rows))
        return clock - last

    def completion(self, rows: Rows) -> I64:
        """When a match is complete in event time: at its last event, or at the end of a trailing scope (design §1)."""
        last = rows.time(self._pattern.positives[-1])
        if not self._trailing:
            return last
        return np.maximum(rows.time(self._pattern.positives[0]) + self._pattern.window, last)

    @property
    def waits_past_its_end(self) -> bool:
        """Whether matches complete later than their last event."""
        return self._trailing

    def hold(self, rows: Rows) -> None:
        if len(rows):
            columns: list[Array] = [*[rows.ref(i) for i in self._pattern.positives], rows.keys.view(np.int64)]
            moments = np.maximum.reduce(self.ends(rows))
            if self._shown:
                self.recent.add(moments, tuple(map(np.ascontiguousarray, columns)), True)
            else:
                self._timeline.add(moments, columns)

    def due(self, horizons: list[int]) -> Rows:
        """Take out the matches whose scopes are all covered."""
        bound = max(horizons)
        if self._shown and self.recent.until < bound:
            self.draw(bound)
        _, refs = (self.recent if self._shown else self._timeline).take(bound)
        rows = self._rows(refs)
        if len(rows) and min(horizons) < max(horizons):
            closed = self.closed(rows, horizons)
            self.hold(rows.take(~closed))
            rows = rows.take(closed)
        return rows

    def waiting(self) -> Rows:
        """All matches that wait; they stay."""
        return self._rows(self.timeline.all()[1])

    def keep(self, which: Callable[[Rows], Bools]) -> None:
        """Let the other matches go: they were killed while they waited."""
        rows = self.waiting()
        if len(rows):
            mask = which(rows)
            if not mask.all():
                self.timeline.clear()
                self.hold(rows.take(mask))

    def pick(self, which: Callable[[Rows], Bools]) -> Rows:
        """Take out the matches that ``which`` marks."""
        rows = self.waiting()
        mask = which(rows)
        if mask.any():
            self.timeline.clear()
            self.hold(rows.take(~mask))
        return rows.take(mask)

    def refs(self) -> I64:
        """The references of all events that waiting matches in memory consist of."""
        columns = self.timeline.awake()[:-1]
        return np.concatenate(columns)

    def earliest(self) -> int | None:
        """The first moment that a match waits for."""
        return self.timeline.earliest()

    def _rows(self, columns: list[Array]) -> Rows:
        *refs, keys = columns
        components = len(self._pattern.components)
        all_refs: list[I64 | None] = [None] * components
        all_ts: list[I64 | None] = [None] * components
        for index, ref in zip(self._pattern.positives, refs, strict=True):
            all_refs[index], all_ts[index] = ref, self._log.ts(ref)
        return Rows(all_refs, all_ts, keys.view(np.uint64))

    @property
    def nbytes(self) -> int:
        return self._timeline.nbytes + (0 if self.recent is None else int(self.recent.nbytes))

    def dump(self) -> Any:
        return self.timeline.dump()

    def load(self, state: Any) -> None:
        self.timeline.load(state)
