"""Each model of disorder, checked by the verifier; the verifier, checked by brute force."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer.disorder as ld
from latecomer.disorder.measure import inversions, running_lateness
from latecomer.errors import ConfigError, SchemaError
from latecomer.stream import Stream

STREAM = Stream(ts="ts", source="device", unit="ms")
SPAN = 20_000


def steady(n: int = SPAN, sources: int = 4) -> pa.Table:
    """One event per millisecond, the senders drawn evenly: enough events for shares to be told to a percent or two."""
    rng = np.random.default_rng(99)
    return pa.table(
        {
            "id": pa.array(np.arange(n)),
            "device": pa.array([f"d{i}" for i in rng.integers(0, sources, n)]),
            "ts": pa.array(np.arange(n) + 1_000_000),
        }
    )


EVENTS = steady()
TAILS: list[ld.Tail] = [ld.Uniform("2 s"), ld.Exponential("1 s"), ld.Pareto("500 ms", shape=1.5, most="1 min")]
MODELS: list[ld.Model] = [
    ld.Ordered(),
    *(ld.Delayed(0.3, tail) for tail in TAILS),
    ld.Outage("3 s", at=0.4),
    ld.ClockSkew("500 ms", drift=0.01),
    ld.GroupShuffle(16),
    ld.Duplicates(0.2, ld.Uniform("1 s")),
    ld.Replay("2 s", at=0.6),
    ld.FromFuture("1 h"),
    ld.Stragglers("1 s", grace="100 ms"),
    ld.Chain(ld.Delayed(0.1, ld.Uniform("1 s")), ld.GroupShuffle(8), ld.Duplicates(0.1, ld.Uniform("1 s"))),
    ld.Mix([ld.Ordered(), ld.GroupShuffle(4), ld.Replay("1 s")], weights=[2, 1, 1]),
    ld.Shift(ld.Ordered(), ld.Delayed(0.5, ld.Uniform("2 s")), at=0.5, over=0.2),
]


def sent(model: ld.Model, seed: int = 5, events: pa.Table = EVENTS, stream: Stream = STREAM) -> pa.Table:
    return ld.inject(events, model, stream, seed=seed)


def measured(table: pa.Table) -> ld.Disorder:
    """The verifier's view of a table in order of arrival; what it says of order must agree with the arrival column."""
    found = ld.measure(table["ts"], source=table["device"])
    timed = ld.measure(table["ts"], table["arrival"], table["device"])
    assert timed.late == found.late and timed.runs == found.runs and timed.inversions == found.inversions
    return timed


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_every_model_keeps_the_events_and_repeats_by_seed(model: ld.Model) -> None:
    table = sent(model)
    assert table.column_names == ["id", "device", "ts", "arrival"]
    arrival = table["arrival"].to_numpy()
    assert (np.diff(arrival) >= 0).all()
    assert sent(model).equals(table)
    copies = Counter(table["id"].to_pylist())
    assert set(copies) == set(EVENTS["id"].to_pylist())  # nothing lost, nothing invented
    repeats = any(isinstance(m, (ld.Duplicates, ld.Replay)) for m in parts(model))
    assert (max(copies.values()) > 1) == repeats
    # whatever is sent is the event as it was, but for a wrong stamp
    origin = EVENTS.take(table["id"])
    assert table["device"].equals(origin["device"])
    restamped = isinstance(model, (ld.ClockSkew, ld.FromFuture))
    assert table["ts"].equals(origin["ts"]) != restamped
    assert (arrival >= origin["ts"].to_numpy()).all()  # nothing arrives before it happens


def parts(model: Any) -> list[Any]:
    return [model, *(p for m in getattr(model, "models", ()) for p in parts(m))]


RANDOM = [m for m in MODELS if not isinstance(m, (ld.Ordered, ld.Replay, ld.FromFuture))]


@pytest.mark.parametrize("model", RANDOM, ids=repr)
def test_another_seed_gives_another_stream(model: ld.Model) -> None:
    assert not sent(model, seed=6).equals(sent(model, seed=5))


def test_a_generator_serves_as_seed_and_moves_on() -> None:
    model, rng = ld.Delayed(0.3, ld.Uniform("1 s")), np.random.default_rng(5)
    first = ld.inject(EVENTS, model, STREAM, seed=rng)
    assert first.equals(sent(model, seed=5))
    assert not ld.inject(EVENTS, model, STREAM, seed=rng).equals(first)


@pytest.mark.parametrize("tail", TAILS, ids=repr)
@pytest.mark.parametrize("late", [0.01, 0.1, 0.3, 0.5, 0.7])
def test_the_share_late_is_the_one_asked_for(tail: ld.Tail, late: float) -> None:
    found = measured(sent(ld.Delayed(late, tail)))
    assert found.share_late == pytest.approx(late, abs=0.015)
    assert found.delays is not None and found.delays[0.5] >= (1 if late > 0.6 else 0)


def test_tails_have_the_shape_they_promise() -> None:
    rng = np.random.default_rng(1)
    uniform = ld.Uniform("2 s", low="1 s").draw(50_000, "ms", rng)
    assert uniform.min() == 1_000 and uniform.max() == 2_000 and uniform.mean() == pytest.approx(1_500, rel=0.01)
    exponential = ld.Exponential("1 s").draw(50_000, "ms", rng)
    assert exponential.mean() == pytest.approx(1_000, rel=0.03)
    assert (exponential > 2_000).mean() == pytest.approx(np.exp(-2), abs=0.01)
    pareto = ld.Pareto("1 s", shape=1.5).draw(50_000, "ms", rng)
    assert pareto.min() >= 1_000 and (pareto > 10_000).mean() == pytest.approx(10**-1.5, abs=0.005)
    assert ld.Pareto("1 s", shape=0.5, most="1 min").draw(50_000, "ms", rng).max() == 60_000
    assert ld.Pareto("1 s", shape=0.001).draw(1_000, "ms", rng).max() == 2**60  # no overflow, however fat the tail
    assert (ld.Exponential(0).draw(10, "ms", rng) == 1).all()


def test_an_ordered_stream_has_no_disorder() -> None:
    found = measured(sent(ld.Ordered()))
    assert (found.late, found.max_lateness, found.runs, found.inversions) == (0, 0, 1, 0)
    assert found.delays == dict.fromkeys(found.quantiles, 0)


def test_an_outage_is_one_burst_of_one_source() -> None:
    found = measured(sent(ld.Outage("3 s", at=0.4, source=2)))
    name = EVENTS["device"].unique().to_pylist()[2]
    late = {who: one.late for who, one in found.per_source.items() if one.late}
    assert list(late) == [name]
    assert late[name] == pytest.approx(3_000 / 4, rel=0.1)
    assert found.max_lateness == pytest.approx(3_000, abs=20)
    assert found.runs == 2  # the burst is in order within itself
    assert found.per_source[name].runs == 1


def test_skew_delays_sources_against_each_other_but_not_within() -> None:
    skew = measured(sent(ld.ClockSkew("500 ms")))
    assert all(one.runs == 1 for one in skew.per_source.values())
    assert 0 < skew.max_lateness <= 1_000
    lateness = sorted(one.quantiles[0.5] for one in skew.per_source.values())
    assert lateness[0] == 0 and lateness[-1] >= skew.max_lateness - 10  # a constant for each
    drift = sent(ld.ClockSkew(drift=0.02))
    quarter = SPAN // 4
    early, last = (measured(drift.slice(at, quarter)).max_lateness for at in (0, SPAN - quarter))
    assert last > 2 * early > 0  # clocks part company


def test_groups_are_shuffled_within_and_ordered_among_themselves() -> None:
    table = sent(ld.GroupShuffle(16))
    found = measured(table)
    assert 0 < found.max_lateness <= 15
    assert found.share_late == pytest.approx(1 - sum(1 / k for k in range(1, 17)) / 16, abs=0.01)
    assert found.inversions == pytest.approx(SPAN / 16 * (16 * 15 / 4), rel=0.03)
    assert found.delays is not None and found.delays[1.0] == 15
    groups = table["id"].to_numpy().reshape(-1, 16) // 16
    assert (groups == np.arange(SPAN // 16)[:, None]).all()
    assert sent(ld.GroupShuffle(1))["id"].equals(EVENTS["id"])


def test_duplicates_are_late_copies() -> None:
    table = sent(ld.Duplicates(0.2, ld.Uniform("1 s")))
    copies = Counter(table["id"].to_pylist())
    assert max(copies.values()) == 2
    assert sum(c == 2 for c in copies.values()) == pytest.approx(0.2 * SPAN, rel=0.05)
    assert measured(table).late == pytest.approx(0.2 * SPAN, rel=0.05)


def test_a_replay_sends_a_stretch_again_in_order() -> None:
    table = sent(ld.Replay("2 s", at=0.6))
    again = [i for i, c in Counter(table["id"].to_pylist()).items() if c == 2]
    assert again == list(range(10_000 - 1, 12_000 - 1))
    seen: set[int] = set()
    second = [i for i in table["id"].to_pylist() if i in seen or seen.add(i)]  # type: ignore[func-returns-value]
    assert second == again
    assert measured(table).max_lateness == 2_000


def test_one_event_from_the_future_makes_all_after_it_late() -> None:
    table = sent(ld.FromFuture("1 h", at=0.25))
    found = measured(table)
    assert found.late == pytest.approx(0.75 * SPAN, abs=2)
    assert found.max_lateness == pytest.approx(3_600_000, abs=SPAN)
    wrong = table["ts"].to_numpy() - EVENTS.take(table["id"])["ts"].to_numpy()
    assert np.count_nonzero(wrong) == 1 and wrong.max() == 3_600_000


def test_a_straggler_comes_after_each_closed_window() -> None:
    table = sent(ld.Stragglers("1 s", grace="100 ms"))
    late = running_lateness(table["ts"].to_numpy()) > 0
    windows = (table["ts"].to_numpy()[late] - 1_000_000) // 1_000
    assert windows.tolist() == list(range(19))  # the twentieth is never closed
    clock = np.maximum.accumulate(table["ts"].to_numpy())[late]
    assert ((clock - 1_000_000) // 1_000 == windows + 1).all()
    assert (clock - 1_000_000 - (windows + 1) * 1_000 - 100 <= 2).all()
    assert (clock - 1_000_000 - (windows + 1) * 1_000 - 100 >= 0).all()


def test_a_mix_takes_each_way_by_its_weight() -> None:
    way: list[ld.Model] = [ld.Ordered(), ld.Delayed(1.0, ld.Uniform("3 s", low="2 s"))]
    found = measured(sent(ld.Mix(way, weights=[3, 1])))
    assert found.share_late == pytest.approx(0.25, abs=0.01)
    assert measured(sent(ld.Mix(way))).share_late == pytest.approx(0.5, abs=0.015)


def test_a_shift_changes_the_delay_in_mid_stream() -> None:
    model = ld.Shift(ld.Delayed(0.1, ld.Uniform("100 ms")), ld.Delayed(0.6, ld.Uniform("1 s")), at=0.5)
    table = sent(model)
    lateness = running_lateness(table["ts"].to_numpy())
    happened = table["ts"].to_numpy() - 1_000_000
    before, after = happened < SPAN // 2, happened >= SPAN // 2
    assert (lateness[before] > 0).mean() == pytest.approx(0.1, abs=0.02) and lateness[before].max() <= 100
    assert (lateness[after] > 0).mean() == pytest.approx(0.6, abs=0.02) and lateness[after].max() > 900
    slow = sent(ld.Shift(ld.Ordered(), ld.Delayed(1.0, ld.Uniform("1 s")), at=0.25, over=0.5))
    delayed = slow["arrival"].to_numpy() > slow["ts"].to_numpy()
    happened = slow["ts"].to_numpy() - 1_000_000
    shares = [delayed[happened // (SPAN // 4) == quarter].mean() for quarter in range(4)]
    assert shares == pytest.approx([0, 0.25, 0.75, 1], abs=0.03)


def test_a_chain_applies_one_model_after_another() -> None:
    delayed = ld.Delayed(0.1, ld.Uniform("1 s"))
    both = measured(sent(ld.Chain(delayed, ld.FromFuture("1 h", at=0.9))))
    assert both.share_late == pytest.approx(0.1 * 0.9 + 0.1, abs=0.01)
    assert sent(ld.Chain()).equals(sent(ld.Ordered()))


def test_a_user_may_write_a_model() -> None:
    class Reversed:
        def apply(self, flow: ld.Flow, rng: np.random.Generator) -> ld.Flow:
            return flow.arriving(flow.end + (flow.end - flow.ts))

    found = measured(sent(ld.Chain(Reversed(), ld.Ordered())))
    assert found.inversions == SPAN * (SPAN - 1) // 2 and found.runs == SPAN


def test_timestamps_stay_timestamps() -> None:
    stamps = pa.array(np.arange(1_000) * 1_000, pa.timestamp("us", tz="UTC"))
    events = pa.table({"ts": stamps, "device": ["a"] * 1_000})
    table = ld.inject(events, ld.Delayed(0.5, ld.Uniform("100 ms")), Stream(ts="ts"), seed=1, arrival="came")
    assert table.schema.field("came").type == table.schema.field("ts").type == stamps.type
    assert 50_000 < ld.measure(table["ts"]).max_lateness <= 100_000
    skewed = ld.inject(events, ld.ClockSkew("1 s"), Stream(ts="ts", source="device"), seed=1)
    assert skewed["ts"].type == stamps.type and not skewed["ts"].equals(events["ts"])


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("n", [0, 1])
def test_tiny_streams_pass(model: ld.Model, n: int) -> None:
    table = sent(model, events=steady(n, sources=1))
    assert set(table["id"].to_pylist()) == set(range(n))
    assert measured(table).late == 0


@given(st.lists(st.integers(-5, 5), max_size=40))
def test_measure_agrees_with_brute_force(ts: list[int]) -> None:
    found = ld.measure(ts, quantiles=[0.3, 0.9, 1.0])
    lateness = [max(ts[: i + 1]) - t for i, t in enumerate(ts)]
    assert found.late == sum(x > 0 for x in lateness)
    assert found.max_lateness == max(lateness, default=0)
    assert found.inversions == sum(a > b for i, a in enumerate(ts) for b in ts[i + 1 :])
    assert found.runs == sum(i == 0 or ts[i - 1] > t for i, t in enumerate(ts))
    for q, value in found.quantiles.items():
        assert value in lateness
        assert sum(x <= value for x in lateness) >= q * len(ts) > sum(x < value for x in lateness) - 1e-9
    late = [x for x in lateness if x]
    assert (found.when_late[1.0] if late else found.when_late) == (max(late) if late else {})
    if late:
        assert found.when_late[0.3] == sorted(late)[max(-(-3 * len(late) // 10) - 1, 0)]
    assert ld.measure([]).quantiles == {}


def test_measure_by_source_and_by_arrival() -> None:
    found = ld.measure([3, 1, 2], arrival=[3, 5, 4], source=["a", "b", None])
    assert (found.late, found.runs, found.inversions) == (2, 3, 3)
    assert found.delays is not None and found.delays[1.0] == 4
    assert {who: (one.events, one.max_lateness) for who, one in found.per_source.items()} == {
        "a": (1, 0),
        "b": (1, 2),
        None: (1, 1),
    }
    assert found.as_dict()["per_source"]["None"]["late"] == 1
    assert found.as_dict()["share_late"] == found.share_late


def test_inversions_of_many_events_are_counted_fast() -> None:
    n = 200_000
    assert inversions(np.arange(n)[::-1].copy()) == n * (n - 1) // 2
    half = np.concatenate([np.arange(1, n, 2), np.arange(0, n, 2)])
    assert inversions(half) == sum(range(1, n // 2 + 1))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ld.Delayed(1.5, ld.Uniform(1)), "late=1.5: a share between 0 and 1"),
        (lambda: ld.Duplicates(-0.1, ld.Uniform(1)), "again=-0.1: a share"),
        (lambda: ld.Outage(1, at=2), "at=2: a share"),
        (lambda: ld.Outage("1 fortnight"), "not a unit"),
        (lambda: ld.GroupShuffle(0), "at least 1 event"),
        (lambda: ld.ClockSkew(drift=1), "drift=1"),
        (lambda: ld.Pareto(1, shape=0), "shape=0"),
        (lambda: ld.Uniform("1 s", low="2 s"), "above high"),
        (lambda: ld.Mix([]), "at least one model"),
        (lambda: ld.Mix([ld.Ordered()], weights=[1, 2]), "1 models with weights"),
        (lambda: ld.Mix([ld.Ordered()], weights=[0]), "not all of them 0"),
        (lambda: ld.Shift(ld.Ordered(), ld.Ordered(), over=-1), "over=-1"),
        (lambda: sent(ld.Stragglers("1 us")), "at least one ms"),
        (lambda: sent(ld.Outage("1 s", source=9)), "the stream has 4 sources"),
        (lambda: sent(ld.Outage("1 s"), stream=Stream(ts="ts", unit="ms")), "needs to know the senders"),
        (lambda: sent(ld.ClockSkew("1 s"), stream=Stream(ts="ts", unit="ms")), "needs to know the senders"),
        (lambda: ld.measure([1], quantiles=[2]), "between 0 and 1"),
        (lambda: sent(ld.Ordered(), stream=Stream(ts="ts")), "its unit is not known"),
    ],
)
def test_wrong_settings_are_explained(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sent(ld.Ordered(), stream=Stream(ts="time", unit="ms")), "no column 'time'"),
        (lambda: ld.inject(EVENTS, ld.Ordered(), STREAM, seed=1, arrival="id"), "already have a column 'id'"),
        (lambda: sent(ld.Ordered(), events=EVENTS.take(pa.array([1, 0]))), "not in order of 'ts'"),
        (lambda: ld.measure([1, None]), "1 nulls"),
        (lambda: ld.measure(["a"]), "string"),
        (lambda: ld.measure(np.array([0.5])), "float64"),
        (lambda: ld.measure([1, 2], source=["a"]), "source has 1 values and ts has 2"),
        (lambda: ld.measure([1, 2], arrival=[1]), "arrival has 1 values and ts has 2"),
    ],
)
def test_wrong_data_is_explained(make: Any, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        make()
