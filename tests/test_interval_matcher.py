"""The interval matcher against the possible-worlds oracle: any order of arrival, any split into batches."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.query.plan import Confidence
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
]


def plan(pick):
    pattern, where = pick(PATTERNS)
    text = f"PATTERN SEQ({pattern}) {where and 'WHERE ' + where} WITHIN {pick([4, 6, 2, 3, 9])}"
    found = lc.Query(text, level=lc.Aggressive(0)).plan
    least = pick([Confidence(), Confidence(), Confidence(0.5, True), Confidence(0.25, False), Confidence(1.0, True)])
    return replace(found, strategy=pick([STAM, STNM]), confidence=least)


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
