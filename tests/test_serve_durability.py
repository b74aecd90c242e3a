"""Nothing that was acknowledged is lost, nothing is seen twice: any split into requests, any crash, any retry."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.errors import StateError
from latecomer.serve.config import load
from latecomer.serve.inbox import Closed
from latecomer.serve.journal import Journal, JournalFull
from latecomer.serve.live import Live
from latecomer.serve.log import Log
from latecomer.serve.reading import BodyReader
from latecomer.serve.service import Service
from tests import oracle
from tests.serve_fixture import events, lines, net, pipeline, serving


class Crash(BaseException):
    """The process is killed here."""


class Fuse:
    """Kills the process at the n-th dangerous moment: before, in the middle of, or after each write."""

    def __init__(self, left):
        self.left = left

    def burn(self):
        self.left -= 1
        if self.left == 0:
            raise Crash

    def around(self, patch, owner, name):
        inner = getattr(owner, name)

        def burning(*args, **kwargs):
            self.burn()
            result = inner(*args, **kwargs)
            self.burn()
            return result

        patch.setattr(owner, name, burning)

    def half(self, patch):
        """A record may be half written."""
        inner = os.writev

        def burning(handle, parts):
            try:
                self.burn()
            except Crash:
                whole = b"".join(parts)
                os.write(handle, whole[: len(whole) // 2])
                raise
            return inner(handle, parts)

        patch.setattr("latecomer.serve.journal.os.writev", burning)


class Life:
    """A service that is driven by hand, with what a client and a reader have seen of it."""

    def __init__(self, file):
        self.pipeline = load(file)
        self.seen = {}
        self.service = None
        self.open()

    def open(self):
        p = self.pipeline
        self.service = Service(p.stream, p.queries, BodyReader(p), Path(p.state.uri), interval=0.0)

    def die(self):
        """What the system does when a process is killed."""
        for log in self.service.outcome.logs:
            log.close()
        self.service.journal.close()
        os.close(self.service._lock)

    def look(self):
        """Read as a reader does who resumes behind the last row that he saw."""
        log = self.service.outcome.changes
        first, rows = log.read(max(self.seen, default=0), 10_000)
        for position, row in enumerate(rows, first):
            assert self.seen.setdefault(position, row) == row

    def check(self):
        """What was seen under a position is there under it still."""
        _, rows = self.service.outcome.changes.read(0, 100_000)
        assert [self.seen[p] for p in sorted(self.seen)] == rows[: len(self.seen)]


def expected(pipeline, sent):
    rows = {event["id"]: event for event in sent}
    return sorted(map(tuple, oracle.matches(pipeline.queries[0].plan, list(rows.values()), "ms")))


@settings(max_examples=10)
@given(st.data())
def test_any_split_any_crash_any_retry(tmp_path_factory, data):
    seed = data.draw(st.integers(0, 10_000))
    sent = events(data.draw(st.integers(1, 60)), seed, keys=4)
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    keyed, numbered = data.draw(st.sampled_from([(True, False), (False, False), (True, True)]))
    together = data.draw(st.integers(1, 3))
    by_position = 'id = { record = "position" }' if numbered else ""
    life = Life(pipeline(tmp_path_factory.mktemp("life"), input=by_position))
    requests, begin, number = [], 0, 0
    while begin < len(sent):
        size = sizes[number % len(sizes)]
        bad = b'{"id": "bad%d"\n' % number if number % 3 == 0 else b""
        requests.append((f"key{number}" if keyed else None, lines(sent[begin : begin + size]) + bad))
        if numbered:  # all lines count, whatever they are
            for place, event in enumerate(sent[begin : begin + size], begin + (number + 2) // 3):
                event["id"] = f"http-0-{place}"
        begin, number = begin + size, number + 1
    crashes = 0
    while requests:
        with pytest.MonkeyPatch.context() as patch:
            fuse = Fuse(data.draw(st.integers(1, 60)) if crashes < 6 else 0)
            fuse.half(patch)
            for owner, name in (
                (Journal, "forget"), (Log, "append"), (Log, "sync"), (Service, "_acknowledge"),
            ):  # fmt: skip
                fuse.around(patch, owner, name)
            patch.setattr("latecomer.serve.journal.os.fdatasync", lambda handle, fuse=fuse: fuse.burn())
            fuse.around(patch, type(life.service.runtime), "checkpoint")
            try:
                while requests:
                    futures = [life.service.submit(body, "lines", key) for key, body in requests[:together]]
                    life.service._turn()
                    life.look()
                    assert all(future.result(0) for future in futures)
                    del requests[:together]
            except Crash:
                crashes += 1
                acked = [f for f in futures if f.done() and f.exception() is None]
                del requests[: len(acked)]  # they are acknowledged in order; the others are sent again
                life.die()
                life.open()
                life.check()
    life.service._turn()
    life.look()
    life.service.control("finish")
    life.service._turn()
    life.look()
    changes = [(p, json.loads(row)) for p, row in sorted(life.seen.items())]
    assert net(changes) == expected(life.pipeline, sent)
    dead = Counter(json.loads(row)["text"] for row in life.service.outcome.dead.read(0, 1000)[1])
    assert set(dead) == {f'{{"id": "bad{n}"' for n in range(0, number, 3)}
    if keyed:
        assert set(dead.values()) <= {1}
    life.die()
    life.open()
    life.check()  # as the files have it
    life.die()


def test_killed_at_random_while_clients_retry(tmp_path):
    """A real process, killed four times; a reader follows with Last-Event-ID, senders try again by key."""
    file, log = pipeline(tmp_path, interval="100 ms"), tmp_path / "log"
    sent = events(4_000, 7)
    rng = random.Random(3)
    todo = [(f"r{n}", lines(sent[n * 25 : n * 25 + 25])) for n in range(160)]
    seen, last = [], "0"
    kills = 0
    while todo:
        with serving(file, log=log) as server:
            killer = threading.Timer(rng.uniform(0.02, 0.5), server.process.kill)
            if kills < 4:
                kills += 1
                killer.start()
            try:
                while todo:
                    key, body = todo[0]
                    status, told = server.send(body, idempotency_key=key)
                    assert status == 202 and told["accepted"] == 25, told
                    todo.pop(0)
                    if len(todo) % 5 == 0:
                        new = server.changes(last)
                        seen += new
                        last = new[-1][0] if new else last
                killer.cancel()
                server.kill()  # after the last acknowledgement too
            except (OSError, ValueError, http.client.HTTPException) as problem:
                assert server.process.wait(10) == -9, (problem, server.said())
            finally:
                killer.cancel()
                killer.join() if killer.is_alive() else None
    assert kills == 4
    with serving(file, log=log) as server:
        assert server.say("finish")[0] == 200
        seen += server.changes(last)
        assert [int(place) for place, _ in seen] == list(range(1, len(seen) + 1))
        assert seen == server.changes("0")
        wanted = expected(load(file), sent)
        assert net(seen) == wanted and len(wanted) > 100
        told = server.get("/v1/matches?limit=10000")
        assert told["count"] == len(wanted) and {tuple(m["events"]) for m in told["matches"]} == set(wanted)
        assert server.send(lines(sent[:1]))[0] == 409
        assert server.ask("GET", "/readyz")[0] == 503  # no event will ever be taken again
        assert server.get("/healthz") == {"alive": True}
        assert server.stop() == 0


def test_a_full_disk_refuses_and_goes_on(tmp_path):
    life = Life(pipeline(tmp_path))
    body = lines(events(5))
    with pytest.MonkeyPatch.context() as patch:

        def full(handle, parts):
            os.write(handle, b"half")
            raise OSError(28, "No space left on device")

        patch.setattr("latecomer.serve.journal.os.writev", full)
        refused = life.service.submit(body, "lines", "a")
        life.service._turn()
    with pytest.raises(JournalFull, match="No space left"):
        refused.result(0)
    taken = life.service.submit(body, "lines", "a")
    life.service._turn()
    assert taken.result(0).accepted == 5 and not taken.result(0).repeated
    assert life.service.inbox.nbytes == 0
    life.die()
    life.open()
    assert life.service._applied == life.service.journal.last
    life.die()


def test_where_what_came_out_finds_no_room_it_refuses_and_goes_on(tmp_path):
    """The journal took the record and the logs have no room: rows wait under their positions, nothing more is taken."""
    sent = events(300)
    life = Life(pipeline(tmp_path))
    changes, real = life.service.outcome.changes, life.service.outcome.changes._file

    class Full:
        room = 100

        def write(self, data):
            if not self.room:
                raise OSError(28, "No space left on device")
            written, self.room = real.write(data[: self.room]), 0
            return written

        def __getattr__(self, name):
            return getattr(real, name)

    changes._file = Full()
    first = life.service.submit(lines(sent[:200]), "lines")
    life.service._turn()
    assert first.result(0).accepted == 200 and changes.newest > 5 and not life.service.versions
    assert real.tell() == changes.nbytes == 100
    life.look()  # readers see them
    refused = life.service.submit(lines(sent[200:]), "lines")
    life.service._turn()
    with pytest.raises(JournalFull, match="nothing more is taken in"):
        refused.result(0)
    changes._file = real
    taken = life.service.submit(lines(sent[200:]), "lines")
    life.service._turn()
    assert taken.result(0).accepted == 100 and life.service.versions == 1
    life.look()
    life.die()
    life.open()
    life.check()
    assert net([(n, json.loads(row)) for n, row in life.seen.items()]) == expected(life.pipeline, sent)
    life.die()


def test_where_no_new_file_can_be_had_it_refuses_and_goes_on(tmp_path):
    """As on a disk without free inodes: neither a version nor a record ends the service, and nothing is lost."""
    life = Life(pipeline(tmp_path))
    first, second = life.service.submit(lines(events(5)), "lines", "a"), None
    life.service._take(life.service.inbox.take(0))
    with pytest.MonkeyPatch.context() as patch:

        def none(journal, first):
            raise OSError(28, "No space left on device")

        patch.setattr(Journal, "_open", none)
        life.service._save()
        assert life.service._dirty and life.service.journal.nbytes > 0
        patch.setattr(life.service.journal, "_segment", 1)
        second = life.service.submit(lines(events(9)), "lines", "b")
        life.service._turn()
        with pytest.raises(JournalFull, match="No space left"):
            second.result(0)
    third = life.service.submit(lines(events(9)), "lines", "b")
    life.service._turn()
    assert first.result(0).accepted == 5 and third.result(0).accepted == 9 and not third.result(0).repeated
    life.die()
    life.open()
    assert life.service._applied == life.service.journal.last
    life.die()


def test_a_damaged_journal_is_told(tmp_path):
    journal = Journal(tmp_path / "journal")
    for payload in (b"one" * 100, b"two" * 100, b"three" * 100):
        journal.append(payload)
    journal.close()
    [path] = (tmp_path / "journal").iterdir()
    whole = path.read_bytes()
    for cut in (1, 17, 150):  # in the middle of the last record: it was not acknowledged
        path.write_bytes(whole[:-cut])
        again = Journal(tmp_path / "journal")
        assert [number for number, _ in again.replay(0)] == [1, 2]
        assert again.append(b"more") == 3
        again.close()
    for place in (2, 30, 400):  # in an earlier one: acknowledged events are missing
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with pytest.raises(StateError, match="damaged"):
            Journal(tmp_path / "journal")


def test_journal_files_are_begun_and_forgotten(tmp_path):
    journal = Journal(tmp_path / "journal", segment=100)
    for n in range(1, 11):
        assert journal.append(b"%d" % n * 30) == n
    files = len(list((tmp_path / "journal").iterdir()))
    journal.forget(5)
    assert 1 < len(list((tmp_path / "journal").iterdir())) < files
    assert [number for number, _ in journal.replay(5)] == [6, 7, 8, 9, 10]
    with pytest.raises(StateError, match="begins behind"):
        list(journal.replay(0))
    journal.forget(10)
    assert journal.nbytes == 0 and journal.append(b"x") == 11
    journal.close()
    again = Journal(tmp_path / "journal")
    assert list(again.replay(10)) == [(11, b"x")] and again.nbytes == journal.nbytes
    again.close()


@given(st.lists(st.integers(0, 40), max_size=30), st.data())
def test_a_log_reads_what_was_written(tmp_path_factory, sizes, data):
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latecomer.serve.log.SEGMENT", 200)
        patch.setattr("latecomer.serve.log.RECENT", 10)
        log, model = Log(folder, 0, 1 << 30), []
        for size in sizes:
            rows = [b"row %d" % (len(model) + n) for n in range(size)]
            log.append(rows)
            model += rows
            after = data.draw(st.integers(0, len(model)))
            found = []
            while after + len(found) < len(model):
                first, more = log.read(after + len(found), 7)
                assert first == after + len(found) + 1 and more
                found += more
            assert found == model[after:]
        log.sync()
        log.close()
        position = data.draw(st.integers(0, len(model)))
        again = Log(folder, position, 1 << 30)
        assert again.newest == position and list(again.rows()) == model[:position]
        again.close()
        if position < len(model):
            with pytest.raises(StateError, match="changed from outside"):
                Log(folder, len(model), 1 << 30)


def test_a_log_lets_old_rows_go(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("latecomer.serve.log.SEGMENT", 1_000)
        patch.setattr("latecomer.serve.log.RECENT", 10)
        log = Log(tmp_path / "log", 0, 5_000)
        for n in range(1_000):
            log.append([b"row %06d" % n])
        log.sync()
        assert 1 < log.oldest < 1_000 and log.nbytes <= 5_000
        first, rows = log.read(0, 3)
        assert first == log.oldest and rows[0] == b"row %06d" % (first - 1)
        log.close()


def test_a_folder_has_one_process_and_one_pipeline(tmp_path):
    life = Life(pipeline(tmp_path))
    with pytest.raises(StateError, match="in use by another process"):
        Life(pipeline(tmp_path))
    done = life.service.submit(lines(events(3)), "lines")
    life.service._turn()
    assert done.result(0).accepted == 3
    life.die()
    other = pipeline(tmp_path)
    other.write_text(other.read_text().replace("10 minutes", "11 minutes"))
    with pytest.raises(StateError, match="another pipeline: query 'q' differs"):
        Life(other)
    again = Life(pipeline(tmp_path))  # the refusal has let the folder go
    again.die()


def test_a_folder_that_cannot_be_had_is_told(tmp_path):
    (tmp_path / "file").touch()
    for state, why in (("file", "something else is there"), ("file/in", "something else is there")):
        with pytest.raises(StateError, match=f"{state}' cannot be written: {why}. Make it writable, or give another"):
            Life(pipeline(tmp_path, state=state))


def test_events_that_change_nothing_are_shown_at_once(tmp_path):
    p = load(pipeline(tmp_path))
    live = Live(p.queries, p.stream)
    service = Service(p.stream, p.queries, BodyReader(p), Path(p.state.uri), live=live)
    service.submit(lines([{**event, "type": "B"} for event in events(2)]), "lines")
    service._take(service.inbox.take(0))
    assert len(live.frame(0)["events"]) == 2  # without waiting for the next look
    service.start()
    service.stop()


def test_a_request_counts_once_after_a_restart_too(tmp_path):
    life = Life(pipeline(tmp_path))
    body = lines(events(4)) + b"broken\n"
    first, second = life.service.submit(body, "lines", "k"), life.service.submit(body, "lines", "k")
    life.service._turn()
    assert (first.result(0).accepted, first.result(0).dead, first.result(0).repeated) == (4, 1, False)
    assert (second.result(0).accepted, second.result(0).dead, second.result(0).repeated) == (4, 1, True)
    for _ in range(2):  # once by the journal, once by the version
        life.die()
        life.open()
        again = life.service.submit(body, "lines", "k")
        life.service._turn()
        assert again.result(0).repeated and life.service.outcome.dead.newest == 1
        life.service._dirty = True
        life.service._save()
    life.die()


def test_a_failed_worker_takes_nothing_more(tmp_path):
    life = Life(pipeline(tmp_path))
    with pytest.MonkeyPatch.context() as patch:

        def broken(handle):
            raise OSError(5, "Input/output error")

        patch.setattr("latecomer.serve.journal.os.fdatasync", broken)
        life.service.start()
        waiting = life.service.submit(lines(events(3)), "lines")
        with pytest.raises(Closed, match="failed"):
            waiting.result(10)
        life.service._thread.join(10)
    assert not life.service.alive and not life.service.ready
    with pytest.raises(Closed, match="Input/output error"):
        life.service.submit(lines(events(3)), "lines")
    end = time.monotonic() + 5
    while life.service.inbox.nbytes and time.monotonic() < end:
        time.sleep(0.01)
    assert life.service.inbox.nbytes == 0
