"""A test that runs: the fleet's clockwork, its senders, the reader, and what Locust is told.

Rules: slices of events are made a little ahead of their time; a source sends what is due whenever its greenlet gets its
turn, and how much later that is than intended is a statistic of its own. Answers are read in a thread, where their time
of arrival is taken, so a busy sender does not make them look late. After the end everything held is sent at its time,
and lone events keep the pipeline's clocks going, until all answers are there or the patience is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import gevent
import numpy as np
from gevent.threadpool import ThreadPool

from loadtest.counting import log_many
from loadtest.fleet import Fleet, Knobs
from loadtest.outbox import Events
from loadtest.truth import Verdict
from loadtest.wire import Answers, now_ms

if TYPE_CHECKING:
    from locust.stats import RequestStats

#: Length of a slice, and how long before its time it is made (ms).
SLICE, AHEAD = 200, 300
#: Latencies looked at for the breaking point.
RECENT = 2_000
#: Rows of the statistics for what is detected; the last four count failures.
MATCH, CORRECTION = "match, from its completing event", "correction, from the event that caused it"
WRONG_ALARM = "wrong alarm, until taken back"
ROWS = (MATCH, CORRECTION, WRONG_ALARM, "missed", "wrong", "duplicated", "unknown")


class Sender(Protocol):
    """One connection, which belongs to one source."""

    def send(self, events: Events) -> int: ...
    def close(self, seconds: float = 10.0) -> int: ...


class Reader(Protocol):
    """Reads what the pipeline answers."""

    def read(self, seconds: float = 0.05) -> Answers: ...
    def close(self) -> None: ...


class Tested(Protocol):
    """What is under test: a cluster (``wire.py``) or a service (``http.py``)."""

    def sender(self, source: int) -> Sender: ...
    def reader(self) -> Reader: ...


class Session:
    """One process of a load test."""

    def __init__(self, tested: Tested, fleet: Fleet, stats: RequestStats) -> None:
        self.tested, self.fleet, self.stats = tested, fleet, stats
        self.sent = 0
        self.recent: list[int] = []
        self._pool = ThreadPool(1)
        self._reader: Reader = self._pool.apply(tested.reader)  # made where it is used: its sockets know their thread
        self._made = 0
        self._next = 0
        self._running, self._reading = True, True
        for row in ROWS:
            stats.get(row, "DETECT")  # shown from the start, with 0
        self._greenlets = [gevent.spawn(self._make), gevent.spawn(self._read)]

    # --- sources -----------------------------------------------------------------------------------------------------

    def join(self) -> tuple[int, Sender]:
        """A new source with a connection of its own."""
        number, self._next = self._next, self._next + 1
        sender = self.tested.sender(number)
        self.fleet.join(number, now_ms())
        return number, sender

    def leave(self, number: int, sender: Sender) -> None:
        """A source ends; another one sends what it holds."""
        if self._running:
            self.fleet.leave(number, now_ms())
        gevent.spawn(sender.close)

    def send(self, number: int, sender: Sender) -> int:
        """Send what is due; returns how many events."""
        due = self.fleet.outbox.due(number, now_ms())
        if len(due):
            size = sender.send(due)
            log_many(self.stats, "SEND", "event, after its time", now_ms() - due["at"], size)
            self.sent += len(due)
        return len(due)

    def turn(self, knobs: Knobs) -> None:
        self.fleet.turn(knobs, now_ms())

    # --- clockwork ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        while self._running:
            now = now_ms()
            self._made = max(self._made, now - SLICE)  # before the first source, time passes without events
            while self._made < now + AHEAD and self._running:
                self.fleet.slice(self._made, self._made + SLICE)
                self._made += SLICE
                gevent.sleep(0)
            gevent.sleep(SLICE / 4_000)

    def _read(self) -> None:
        while self._reading:
            self.take(self._pool.apply(self._reader.read))
            gevent.sleep(0)

    def take(self, answers: Answers) -> None:
        """Compare answers with the truth, and tell Locust."""
        truth = self.fleet.truth
        truth.late(answers.late)
        truth.died(answers.dead)
        if not answers.inserted:
            return
        seen = truth.see(answers.inserted, answers.starts, answers.ends, answers.at)
        log_many(self.stats, "DETECT", MATCH, seen.latencies)
        log_many(self.stats, "DETECT", CORRECTION, seen.corrected)
        log_many(self.stats, "DETECT", WRONG_ALARM, seen.stood)
        for _ in range(seen.duplicated):
            self.stats.log_error("DETECT", "duplicated", "a match was given twice")
        for _ in range(seen.unknown):
            self.stats.log_error("DETECT", "unknown", "a change that no pipeline may give")
        self.recent = (self.recent + seen.latencies)[-RECENT:]

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self, patience: float) -> Verdict:
        """Send what is held, each at its time, wait for the answers, and judge."""
        self._running = False
        outbox = self.fleet.outbox
        spare = self.tested.sender(-1)
        self.fleet.rest(-1, now_ms())
        end = now_ms() + int(patience * 1_000)
        made = now_ms()
        while now_ms() < end:
            self.fleet.slice(made, made + SLICE)  # lone events, so that clocks go on
            made += SLICE
            for source in outbox.sources():
                due = outbox.due(source, now_ms())
                self.sent += len(due)
                spare.send(due)
            gevent.sleep(SLICE / 1_000)
            held = sum(1 for source in outbox.sources() if source != -1)
            if not held and self.fleet.truth.verdict().passed:
                break
        spare.close()
        gevent.sleep(0.3)  # what was on its way to the reader
        self._reading = False
        gevent.joinall(self._greenlets, timeout=5)
        self._pool.apply(self._reader.close)
        verdict = self.fleet.truth.verdict()
        for _ in range(min(verdict.missed, 10_000)):
            self.stats.log_error("DETECT", "missed", "a match that is owed was not given")
        for _ in range(min(verdict.wrong, 10_000)):
            self.stats.log_error("DETECT", "wrong", "an answer that stands is no match")
        return verdict

    def slowest(self) -> float:
        """The latency that 99 % of the latest detections do not exceed; 0 as long as there are too few to tell."""
        return float(np.quantile(self.recent, 0.99)) if len(self.recent) >= 100 else 0.0

    def state(self) -> dict[str, Any]:
        """Figures for the panel."""
        found = self.fleet.truth.verdict()
        latency = np.quantile(self.recent, (0.5, 0.99)).round().astype(int).tolist() if self.recent else [None, None]
        return {
            "sources": len(self.fleet.sources),
            "sent": self.sent,
            "held back": len(self.fleet.outbox),
            "latency p50": latency[0],
            "p99, ms": latency[1],
            "detected": found.detected,
            "not there yet": found.missed,
            "wrong now": found.wrong,
            "taken back": found.corrections,
            "duplicated": found.duplicated,
            "told late": found.told_late,
            "dead letters": f"{found.dead} of {found.poison}",
        }
