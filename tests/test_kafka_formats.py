"""From messages to events and back: all formats, all ways to be no event, punctuation, and what is written."""

import io
import json
import sys
import types
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.encode import Encoder, avro_schema, plain
from latecomer.connectors.kafka.formats import RegistryUnavailable, Unreadable
from latecomer.connectors.kafka.places import Origins, position_header, whole_units
from latecomer.connectors.kafka.registry import client_of
from latecomer.errors import ConfigError
from tests.kafka_registry import Registry

PIPELINE = """
name = "p"
[kafka]
brokers = "127.0.0.1:1"
{registry}
[columns]
k = "text"
x = "float"
n = "int"
ok = "bool"
at = "time"
{columns}
[[input]]
topic = "in"
{input}
[[query]]
name = "q"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] WITHIN 10 s RETURN a.k AS k, a.x AS x, c.at AS seen"
level = "aggressive(max_delay = 1 h)"
[output]
changes = {{ topic = "changes", format = "{format}" }}
matches = {{ topic = "matches", format = "{format}" }}
late = {{ topic = "late", format = "{format}" }}
dead_letters = "dead"
[state]
uri = "state"
[limits]
max_message = 500
"""


def pipeline(input='format = "json"', columns="", registry="", format="json"):
    return loads(PIPELINE.format(input=input, columns=columns, registry=registry, format=format))


@dataclass
class Fake:
    """A message as the consumer gives it."""

    content: bytes | None
    number: int = 0
    named: bytes | None = b"key"
    more: list = field(default_factory=list)
    time: tuple = (1, 1_700_000_000_000)

    def value(self):
        return self.content

    def key(self):
        return self.named

    def headers(self):
        return self.more or None

    def topic(self):
        return "in"

    def partition(self):
        return 3

    def offset(self):
        return self.number

    def timestamp(self):
        return self.time

    def error(self):
        return None

    def __len__(self):
        return len(self.content or b"")


def decode(values, input='format = "json"', registry=None, **more):
    """Events and poison of values (or messages), as lists of dicts and reasons."""
    given = pipeline(input, registry='[schema_registry]\nurl = "http://127.0.0.1:1"' if registry else "", **more)
    messages = [v if isinstance(v, Fake) else Fake(v, n) for n, v in enumerate(values)]
    found = Decoder(given.inputs[0], given, registry).decode(messages, Origins("in"))
    assert found.batch.schema == given.schema
    assert sorted([*found.numbers.tolist(), *found.poison]) == list(range(len(messages)))
    return found.batch.to_pylist(), {n: p.reason for n, p in found.poison.items()}


EVENT = {"type": "A", "ts": 5, "k": "é", "x": 1.5, "n": 7, "ok": True, "at": "2024-02-29T12:00:00.000001Z", "z": [{}]}
ROW = {
    "type": "A", "ts": 5, "id": "in-3-0", "k": "é", "x": 1.5, "n": 7, "ok": True,
    "at": datetime(2024, 2, 29, 12, 0, 0, 1, UTC),
}  # fmt: skip


def test_json():
    assert decode([json.dumps(EVENT).encode()]) == ([ROW], {})
    assert decode([json.dumps(EVENT, indent=2).encode()]) == ([ROW], {})


def test_msgpack():
    assert decode([msgpack.packb(EVENT)], 'format = "msgpack"') == ([ROW], {})
    assert decode([msgpack.packb(EVENT)[:-3], b"\xc1", b""], 'format = "msgpack"')[1] == dict.fromkeys(
        range(3), "unreadable"
    )


def test_csv():
    given = 'format = "csv"\ncsv = { columns = ["type", "ts", "k", "x", "n", "ok", "at"], delimiter = ";", null = "-" }'
    good = 'A;5;"é";1.5;7;true;2024-02-29T12:00:00.000001Z'.encode()
    assert decode([good], given) == ([ROW], {})
    rows, poison = decode(
        [b"A;5;;-;-;-;-", b"A;5", b"A;x;;;;;", b'A;5;"open;1;1;true;-', b"A;5;\xff;1;1;true;-"], given
    )
    assert rows == [{**ROW, "k": "", "x": None, "n": None, "ok": None, "at": None}]
    assert poison == {1: "unreadable", 2: "bad_timestamp", 3: "unreadable", 4: "unreadable"}


AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "type", "type": "string"},
        {"name": "ts", "type": "long"},
        {"name": "k", "type": ["null", "string"]},
        {"name": "x", "type": "float"},
        {"name": "n", "type": "int"},
        {"name": "ok", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "where", "type": "Place"},
    ],
}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}


@pytest.fixture
def registry():
    with Registry().running() as found:
        yield found


def framed(number, payload):
    return b"\0" + number.to_bytes(4, "big") + payload


def avro(number, event):
    schema = fastavro.parse_schema(AVRO, named_schemas={"Place": fastavro.parse_schema(PLACE)})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, event)
    return framed(number, out.getvalue())


def test_avro(registry):
    registry.register("place", {"schema": json.dumps(PLACE)})
    refers = [{"name": "Place", "subject": "place", "version": 1}]
    number = registry.register("in-value", {"schema": json.dumps(AVRO), "references": refers})
    event = {**EVENT, "at": ROW["at"], "where": {"city": "Ulm"}}
    client = client_of({"url": registry.url})
    rows, poison = decode(
        [avro(number, event), avro(99, event), avro(number, event)[:-3], b"{}", b"\x01" + bytes(9), avro(99, event)],
        'format = "avro"',
        registry=client,
    )
    assert rows == [ROW]
    assert poison == {1: "unknown_schema", 2: "unreadable", 3: "unreadable", 4: "unreadable", 5: "unknown_schema"}
    assert registry.asked.count(f"/schemas/ids/{number}") == 1
    assert registry.asked.count("/schemas/ids/99") == 1  # it is believed for a while


def test_a_registry_that_does_not_answer_is_nobodys_fault(registry):
    client = client_of({"url": registry.url, "max.retries": 0})
    registry.down = True
    with pytest.raises(RegistryUnavailable):
        decode([avro(1, {**EVENT, "at": ROW["at"], "where": {"city": "Ulm"}})], 'format = "avro"', registry=client)
    nobody = client_of({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(RegistryUnavailable):
        decode([framed(1, b"")], 'format = "avro"', registry=nobody)


def protobuf_class():
    """A class as protoc would generate it, in a module of its own."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Event")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        {
            "type": kinds.TYPE_STRING, "ts": kinds.TYPE_INT64, "k": kinds.TYPE_STRING, "x": kinds.TYPE_DOUBLE,
            "n": kinds.TYPE_INT32, "ok": kinds.TYPE_BOOL, "at": kinds.TYPE_STRING,
        }.items(), 1
    ):  # fmt: skip
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Event"))
    module = types.ModuleType("shop_pb2")
    module.Event = found
    sys.modules["shop_pb2"] = module
    return found


def test_protobuf(registry):
    message = protobuf_class()
    number = registry.register("in-value", {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"})
    payload = b"\0" + message(**{name: EVENT[name] for name in ROW if name != "id"}).SerializeToString()
    client = client_of({"url": registry.url})
    given = 'format = "protobuf"\nmessage = "shop_pb2:Event"'
    rows, poison = decode(
        [framed(number, payload), framed(77, payload), framed(number, b"\0\xff\xff")], given, registry=client
    )
    assert rows == [ROW]
    assert poison == {1: "unknown_schema", 2: "unreadable"}
    with pytest.raises(ConfigError, match="protoc"):
        decode([], 'format = "protobuf"\nmessage = "json:dumps"', registry=client)


# --- poison ----------------------------------------------------------------------------------------------------------

SPOILED = {
    b"": "unreadable",
    b"{": "unreadable",
    b"[]": "unreadable",
    b"7": "unreadable",
    b'{"type": "A", "ts": 5} {}': "unreadable",
    b'{"type": "A", "ts": 5, "k": "\xff"}': "unreadable",
    b'{"type": "A", "ts": "5"}': "bad_timestamp",
    b'{"type": "A", "ts": true}': "bad_timestamp",
    b'{"type": "A", "ts": null}': "bad_timestamp",
    b'{"type": "A"}': "bad_timestamp",
    b'{"type": "A", "ts": 1e300}': "bad_timestamp",
    b'{"type": "A", "ts": 99999999999999999999}': "bad_timestamp",
    b'{"ts": 5}': "unknown_type",
    b'{"type": null, "ts": 5}': "unknown_type",
    b'{"type": ["A"], "ts": 5}': "unknown_type",
    b'{"type": "A", "ts": 5, "n": 1.5}': "bad_value",
    b'{"type": "A", "ts": 5, "n": 9223372036854775808}': "bad_value",
    b'{"type": "A", "ts": 5, "x": "1"}': "bad_value",
    b'{"type": "A", "ts": 5, "k": 1}': "bad_value",
    b'{"type": "A", "ts": 5, "at": "yesterday"}': "bad_value",
    b'{"type": "A", "ts": 5, "ok": 1}': "bad_value",
    b'{"type": "A", "ts": 5, "z": "' + b"z" * 500 + b'"}': "oversized",
    None: "null_payload",
}


@pytest.mark.parametrize(("value", "reason"), SPOILED.items(), ids=repr)
def test_each_way_to_be_poison(value, reason):
    good = json.dumps(EVENT).encode()
    rows, poison = decode([good, value, good])
    assert poison == {1: reason}
    assert rows == [ROW, {**ROW, "id": "in-3-2"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9), st.sampled_from(list(SPOILED))), max_size=12))
def test_poison_costs_its_neighbours_nothing(given_values):
    values = [json.dumps({**EVENT, "n": v}).encode() if isinstance(v, int) else v for v in given_values]
    rows, poison = decode(values)
    assert [row["n"] for row in rows] == [v for v in given_values if isinstance(v, int)]
    assert poison == {n: SPOILED[v] for n, v in enumerate(given_values) if not isinstance(v, int)}


def test_types_that_an_input_lists():
    values = [json.dumps({**EVENT, "type": t}).encode() for t in ("A", "Z", "B")]
    rows, poison = decode(values, 'format = "json"\ntypes = ["A", "B"]')
    assert [row["type"] for row in rows] == ["A", "B"]
    assert poison == {1: "unknown_type"}
    assert len(decode(values)[0]) == 3


# --- places and times ------------------------------------------------------------------------------------------------


def test_places_outside_the_value():
    given = """format = "json"
    type = { header = "kind" }
    time = { record = "timestamp" }
    id = { record = "key" }
    source = { record = "partition" }
    fields = { k = "deep.er.key", n = { header = "count" }, x = { header = "share" }, ok = { constant = true } }"""
    headers = [("kind", b"A"), ("count", b"12"), ("share", b"0.5")]
    one = Fake(b'{"deep": {"er": {"key": "kk"}}}', 8, b"id-1", headers)
    two = Fake(b'{"deep": null}', 9, b"id-2", [("kind", b"B")])
    bad = Fake(b"{}", 10, b"id-3", [("kind", b"B"), ("count", b"many")])
    late = Fake(b"{}", 11, b"id-4", [("kind", b"B")], time=(0, -1))
    nameless = Fake(b"{}", 12, None, [("kind", b"B")])
    rows, poison = decode([one, two, bad, late, nameless], given)
    assert poison == {2: "bad_value", 3: "bad_timestamp", 4: "no_id"}
    first = {"type": "A", "ts": 1_700_000_000_000, "id": "id-1", "source": "in-3", "k": "kk", "n": 12, "x": 0.5}
    assert rows[0] == {**first, "ok": True, "at": None}
    assert rows[1]["k"] is None and rows[1]["n"] is None


def test_a_forwarded_message_keeps_its_position():
    given = pipeline('format = "json"\nsource = { record = "partition" }')
    message = Fake(json.dumps(EVENT).encode(), 5, more=[position_header("orders-eu", 7, 123)])
    found = Decoder(given.inputs[0], given).decode([message], Origins("orders-eu", forwarded=True))
    assert found.batch.column("id").to_pylist() == ["orders-eu-7-123"]
    assert found.batch.column("source").to_pylist() == ["orders-eu-7"]
    letter = Encoder(given).dead_letter(message, Unreadable("unreadable", "x"))
    assert plain(letter.headers) == {
        "latecomer.reason": "unreadable", "latecomer.detail": "x", "latecomer.topic": "orders-eu",
        "latecomer.partition": "7", "latecomer.offset": "123", "latecomer.timestamp": "1700000000000",
    }  # fmt: skip


UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


@given(
    st.lists(st.none() | st.integers(-(2**40), 2**40), max_size=8),
    st.sampled_from(list(UNITS)),
    st.sampled_from(list(UNITS)),
)
def test_units(values, unit, wanted):
    bad = {}
    found = whole_units(values, unit, wanted, "bad_timestamp", bad).to_pylist()
    for row, (value, result) in enumerate(zip(values, found, strict=True)):
        exact = None if value is None else value * UNITS[unit] // UNITS[wanted]
        if row in bad:
            assert abs(exact) > 2**61
        else:
            assert result == exact


@given(st.lists(st.datetimes(timezones=st.sampled_from([None, UTC]))), st.sampled_from(list(UNITS)))
def test_iso_times(moments, wanted):
    bad = {}
    found = whole_units(moments, "iso", wanted, "bad_timestamp", bad).to_pylist()
    for row, (moment, result) in enumerate(zip(moments, found, strict=True)):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        exact = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000 // UNITS[wanted]
        assert row in bad or result == exact


def test_fractions_of_another_unit_are_converted_and_of_the_same_refused():
    bad = {}
    found = whole_units([1.5, -1.5, 2, None, "x"], "s", "ms", "r", bad)
    assert found.to_pylist() == [1500, -1500, 2000, None, None]
    assert list(bad) == [4]
    assert whole_units([1500.5, -0.5], "ms", "s", "r", {}).to_pylist() == [1, -1]
    bad = {}
    assert whole_units([1.5, -1.5, 3.0], "s", "s", "r", bad).to_pylist() == [None, None, 3]
    assert [str(bad[row]) for row in (0, 1)] == ["1.5 is no whole number of s", "-1.5 is no whole number of s"]


# --- punctuation -----------------------------------------------------------------------------------------------------


def test_punctuation_as_a_type_and_in_a_header():
    given = """format = "json"
    source = "k"
    punctuation = { type = "DONE", header = "done", of = "about" }"""
    by_type = json.dumps({"type": "DONE", "ts": 9, "about": "B"}).encode()
    in_header = Fake(None, 1, more=[("done", b'{"type": "C", "source": 4, "ts": 8}')])
    broken = Fake(None, 2, more=[("done", b'{"type": "C"}')])
    event = json.dumps(EVENT).encode()
    rows, poison = decode([by_type, in_header, broken, event], given)
    assert poison == {2: "bad_punctuation"}
    assert [(r["type"], r["of"], r["ts"], r["source"]) for r in rows] == [
        ("DONE", "B", 9, None),
        ("DONE", "C", 8, "4"),
        ("A", None, 5, "é"),
    ]
    assert decode([b'{"type": "DONE"}'], given)[1] == {0: "bad_timestamp"}


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_intervals(format):
    """Both ends and weights of times, each with what can be wrong with it; a match tells how sure it is."""
    encode = msgpack.packb if format == "msgpack" else lambda value: json.dumps(value).encode()
    given = loads(
        PIPELINE.format(
            input=f'format = "{format}"\nid = "id"\ntime = "when.first"\n'
            'upper = { field = "when.last", unit = "s" }\n'
            'pmf = "w"\npunctuation = { type = "PUNCT" }\n',
            columns="", registry='[stream]\nlongest = "1 min"\nunit = "ms"\n', format="json",
        )
    )  # fmt: skip
    rows = [
        {"id": "a", "type": "A", "when": {"first": 1000, "last": 2}, "k": "x", "x": 1.0},
        {"id": "late end", "type": "A", "when": {"first": 1000, "last": "soon"}, "k": "x"},
        {"id": "no end", "type": "A", "when": {"first": 1000}, "k": "x"},
        {"id": "no weights", "type": "C", "when": {"first": 1000, "last": 1}, "k": "x", "w": "heavy"},
        {"id": "c", "type": "C", "when": {"first": 1999, "last": 2}, "k": "x", "w": [3, 1]},
        {"id": "p", "type": "PUNCT", "when": {"first": 60_000}},
    ]
    found = Decoder(given.inputs[0], given).decode([Fake(encode(row)) for row in rows], Origins("in"))
    assert {n: problem.reason for n, problem in found.poison.items()} == {
        1: "bad_timestamp", 2: "bad_timestamp", 3: "bad_value",
    }  # fmt: skip
    assert found.batch.column("ts").to_pylist() == [1000, 1999, 60_000]
    assert found.batch.column("upper").to_pylist() == [2000, 2000, None]
    assert found.batch.column("pmf").to_pylist() == [None, [3, 1], None]
    (match,) = lc.Runtime(given.stream, given.queries).process(found.batch).changes.to_pylist()
    # Of the 1,001 instants of a, 999 come before c's first, and one more before its last.
    assert match["events"] == ["a", "c"] and match["confidence"] == pytest.approx((999 * 3 / 4 + 1000 / 4) / 1001)


def test_an_input_without_an_upper_end_is_exact():
    section = '[[input]]\ntopic = "sure"\nformat = "json"\nkey = "k"\n'
    given = loads(
        PIPELINE.format(
            input='format = "json"\nkey = "k"\nupper = "until"\n' + section, columns="",
            registry='[stream]\nlongest = "1 min"\n', format="json",
        )
    )  # fmt: skip
    found = Decoder(given.inputs[1], given).decode([Fake(b'{"type": "A", "ts": 7, "k": "x"}')], Origins("sure"))
    assert found.batch.column("upper").to_pylist() == [7] and not found.poison


def output_of(given):
    runtime = lc.Runtime(given.stream, given.queries)
    event = {"source": None, "k": "u", "x": 0.5, "n": 1, "ok": True, "at": ROW["at"]}
    rows = [{**event, "type": t, "ts": ts, "id": f"e{ts}"} for t, ts in (("A", 10**8), ("C", 10**8 + 5), ("A", 7))]
    first = runtime.process(pa.RecordBatch.from_pylist(rows, given.schema))
    rows = [{**event, "type": "B", "ts": 10**8 + 2, "id": "b"}]
    return first, runtime.process(pa.RecordBatch.from_pylist(rows, given.schema))


@pytest.mark.parametrize("format", ["json", "msgpack", "avro"])
def test_outputs_can_be_read_back(format, registry):
    given = pipeline(format=format, registry=f'[schema_registry]\nurl = "{registry.url}"')
    encoder = Encoder(given, client_of({"url": registry.url}))

    def read(value):
        if format == "json":
            return json.loads(value)
        if format == "msgpack":
            return msgpack.unpackb(value, timestamp=3)
        schema = json.loads(registry.schemas[int.from_bytes(value[1:5], "big") - 1]["schema"])
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)

    first, second = output_of(given)
    messages = [*encoder.changes(first.changes), *encoder.changes(second.changes)]
    match_id = first.changes.column("match_id").to_pylist()[0]
    assert [(m.topic, m.key.decode()) for m in messages] == [
        ("changes", match_id), ("matches", match_id), ("changes", match_id), ("matches", match_id),
    ]  # fmt: skip
    seen = "2024-02-29T12:00:00.000001Z" if format == "json" else ROW["at"]
    told = {"query": "q", "match_id": match_id, "events": ["e100000000", "e100000005"], "first_ts": 10**8}
    told |= {"last_ts": 10**8 + 5, "k": "u", "x": 0.5, "seen": seen}
    assert read(messages[0].value) == {"op": "insert", **told}
    assert read(messages[1].value) == told
    assert read(messages[2].value)["op"] == "delete"
    assert messages[3].value is None  # a tombstone: the compacted topic forgets the match
    (late,) = encoder.late(first.late)
    row = first.late.to_pylist()[0]
    assert late.key.decode() == row["late_id"]
    found = read(late.value)
    assert (found["id"], found["reason"], found["k"], found["late_by"]) == (
        "e7",
        "after_max_delay",
        "u",
        row["late_by"],
    )


def test_a_dead_letter_is_the_message_itself():
    encoder = Encoder(pipeline())
    message = Fake(b"\x00\xff", 4, b"\xfe", [("a", b"1"), ("a", None)])
    letter = encoder.dead_letter(message, Unreadable("unreadable", "no JSON"))
    assert (letter.topic, letter.key, letter.value, letter.timestamp) == (
        "dead",
        b"\xfe",
        b"\x00\xff",
        1_700_000_000_000,
    )
    assert letter.headers[:2] == [("a", b"1"), ("a", None)]
    short = encoder.too_large(letter._replace(value=b"x" * 10**6))
    assert len(short.value) == 64 * 1024 and plain(short.headers)["latecomer.truncated"] == "1000000"
    change = next(encoder.changes(output_of(pipeline())[0].changes))
    short = encoder.too_large(change._replace(value=b"x" * 10**6))
    assert short.topic == "dead" and plain(short.headers)["latecomer.reason"] == "output_too_large"


def test_avro_refuses_names_that_it_cannot_have():
    with pytest.raises(ConfigError, match="rename it"):
        avro_schema("Change", pa.schema([("the price", pa.float64())]))
