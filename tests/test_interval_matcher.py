"""The interval matcher against the possible-worlds oracle: any order of arrival, any split into batches."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.query.plan import Confidence
from latecomer.runtime.intervals import ways
from latecomer.runtime.intervals.spans import SpanStore
from latecomer.storage.store import CodeLayout, View
from tests.interval_machine import Machine
from tests.worlds import STAM, STNM, answer

PATTERNS = [
    ("A a, B b", ""),
    ("A a, B b, C c", ""),
    ("A a, !B b, C c", ""),
    ("A a, !B b, C c", "[k]"),
    ("A a, B b, B c", "[k]"),
    ("A a, A b", "a.x <= b.x"),
    ("A a, B b, C c", "a.x = c.x"),
    ("A a, B b, C c", "a.k = b.k AND b.x <= c.x"),
    ("!B n, A a, C c", ""),
    ("A a, C c, !B n", "n.x >= a.x"),
    ("!B n, A a, !B m", "[k]"),
    ("A a", ""),
    ("A a, !B n, !C m, A b", ""),
    ("A a, !B n, B b, !B m, A c", ""),
    ("!B n, A a, !C m, B c, !A l", "m.x <> c.x"),
    ("!B n, A a, !B m, C c, !B l", ""),
    ("A a, B b, A c", "a.x = b.x AND c.x = a.x"),
    ("A a, B b, C c, A d", ""),
    ("A a, B b, C c, !B n, A d, !C m", "[k]"),
    ("A a, !A n, A b, A c", "n.x > 0"),
    ("A a, !B n, !B m, C c", "n.x >= a.x"),
    ("!C n, A a, B b, C c, !A m", ""),
    ("A a, !B n, B b, C c", "n.x >= a.x"),
    ("A a, B b, C c", "b.x <= c.x AND a.x = b.x"),
]


ANY = Confidence()


TIMED = [
    ("A a, B b", "b.ts - a.ts > 1"),
    ("A a", "a.ts >= 2"),
    ("A a, B b, C c", "c.ts - b.ts <= b.ts - a.ts AND a.x <= c.x"),
    ("A a, !B n, C c", "a.ts >= 2 AND (c.ts < 5 OR c.x = 1)"),
    ("!B n, A a, C c", "[k] AND c.ts - a.ts <> 2"),
]


def plan(pick):
    pattern, where = pick(PATTERNS + TIMED)
    text = f"PATTERN SEQ({pattern}) {where and 'WHERE ' + where} WITHIN {pick([4, 6, 2, 3, 9])}"
    found = lc.Query(text, level=lc.Aggressive(0)).plan
    least = pick([Confidence(), Confidence(), Confidence(0.5, True), Confidence(0.25, False), Confidence(1.0, True)])
    strategy = pick([STAM] if ".ts" in where else [STAM, STNM])
    return replace(found, strategy=strategy, confidence=least)


def events(pick, types, most):
    """Most of them in the order of the pattern, so that there are matches, and then in any order of arrival."""
    found = []
    story = pick([True, True, False])
    for number in range(most):
        low = number % len(types) * pick([1, 1, 2]) + pick(range(3)) if story else pick(range(7))
        kind, length = types[number % len(types)] if story else pick(types), pick([1, 2, 3, 1, 4, 5])
        e = {"id": number, "type": kind, "lower": low, "upper": low + length - 1}
        e |= {"x": pick([1, 1, 1, 1, 0, 2, None]), "k": pick("uuuuuuuv")}
        if pick([False, False, True]):
            e["weights"] = [pick([1, 2, 5])] + [pick([1, 0, 3]) for _ in range(length - 2)] + [4] * (length > 1)
        found.append(e)
    return sorted(found, key=lambda e: pick(range(9)))


def passing(found, least):
    return {
        ids: m
        for ids, m in found.items()
        if (m.confidence >= least.least if least.inclusive else m.confidence > least.least)
    }


def check(query, found, cuts, steps=1e8):
    """Feed ``found`` in batches that begin at ``cuts``; the net output must be the oracle's after each."""
    machine = Machine(query, steps)
    starts = sorted({0, *cuts})
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        machine.process(found[start:end])
        expected = passing(answer(query, found[:end]), query.confidence)
        assert set(machine.shown) == set(expected)
        for ids, match in expected.items():
            confidence, ranges = machine.shown[ids]
            assert confidence == pytest.approx(float(match.confidence), rel=1e-12, abs=0)
            assert ranges == match.ranges
    return machine


def case(pick):
    query = plan(pick)
    types = [c.type for c in query.components]
    found = events(pick, types, pick(range(2, 9)))
    size = 1
    for number, e in enumerate(found):  # not too many worlds
        size *= e["upper"] - e["lower"] + 1
        if size > 3000:
            found = found[:number]
            break
    return query, found, [pick(range(len(found) + 1)) for _ in range(pick(range(4)))]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_net_output_is_what_all_worlds_say(data):
    check(*case(lambda options: data.draw(st.sampled_from(list(options)))))


@pytest.mark.parametrize("seed", range(150))
def test_net_output_on_wild_streams(seed):
    query, found, cuts = case(Random(seed).choice)
    check(query, found, [c for c in cuts if c < len(found)])


@pytest.mark.parametrize("seed", range(60))
def test_net_output_by_ways_that_pay_for_long_intervals_only(seed, monkeypatch):
    def choose(self, kind, able, cost):
        self.kind[able] = kind

    monkeypatch.setattr(ways.Ways, "_choose", choose)
    query, found, cuts = case(Random(10_000 + seed).choice)
    check(query, found, [c for c in cuts if c < len(found)])


def span(name, lower, upper, **attributes):
    return {"id": int(name[1:]), "type": name[0], "lower": lower, "upper": upper, "x": 1, "k": "u"} | attributes


def query(pattern, window, where="", strategy=STAM, least=ANY):
    text = f"PATTERN SEQ({pattern}) {where and 'WHERE ' + where} WITHIN {window}"
    return replace(lc.Query(text, level=lc.Aggressive(0)).plan, strategy=strategy, confidence=least)


def test_a_rival_need_not_fit_what_comes_later():
    """b2 is next to a1, though c4 fits only b3: so there is no match. A rival that does not fit a1 is none."""
    found = [span("A1", 0, 0), span("B2", 1, 1, x=9), span("B3", 2, 4), span("C4", 6, 6)]
    assert check(query("A a, B b, C c", 9, "b.x = c.x", STNM), found, []).shown == {}
    assert len(check(query("A a, B b, C c", 9, "b.x = a.x", STNM), found, []).shown) == 1


def test_an_event_that_fits_two_negations_with_one_scope_counts_once():
    found = [span("A1", 0, 0), span("B2", 1, 4), span("C3", 3, 5)]
    for pattern in ("A a, !B n, !B m, C c", "A a, !B n, C c"):
        assert check(query(pattern, 9), found, [1]).shown[1, 3][0] == pytest.approx((2 + 1 + 0) / 12)
    found = [span("A1", 0, 0), span("B2", 1, 4), span("B3", 3, 5), span("C4", 9, 9)]
    check(query("A a, !B n, B b, C c", 9, "", STNM), found, [1, 3])


def test_certain_events_are_matched_as_ever():
    """Intervals of one instant: confidences are 0 or 1."""
    found = [span(f"{t}{i}", i, i) for i, t in enumerate("ABACBCAC")]
    for strategy in (STAM, STNM):
        machine = check(query("A a, !B n, C c", 5, "", strategy), found, [2, 5])
        assert {c for c, _ in machine.shown.values()} == {1.0}


def test_late_events_move_confidences():
    """The negative comes last: the old revision goes, the new one comes, or none does."""
    found = [span("A1", 0, 0), span("C3", 3, 5), span("B2", 1, 4), span("B4", 2, 2)]
    machine = Machine(query("A a, !B n, C c", 9))
    said = []
    for event in found:
        machine.process([event])
        said.append({ids: c for ids, (c, _) in machine.shown.items()})
    assert said == [{}, {(1, 3): 1.0}, {(1, 3): 0.25}, {}]


def test_small_moves_are_not_told_until_they_add_up():
    """``moved`` = 0.3: what is shown stays within 0.3 of the truth, and crossing the threshold is always told."""
    found = [span("A1", 0, 0), span("C3", 10, 10)]
    drops = [span(f"B{n}", 9, 28) for n in range(4, 20)]  # each lies in the scope with probability 1/20
    machine = Machine(query("A a, !B n, C c", 20, least=Confidence(0.5, True)), moved=0.3)
    machine.process(found)
    told = []
    for number, event in enumerate(drops, 1):
        before = dict(machine.shown)
        machine.process([event])
        truth = 0.95**number
        if machine.shown != before:
            told.append(number)
        assert bool(machine.shown) == (truth >= 0.5)
        assert all(abs(c - truth) <= 0.3 for c, _ in machine.shown.values())
    assert told == [7, 14]
    assert len(machine.matcher.drift) == 0
    machine = Machine(query("A a, !B n, C c", 20), moved=0.3)
    machine.process(found + drops[:1])
    machine.process(drops[1:3])
    machine.process(drops[3:5])
    assert machine.shown[1, 3][0] == pytest.approx(0.95)
    assert len(machine.matcher.drift) == 1
    other = Machine(query("A a, !B n, C c", 20), moved=0.3)
    other.matcher.drift.load(machine.matcher.drift.dump())
    assert other.matcher.drift.dump() == machine.matcher.drift.dump()
    machine.matcher.drift.forget(1)
    assert len(machine.matcher.drift) == 0


def test_what_has_not_left_yet_does_not_move():
    machine = Machine(query("A a, !B n, C c", 9))
    machine.process([span("A1", 0, 0), span("C3", 3, 5)])
    machine.stage(*machine.columns([span("B2", 1, 4)]))
    assert list(machine.matcher.moved(lambda rows: np.zeros(len(rows), bool))) == []
    causes = [(r.insert, r.cause.tolist()) for r in machine.matcher.moved(lambda rows: np.ones(len(rows), bool))]
    assert causes == [(False, [2]), (True, [2])]


def test_the_time_of_what_must_not_happen_cannot_be_tested():
    for where in ("n.ts > 3", "n.ts - a.ts > 2"):
        with pytest.raises(lc.QueryError, match=r"n\.ts has no one value in an interval stream") as caught:
            Machine(query("A a, !B n, B b", 9, where))
        assert "WHERE n.ts" in str(caught.value)
    with pytest.raises(lc.QueryError, match="use STRATEGY skip-till-any-match"):
        Machine(query("A a, B b", 9, "b.ts - a.ts > 1", STNM))
    with pytest.raises(lc.QueryError, match="at the same time"):
        Machine(query("A a, B b", 9, "[ts]"))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 9, 30, 200])), max_size=30), st.data())
def test_span_stores_find_what_overlaps(spans, data):
    """Against a plain list, with purges: nothing that ended at or after the floor may go."""
    store, kept, floor = SpanStore(CodeLayout.for_reach(10)), [], -(10**6)
    for start in range(0, len(spans), 7):
        part = [(low, low + length - 1, start + i) for i, (low, length) in enumerate(spans[start : start + 7])]
        lower, upper, refs = (np.array(c, np.int64) for c in zip(*part, strict=True))
        store.stage(np.zeros(len(part), np.uint64), lower, upper, refs)
        assert sorted(store.staged.refs.tolist()) == refs.tolist()
        lo = data.draw(st.integers(-5, 60))
        hi = lo + data.draw(st.integers(0, 30))
        for view, known in ((View.OLD, kept), (View.NEW, part), (View.ALL, kept + part)):
            assert store.latest(view) >= max((up for _, up, _ in known), default=-(2**63))
            sides = np.array([lo]), np.array([hi])
            found = {r for h in store.probe(np.zeros(1, np.uint64), *sides, view) for r in refs_of(h)}
            wanted = {r for low, up, r in known if low <= hi and up >= max(lo, floor)}
            assert wanted <= found <= set(range(len(spans)))
            assert all(low <= hi for low, _, r in known if r in found)
            sure = {r for h in store.within(np.zeros(1, np.uint64), *sides, view) for r in refs_of(h)}
            assert sure <= {r for low, up, r in known if lo <= low and up <= hi}
        store.commit()
        store._check()
        kept += part
        floor = max(floor, data.draw(st.integers(-5, 60)))
        store.purge(floor)
        store._check()
        held = set(store.events()[1].tolist())
        assert {r for _, up, r in kept if up >= floor} <= held
        oldest = store.oldest()
        assert oldest is None or all(low >= oldest for low, up, r in kept if r in held and up >= floor)
        copy = SpanStore(store.layout)
        copy.load(store.dump())
        assert sorted(copy.events()[1].tolist()) == sorted(held)
        kept = [e for e in kept if e[2] in held]


def refs_of(hit):
    return hit.run.refs[int(hit.first[0]) : int(hit.first[0] + hit.count[0])].tolist()
