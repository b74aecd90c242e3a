"""ParallelRuntime: what ``Runtime(…, workers=n)`` makes: the same runtime, on n cores.

The first worker is the calling thread, the others are threads of their own. Each has a runtime, which sees all rows,
and keeps the events of its share of the keys. So everything that is known of the stream as a whole (clock, sources,
promises, who is late) is known to each, and matches are found where their events are. Where kernels are not compiled
the others are processes: a batch is then many short steps of NumPy, each of which needs Python's lock to begin.

Its answers are those of one runtime, except that an id which comes again with another key is not known as a duplicate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from latecomer.consistency.levels import Aggressive, KSlack
from latecomer.consistency.policy import adapts, whole_units
from latecomer.errors import ConfigError, StateError
from latecomer.query.plan import Plan
from latecomer.query.query import Query
from latecomer.runtime.arguments import clocks_of, cuts_of, names_of, reached
from latecomer.runtime.given import plain
from latecomer.runtime.parting import Chooser
from latecomer.runtime.runtime import CLOSED, Output, Runtime
from latecomer.runtime.share import Share, common_key
from latecomer.runtime.spill import LEAST, Spill, memory_size
from latecomer.runtime.versions import fresh_folder, plain_note, version_number
from latecomer.runtime.workers import merging
from latecomer.runtime.workers.crew import HALF_WAY, Crew, Piece
from latecomer.storage.folder import StateFolder
from latecomer.storage.packing import pack
from latecomer.storage.shelf import Slot
from latecomer.storage.versions import Version
from latecomer.stream import Stream

#: More workers than this on one machine are a mistake.
_MOST = 256


class ParallelRuntime(Runtime):
    """A runtime whose events are shared out among ``workers`` threads or processes by key. See :class:`Runtime`."""

    _epoch = 0  # that of the claim under which the workers' folders began

    def __init__(
        self,
        stream: Stream,
        queries: Query | Sequence[Query],
        *,
        workers: int = 2,
        memory: int | str | None = None,
        spill: str | os.PathLike[str] | Spill | None = None,
    ) -> None:
        alone = Runtime(stream, queries)  # refuses what one runtime would refuse
        shares = _shares(workers, alone.queries)
        if memory is not None and spill is None:
            raise ConfigError(f"memory={memory!r} needs a place for the rest of the state: give spill='a/folder' too")
        budget = None if memory is None else _each(memory, workers)
        folder, spill = None, None if spill is None else Spill.of(spill)
        if spill is not None:
            folder = fresh_folder(spill)
            self._epoch = folder.claim()
        self._begin(alone, shares, folder)
        parts = [None if spill is None else _part_of(spill, share, self._epoch) for share in shares]
        snapshot = alone.snapshot()
        self._crew.begin(shares, [(snapshot, part, None, budget) for part in parts])

    def _begin(self, alone: Runtime, shares: Sequence[Share], folder: StateFolder | None) -> None:
        """``alone``: a runtime of the same stream and queries that has seen nothing."""
        self.stream, self.queries = alone.stream, alone.queries
        self._given, self._dropped = alone._given, alone._dropped
        self.note = {}
        self._folder, self._number, self._finished, self._closed = folder, 0, False, False
        self._crew = Crew(len(shares))

    # --- events ------------------------------------------------------------------------------------------------------

    def process(self, batch: Any, *, clocks: npt.ArrayLike | None = None, cuts: Sequence[int] = ()) -> Output:
        return self._joined(self._pieces("process", batch, clocks, cuts))

    def stream_pieces(
        self, batch: Any, *, clocks: npt.ArrayLike | None = None, cuts: Sequence[int] = ()
    ) -> Iterator[Output]:
        return map(_own, self._pieces("stream_pieces", batch, clocks, cuts))

    def _pieces(self, method: str, batch: Any, clocks: npt.ArrayLike | None, cuts: Sequence[int]) -> Iterator[Piece]:
        self._open()
        events = plain(batch)
        rows = events.num_rows if isinstance(events, pa.RecordBatch) else len(events)
        known, parts = clocks_of(clocks, rows), cuts_of(cuts, rows)
        if not isinstance(events, pa.RecordBatch):
            events = [dict(row) for row in events]
        return self._crew.stream(method, events, known, parts)

    def reject(self, lines: Sequence[tuple[str, str]]) -> Output:
        return self._told("reject", list(lines))

    # --- time --------------------------------------------------------------------------------------------------------

    def punctuate(
        self, ts: Any, type: str | None = None, source: Any = None, key: Mapping[str, Any] | None = None
    ) -> Output:
        return self._told("punctuate", ts, type, source, key)

    def observe(self, ts: int) -> Output:
        return self._told("observe", reached(ts))

    def advance(self, now: Any) -> Output:
        return self._told("advance", now)

    def finish(self) -> Output:
        out = self._told("finish")
        self._finished = True
        return out

    @property
    def clock(self) -> int | None:
        return self._alone.clock

    @property
    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        return self._alone._schemas

    # --- insight -----------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, Any]:
        return merging.counters(self._crew.ask("counters"))

    def explain(self) -> dict[str, Any]:
        """As of one runtime; besides, ``workers``: the ``events`` and ``bytes`` of each."""
        return merging.explained(self._crew.ask("explain"))

    # --- state -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        self._whole()
        return pack({"workers": self._crew.ask("snapshot")} | self._own())

    def checkpoint(self, note: Mapping[str, Any] | None = None, *, number: int | None = None) -> int:
        if self._folder is None:
            raise ConfigError("checkpoint() needs a folder: give Runtime(…, spill='a/folder')")
        self._whole()
        number = self._number + 1 if number is None else version_number(number)
        kept = plain_note(note)
        self._crew.ask("write", number)
        self._folder.commit(number, pack({"workers": self._crew.size} | self._own()), [], kept)
        self._number, self.note = number, kept
        return number

    def residue(self) -> tuple[bytes, list[Slot]]:
        raise ConfigError("a runtime with workers keeps its shelves itself: use checkpoint(), or workers=1")

    def freeze(self, most: int | None = None) -> tuple[bytes, list[Slot]]:
        return self.residue()

    def narrow(self, columns: Sequence[str], chosen: Chooser) -> None:
        raise ConfigError("a runtime with workers keeps all keys: use workers=1 to go on with some of them")

    def drop(self, names: Iterable[str]) -> None:
        self._whole()
        gone = names_of(names, [*[q.name for q in self.queries], *self._dropped])
        self._crew.ask("drop", gone)
        self._forget(gone)

    def _own(self) -> dict[str, Any]:
        alone = Runtime(self.stream, self._given)
        alone.drop(self._dropped)
        return {"alone": alone.snapshot(), "finished": self._finished, "epoch": self._epoch}

    @classmethod
    def together(cls, saved: Mapping[str, Any]) -> ParallelRuntime:
        """From a snapshot."""
        runtime, shares = cls._again(saved, len(saved["workers"]), None)
        runtime._crew.begin(shares, [(part, None, None, None) for part in saved["workers"]])
        return runtime

    @classmethod
    def reopened(
        cls, saved: Mapping[str, Any], folder: StateFolder, spill: Spill, found: Version, memory: int | str | None
    ) -> ParallelRuntime:
        """From a version in a state folder, which is claimed."""
        runtime, shares = cls._again(saved, saved["workers"], folder)
        budget = None if memory is None else _each(memory, len(shares))
        parts = [_part_of(spill, share, runtime._epoch) for share in shares]
        runtime._crew.begin(shares, [(None, part, found.number, budget) for part in parts])
        runtime._number, runtime.note = found.number, found.note
        return runtime

    @classmethod
    def _again(
        cls, saved: Mapping[str, Any], workers: int, folder: StateFolder | None
    ) -> tuple[ParallelRuntime, list[Share]]:
        alone = Runtime.restore(saved["alone"])
        runtime, shares = object.__new__(cls), _shares(workers, alone.queries)
        runtime._begin(alone, shares, folder)
        runtime._finished, runtime._epoch = saved["finished"], saved["epoch"]
        return runtime, shares

    def close(self) -> None:
        """End the workers. They also end when nothing refers to the runtime any more, and with this process."""
        super().close()
        self._crew.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> Runtime:
        """The runtime of the first member, which is here: what is known of the whole stream it knows."""
        assert self._crew.here.runtime is not None
        return self._crew.here.runtime

    def _nothing(self) -> Output:
        return self._alone._nothing()

    def _whole(self) -> None:
        if not self._crew.close.alive:
            raise StateError(CLOSED)
        if self._crew.broken:
            raise StateError(HALF_WAY)

    def _told(self, method: str, *given: Any) -> Output:
        self._open()
        return self._joined(self._crew.stream(method, *given))

    def _joined(self, pieces: Iterator[Piece]) -> Output:
        """All pieces as one output, in an order that does not depend on which worker was faster."""
        whole = self._collect(map(_own, sorted(pieces, key=lambda piece: piece[0])))
        plans = [query.plan for query in self.queries]
        if len(plans) == 1 and not isinstance(plans[0].level, KSlack):
            return whole
        return Output(merging.in_order(whole.changes, plans, self._window), whole.late)

    def _window(self, plan: Plan) -> int:
        """The window in the units of changes."""
        kind = self._schemas[0].field("first_ts").type
        unit = kind.unit if pa.types.is_timestamp(kind) else self.stream.unit_for(kind)
        return whole_units(plan.window, unit)


def _own(piece: Piece) -> Output:
    number, output = piece
    return Output(output.changes, merging.own_late(number, output.late)) if output.late.num_rows else output


def _shares(workers: Any, queries: Sequence[Query]) -> list[Share]:
    """What each worker gets. Raises ConfigError where events cannot be shared out."""
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST:
        raise ConfigError(f"workers={workers!r}: give a whole number from 1 to {_MOST}, at most one for each core")
    key = common_key([q.plan for q in queries])
    if not key:
        shown = "; ".join(f"{q.name} [{', '.join(q.plan.key)}]" for q in queries)
        raise ConfigError(
            f"workers={workers} needs an attribute on which the events of every query agree, and there is none "
            f"({shown}). Write [attribute] into WHERE, use workers=1, or give such queries runtimes of their own"
        )
    for query in queries:
        if isinstance(query.plan.level, Aggressive) and adapts(query.plan.level):
            raise ConfigError(
                f"query {query.name!r}: patience that adapts learns from all matches, and a worker sees a part: "
                "give a fixed patience, or workers=1"
            )
    return [Share(number, workers, key) for number in range(workers)]


def _each(memory: int | str, workers: int) -> int:
    """A worker's part of the budget."""
    each = memory_size(memory) // workers
    if each < LEAST:
        raise ConfigError(
            f"memory={memory!r} is {each} bytes for each of {workers} workers: give {workers} MiB or more"
        )
    return each


def _part_of(spill: Spill, share: Share, epoch: int) -> Spill:
    """A worker's own folder in the state folder; it keeps a version more, since the whole is named last."""
    path, mark, options = os.fspath(spill.uri).partition("?")
    uri = f"{path.rstrip('/')}/worker-{share.number}-of-{share.of}-{epoch}{mark}{options}"
    return replace(spill, uri=uri, keep=spill.keep + 1)
