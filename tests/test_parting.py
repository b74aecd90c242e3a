"""A runtime that goes on as several, each with some of the keys, or without some of its queries, says what the whole
one would have said of them."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import latecomer as lc

STREAM = lc.Stream(type="kind", ts="at", id="id", unit="s", punctuation="PUNCT")
UNSURE = lc.Stream(type="kind", lower="at", upper="until", id="id", unit="s", longest="9 s", punctuation="PUNCT")
TEXTS = {
    "gap": "PATTERN SEQ(A a, !B b, C c) WHERE [tag] AND c.x > 0.2 WITHIN 20 s RETURN a.x AS x",
    "overdue": "PATTERN SEQ(A a, !C c) WHERE [tag] WITHIN 15 s",
    "around": "PATTERN SEQ(!D d, A a, C c, !B b) WHERE [tag] WITHIN 12 s RETURN c.x AS y",
}
NEXT = "PATTERN SEQ(A a, !B b, C c) WHERE [tag] WITHIN 20 s STRATEGY skip-till-next-match"
LEVELS = {
    "kslack": lc.KSlack("30 s"),
    "conservative": lc.Conservative(),
    "at once": lc.Aggressive("30 s"),
    "patient": lc.Aggressive("30 s", patience="9 s"),
}
SHARES = 3


def queries(texts=TEXTS):
    return [lc.Query(t, name=f"{n} {label}", level=v) for n, t in texts.items() for label, v in LEVELS.items()]


def stream(seed, n=160):
    pick = random.Random(seed)
    rows, times = [], sorted(pick.randrange(n) for _ in range(n))
    delayed = sorted((t + (pick.randrange(30) if pick.random() < 0.3 else 0), i, t) for i, t in enumerate(times))
    for moment, i, t in delayed:
        tag = None if pick.random() < 0.05 else f"tag{pick.randrange(9)}"
        until = t + pick.randrange(9)
        rows.append({"id": i, "kind": pick.choice("AABCCD"), "at": t, "until": until, "tag": tag, "x": pick.random()})
        if pick.random() < 0.1:
            rows.append({"kind": "PUNCT", "at": moment - 31, "of": pick.choice(["A", "B", "C", "D", None])})
    fields = [("id", pa.int64()), ("kind", pa.string()), ("at", pa.int64()), ("until", pa.int64()), ("of", pa.string())]
    return pa.Table.from_pylist(rows, pa.schema([*fields, ("tag", pa.string()), ("x", pa.float64())]))


def share_of(tags):
    return np.array([hash(t) % SHARES if t is None else int(t[3:]) % SHARES for t in tags.to_pylist()], np.int64)


def said(outputs):
    changes = pa.concat_tables([o.changes for o in outputs])
    told = changes.select(["op", "query", "match_id"]).to_pylist()
    return [tuple(row.values()) for row in told]


def whole(runtime, pieces):
    return [*map(runtime.process, pieces), runtime.finish()]


def apart(seed, stream_of, asked, cuts):
    """What a runtime says until ``cuts[0]``, and then what it says as several, which meet the stream in pieces."""
    table = stream(seed)
    runtime = lc.Runtime(stream_of, asked)
    outputs = [runtime.process(table.slice(0, cuts[0]))]
    saved = runtime.snapshot()
    times = np.where(np.asarray(table["kind"]) == "PUNCT", -(2**62), np.asarray(table["at"]))
    clocks = np.maximum.accumulate(times)
    proof = np.asarray(pc.equal(table["kind"], "PUNCT"))
    own = share_of(table["tag"])
    for share in range(SHARES):
        part = lc.Runtime.restore(saved)
        part.narrow(["tag"], lambda columns, share=share: share_of(columns[0]) == share)
        for begin, end in zip(cuts, [*cuts[1:], len(table)], strict=True):
            at = begin + np.flatnonzero((own[begin:end] == share) | proof[begin:end])
            outputs.append(part.process(table.take(pa.array(at)), clocks=clocks[at]))
            outputs.append(part.observe(int(clocks[end - 1])))
            part._engine._check()
            part = lc.Runtime.restore(part.snapshot())
        outputs.append(part.finish())
    return outputs, whole(
        lc.Runtime(stream_of, asked),
        [table.slice(b, e - b) for b, e in zip([0, *cuts], [*cuts, len(table)], strict=True)],
    )


@pytest.mark.parametrize("kind", ["exact", "next match", "intervals"])
def test_shares_of_the_keys_say_together_what_the_whole_says(kind):
    stream_of = UNSURE if kind == "intervals" else STREAM
    asked = queries({"next": NEXT} if kind == "next match" else {"gap": TEXTS["gap"]} if kind == "intervals" else TEXTS)
    waited = False
    for seed in range(4 if kind == "exact" else 2):
        pick = random.Random(seed)
        cuts = sorted(pick.sample(range(10, 150), 3))
        parts, together = apart(seed, stream_of, asked, cuts)
        assert sorted(said(parts)) == sorted(said(together)) != []
        waited |= len(said(parts[:1])) < len(said(parts))
    assert waited


@pytest.mark.parametrize("seed", range(6))
def test_what_stays_does_not_miss_what_is_dropped(seed):
    pick = random.Random(seed)
    asked = queries()
    table, cut = stream(seed), pick.randrange(20, 140)
    gone = {q.name for q in pick.sample(asked, pick.randrange(1, len(asked)))}
    runtime = lc.Runtime(STREAM, asked)
    outputs = [runtime.process(table.slice(0, cut))]
    if pick.random() < 0.5:
        runtime = lc.Runtime.restore(runtime.snapshot())
    runtime.drop(gone)
    runtime._engine._check()
    if pick.random() < 0.5:
        runtime = lc.Runtime.restore(runtime.snapshot())
    assert {q.name for q in runtime.queries} == set(runtime.explain()["queries"]) == {q.name for q in asked} - gone
    outputs += whole(runtime, [table.slice(cut)])
    left = [q for q in asked if q.name not in gone]
    together = said(whole(lc.Runtime(STREAM, left), [table.slice(0, cut), table.slice(cut)]))
    assert sorted(row for row in said(outputs) if row[1] not in gone) == sorted(together)
    assert not [row for row in said(outputs[1:]) if row[1] in gone]


def test_the_state_of_a_dropped_query_goes():
    long = lc.Query("PATTERN SEQ(A a, D d) WHERE [tag] WITHIN 1 d", name="long", level=lc.Aggressive("1 d"))
    short = lc.Query("PATTERN SEQ(B b, C c) WHERE [tag] WITHIN 1 s", name="short", level=lc.Aggressive("1 s"))
    runtime = lc.Runtime(STREAM, [long, short])
    runtime.process(stream(1, 2000))
    assert runtime.explain()["events"] > 1900
    runtime.drop(["long"])
    assert len(runtime._engine.all_stores()) == 2
    later = stream(2, 3000)
    later = later.set_column(later.column_names.index("at"), "at", pc.add(later["at"], 10_000))
    before = runtime.counters["other_types"]
    runtime.process(later.set_column(0, "id", pc.add(later["id"], 10_000)))
    assert runtime.explain()["events"] < 1600 and runtime.counters["other_types"] > before + 1000
    with pytest.raises(lc.ConfigError, match="no query would be left"):
        runtime.drop(["short"])


def test_a_column_that_only_a_dropped_query_needs_may_go():
    runtime = lc.Runtime(STREAM, queries())
    table = stream(3)
    runtime.process(table.slice(0, 80))
    runtime.drop([q.name for q in queries() if not q.name.startswith("overdue")])
    runtime = lc.Runtime.restore(runtime.snapshot())
    assert runtime.process(table.slice(80).drop_columns(["x"])).changes.num_rows
