"""The service of a pipeline without brokers: one worker, which owns the runtime.

One turn of the worker, in this order (:meth:`Service._turn`):

1. *Take* the requests that have come, up to some megabytes, and read them. What is no event becomes a dead letter; what
   is refused whole is answered at once.
2. *Write* them to the journal as one record, with one ``fsync``. Only then each is acknowledged.
3. *Process* the record: one batch of events, punctuation and the time of day in their order. What comes out goes to
   the logs and to whoever follows them.
4. *Save*, now and then: the logs, then a version of the runtime's state that notes the journal's record and the logs'
   positions. Records up to there are forgotten.

Hence the invariant: state and logs are a function of the journal's records alone. After a crash the last version is
opened, the logs are cut to it, and the records that follow are processed again: the same batches, so the same changes
under the same positions. What was acknowledged is never lost, and nobody who resumes at a position sees anything twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from latecomer.errors import LatecomerError, StateError
from latecomer.query import Query
from latecomer.runtime import Runtime
from latecomer.runtime.spill import Spill
from latecomer.serve.folder import locked, opened
from latecomer.serve.inbox import FINISHED, Closed, Inbox, Never, Receipt, Submission
from latecomer.serve.journal import Journal, JournalFull
from latecomer.serve.letters import DeadLetter
from latecomer.serve.outcome import NAMES, Outcome, wall_ms
from latecomer.serve.reading import Form, Parsed, ReadBody, Refused
from latecomer.serve.records import WORDS, Part, Record, said
from latecomer.serve.sse import Feed
from latecomer.stream import Stream
from latecomer.units import UNITS

if TYPE_CHECKING:
    from latecomer.serve.live import Live

log = logging.getLogger("latecomer.serve")

#: Seconds between two looks at what is held, for the page and for metrics.
LOOK = 0.5
#: Request keys that are remembered.
KEYS = 10_000
#: Problems that a receipt tells; all of them are dead letters.
TOLD = 10
#: Versions of the state that stay.
KEPT = 3
#: No changes, or no late events.
NOTHING = pa.table({})


class Service:
    """A pipeline without brokers, running in a thread of its own from :meth:`start` to :meth:`stop`.

    Args:
        stream, queries, memory: of the runtime.
        read: reads the bodies of requests.
        folder: where the state is kept; one process at a time.
        interval: seconds between two versions of the state, at least.
        idle_check: seconds between two times that the runtime is told the time of day, where the stream minds.
        inbox, keep, matches: see :class:`~latecomer.serve.config.Serve`.
        live: what the page shows.

    Raises StateError for a state that is damaged, in use, or of another pipeline.
    """

    def __init__(
        self,
        stream: Stream,
        queries: Sequence[Query],
        read: ReadBody,
        folder: Path,
        *,
        memory: int | None = None,
        interval: float = 10.0,
        idle_check: float = 1.0,
        inbox: int = 64 << 20,
        keep: int = 256 << 20,
        matches: int = 100_000,
        live: Live | None = None,
    ) -> None:
        self.stream, self.queries, self.live = stream, tuple(queries), live
        self.inbox = Inbox(inbox)
        self.failed: BaseException | None = None
        self.explained: dict[str, Any] = {}
        self.accepted = self.dead = self.versions = self.records = 0
        self.readers = 0
        self._read, self._interval, self._idle_check = read, interval, idle_check
        self._listeners: list[Callable[[], None]] = []
        self._looks: list[Callable[[Runtime], None]] = []
        self._timed = stream.idle_timeout is not None or stream.max_ahead is not None
        self._keys: dict[str, tuple[int, int]] = {}
        self._told_at = self._looked_at = self._beat = time.monotonic()
        self._saved_at = time.monotonic()
        self._dirty = False
        self._unit = stream.unit or "ms"
        self._began = time.monotonic()
        self._lock = locked(folder)
        self._thread = threading.Thread(target=self._run, name="latecomer-worker", daemon=True)
        spill = Spill(str(folder / "state"), keep=KEPT, batch=0)  # what comes out must not depend on what is in memory
        try:
            self.runtime = opened(stream, self.queries, spill, memory)
            note = self.runtime.note
            self._lines = int(note.get("lines", 0))
            self._applied = int(note.get("journal", 0))
            self.finished = bool(note.get("finished", False))
            self._keys.update({key: (accepted, dead) for key, accepted, dead in note.get("keys", [])})
            self.outcome = Outcome(folder / "logs", {name: note.get(name, 0) for name in NAMES}, keep, matches)
            self.journal = Journal(folder / "journal")
            self.journal.skip_to(self._applied)
            self._recover()
        except BaseException:
            os.close(self._lock)
            raise

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, seconds: float = 60.0) -> None:
        """Take no more, work off what has come, save a version, and end."""
        self.inbox.close("the service is ending")
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if self._thread.is_alive():
            raise StateError(f"the worker has not ended within {seconds:g} s; what it has acknowledged is safe")

    @property
    def alive(self) -> bool:
        """Whether the worker goes round."""
        return self.failed is None and time.monotonic() - self._beat < 30

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.alive and self._thread.is_alive() and self.inbox.closed is None and not self.finished

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call this, in the worker's thread, after something has come out."""
        self._listeners.append(listener)

    def on_look(self, look: Callable[[Runtime], None]) -> None:
        """Call this, in the worker's thread, about twice a second."""
        self._looks.append(look)

    # --- what others ask for -----------------------------------------------------------------------------------------

    def submit(self, body: bytes, form: Form, key: str | None = None, *, reserved: bool = False) -> Future[Receipt]:
        """Take in a body of events; resolved once they are safe. ``key``: a request of the same key counts once.
        ``reserved``: room in the inbox was taken before.

        Raises Overloaded or Closed; the future may raise Refused.
        """
        return self.inbox.admit(form, body, key, reserved=reserved)

    def control(self, word: str, **arguments: Any) -> Future[dict[str, Any]]:
        """``punctuate``, ``advance`` or ``finish``, in the order of arrival; resolved with how many changes it gave."""
        submission = Submission(word=word, arguments=arguments)
        self.inbox.put(submission)
        return submission.done

    @property
    def feeds(self) -> Mapping[str, Feed]:
        """``changes``, ``late`` and ``dead``."""
        return dict(zip(NAMES, self.outcome.logs, strict=True))

    def matches(self, limit: int, query: str | None = None) -> tuple[int, int, list[bytes]]:
        """How many matches hold, how many of them are not kept, and the newest of those that are."""
        board = self.outcome.board
        return len(board) + board.left_out, board.left_out, board.newest(limit, query)

    def explain(self) -> Future[dict[str, Any]]:
        """What is held now."""
        return self.control("explain")

    def figures(self) -> dict[str, float]:
        """How it goes, as numbers."""
        return {
            "state_bytes_on_disk": self._disk_bytes,
            "journal_bytes": self.journal.nbytes,
            "inbox_batches": len(self.inbox),
            "inbox_bytes": self.inbox.nbytes,
            "inbox_limit_bytes": self.inbox.limit,
            "readers": self.readers,
            "uptime_seconds": round(time.monotonic() - self._began, 1),
            "refused": self.inbox.refused,
            "acknowledged": self.accepted,
            "dead": self.dead,
            "changes": self.outcome.changes.newest,
        }

    # --- the worker --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self.inbox.closed is None or len(self.inbox):
                self._turn()
            self._save()
        except BaseException as problem:  # whatever it is, nobody may go on, and all have to know
            log.exception("the worker has failed")
            self.failed = problem
            self.inbox.close(f"the service has failed: {problem}")
            while group := self.inbox.take(0):
                for submission in group:
                    submission.done.set_exception(Closed("the service has failed"))
        finally:
            self.journal.close()
            self.outcome.close()
            os.close(self._lock)
            self._tell()

    def _turn(self) -> None:
        self._beat = time.monotonic()
        group = self.inbox.take(self._wait())
        if group:
            self._take(group)
        if self._timed and time.monotonic() - self._told_at >= self._idle_check and not self.finished:
            self._write([], [], [])
        self._look()
        if self._dirty and time.monotonic() - self._saved_at >= self._interval:
            self._save()

    def _wait(self) -> float:
        return min(LOOK, self._idle_check) if self._timed else LOOK

    def _take(self, group: Sequence[Submission]) -> None:
        """Read, write and process what goes together; whatever happens, its bytes are let go."""
        try:
            run: list[Submission] = []
            for submission in group:
                if submission.word is None:
                    run.append(submission)
                    continue
                self._events(run)
                run = []
                self._word(submission)
            self._events(run)
        finally:
            for submission in group:
                self.inbox.release(submission.size)
                if not submission.done.done():
                    submission.done.set_exception(Closed("the service has failed"))

    def _events(self, run: Sequence[Submission]) -> None:
        at, number = wall_ms(), self._lines
        taken: list[Submission] = []
        found: list[Parsed] = []
        again: list[Submission] = []
        keys: set[str] = set()
        for submission in run:
            key = submission.key
            if key is not None and (key in self._keys or key in keys):
                again.append(submission)
                continue
            if self.finished:
                submission.done.set_exception(Never(FINISHED))
                continue
            assert submission.form is not None
            try:
                parsed = self._read(submission.form, submission.body, number, at)
            except Refused as problem:
                submission.done.set_exception(problem)
                continue
            number += parsed.lines
            taken.append(submission)
            found.append(parsed)
            if key is not None:
                keys.add(key)
        if taken:
            parts = [Part(str(s.form), s.body, s.key) for s in taken]
            self._write(parts, found, taken, at)
        for submission in again:
            known = self._keys.get(submission.key or "")
            if known is None:
                submission.done.set_exception(Closed("the first request of this key was not taken: send it again"))
            else:
                submission.done.set_result(Receipt(*known, repeated=True))

    def _word(self, submission: Submission) -> None:
        """A word about time: safe first, then done, then answered."""
        if submission.word == "explain":
            submission.done.set_result(self._explained())
            return
        if self.finished:
            submission.done.set_exception(Never(FINISHED))
            return
        body = msgspec.json.encode(submission.arguments)
        before = self.outcome.changes.newest
        problem = self._write([Part(str(submission.word), body)], [None], [submission])
        if submission.done.done():
            return  # it could not be written
        if problem is not None:
            submission.done.set_exception(problem)
        else:
            changes = self.outcome.changes.newest - before
            submission.done.set_result({"changes": changes, "clock": self.runtime.clock})

    def _write(
        self,
        parts: list[Part],
        found: Sequence[Parsed | None],
        waiting: Sequence[Submission],
        at: int | None = None,
    ) -> LatecomerError | None:
        """Write a record, acknowledge its events, and process it; returns what a word in it was refused with."""
        at = wall_ms() if at is None else at
        now = None
        if self._timed and time.monotonic() - self._told_at >= self._idle_check:
            now = at * UNITS["ms"] // UNITS[self._unit]
            self._told_at = time.monotonic()
        record = Record(at, now, parts)
        try:
            if not self.outcome.settle():  # else ever more rows would wait in memory for room on the disk
                raise JournalFull("what came out cannot be written, so nothing more is taken in")
            number = self.journal.append(record.packed())
        except JournalFull as problem:
            log.warning(str(problem))
            for submission in waiting:
                submission.done.set_exception(problem)
            return None
        for submission, parsed in zip(waiting, found, strict=True):
            if parsed is not None:
                self._acknowledge(submission, parsed)
        return self._apply(number, record, found)

    def _acknowledge(self, submission: Submission, parsed: Parsed) -> None:
        told = tuple({"line": d.line, "reason": d.reason, "detail": d.detail} for d in parsed.letters[:TOLD])
        self.accepted += parsed.table.num_rows
        self.dead += len(parsed.letters)
        submission.done.set_result(Receipt(parsed.table.num_rows, len(parsed.letters), told))

    def _apply(self, number: int, record: Record, found: Iterable[Parsed | None]) -> LatecomerError | None:
        """Process a record. This, and what it calls, is all that changes the state and the logs."""
        refused: LatecomerError | None = None
        if record.now is not None:
            self._emit(self.runtime.advance(record.now))
        tables: list[pa.Table] = []
        letters: list[DeadLetter] = []
        for part, parsed in zip(record.parts, found, strict=True):
            if parsed is not None:
                self._lines += parsed.lines
                tables.append(parsed.table)
                letters += parsed.letters
                if part.key is not None:
                    self._remember(part.key, parsed)
                continue
            try:
                self._emit(said(self.runtime, part.form, msgspec.json.decode(part.body)))
                self.finished |= part.form == "finish"
            except LatecomerError as problem:
                refused = problem
        if sum(table.num_rows for table in tables):
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")
            if self.live is not None:
                self.live.arrived(table, time.time())
            told = False
            for piece in self.runtime.stream_pieces(table):
                self._emit(piece)
                told = True
            if self.live is not None and not told:  # it changed nothing; the page shows the events all the same
                self.live.answered(NOTHING, NOTHING, time.time(), clock=self.runtime.clock)
        if letters:
            self.outcome.bury(letters, number)
            if self.live is not None:
                self.live.dead(letters, time.time())
        self._applied, self._dirty = number, True
        self.records += 1
        self._tell()
        return refused

    def _emit(self, output: Any) -> None:
        self.outcome.add(output.changes, output.late)
        if self.live is not None:
            self.live.answered(output.changes, output.late, time.time(), clock=self.runtime.clock)

    def _remember(self, key: str, parsed: Parsed) -> None:
        self._keys[key] = parsed.table.num_rows, len(parsed.letters)
        while len(self._keys) > KEYS:
            del self._keys[next(iter(self._keys))]

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    # --- insight -----------------------------------------------------------------------------------------------------

    def _explained(self) -> dict[str, Any]:
        self.explained = self.runtime.explain()
        return self.explained

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < LOOK:
            return
        self._looked_at = time.monotonic()
        if self.live is not None:
            self.live.described(self._explained(), self.figures(), time.time())
        for look in self._looks:
            look(self.runtime)

    # --- saving and going on -----------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Write a version that stands for all records so far, and forget these."""
        self._saved_at = time.monotonic()
        if not self._dirty:
            return
        keys = [[key, *counts] for key, counts in self._keys.items()]
        note = {"journal": self._applied, "lines": self._lines, "finished": self.finished, "keys": keys}
        try:
            self.outcome.sync()
            self.runtime.checkpoint(note | self.outcome.positions())
            self.journal.forget(self._applied)
        except (StateError, JournalFull) as problem:
            # The journal still holds everything, so nothing is lost; it grows until a version can be written.
            log.warning(f"no version of the state could be written: {problem}")
            return
        self._dirty = False
        self.versions += 1

    def _recover(self) -> None:
        """Process again what the journal holds beyond the version."""
        count = 0
        for number, payload in self.journal.replay(self._applied):
            record = Record.unpacked(payload)
            self._apply(number, record, list(self._parsed(record)))
            count += 1
        if count:
            log.info("recovered", extra={"fields": {"records": count, "changes": self.outcome.changes.newest}})

    def _parsed(self, record: Record) -> Iterator[Parsed | None]:
        number = self._lines
        for part in record.parts:
            if part.form in WORDS:
                yield None
                continue
            parsed = self._read(part.form, part.body, number, record.at)  # type: ignore[arg-type]
            number += parsed.lines
            yield parsed

    @property
    def _disk_bytes(self) -> int:
        facts = self.explained.get("memory") or {}
        return int(facts.get("written_bytes", 0)) + self.outcome.nbytes
