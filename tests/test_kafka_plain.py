"""Plain JSON read by the compiled kernel: the answer is that of the reader which looks at each message by itself."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.decode import Decoder
from latecomer.connectors.kafka.places import Origins
from latecomer.connectors.kafka.plain import PlainReader
from latecomer.storage import kernels
from tests.test_kafka_formats import Fake

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="this way of reading is there with compiled kernels only")

PIPELINE = """
name = "p"
[kafka]
brokers = "127.0.0.1:1"
[stream]
unit = "{unit}"
[columns]
k = "text"
x = "float"
n = "int"
ok = "bool"
[[input]]
topic = "in"
format = "json"
id = {{ field = "id" }}
time = {{ field = "ts", unit = "ms" }}
types = ["A", "B"]
[[query]]
name = "q"
text = "PATTERN SEQ(A a, B b) WHERE [k] WITHIN 10 s RETURN a.k AS k"
level = "aggressive(max_delay = 1 h)"
[output]
changes = "changes"
late = "late"
dead_letters = "dead"
[state]
uri = "state"
[limits]
max_message = 200
"""


def decoders(unit="ms"):
    """One with the kernel, one without."""
    given = loads(PIPELINE.format(unit=unit))
    one, other = Decoder(given.inputs[0], given), Decoder(given.inputs[0], given)
    assert one._plain is not None
    other._plain = None
    return one, other


def same(values, unit="ms"):
    """Both decoders find the same events and the same poison; returns how many values the kernel has read."""
    messages = [Fake(value, offset) for offset, value in enumerate(values)]
    one, other = (decoder.decode(messages, Origins("in")) for decoder in decoders(unit))
    assert one.batch.to_pylist() == other.batch.to_pylist()
    assert one.batch.schema == other.batch.schema
    one.batch.validate(full=True)
    assert one.numbers.tolist() == other.numbers.tolist()
    assert {n: (p.reason, str(p)) for n, p in one.poison.items()} == {
        n: (p.reason, str(p)) for n, p in other.poison.items()
    }
    return int(decoders(unit)[0]._plain.read(list(values))[1].sum())


NAMES = st.sampled_from(["id", "type", "ts", "k", "x", "n", "ok", "other", "i", "idd"])
PLAIN = {
    "id": st.text("ab1", max_size=9), "type": st.sampled_from("ABC"), "ts": st.integers(-(10**14), 10**14),
    "k": st.text("xyz ", max_size=12), "x": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "n": st.integers(-(2**62), 2**62), "ok": st.booleans(), "other": st.lists(st.integers(0, 3), max_size=2),
}  # fmt: skip
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=4,
)
EVENTS = st.fixed_dictionaries(PLAIN, optional={"i": st.none()})
ODD = st.dictionaries(NAMES, ANY, max_size=6) | EVENTS.flatmap(
    lambda event: st.tuples(st.just(event), NAMES, ANY).map(lambda t: {**t[0], t[1]: t[2]})
)


@st.composite
def texts(draw):
    """JSON in one of the ways to write it, now and then with a byte that does not belong there."""
    value = draw(EVENTS | ODD | ANY)
    text = json.dumps(value, indent=draw(st.sampled_from([None, None, 1])), ensure_ascii=draw(st.booleans()))
    data = bytearray(draw(st.sampled_from(["", " ", "\n"])).encode() + text.encode("utf-8", "surrogatepass"))
    if draw(st.integers(0, 4)) == 0:
        for _ in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, len(data)))
            data[at : at + draw(st.integers(0, 1))] = draw(
                st.sampled_from(
                    [b"", b'"', b"{", b"}", b",", b":", b"0", b"-", b".", b"e", b"\0", b"\\", b"\xc3", b"]"]
                )
            )
    return bytes(data)


@settings(max_examples=150)
@given(st.lists(texts() | st.none(), max_size=8), st.sampled_from(["ms", "s", "us"]))
def test_as_the_other_reader(values, unit):
    same(values, unit)


@settings(max_examples=300)
@given(st.from_regex(r"\A-?[0-9]{0,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{0,3})?\Z"))
@example("1e22")
@example("9007199254740993")
@example("-0")
@example("-0.0")
@example("0.000000000000000000001")
@example("123456789012345678")
def test_numbers(text):
    same([b'{"id":"a","type":"A","ts":5,"k":"k","%s":%s}' % (name, text.encode()) for name in (b"x", b"n", b"z")])


def test_what_is_usual_is_read_by_the_kernel():
    event = {
        "id": "e1",
        "type": "A",
        "ts": 1700,
        "k": "t4",
        "x": 1.25,
        "n": 7,
        "ok": True,
        "z": {"deep": [1, None, "s"]},
    }
    values = [json.dumps(event).encode()] * 9 + [json.dumps({**event, "k": 'a"b'}).encode(), b"{", None]
    assert same(values) == 9
    repeated = b'{"id":"a","type":"B","type":"A","ts":5,"k":null,"k":"x","x":1e2}'  # of two the last one counts
    assert same([repeated, b"{}", b" { } "]) == 3


def test_the_kernel_refuses_wrong_arguments():
    for wrong in (((), (b"a",), b"\0"), ([b""], (b"a",), b""), ([b""], ("a",), b"\0"), (["text"], (b"a",), b"\0")):
        with pytest.raises(TypeError):
            kernels.read_json(*wrong)
    read, columns = kernels.read_json([], (b"a",), b"\0")
    assert len(read) == 0 and columns[0][1] == 0 and columns[0][2].tolist() == [0]
    assert PlainReader.of({("a", "b"): str}) is None and PlainReader.of({("a",): object}) is None
    assert np.array_equal(PlainReader.of({("a",): str}).read([b'{"a":"x"}'])[1], [True])
