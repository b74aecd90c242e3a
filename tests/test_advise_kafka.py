"""Advice on what is in Kafka: the newest messages of a pipeline's topics, as the pipeline would read them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from latecomer.advise import levels
from latecomer.cli import app
from latecomer.disorder import measure

PIPELINE = """
name = "theft"
[kafka]
brokers = "{brokers}"
[columns]
tag = "text"
[[input]]
topic = ["{topic}", "{other}"]
format = "json"
type = "kind"
time = "at"
id = "id"
punctuation = {{ type = "PUNCT" }}
[[query]]
name = "theft"
level = "kslack(777 ms)"
text = "PATTERN SEQ(Shelf s, !Counter c, Exit e) WHERE [tag] WITHIN 2 s"
[output]
changes = "theft-changes"
late = "theft-late"
dead_letters = "theft-dead"
[state]
uri = "{state}"
"""


@pytest.fixture(scope="module")
def sent(kafka, tmp_path_factory):
    """Two topics; event times in order of arrival; broken messages and punctuation among them."""
    folder = tmp_path_factory.mktemp("pipeline")
    topics = [kafka.topic(partitions=2), kafka.topic()]
    text = PIPELINE.format(brokers=kafka.bootstrap, topic=topics[0], other=topics[1], state=folder / "state")
    (folder / "pipeline.toml").write_text(text)
    rng = np.random.default_rng(1)
    producer, ts = Producer({"bootstrap.servers": kafka.bootstrap}), []
    for number in range(2_000):
        at = 1_000_000 + 10 * number
        stamp = at - int(rng.integers(0, 900) * (rng.random() < 0.2))
        event = {
            "id": f"e{number}",
            "kind": ["Shelf", "Counter", "Exit"][number % 3],
            "at": stamp,
            "tag": f"t{number // 3 % 40}",
        }
        producer.produce(topics[0], json.dumps(event), partition=number % 2, timestamp=at)
        ts.append(stamp)
        if number % 100 == 0:
            producer.produce(topics[0], b"{", partition=0, timestamp=at)
            producer.produce(topics[0], json.dumps({"id": "p", "kind": "PUNCT", "at": 5}), partition=1, timestamp=at)
    event = {"id": "other", "kind": "Exit", "at": 1_000_000, "tag": "t1"}
    producer.produce(topics[1], json.dumps(event), timestamp=1_020_000)
    assert producer.flush(30) == 0
    return folder / "pipeline.toml", topics, ts


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few and coarse batches."""
    monkeypatch.setattr(levels, "BATCHES", 60)
    monkeypatch.setattr(levels, "FINE", 0.1)


def told(*arguments):
    done = CliRunner().invoke(app, ["advise", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_messages_of_one_topic_are_measured_in_order_of_their_timestamps(sent, tmp_path):
    path, topics, ts = sent
    found = told(path, "--kafka", topics[0], "-o", tmp_path / "page.html")
    assert found["lateness"]["all"]["quantiles"] == {str(q): v for q, v in measure(ts).quantiles.items()}
    assert found["sample"]["rejected"] == 20 and found["sample"]["events"] == 2_000 and found["sample"]["sources"] == 2
    [query] = found["queries"]
    assert query["name"] == "theft" and query["matches"] > 10
    assert [level["clause"] for level in query["levels"] if level["own"]] == ["CONSISTENCY kslack(777 ms)"]
    assert set(found["lateness"]["sources"]) == {f"{topics[0]}-0", f"{topics[0]}-1"}


def test_all_topics_the_newest_messages_and_other_queries(sent, tmp_path):
    path, topics, _ = sent
    every = told(path, "-o", tmp_path / "page.html", "-q", "PATTERN SEQ(Shelf s, Exit e) WHERE [tag] WITHIN 50 ms")
    assert every["sample"]["events"] == 2_001 and every["lateness"]["all"]["quantiles"]["1.0"] >= 19_000
    assert [query["name"] for query in every["queries"]] == ["query"]
    newest = told(path, "--kafka", topics[0], "--rows", "1000", "-o", tmp_path / "page.html")
    assert 900 <= newest["sample"]["events"] <= 1_000
    assert newest["lateness"]["arrival_span"] < 11_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kafka", "elsewhere"), "does not read the topic 'elsewhere'"),
        (("--source", "tag"), "--source is for queries"),
    ],
)
def test_mistakes_are_told(sent, arguments, message):
    done = CliRunner().invoke(app, ["advise", str(sent[0]), *arguments])
    assert done.exit_code == 2 and message in done.output
