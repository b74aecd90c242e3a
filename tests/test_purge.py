"""State after a purge by proof is minimal: nothing is left that Liu 2012, Algorithm 2, can exclude."""

import random

import pytest

import latecomer as lc
from latecomer.runtime import lane
from latecomer.storage import log

PATTERNS = [
    "SEQ(A a, B b, C c)",
    "SEQ(A a, !B b, C c)",
    "SEQ(!A a, B b, C c)",
    "SEQ(A a, B b, !C c)",
    "SEQ(A a, A b, !C c, B d)",
]


def excluded(plan, window, stored, bounds):
    """Brute force: the (component, key, time) of stored events that no match to come can use.

    ``stored`` maps component indexes to lists of (key, time); ``bounds`` types to their punctuation.
    """
    kind = {c.index: c.type for c in plan.components}
    positives = [c.index for c in plan.positives]
    found = set()
    for index, events in stored.items():
        others = [o for o in positives if o != index]
        for key, ts in events:
            if all(bounds[kind[o]] >= (ts - 1 if o < index else ts + window) for o in others):
                found.add((index, key, ts))  # no partner can still come, so all its matches were found
            for side, low, high in ((-1, ts - window, ts - 1), (1, ts + 1, ts + window)):
                for other in [o for o in others if (o - index) * side > 0]:
                    if bounds[kind[other]] < high:
                        continue  # more may come
                    partners = [t for k, t in stored[other] if k == key and low <= t <= high]
                    if not partners:
                        found.add((index, key, ts))
                        break
                    low = min(partners) + 1
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_kept_that_proof_excludes(pattern, seed):
    choose = random.Random(f"{pattern} {seed}")
    window = choose.choice([3, 6, 10])
    query = lc.Query(f"PATTERN {pattern} WHERE [k] WITHIN {window} s", level=lc.Conservative())
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    bounds = dict.fromkeys("ABC", -(10**6))
    number = 0
    for step in range(25):
        rows = []
        for _ in range(choose.randint(1, 4)):
            ts = step + choose.randint(-6, 3)
            rows.append({"id": number, "type": choose.choice("ABC"), "ts": ts, "k": choose.choice("xy")})
            number += 1
        runtime.process(rows)
        kind, bound = choose.choice("ABC"), step - choose.randint(-2, 6)
        runtime.punctuate(bound, type=kind)
        bounds[kind] = max(bounds[kind], bound)

        engine = runtime._engine
        [lane] = engine.lanes
        lane.purge_by_proof(engine.time.proofs)
        [state] = lane.queries
        stored = {}
        for component in query.plan.components:
            store = lane.stores[state.purge.selection(component.index)]
            store._check()
            refs = store.events()[1]
            keys, times = engine.log.take("k", refs).to_pylist(), engine.log.ts(refs).tolist()
            stored[component.index] = list(zip(keys, times, strict=True))
        useless = excluded(query.plan, window, stored, bounds)
        kinds = {c.index: c.type for c in query.plan.components}
        for index, key, ts in useless:  # an event of a repeated type stays while any of its components needs it
            rest = [i for i in stored if kinds[i] == kinds[index]]
            assert any((i, key, ts) not in useless for i in rest), (step, index, key, ts)


def test_state_stays_small_when_one_type_lags():
    """Payload too: what proof has made useless does not stay in memory until the slowest promise comes."""
    query = lc.Query("PATTERN SEQ(A a, B b, C c) WHERE [k] WITHIN 10 s", level=lc.Conservative())
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    sizes = []
    for step in range(0, 6000, 100):
        rows = [{"id": step + i, "type": "B" if i % 2 else "C", "ts": step + i, "k": i % 7} for i in range(100)]
        runtime.process(rows)
        runtime.punctuate(step + 99, type="B")
        runtime.punctuate(step + 99, type="C")
        runtime.punctuate(step + 50, type="A")  # no A ever comes, and its promise is never complete
        sizes.append(runtime.explain()["events"])
    assert max(sizes) < 1_500


@pytest.mark.parametrize("level", [lc.Conservative(), lc.KSlack(30), lc.Aggressive(30), lc.Aggressive(30, patience=60)])
def test_payload_stays_for_as_long_as_anything_refers_to_it(level, monkeypatch):
    """Stores purge in strides, the log by its prefix: whichever looks first, the log holds all that the stores do."""
    monkeypatch.setattr(log, "_FIRST_LOOK", 16)
    monkeypatch.setattr(lane, "_FIRST_PURGE", 16)
    choose = random.Random(7)
    events = [
        {"id": i, "type": choose.choice("ABC"), "ts": 2 * i - choose.choice([0, 0, 5, 30]), "k": choose.randint(0, 9)}
        for i in range(4_000)
    ]
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 400 s", level=level)
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), query)
    net = set()
    for start in range(0, len(events), 50):
        outs = [runtime.process(events[start : start + 50])]
        rest = events[start + 50 :]
        for kind in "ABC":
            bound = min((e["ts"] for e in rest if e["type"] == kind), default=10**6) - 1
            outs.append(runtime.punctuate(bound, type=kind))
        runtime._engine._check()
        for change in (c for out in outs for c in out.changes.to_pylist()):
            (net.add if change["op"] == "insert" else net.remove)(tuple(change["events"]))
    net |= {tuple(c["events"]) for c in runtime.finish().changes.to_pylist()}
    by_key = {k: sorted((e["ts"], e["type"], e["id"]) for e in events if e["k"] == k) for k in range(10)}
    expected = set()
    for course in by_key.values():
        for at, (first, kind, a) in enumerate(course):
            if kind != "A":
                continue
            dead = min((t for t, other, _ in course[at:] if other == "B" and t > first), default=10**9)
            expected |= {(a, c) for t, other, c in course[at:] if other == "C" and first < t <= min(first + 400, dead)}
    assert net == expected
    assert not runtime.counters["late"]["query"]
