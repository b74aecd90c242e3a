"""What is true, what was detected, and the verdict.

The query under test is ``SEQ(Start a, !Cancel b, End c) WHERE [key] WITHIN window``. The generator tells *stories*: one
key, a Start, an End, and in some a Cancel. So what is true of a story follows from its own stamps, whatever else is
sent; no engine and no join is needed to know it.

Rules:

* an event that the pipeline reported as late, as often as it was sent, did not happen for it: the pipeline owes the
  answer on all others. It must give exactly that answer: a match of it that does not stand at the end is *missed*, one
  that stands and is none is *wrong*, one given twice without being taken back is *duplicated*. Where an event was sent
  twice and reported once, nobody outside can tell which of the two counted; a story that hangs on it is *unsettled*;
* a *wrong alarm* is a detection that is taken back later; how long it stood is told;
* latency runs from the intended time of sending of the event that completed the match, the later one of Start and End,
  to the arrival of the detection at the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Parts of a story; a lone event that belongs to none has ``LONE``. An event's id is ``number * 4 + part``.
START, CANCEL, END, LONE = 0, 1, 2, 3
#: The stamp of a Cancel that there is not.
NEVER = np.iinfo(np.int64).max


@dataclass(slots=True)
class Seen:
    """What a batch of changes said: the latency (ms) of each detection of a true match, and of each correction, from
    the Cancel that caused it; how long wrong alarms stood; and how many changes there were of each other kind.
    """

    latencies: list[int] = field(default_factory=list)
    corrected: list[int] = field(default_factory=list)
    stood: list[int] = field(default_factory=list)
    duplicated: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run.

    Attributes:
        expected: matches that the pipeline owes; ``complete``: matches had nothing been late.
        detected: of these, what stands; ``missed``, ``wrong``, ``unsettled``: see the module.
        corrections: wrong alarms that were taken back.
        duplicated, unknown: changes that no pipeline may give.
        told_late: events that the pipeline reported as late.
        poison, dead: broken messages sent, and found in the dead-letter topic.
    """

    expected: int
    complete: int
    detected: int
    missed: int
    wrong: int
    unsettled: int
    corrections: int
    duplicated: int
    unknown: int
    told_late: int
    poison: int
    dead: int

    @property
    def passed(self) -> bool:
        """Whether nothing is missed, wrong, duplicated or lost."""
        return not (self.missed or self.wrong or self.duplicated or self.unknown) and self.poison == self.dead

    def __str__(self) -> str:
        return (
            f"{'PASSED' if self.passed else 'FAILED'}: {self.detected:,} of {self.expected:,} matches stand, "
            f"{self.missed:,} missed, {self.wrong:,} wrong, {self.duplicated:,} duplicated, {self.unknown:,} unknown; "
            f"{self.corrections:,} wrong alarms were taken back; {self.told_late:,} events were reported late "
            f"({self.complete:,} matches on the complete stream, {self.unsettled:,} stories unsettled by copies); "
            f"{self.dead:,} of {self.poison:,} broken messages are dead letters"
        )


class Truth:
    """The stories of one generator, numbered from ``base``."""

    def __init__(self, window: int, base: int = 0) -> None:
        self.window, self.base, self.stories = window, base, 0
        self._stamp = np.zeros((0, 3), np.int64)  # of Start, Cancel, End
        self._at = np.zeros((0, 3), np.int64)  # when each is meant to be sent, the first copy
        self._sent = np.zeros((0, 3), np.int16)  # copies
        self._told = np.zeros((0, 3), np.int16)  # how often each was reported late
        self._alive = np.zeros(0, bool)
        self._since = np.zeros(0, np.int64)  # when the detection arrived
        self.corrections = self.duplicated = self.unknown = 0
        self.told_late = self.poison = self.dead = 0

    def add(self, stamp: Ints, at: Ints, sent: Ints) -> Ints:
        """Tell new stories: stamps, intended times and copies of Start, Cancel, End, (n, 3) each; returns their
        numbers.
        """
        n, have = len(stamp), self.stories
        if have + n > len(self._alive):
            room = max(2 * len(self._alive), have + n, 1_024)
            for name in ("_stamp", "_at", "_sent", "_told", "_alive", "_since"):
                old = getattr(self, name)
                new = np.zeros((room, *old.shape[1:]), old.dtype)
                new[:have] = old[:have]
                setattr(self, name, new)
        self._stamp[have : have + n], self._at[have : have + n] = stamp, at
        self._sent[have : have + n] = sent
        self.stories += n
        return np.arange(have, have + n) + self.base

    def postpone(self, ids: Ints, at: Ints, now: int) -> None:
        """These events, which were to be sent at ``at``, are meant to be sent ``now`` instead."""
        story, part = (ids >> 2) - self.base, ids & 3
        told = part != LONE
        story, part, at = story[told], part[told], at[told]
        first = self._at[story, part] == at  # an earlier copy may be on its way already
        self._at[story[first], part[first]] = now

    def see(self, inserted: Sequence[bool], starts: Sequence[int], ends: Sequence[int], now: int) -> Seen:
        """Changes in order, as read at ``now`` (ms): whether each is an insertion, and its two events' ids."""
        seen = Seen()
        for insert, start, end in zip(inserted, starts, ends, strict=True):
            story = (start >> 2) - self.base
            if not 0 <= story < self.stories:
                if start >> 42 == self.base >> 40:  # one of ours by its number, and never told
                    seen.unknown += 1
                continue  # another generator's
            if start & 3 != START or end != start + END - START:
                seen.unknown += 1
            elif insert and self._alive[story]:
                seen.duplicated += 1
            elif insert:
                self._alive[story], self._since[story] = True, now
                if self._true(np.array([story]))[0]:
                    seen.latencies.append(int(now - max(self._at[story, START], self._at[story, END])))
            elif not self._alive[story]:
                seen.unknown += 1
            else:
                self._alive[story] = False
                seen.stood.append(int(now - self._since[story]))
                seen.corrected.append(int(now - self._at[story, CANCEL]))
        self.corrections += len(seen.corrected)
        self.duplicated += seen.duplicated
        self.unknown += seen.unknown
        return seen

    def died(self, ids: Sequence[int]) -> None:
        """These broken messages are dead letters."""
        self.dead += sum(number >> 42 == self.base >> 40 for number in ids)

    def late(self, ids: Sequence[int]) -> None:
        """The pipeline reported these events as late, one entry for each time."""
        for number in ids:
            story, part = (number >> 2) - self.base, number & 3
            if part == LONE:
                self.told_late += number >> 42 == self.base >> 40
            elif 0 <= story < self.stories:
                self._told[story, part] += 1
                self.told_late += 1

    def _true(self, story: Ints, there: Bools | None = None, cancels: Bools | None = None) -> Bools:
        """Which stories are matches: those whose Start and End are among the events that are ``there`` and whose
        Cancel, if there is one between, is not among those that ``cancels``; None: all are. All are (n, 3).
        """
        start, cancel, end = self._stamp[story].T
        every = np.ones((len(story), 3), bool)
        there = every if there is None else there
        cancels = every if cancels is None else cancels
        apart = (start < end) & (end - start <= self.window) & there[:, START] & there[:, END]
        cancelled = cancels[:, CANCEL] & (cancel != NEVER) & (start < cancel) & (cancel < end)
        return np.asarray(apart & ~cancelled)

    def verdict(self) -> Verdict:
        """The end: what stands against what is owed."""
        every = np.arange(self.stories)
        sent, told = self._sent[every], self._told[every]
        surely, perhaps = told == 0, told < sent
        expected, possible = self._true(every, surely, perhaps), self._true(every, perhaps, surely)
        alive = self._alive[every]
        return Verdict(
            expected=int(expected.sum()),
            complete=int(self._true(every).sum()),
            detected=int((alive & expected).sum()),
            missed=int((expected & ~alive).sum()),
            wrong=int((alive & ~possible).sum()),
            unsettled=int((possible & ~expected).sum()),
            corrections=self.corrections,
            duplicated=self.duplicated,
            unknown=self.unknown,
            told_late=self.told_late,
            poison=self.poison,
            dead=self.dead,
        )
