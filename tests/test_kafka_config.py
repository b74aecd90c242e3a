"""The file of a Kafka pipeline: what it means, what is wrong and on which line, and that secrets stay secret."""

import json
import logging
import tomllib
import traceback

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import latecomer as lc
from latecomer.cli.app import app
from latecomer.connectors.kafka.advice import partitioning
from latecomer.connectors.kafka.clients import consumer_properties
from latecomer.connectors.kafka.config import load, loads
from latecomer.connectors.kafka.config_errors import PipelineError
from latecomer.connectors.kafka.config_lines import read
from latecomer.connectors.kafka.config_values import Place, Setting
from latecomer.connectors.kafka.operation.logs import logging_to
from latecomer.errors import ConfigError

WHOLE = '''\
name = "theft"
guarantee = "at-least-once"
transaction = "20 ms"
instance = "one"
memory = "64 MiB"

[kafka]
brokers = ["127.0.0.1:9092", "127.0.0.1:9093"]
security.protocol = "SASL_PLAINTEXT"
"sasl.mechanism" = "PLAIN"
sasl.username = "me"
sasl.password = "${THEFT_PASSWORD}"

[kafka.consumer]
group.id = "thieves"
"session.timeout.ms" = 6000

[kafka.producer]
"linger.ms" = 5

[schema_registry]
url = "http://127.0.0.1:8081"
basic.auth.user.info = { file = "registry.secret" }

[stream]
unit = "ms"
idle_timeout = "30 s"
promises = [
    { generator = "BoundedDelay", delays = { Exit = "5 min" } },
    { generator = "SourcesInOrder" },
]

[columns]
tag = "text"
price = "float"
till = "text"
since = "time"

[[input]]
topic = ["shelf", "exit"]
format = "json"
type = "kind"
time = { field = "at", unit = "s" }
id = { header = "event-id" }
source = { record = "partition" }
key = "tag"
fields = { price = "detail.price", since = { field = "detail.since", unit = "iso" } }
types = ["Shelf", "Exit"]

[[input]]
topic = "counter"
format = "csv"
csv = { columns = ["tag", "till", "ts", "kind", "of"], delimiter = ";" }
type = { constant = "Counter" }
key = ["tag"]
punctuation = { type = "PUNCT" }

[[query]]
name = "theft"
level = "aggressive(max_delay = 5 minutes)"
text = """
PATTERN SEQ(Shelf s, !Counter c, Exit e)
WHERE   [tag] AND e.price > 100 AND c.till <> 'training'
WITHIN  10 minutes
RETURN  s.tag AS tag
"""

[[query]]
name = "again"
file = "again.query"

[output]
changes = { topic = "theft-log", format = "msgpack" }
matches = "theft-now"
late = { topic = "theft-late", format = "avro" }
dead_letters = "theft-dead"

[state]
uri = "file:///var/lib/${THEFT_FOLDER}"
interval = "2 s"

[limits]
max_message = "100 kB"
batch = 500

[operation]
port = 9464
log = "text"
shutdown = "5 s"
'''
AGAIN = "PATTERN SEQ(Shelf a, Shelf b)\nWHERE [tag]\nWITHIN 1 h\nCONSISTENCY conservative\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THEFT_PASSWORD", "correct horse")
    monkeypatch.setenv("THEFT_FOLDER", "battery")
    (tmp_path / "again.query").write_text(AGAIN)
    (tmp_path / "registry.secret").write_text("user:staple\n")
    return tmp_path


SMALL = """\
name = "pair"
[kafka]
brokers = "127.0.0.1:9092"
[columns]
tag = "text"
price = "float"
[[input]]
topic = "in"
format = "json"
key = "tag"
[[query]]
name = "pair"
level = "kslack(1 s)"
text = "PATTERN SEQ(A a, B b) WHERE [tag] WITHIN 5 s"
[output]
changes = "log"
late = "late"
dead_letters = "dead"
[state]
uri = "/nowhere"
"""


def test_a_whole_file(folder):
    (folder / "theft.toml").write_text(WHOLE)
    pipeline = load(folder / "theft.toml")
    assert (pipeline.name, pipeline.instance, pipeline.guarantee) == ("theft", "one", "at-least-once")
    assert (pipeline.transaction, pipeline.memory) == (0.02, 64 << 20)
    assert pipeline.topics == ("shelf", "exit", "counter")
    assert pipeline.schema == pa.schema(
        [
            ("type", pa.string()), ("ts", pa.int64()), ("id", pa.string()), ("source", pa.string()),
            ("of", pa.string()), ("tag", pa.string()), ("price", pa.float64()), ("till", pa.string()),
            ("since", pa.timestamp("us", "UTC")),
        ]
    )  # fmt: skip
    stream = pipeline.stream
    assert (stream.type, stream.ts, stream.id, stream.source, stream.unit) == ("type", "ts", "id", "source", "ms")
    assert (stream.punctuation, stream.of) == ("PUNCT", "of")
    assert [type(p).__name__ for p in stream.promises] == ["BoundedDelay", "SourcesInOrder"]
    assert [q.name for q in pipeline.queries] == ["theft", "again"]
    assert pipeline.queries[0].level == lc.Aggressive(max_delay="5 minutes")
    assert pipeline.queries[1].level == lc.Conservative()
    first, second = pipeline.inputs
    assert pipeline.input_of("exit") is first and pipeline.input_of("counter") is second
    assert (first.type.kind, first.type.value) == ("field", "kind")
    assert (first.id.kind, first.id.value) == ("header", "event-id")
    assert (first.source.kind, first.source.value) == ("record", "partition")
    assert (second.type.kind, second.type.value) == ("constant", "Counter")
    assert second.id == Place(record="position")
    assert pipeline.unit_of(first.time) == "s" and pipeline.unit_of(second.time) == "ms"
    assert pipeline.unit_of(first.fields["since"]) == "iso" and pipeline.unit_of(Place(record="timestamp")) == "ms"
    assert second.csv.columns == ("tag", "till", "ts", "kind", "of") and second.csv.delimiter == ";"
    assert {p: (t.topic, t.format) for p, t in pipeline.output.topics.items()} == {
        "changes": ("theft-log", "msgpack"),
        "matches": ("theft-now", "json"),
        "late": ("theft-late", "avro"),
    }
    assert (pipeline.state.uri, pipeline.state.interval) == ("file:///var/lib/battery", 2.0)
    assert (pipeline.limits.max_message, pipeline.limits.batch) == (100_000, 500)
    assert (pipeline.operation.port, pipeline.operation.log, pipeline.operation.shutdown) == (9464, "text", 5.0)


def test_clients_get_all_properties_and_those_that_are_fixed(folder):
    pipeline = loads(WHOLE, folder=folder)
    consumer = pipeline.consumer_config()
    assert consumer["bootstrap.servers"] == "127.0.0.1:9092,127.0.0.1:9093"
    assert (consumer["sasl.password"], consumer["session.timeout.ms"]) == ("correct horse", "6000")
    assert (consumer["group.id"], pipeline.group) == ("thieves", "thieves")
    assert consumer["enable.auto.commit"] is False and consumer["isolation.level"] == "read_committed"
    assert "linger.ms" not in consumer
    producer = pipeline.producer_config("theft-one", acks="all")
    assert (producer["transactional.id"], producer["linger.ms"], producer["acks"]) == ("theft-one", "5", "all")
    assert producer["enable.idempotence"] is True and "session.timeout.ms" not in producer
    assert pipeline.registry_config() == {"url": "http://127.0.0.1:8081", "basic.auth.user.info": "user:staple"}
    assert pipeline.admin_config()["sasl.username"] == "me"


def test_the_small_file_has_sensible_defaults():
    pipeline = loads(SMALL)
    assert (pipeline.guarantee, pipeline.group) == ("exactly-once", "pair")
    assert pipeline.registry_config() is None
    assert pipeline.schema.names == ["type", "ts", "id", "tag", "price"]
    assert pipeline.consumer_config()["auto.offset.reset"] == "earliest"
    assert (pipeline.operation.host, pipeline.operation.port) == ("127.0.0.1", None)


def test_one_file_serves_both_commands():
    assert loads(SMALL + "[serve]\nport = 8400\n").inputs == loads(SMALL).inputs


# what is wrong


def problems(text, **more):
    with pytest.raises(PipelineError) as caught:
        loads(text, **more)
    error = caught.value
    for problem in error.problems:
        assert f"pipeline.toml, line {problem.line}: {problem.text}" in str(error)
    return [(problem.line, problem.text) for problem in error.problems]


def line_of(text, part):
    return next(number for number, line in enumerate(text.split("\n"), 1) if part in line)


#: (a part of SMALL, what stands there instead, a part of the line that is named, parts of the message)
WRONG = [
    ('name = "pair"\n[k', 'nam = "pair"\n[k', "nam =", ["unknown key 'nam'", "did you mean name?", "guarantee"]),
    ('name = "pair"\n[k', "[k", "[kafka]", ["'name' is missing at the top of the file"]),
    (
        'format = "json"',
        'format = "jsn"',
        "format",
        ["jsn", "json, avro, protobuf, msgpack or csv", "did you mean json"],
    ),
    ('format = "json"\n', "", "[[input]]", ["'format' is missing in [input number 1]", "allowed are json, avro"]),
    ('key = "tag"', 'key = "tga"', "key =", ["'tga' is not in [columns]", "did you mean tag?"]),
    ('key = "tag"', "key = 3", "key =", ["a list is needed"]),
    ('price = "float"', 'price = "flout"', "price", ["int, float, bool, text or time", "did you mean float?"]),
    ('price = "float"', 'id = "text"', 'id = "text"', ["'id' is a column that every event has", "fields ="]),
    ('brokers = "127.0.0.1:9092"\n', "", "[kafka]", ["'brokers' is missing in [kafka]"]),
    ("[kafka]", '[kafka]\n"lingr.ms" = 5', "lingr", ["no property of librdkafka", "did you mean linger.ms?"]),
    ('"127.0.0.1:9092"', '""', "brokers", ["address 1 is not host:port"]),
    ('"127.0.0.1:9092"', '"http://127.0.0.1:9092"', "brokers", ["address 1 is not host:port", "sasl_ssl and ://"]),
    ('"127.0.0.1:9092"', '["a", "b:99999"]', "brokers", ["address 2 is not host:port", "from 1 to 65535"]),
    ('"127.0.0.1:9092"', '"a:1,,b:2"', "brokers", ["address 2 is not host:port"]),
    ('"127.0.0.1:9092"', "9092", "brokers", ["address 1 is not host:port"]),
    ('"127.0.0.1:9092"', '"${THEFT_NOWHERE"', "brokers", ["needs a } behind it"]),
    ("[kafka]", 'transaction = "1 d"\n[kafka]', "transaction", ["at most 300"]),
    (
        "[kafka]",
        'transaction = "25 s"\n[kafka]\ntransaction.timeout.ms = 25000',
        "timeout",
        ["brokers give a transaction up", "lasts 25000 ms"],
    ),
    ('uri = "/nowhere"', 'uri = ""', "uri", ["it is empty"]),
    (
        "[state]",
        '[stream]\npromises = [{ generator = "BoundedDelay", delay = "5 min" }]\n[state]',
        "promises",
        ["BoundedDelay has no option 'delay'", "its options are"],
    ),
    (
        "[state]",
        '[stream]\npromises = [{ generator = "Heartbeats" }]\n[state]',
        "promises",
        ["Heartbeats needs type"],
    ),
    ("[kafka]", "[kafka]\nlingr.ms = 5", "lingr", ["no property of librdkafka", "did you mean linger.ms?"]),
    ("[kafka]", '[kafka]\nacks = "some"', "acks", ["allowed are all, -1, 0 or 1"]),
    ("[kafka]", '[kafka]\n"session.timeout.ms" = 0', "session", ["outside allowed range 1..3600000"]),
    ("[kafka]", '[kafka]\n"transactional.id" = "x"', "transactional", ["cannot be set", "name and instance"]),
    (
        "[kafka]",
        '[kafka]\nsecurity.protocol = "sasl_plaintext"\nsasl.mechanism = "PLAIN"',
        "[kafka]",
        ["together: sasl.username and sasl.password must be set"],
    ),
    ("[kafka]", "[kafka]\nacks = { of = [1] }", "acks", ["a text, a number, true, false"]),
    ("[columns]", "[kafka.consumer]\nfetch.min.byts = 1\n[columns]", "byts", ["did you mean fetch.min.bytes?"]),
    ('topic = "in"', 'topic = "log"', 'changes = "log"', ["'log' is an input already"]),
    ('late = "late"', 'late = "log"', 'late = "log"', ["'log' is the output of changes already"]),
    ('late = "late"', 'late = { topic = "l", format = "avro" }', "late =", ["needs a schema registry"]),
    ('late = "late"\n', "", "[output]", ["'late' is missing in [output]"]),
    ('changes = "log"\n', "", "[output]", ["for changes (the full log), for matches"]),
    ('topic = "in"\nformat = "json"', 'topic = "in"\nformat = "avro"', "format", ["needs a schema registry"]),
    ('format = "json"', 'format = "protobuf"', "[[input]]", ["package.module:Class"]),
    ('format = "json"', 'format = "csv"', "[[input]]", ["csv = {"]),
    (
        'format = "json"',
        'format = "csv"\ncsv = { columns = ["type", "tag", "at"] }',
        "[[input]]",
        ["time is the field 'ts', which csv.columns does not name", "type, tag or at"],
    ),
    ('key = "tag"', "time = { fild = 1 }", "fild", ["unknown key 'fild'", "did you mean field?"]),
    (
        'key = "tag"',
        'time = { field = "a", header = "b" }',
        "time",
        ["exactly one of field, header, constant or record"],
    ),
    ('key = "tag"', 'time = { record = "offset" }', "time", ["allowed are timestamp"]),
    ('key = "tag"', 'time = { record = "timestamp", unit = "s" }', "time", ["in ms: leave the unit out"]),
    ('key = "tag"', "id = { constant = 7 }", "id =", ["the same for every event"]),
    ('key = "tag"', 'fields = { prize = "a" }', "fields", ["'prize' is not in [columns]", "did you mean price?"]),
    ('key = "tag"', 'fields = { price = { field = "a", unit = "s" } }', "fields", ["has a unit"]),
    ('key = "tag"', "punctuation = {}", "punctuation", ["type, the event type of such messages, or header"]),
    ("WITHIN 5 s", "WITHN 5 s", "text =", ["query 'pair'", "WITHIN", "^"]),
    ("[tag]", "[tgg]", "text =", ["query 'pair'", "tgg", "^"]),
    ("kslack(1 s)", "kslak(1 s)", "level", ["kslak", "conservative"]),
    ('level = "kslack(1 s)"\n', "", "text =", ["no consistency level"]),
    ("[state]", "[stream]\nunit = 'weeks'\n[state]", "unit", ["ns, us, ms, s, min, h or d"]),
    ("[state]", "[stream]\nquorum = 0\n[state]", "quorum", ["a whole number from 1 is needed"]),
    ("[state]", "[stream]\nclock = 'source'\n[state]", "clock", ["source"]),
    ("[state]", '[stream]\npromises = [{ generator = "Bounded" }]\n[state]', "promises", ["not a known generator"]),
    (
        "[state]",
        '[stream]\npromises = [{ generator = "SequenceNumbers", column = "seq" }]\n[state]',
        "[stream]",
        ["seq"],
    ),
    ("[state]", "[limits]\nbatch = 0\n[state]", "batch", ["at least 1"]),
    ("[state]", "[limits]\nbatch = 500_000\n[state]", "[limits]", ["is less than batch"]),
    ("[state]", '[limits]\nmax_message = "1 megabit"\n[state]', "max_message", ["a size is needed", "MiB"]),
    ("[state]", "[operation]\nport = 70000\n[state]", "port", ["at most 65535"]),
    ("[state]", "[operation]\nshutdown = 'soon'\n[state]", "shutdown", ["'5 minutes' or '1 h 30 min'"]),
    (
        "[state]",
        "[repartition]\ntopic = 'by'\nby = ['price']\n[state]",
        "by = ",
        ["agree on 'price'", "allowed are tag"],
    ),
    ("[state]", "[repartition]\ntopic = 'log'\n[state]", "topic = 'log'", ["'log' is the output of changes already"]),
    ('uri = "/nowhere"', 'uri = "${THEFT_NOWHERE}"', "uri", ["the environment variable THEFT_NOWHERE is not set"]),
    ('uri = "/nowhere"', 'uri = { file = "no.such" }', "uri", ["there is no file 'no.such'"]),
    ('text = "PATTERN', 'file = "no.query"\n#', 'file = "no', ["there is no query file", "no.query"]),
    (
        'name = "pair"\nlevel',
        'name = "pair"\nfile = "a"\nlevel',
        "[[query]]",
        ["either text, the query itself, or file"],
    ),
    ("[kafka]", 'memory = "1 kB"\n[kafka]', "memory", ["at least 1048576 is needed"]),
    ("[state]", "[stream]\nidle_timeout = 'a while'\n[state]", "idle", ["'a while' is not a duration", "'5 minutes'"]),
    ('late = "late"', 'late = "too late"', "late =", ["no topic can be called 'too late'", "letters, digits"]),
    ('"/nowhere"', '"ftp://user@host/x"', "uri", ["a path is needed, or a URI that begins with file, s3, gs"]),
    ("[columns]", "[columns", "[columns", ["this is no TOML"]),
]


@pytest.mark.parametrize(("part", "instead", "line", "messages"), WRONG, ids=lambda value: None)
def test_every_problem_names_its_line_and_what_is_allowed(part, instead, line, messages):
    assert SMALL.count(part) == 1
    text = SMALL.replace(part, instead)
    found = problems(text)
    assert len(found) == 1, found
    number, message = found[0]
    assert number == line_of(text, line)
    for piece in messages:
        assert piece in message


def test_all_problems_are_told_at_once_in_the_order_of_their_lines():
    text = SMALL.replace('key = "tag"', 'key = "tga"').replace("kslack", "slack").replace("[kafka]", "[kafka]\nacs = 1")
    assert [line for line, _ in problems(text)] == [line_of(text, part) for part in ("acs", "tga", "slack(")]


def test_a_mistake_in_a_long_query_is_at_its_own_line(folder):
    text = WHOLE.replace("RETURN  s.tag AS tag", "RETURN  s.tug AS tag")
    ((number, message),) = problems(text, folder=folder)
    assert number == line_of(text, "s.tug")
    assert message.split("\n")[1:3] == ["    RETURN  s.tug AS tag", "            ^"]


def test_a_mistake_in_a_query_of_a_file_has_the_place_in_that_file(folder):
    (folder / "again.query").write_text(AGAIN.replace("1 h", "1 parsec"))
    ((number, message),) = problems(WHOLE, folder=folder)
    assert number == line_of(WHOLE, "again.query")
    assert "(again.query, line 3, column 10)" in message


def test_two_queries_of_one_name(folder):
    ((number, message),) = problems(WHOLE.replace('name = "again"', 'name = "theft"'), folder=folder)
    assert number == line_of(WHOLE, 'name = "again"') and "names must differ" in message


def test_punctuation_of_two_types(folder):
    text = WHOLE.replace('types = ["Shelf", "Exit"]', 'punctuation = { type = "TICK" }')
    ((number, message),) = problems(text, folder=folder)
    assert number == line_of(text, 'type = "PUNCT"') and "'TICK' elsewhere" in message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no pipeline '.*none\.toml'"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe4'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.toml")


def test_uncertain_times():
    text = SMALL.replace('key = "tag"', 'key = "tag"\nsource = "device"').replace(
        "WITHIN 5 s", "WITHIN 5 s CONFIDENCE > 0.2"
    )
    text += '[stream]\nuncertainty = { d1 = "200 ms", "*" = "5 ms" }\ndistribution = "triangular"\n'
    pipeline = loads(text)
    assert dict(pipeline.stream.uncertainty) == {"d1": "200 ms", None: "5 ms"}
    runtime = lc.Runtime(pipeline.stream, pipeline.queries)
    rows = [
        {"type": t, "ts": ts, "id": t, "source": "d1", "tag": "x", "price": 1.0} for t, ts in (("A", 900), ("B", 1000))
    ]
    out = [runtime.process(pa.Table.from_pylist(rows, schema=pipeline.schema)), runtime.finish()]
    (match,) = pa.concat_tables([o.changes for o in out]).to_pylist()
    assert 0.5 < match["confidence"] < 1
    ((number, message),) = problems(text.replace("200 ms", "200 parsecs"))
    assert number == line_of(text, "uncertainty") and "parsecs" in message
    for written, shape in (
        ("[1, 3, 1]", (1.0, 3.0, 1.0)),
        ('{ d1 = [1, 2], "*" = "normal" }', (("d1", (1.0, 2.0)), (None, "normal"))),
    ):
        assert loads(text.replace('"triangular"', written)).stream.distribution == shape
    refused = (('"gamma"', "allowed are 'uniform'"), ("[0, 1]", "leave the zeros"), ("{ d1 = 5 }", "allowed are"))
    for written, told in refused:
        ((number, message),) = problems(text.replace('"triangular"', written))
        assert number == line_of(text, "distribution") and told in message


def test_two_ends_and_weights():
    text = SMALL.replace('key = "tag"', 'key = "tag"\nupper = "until"\npmf = "weights"')
    given = loads(text + '[stream]\nlongest = "1 min"\n')
    stream = given.stream
    assert (stream.lower, stream.upper, stream.pmf, str(stream.longest)) == ("ts", "upper", "pmf", "1 min")
    assert {"upper", "pmf"} <= set(given.schema.names)
    ((number, message),) = problems(text)
    assert number == line_of(text, "upper") and "[stream] longest" in message
    exact = text.replace('upper = "until"\n', "")
    ((number, message),) = problems(exact)
    assert number == line_of(exact, "pmf") and "uncertainty" in message
    taken = text.replace("[columns]\n", '[columns]\nupper = "int"\n') + '[stream]\nlongest = "1 min"\n'
    ((number, message),) = problems(taken)
    assert number == line_of(taken, 'upper = "int"') and "every event has" in message
    header = text.replace('"weights"', '{ header = "w" }') + '[stream]\nlongest = "1 min"\n'
    ((_, message),) = problems(header)
    assert "only a field holds" in message


# lines


NAMES = st.text(alphabet='ab.-"\\ é', min_size=1, max_size=4)
VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.text(alphabet="ab\"'\\#\n[]{}=, ", max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)


def write(value):
    """A value as TOML, with line breaks in lists."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return f"'''\n{value}'''" if "'" not in value and "\\" in value else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[ # a list\n" + "".join(f"  {write(v)},\n" for v in value) + "]"
    return "{ " + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {write(v)}" for k, v in value.items()) + " }"


@given(
    st.dictionaries(
        NAMES, st.one_of(VALUES, st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=3)), max_size=5
    )
)
def test_the_scanner_finds_every_key_where_it_was_written(values):
    lines, wanted = [], {}
    tables = {k: v for k, v in values.items() if isinstance(v, list) and v and all(isinstance(e, dict) for e in v)}

    def put(path, key, value):
        wanted[path] = "\n".join(lines).count("\n") + 2 if lines else 1
        lines.append(f"{json.dumps(key, ensure_ascii=False)} = {write(value)}")

    for key, value in values.items():
        if key not in tables:
            put((key,), key, value)
    for key, elements in tables.items():
        for number, element in enumerate(elements):
            lines.append(f"[[{json.dumps(key, ensure_ascii=False)}]] # another one")
            for inner, value in element.items():
                put((key, number, inner), inner, value)
    document = read("\n".join(lines))
    assert document.values == values
    dotted = {".".join(map(str, path)) for path in wanted}
    if len(dotted) == len(wanted):  # else two places are told apart by quotes only, and either will do
        for path, line in wanted.items():
            nested = [
                p for p in wanted if p != path and ".".join(map(str, path)).startswith(".".join(map(str, p)) + ".")
            ]
            if not nested:
                assert document.line(path) == line


def paths(value, path=()):
    """All places in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in paths(part, (*path, key)))]


PLACES = paths(tomllib.loads(WHOLE.replace("${THEFT_PASSWORD}", "x").replace("${THEFT_FOLDER}", "y")))[1:]


ANYTHING = st.one_of(VALUES, st.floats(0, 9), st.sampled_from(["", "5 min", -1, 10**30]))


def inside(value, part):
    """What is in a table or list at a place; None where there is nothing."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    return value.get(part) if isinstance(value, dict) else None


@given(st.data())
@settings(max_examples=150)
def test_whatever_stands_anywhere_is_accepted_or_refused_with_a_line(data):
    """No text in the form of TOML makes the check stumble."""
    document = tomllib.loads(WHOLE.replace("${THEFT_PASSWORD}", "x").replace("${THEFT_FOLDER}", "y"))
    document["schema_registry"] = {"url": "http://127.0.0.1:8081"}
    document["query"][1] = {"name": "again", "text": AGAIN}
    for path in data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=2)):
        table = document
        for part in path[:-1]:
            table = inside(table, part)
        if isinstance(table, dict) and path[-1] in table and data.draw(st.booleans()):
            table[f"{path[-1]}x"] = table.pop(path[-1])
        elif isinstance(table, dict) or (isinstance(table, list) and path[-1] in range(len(table))):
            table[path[-1]] = data.draw(ANYTHING)
    text = "\n".join(f"{json.dumps(key)} = {write(value)}" for key, value in document.items())
    try:
        loads(text)
    except PipelineError as error:
        assert error.problems
        for problem in error.problems:
            assert 1 <= problem.line <= text.count("\n") + 1
            assert problem.text and "no TOML" not in problem.text


# secrets


def test_secrets_are_in_no_representation(folder):
    pipeline = loads(WHOLE, folder=folder)
    assert pipeline.secrets == {"correct horse", "user:staple", "battery"}
    for told in (repr(pipeline), str(pipeline), str(pipeline.model_dump()), pipeline.model_dump_json()):
        for secret in ("correct horse", "staple", "battery"):
            assert secret not in told
    assert "${THEFT_PASSWORD}" in repr(pipeline.kafka) and "registry.secret" in repr(pipeline.schema_registry)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(
            "[kafka]", "[kafka]\nsasl.password = 'hunter2-hunter2'\nsasl.pasword = 'hunter2-hunter2'"
        ),
        lambda text: text.replace("[kafka]", "[kafka]\nsasl.mechanism = 'hunter2-hunter2'"),
        lambda text: text.replace("[kafka]", "[kafka]\nacks = 'hunter2-hunter2'"),
        lambda text: text.replace("[kafka]", "[kafka]\nsasl.password = { text = ['hunter2-hunter2', 1] }"),
        lambda text: text.replace('brokers = "127.0.0.1:9092"', "brokers = { password = 'hunter2-hunter2' }"),
        lambda text: text.replace('uri = "/nowhere"', "uri = [1, 'hunter2-hunter2']"),
        lambda text: text.replace(
            "[state]", "[schema_registry]\nurl = { file = 'a', hunter = 'hunter2-hunter2' }\n[state]"
        ),
        lambda text: text.replace("[kafka]", "[kafka]\nsecurity.protocol = 'ssl'\nssl.key.pem = 'hunter2-hunter2'"),
        lambda text: text.replace("[kafka]", "[kafka]\nsasl.password = ['hunter2-hunter2', 3]"),
        lambda text: text.replace("[kafka]", "[kafka]\nsecurity.protocol = 'ssl'\nssl.providers = 'hunter2-hunter2'"),
    ],
)
def test_secrets_are_in_no_error(change, tmp_path):
    (tmp_path / "p.toml").write_text(change(SMALL))
    with pytest.raises(PipelineError) as caught:
        load(tmp_path / "p.toml")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value, chain=False))
    result = CliRunner().invoke(app, ["check", str(tmp_path / "p.toml")])
    assert result.exit_code == 2 and "hunter2" not in result.output and "error:" in result.output


def test_secrets_are_in_no_log(folder):
    pipeline = loads(
        WHOLE.replace('sasl.username = "me"', 'sasl.username = "me"\nssl.key.password = \'as it "is"\''), folder=folder
    )
    for form in ("json", "text"):
        lines = []
        with logging_to(lines.append, form=form, secrets=pipeline.secrets):
            log = logging.getLogger("latecomer.kafka.test")
            log.info("login with %s", "correct horse", extra={"fields": {"auth": "user:staple", "pem": 'as it "is"'}})
            try:
                raise RuntimeError("refused: correct horse")
            except RuntimeError:
                log.exception("failed")
        told = "\n".join(lines)
        assert "login with ***" in told and "refused: ***" in told
        for secret in ("correct horse", "staple", 'as it "is"', 'as it \\"is\\"'):
            assert secret not in told


def test_logins_in_addresses_are_secrets():
    text = SMALL.replace('"/nowhere"', '"s3://key:hunter2@bucket/state"')
    assert loads(text).secrets == {"key:hunter2"}


def test_what_check_prints_holds_no_secret(folder):
    (folder / "theft.toml").write_text(WHOLE)
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, ["check", "theft.toml", *more])
        assert result.exit_code == 0, result.output
        for secret in ("correct horse", "staple", "battery"):
            assert secret not in result.output
    document = json.loads(result.stdout)
    assert document["pipeline"]["outputs"]["changes"] == {"topic": "theft-log", "format": "msgpack"}
    assert [query["name"] for query in document["queries"]] == ["theft", "again"]
    assert document["pipeline"]["independent"] is True and document["cluster"] is None


def test_settings():
    assert Setting.of(True).reveal() == "true" and Setting.of(["a", "b"]).reveal() == "a,b"
    assert Setting("${A}-${B}").reveal({"A": "1", "B": "2"}) == "1-2"
    assert repr(Setting("plain")) == "Setting(***)" and str(Setting("${A}")) == "Setting(${A})"
    with pytest.raises(ConfigError, match="the environment variable A is not set"):
        Setting("${A}").reveal({})


# partitions

OTHER = """
[[query]]
name = "other"
text = "PATTERN SEQ(A a, B b) WITHIN 5 s CONSISTENCY conservative"
"""


@pytest.mark.parametrize(
    ("change", "independent", "parts"),
    [
        (lambda t: t, True, []),
        (lambda t: t.replace('key = "tag"\n', ""), False, ['key = ["tag"]', "[repartition]", 'topic = "pair-by-key"']),
        (lambda t: t.replace('key = "tag"', 'key = "price"'), False, ["[price]", "[repartition]", "partitions = 8"]),
        (lambda t: t.replace("WHERE [tag] ", ""), False, ["pair []", "partitions = 1"]),
        (lambda t: t.replace('key = "tag"\n', "") + "[repartition]\ntopic = 'by'\n", True, []),
        (lambda t: t + OTHER, False, ["pair [tag]; other []", "partitions = 1"]),
    ],
)  # fmt: skip
def test_advice_on_partitions(change, independent, parts):
    spread = partitioning(loads(change(SMALL)))
    assert spread.independent is independent
    assert (spread.advice is None) == (not parts)
    for part in parts:
        assert part in spread.advice


def test_the_advice_can_be_taken():
    """What is offered, put into the file, is accepted and solves the problem."""
    for text in (SMALL.replace('key = "tag"\n', ""), SMALL.replace("WHERE [tag] ", "")):
        offer = partitioning(loads(text)).advice.partition("\n\n")[2]
        spread = partitioning(loads(text + offer))
        assert spread.independent and spread.advice is None


def test_a_query_without_a_key_needs_one_internal_partition():
    text = SMALL.replace("WHERE [tag] ", "") + "[repartition]\ntopic = 'by'\npartitions = 2\n"
    ((number, message),) = problems(text)
    assert number == line_of(text, "partitions") and "partitions = 1 is needed" in message


# the command line


@pytest.mark.parametrize(
    ("stream", "minds"),
    [
        ("", True),
        ("[stream]\nidle_timeout = '1 h'", True),
        ("[stream]\nmax_ahead = '1 min'", False),
        ("[stream]\nclock = 'source'", False),
        ("[stream]\nquorum = 2", False),
    ],
)
def test_check_tells_of_a_clock_that_one_event_can_move_for_good(stream, minds, tmp_path):
    path = tmp_path / "p.toml"
    named = SMALL.replace('key = "tag"', 'key = "tag"\nsource = "sent_by"')
    path.write_text(named.replace("[state]", f"{stream}\n[state]"))
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output
    assert ("max_ahead = '1 min' in [stream]" in " ".join(result.stdout.split())) == minds
    hints = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)["pipeline"]["hints"]
    assert len(hints) == minds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "p.toml", "--level", "conservative"], "--level is for queries on the command line"),
        (["check", "none.toml"], "there is no pipeline 'none.toml'"),
        (["check", "PATTERN SEQ(A a, B b) WITHIN 1 s", "--connect"], "--connect is for a pipeline"),
        (["run", "p.toml", "-q", "x"], "--query is for queries on the command line"),
        (["run", "x.query"], "'x.query' is no pipeline"),
        (["run"], "--query is missing"),
        (["run", "-q", "x", "-i", "y"], "--output is missing"),
        (["run", "none.toml"], "there is no pipeline 'none.toml'"),
    ],
)
def test_wrong_use(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(SMALL)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("", 10_000),
        ('[kafka.consumer]\n"session.timeout.ms" = 6000', "6000"),
        ('[kafka.consumer]\n"group.protocol" = "consumer"', None),  # librdkafka would refuse it there
    ],
)
def test_the_partitions_of_a_dead_process_do_not_stand_still_for_long(own, found):
    config, _ = consumer_properties(loads(SMALL + own), several=False)
    assert config.get("session.timeout.ms") == found
    Consumer(config).close()
