"""Punctuation for single keys ("this container is closed"): final and complete answers, as soon as the key allows."""

import random

import pytest

import latecomer as lc
from latecomer.runtime import timekeeper
from tests.oracle import matches

TEXT = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 8 s"
STREAM = lc.Stream(id="id", unit="s", punctuation="PUNCT", of_key="k")


def scripted(choose, keys="uvw"):
    """Rows in arrival order; each keyed punctuation is true: nothing of its key and type at or below it follows."""
    events = [
        {"id": i, "type": choose.choice("ABC"), "ts": choose.randint(0, 30), "k": choose.choice(keys)}
        for i in range(choose.randint(5, 30))
    ]
    rows = []
    for i, event in enumerate(events):
        rows.append(event)
        for key in keys:
            if choose.random() < 0.3:
                kind = choose.choice(["A", "B", "C", None])
                left = [e["ts"] for e in events[i + 1 :] if e["k"] == key and kind in (None, e["type"])]
                bound = min(left, default=100) - 1 - choose.randint(0, 2)
                rows.append({"id": None, "type": "PUNCT", "ts": bound, "k": key, "of": kind})
    return events, rows


@pytest.mark.parametrize("seed", range(60))
def test_answers_are_final_complete_and_the_same_for_every_split(seed):
    choose = random.Random(seed)
    events, rows = scripted(choose)
    query = lc.Query(TEXT, name="q", level=lc.Conservative())
    expected = matches(query.plan, events, "s")
    for size in (1, 3, len(rows)):
        runtime = lc.Runtime(STREAM, query)
        found = []
        for start in range(0, len(rows), size):
            out = runtime.process(rows[start : start + size])
            assert out.late.num_rows == 0
            found += out.changes.to_pylist()
            if choose.random() < 0.3:
                runtime = lc.Runtime.restore(runtime.snapshot())
            if choose.random() < 0.3:
                engine = runtime._engine
                engine.lanes[0].purge_by_proof(engine.time.proofs)
        found += runtime.finish().changes.to_pylist()
        assert {row["op"] for row in found} <= {"insert"}
        assert sorted(tuple(r["events"]) for r in found) == sorted(expected)


def held(rows, **more):
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", of_key="k"), lc.Query(TEXT, level=lc.Conservative()))
    runtime.process(rows)
    return runtime


def test_a_closed_key_releases_its_own_matches_only():
    rows = [
        {"id": 1, "type": "A", "ts": 1, "k": "u"},
        {"id": 2, "type": "C", "ts": 5, "k": "u"},
        {"id": 3, "type": "A", "ts": 1, "k": "v"},
        {"id": 4, "type": "C", "ts": 5, "k": "v"},
    ]
    runtime = held(rows)
    assert runtime.punctuate(3, type="B", key={"k": "u"}).changes.num_rows == 0  # the scope reaches to 4
    out = runtime.punctuate(4, type="B", key={"k": "u"})
    assert out.changes["events"].to_pylist() == [[1, 2]]
    late = runtime.process([{"id": 5, "type": "B", "ts": 3, "k": "u"}, {"id": 6, "type": "B", "ts": 3, "k": "v"}]).late
    [row] = late.select(["id", "reason", "late_by"]).to_pylist()
    assert row == {"id": 5, "reason": "after_punctuation", "late_by": 2}
    assert runtime.finish().changes.num_rows == 0  # event 6 killed the other


def test_an_event_is_judged_by_what_was_promised_before_it():
    rows = [
        {"id": 1, "type": "B", "ts": 3, "k": "u", "of": None},
        {"id": None, "type": "PUNCT", "ts": 4, "k": "u", "of": "B"},
        {"id": 2, "type": "B", "ts": 3, "k": "u", "of": None},
        {"id": 3, "type": "B", "ts": 3, "k": "v", "of": None},
    ]
    runtime = lc.Runtime(STREAM, lc.Query(TEXT, level=lc.Conservative()))
    assert runtime.process(rows).late["id"].to_pylist() == [2]


def test_what_proof_of_a_key_makes_useless_goes():
    query = lc.Query(TEXT, level=lc.Conservative())
    runtime = lc.Runtime(STREAM, query)
    sizes = []
    for step in range(0, 4000, 100):
        rows = [{"id": step + i, "type": "ABC"[i % 3], "ts": step + i, "k": step} for i in range(100)]
        runtime.process([*rows, {"id": None, "type": "PUNCT", "ts": 10**6, "k": step, "of": None}])
        sizes.append(runtime.explain()["queries"]["query"]["stored"])
    assert max(sizes) < 1_000


def test_keys_that_share_a_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(timekeeper, "hash_columns", lambda columns: __import__("numpy").zeros(len(columns[0]), "u8"))
    rows = [
        {"id": None, "type": "PUNCT", "ts": 9, "k": "u", "of": "B"},
        {"id": None, "type": "PUNCT", "ts": 5, "k": "v", "of": "B"},
        {"id": 1, "type": "B", "ts": 7, "k": "v", "of": None},
    ]
    runtime = lc.Runtime(STREAM, lc.Query(TEXT, level=lc.Conservative()))
    assert runtime.process(rows).late.num_rows == 0


def test_a_key_that_does_not_fit_is_refused():
    runtime = held([{"id": 1, "type": "A", "ts": 1, "k": "u"}])
    with pytest.raises(lc.ConfigError, match="of_key=\\['k'\\]"):
        runtime.punctuate(3, key={"container": "u"})
    with pytest.raises(lc.ConfigError, match="does not fit"):
        runtime.punctuate(3, key={"k": 7})
