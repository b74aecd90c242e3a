"""Streams whose times are intervals: what options mean, which are refused, and how rows are read."""

import math
from datetime import date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import latecomer as lc
from latecomer.consistency.clock import FAR
from latecomer.runtime.given import to_arrow
from latecomer.runtime.intake import MALFORMED, Intake
from latecomer.runtime.intervals.reading import HIDDEN, OWN, SHAPE, UPPER, WEIGHTS, unpacked
from latecomer.runtime.schema import fix_schema
from latecomer.uncertainty import Histogram, Normal, Triangular, Uniform, shape_of


def read(stream, rows):
    """What intake makes of rows: ``(lower, upper, shape, weights)`` each, or what is wrong with it."""
    given, details = to_arrow(rows, None)
    schema = fix_schema(stream, given.schema, [], by_row=isinstance(rows, list))
    batch = Intake(stream, ("A",), schema).read(given, details)
    weights = unpacked(batch.columns[WEIGHTS])
    return [
        batch.details[i]
        if batch.types[i] == MALFORMED
        else (
            int(batch.ts[i]),
            batch.columns[UPPER][i].as_py(),
            batch.columns[SHAPE][i].as_py(),
            None if weights[i] is None else weights[i].tolist(),
        )
        for i in range(len(batch))
    ]


def a(**fields):
    return {"type": "A", **fields}


PAIR = lc.Stream(lower="lo", upper="hi", longest=10, unit="ms", pmf="w", punctuation="P")


def test_both_ends_in_columns():
    assert read(PAIR, [a(lo=3, hi=5), a(lo=4, hi=4), a(lo=-13, hi=-3)]) == [
        (3, 5, 0, None),
        (4, 4, 0, None),
        (-13, -3, 0, None),
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (a(lo=5, hi=4), "lo=5 comes after hi=4"),
        (a(lo=5, hi=None), "hi is null"),
        (a(lo=None, hi=5), "lo is null"),
        (a(lo=0, hi=11), "lo to hi is 11 ms long, more than Stream(longest='10') allows"),
        (a(lo=3, hi=5, w=[1, 2]), "w has 2 weights for an interval of 3 ms"),
        (a(lo=3, hi=5, w=[]), "w has 0 weights for an interval of 3 ms"),
        (a(lo=3, hi=5, w=[1, -0.1, 1]), "w holds a weight that is negative or no number"),
        (a(lo=3, hi=5, w=[1, math.nan, 1]), "w holds a weight that is negative or no number"),
        (a(lo=3, hi=5, w=[1, math.inf, 1]), "w holds a weight that is negative or no number"),
        (a(lo=3, hi=5, w=[1, None, 1]), "w holds a weight that is negative or no number"),
        (a(lo=3, hi=5, w=[0, 0, 0]), "w holds no weight above 0"),
        (a(lo=FAR + 1, hi=FAR + 1), f"lo={FAR + 1} (int64) is beyond ±{FAR} ms"),
        (a(lo=3, hi="x"), "hi='x' is no whole number"),
        (a(lo=3, hi=5, w="xy"), "w='xy' is no list<item: double>"),
        ({"type": None, "lo": 5, "hi": 4}, "type is null"),
        ({"type": "P"}, "lo and hi are null"),
    ],
)
def test_a_row_without_a_sensible_interval_is_malformed_and_the_others_go_on(row, problem):
    sound = a(lo=1, hi=2, w=[1.0, 3.0])
    before, found, after = read(PAIR, [sound, row, sound])
    assert found == problem
    assert before == after == (1, 2, OWN, [1, 3])


def test_intervals_are_cut_to_their_weights():
    rows = [[0, 1, 2], [0, 2, 2], [0, 5, 0], [3, 3, 3], None, [1e308, 1e308, 1e308], [1, 0, 1]]
    assert read(PAIR, [a(lo=3, hi=5, w=w) for w in rows]) == [
        (4, 5, OWN, [1, 2]),
        (4, 5, 0, None),
        (4, 4, 0, None),
        (3, 5, 0, None),
        (3, 5, 0, None),
        (3, 5, 0, None),
        (3, 5, OWN, [1, 0, 1]),
    ]


weighted = st.lists(st.sampled_from([0, 0, 0.5, 1, 7]), max_size=6) | st.none()


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-2, 5), weighted), min_size=1), st.booleans())
def test_rows_are_read_as_one_by_one(rows, sliced):
    wanted = []
    for lower, length, weights in rows:
        if length < 0 or (weights is not None and (len(weights) != length + 1 or not any(weights))):
            wanted.append(None)
            continue
        weights = weights or [1] * (length + 1)
        some = [i for i, w in enumerate(weights) if w]
        wanted.append({lower + i: weights[i] / sum(weights) for i in range(some[0], some[-1] + 1)})
    table = {
        "type": ["A"] * len(rows),
        "lo": [r[0] for r in rows],
        "hi": [r[0] + r[1] for r in rows],
        "w": pa.array([r[2] for r in rows], pa.list_(pa.float64())),
    }
    batch = pa.RecordBatch.from_pydict(table)
    if sliced:
        wanted, batch = wanted[1:], batch.slice(1)
    for found, expected in zip(read(PAIR, batch), wanted, strict=True):
        if expected is None:
            assert isinstance(found, str)
            continue
        lower, upper, shape, weights = found
        assert (lower, upper) == (min(expected), max(expected))
        even = len(set(expected.values())) == 1
        assert (shape == 0) == even == (weights is None)
        if not even:
            assert [w / sum(weights) for w in weights] == pytest.approx(list(expected.values()))


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 2)])
def test_weights_in_any_list_of_numbers(kind):
    batch = pa.RecordBatch.from_pydict({"type": ["A"], "lo": [1], "hi": [2], "w": pa.array([[1, 3]], kind)})
    assert read(PAIR, batch) == [(1, 2, OWN, [1, 3])]


def test_a_promise_speaks_of_either_end():
    rows = [
        {"type": "P", "lo": 3},
        {"type": "P", "hi": 11},
        {"type": "P", "lo": 3, "hi": 11},
        {"type": "P", "lo": 3, "hi": 14},
    ]
    assert [found[0] for found in read(PAIR, rows)] == [3, 1, 3, 4]


SENSORS = lc.Stream(
    source="device", unit="ms", uncertainty={"old": "5 ms", None: 1}, distribution={"old": "normal"}, punctuation="P"
)


def test_uncertainty_by_source():
    rows = [a(ts=3, device="old"), a(ts=3, device="new"), a(ts=3, device=None)]
    assert read(SENSORS, rows) == [(-2, 8, 1, None), (2, 4, 0, None), (2, 4, 0, None)]
    some = lc.Stream(source="device", unit="s", uncertainty={"old": "1500 ms"})
    assert read(some, rows)[:2] == [(1, 5, 0, None), (3, 3, 0, None)]  # whole units that hold it all


def test_promises_about_time_stamps_become_promises_about_lower_ends():
    rows = [{"type": "P", "ts": 3, "device": d} for d in ("old", "new", None)]
    assert [found[0] for found in read(SENSORS, rows)] == [-2, 2, -2]
    intake = Intake(
        SENSORS,
        ("A",),
        fix_schema(SENSORS, pa.schema(dict.fromkeys(["type", "device"], pa.string()) | {"ts": pa.int64()}), [], False),
    )
    assert [intake.reader.promised(3, d) for d in ("old", "new", None)] == [-2, 2, -2]


@pytest.mark.parametrize(
    ("options", "lower", "upper"),
    [
        ({"uncertainty": "2 s"}, 58, 62),
        ({"granularity": "1 min"}, 60, 119),
        ({"granularity": "1 min", "rounding": "up"}, 1, 60),
        ({"granularity": "1 min", "rounding": "nearest"}, 30, 89),
        ({"granularity": 5, "rounding": "nearest"}, 58, 62),
        ({"granularity": "1 min", "uncertainty": "2 s"}, 58, 121),
        ({"granularity": "1 s"}, 60, 60),
    ],
)
def test_rounded_times(options, lower, upper):
    stream = lc.Stream(unit="s", **options)
    assert read(stream, [a(ts=60)]) == [(lower, upper, 0, None)]
    assert stream.intervals("s").longest == upper - lower


@pytest.mark.parametrize("seconds", range(-90, 90, 7))
@pytest.mark.parametrize("rounding", ["down", "nearest", "up"])
@pytest.mark.parametrize("size", [4, 5, 60])
def test_the_true_time_lies_in_the_interval_and_no_other_interval(seconds, rounding, size):
    rounded = {
        "down": math.floor(seconds / size),
        "nearest": math.floor(seconds / size + 0.5),
        "up": math.ceil(seconds / size),
    }[rounding]
    stream = lc.Stream(unit="s", granularity=size, rounding=rounding)
    own, other, another = read(stream, [a(ts=(rounded + i) * size) for i in (0, 1, -1)])
    assert own[0] <= seconds <= own[1]
    assert not other[0] <= seconds <= other[1]
    assert not another[0] <= seconds <= another[1]


def test_dates_without_times():
    rows = [a(ts=date(1970, 1, 2))]
    assert read(lc.Stream(granularity="1 day", unit="h"), rows) == [(24, 47, 0, None)]
    assert read(lc.Stream(granularity="1 day"), rows) == [(86_400, 172_799, 0, None)]
    batch = pa.RecordBatch.from_pydict({"type": ["A"], "ts": pa.array([1], pa.date32())})
    assert read(lc.Stream(granularity="1 day", unit="h"), batch) == [(24, 47, 0, None)]


def test_both_ends_as_moments_of_different_precision():
    stream = lc.Stream(lower="lo", upper="hi", longest="1 min", unit="s")
    batch = pa.RecordBatch.from_pydict(
        {
            "type": ["A"],
            "lo": pa.array([datetime(1970, 1, 1, 0, 0, 5)], pa.timestamp("s")),
            "hi": pa.array([datetime(1970, 1, 1, 0, 0, 7, 900_000)], pa.timestamp("us")),
        }
    )
    assert read(stream, batch) == [(5, 7, 0, None)]


def test_ends_of_different_kinds_are_refused():
    batch = pa.schema({"type": pa.string(), "lo": pa.int64(), "hi": pa.timestamp("s"), "w": pa.null()})
    with pytest.raises(lc.SchemaError, match=r"column 'lo' holds int64 and 'hi' timestamp\[s\]: both ends"):
        fix_schema(PAIR, batch, [], False)


@pytest.mark.parametrize("lacking", ["lo", "hi", "w"])
def test_a_missing_column_is_named_by_its_purpose(lacking):
    columns = {"type": pa.string(), "lo": pa.int64(), "hi": pa.int64(), "w": pa.list_(pa.float64())}
    del columns[lacking]
    purpose = {"lo": "lower", "hi": "upper", "w": "pmf"}[lacking]
    with pytest.raises(lc.SchemaError, match=rf"no column '{lacking}', which Stream\({purpose}='{lacking}'\) names"):
        fix_schema(PAIR, pa.schema(columns), [], False)


def test_weights_that_are_no_lists_are_refused():
    columns = {"type": pa.string(), "lo": pa.int64(), "hi": pa.int64(), "w": pa.float64()}
    with pytest.raises(lc.SchemaError, match="column 'w' holds double: weights are lists of numbers"):
        fix_schema(PAIR, pa.schema(columns), [], False)


def test_sources_that_cannot_be_in_the_column_are_refused():
    stream = lc.Stream(source="device", unit="s", uncertainty={"old": 5})
    with pytest.raises(lc.ConfigError, match="names the sources 'old', but 'device' holds int64"):
        read(stream, [a(ts=1, device=7)])
    assert read(lc.Stream(source="device", unit="s", uncertainty={7: 5}), [a(ts=1, device=7)]) == [(-4, 6, 0, None)]


def test_exact_streams_have_no_hidden_columns():
    batch, details = to_arrow([a(ts=1)], None)
    intake = Intake(lc.Stream(unit="s"), ("A",), fix_schema(lc.Stream(unit="s"), batch.schema, [], True))
    assert intake.hidden == {}
    assert not set(HIDDEN) & set(intake.read(batch, details).columns)


# --- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "units", "weights"),
    [
        ("uniform", 4, [0.25] * 4),
        ("triangular", 1, [1]),
        ("triangular", 2, [0.5, 0.5]),
        ("triangular", 4, [0.125, 0.375, 0.375, 0.125]),
        ("triangular(0)", 2, [0.75, 0.25]),
        ("triangular(1)", 2, [0.25, 0.75]),
        ("Triangular( 0.25 )", 4, [0.25, 5 / 12, 0.25, 1 / 12]),
        ([1, 3], 2, [0.25, 0.75]),
        ([1, 3], 4, [0.125, 0.125, 0.375, 0.375]),
        ([1, 0, 3], 3, [0.25, 0, 0.75]),
        ([1, 3], 1, [1]),
        ([1, 3], 3, [1 / 6, 1 / 3, 1 / 2]),
    ],
)
def test_what_distributions_mean(given, units, weights):
    assert shape_of(given).weights(units).tolist() == pytest.approx(weights, abs=1e-15)


def test_weights_of_a_histogram_may_be_of_any_size():
    assert shape_of([1e308, 1e308]).weights(2).tolist() == [0.5, 0.5]
    assert shape_of([5e-324, 1.5e-323]).weights(2).tolist() == [0.25, 0.75]


def test_a_normal_distribution_is_cut():
    within = math.erf(3 / math.sqrt(2))
    weights = shape_of("normal").weights(6)
    assert weights[3] == pytest.approx(math.erf(1 / math.sqrt(2)) / 2 / within)
    assert weights.tolist() == pytest.approx(weights[::-1].tolist())
    assert shape_of("normal(1)").weights(2).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    "shape", [Uniform(), Triangular(), Triangular(0.0), Triangular(0.9), Normal(), Normal(8), Histogram((1, 0, 2))]
)
@pytest.mark.parametrize("units", [1, 2, 3, 10, 997])
def test_weights_sum_to_one_and_reach_both_ends(shape, units):
    weights = shape.weights(units)
    assert len(weights) == units
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    assert weights[0] > 0
    assert weights[-1] > 0
    ends = shape.cumulative(np.array([0.0, 1.0]))
    assert ends.tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize(
    "given",
    [
        [np.int64(1), np.int32(3), np.float32(2)],
        (np.uint8(1), 3, 2.0),
        np.array([1, 3, 2]),
        np.array([1.0, 3.0, 2.0], np.float32),
    ],
)
def test_weights_may_be_numbers_of_numpy(given):
    stream = lc.Stream(unit="s", uncertainty=1, distribution=given)
    assert stream == lc.Stream(unit="s", uncertainty=1, distribution=[1, 3, 2])
    by_source = lc.Stream(unit="s", source="device", uncertainty=1, distribution={"a": given, None: "normal"})
    assert by_source == lc.Stream(
        unit="s", source="device", uncertainty=1, distribution={"a": [1, 3, 2], None: "normal"}
    )
    assert shape_of([np.int64(1), np.int64(3)]) == Histogram((1.0, 3.0))  # two numbers are no pair of a source


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lower": "lo"}, "lower= needs upper="),
        ({"upper": "hi", "longest": 5}, "upper= needs lower="),
        ({"lower": "lo", "upper": "hi"}, r"Stream\(lower=…, upper=…\) needs longest="),
        ({"lower": "lo", "upper": "hi", "longest": 5, "ts": "at"}, "so ts= cannot"),
        ({"lower": "lo", "upper": "hi", "longest": 5, "granularity": 5}, "so granularity cannot"),
        ({"lower": "lo", "upper": "hi", "longest": 5, "uncertainty": 5}, "so uncertainty cannot"),
        ({"lower": "lo", "upper": "hi", "longest": -5}, "-5 is negative"),
        ({"lower": "lo", "upper": "lo", "longest": 5}, "one column has two purposes: type, lower, upper, id"),
        ({"lower": "lo", "upper": "type", "longest": 5}, "one column has two purposes"),
        ({"lower": 5, "upper": "hi", "longest": 5}, r"Stream\(lower=5\): a name is needed"),
        ({"longest": 5}, "longest= goes with lower= and upper="),
        ({"pmf": "w"}, "pmf= needs intervals"),
        ({"distribution": "normal"}, "distribution= needs intervals"),
        ({"rounding": "up"}, "rounding='up' needs granularity="),
        ({"granularity": 5, "rounding": "sideways"}, "rounding='sideways': allowed are 'down', 'nearest' or 'up'"),
        ({"uncertainty": {"a": 5}}, "names sources: their column is needed"),
        ({"uncertainty": {}, "source": "s"}, "names no source"),
        ({"uncertainty": {"a": "5 parsecs"}, "source": "s"}, "'parsecs' is not a unit of time"),
        ({"uncertainty": -1}, "-1 is negative"),
        ({"uncertainty": 1, "distribution": "gamma"}, "distribution='gamma': allowed are 'uniform'"),
        ({"uncertainty": 1, "distribution": "uniform(2)"}, "allowed are 'uniform'"),
        ({"uncertainty": 1, "distribution": "normal(0)"}, "more than 0 and at most 8"),
        ({"uncertainty": 1, "distribution": "normal(9)"}, "more than 0 and at most 8"),
        ({"uncertainty": 1, "distribution": "normal(1.2.3)"}, "1.2.3 is no number"),
        ({"uncertainty": 1, "distribution": "triangular(2)"}, "the peak lies between 0"),
        ({"uncertainty": 1, "distribution": []}, "a histogram is a list of weights"),
        ({"uncertainty": 1, "distribution": [1, -1, 1]}, "a histogram is a list of weights"),
        ({"uncertainty": 1, "distribution": [1, "x"]}, "a histogram is a list of weights"),
        ({"uncertainty": 1, "distribution": np.array([[1, 2], [3, 4]])}, "a histogram is one list of weights"),
        ({"uncertainty": 1, "distribution": [np.bool_(True), 1]}, "a histogram is a list of weights"),
        ({"uncertainty": 1, "distribution": [0, 1]}, "leave the zeros at its ends off"),
        ({"uncertainty": 1, "distribution": 5}, "allowed are 'uniform'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(lc.ConfigError, match=message):
        lc.Stream(**options)


@pytest.mark.parametrize("granularity", ["1 ms", "1500 ms", 0, 0.5])
def test_a_granularity_of_no_whole_units_is_refused(granularity):
    with pytest.raises(lc.ConfigError, match="whole units of the stream are needed"):
        lc.Stream(granularity=granularity, unit="s").intervals("s")


@pytest.mark.parametrize(
    "options",
    [
        {"lower": "lo", "upper": "hi", "longest": "5 min", "pmf": "w", "distribution": [1, 2.5]},
        {
            "source": "s",
            "uncertainty": {"a": timedelta(seconds=5), None: "1 s"},
            "distribution": {"a": [1, 2], None: "NORMAL"},
        },
        {"granularity": "1 min", "rounding": "up", "distribution": "triangular(0.2)"},
        {"uncertainty": 0.5},
    ],
)
def test_a_stream_is_what_its_plain_options_say(options):
    stream = lc.Stream(unit="ms", **options)
    again = lc.Stream(**{name: getattr(stream, name) for name in stream.__dataclass_fields__})
    assert again == stream
    assert str(again.intervals("ms")) == str(stream.intervals("ms"))
    assert stream.uncertain
    assert not lc.Stream(unit="ms").uncertain
