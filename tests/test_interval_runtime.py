"""Runtimes over interval streams against all possible worlds: every level, order of arrival, split and restart."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from tests import interval_cases as cases
from tests import squeeze


def drawn(data):
    return lambda choices: data.draw(st.sampled_from(choices))


SLACKS = [0, 1, 2, 5, 9]


@given(st.data())
def test_kslack_says_what_is_true_in_the_end_and_never_takes_it_back(data):
    pick = drawn(data)
    slack = pick(SLACKS)
    run = cases.make(pick, lc.KSlack(slack), slack)
    changes, late = cases.play(run)
    assert not late
    assert all(change["op"] == "insert" for change in changes)
    cases.agree(cases.net(changes), cases.wanted(run, run.events))


@given(st.data())
def test_kslack_answers_in_order_of_completion(data):
    """A match is complete at its last possible time, or when a trailing scope has surely passed."""
    pick = drawn(data)
    slack, window = pick(SLACKS), pick([2, 5, 9])
    pattern = pick(["A a, B b", "A a, B b, C c", "A a, B b, !C c", "B a"])
    level = lc.KSlack(slack)
    query = lc.Query(f"PATTERN SEQ({pattern}) WITHIN {window} s", level=level)
    found = cases.events(pick, ["A", "B", "C"], 9, 3, "plain")
    steps = tuple(cases.arrivals(pick, found, slack + 3))
    run = cases.Run(query, 3, steps, frozenset(n for n in range(len(steps)) if pick([False, True])))
    changes, _ = cases.play(run)
    byid = {e["id"]: e for e in found}
    ends = []
    for change in changes:
        chosen = [byid[i] for i in change["events"]]
        worlds = itertools.product(*(range(e["lower"], e["upper"] + 1) for e in chosen))
        able = [t for t in worlds if list(t) == sorted(set(t)) and t[-1] - t[0] <= window]
        ends.append(max(max(t[-1], t[0] + window if "!" in pattern else t[-1]) for t in able))
    assert ends == sorted(ends)


@given(st.data())
def test_conservative_says_what_is_true_in_the_end_and_never_takes_it_back(data):
    pick = drawn(data)
    run = cases.make(pick, lc.Conservative(), None)
    changes, late = cases.play(run)
    assert not late
    assert all(change["op"] == "insert" for change in changes)
    cases.agree(cases.net(changes), cases.wanted(run, run.events))


@given(st.data())
def test_aggressive_says_what_is_true_in_the_end(data):
    pick = drawn(data)
    slack = pick(SLACKS)
    run = cases.make(pick, lc.Aggressive(slack, pick([0, 0, 0, 1, 4])), slack)
    changes, late = cases.play(run)
    assert not late
    cases.agree(cases.net(changes), cases.wanted(run, run.events))


@given(st.data())
def test_aggressive_says_after_each_batch_what_is_true_of_the_events_so_far(data):
    pick = drawn(data)
    run = cases.make(pick, lc.Aggressive(5), 5)
    overdue = any(n.kind == "trailing" for n in run.query.plan.negations)

    def each(seen, changes):
        if not overdue:
            cases.agree(cases.net(changes), cases.wanted(run, seen))

    cases.play(run, each)


@given(st.data())
def test_small_steps_of_confidence_need_not_be_told(data):
    pick = drawn(data)
    step = pick([0.1, 0.3])
    run = cases.make(pick, lc.Aggressive(5, confidence_step=step), 5)
    changes, _ = cases.play(run)
    cases.agree(cases.net(changes), cases.wanted(run, run.events), step)


@pytest.mark.parametrize("level", [lc.KSlack, lc.Aggressive])
@given(data=st.data())
def test_events_that_break_the_promise_are_late_and_count_for_nothing(level, data):
    pick = drawn(data)
    slack = pick(SLACKS)
    run = cases.make(pick, level(slack), slack, keep=False)
    changes, late = cases.play(run)
    kept = cases.accepted(run, slack)
    cases.agree(cases.net(changes), cases.wanted(run, kept))
    heard = [e for e in run.events if e["type"] in run.query.plan.types]
    assert {row["id"] for row in late} == {e["id"] for e in heard} - {e["id"] for e in kept}


@given(st.data())
def test_exact_times_are_intervals_of_one_instant(data):
    """Skip-till-next-match over a stream of exact times."""
    pick = drawn(data)
    slack = pick(SLACKS)
    level = pick([lc.KSlack(slack), lc.Aggressive(slack), lc.Conservative()])
    run = cases.make(pick, level, slack, most=9, forms=["exact"])
    changes, late = cases.play(run)
    assert not late
    assert all("latest" not in change for change in changes)
    cases.agree(cases.net(changes), cases.wanted(run, run.events))


@pytest.mark.parametrize("kind", squeeze.KINDS[1:])
@given(data=st.data())
def test_no_answer_depends_on_sizes_hashes_or_where_state_lies(kind, data):
    pick = drawn(data)
    slack = pick(SLACKS)
    level = pick([lc.KSlack(slack), lc.Aggressive(slack), lc.Conservative()])
    run = cases.make(pick, level, slack if level != lc.Conservative() else None, most=9, declared=True)
    with squeeze.squeezed(kind):
        changes, late = cases.play(run)
    assert not late
    cases.agree(cases.net(changes), cases.wanted(run, run.events))


@given(st.data())
def test_queries_of_all_levels_side_by_side(data):
    """Each says what it says alone; queries of one level share what they store."""
    pick = drawn(data)
    levels = [lc.KSlack(2), lc.KSlack(2), lc.Aggressive(2), lc.Conservative()]
    runs = [cases.make(pick, level, 2, most=7, forms=["ends"]) for level in levels]
    first = runs[0]
    queries = [lc.Query(r.query.text, name=f"q{i}") for i, r in enumerate(runs)]
    stream = dataclasses.replace(first, longest=9).stream
    runtime = lc.Runtime(stream, queries)
    rows = [first.row(e) for e in first.events]
    changes = runtime.process(rows).changes.to_pylist() + runtime.finish().changes.to_pylist()
    for i, run in enumerate(runs):
        own = [c for c in changes if c["query"] == f"q{i}"]
        cases.agree(cases.net(own), cases.wanted(run, first.events))


@given(st.data())
def test_sources_that_send_in_order_release_final_answers(data):
    """Generators of promises see lower ends, which are in order where time stamps are."""
    pick = drawn(data)
    run = cases.make(pick, lc.Conservative(), None, most=9, forms=["stamp"], declared=True)
    named = [e | {"source": e["source"] or "bad"} for e in run.events]
    for event in named:
        event["upper"] = event["lower"] + 2 * cases.ERRORS.get(event["source"], 2)
    order = sorted(named, key=lambda e: (e["lower"] + pick([0, 0, 3]) * (e["source"] == "bad"), e["id"]))
    sent = {s: sorted(e["lower"] for e in order if e["source"] == s) for s in ("good", "fair", "bad")}
    for event in order:  # each source sends its own events in order
        event["lower"] = sent[event["source"]].pop(0)
        event["upper"] = event["lower"] + 2 * cases.ERRORS.get(event["source"], 2)
    stream = dataclasses.replace(run.stream, sources=["good", "fair", "bad"], promises=[lc.SourcesInOrder()])
    runtime = lc.Runtime(stream, run.query)
    changes, late = [], []
    for event in order:
        out = runtime.process([run.row(event)])
        changes += out.changes.to_pylist()
        late += out.late.to_pylist()
    changes += runtime.finish().changes.to_pylist()
    assert not late
    assert all(change["op"] == "insert" for change in changes)
    cases.agree(cases.net(changes), cases.wanted(run, order))


def test_a_deletion_repeats_its_row_though_the_confidence_moved_by_less_than_rounding():
    stream = lc.Stream(id="id", source="by", unit="s", uncertainty={"a": 20}, distribution="normal(8)")
    query = lc.Query("PATTERN SEQ(A a, !N n, C c) WITHIN 200 s", name="q", level=lc.Aggressive(200))
    runtime, rows = lc.Runtime(stream, query), []
    for number, (type, ts, by) in enumerate([("A", 20, "a"), ("C", 50, "b"), ("N", 1, "b"), ("N", 45, "b")]):
        rows += runtime.process([{"id": number, "type": type, "ts": ts, "by": by}]).changes.to_pylist()
    told = [(r["op"], r["earliest"], r["latest"], r["confidence"]) for r in rows]
    assert [op for op, *_ in told] == ["insert", "delete", "insert", "delete"]
    assert told[0][1:] == told[1][1:] and told[2][1:] == told[3][1:]
    assert (told[0][1], told[2][1]) == (0, 1)
