"""docs/kafka.md: its pipeline is one, and its tables name every key, reason and metric that there is, and no other."""

import re
import tomllib
from pathlib import Path

import pytest

from latecomer.connectors.kafka import config_parts as parts
from latecomer.connectors.kafka.config import Pipeline, loads
from latecomer.connectors.kafka.config_errors import PipelineError
from latecomer.connectors.kafka.config_values import Place
from latecomer.connectors.kafka.operation.metrics import PipelineMetrics

PAGE = (Path(__file__).parent.parent / "docs" / "kafka.md").read_text(encoding="utf-8")
SOURCES = Path(__file__).parent.parent / "latecomer" / "connectors" / "kafka"


def _section(title):
    return PAGE.split(f"\n{title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def _rows(text):
    """The code words in the first column of tables."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def _keys(model):
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_pipeline_is_one():
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert loads(text).name == tomllib.loads(text)["name"] == "theft"


def test_mistakes_look_as_the_page_shows():
    pipeline, shown = (re.search(rf"^```{kind}\n(.*?)\n```$", PAGE, re.M | re.S)[1] for kind in ("toml", "text"))
    with pytest.raises(PipelineError) as caught:
        loads(pipeline.replace('key = "tag"', 'key = "tga"').replace("10 minutes", "10 parsecs"), name="theft.toml")
    assert str(caught.value) == shown


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("### At the top", Pipeline),
        ("### `[stream]`", parts.StreamOptions),
        ("### `[output]`", parts.Output),
        ("### `[limits]`", parts.Limits),
        ("### `[operation]`", parts.Operation),
    ],
)
def test_tables_name_every_key(title, model):
    assert _rows(_section(title)) == _keys(model)


def test_the_tables_of_inputs_name_every_key():
    keys, places = _section("### `[[input]]`").split("A *place* is")
    assert _rows(keys) == _keys(parts.Input)
    assert _rows(places) == set(Place.KINDS)


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("### `[[query]]`", parts.QueryOptions),
        ("### `[state]`", parts.State),
        ("### `[repartition]`", parts.Repartition),
    ],
)
def test_texts_name_every_key(title, model):
    assert _keys(model) <= set(re.findall(r"`(\w+)`", _section(title)))


def test_defaults_are_told():
    text = (
        'name = "p"\n[kafka]\nbrokers = "b"\n[[input]]\ntopic = "i"\nformat = "json"\n[[query]]\nname = "q"\n'
        'text = "PATTERN SEQ(A a, B b) WITHIN 1 s CONSISTENCY conservative"\n'
        '[output]\nchanges = "c"\nlate = "l"\ndead_letters = "d"\n[state]\nuri = "s"\n'
    )
    pipeline = loads(text)
    limits, operation = pipeline.limits, pipeline.operation
    assert (limits.max_message, limits.batch, limits.max_in_flight) == (1_000_000, 10_000, 100_000)
    for told in ("1 MB", "10,000", "100,000"):
        assert told in _section("### `[limits]`")
    assert (operation.shutdown, operation.idle_check, operation.host) == (30, 0.2, "127.0.0.1")
    assert (pipeline.transaction, pipeline.state.interval) == (0.1, 1.0)
    assert parts.Repartition(topic="t").partitions == 8


def test_all_reasons_are_told():
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    used = set(re.findall(r'Unreadable\(\s*"(\w+)"', code)) | set(re.findall(r'told\(reason="(\w+)"', code))
    used |= set(re.findall(r'"(\w+)"', code.split("_ROLES = {")[1].split("}")[0])) - {
        "type",
        "ts",
        "id",
        "source",
        "of",
        "upper",
        "pmf",
    }
    told = _rows(_section("## Messages that are no events").split("| reason |")[1])
    assert used <= told
    assert told <= set(re.findall(r'"(\w+)"', code))


def test_all_metrics_are_told():
    families = {family.name: family.type for family in PipelineMetrics("p").describe()}
    named = {f"{name}_total" if kind == "counter" else name for name, kind in families.items()}
    assert _rows(_section("## Operation")) == named
