"""Commands over uncertain times: their options, and what they say of waiting, state, and confidences."""

import json
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import latecomer as lc
from latecomer.cli.app import app
from latecomer.cli.columns import StreamOptions
from latecomer.cli.intervals import Reach
from latecomer.cli.report import facts

PAIR = "PATTERN SEQ(A a, B b) WITHIN 10 s RETURN confidence() CONSISTENCY kslack(5 s)"
ROWS = [("a", "A", 10, "x"), ("b", "B", 11, "y"), ("z", "Z", 60, "x")]


def call(*args):
    return CliRunner().invoke(app, list(map(str, args)))


@pytest.fixture
def table(tmp_path):
    """A file of events with time stamps, and with ends."""
    path = tmp_path / "events.csv"
    lines = [f"{i},{t},{ts},{ts - 1},{ts + 1},{s}" for i, t, ts, s in ROWS]
    path.write_text("\n".join(["id,type,ts,from,to,device", *lines]))
    return path


def found(table, tmp_path, *options, query=PAIR):
    out = tmp_path / "out.jsonl"
    result = call("run", "-q", query, "-i", table, "-o", out, "--id", "id", "--unit", "s", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["confidence"] for line in out.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "chance"),
    [
        (("--uncertainty", "1 s"), 6 / 9),
        (("--lower", "from", "--upper", "to", "--longest", "2 s"), 6 / 9),
        (("--source", "device", "--uncertainty", "y=1 s"), 2 / 3),
        (("--source", "device", "--uncertainty", "y=1 s", "--uncertainty", "0 s"), 2 / 3),
        (("--granularity", "3 s"), 6 / 9),
        (("--granularity", "3 s", "--rounding", "nearest"), 6 / 9),
        (("--uncertainty", "1 s", "--distribution", "1,2,1"), 11 / 16),
        (("--uncertainty", "1 s", "--distribution", "triangular", "--source", "device"), None),
    ],
)
def test_run_reads_uncertain_times(options, chance, table, tmp_path):
    got = found(table, tmp_path, *options)
    assert len(got) == 1
    assert got[0] == pytest.approx(chance) if chance is not None else 6 / 9 < got[0] < 1


@pytest.mark.parametrize(
    ("strategy", "options"), [("skip-till-any-match", ("--uncertainty", "1 s")), ("skip-till-next-match", ())]
)
def test_check_refuses_what_run_refuses(strategy, options):
    query = f"PATTERN SEQ(A a, !B b, C c) WITHIN 10 s STRATEGY {strategy} CONSISTENCY "
    level = "aggressive(max_delay = 1 min, {})".format
    refused = call("check", query + level("retractions = 0.1"), "--unit", "s", *options)
    assert refused.exit_code == 2
    assert "an answer may be corrected many times: use patience=" in " ".join(refused.output.split())
    assert call("check", query + level("patience = 2 s"), "--unit", "s", *options).exit_code == 0


def test_check_refuses_what_uncertain_times_cannot_say_without_a_schema():
    query = "PATTERN SEQ(A a, B b) WITHIN 10 s RETURN a.ts AS began CONSISTENCY kslack(5 s)"
    assert call("check", query, "--unit", "s").exit_code == 0
    refused = call("check", query, "--unit", "s", "--uncertainty", "1 s")
    assert refused.exit_code == 2 and "it has no single value in RETURN" in refused.output


def test_sources_that_are_numbers_are_named_as_text(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("id,type,ts,device\na,A,5,7\nb,B,6,8\n")
    options = ("--source", "device", "--uncertainty", "7=1 s")
    assert found(path, tmp_path, *options, "--column", "device=text") == [pytest.approx(2 / 3)]
    refused = call("run", "-q", PAIR, "-i", path, "-o", tmp_path / "no.csv", "--unit", "s", "--id", "id", *options)
    assert refused.exit_code and "name them by values of its type" in " ".join(refused.output.split())


def test_run_reads_weights(tmp_path):
    rows = {"id": ["a", "b"], "type": ["A", "B"], "lo": [1, 1], "hi": [2, 4], "w": [[1, 2], [1, 2, 4, 9]]}
    pq.write_table(pa.table(rows), tmp_path / "events.parquet")
    options = ("--lower", "lo", "--upper", "hi", "--longest", "5 s", "--pmf", "w")
    assert found(tmp_path / "events.parquet", tmp_path, *options) == [pytest.approx(41 / 48)]
    lines = [json.dumps({name: values[at] for name, values in rows.items()}) for at in range(2)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert found(tmp_path / "events.jsonl", tmp_path, *options) == [pytest.approx(41 / 48)]
    (tmp_path / "events.csv").write_text('id,type,lo,hi,w\na,A,1,2,"[1,2]"\nb,B,1,4,"[1,2,4,9]"\n')
    assert found(tmp_path / "events.csv", tmp_path, *options) == [pytest.approx(41 / 48)]
    result = call("run", "-q", PAIR, "-i", tmp_path / "events.parquet", "-o", tmp_path / "o.csv", *options[:-1], "v")
    assert result.exit_code == 3
    assert "has no column 'v'" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--lower", "from"), "lower= needs upper="),
        (("--uncertainty", "1 s", "--uncertainty", "2 s"), "--uncertainty is given twice for all sources that are not"),
        (("--uncertainty", "x=1 s", "--uncertainty", "x=2 s"), "--uncertainty is given twice for source 'x'"),
        (("--uncertainty", "x=1 s"), "names sources: their column is needed"),
        (("--uncertainty", "1 s", "--distribution", "1,b"), "weights are numbers, like 1,3,1"),
        (("--rounding", "up"), "rounding='up' needs granularity="),
    ],
)
def test_options_that_make_no_sense(options, message, table, tmp_path):
    result = call("run", "-q", PAIR, "-i", table, "-o", tmp_path / "o.csv", "--unit", "s", *options)
    assert result.exit_code == 2
    assert message in result.output


def test_an_exact_stream_says_that_a_threshold_keeps_everything(table, tmp_path):
    query = PAIR.replace("RETURN confidence()", "CONFIDENCE >= 80%")
    common = ("run", "-q", query, "-i", table, "-o", tmp_path / "o.csv", "--unit", "s")
    assert "times are exact here, so CONFIDENCE >= 0.8 keeps every match" in call(*common).output
    assert "times are exact" not in call(*common, "--uncertainty", "1 s").output
    assert "as long as the stream's times are exact" in " ".join(call("check", query).output.split())


def test_advise_reads_uncertain_times(table, tmp_path):
    result = call(
        "advise", table, "-q", PAIR, "--unit", "s", "--uncertainty", "1 s", "-o", tmp_path / "a.html", "--json"
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.html").exists()


def test_a_pipeline_says_itself_what_is_uncertain(tmp_path):
    (tmp_path / "p.toml").write_text("")
    for command in ("check", "run", "advise"):
        result = call(command, tmp_path / "p.toml", "--uncertainty", "1 s")
        assert result.exit_code == 2
        assert "--uncertainty is for queries on the command line" in result.output


def test_matches_without_a_confidence_are_told(tmp_path):
    day = 86_400 * 10**9
    rows = {"id": ["a", "b"], "type": ["A", "B"], "lo": [0, day // 4], "hi": [day, day + day // 4]}
    pq.write_table(pa.table(rows), tmp_path / "events.parquet")
    query = "PATTERN SEQ(A a, B b) WITHIN 2 d CONFIDENCE >= 60% CONSISTENCY aggressive(1 d)"
    options = ("--lower", "lo", "--upper", "hi", "--longest", "1 d", "--distribution", "triangular", "--unit", "ns")
    result = call(
        "run", "-q", query, "-i", tmp_path / "events.parquet", "-o", tmp_path / "o.csv", "--explain", *options
    )
    text = " ".join(result.output.split())
    assert text.count("1 match came without a confidence, whatever the threshold") == 2  # in the summary, and explained
    assert "CONFIDENCE >= 0.6 SAMPLED 0.01" in text
    told = call("check", query, *options)
    assert "unknown where computing it would cost too much" in " ".join(told.output.split())


# --- waiting and state ------------------------------------------------------------------------------------------------

LEVELS = [lc.KSlack(5), lc.Aggressive(5), lc.Aggressive(2, patience=9), lc.KSlack(recall=0.9, max=6)]
PATTERNS = ["A a, !B n, C c", "A a, C c", "!B n, A a, C c, !D m", "A a, !B n"]
STRATEGIES = ["skip-till-any-match", "skip-till-next-match"]


@pytest.mark.parametrize(("level", "pattern", "strategy", "reach"), list(product(LEVELS, PATTERNS, STRATEGIES, [0, 2])))
def test_check_says_how_long_state_is_kept(level, pattern, strategy, reach):
    """As long as the runtime keeps it."""
    query = lc.Query(f"PATTERN SEQ({pattern}) WITHIN 10 STRATEGY {strategy}", name="q", level=level)
    stream = lc.Stream(unit="s", uncertainty=reach or None)
    runtime = lc.Runtime(stream, query)
    runtime.process([{"type": "A", "ts": 1}])
    told = facts(query.plan, "s", Reach.of(stream, "s"))
    assert told["retention"]["units"] == runtime.explain()["queries"]["q"]["retention"]
    wide = lc.Stream(uncertainty=None if not reach else "2 s")
    assert facts(query.plan, None, Reach.of(wide, None))["retention"]["units"] is None


@pytest.mark.parametrize(
    ("pattern", "level", "last"),
    [
        ("A a, !B n, C c", lc.KSlack(5), 12 + 2 + 5 + 4),  # latest(c) + k + the longest interval
        ("A a, C c", lc.KSlack(5), 12 + 2 + 5 + 4),
        ("A a, !B n", lc.KSlack(5), 10 + 2 + 10 + 5 + 4 + 1),  # past latest(a) + the window + k + the longest interval
        ("A a, !B n", lc.Aggressive(5), 10 + 2 + 10 + 1),
        ("A a, !B n, C c", lc.Aggressive(5, patience=3), 12 - 2 + 3),  # earliest(c) + patience
    ],
)
def test_check_says_when_a_match_leaves(pattern, level, last):
    query = lc.Query(f"PATTERN SEQ({pattern}) WITHIN 10", name="q", level=level)
    stream = lc.Stream(unit="s", uncertainty=2)
    runtime = lc.Runtime(stream, query)
    left = runtime.process([{"type": "A", "ts": 10}, {"type": "C", "ts": 12}]).changes.num_rows
    for clock in range(11, last):
        left += runtime.process([{"type": "Z", "ts": clock + 2}]).changes.num_rows
        assert left == 0, clock
    assert runtime.process([{"type": "Z", "ts": last + 2}]).changes.num_rows == 1
    waits = facts(query.plan, "s", Reach.of(stream, "s"))["waits"]
    assert waits == [
        {
            23: "until the clock reaches latest(c) + 5 + 4 s (the longest interval)",
            32: "until the clock is past latest(a) + 10 + 5 + 4 s (the longest interval)",
            23
            if isinstance(level, lc.Aggressive) and "C" not in pattern
            else -1: "until the clock is past latest(a) + 10",
            13: "until the clock reaches earliest(c) + 3",
        }[last]
    ]


def test_check_says_what_skip_till_next_match_waits_for():
    text = "PATTERN SEQ(A a, B b, C c) WITHIN 10 s STRATEGY skip-till-next-match"
    plan = lc.Query(text, level=lc.Conservative()).plan
    assert facts(plan, "s")["waits"] == [
        "until punctuation of B covers all times before b.ts",
        "until punctuation of C covers all times before c.ts",
    ]
    assert facts(plan, "s", Reach(4))["waits"] == [
        "until punctuation of B covers all times before latest(b), counted by lower ends",
        "until punctuation of C covers all times before latest(c), counted by lower ends",
    ]


def test_every_option_of_a_stream_is_one_of_the_command():
    options = StreamOptions(uncertainty=["1 s"], granularity="3 s", rounding="up", distribution=["normal(2)"])
    stream = options.stream()
    assert (str(stream.uncertainty), str(stream.granularity), stream.rounding) == ("1 s", "3 s", "up")
    assert options.given.keys() == {"uncertainty", "granularity", "rounding", "distribution"}
