"""What a level forgets changes no answer: long streams of long intervals, against the matcher that forgets nothing.

Times are large, so that stores do purge (they do so in strides of a quarter of a slice), and intervals are longer than
windows, so that what spoils a match may have ended long before the match can be told.
"""

from random import Random

import pytest

import latecomer as lc
from tests.interval_machine import Machine

SCALE = 150
LONGEST = 4 * SCALE
PATTERNS = ["A a, !B n, C c", "A a, B b, C c", "!B n, A a, C c, !A m", "A a, C c, !B n", "!C n, A a, !B m"]


def made(pick, size):
    """Events in order of their lower ends, which lie about one window apart."""
    found, lower = [], 0
    for number in range(size):
        lower += pick([0, 1, SCALE // 4, SCALE // 2, SCALE, 3 * SCALE])
        length = pick([0, 0, 7, SCALE // 3, SCALE, LONGEST // 2, LONGEST])
        found.append({"id": number, "type": pick("ABC"), "lower": lower, "upper": lower + length, "x": 1, "k": "u"})
    return found


def arriving(pick, found, slack):
    """An order of arrival in which no lower end is more than ``slack`` behind the largest before it."""
    late = [pick([0, 0, slack // 2, slack]) for _ in found]
    return [e for e, _ in sorted(zip(found, late, strict=True), key=lambda pair: pair[0]["lower"] + pair[1])]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("level", [lc.KSlack, lc.Aggressive])
def test_what_is_forgotten_changes_nothing(level, seed):
    pick = Random(seed).choice
    slack = pick([0, SCALE // 2, 3 * SCALE])
    strategy = pick(["", "", "STRATEGY skip-till-next-match"])
    text = f"PATTERN SEQ({pick(PATTERNS)}) WITHIN {pick([SCALE // 2, SCALE, 2 * SCALE])} s {strategy}"
    query = lc.Query(text, level=level(f"{slack} s"))
    found = made(pick, 120)
    reference = Machine(query.plan)
    reference.process(found)
    assert reference.shown, "there is something to find"

    stream = lc.Stream(type="type", lower="lower", upper="upper", longest=f"{LONGEST} s", id="id", unit="s")
    runtime, shown = lc.Runtime(stream, query), {}
    arrived = arriving(pick, found, slack + LONGEST)
    size = pick([1, 7])
    outputs = (runtime.process(arrived[start : start + size]) for start in range(0, len(arrived), size))
    most = 0
    for output in [*outputs, runtime.finish()]:
        most = max(most, runtime.explain()["queries"]["query"]["stored"])
        assert not len(output.late)
        for change in output.changes.to_pylist():
            key = tuple(change["events"])
            if change["op"] == "insert":
                assert key not in shown
                shown[key] = change["confidence"]
            else:
                assert level is lc.Aggressive
                assert shown.pop(key) == change["confidence"]
    assert most < len(found) * 2 // 3, "most of the events were forgotten on the way"
    assert set(shown) == set(reference.shown)
    assert shown == pytest.approx({key: confidence for key, (confidence, _) in reference.shown.items()}, rel=1e-12)
