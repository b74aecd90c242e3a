"""Four ways, one answer: the sink, the streaming and the static ``detect``, and one process, on random queries.

Spark is not started: what its tasks run is called here, so there is time for any shape of query, negation anywhere, all
levels, amendments, promises for types, sources and keys, duplicates, malformed rows and uncertain times, in any number
of buckets, input partitions, tasks and micro-batches, some of which run again. ``tests/test_spark_stream.py`` compares
the same four through Spark.
"""

import warnings
from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import latecomer as lc
from latecomer.connectors.spark_cells import unpack
from latecomer.connectors.spark_stream import _Asked
from tests import interval_cases, strategies
from tests.spark_local import Local, engine, tagged


def rows_of(case, pick):
    """The case's rows in order of arrival, promises among them, some of which are about a key."""
    rows = []
    for kind, *rest in case.steps:
        if kind == "row":
            rows.append(rest[0])
        elif kind == "punctuate":
            of, bound, source = rest
            rows.append({"type": strategies.PUNCTUATION, "ts": bound, "of": of, "source": source})
    for row in rows:
        if row["type"] == strategies.PUNCTUATION and pick.random() < 0.3:
            row["k"] = pick.choice(["u", "u", "v"])
    return rows


def dealt(rows, pick):
    """The rows several times over, each time with ids and keys of their own, shuffled into one another: so there are
    matches in several buckets, and each hears of the others' clocks."""
    decks = [rows]
    for number in range(1, pick.choice([2, 4, 6])):
        decks.append([row for row in rows if row["type"] != strategies.PUNCTUATION])
        for place, row in enumerate(decks[-1]):
            own = {"k": row["k"] and f"{row['k']} {number}"}
            if row["id"] is not None:
                own["id"] = row["id"] + 1000 * number if isinstance(row["id"], int) else f"{row['id']} {number}"
            decks[-1][place] = row | own
    order = [number for number, deck in enumerate(decks) for _ in deck]
    pick.shuffle(order)
    left = [iter(deck) for deck in decks]
    return [next(left[number]) for number in order]


def amended(asked):
    """The same query with late events applied as amendments."""
    level = asked.level
    if isinstance(level, lc.KSlack):
        level = lc.KSlack(level.k, on_late="amend")
    elif isinstance(level, lc.Conservative):
        level = lc.Conservative(on_late="amend")
    else:
        level = lc.Aggressive(level.max_delay, level.patience, on_late="amend")
    return replace(asked, level=level)


def net(changes):
    """What holds, as text without what counts answers; fails where a match is inserted or deleted twice in a row."""
    held = {}
    keys = (changes[name].to_pylist() for name in ("op", "query", "match_id"))
    shown = changes.drop_columns([name for name in ("revision", "amends") if name in changes.column_names])
    for op, query, match, row in zip(*keys, shown.to_pylist(), strict=True):
        assert (op == "delete") == ((query, match) in held), row
        if op == "insert":
            held[query, match] = row
        else:
            del held[query, match]
    return {key: repr(row) for key, row in held.items()}


def told(late):
    """Late rows without the two columns that tell what the event would have changed as far as that is still known."""
    return sorted(map(repr, late.drop_columns(["missed", "wrong"]).to_pylist()))


def joined(outputs):
    changes, late = ([getattr(o, kind) for o in outputs] for kind in ("changes", "late"))
    return pa.concat_tables(changes), pa.concat_tables(late)


def compare(stream, queries, table, pick, folder):
    """Assert that all four agree; returns the matches that hold and the late rows."""
    pieces = pick.choice([1, 2, 3, 5])
    cuts = sorted(pick.randrange(table.num_rows + 1) for _ in range(pieces - 1))
    batches = [table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, table.num_rows], strict=True)]
    runtime = lc.Runtime(stream, queries)
    alone = [runtime.process(batch) for batch in batches]
    open_end, end = joined(alone), joined([*alone, runtime.finish()])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one bucket, where the queries have no key in common
        most = None if stream.clock == "stream" else 1
        sink = Local(stream, queries, state=folder, buckets=most)
        asked = _Asked(stream, queries, buckets=most, key=None, arrival=None, step=None, default=8)
    sink.buckets = min(sink.buckets, pick.choice([1, 3, 8]))
    asked.buckets = min(asked.buckets, pick.choice([1, 5]))

    # The sink, some of whose micro-batches run again.
    results = []
    for number, batch in enumerate([*batches, table.slice(0, 0)]):
        how = {"parts": pick.choice([1, 3, 6]), "tasks": pick.choice([1, 2]), "finish": number == len(batches)}
        first = sink.take(number, batch, **how)
        if pick.random() < 0.3:
            again = sink.take(number, batch, **how | {"tasks": 3})
            for kind in ("changes", "late"):  # as text, since NaN equals itself there
                assert repr(getattr(again, kind).to_pylist()) == repr(getattr(first, kind).to_pylist())
        results.append(first)
    assert net(pa.concat_tables([r.changes for r in results])) == net(end[0])
    assert told(pa.concat_tables([r.late for r in results])) == told(end[1])

    # The two of detect, for one of its outputs: each bucket at once, and batch by batch.
    number, kind, shown = pick.choice([(0, "changes", net), (1, "late", told)])
    static, streaming = (engine(asked, table.schema, kind, finish=finish) for finish in (True, False))
    said = []
    for cells in by_bucket(asked, table, pick.choice([1, 4])):
        said += [unpack(answer["data"][0].as_buffer()) for answer in static(cells.to_batches())]
    assert shown(pa.concat_tables(said)) == shown(end[number])
    states, said = [None] * asked.buckets, [open_end[number].slice(0, 0)]
    for batch in batches:
        for bucket, cells in enumerate(by_bucket(asked, batch, 1)):
            packed, states[bucket], _ = streaming.go_on(states[bucket], cells, None)
            said += [unpack(data) for data in packed]
    assert shown(pa.concat_tables(said)) == shown(open_end[number])
    return net(end[0]), end[1]


def by_bucket(split, table, parts):
    """The cells of each bucket."""
    cells = tagged(split, table, None, split.buckets, parts)
    for bucket in range(split.buckets):
        yield cells.filter(pc.equal(cells["bucket"], bucket))


@pytest.mark.parametrize("seed", range(40))
def test_random_queries(seed, tmp_path):
    pick = Random(seed)
    case = strategies.wild(seed, queries=3, sources=pick.choice([True, False]), most=48)
    queries = case.asked
    if pick.random() < 0.3:
        queries = tuple(amended(asked) for asked in queries)
    if pick.random() < 0.7:  # with a key in common, so that there are buckets
        queries = tuple(replace(asked, where=("[k]", *(w for w in asked.where if w != "[k]"))) for asked in queries)
    stream = case.stream() if pick.random() < 0.6 else replace(case.stream(), of_key="k")
    table = strategies.table(dealt(rows_of(case, pick), pick), case.ids)
    compare(stream, [asked.query() for asked in queries], table, pick, tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_uncertain_times(seed, tmp_path):
    pick = Random(seed)
    level, slack = pick.choice(
        [
            (lc.KSlack("4 s"), 4),
            (lc.Conservative(), None),
            (lc.Aggressive("4 s"), 4),
            (lc.KSlack("1 s", on_late="amend"), 4),
        ]
    )
    run = interval_cases.make(pick.choice, level, slack, most=8, keep=pick.choice([True, False]))
    rows = [run.row(s) if isinstance(s, dict) else run.promise(*s[1:]) for s in run.steps if s != ("restart",)]
    table = pa.Table.from_pylist(rows, interval_cases.SCHEMA)
    compare(run.stream, [run.query], table, pick, tmp_path)
