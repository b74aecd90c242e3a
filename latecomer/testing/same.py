"""The one idea of Latecomer as an assertion: the matches are a function of the set of events, not of their arrival.

Rule: an order of arrival is only asked for what the level promises. Generated orders keep the level's promise about
disorder (K-slack and aggressive: no event more than the slack behind the clock; conservative: any order, with true
punctuation), so not even a late row may come; orders from a model of disorder may break it, and then the message says
which events were late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pyarrow as pa

from latecomer.consistency.levels import Aggressive, Conservative, KSlack, Level, check_level
from latecomer.disorder import Model, inject
from latecomer.errors import ConfigError
from latecomer.query import Query
from latecomer.runtime import Runtime
from latecomer.stream import Stream
from latecomer.testing.events import Prepared, prepare
from latecomer.testing.orders import Promise, Step, cut, order, punctuated
from latecomer.testing.sink import CollectingSink, Ids
from latecomer.units import Duration

#: Messages show at most so many matches, late rows, and events.
SHOWN, LONGEST = 10, 200


def assert_same_matches(
    query: Query,
    events: Any,
    level: Level | Sequence[Level] | None = None,
    *,
    stream: Stream | None = None,
    orders: int | Sequence[Model] = 12,
    splits: int = 2,
    seed: int = 0,
    only: tuple[int, int] | None = None,
) -> set[Ids]:
    """Assert that the matches of ``query`` over ``events`` do not depend on how the events arrive.

    Args:
        query: any query.
        events: a list of dicts, an Arrow table, a pandas or Polars data frame; in any order, a few dozen are plenty.
        level: the level (or levels) to try. None: all three; the query's own as it is, the others with the same slack
            (with the window as slack, where its own is conservative).
        stream: what the columns mean, as for a Runtime. None: ``type`` and ``ts``, and ``id`` and ``source`` where
            there are such columns. Without ids events are numbered by their place in ``events``.
        orders: how many orders of arrival that keep the level's promise; or models of :mod:`latecomer.disorder`, to
            see whether the level is strong enough for the disorder that they make.
        splits: in how many ways each order is cut into batches.
        seed: another seed gives other orders and splits.
        only: one pair (order, split), as a failure's message names it.

    Returns the matches of the events in order of time, as tuples of ids: compare them with what you expect, since a
    query that matches nothing matches nothing in any order.

    Raises AssertionError when an order gives other matches, when a match is ever there twice, when a final level takes
    one back, or when an event is late although the promise is kept; ConfigError for a level that promises only a share
    of the matches (``KSlack(recall=…)``).

    >>> import latecomer as lc
    >>> query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="gap", level=lc.Aggressive("5 s"))
    >>> events = [("a", 1, "A"), ("b", 3, "B"), ("c", 5, "C"), ("d", 6, "A"), ("e", 9, "C")]
    >>> rows = [{"id": id, "ts": ts, "type": type} for id, ts, type in events]
    >>> assert_same_matches(query, rows, stream=lc.Stream(id="id", unit="s"))
    {('d', 'e')}
    """
    if not isinstance(query, Query):
        raise ConfigError(f"{query!r} is not a query: give latecomer.Query(text, name=…, level=…)")
    prepared = prepare(query, events, stream)
    number_of_orders = orders if isinstance(orders, int) else len(orders)
    if number_of_orders < 1 or splits < 1:
        raise ConfigError(f"orders={orders!r}, splits={splits!r}: at least one of each is needed")
    levels = _levels(query, level)
    expected = _in_order(query, prepared)
    for number in range(number_of_orders):
        for split in range(splits):
            if only in (None, (number, split)):
                for one in levels:
                    model = None if isinstance(orders, int) else orders[number]
                    trial = _arrive(query, one, prepared, model, seed, number, split)
                    trial.run(expected)
    return expected


@dataclass(frozen=True, slots=True)
class Trial:
    """One way for the events to arrive. ``name`` says where order and split come from, and how to repeat them."""

    query: Query
    prepared: Prepared
    name: str
    steps: list[Step]
    keeps: bool

    def run(self, expected: set[Ids]) -> None:
        """Raises AssertionError when the matches are others than ``expected``."""
        sink = CollectingSink()
        runtime = Runtime(self.prepared.stream, self.query)
        try:
            for step in self.steps:
                if isinstance(step, Promise):
                    sink.add(runtime.punctuate(step.ts, step.type, step.source))
                else:
                    sink.add(runtime.process(self.prepared.table.take(pa.array(step, pa.int64()))))
            sink.add(runtime.finish())
        except AssertionError as problem:
            raise AssertionError(self._message(str(problem), sink, expected)) from None
        except Exception as problem:
            problem.add_note(self._message("an error came up", sink, expected))
            raise
        if sink.net() != expected:
            raise AssertionError(self._message("the matches depend on the order of arrival", sink, expected))
        if not isinstance(self.query.level, Aggressive) and "delete" in _column(sink.changes, "op"):
            raise AssertionError(self._message("a final level took a match back", sink, expected))
        if self.keeps and any(r != "duplicate" for r in _column(sink.late, "reason")):
            raise AssertionError(self._message("an event was late although the promise was kept", sink, expected))

    def _message(self, problem: str, sink: CollectingSink, expected: set[Ids]) -> str:
        got = sink.net()
        late = [
            f"{r['id']} {r['reason']}" + (f" by {r['late_by']}" if r.get("late_by") is not None else "")
            for r in sink.late.to_pylist()
        ]
        taken_back = [tuple(r["events"]) for r in sink.changes.to_pylist() if r["op"] == "delete"]
        lines = [
            problem,
            f"query {self.query.name!r}:",
            *(f"  {line}" for line in self.query.text.splitlines()),
            f"in order of time: {len(expected)} matches; as the events arrived here: {len(got)}",
            f"missing:    {_some(sorted(expected - got, key=repr))}",
            f"too much:   {_some(sorted(got - expected, key=repr))}",
            f"taken back: {_some(taken_back)}",
            f"late:       {_some(late)}",
            f"arrivals (id(type@ts), batches apart by |, punctuation as <type,ts>): {self.name}",
            f"  {self._arrivals()}",
        ]
        return "\n".join(lines)

    def _arrivals(self) -> str:
        words: list[str] = []
        for step in self.steps:
            words += [str(step)] if isinstance(step, Promise) else [*map(self.prepared.mark, step), "|"]
        return " ".join(words[:LONGEST]) + (f" … and {len(words) - LONGEST} more" if len(words) > LONGEST else "")


def _arrive(
    query: Query, level: Level, prepared: Prepared, model: Model | None, seed: int, number: int, split: int
) -> Trial:
    """The trial of this number: the same for the same seed, on every machine."""
    events, types = prepared.timed, query.plan.types
    rng = Random(f"{seed} {number}")
    if model is None:
        name, arrivals = order(events, _slack(level, prepared.unit), types, number, rng)
    else:
        name, arrivals = repr(model), _by_model(prepared, model, rng)
    rng = Random(f"{seed} {number} {split}")
    things: Iterable[int | Promise] = arrivals
    if isinstance(level, Conservative):
        things = punctuated(arrivals, events, types, prepared.everyone, rng)
    cut_name, steps = cut(list(things), (number + split) % 3, rng)
    name = f"{name}; {cut_name}; repeat with seed={seed}, only=({number}, {split})"
    leveled = Query.from_plan(replace(query.plan, level=level))
    return Trial(leveled, prepared, name, steps, model is None)


def _by_model(prepared: Prepared, model: Model, rng: Random) -> list[int]:
    """Event numbers as they arrive by a model of disorder."""
    ts, stream = prepared.table.column(prepared.stream.ts), prepared.stream
    table = pa.table({"ts": pa.array(prepared.timed.ts, pa.int64()), "number": range(len(ts))})
    if stream.source is not None:
        table = table.append_column("source", prepared.table.column(stream.source).cast(pa.string()))
    plain = Stream(ts="ts", source=None if stream.source is None else "source", unit=prepared.unit)
    sent = inject(table, model, plain, seed=rng.getrandbits(32))
    numbers: list[int] = sent.column("number").to_pylist()
    if sent.column("ts").to_pylist() != [prepared.timed.ts[n] for n in numbers]:
        raise ConfigError(f"{model!r} stamps events with other times, so the matches are others: give models of delay")
    return numbers


def _in_order(query: Query, prepared: Prepared) -> set[Ids]:
    """The answer over the events in order of time, all at once."""
    sink = CollectingSink()
    runtime = Runtime(prepared.stream, Query.from_plan(replace(query.plan, level=KSlack(0))))
    sink.add(runtime.process(prepared.table))
    sink.add(runtime.finish())
    return sink.net()


def _levels(query: Query, level: Level | Sequence[Level] | None) -> list[Level]:
    if level is not None:
        levels = [check_level(one) for one in (level if isinstance(level, (list, tuple)) else [level])]
        for one in levels:
            if isinstance(one, KSlack) and one.recall is not None:
                raise ConfigError(
                    f"{one} promises a share of the matches, so orders may differ: try KSlack({str(one.max)!r}) here, "
                    "and measure the share that is lost with latecomer.disorder"
                )
        return levels
    own = query.level
    match own:
        case KSlack(k=k, max=most):
            slack = k if k is not None else most
        case Aggressive(max_delay=slack):
            pass
        case Conservative():
            slack = query.plan.window
    assert slack is not None, "a K-slack has either a slack or a maximum"
    levels = [KSlack(slack), Conservative(), Aggressive(slack)]
    chosen = isinstance(own, KSlack) and own.recall is not None
    return [own if type(one) is type(own) and not chosen else one for one in levels]


def _slack(level: Level, unit: str) -> int | None:
    """By how many units an event may be behind the clock; None: by any number."""
    match level:
        case KSlack(k=Duration() as k, sources=sources):
            return min(slack.units(unit) for slack in (k, *(s for _, s in sources)))
        case Aggressive(max_delay=max_delay):
            return max_delay.units(unit)
        case _:
            return None


def _column(table: pa.Table, name: str) -> list[Any]:
    values: list[Any] = table.column(name).to_pylist() if name in table.column_names else []
    return values


def _some(things: Sequence[object]) -> str:
    shown = ", ".join(map(str, things[:SHOWN]))
    return (shown + (f" and {len(things) - SHOWN} more" if len(things) > SHOWN else "")) or "none"
