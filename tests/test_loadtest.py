"""Load tests: the parts that decide whether a run is believed. A pipeline that errs must fail, a right one pass."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
import latecomer.disorder as ld
from latecomer.errors import ConfigError
from loadtest.counting import log_many
from loadtest.fleet import WAYS, Fleet, Knobs
from loadtest.outbox import EVENT, Outbox
from loadtest.panel import panel
from loadtest.shapes import SHAPES, phase
from loadtest.truth import CANCEL, END, LONE, NEVER, START, Truth
from loadtest.wire import _ID_OF_BROKEN, TYPES, messages
from tests import browser_fixture
from tests.oracle import matches

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"  # else it would change sockets and threads for all tests of this process
from locust.stats import RequestStats

browser, page = browser_fixture.browser, browser_fixture.page

QUERY = "PATTERN SEQ(Start a, !Cancel b, End c) WHERE [key] WITHIN 5 s"
NOW = 1_700_000_000_000


def fleet(seed=1, sources=4, **options):
    made = Fleet(rate=250, share=0.5, seed=seed, **options)
    for number in range(sources):
        made.join(number, NOW)
    return made


def drained(made, seconds=4, knobs=None):
    """All that a fleet sends in so many seconds, and what it held back, in the order of sending: (source, event)."""
    made.turn(knobs or Knobs(), NOW)
    for n in range(seconds * 5):
        made.slice(NOW + 200 * n, NOW + 200 * (n + 1))
    sent = [(source, event) for source in made.outbox.sources() for event in made.outbox.due(source, NOW + 10**9)]
    return sorted(sent, key=lambda pair: pair[1]["at"])


def rows(sent):
    """The messages as the pipeline would read them; broken ones left out."""
    told = []
    for source, event in sent:
        if not event["poison"]:
            [message] = messages(np.array([event], EVENT), source)
            told.append(json.loads(message["value"]))
    return told


def answered(made, sent, level, spoil=lambda changes: changes):
    """Run the real engine over what was sent, hand its answers to the truth, and judge."""
    stream = lc.Stream(id="id", source="source", unit="ms", max_ahead="1 min")
    runtime = lc.Runtime(stream, [lc.Query(QUERY, name="q", level=level)])
    events = rows(sent)
    changes, late = [], []
    for begin in range(0, len(events), 100):
        runtime.advance(NOW + 20_000)
        out = runtime.process(events[begin : begin + 100])
        changes += out.changes.to_pylist()
        late += out.late.to_pylist()
    changes += runtime.finish().changes.to_pylist()
    changes = spoil(changes)
    truth = made.truth
    truth.late([int(row["id"]) for row in late if row["reason"] != "duplicate"])
    inserted = [row["op"] == "insert" for row in changes]
    starts, ends = ([int(row["events"][i]) for row in changes] for i in (0, -1))
    seen = truth.see(inserted, starts, ends, NOW + 60_000)
    return truth.verdict(), seen


# --- the fleet -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_every_way_holds_back_for_real_and_the_engine_passes(way):
    made = fleet(skew=300, drift=0.01)
    sent = drained(made, knobs=Knobs(late=0.5, delay=800, ways={way: 1}, duplicates=0.05))
    found, seen = answered(made, sent, lc.Aggressive("1 min"))
    assert found.passed and found.expected > 50 and seen.unknown == 0
    assert len(seen.latencies) >= found.expected
    if way != "future":
        assert found.told_late == 0 and found.expected == found.complete


def test_the_ways_are_all_models_of_disorder():
    made = {type(way(Knobs())) for way in WAYS.values()} | {ld.Mix}
    models = {getattr(ld, name) for name in ld.__all__ if hasattr(getattr(ld, name), "apply")} - {ld.Model}
    assert made == models


def test_the_truth_is_the_oracles():
    made = fleet(skew=1_500)
    sent = drained(made, knobs=Knobs(late=0.3, duplicates=0.1, ways={"delayed": 3, "skewed": 1}))
    unique = {row["id"]: row for row in rows(sent)}
    plan = lc.Query(QUERY, level=lc.Conservative()).plan
    assert made.truth.verdict().expected == len(matches(plan, list(unique.values()), "ms")) > 100


@pytest.mark.parametrize("level", [lc.KSlack(300), lc.Aggressive(300), lc.Aggressive(300, patience=100)])
def test_what_is_told_late_is_not_owed_and_all_else_is(level):
    made = fleet()
    sent = drained(made, knobs=Knobs(late=0.4, delay=2_000, future=0.01, poison=0.01, duplicates=0.05))
    made.truth.dead = made.truth.poison
    found, _ = answered(made, sent, level)
    assert found.passed and found.told_late > 50 and found.poison > 5
    assert found.expected < found.complete and 0 < found.unsettled < 0.1 * found.complete


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda changes: changes[:-1], "missed"),
        (lambda changes: changes + changes[-1:], "duplicated"),
        (lambda changes: [c for c in changes if c["op"] == "insert"], "wrong"),
        (lambda changes: [{**c, "op": "delete"} for c in changes[:1]] + changes, "unknown"),
        (lambda changes: [*changes, {**changes[0], "events": ["0", "6"]}], "unknown"),
    ],
)
def test_a_pipeline_that_errs_fails(spoil, wrong):
    made = fleet()
    sent = drained(made, knobs=Knobs(late=0.5))
    found, _ = answered(made, sent, lc.Aggressive("1 min"), spoil)
    assert not found.passed and getattr(found, wrong) > 0 and "FAILED" in str(found)


def test_a_lost_dead_letter_fails():
    made = fleet()
    sent = drained(made, knobs=Knobs(poison=0.01))
    found, _ = answered(made, sent, lc.Aggressive("1 min"))
    assert found.poison == sum(bool(event["poison"]) for _, event in sent) > 0 and not found.passed


def test_the_rates_and_shares_are_those_asked_for():
    sent = drained(fleet(), seconds=20, knobs=Knobs(late=0.25, delay=500))
    assert len(sent) == pytest.approx(20 * 1_000, rel=0.03)
    parts = np.array([event["id"] for _, event in sent]) & 3
    assert (parts != LONE).mean() == pytest.approx(0.5, abs=0.03)
    assert (parts == CANCEL).sum() / (parts == START).sum() == pytest.approx(0.3, abs=0.05)
    held = np.mean([event["at"] > event["ts"] for _, event in sent])
    assert held == pytest.approx(0.25, abs=0.02)
    assert {source for source, _ in sent} == {0, 1, 2, 3}


def test_a_run_can_be_repeated_and_generators_side_by_side_differ():
    one, two = drained(fleet(seed=5)), drained(fleet(seed=5))
    assert one == two
    other = fleet(seed=5, base=1 << 40)
    assert drained(other) != one and {event["id"] >> 42 for _, event in drained(other)} == {1}


def test_answers_to_another_generator_are_left_alone():
    made = Truth(5_000, base=1 << 40)
    made.add(np.array([[1, NEVER, 2]]), np.array([[1, 0, 2]]), np.array([[1, 0, 1]]))
    theirs = (0, 2), (2 << 42, (2 << 42) + 2)
    for start, end in theirs:
        assert made.see([True], [start], [end], 9).unknown == 0
    assert made.see([True], [(1 << 42) + 4], [(1 << 42) + 6], 9).unknown == 1  # ours, and never told
    assert made.see([True], [1 << 42], [(1 << 42) + END], 9).latencies == [7]


def test_a_wrong_alarm_is_told_with_how_long_it_stood():
    made = Truth(5_000)
    made.add(np.array([[0, 50, 100]]), np.array([[0, 700, 100]]), np.array([[1, 1, 1]]))
    seen = made.see([True], [0], [2], 150)
    assert seen.latencies == [] and made.verdict().wrong == 1
    seen = made.see([False], [0], [2], 720)
    assert (seen.stood, seen.corrected) == ([570], [20])
    assert made.verdict().passed and made.verdict().corrections == 1


# --- holding back ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=30), st.lists(st.integers(0, 60), max_size=6)
)
def test_every_event_leaves_once_in_order_and_not_before_its_time(events, looks):
    box = Outbox()
    for number, (source, at) in enumerate(events):
        box.put(source, np.array([(at, 0, number, False)], EVENT))
        box._check()
    left = []
    for now in [*sorted(looks), 100]:
        for source in range(3):
            for event in box.due(source, now):
                assert event["at"] <= now
                left.append((source, int(event["at"]), int(event["id"])))
        assert len(box) == len(events) - len(left) == sum(at > now for _, at in events)
    assert sorted(left) == sorted((source, at, number) for number, (source, at) in enumerate(events))
    for source in range(3):
        times = [at for who, at, _ in left if who == source]
        assert times == sorted(times)


def test_a_source_that_was_cut_off_sends_all_at_once_when_it_is_back():
    made = fleet(sources=2)
    made.turn(Knobs(late=0, outage=1), NOW)
    made.slice(NOW, NOW + 1_000)
    assert len(made.outbox.due(0, NOW + 10_000)) == 0 < len(made.outbox.due(1, NOW + 10_000))
    made.turn(Knobs(late=0), NOW + 8_000)
    back = made.outbox.due(0, NOW + 8_000)
    assert len(back) > 100 and set(back["at"].tolist()) == {NOW + 8_000}
    at = made.truth._at[: made.truth.stories]
    assert (at == NOW + 8_000).sum() == (back["id"] & 3 != LONE).sum()


def test_a_source_that_leaves_loses_nothing():
    made = fleet(sources=3)
    made.slice(NOW, NOW + 1_000)
    before = len(made.outbox)
    made.leave(0, NOW)
    assert len(made.outbox) == before and 0 not in made.outbox.sources()


# --- knobs, shapes, statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    [{"late": "2"}, {"late": "much"}, {"delay": "0"}, {"tail": "fat"}, {"ways": "sideways=1"}, {"ways": "delayed=0"},
     {"outage": "-1"}, {"speed": "1"}],
)  # fmt: skip
def test_knobs_that_make_no_sense_are_refused(typed):
    with pytest.raises(ConfigError, match=next(iter(typed))):
        Knobs().turned(typed)


def test_knobs_can_be_typed():
    knobs = Knobs(late=0.3, delay=7, tail="pareto", ways={"delayed": 2.0, "shuffled": 0.5}, outage=2, poison=0.01)
    assert Knobs().turned(knobs.typed()) == knobs


def test_the_page_turns_knobs_while_it_runs():
    from flask import Flask

    app, held = Flask("test"), [Knobs()]
    app.register_blueprint(panel(lambda: held[-1], held.append, lambda: {"sent": 7}))
    client = app.test_client()
    shown = client.get("/disorder").get_data(as_text=True)
    assert 'name="late" value="0.1"' in shown and "sent           7" in shown
    assert client.post("/disorder", data={"late": "0.7", "outage": "2"}).status_code == 200
    assert (held[-1].late, held[-1].outage) == (0.7, 2)
    refused = client.post("/disorder", data={"late": "<b>7"})
    assert refused.status_code == 400 and "Not applied: late=&#x27;&lt;b&gt;7&#x27;" in refused.get_data(as_text=True)
    assert len(held) == 2
    assert client.get("/disorder.json").get_json()["knobs"]["late"] == "0.7"


def test_the_page_works_in_a_browser(page):
    from flask import Flask
    from werkzeug.serving import make_server

    app, held = Flask("test"), [Knobs()]
    app.register_blueprint(panel(lambda: held[-1], held.append, lambda: {"sent": len(held)}))
    server = make_server("127.0.0.1", 0, app)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        page.goto(f"http://127.0.0.1:{server.port}/disorder")
        page.get_by_label("late").first.fill("0.25")
        page.get_by_label("ways").fill("delayed=1 stragglers=2")
        page.get_by_role("button", name="Apply").click()
        assert page.get_by_role("status").inner_text() == "Applied."
        assert (held[-1].late, held[-1].ways) == (0.25, {"delayed": 1, "stragglers": 2})
        assert page.wrong == [] and "sent           2" in page.locator("pre").inner_text()
    finally:
        server.shutdown()
        thread.join(10)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_end_and_stay_within_their_sources(shape):
    told = [phase(shape, at, 100, 20) for at in range(100)]
    assert all(1 <= p.sources <= 20 and 0 <= p.outage < 20 for p in told)
    assert max(p.sources for p in told) == 20 and phase(shape, 100, 100, 20) is None
    assert (len({(p.sources, p.outage) for p in told}) > 1) == (shape not in ("steady", "soak"))
    assert max(phase(shape, at, 100, 1).sources for at in range(100)) == 1
    with pytest.raises(ConfigError, match="allowed are steady, step, spike, outage or soak"):
        phase("ramp", 0, 1, 1)


@given(st.lists(st.integers(0, 30_000), min_size=1, max_size=40))
def test_statistics_are_locusts_own(times):
    ours, theirs = RequestStats(), RequestStats()
    log_many(ours, "DETECT", "match", times, size=10 * len(times))
    for value in times:
        theirs.log_request("DETECT", "match", value, 10)
    for one, other in ((ours.total, theirs.total), (ours.get("match", "DETECT"), theirs.get("match", "DETECT"))):
        assert one.response_times == other.response_times
        for name in (
            "num_requests",
            "total_response_time",
            "min_response_time",
            "max_response_time",
            "median_response_time",
        ):
            assert getattr(one, name) == getattr(other, name), name
        assert one.total_content_length == other.total_content_length
        assert sum(one.num_reqs_per_sec.values()) == len(times)


def test_messages_are_json_but_for_the_broken_ones():
    events = np.array([(5, 7, 9 * 4 + CANCEL, False), (5, 7, 9 * 4 + LONE, False), (5, 7, 9 * 4, True)], EVENT)
    one, lone, bad = messages(events, 3)
    assert json.loads(one["value"]) == {"id": "37", "type": TYPES[CANCEL], "ts": 7, "key": "k9", "source": "s3"}
    assert one["key"] == b"k9" and lone["key"] == b"n9"
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(bad["value"])
    assert _ID_OF_BROKEN.findall(bad["value"]) == [b"36"]


def test_dead_letters_are_counted_by_whom_they_belong_to():
    made = Truth(5_000, base=1 << 40)
    made.died([3, (1 << 42) + 3, (2 << 42) + 3])
    assert made.verdict().dead == 1
