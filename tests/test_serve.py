"""``latecomer serve`` as its users meet it: a process on this machine, asked by HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time

import pyarrow as pa
import pytest

from latecomer.serve.config import load
from latecomer.serve.log import Log
from latecomer.serve.sse import Bell, changes
from tests import oracle
from tests.serve_fixture import events, lines, net, parsed, pipeline, serving

TOKEN = "correct-horse-battery-staple"
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A service for tests that do not mind each other; the events of each have keys of its own."""
    folder = tmp_path_factory.mktemp("served")
    file = pipeline(folder, serve='max_body = "1 MB"\nrate = 100000')
    with serving(file, log=folder / "log") as server:
        yield server


def own(made, name):
    """Events under ids and keys that no other test uses."""
    return [{**event, "id": f"{name}-{event['id']}", "k": f"{name}-{event['k']}"} for event in made]


def ipc(table, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def mine(server, name):
    """The net answer for the keys of one test."""
    found = [(place, change) for place, change in server.changes() if change["k"].startswith(f"{name}-")]
    return net(found)


def wanted(made):
    plan = load_queries()
    return sorted(map(tuple, oracle.matches(plan, made, "ms")))


def load_queries(cache=[]):  # noqa: B006 (once for all tests)
    if not cache:
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            cache.append(load(pipeline(Path(folder))).queries[0].plan)
    return cache[0]


def eventually(what, seconds=10):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)
    return found


# --- events in, changes out ------------------------------------------------------------------------------------------


def test_every_form_gives_the_same_answer(shared):
    made = events(300, 1)
    answer = wanted(made)
    forms = {
        "lines": lambda part: (lines(part), "application/x-ndjson; charset=utf-8"),
        "crlf": lambda part: (lines(part).replace(b"\n", b"\r\n\r\n"), "application/jsonl"),
        "array": lambda part: (json.dumps(part, indent=1).encode(), JSON),
        "arrow": lambda part: (ipc(pa.Table.from_pylist(part)), ARROW),
        "times": lambda part: (ipc(timed(pa.Table.from_pylist(part))), ARROW),
    }
    for name, form in forms.items():
        given = own(made, name)
        for begin in range(0, 300, 60):
            status, told = shared.send(*form(given[begin : begin + 60]))
            assert status == 202 and told == {"accepted": 60, "dead": 0, "problems": [], "repeated": False}
    status, told = shared.send(json.dumps(own(made[:1], "one")[0]), JSON)
    assert status == 202 and told["accepted"] == 1
    for name in forms:
        expected = [tuple(f"{name}-{e}" for e in match) for match in answer]
        assert eventually(lambda name=name, expected=expected: mine(shared, name) == expected) and len(expected) > 5


def timed(table):
    """Times as timestamps, texts as categories, and columns that nobody asked for."""
    at = table.schema.get_field_index("ts")
    table = table.set_column(at, "ts", table.column("ts").cast(pa.timestamp("ms")).cast(pa.timestamp("us")))
    at = table.schema.get_field_index("type")
    table = table.set_column(at, "type", table.column("type").combine_chunks().dictionary_encode())
    return table.append_column("more", pa.array([[{"deep": 1}]] * len(table)))


def test_wrong_lines_become_dead_letters_and_the_others_go_on(shared):
    [good, other] = own(events(2, 2), "dead")
    bad = [
        (b'{"id": "x', "unreadable"),
        (b"[1, 2]", "unreadable"),
        (b'{"type": "A", "ts": 5}', "no_id"),
        (b'{"id": "x", "type": "Z", "ts": 5}', "unknown_type"),
        (b'{"id": "x", "type": "A", "ts": "soon"}', "bad_timestamp"),
        (b'{"id": "x", "type": "A", "ts": 5, "x": "much"}', "bad_value"),
        (b'{"id": "\xff\xfe"}', "unreadable"),
        (b'{"id": "' + b"x" * 3_000 + b'", "type": "A", "ts": 5}', "oversized"),
    ]
    before = shared.get("/v1/dead")["newest"]
    body = lines([good]) + b"\n\n" + b"".join(line + b"\n" for line, _ in bad) + lines([other]).rstrip()
    status, told = shared.send(body)
    assert status == 202 and (told["accepted"], told["dead"]) == (2, 8)
    assert [p["line"] for p in told["problems"]] == list(range(4, 12))
    rows = eventually(lambda: len(found := shared.get(f"/v1/dead?after={before}")["rows"]) >= 8 and found)
    for row, (line, reason) in zip(rows[:8], bad, strict=True):
        import base64

        kept = row["text"].encode() if "text" in row else base64.b64decode(row["base64"])
        assert (kept, row["reason"]) == (line, reason) and row["detail"]
    status, told = shared.send(b"not JSON\n")
    assert status == 422 and "none of 1 lines is an event" in told["detail"]


def test_a_document_is_taken_whole_or_not(shared):
    made = own(events(3, 3), "whole")
    status, told = shared.send(json.dumps([*made, {"id": 1}]), JSON)
    assert status == 422 and told["problems"][0]["line"] == 4
    assert all("whole-" not in json.dumps(row) for row in shared.get("/v1/dead?limit=10000")["rows"])
    assert shared.send(json.dumps(made), JSON)[1]["accepted"] == 3  # under the same ids: nothing was taken before
    for body in (b"[1,", b"", b"7", b"null", b'{"id": 1} {"id": 2}'):
        assert shared.send(body, JSON)[0] == 422, body
    assert shared.send(b"[]", JSON)[1]["accepted"] == 0
    assert shared.send(b"")[1]["accepted"] == 0


def test_arrow_rows_stand_for_themselves_and_streams_are_checked(shared):
    made = own(events(3, 4), "rows")
    table = pa.Table.from_pylist([made[0], {**made[1], "ts": None}, {**made[2], "type": "Z"}])
    status, told = shared.send(ipc(table), ARROW)
    assert (status, told["accepted"], told["dead"]) == (202, 1, 2)
    assert [(p["line"], p["reason"]) for p in told["problems"]] == [(2, "bad_timestamp"), (3, "unknown_type")]
    good = ipc(pa.Table.from_pylist(made))
    wrong = pa.Table.from_pylist([{**made[0], "x": "much"}])
    for body in (
        b"", b"\0" * 100, good[:-40], good[:200] + b"\xff" * 50 + good[250:], ipc(wrong),
        ipc(pa.Table.from_pylist(made * 50), compression="zstd"), ipc(pa.table([[1], [2]], names=["id", "id"])),
    ):  # fmt: skip
        status, told = shared.send(body, ARROW)
        assert status == 422, told
    assert shared.send(good, ARROW)[1]["accepted"] == 3


def test_words_about_time(shared):
    assert shared.say("punctuate", ts=5, type="B")[0] == 200
    assert shared.say("punctuate", ts=5, type="A", source="s1")[0] == 200
    for word, given in (
        ("punctuate", {}), ("punctuate", {"ts": "x"}), ("punctuate", {"ts": 2**80}),
        ("punctuate", {"ts": 1, "key": {"z": 1}}),
        ("punctuate", {"ts": 1, "more": 1}), ("advance", {"now": None}), ("advance", {"now": 2**62 + 1}),
    ):  # fmt: skip
        status, told = shared.say(word, **given)
        assert status == 422 and told["detail"], (word, given)
    assert shared.say("advance", now=7)[1]["changes"] == 0
    assert shared.ask("POST", "/v1/advance", b'{"now": 7}')[0] == 415
    explained = shared.get("/v1/explain")
    assert explained["bounds"]["B"] >= 5 and "q" in explained["queries"]


# --- who may come in, and how much -----------------------------------------------------------------------------------


def test_limits_of_bodies_types_and_names(shared):
    big = b"x" * 1_000_001
    assert shared.ask("POST", "/v1/events", big, {"Content-Type": JSON})[0] == 413

    def endless():
        for _ in range(40):
            yield b"y" * 50_000

    connection = shared.connection()
    connection.request("POST", "/v1/events", endless(), {"Content-Type": JSON}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert shared.ask("POST", "/v1/events", b"{}", {"Content-Type": kind})[0] == 415
    assert shared.ask("POST", "/v1/events", b"{}", {"Content-Type": JSON, "Content-Encoding": "gzip"})[0] == 415
    for host, status in (("evil.example", 421), ("evil.example:80", 421), ("localhost:1", 200), ("[::1]:5", 200)):
        assert shared.ask("GET", "/readyz", headers={"Host": host})[0] == status
    here = shared.url.removeprefix("http://").rstrip("/")
    for origin, status in (("http://evil.example", 403), ("null", 403), (f"http://{here}", 202)):
        told = shared.ask("POST", "/v1/events", b"[]", {"Content-Type": JSON, "Origin": origin})
        assert told[0] == status, origin
    cross = {"Content-Type": JSON, "Sec-Fetch-Site": "cross-site"}
    assert shared.ask("POST", "/v1/events", b"[]", cross)[0] == 403
    assert shared.ask("POST", "/v1/events", b"[]", {"Content-Type": JSON, "Idempotency-Key": "x" * 201})[0] == 422
    assert shared.ask("DELETE", "/v1/events")[0] == 405
    assert shared.ask("GET", "/v1/nothing")[0] == 404
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/.hidden", "/page/", "/page/x/y.js"):
        assert shared.ask("GET", path)[0] in (404, 400), path
    for query in ("limit=0", "limit=x", "after=-1", f"after={2**70}", "limit=1&limit=2"):
        assert shared.ask("GET", f"/v1/late?{query}")[0] == 422, query
    assert shared.ask("GET", "/v1/changes?after=x")[0] == 422
    assert shared.ask("GET", "/", headers={"X": "y" * 70_000})[0] == 431


def raw(server, data, seconds):
    """What comes back on a connection on which this was sent, until it is closed."""
    with socket.create_connection(server.address) as connection:
        connection.settimeout(seconds)
        connection.sendall(data)
        found = b""
        while more := connection.recv(65536):
            found += more
        return found


def test_what_is_no_http_is_refused(shared):
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3,
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: b\0\r\n\r\n",
    ):
        assert b" 400 " in raw(shared, data, 5).split(b"\r\n")[0]
    assert b" 400 " in raw(shared, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 5).split(b"\r\n")[0]  # no host
    assert shared.get("/healthz") == {"alive": True}


def test_a_token_is_needed_where_others_could_come(tmp_path):
    file, log = pipeline(tmp_path), tmp_path / "log"
    with pytest.raises(AssertionError, match="so a token is needed"):
        serving(file, "--host", "0.0.0.0", log=log).__enter__()
    with pytest.raises(AssertionError, match="at least 16 are needed"):
        serving(file, log=log, env={"LATECOMER_TOKEN": "short"}).__enter__()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    with serving(file, "--host", "0.0.0.0", "--token-file", tmp_path / "token", log=log) as server:
        server.address = "127.0.0.1", server.address[1]
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        paths = [
            "/v1/explain",
            "/v1/changes?wait=0",
            "/v1/matches",
            "/v1/late",
            "/v1/dead",
            "/metrics",
            "/openapi.json",
        ]
        for path in (*paths, "/v1/live?wait=0"):
            status, headers, body = server.ask("GET", path)
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and b"token is needed" in body
            for wrong in ("Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff"):
                assert server.ask("GET", path, headers={"Authorization": wrong})[0] == 401
            assert server.ask("GET", path, headers=bearer)[0] == 200
        assert server.send(lines(events(1)))[0] == 401
        assert server.send(lines(events(1)), Authorization=f"Bearer {TOKEN}")[0] == 202
        assert server.get("/healthz") and server.get("/readyz")
        assert server.ask("GET", "/")[0] == 401 and server.ask("GET", f"/?token={TOKEN}x")[0] == 401
        status, headers, _ = server.ask("GET", f"/?token={TOKEN}")
        assert status == 303 and headers["Location"] == "/"
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        value = {"Cookie": cookie.partition(";")[0]}
        assert server.ask("GET", "/v1/explain", headers=value)[0] == 200
        assert server.ask("GET", "/v1/explain", headers={"Cookie": "latecomer_token=x"})[0] == 401
        assert server.ask("POST", "/v1/finish", headers={**value, "Origin": "http://evil.example"})[0] == 403
        assert server.stop() == 0
        assert TOKEN not in server.said()


def test_too_many_requests_are_told_when_to_come_back(tmp_path):
    with serving(pipeline(tmp_path, serve="rate = 5"), log=tmp_path / "log") as server:
        answers = [server.ask("GET", "/healthz") for _ in range(30)]
        refused = [headers for status, headers, _ in answers if status == 429]
        assert refused and all(int(headers["Retry-After"]) >= 1 for headers in refused)
        assert answers[0][0] == 200


def test_overload_is_refused_and_nothing_acknowledged_is_lost(tmp_path):
    """Many senders at once, and an inbox for a few requests."""
    import threading

    serve = 'inbox = "64 KiB"\nrate = 1000000'
    made = events(2_000, 11, long=500)
    parts = [lines(made[n : n + 20]) for n in range(0, 2_000, 20)]
    refused, failed = [], []
    with serving(pipeline(tmp_path, serve=serve), log=tmp_path / "log") as server:

        def send(mine):
            try:
                connection = server.connection()
                for body in mine:
                    while True:
                        connection.request("POST", "/v1/events", body, {"Content-Type": "application/x-ndjson"})
                        answer = connection.getresponse()
                        told = json.loads(answer.read())
                        if answer.status == 202:
                            assert told["accepted"] == 20
                            break
                        assert answer.status == 429, told
                        refused.append(int(answer.headers["Retry-After"]))
                        connection.close()
                        time.sleep(0.01)
                connection.close()
            except Exception as problem:  # noqa: BLE001 (told by the test's own thread)
                failed.append(problem)

        threads = [threading.Thread(target=send, args=(parts[n::16],)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        assert refused and min(refused) >= 1
        assert server.send(lines(made[:1_000]))[0] == 413  # however long one waits, there will be no room
        assert server.say("finish")[0] == 200
        assert net(server.changes()) == wanted(made)
        assert server.get("/v1/explain")["counters"]["events"] == 2_000
        told = server.ask("GET", "/metrics")[2].decode()
        [line] = [line for line in told.splitlines() if line.startswith("latecomer_serve_refused_requests_total")]
        assert float(line.split()[-1]) == len(refused)
        assert "latecomer_serve_inbox_bytes 0.0" in told


def test_idle_connections_and_slow_readers_do_not_stop_ingestion(tmp_path):
    """A thousand connections that say nothing or half a word, fifty readers that read nothing, and events go on."""
    made = events(2_000, 12, keys=4, long=800)
    file = pipeline(tmp_path, serve='patience = "2 s"\nrate = 1000000')
    with serving(file, log=tmp_path / "log") as server:
        idle = [socket.create_connection(server.address) for _ in range(1_000)]
        slow = []
        try:
            for number, connection in enumerate(idle):
                if number % 3 == 0:
                    connection.sendall(b"GET /v1/explain HTTP/1.1\r\nHost: local")
                if number % 3 == 1:
                    connection.sendall(
                        b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        b'Content-Length: 1000\r\n\r\n{"id":'
                    )
            for _ in range(50):
                reader = socket.socket()
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(server.address)
                reader.sendall(b"GET /v1/changes?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                slow.append(reader)
            for begin in range(0, 2_000, 50):
                assert server.send(lines(made[begin : begin + 50]))[0] == 202
            assert server.say("finish")[0] == 200
            changes = server.changes()
            assert net(changes) == wanted(made) and len(changes) > 800
            # The slow ones are cut off, as are the half words; who was cut off goes on where it was.
            eventually(lambda: b"latecomer_serve_readers 0.0" in server.ask("GET", "/metrics")[2], 20)
            slow[0].settimeout(10)
            got = b""
            try:
                while more := slow[0].recv(65536):
                    got += more
            except OSError:
                pass
            whole = b"".join(dechunked(got.partition(b"\r\n\r\n")[2])).rpartition(b"\n\n")[0]
            seen = list(parsed(whole))
            assert 0 < len(seen) < len(changes)
            rest = server.changes(after=None, headers={"Last-Event-ID": seen[-1][0]})
            assert seen + rest == changes
            assert idle[1].recv(100)[:12] == b"HTTP/1.1 408"
        finally:
            for connection in idle + slow:
                connection.close()
        assert server.stop() == 0


def dechunked(data):
    """The pieces of a chunked body, as far as it was received."""
    while data:
        size, _, data = data.partition(b"\r\n")
        if not size or not data:
            return
        yield data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


# --- readers ---------------------------------------------------------------------------------------------------------


def test_readers_hear_at_once_and_resume(shared):
    connection = shared.connection(10)
    connection.request("GET", "/v1/changes")
    stream = connection.getresponse()
    assert stream.status == 200 and stream.headers["Content-Type"].startswith("text/event-stream")
    assert stream.readline() == b"retry: 1000\n"
    a = {"id": "now-a", "type": "A", "ts": 10, "k": "now", "x": 1.0, "from": "s"}
    shared.send(lines([a, {**a, "id": "now-c", "type": "C", "ts": 20}]))
    told = b""
    while not told.endswith(b"\n\n") or b"data" not in told:
        told += stream.readline()
    [(place, change)] = parsed(told.strip(b"\n"))
    assert change["events"] == ["now-a", "now-c"] and int(place) == change["position"]
    connection.close()
    shared.send(lines([{**a, "id": "now-b", "type": "B", "ts": 15}]))
    [(_, gone)] = eventually(lambda: shared.changes(after=None, headers={"Last-Event-ID": place}))
    assert (gone["op"], gone["match_id"]) == ("delete", change["match_id"])
    assert [p for p, _ in parsed(shared.ask("GET", f"/v1/changes?after={int(place) - 1}&limit=1")[2])] == [place]
    assert shared.ask("HEAD", "/v1/changes")[0] == 200


def test_changes_are_read_from_files_too(tmp_path):
    made = events(1_500, 13, keys=3)
    file = pipeline(tmp_path)
    for _ in range(2):
        with serving(file, log=tmp_path / "log") as server:
            assert server.send(lines(made))[0] == 202  # the second time none of them is new
            eventually(lambda server=server: server.get("/v1/explain"))
            changes = server.changes()
            assert net(changes) == wanted(made)
            assert server.changes(after="100") == changes[100:]
            told = server.get("/v1/matches?limit=10000&query=q")["matches"]
            assert {tuple(match["events"]) for match in told} == set(wanted(made))
            assert server.get("/v1/matches?query=other")["matches"] == []
            assert server.stop() == 0


def test_a_reader_is_told_what_it_has_missed(tmp_path, monkeypatch):
    monkeypatch.setattr("latecomer.serve.log.SEGMENT", 500)
    monkeypatch.setattr("latecomer.serve.log.RECENT", 5)
    log = Log(tmp_path, 0, 2_000)
    for n in range(1, 101):
        log.append([b'{"position":%d,"op":"insert"}' % n])
    log.sync()

    async def read(after, limit=None):
        return [piece async for piece in changes(log, Bell(), after, limit=limit, patience=0)]

    found = list(parsed(b"".join(asyncio.run(read(3)))))
    oldest = log.oldest
    assert found[0] == (str(oldest - 1), None) and oldest > 4
    assert [c["position"] for _, c in found[1:]] == list(range(oldest, 101))
    assert len(list(parsed(b"".join(asyncio.run(read(oldest, 3)))))) == 3
    assert list(parsed(b"".join(asyncio.run(read(100))))) == []
    log.close()


def test_late_events_are_told(tmp_path):
    file = pipeline(tmp_path)
    file.write_text(file.read_text().replace("30 d", "1 min"))
    a = {"type": "A", "ts": 10**9, "k": "a", "x": 1.0, "from": "s"}
    with serving(file, log=tmp_path / "log") as server:
        server.send(lines([{**a, "id": "first"}, {**a, "id": "later", "ts": 5}]))
        [row] = eventually(lambda: server.get("/v1/late")["rows"])
        assert (row["id"], row["reason"], row["position"]) == ("later", "after_max_delay", 1)
        assert server.get("/v1/late?after=1")["rows"] == []


def test_idle_sources_are_told_the_time(tmp_path):
    """What waits for the wall clock leaves though nothing comes, and after a restart it is not told twice."""
    top = '[stream]\nidle_timeout = "1 s"\n[operation]\nidle_check = "50 ms"'
    file = pipeline(tmp_path, top=top)
    text = file.read_text().replace("SEQ(A a, !B b, C c)", "SEQ(A a, !B b)").replace(" AND c.x >= a.x", "")
    file.write_text(text.replace("10 minutes", "1 s"))
    a = {"id": "a", "type": "A", "ts": time.time_ns() // 10**6, "k": "a", "x": 1.0, "from": "s"}
    with serving(file, log=tmp_path / "log") as server:
        server.send(lines([a]))
        [(place, change)] = eventually(server.changes)
        assert (place, change["op"], change["events"]) == ("1", "insert", ["a"])
        server.kill()
    with serving(file, log=tmp_path / "log") as server:
        assert eventually(server.changes) == [(place, change)]


def test_an_end_in_order(tmp_path):
    """SIGTERM: streams end, what was taken is saved, and the next start has nothing to do again."""
    file, log = pipeline(tmp_path, interval="1 h"), tmp_path / "log"
    made = events(200, 14)
    with serving(file, log=log) as server:
        connections = []
        for path in ("/v1/changes", "/v1/live"):
            connection = http.client.HTTPConnection(*server.address, timeout=10)
            connection.request("GET", path)
            connections.append((connection, connection.getresponse()))
        assert server.send(lines(made))[0] == 202
        assert server.stop(15) == 0
        for connection, stream in connections:
            stream.read()  # to its end, without an error
            connection.close()
        assert "Traceback" not in server.said(), server.said()
    with serving(file, log=log) as server:
        assert "recovered" not in server.said()
        assert net(server.changes()) == wanted(made)
