"""A served pipeline's file: every problem with its line; and the small parts that decide who may come in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latecomer.cli.app import app
from latecomer.connectors.kafka.config_errors import PipelineError
from latecomer.errors import ConfigError
from latecomer.serve.arrow import table_of
from latecomer.serve.config import HttpPipeline, KafkaPipeline, Serve, is_loopback, loads
from latecomer.serve.limits import CLIENTS, Rate

DOCS = Path(__file__).parent.parent / "docs"
BASE = """name = "p"
[columns]
k = "text"
[[query]]
name = "q"
level = "conservative"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 1 s"
[state]
uri = "state"
"""


def problems(text):
    with pytest.raises(PipelineError) as found:
        loads(text)
    return [(p.line, p.text) for p in found.value.problems]


def test_the_page_of_the_docs_shows_a_pipeline():
    [text] = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "serve.md").read_text(), re.MULTILINE | re.DOTALL)
    found = loads(text)
    assert isinstance(found, HttpPipeline) and found.queries[0].name == "theft" and found.serve == Serve()
    assert found.stream.id == "id" and found.schema.names == ["type", "ts", "id", "tag", "price"]


def test_the_table_of_the_docs_names_every_option():
    page = (DOCS / "serve.md").read_text()
    rows = re.findall(r"^\|(.*)$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.partition("|")[0])}
    assert set(Serve.model_fields) <= named


def test_a_pipeline_with_brokers_has_the_table_too():
    text = BASE + (
        '[kafka]\nbrokers = "127.0.0.1:9"\n[[input]]\ntopic = "t"\nformat = "json"\n'
        '[output]\nchanges = "c"\nlate = "l"\ndead_letters = "d"\n[serve]\nport = 9\n'
    )
    found = loads(text)
    assert isinstance(found, KafkaPipeline) and found.serve.port == 9
    assert problems(text.replace("port = 9", "prot = 9"))[0][1].startswith(
        "unknown key 'prot' in [serve] — did you mean port?"
    )


@pytest.mark.parametrize(
    ("more", "line", "told"),
    [
        ("[serve]\nport = 70_000", 11, "at most 65535 is allowed"),
        ("[serve]\nmax_body = 10", 11, "at least 1024 is needed"),
        ('[serve]\ntoken = "${LATECOMER_NO_SUCH_TOKEN}"', 11, "LATECOMER_NO_SUCH_TOKEN is not set"),
        ('[output]\nlate = "l"\nchanges = "c"\ndead_letters = "d"', 10, "no [kafka]: leave it out"),
        ('[[input]]\ntopic = "t"', 11, "a topic needs [kafka]"),
        ('[[input]]\nid = { header = "id" }', 11, "have fields, constants, a timestamp and a position"),
        ('[[input]]\npunctuation = { header = "p" }', 11, "have no headers"),
        ('[[input]]\nformat = "avro"', 11, "allowed are json"),
        ("[limits]\nmax_in_flight = 100_000", 11, "write inbox in [serve]"),
        ("[[input]]\n[[input]]", 10, "at most 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(more, line, told):
    found = problems(BASE + more)
    assert any(at == line and told in text for at, text in found), found


def test_state_is_a_folder():
    assert "needs a folder on a disk" in problems(BASE.replace('"state"', '"s3://bucket/x"'))[0][1]


def test_check_reads_what_serve_serves_and_run_names_it(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(BASE)
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.output
    assert "events that come by HTTP" in result.stdout and "State is kept" in result.stdout
    told = json.loads(CliRunner().invoke(app, ["check", str(file), "--json"]).stdout)
    assert told["pipeline"]["name"] == "p" and told["queries"][0]["name"] == "q" and told["cluster"] is None
    result = CliRunner().invoke(app, ["check", str(file), "--connect"])
    assert result.exit_code == 2 and "has no [kafka]: leave it out" in result.stderr
    for command in (["run"], ["advise"]):
        result = CliRunner().invoke(app, [*command, str(file)])
        assert result.exit_code == 2 and "has no [kafka], so there are no topics to read" in result.stderr
    file.write_text(file.read_text().replace("[k]", "[q]"))
    result = CliRunner().invoke(app, ["check", str(file)])
    assert result.exit_code == 2 and "no column 'q'" in result.stderr


def test_addresses_that_others_reach_need_a_token():
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert is_loopback(host) and Serve(host=host).checked() is None
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        assert not is_loopback(host)
    for host in ("0.0.0.0", "example.org"):
        with pytest.raises(ConfigError, match="so a token is needed"):
            Serve(host=host).checked()
        assert Serve(host=host).checked("x" * 16) == "x" * 16
    with pytest.raises(ConfigError, match="at least 16"):
        Serve().checked("short")


def test_a_rate_is_each_clients_own_and_its_memory_bounded():
    rate = Rate(2)
    assert [rate.wait("a", 0.0) for _ in range(5)] == [0, 0, 0, 0, 1]
    assert rate.wait("b", 0.0) == 0 and rate.wait("a", 0.6) == 0
    for n in range(CLIENTS + 10):
        rate.wait(f"c{n}", 1.0)
    assert len(rate._left) == CLIENTS


def test_arrow_of_strangers_never_does_harm():
    """Bytes of a good stream, changed at random: a table comes out, or ValueError."""
    import random

    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = pa.table(
        {"id": ["a", "b", None], "ts": [1, 2, 3], "n": [[1], None, [2, 3]], "s": [{"x": 1}, None, {"x": 2}]}
    )
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    good = bytearray(sink.getvalue().to_pybytes())
    rng, refused = random.Random(1), 0
    for _ in range(3_000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            table_of(bytes(bad)).to_pylist()
        except (ValueError, UnicodeDecodeError):
            refused += 1
    assert refused > 300
