"""When a match over intervals leaves: it waits until nothing that is still to come can fall in its scopes.

A scope has no fixed end, only a last time in each world. A level that is final waits for the last of all worlds. One
that corrects itself need not: it answers as soon as its patience has passed since the event behind the scope may first
have happened, and waits only for a trailing scope ("overdue") until that is surely over. Levels that keep matches in
order also wait for the end of the match itself.

Whether a match has left is a function of its events' intervals and of the horizons alone (``closed``), so a correction
need not look for the match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latecomer.consistency.clock import BEGINNING
from latecomer.runtime.intervals.chains import Chain, Chains
from latecomer.runtime.intervals.matcher import Timing
from latecomer.runtime.pattern import Pattern
from latecomer.storage.columns import I64
from latecomer.storage.store import Bools
from latecomer.storage.timeline import Timeline

_NO_SCOPE = np.int64(-(2**63))  # below every horizon, even before the clock has begun


class Waiting:
    """The matches of one query that wait, kept as event references by the last moment that they wait for.

    ``final``: wait for the last of all worlds. ``ordered``: wait for the end of the match too.
    """

    def __init__(self, pattern: Pattern, timing: Timing, *, final: bool, ordered: bool) -> None:
        self._pattern, self._timing, self._final, self._ordered = pattern, timing, final, ordered
        self._chain = Chain(pattern.positives, pattern.positives)
        self._timeline = Timeline(len(pattern.positives) + 1)

    def __len__(self) -> int:
        return len(self._timeline)

    def ends(self, rows: Chains) -> list[I64]:
        """For each negation, and each rival under skip-till-next-match, the time that the match waits for."""
        positives, window = self._pattern.positives, self._pattern.window
        earliest, latest, _ = rows.bounds(self._chain, window)
        result = []
        for negation in self._pattern.plan.negations:
            left, right = negation.left, negation.right
            if right is None:
                begin, last = earliest[-1] + 1, latest[0] + window
                end = last
            else:
                begin = earliest[-1] - window if left is None else earliest[left] + 1
                last = latest[right] - 1
                end = last if self._final else np.minimum(last, rows.time(positives[right]) - 1)
            result.append(np.where(begin > last, _NO_SCOPE, end))
        return result

    def closed(self, rows: Chains, horizons: Sequence[int | I64], entry: int) -> Bools:
        """The matches that need not wait any more; ``horizons`` has one time for each negation, or one for each of its
        rows; ``entry``: matches that end before it are in order.
        """
        mask = np.ones(len(rows), bool)
        for end, horizon in zip(self.ends(rows), horizons, strict=True):
            mask &= end <= horizon
        return mask & (self._last(rows) <= entry) if self._ordered else mask

    def completion(self, rows: Chains) -> I64:
        """When a match is complete in every world: at its last event, or at the end of a trailing scope."""
        trailing = [e for n, e in zip(self._pattern.plan.negations, self.ends(rows), strict=True) if n.right is None]
        return np.maximum.reduce([self._last(rows), *trailing])  # type: ignore[no-any-return]

    def reach(self, rows: Chains) -> I64:
        """The earliest time that each match depends on: of its first event, or of a leading scope's begin."""
        earliest = rows.bounds(self._chain, self._pattern.window)[0]
        leading = any(n.left is None for n in self._pattern.plan.negations)
        return np.minimum(earliest[0], earliest[-1] - self._pattern.window) if leading else earliest[0]

    def _last(self, rows: Chains) -> I64:
        return rows.bounds(self._chain, self._pattern.window)[1][-1]

    def hold(self, rows: Chains) -> None:
        if not len(rows):
            return
        moments = [*self.ends(rows), *([self._last(rows) - 1] if self._ordered else [])]
        columns = [*(rows.ref(i) for i in self._pattern.positives), rows.keys.view(np.int64)]
        self._timeline.add(np.maximum.reduce(moments), columns)

    def due(self, horizons: Sequence[int], entry: int) -> Chains:
        """Take out the matches that need not wait any more."""
        bounds = [*horizons, *([entry - 1] if self._ordered else [])]
        rows = self._rows(self._timeline.take(max(bounds, default=BEGINNING))[1])
        if len(rows) and min(bounds) < max(bounds):
            closed = self.closed(rows, horizons, entry)
            self.hold(rows.take(~closed))
            rows = rows.take(closed)
        return rows

    def pick(self, which: Callable[[Chains], Bools]) -> Chains:
        """Take out the matches that ``which`` marks."""
        rows = self.waiting()
        mask = which(rows)
        if mask.any():
            self._timeline = Timeline(self._timeline.width)
            self.hold(rows.take(~mask))
        return rows.take(mask)

    def waiting(self) -> Chains:
        """All matches that wait; they stay."""
        return self._rows(self._timeline.all()[1])

    def joined(self, rows: Chains, more: Chains) -> Chains:
        """Two sets of matches, one after the other."""
        pairs = [np.concatenate((rows.ref(i), more.ref(i))) for i in self._pattern.positives]
        return self._rows([*pairs, np.concatenate((rows.keys, more.keys)).view(np.int64)])

    def refs(self) -> I64:
        """The references of all events that waiting matches consist of."""
        return np.concatenate(self._timeline.all()[1][:-1])

    def _rows(self, columns: list[Any]) -> Chains:
        *refs, keys = columns
        nothing: list[I64 | None] = [None] * len(self._pattern.components)
        rows = Chains(list(nothing), list(nothing), list(nothing), keys.view(np.uint64))
        for index, ref in zip(self._pattern.positives, refs, strict=True):
            rows.refs[index] = ref
            rows.ts[index], rows.uppers[index] = self._timing.bounds(ref)
        return rows

    @property
    def nbytes(self) -> int:
        return self._timeline.nbytes

    def dump(self) -> Any:
        return self._timeline.dump()

    def load(self, state: Any) -> None:
        self._timeline.load(state)
