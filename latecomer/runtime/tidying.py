"""Tidying: when state is looked through for what may go, since each look has its price.

Rule: once something may go, and enough events have come since the last look. Nobody else knows when that is: a look
that was put off for want of events is made up for before anybody sees state.
"""

from __future__ import annotations

from latecomer.consistency.clock import BEGINNING

#: The next look is not before the clock has moved by the first of these parts of a slice; and by the second there may
#: be something to find.
_LEAST, _MOST = 64, 4
#: Nor is it before so many events have come, since slices may hold few; or the second of these numbers, once the clock
#: has moved by so many slices, each of which may be a run by now.
_ENOUGH, _SOME, _SLICES = 1 << 8, 1 << 6, 32
#: Events of a batch from which on stores are looked through behind it: there is no room to leave them where they are.
_LARGE = 1 << 12


class Tidying:
    """For state in slices of so many units of event time.

    >>> tidying = Tidying(1_024)
    >>> tidying.done(0, more=512)  # something may go from 256 on
    >>> tidying.came(100); tidying.due(300), tidying.put_off
    (False, 300)
    >>> tidying.came(200); tidying.due(301), tidying.put_off
    (True, None)
    """

    __slots__ = ("_at", "_come", "_slice", "_sooner_at", "put_off")

    def __init__(self, slice: int) -> None:
        self._slice = slice
        self._at = BEGINNING  # the clock from which on enough events make a look due,
        self._sooner_at = BEGINNING  # and from which on some do
        self._come = 0  # events since the last look
        #: The clock at which a look would have been due, but for the events, or was left to be taken before the next
        #: batch; None: there was none.
        self.put_off: int | None = None

    def came(self, events: int) -> None:
        self._come += events

    def fill(self, events: int, clock: int) -> None:
        """So many events came, which lie where there is room for few."""
        self._come += events
        if events > _LARGE:
            self._at = min(self._at, clock)

    def due(self, clock: int) -> bool:
        """Whether to look now."""
        due = clock >= self._at
        if due and self._come >= (_ENOUGH if clock < self._sooner_at else _SOME):
            self.put_off = None
            return True
        self.put_off = clock if due else None
        return False

    def done(self, clock: int, more: int) -> None:
        """All was looked through; there may be more to find when the clock has moved by so much."""
        self._at = clock + min(max(more, self._slice // _LEAST), self._slice // _MOST)
        self._sooner_at, self._come, self.put_off = clock + _SLICES * self._slice, 0, None
