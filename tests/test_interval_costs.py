"""What confidences cost, and what is done about it: pairs that share what may spoil them, lengths that do not matter,
bounds, and what is told of those that cost too much.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import latecomer as lc
from latecomer.connectors.metrics import Metrics
from latecomer.query.plan import Confidence
from latecomer.runtime.intervals import memo, tiles, ways
from latecomer.runtime.intervals.bounds import valid_bounds
from latecomer.runtime.intervals.lattice import Lattice, Spoiler
from latecomer.runtime.intervals.pmf import Distributions
from latecomer.runtime.intervals.question import Hits, Question
from latecomer.runtime.intervals.separable import uniform_pairs
from latecomer.runtime.intervals.ways import Way
from latecomer.uncertainty import Triangular, Uniform
from tests.interval_machine import Machine
from tests.worlds import STAM, STNM


def pair(lower, upper, window, hits=(), scopes=((0, 1),)):
    """A question about the first two of some uniform events; ``hits`` are (event, scope)."""
    lower, upper = np.array(lower), np.array(upper)
    own = [np.array([0]), np.array([1])]
    first, last, _ = valid_bounds([lower[[0]], lower[[1]]], [upper[[0]], upper[[1]]], [1], window)
    event, scope = np.array(hits, np.int64).reshape(-1, 2).T
    events = Distributions.of(lower, upper)
    return Question(events, own, first, last, Hits(np.zeros(len(event), np.int64), scope, event), scopes, window)


# --- lengths that do not matter ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(*[st.integers(0, 12)] * 4, st.integers(1, 14), st.integers(1, 10**12))
def test_two_uniform_events_of_any_length(a, one, b, two, window, factor):
    expected = sum(0 < t - s <= window for s in range(a, a + one + 1) for t in range(b, b + two + 1))
    question = pair([a, b], [a + one, b + two], window)
    assert uniform_pairs(question, np.array([0]))[0] == pytest.approx(expected / (one + 1) / (two + 1), rel=1e-15)
    # Finer units, against sums by differences.
    first, second = factor * (one + 1), factor * (two + 1)
    fine = pair([factor * a, factor * b], [factor * a + first - 1, factor * b + second - 1], factor * window)
    spans = [(int(begin[0]), int(end[0])) for begin, end in zip(fine.earliest, fine.latest, strict=True)]
    worlds = Fraction(Lattice(spans, [], fine.window, True).count(), first * second)
    assert uniform_pairs(fine, np.array([0]))[0] == pytest.approx(float(worlds), rel=5e-16)


@pytest.mark.parametrize("seed", range(150))
def test_lattice_sums_are_sums_over_all_times(seed):
    draw = Random(seed)
    n = draw.choice([1, 2, 2, 3, 3, 4])
    longest = {1: 60, 2: 30, 3: 14, 4: 8}[n]
    begins = [draw.randrange(10) + j * draw.choice([0, 2, 5]) for j in range(n)]
    spans = [(begin, begin + draw.randrange(longest)) for begin in begins]
    window = max(draw.choice([3, 6, 10, 20, 40, 100]), n - 1)
    ends = [(None, 0), (n - 1, None)]
    middle = [(j, j + 1) for j in range(n - 1)]
    spoilers = []
    for _ in range(draw.choice([0, 1, 2, 3])):
        many = draw.sample(ends + middle * (n < 3), draw.randint(1, 2))
        scopes = many if n < 3 or draw.random() < 0.5 else [draw.choice(middle)]
        lower = draw.randrange(-10, 30)
        spoilers.append(Spoiler(lower, lower + draw.randrange(20), tuple(scopes)))
    ended = any(None in scope for s in spoilers for scope in s.scopes)
    lattice = Lattice(spans, spoilers, window, n < 3 or ended or spans[-1][1] - spans[0][0] > window)
    expected = 0
    for times in product(*(range(a, b + 1) for a, b in spans)):
        if all(a < b for a, b in pairwise(times)) and times[-1] - times[0] <= window:
            expected += prod(sum(_outside(s, t, times, window) for t in range(s.lower, s.upper + 1)) for s in spoilers)
    assert lattice.count() == expected


def _outside(spoiler, time, times, window):
    """Whether a time lies in none of the spoiler's scopes."""
    for left, right in spoiler.scopes:
        low = times[-1] - window if left is None else times[left] + 1
        high = times[0] + window if right is None else times[right] - 1
        if low <= time <= high:
            return False
    return True


@pytest.mark.parametrize(
    "pattern", ["A a, B b, C c", "A a, !B n, C c", "!B n, A a, C c", "A a, C c, !B n", "A a, !B n"]
)
@pytest.mark.parametrize("strategy", [STAM, STNM])
def test_the_unit_does_not_matter(pattern, strategy):
    """The smallest of what was unknown: give or take a second, in microseconds. It is near what milliseconds say."""
    said = []
    for units in (10**3, 10**6):
        query = replace(
            lc.Query(f"PATTERN SEQ({pattern}) WITHIN {5 * units}", level=lc.Aggressive(0)).plan, strategy=strategy
        )
        machine = Machine(query)
        places = {"A": 0.0, "B": 1.4, "C": 2.5}
        machine.process(
            [
                {"id": i, "type": t, "lower": int((at - 1) * units), "upper": int((at + 1) * units)}
                for i, (t, at) in enumerate([*places.items(), ("C", 2.9)])
            ]
        )
        said.append(machine.shown)
    assert said[0].keys() == said[1].keys() != set()
    for ids, (chance, _) in said[0].items():
        assert said[1][ids][0] == pytest.approx(chance, rel=0.02), ids


# --- what pairs share -------------------------------------------------------------------------------------------------


def crowd(seed, strategy, pattern="A a, !B n, C c", where="[k]", window=60, longest=90, n=40, weights=False):
    """A query, and events of which many are near each other."""
    draw = np.random.default_rng(seed)
    text = f"PATTERN SEQ({pattern}) {where and 'WHERE ' + where} WITHIN {window}"
    query = replace(lc.Query(text, level=lc.Aggressive(0)).plan, strategy=strategy)
    found = []
    for number in range(n):
        low, length = int(draw.integers(0, 150)), int(draw.integers(1, longest))
        e = {"id": number, "type": "ABC"[number % 3], "lower": low, "upper": low + length - 1}
        e |= {"k": "xy"[int(draw.integers(2))], "x": int(draw.integers(3))}
        if weights and length > 1 and number % 4 == 0:
            e["weights"] = [1, *draw.integers(0, 5, length - 2).tolist(), 2]
        found.append(e)
    return query, found


CROWDS = [
    {},
    {"where": ""},
    {"weights": True},
    {"where": "n.x <= c.x"},
    {"where": "n.x <> a.x"},
    {"pattern": "A a, C c"},
    {"pattern": "A a, A c", "where": "a.x <= c.x"},
    {"pattern": "!B m, A a, !B n, C c, !B l"},
    {"longest": 400, "window": 500, "n": 24},
]


@pytest.mark.parametrize("strategy", [STAM, STNM])
@pytest.mark.parametrize("more", CROWDS)
def test_what_is_shared_changes_nothing(strategy, more, monkeypatch):
    """Tiles say what the grid says; and of each pair, to the last bit, what they say of it alone."""
    query, found = crowd(3, strategy, **more)
    monkeypatch.setattr(ways.Ways, "_choose", lambda self, kind, able, cost: None)  # tiles, or else the grid
    shared = Machine(query)
    shared.process(found)
    assert len(shared.shown) > 10
    alone = "_pieces", lambda question, hits, at, size: list(at[:, None])
    for setting in (alone, ("_SUMS", 5_000), ("_CELLS", 1)):
        other = Machine(query)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tiles, *setting)
            other.process(found)
        assert other.shown == shared.shown
    pairs = ways.Ways._pairs

    def by_grid(self, question, hits, plain, smooth, *rest):
        pairs(self, question, hits, plain, np.zeros(len(smooth), bool), *rest)

    monkeypatch.setattr(ways.Ways, "_pairs", by_grid)
    alone = Machine(query)
    alone.process(found)
    assert alone.shown.keys() == shared.shown.keys()
    for ids, (chance, ranges) in alone.shown.items():
        assert shared.shown[ids][0] == pytest.approx(chance, rel=1e-12)
        assert shared.shown[ids][1] == ranges


@pytest.mark.parametrize("strategy", [STAM, STNM])
@pytest.mark.parametrize("where", ["n.x <> a.x", "n.x <= c.x AND [k]"])
def test_pairs_that_differ_in_what_may_spoil_them_share_nothing(strategy, where):
    """Also where nothing had said that they are likely to."""
    query, found = crowd(11, strategy, where=where)
    told, untold = Machine(query), Machine(query)
    untold.matcher._decisive = []
    for machine in (told, untold):
        machine.process(found)
    assert untold.shown == told.shown
    assert len(told.shown) > 10


def test_what_is_shared_is_computed_once(monkeypatch):
    """Many pairs near each other ask for few tiles: those of the plane of times, not those of each pair."""
    computed = []
    weights = tiles._Plane.weights
    monkeypatch.setattr(
        tiles._Plane, "weights", lambda self, a, b: computed.append(len(self._items[a:b])) or weights(self, a, b)
    )
    query, found = crowd(5, STAM, where="", window=100, longest=80, n=150)
    machine = Machine(query)
    machine.process(found)
    # 230 instants of first times, and for each of these 100 of second ones.
    assert len(machine.shown) > 500
    assert 0 < sum(computed) < 2 * (230 * 100 / tiles.SIZES[0] ** 2)


def test_long_windows_and_intervals_take_no_more_memory_than_allowed():
    """A tile is computed only where an event may be, however far apart these are; and one pair may need too many."""
    far = 10**12
    events = [{"id": i, "type": "A", "lower": i * far // 9, "upper": i * far // 9 + 40} for i in range(9)]
    events += [{"id": 10 + i, "type": "B", "lower": far + 3 * i, "upper": far + 3 * i + 50} for i in range(12)]
    events += [{"id": 30, "type": "C", "lower": far + 20, "upper": far + 60}]
    machine = Machine(lc.Query(f"PATTERN SEQ(A a, !B n, C c) WITHIN {2 * far}", level=lc.Aggressive(0)).plan)
    machine.process([e | {"weights": [1 + t % 3 for t in range(e["upper"] - e["lower"] + 1)]} for e in events])
    assert len(machine.shown) == 9
    assert (
        len({round(chance, 12) for chance, _ in machine.shown.values()}) == 1
    )  # all spoilers are far behind all firsts
    long = [{"id": i, "type": "AC"[i], "lower": i, "upper": i + 40_000_000, "shape": 1} for i in range(2)]
    close = Machine(
        lc.Query("PATTERN SEQ(A a, !B n, C c) WITHIN 1", level=lc.Aggressive(0)).plan, shapes=(Uniform(), Triangular())
    )
    close.process([*long, {"id": 2, "type": "B", "lower": 5, "upper": 5}])
    assert [np.isnan(chance) for chance, _ in close.shown.values()] == [True]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [STAM, STNM])
@pytest.mark.parametrize("least", [Confidence(0.3, True), Confidence(0.3, False), Confidence(0.05, True)])
def test_what_is_below_the_threshold_is_not_computed_and_nothing_else(strategy, least, monkeypatch):
    query, found = crowd(7, strategy, n=60, weights=True)
    everything, some = Machine(query), Machine(replace(query, confidence=least))
    kinds = []
    kept = ways.Ways.__init__
    monkeypatch.setattr(
        ways.Ways, "__init__", lambda self, *given: kept(self, *given) or kinds.extend(self.kind.tolist())
    )
    for machine in (everything, some):
        for start in range(0, 60, 20):
            machine.process(found[start : start + 20])
    assert some.shown == {
        ids: said
        for ids, said in everything.shown.items()
        if (said[0] >= least.least if least.inclusive else said[0] > least.least)
    }
    assert kinds.count(Way.BELOW) > 3


def test_what_is_surely_below_the_threshold_is_not_told_as_unknown():
    """A curve of a day in nanoseconds, and something that spoils most of the worlds for sure."""
    day = 86_400 * 10**9
    events = [
        {"id": 0, "type": "A", "lower": 0, "upper": day, "shape": 1},
        {"id": 1, "type": "B", "lower": day, "upper": 3 * day, "shape": 1},
        {"id": 2, "type": "C", "lower": 3 * day, "upper": 4 * day, "shape": 1},
    ]
    query = lc.Query(f"PATTERN SEQ(A a, !B b, C c) WITHIN {5 * day}", level=lc.Aggressive(0)).plan
    for least, told in ((Confidence(), 1), (Confidence(0.5, True), 0)):
        machine = Machine(replace(query, confidence=least), shapes=(Uniform(), Triangular()))
        machine.process(events)
        assert len(machine.shown) == told
        assert all(np.isnan(chance) for chance, _ in machine.shown.values())


# --- what is told -----------------------------------------------------------------------------------------------------

CURVES = lc.Stream(lower="from", upper="to", longest="1 d", unit="ns", id="id", distribution="triangular")
DAY = 86_400 * 10**9


def costly(sampled=""):
    """A match whose confidence is too costly: of two curves of a day, in nanoseconds."""
    query = lc.Query(
        f"PATTERN SEQ(A a, B b) WITHIN 2 d CONFIDENCE >= 60% {sampled}", name="q", level=lc.Aggressive("1 d")
    )
    runtime = lc.Runtime(CURVES, query)
    rows = [{"id": t.lower(), "type": t, "from": i * DAY // 4, "to": i * DAY // 4 + DAY} for i, t in enumerate("AB")]
    return runtime, runtime.process(rows)


def test_matches_without_a_confidence_are_counted_and_told():
    runtime, out = costly()
    assert out.changes["confidence"].to_pylist() == [None]
    assert runtime.counters["confidences"] == {"q": {"steps": 0, "unknown": 1, "sampled": 0}}
    assert lc.Runtime.restore(runtime.snapshot()).counters == runtime.counters
    sampled, out = costly("SAMPLED 0.01")
    assert out.changes["confidence"].null_count == 0
    counted = sampled.counters["confidences"]["q"]
    assert (counted["unknown"], counted["sampled"]) == (0, 1)
    assert counted["steps"] == 2500  # so many draws
    registry = CollectorRegistry()
    Metrics("m", registry).update(runtime)
    assert registry.get_sample_value("latecomer_unknown_confidences_total", {"runtime": "m", "query": "q"}) == 1.0


def test_steps_are_counted_whatever_the_batches():
    """In a level that gives each answer once."""
    rows = [{"id": str(i), "type": "ABC"[i % 3], "from": 3 * i, "to": 3 * i + 7} for i in range(30)]
    query = lc.Query("PATTERN SEQ(A a, !B b, C c) WITHIN 20 s", name="q", level=lc.KSlack(5))
    counts = []
    for size in (1, 7, 30):
        runtime = lc.Runtime(lc.Stream(lower="from", upper="to", longest=10, unit="s", id="id"), query)
        for start in range(0, 30, size):
            runtime.process(rows[start : start + size])
        runtime.finish()
        counts.append(runtime.counters["confidences"]["q"])
    assert counts[0] == counts[1] == counts[2]
    assert counts[0]["steps"] > 100


def test_exact_streams_have_no_confidences_to_count():
    runtime = lc.Runtime(lc.Stream(unit="s"), lc.Query("PATTERN SEQ(A a, B b) WITHIN 5 s", level=lc.KSlack(1)))
    runtime.process([{"type": "A", "ts": 1}, {"type": "B", "ts": 2}])
    assert runtime.counters["confidences"] == {}


# --- a second opinion on a large stream -------------------------------------------------------------------------------


def test_a_large_stream_agrees_with_drawn_worlds():
    """300 events, give or take half a minute, through a runtime: each confidence is within the sampling error of its
    share of 10^5 drawn worlds, and the share of all of them that is off by more than two errors is what it should be.
    """
    draw, window, worlds = np.random.default_rng(20), 120, 100_000
    times, kinds, keys = np.sort(draw.integers(0, 4_000, 300)), draw.integers(0, 3, 300), draw.integers(0, 3, 300)
    rows = [
        {"id": i, "type": "ABC"[kinds[i]], "ts": int(times[i]), "k": int(keys[i])}
        for i in draw.permutation(300).tolist()
    ]
    query = lc.Query(f"PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN {window} s", level=lc.Aggressive("2 h"))
    runtime = lc.Runtime(lc.Stream(id="id", unit="s", uncertainty=30), query)
    shown = {}
    for start in range(0, 300, 50):
        for change in runtime.process(rows[start : start + 50]).changes.to_pylist():
            if change["op"] == "insert":
                shown[tuple(change["events"])] = change["confidence"]
            else:
                assert shown.pop(tuple(change["events"])) == change["confidence"]
    drawn = (times[:, None] + draw.integers(-30, 31, (300, worlds))).astype(np.int16)
    errors = []
    for a in np.flatnonzero(kinds == 0).tolist():
        for c in np.flatnonzero((kinds == 2) & (keys == keys[a]) & (abs(times - times[a]) <= window + 60)).tolist():
            match = (drawn[a] < drawn[c]) & (drawn[c] - drawn[a] <= window)
            near = (kinds == 1) & (keys == keys[a]) & (abs(times - times[a]) <= window + 60)
            for b in np.flatnonzero(near).tolist():
                match &= ~((drawn[a] < drawn[b]) & (drawn[b] < drawn[c]))
            said, seen = shown.get((a, c), 0.0), match.mean()
            error = (said * (1 - said) / worlds) ** 0.5
            assert abs(said - seen) <= 6 * error + 1e-4, (a, c)
            if 0.001 < said < 0.999:
                errors.append(abs(said - seen) / error)
    assert len(errors) > 150
    assert 0.01 < np.mean(np.array(errors) > 2) < 0.12  # 4.6 % are expected; pairs that share events go together


# --- what is remembered -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [STAM, STNM])
@pytest.mark.parametrize("most", [0, 5, memo.MOST])
def test_what_is_remembered_is_not_computed_again_and_changes_nothing(strategy, most, monkeypatch):
    """Event by event; a machine that remembers nothing says the same, to the last bit, and computes more."""
    monkeypatch.setattr(memo, "MOST", most)
    query, found = crowd(13, strategy, weights=True)
    query = replace(query, confidence=Confidence(0.02, True))
    remembering, forgetting = Machine(query), Machine(query)
    forgetting.matcher._memo = None
    for event in found:
        for machine in (remembering, forgetting):
            machine.process([event])  # which checks that each deletion repeats what was told
        assert remembering.shown == forgetting.shown
        assert len(remembering.matcher._memo) <= most
    assert len(remembering.shown) > 10
    few, many = remembering.matcher.spent(), forgetting.matcher.spent()
    assert few < 0.9 * many if most > 5 else few <= many


def test_signatures_are_of_sets():
    draw = np.random.default_rng(1)
    refs, kinds = draw.integers(0, 50, 6), draw.integers(0, 3, 6)
    order = draw.permutation(6)
    one = memo.signatures(2, np.array([0] * 6), kinds, refs)
    assert one.tolist() == memo.signatures(2, np.array([0] * 6), kinds[order], refs[order]).tolist()
    assert one[1] == 0 != one[0]
    pairs = {(int(a), int(b)) for a in range(100) for b in range(3)}
    alone = memo.signatures(
        len(pairs), np.arange(len(pairs)), *(np.array(c) for c in zip(*[(b, a) for a, b in pairs], strict=True))
    )
    assert len(set(alone.tolist())) == len(pairs)
