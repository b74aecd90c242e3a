"""A pipeline with brokers behind HTTP: events go to its topic, what comes out is read from its topics."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pytest

from latecomer.serve.config import load
from latecomer.serve.inbox import Never
from latecomer.serve.kafka import KafkaService, lines_of
from latecomer.serve.reading import Refused
from latecomer.serve.tail import TopicFeed
from tests import oracle
from tests.serve_fixture import events, lines, net, serving

PIPELINE = """
name = "{name}"
transaction = "20 ms"
[kafka]
brokers = "{brokers}"
[kafka.consumer]
"session.timeout.ms" = 6000
[columns]
k = "text"
x = "float"
[[input]]
topic = "{input}"
format = "json"
id = "id"
key = "k"
types = ["A", "B", "C"]
[[query]]
name = "q"
level = "aggressive(max_delay = 30 d)"
text = "PATTERN SEQ(A a, !B b, C c) WHERE [k] AND c.x >= a.x WITHIN 10 minutes RETURN a.k AS k"
[output]
changes = "{changes}"
late = "{late}"
dead_letters = "{dead}"
[state]
uri = "{state}"
[serve]
rate = 100000
"""


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.1)
    return found


@pytest.fixture
def file(kafka, tmp_path):
    topics = {name: kafka.topic(partitions=2) for name in ("input", "changes", "late", "dead")}
    text = PIPELINE.format(
        name=f"served-{topics['input']}", brokers=kafka.bootstrap, state=tmp_path / "state", **topics
    )
    path = tmp_path / "served.toml"
    path.write_text(text)
    return path


@pytest.mark.kafka
def test_events_go_through_the_topics(file, tmp_path):
    made = events(400, 21)
    wanted = sorted(map(tuple, oracle.matches(load(file).queries[0].plan, made, "ms")))
    log = tmp_path / "log"
    with serving(file, log=log) as server:
        wait_for(lambda: server.ask("GET", "/readyz")[0] == 200)
        for begin in range(0, 400, 40):
            part = made[begin : begin + 40]
            form = begin // 40 % 3
            if form == 0:
                answer = server.send(lines(part), idempotency_key=f"r{begin}")
                again = server.send(lines(part), idempotency_key=f"r{begin}")
                assert again == (202, {**answer[1], "repeated": True})
            elif form == 1:
                answer = server.send(json.dumps(part), "application/json")
            else:
                sink = pa.BufferOutputStream()
                table = pa.Table.from_pylist(part)
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                answer = server.send(sink.getvalue().to_pybytes(), "application/vnd.apache.arrow.stream")
            assert answer[0] == 202 and answer[1]["accepted"] == 40
        assert server.send(b"no JSON\n")[1]["accepted"] == 1  # whoever reads it says what it is
        assert server.send(b'{"id": 1', "application/json")[0] == 422
        found = wait_for(lambda: net(c := server.changes("0", wait=0)) == wanted and c)
        assert len({(c["partition"], c["offset"]) for _, c in found}) == len(found) and len(wanted) > 10
        half = found[len(found) // 2][0]
        assert server.changes(half) == found[len(found) // 2 + 1 :]
        [letter] = wait_for(lambda: server.get("/v1/dead")["rows"])
        assert (letter["text"], letter["reason"]) == ("no JSON", "unreadable")
        assert server.get("/v1/matches?limit=1000")["count"] == len(wanted)
        explained = server.get("/v1/explain")
        assert sum(one["counters"]["events"] for one in explained.values()) == 400
        assert "latecomer_kafka_messages_total" in server.ask("GET", "/metrics")[2].decode()
        for word, given in (("punctuate", {"ts": 1}), ("advance", {"now": 1}), ("finish", {})):
            status, told = server.say(word, **given)
            assert status == 409
            assert told["detail"].startswith(f"{word}: a pipeline with brokers takes no words about time by HTTP")
        assert server.stop(60) == 0, server.said()
    with serving(file, log=log) as server:  # the log is the topic: a reader goes on where it was
        wait_for(lambda: len(server.changes("0")) == len(found))
        rest = {(c["partition"], c["offset"]) for _, c in server.changes(half)}
        assert rest >= {(c["partition"], c["offset"]) for _, c in found[len(found) // 2 + 1 :]}


def test_a_feed_of_a_topic():
    feed = TopicFeed(5)
    assert (feed.oldest, feed.newest) == (2, 1) and feed.read(0, 10) == (2, [])
    feed.append([(0, 7, b"a"), (1, 3, b"b"), (0, 8, b"c")])
    assert feed.name(4) == "0-8.1-3" and feed.place("0-7.1-3") == 3 and feed.recent(3, 10) == [b"c"]
    assert feed.place("0-8.1-9") == 4 and feed.read(1, 2) == (2, [b"a", b"b"])
    assert feed.recent(0, 10) is None  # what was before it is in the topic only
    feed.append([(1, n, b"%d" % n) for n in range(4, 9)])
    assert (feed.oldest, feed.newest) == (5, 9) and feed.recent(3, 10) is None
    assert feed.place("0-2") == 0 and feed.read(0, 1) == (5, [b"4"])
    with pytest.raises(ValueError):
        feed.place("x")


def test_what_such_a_pipeline_never_does_is_not_to_be_tried_again(tmp_path):
    def service(format):
        path = tmp_path / f"{format}.toml"
        text = PIPELINE.format(
            name="never", brokers="127.0.0.1:9", state=tmp_path, input="in", changes="c", late="l", dead="d"
        )
        path.write_text(text.replace('format = "json"', f'format = "{format}"'))
        return KafkaService(load(path))

    for word in ("punctuate", "advance", "finish"):
        with pytest.raises(Never, match=f"^{word}: a pipeline with brokers takes no words about time"):
            service("json").control(word)
    deaf = service("msgpack")
    deaf.inbox.reserve(2)
    with pytest.raises(Never, match="no input of this pipeline takes JSON"):
        deaf.submit(b"{}", "json", reserved=True)
    assert deaf.inbox.nbytes == 0


def test_bodies_become_messages():
    assert lines_of("lines", b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2}') == [b'{"a": 1}\r', b'{"a": 2}']
    assert lines_of("json", b' [{"a": 1}, {"b": 2}] ') == [b'{"a": 1}', b'{"b": 2}']
    assert lines_of("json", b' {"a": 1} ') == [b'{"a": 1}']
    for body in (b"[1]", b"7", b"", b"[", b'[{"a": 1}'):
        with pytest.raises(Refused):
            lines_of("json", body)
