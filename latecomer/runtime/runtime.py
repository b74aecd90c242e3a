"""Runtime: queries over one stream, in any Python process. The public face of the engine.

The engine needs the types of columns, so it is built from the first batch (or at once, when the stream declares its
schema). A snapshot holds everything that answers depend on: ``Runtime.restore`` needs nothing else and gives exactly
the same future. A runtime with a state folder also writes versions into it, each of which costs what has changed;
``Runtime.open`` goes on from one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from latecomer.consistency.clock import BEGINNING, END, FAR
from latecomer.errors import ConfigError, SchemaError, StateError
from latecomer.query.query import Query, queries_of
from latecomer.runtime.arguments import check_moment, clocks_of, cuts_of, names_of, reached
from latecomer.runtime.changes import check_names
from latecomer.runtime.engine import Engine, Piece, attributes_of, promised_columns
from latecomer.runtime.explain import explain
from latecomer.runtime.given import differs_in_encoding, encoded_as, to_arrow
from latecomer.runtime.intervals.guards import check_level, over_intervals
from latecomer.runtime.memory import facts
from latecomer.runtime.parting import Chooser, drop, narrow
from latecomer.runtime.saved import plain_stream, saved_query, saved_stream, schema_bytes, schema_of
from latecomer.runtime.schema import check_single, fix_schema, missing_columns
from latecomer.runtime.share import Share
from latecomer.runtime.spill import BATCH, Spill, Spilling, memory_size
from latecomer.runtime.versions import fresh_folder, known_version, plain_note, version_number
from latecomer.storage.columns import I64
from latecomer.storage.folder import StateFolder
from latecomer.storage.packing import freeze, pack, seal, unpack
from latecomer.storage.pager import Pager
from latecomer.storage.shelf import MemoryShelf, Shelf, Slot
from latecomer.stream import Stream
from latecomer.units import Duration

_CHANGES = pa.schema(
    [
        ("op", pa.string()),
        ("query", pa.string()),
        ("match_id", pa.string()),
        ("events", pa.list_(pa.string())),
        ("first_ts", pa.int64()),
        ("last_ts", pa.int64()),
    ]
)
_LATE = pa.schema([("late_id", pa.string()), ("query", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True, slots=True)
class Output:
    """What a call gives: ``changes`` to the matches, and ``late`` events, as Arrow tables.

    ``changes``: columns ``op`` (insert or delete), ``query``, ``match_id``, ``events`` (ids of the constituents in
    pattern order), ``first_ts``, ``last_ts``, then the RETURN fields of all queries (null where a query has no such
    field). ``late``: ``late_id``, ``query`` (null where the reason is not a query's), ``id``, ``type``, ``ts``,
    ``source``, ``reason``, ``late_by`` (units), ``detail``, then the event's attributes.
    """

    changes: pa.Table
    late: pa.Table


#: What whoever goes on after close() is told.
CLOSED = "close() was called: make a new Runtime, or go on from a version or a snapshot"


class Runtime:
    """Runs ``queries`` over the events of ``stream``.

    Args:
        stream: what the columns of batches mean.
        queries: one query or several, each with its own name and level.
        memory: how much state may be in memory: bytes, or text like ``"512 MiB"``; the rest lies in ``spill``, and is
            read when an event needs it. None: all of it is in memory.
        spill: a folder without a state, or the URI of one, or :class:`Spill`: for state beyond ``memory``, and for
            versions (:meth:`checkpoint`).
        workers: how many threads (processes, where kernels are not compiled) share out the events by key, for more
            cores than one; all queries need an attribute in ``[…]`` in common. The same answers, but for one thing: an
            id that comes again with *another key* is known as a duplicate only by the worker that holds the first.
            ``memory`` is that of all together.

    Raises ConfigError for queries that cannot live side by side, and StateError for a folder that holds a state
    already (:meth:`open` goes on with it) or cannot be used.

    >>> import latecomer as lc
    >>> query = lc.Query("PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 10 s", name="q", level=lc.Aggressive("5 s"))
    >>> runtime = lc.Runtime(lc.Stream(id="id", unit="s"), [query])
    >>> out = runtime.process([{"id": 1, "type": "A", "ts": 1, "k": "x"}, {"id": 2, "type": "C", "ts": 5, "k": "x"}])
    >>> out.changes.column("events").to_pylist()
    [[1, 2]]
    >>> runtime.process([{"id": 3, "type": "B", "ts": 3, "k": "x"}]).changes.column("op").to_pylist()
    ['delete']
    """

    def __new__(cls, *given: Any, workers: int = 1, **options: Any) -> Runtime:
        if cls is not Runtime or (workers == 1 and not isinstance(workers, bool)):
            return super().__new__(cls)
        from latecomer.runtime.workers.parallel import ParallelRuntime

        return super().__new__(ParallelRuntime)

    def __reduce__(self) -> Any:
        raise StateError(
            "a runtime is neither pickled nor copied: runtime.snapshot() gives its state as bytes, and "
            "Runtime.restore(…) makes a runtime of them"
        )

    def __init__(
        self,
        stream: Stream,
        queries: Query | Sequence[Query],
        *,
        workers: int = 1,
        memory: int | str | None = None,
        spill: str | os.PathLike[str] | Spill | None = None,
    ) -> None:
        queries = queries_of(queries)
        if not queries:
            raise ConfigError("a runtime needs at least one query: Runtime(stream, [Query(…)])")
        for query in queries:  # what needs no columns to be known is refused here, and not at the first batch
            query.check(stream)
            if over_intervals(query.plan, stream.uncertain):
                check_level(query.level)
        self.stream = stream
        self.queries = self._given = queries
        self._plans = [q.plan for q in queries]
        check_names(self._plans)
        self._columns = attributes_of(self._plans) | promised_columns(stream)
        self._counters: Counter[Any] = Counter()
        self._engine: Engine | None = None
        self._waiting: list[
            tuple[str | None, Any, Any, dict[str, Any] | None]
        ] = []  # promises given before the first batch
        self._reached = BEGINNING
        self._nows: list[Any] = []
        self._finished = self._closed = False
        self._empty: tuple[pa.Schema, pa.Schema, Output] | None = None  # what comes out where there is nothing to say
        #: A schema that was found to fit, and whether it differs in how texts are encoded.
        self._fitting: tuple[Engine | None, pa.Schema, bool] = None, _CHANGES, False
        self._dropped: list[str] = []  # names of queries that were dropped: they number the others, and no more
        #: What was noted with the version that this runtime was opened from, or has written last.
        self.note: Mapping[str, Any] = {}
        self._folder: StateFolder | None = None
        self._spilling: Spilling | None = None
        self._number = 0
        self._share: Share | None = None
        if memory is not None and spill is None:
            raise ConfigError(f"memory={memory!r} needs a place for the rest of the state: give spill='a/folder' too")
        if spill is not None:
            spill = Spill.of(spill)
            folder = fresh_folder(spill)
            self._spill(folder, spill, memory)
            folder.claim()
        declared = stream.declared
        if declared is not None and {stream.type, stream.ts} <= set(declared.names):
            self._build(fix_schema(stream, declared, self._columns, by_row=False))

    # --- events ------------------------------------------------------------------------------------------------------

    def process(self, batch: Any, *, clocks: npt.ArrayLike | None = None, cuts: Sequence[int] = ()) -> Output:
        """Take in a batch of events, in order of arrival; return what it changes.

        Args:
            batch: an Arrow table or record batch, a pandas or Polars data frame, or a list of dicts.
            clocks: for each row the stream's clock as known from elsewhere (n whole numbers, in units): for runtimes
                that see only a part of the stream.
            cuts: ascending row numbers. Levels that correct themselves then say what they would have said if the batch
                had come in parts that begin at these rows, so that a large batch gives the log of small ones. The net
                result is the same.

        Raises SchemaError, before anything is processed, when a column is missing, comes twice or has the wrong type;
        ConfigError for clocks and cuts that do not fit the batch; StateError when the answer does not fit memory.
        """
        try:
            engine, given, details, outside, cuts = self._prepared(batch, clocks, cuts)
            if engine is None:
                return self._nothing()
            return self._collect(map(self._piece, engine.process(given, details, outside, cuts)))
        except MemoryError as problem:
            raise StateError(
                f"there is no memory for the answer to this batch ({problem}): go on from the last version or snapshot "
                "and take the answer in pieces, with Runtime.stream_pieces(batch); or give the query more conditions "
                "or a shorter window"
            ) from problem

    def stream_pieces(
        self, batch: Any, *, clocks: npt.ArrayLike | None = None, cuts: Sequence[int] = ()
    ) -> Iterator[Output]:
        """Like :meth:`process`, in pieces of bounded size: for batches whose matches may not fit memory.

        The iterator must be consumed to its end before the next call.
        """
        engine, given, details, outside, cuts = self._prepared(batch, clocks, cuts)

        def pieces() -> Iterator[Output]:
            if engine is not None:
                yield from map(self._piece, engine.process(given, details, outside, cuts))

        return pieces()

    def _prepared(
        self, batch: Any, clocks: npt.ArrayLike | None, cuts: Sequence[int]
    ) -> tuple[Engine | None, pa.RecordBatch, dict[int, str], I64 | None, Sequence[int]]:
        """Who processes a batch, and what is to be processed; nobody, where nothing is known of events yet."""
        self._open()
        known = self._engine.intake.given if self._engine is not None else self.stream.declared
        given, details = to_arrow(batch, known)
        if not given.num_columns and not given.num_rows and self._engine is None:
            return None, given, details, None, ()
        engine, schema, encoded = self._fitting
        if engine is None or engine is not self._engine or not given.schema.equals(schema):
            by_row = isinstance(batch, Sequence)
            engine = self._engine_for(given.schema, by_row)
            encoded = differs_in_encoding(given.schema, engine.intake.given)
            if not by_row:
                self._fitting = engine, given.schema, encoded
        if encoded:
            given = encoded_as(given, engine.intake.given)
        outside = None if clocks is None else clocks_of(clocks, given.num_rows)
        if not isinstance(cuts, tuple) or cuts:
            cuts = cuts_of(cuts, given.num_rows)
        return engine, given, details, outside, cuts

    def reject(self, lines: Sequence[tuple[str, str]]) -> Output:
        """Report texts that could not be parsed into events at all: pairs (text, what is wrong)."""
        self._open()
        if self._engine is None:
            self._counters["rows"] += len(lines)
            self._counters["malformed"] += len(lines)
            late = pa.table(
                {
                    "late_id": pa.nulls(len(lines), pa.string()),
                    "query": pa.nulls(len(lines), pa.string()),
                    "reason": ["malformed"] * len(lines),
                    "detail": [f"{problem}: {text}" for text, problem in lines],
                }
            )
            return Output(_CHANGES.empty_table(), late)
        return self._collect(map(self._piece, self._engine.unreadable(lines)))

    # --- time --------------------------------------------------------------------------------------------------------

    def punctuate(
        self, ts: Any, type: str | None = None, source: Any = None, key: Mapping[str, Any] | None = None
    ) -> Output:
        """Promise that no event of ``type`` (None: any) from ``source`` (None: any) with time ``<= ts`` will arrive
        any more.

        ``ts`` is in the stream's units, or a datetime where the time column holds timestamps. ``key``: values of the
        columns ``Stream(of_key=…)``; the promise is then about that key alone, whoever sends its events.
        """
        self._open()
        if key is not None and (set(key) != set(self.stream.of_key) or source is not None):
            raise ConfigError(
                f"key={dict(key)!r}: give the columns of Stream(of_key={list(self.stream.of_key)!r}), and no source"
            )
        check_moment("ts", ts)
        if self._engine is None:
            self._waiting.append((type, ts, source, None if key is None else dict(key)))
            return self._collect(iter(()))
        self._promise(self._engine, type, ts, source, key)
        return self._collect(map(self._piece, self._engine.settle()))

    def observe(self, ts: int) -> Output:
        """The stream's clock has reached ``ts`` (units) elsewhere: in another bucket or partition."""
        self._open()
        ts = reached(ts)
        if self._engine is None:
            self._reached = max(self._reached, ts)
            return self._collect(iter(()))
        self._engine.time.reach(ts)
        return self._collect(map(self._piece, self._engine.settle()))

    def advance(self, now: Any) -> Output:
        """It is ``now`` (units of event time, or a datetime): sources that have been silent for the stream's
        ``idle_timeout`` hold nothing back any more, and events further ahead than ``max_ahead`` are not believed.
        """
        self._open()
        check_moment("now", now)
        if self._engine is None:
            self._nows = [*self._nows[:1], now]  # since the first one declared sources have been silent
            return self._collect(iter(()))
        return self._collect(map(self._piece, self._engine.hear(self._units(now))))

    def finish(self) -> Output:
        """The stream has ended: every promise is complete, all that waits leaves. No call may follow."""
        self._open()
        pieces = iter(()) if self._engine is None else map(self._piece, self._engine.finish())
        out = self._collect(pieces)
        self._finished = True
        return out

    @property
    def clock(self) -> int | None:
        """How far the stream's time has come, in units; None before the first event."""
        value = self._engine.time.clock.value if self._engine is not None else self._reached
        return None if value == BEGINNING else value

    @property
    def _schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """Of ``changes`` and ``late``; before the first batch, unless the stream declares its own, of what is common to
        all.
        """
        engine = self._engine
        return (_CHANGES, _LATE) if engine is None else (engine.change_schema, engine.late_schema)

    # --- insight -----------------------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, Any]:
        """Counts since the start: ``rows``, ``events``, ``other_types``, ``punctuation``, ``duplicates``,
        ``conflicts``, ``malformed``; ``late`` by query and reason; ``inserted`` and ``deleted`` by query; and of
        queries whose matches have a confidence ``confidences``: the ``steps`` that computing them took, and how many
        matches came with an ``unknown`` or a ``sampled`` one.
        """
        plain = ("rows", "events", "other_types", "punctuation", "duplicates", "conflicts", "malformed", "ahead")
        result: dict[str, Any] = {name: self._counters[name] for name in plain}
        names = [p.name for p in self._plans]
        result["late"] = {n: {} for n in names}
        for key, count in self._counters.items():
            if isinstance(key, tuple) and key[1].startswith("after_"):
                result["late"][key[0]][key[1]] = count
        result["inserted"] = {n: self._counters[n, "insert"] for n in names}
        result["deleted"] = {n: self._counters[n, "delete"] for n in names}
        kinds = ("steps", "unknown", "sampled")
        told = {n: {kind: self._counters[n, kind] for kind in kinds} for n in names}
        result["confidences"] = {n: counts for n, counts in told.items() if any(counts.values())}
        return result

    def explain(self) -> dict[str, Any]:
        """What is held, and what each waits for: plain data, see ``docs/architecture.md``."""
        told = explain([q.plan for q in self.queries], self._engine, self.counters)
        if self._engine is None and self._spilling is not None:
            told["memory"] = facts(self._spilling.pager, self._spilling.budget)
        return told

    # --- state -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything that answers depend on, in one piece. Restoring gives exactly the same future.

        What lies in a state folder is read and becomes part of it: for large states :meth:`checkpoint` is the better
        way.
        """
        self._whole()
        state = self._state()
        if self._engine is not None and self._engine.memory is not None:
            memory = self._engine.memory
            state["shelf"] = [[slot, memory.pager.shelf.get(slot)] for slot in memory.slots()]
        return pack(state)

    def checkpoint(self, note: Mapping[str, Any] | None = None, *, number: int | None = None) -> int:
        """Write a version of the state into the folder ``spill=``; returns its number.

        Only what has changed since the last version is written, and the version is there whole or not at all, whatever
        happens meanwhile.

        Args:
            note: plain JSON that belongs to this state: offsets of the source, the number of a batch.
            number: the version's number; None: the next one. Versions from this number on are replaced.

        Raises StateError when the folder cannot be written, or another runtime has taken it over; the last version is
        as it was.
        """
        if self._folder is None:
            raise ConfigError("checkpoint() needs a folder: give Runtime(…, spill='a/folder')")
        number = self._number + 1 if number is None else version_number(number)
        kept = plain_note(note)
        residue, slots = self.residue()
        self._folder.commit(number, residue, slots, kept)
        self._number, self.note = number, kept
        return number

    def residue(self) -> tuple[bytes, list[Slot]]:
        """What :meth:`checkpoint` writes, for a runtime whose shelf somebody else keeps: the state's own part, and all
        slots of the shelf that belong to it. What has changed much is put on the shelf first.
        """
        frozen, slots = self.freeze()
        return seal(frozen), slots

    def freeze(self, most: int | None = None) -> tuple[bytes, list[Slot]]:
        """Like :meth:`residue`, for who goes on at once and writes the version in another thread, where
        ``latecomer.storage.packing.seal`` makes the residue of what is returned first.

        ``most``: bytes of changes that it may hold itself, beyond which they are put on the shelf (None: few).
        """
        self._whole()
        slots: list[Slot] = []
        if self._engine is not None and self._engine.memory is not None:
            self._engine.memory.save(most)
            slots = list(self._engine.memory.slots())
        return freeze(self._state()), slots

    @classmethod
    def resume(cls, residue: bytes, shelf: Shelf, *, memory: int | str | None = None, batch: int = BATCH) -> Runtime:
        """Go on from a :meth:`residue`, or from the :meth:`snapshot` of a runtime that has seen no event, on ``shelf``,
        which holds the residue's slots. ``batch``: as in :class:`Spill`.
        """
        spilling = Spilling(Pager(shelf), None if memory is None else memory_size(memory), batch)
        return cls._restored(unpack(residue), lambda runtime: setattr(runtime, "_spilling", spilling))

    @classmethod
    def open(
        cls, spill: str | os.PathLike[str] | Spill, *, version: int | None = None, memory: int | str | None = None
    ) -> Runtime:
        """Go on from a version (None: the newest) in a state folder, and take the folder over.

        Little is read at once: the rest comes as events ask for it. Raises StateError when there is no such version,
        or when what is read is damaged.
        """
        spill = Spill.of(spill)
        if memory is not None:
            memory_size(memory)
        folder = StateFolder(spill.uri, keep=spill.keep)
        unpack(folder.residue(folder.read(known_version(folder, version))))  # what cannot be read is left to its writer
        folder.claim()
        found = folder.read(known_version(folder, version))
        saved = unpack(folder.residue(found))
        if "workers" in saved:
            from latecomer.runtime.workers.parallel import ParallelRuntime

            return ParallelRuntime.reopened(saved, folder, spill, found, memory)
        runtime = cls._restored(saved, lambda runtime: runtime._spill(folder, spill, memory))
        runtime._number, runtime.note = found.number, found.note
        return runtime

    def narrow(self, columns: Sequence[str], chosen: Chooser) -> None:
        """Go on with some keys only, and say nothing more of the others: for a runtime that becomes several, each of
        which is given the events of its own keys from now on.

        Args:
            columns: attributes on which all queries agree (``[…]``): the key.
            chosen: which keys stay, of arrays with the values of ``columns``.
        """
        self._whole()
        if self._engine is not None:
            narrow(self._engine, columns, chosen)

    def drop(self, names: Iterable[str]) -> None:
        """Forget the queries with these names and what only they needed. Raises ConfigError where none would be left,
        or there has never been one of that name, and StateError while late events wait for the shelf.
        """
        self._whole()
        queries = [q.name for q in self.queries]
        gone = names_of(names, [*queries, *self._dropped]) & set(queries)
        if len(gone) == len(self.queries):
            raise ConfigError(f"no query would be left without {sorted(gone)}: end the runtime")
        if self._engine is not None:
            if any(lane.pending for lane in self._engine.lanes):
                raise StateError("late events wait for state to be read: give Spill(…, batch=0) to drop a query")
            drop(self._engine, gone)
        self._forget(gone)

    def _forget(self, gone: Iterable[str]) -> None:
        self._dropped = sorted({*self._dropped, *gone})
        self.queries = tuple(q for q in self.queries if q.name not in gone)
        self._columns = attributes_of([q.plan for q in self.queries]) | promised_columns(self.stream)

    def _spill(self, folder: StateFolder, spill: Spill, memory: int | str | None) -> None:
        budget = None if memory is None else memory_size(memory)
        wait = None if spill.wait is None else Duration.of(spill.wait)
        self._folder, self._spilling = folder, Spilling(Pager(folder), budget, spill.batch, wait)

    def _state(self) -> dict[str, Any]:
        engine = self._engine
        return {
            "stream": plain_stream(self.stream),
            "queries": [{"name": q.name, "text": q.text} for q in self._given],
            "dropped": self._dropped,
            "schema": None if engine is None else schema_bytes(engine.intake.given),
            "state": None if engine is None else engine.dump(),
            "counters": list(self._counters.items()),
            "waiting": self._waiting,
            "reached": self._reached,
            "nows": self._nows if engine is None else [],
            "finished": self._finished,
        }

    @classmethod
    def restore(cls, snapshot: bytes) -> Runtime:
        """The runtime that :meth:`snapshot` was taken of. Raises StateError when the bytes are damaged."""
        if not isinstance(snapshot, (bytes, bytearray, memoryview)):
            raise ConfigError(f"snapshot={snapshot!r:.80}: give the bytes that Runtime.snapshot() has returned")
        saved = unpack(snapshot)
        if "workers" in saved:
            from latecomer.runtime.workers.parallel import ParallelRuntime

            return ParallelRuntime.together(saved)

        def carried(runtime: Runtime) -> None:
            if (blobs := saved.get("shelf")) is not None:
                shelf = MemoryShelf.holding({tuple(slot): blob for slot, blob in blobs})
                runtime._spilling = Spilling(Pager(shelf))

        return cls._restored(saved, carried)

    @classmethod
    def _restored(cls, saved: Mapping[str, Any], prepare: Callable[[Runtime], None]) -> Runtime:
        """``prepare`` is called before the runtime gets its state."""
        try:
            return cls._of(saved, prepare)
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            raise StateError(
                f"this state does not fit this release ({type(problem).__name__}: {problem}): use the one that wrote it"
            ) from problem

    @classmethod
    def _of(cls, saved: Mapping[str, Any], prepare: Callable[[Runtime], None]) -> Runtime:
        stream = saved_stream(saved["stream"])
        runtime = cls(stream, [saved_query(q["text"], q["name"]) for q in saved["queries"]])
        prepare(runtime)
        runtime._counters.update({tuple(k) if isinstance(k, list) else k: n for k, n in saved["counters"]})
        runtime._waiting = [tuple(w) for w in saved["waiting"]]
        runtime._reached = saved["reached"]
        runtime._nows = saved["nows"]
        runtime._finished = saved["finished"]
        schema = schema_of(saved["schema"])
        if schema is not None:
            state = saved["state"]
            empty = not len(state["log"]["ts"]) and not state["log"]["pages"]
            runtime._engine = Engine(
                stream,
                runtime._plans,
                schema,
                runtime._counters,
                runtime._spilling,
                bits=None if empty else state["bits"],
            )
            drop(runtime._engine, saved.get("dropped") or ())
            runtime._engine.load(state)
        runtime._forget(saved.get("dropped") or ())
        return runtime

    def close(self) -> None:
        """End the workers of ``workers=``. They also end with this process, and when the runtime is forgotten."""
        self._closed = True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _take_share(self, share: Share) -> None:
        """Keep the events of a share only, though all rows are seen. To be called before the first batch, or after
        having been restored from a state of the same share.
        """
        self._share = share
        if self._engine is not None:
            self._engine.share = share

    def _open(self) -> None:
        if self._closed:
            raise StateError(CLOSED)
        if self._finished:
            raise StateError("finish() was called, so the stream has ended: make a new Runtime for a new stream")
        self._whole()

    def _whole(self) -> None:
        if self._engine is not None and self._engine.broken:
            raise StateError(
                "a call before this one ended half-way, by an error or because its pieces were not taken to the end: "
                "take the rest of them, or go on from the last version with Runtime.open(…), or from the last snapshot"
            )

    def _engine_for(self, given: pa.Schema, by_row: bool) -> Engine:
        """The engine, built or rebuilt as the schema of a batch requires."""
        engine = self._engine
        if engine is None:
            return self._build(fix_schema(self.stream, given, self._columns, by_row))
        check_single(given)
        needed = [
            self.stream.type,
            self.stream.ts,
            *([self.stream.id] if self.stream.id else []),
            *sorted(self._columns),
        ]
        missing = missing_columns(given, engine.intake.given, needed)
        if missing and (not by_row or missing[0] in needed[:2]) and given.names:
            raise SchemaError(
                f"no column {missing[0]!r}: earlier batches had it, this one has {', '.join(map(repr, given.names))}"
            )
        untyped = [f.name for f in engine.intake.given if pa.types.is_null(f.type)]
        found = [n for n in untyped if n in given.names and not pa.types.is_null(given.field(n).type)]
        if found:
            return self._retype(engine, given, found)
        return engine

    def _build(self, schema: pa.Schema) -> Engine:
        for query in self.queries:
            query.check(self.stream, schema)
        engine = self._engine = Engine(self.stream, self._plans, schema, self._counters, self._spilling)
        engine.share = self._share
        if self._reached > BEGINNING:
            engine.time.reach(self._reached)
        for type, ts, source, key in self._waiting:
            self._promise(engine, type, ts, source, key)
        self._waiting = []
        for now in self._nows:
            for _ in engine.hear(self._units(now)):  # nothing can leave before the first event
                pass
        return engine

    def _promise(self, engine: Engine, type: str | None, ts: Any, source: Any, key: Mapping[str, Any] | None) -> None:
        if key is None:
            engine.time.promise(type, engine.intake.promised(self._units(ts), source), source)
            return
        fields = [engine.intake.schema.field(name) for name in self.stream.of_key]
        try:
            # A column that was all null so far takes the value as it is.
            columns = [pa.array([key[f.name]], None if pa.types.is_null(f.type) else f.type) for f in fields]
            row = pa.RecordBatch.from_arrays(columns, names=[f.name for f in fields])
        except (pa.ArrowException, TypeError, ValueError) as problem:
            raise ConfigError(f"key={dict(key)!r} does not fit the columns: {problem}") from problem
        engine.time.promise(type, engine.intake.promised(self._units(ts), None), None, row)

    def _retype(self, engine: Engine, given: pa.Schema, names: Iterable[str]) -> Engine:
        """Columns that were all null so far have found their type: the same state under the fuller schema."""
        found = fix_schema(self.stream, given, [], by_row=True)
        fields = [found.field(f.name) if f.name in names else f for f in engine.intake.given]
        schema = pa.schema(fields)
        for query in self.queries:
            query.check(self.stream, schema)
        fresh = Engine(self.stream, self._plans, schema, self._counters, self._spilling, bits=engine.layout.bits)
        drop(fresh, self._dropped)
        fresh.load(engine.dump())
        fresh.share = self._share
        self._engine = fresh
        return fresh

    def _units(self, ts: Any) -> int:
        """A moment given by the user, in the stream's units."""
        if isinstance(ts, (int, np.integer)) and not isinstance(ts, bool):
            return max(-FAR, min(int(ts), END))
        engine = self._engine
        assert engine is not None
        try:
            return int(pa.scalar(ts, engine.intake.ts_type).cast(pa.timestamp(engine.unit)).value)
        except (pa.ArrowException, KeyError, TypeError, ValueError) as problem:
            raise ConfigError(f"ts={ts!r} is no time of this stream: give whole {engine.unit}") from problem

    def _piece(self, piece: Piece) -> Output:
        is_change, batch = piece
        table = pa.Table.from_batches([batch])
        assert self._engine is not None
        return Output(table, self._engine.no_late) if is_change else Output(self._engine.no_changes, table)

    def _collect(self, pieces: Iterable[Output]) -> Output:
        outputs = list(pieces)
        if len(outputs) == 1:
            return outputs[0]
        if not outputs:
            return self._nothing()
        changes = [o.changes for o in outputs if o.changes.num_rows]
        late = [o.late for o in outputs if o.late.num_rows]
        nothing = self._nothing()
        return Output(
            pa.concat_tables(changes) if changes else nothing.changes, pa.concat_tables(late) if late else nothing.late
        )

    def _nothing(self) -> Output:
        schemas = self._schemas
        if self._empty is None or self._empty[0] is not schemas[0] or self._empty[1] is not schemas[1]:
            self._empty = (*schemas, Output(*(schema.empty_table() for schema in schemas)))
        return self._empty[2]
