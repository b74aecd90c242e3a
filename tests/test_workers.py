"""Several workers answer as one runtime does, to everything, at any time."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from multiprocessing.connection import Connection
from random import Random
from unittest import mock

import pandas as pd
import pyarrow as pa
import pytest

import latecomer as lc
from latecomer.runtime import Runtime, engine
from latecomer.runtime.joint import Joint
from latecomer.runtime.share import common_key
from latecomer.runtime.workers import crew, merging, processes, threads
from latecomer.runtime.workers.exchange import Exchange
from latecomer.runtime.workers.parallel import ParallelRuntime
from latecomer.runtime.workers.processes import Processes
from latecomer.runtime.workers.remote import Remote, _portable
from latecomer.runtime.workers.threads import Threads
from latecomer.storage import kernels
from tests.squeeze import squeezed
from tests.strategies import act, wild

STREAM = lc.Stream(id="id", unit="s")
QUERY = lc.Query("PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 10 s", name="q", level=lc.Aggressive("5 s"))
SCHEMA = pa.schema([("id", pa.int64()), ("type", pa.string()), ("ts", pa.int64()), ("k", pa.string())])
SORTED = lc.Query("PATTERN SEQ(A a, C c, !B) WHERE [k] WITHIN 10 s", name="s", level=lc.KSlack("5 s"))


class Near:
    """A member in this process: the same loop and the same connection, without the time a process needs to begin."""

    def __init__(self, connection, exchange):
        remote = Remote(Connection(os.dup(connection)), Exchange(os.dup(exchange)))
        self._thread = threading.Thread(target=remote.serve, daemon=True)
        self._thread.start()

    def wait(self, timeout=None):
        self._thread.join(timeout)
        return 0


@contextmanager
def connected():
    """Members as processes are, but here."""
    with mock.patch.object(crew, "others_of", Processes), mock.patch.object(processes, "launch", Near):
        yield


def threaded():
    """Members in threads, which answer where they are asked what takes no time."""
    return mock.patch.object(crew, "others_of", Threads)


@contextmanager
def woken():
    """Members in threads, which are woken for every batch."""
    with threaded(), mock.patch.object(threads, "_MANY", 0):
        yield


def apart():
    """Members in processes."""
    return mock.patch.object(crew, "others_of", Processes)


#: Where the other members may be: of processes their whole road, but for their beginning; and the real ones.
everywhere = pytest.mark.parametrize("place", [connected, threaded, woken])
really = pytest.mark.parametrize("place", [apart, threaded])


def rows(table):
    return sorted(map(str, table.to_pylist()))


def events(n, keys=7, seed=1):
    pick = Random(seed)
    times = sorted(range(n), key=lambda t: t + pick.choice([0, 0, pick.randrange(5)]))
    return [{"id": t, "type": pick.choice("ABC"), "ts": t, "k": f"k{pick.randrange(keys)}"} for t in times]


def shared_case(seed):
    """A run whose queries have a key in common and whose levels workers may have; copies have the key that they had."""
    for number in range(seed * 1000, (seed + 1) * 1000):
        case = wild(number, queries=3)
        queries = [a.query() for a in case.asked]
        key = common_key([q.plan for q in queries])
        learns = any(isinstance(q.level, lc.Aggressive) and q.level.retractions is not None for q in queries)
        if key and not learns and one_key_per_id(case, key):
            return case
    raise AssertionError("no case to compare")


def one_key_per_id(case, key):
    found = {}
    for kind, row, *_ in case.steps:
        if kind == "row" and found.setdefault(row.get("id"), said := [row.get(n) for n in key]) != said:
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
@everywhere
def test_every_call_gives_what_one_runtime_gives(seed, place):
    case, pick = shared_case(seed), Random(seed)
    with squeezed(case.squeeze), place():
        alone = case.runtime()
        several = ParallelRuntime(alone.stream, alone.queries, workers=pick.choice([1, 2, 3]))
        for action, _ in [*case.batches(), (("finish",), 0)]:
            one, all_ = (r.finish() if action == ("finish",) else act(r, action) for r in (alone, several))
            assert one.changes.schema == all_.changes.schema
            assert one.late.schema == all_.late.schema
            assert rows(one.changes) == rows(all_.changes)
            assert rows(one.late) == rows(all_.late)
            for query in alone.queries:
                if isinstance(query.level, lc.KSlack):
                    assert completions(one, query) == completions(all_, query)
            assert alone.counters == several.counters
            assert alone.clock == several.clock
            assert facts(alone.explain()) == facts(several.explain())
            if action != ("finish",) and pick.random() < 0.2:
                several = Runtime.restore(several.snapshot())


def completions(out, query):
    mine = [r for r in out.changes.to_pylist() if r["query"] == query.name]
    return [(r["first_ts"] if any(n.kind == "trailing" for n in query.plan.negations) else r["last_ts"]) for r in mine]


def facts(explained):
    """What one runtime and several must say alike: all but bytes, and which waiting matches are shown."""
    plain = {k: v for k, v in explained.items() if k not in ("bytes", "memory", "events", "workers", "queries")}
    queries = {
        name: {k: v for k, v in told.items() if k not in ("bytes", "stored", "waiting")}
        for name, told in explained["queries"].items()
    }
    recent = ("share_late", "lateness")  # after a restart of the events since then
    sources = {n: {k: v for k, v in told.items() if k not in recent} for n, told in plain.pop("sources").items()}
    return plain | {"queries": queries, "sources": sources}


@really
def test_workers_answer_as_one_runtime_does(place):
    """The real thing, with all kinds of batches."""
    alone = lc.Runtime(STREAM, [QUERY, SORTED])
    with place():
        several = lc.Runtime(STREAM, [QUERY, SORTED], workers=2)
    given = events(3_000)
    kinds = [list, pa.Table.from_pylist, pd.DataFrame, lambda r: pa.Table.from_pylist(r).to_batches()[0]]
    for number, begin in enumerate(range(0, len(given), 250)):
        batch = kinds[number % len(kinds)](given[begin : begin + 250])
        one, all_ = alone.process(batch), several.process(batch)
        assert rows(one.changes) == rows(all_.changes)
        assert rows(one.late) == rows(all_.late)
    assert rows(alone.finish().changes) == rows(several.finish().changes)
    assert alone.counters == several.counters
    shares = [worker["events"] for worker in several.explain()["workers"]]
    several.close()
    assert len(shares) == 2


def test_threads_are_for_compiled_kernels():
    with mock.patch.object(kernels, "step", None):
        assert isinstance(crew.others_of(1), Processes)
    with mock.patch.object(kernels, "step", print):
        assert isinstance(crew.others_of(1), Threads)


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_that_is_read_jointly_gives_what_one_runtime_gives(seed):
    """However it is split, with rows that nobody can read so, and with a schema that changes."""
    pick = Random(seed)
    given = events(12_000, keys=300, seed=seed)
    for row in given:
        if pick.random() < 0.002:
            row[pick.choice(["type", "ts", "k"])] = None
    schemas = [SCHEMA, pa.schema([*list(SCHEMA)[::-1], ("more", pa.string())])]
    alone = lc.Runtime(STREAM, QUERY)
    with (
        woken(),
        mock.patch.object(Joint, "rows", counted(Joint.rows)) as asked,
    ):
        several = lc.Runtime(STREAM, QUERY, workers=3)
        begin = 0
        while begin < len(given):
            size = pick.choice([1, 90, 600, 1_500, 4_000])
            [batch] = (
                pa.Table.from_pylist(given[begin : begin + size], pick.choice(schemas)).combine_chunks().to_batches()
            )
            begin += size
            one, all_ = alone.process(batch), several.process(batch)
            assert rows(one.changes) == rows(all_.changes)
            assert rows(one.late) == rows(all_.late)
            assert alone.counters == several.counters
        several.close()
    assert not kernels.COMPILED or any(asked.told)


def counted(function):
    """The function, which keeps in ``told`` whether what it returned was something."""

    def call(*given):
        call.told.append(result := function(*given))
        return result

    call.told = []
    return call


@really
def test_each_worker_holds_a_part_of_the_events(place):
    long = lc.Query("PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 1 h", name="q", level=lc.Aggressive("5 s"))
    with place():
        several = lc.Runtime(STREAM, long, workers=2)
    several.process(events(2_000, keys=500))
    explained = several.explain()
    shares = [worker["events"] for worker in explained["workers"]]
    several.close()
    assert sum(shares) == explained["events"] and min(shares) > 0.3 * sum(shares)


@really
def test_a_batch_larger_than_the_one_before_finds_room(place):
    with place():
        several = lc.Runtime(lc.Stream(id="id", unit="s"), QUERY, workers=2)
    wide = pa.table({"id": range(50), "type": ["A"] * 50, "ts": range(50), "k": ["x" * 100_000] * 50})
    assert several.process(wide.slice(0, 2)).changes.num_rows == 0
    several.process(wide)  # 5 MB
    assert several.counters["duplicates"] == 2
    several.close()


@everywhere
def test_pieces_come_as_they_are_found(place):
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        pieces = list(several.stream_pieces(events(200)))
        assert (
            sum(p.changes.num_rows for p in pieces) == lc.Runtime(STREAM, QUERY).process(events(200)).changes.num_rows
        )


@everywhere
def test_pieces_left_behind_are_noticed(place):
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        next(several.stream_pieces(events(200)))
        with pytest.raises(lc.StateError, match="half-way"):
            several.process(events(10))


@everywhere
def test_a_refused_batch_changes_nothing(place):
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        several.process(events(10))
        with pytest.raises(lc.SchemaError, match="no column 'type'"):
            several.process(pa.table({"id": [1]}))
        with pytest.raises(lc.ConfigError, match="no time"):
            several.advance("soon")
        several.process(events(10))
        assert several.counters["duplicates"] == 10


def test_a_killed_worker_is_named_and_the_last_version_goes_on(tmp_path):
    given = events(600)
    alone = lc.Runtime(STREAM, QUERY)
    truth = rows(alone.process(given).changes) + rows(alone.finish().changes)
    with apart():
        several = lc.Runtime(STREAM, QUERY, workers=2, memory="4 MiB", spill=tmp_path / "state")
    told = []
    for begin in range(0, 400, 100):
        told += rows(several.process(given[begin : begin + 100]).changes)
        several.checkpoint({"next": begin + 100})
    os.kill(several._crew.others.processes[1].pid, signal.SIGKILL)
    with pytest.raises(lc.StateError, match=r"worker 1 of 2 was ended by signal 9.*Runtime.open"):
        several.process(given[400:500])
    with pytest.raises(lc.StateError):
        several.checkpoint()
    again = lc.Runtime.open(tmp_path / "state", memory="4 MiB")
    assert isinstance(again, ParallelRuntime)
    assert again.note == {"next": 400}
    told += rows(again.process(given[400:]).changes) + rows(again.finish().changes)
    again.close()
    assert net(told) == net(truth)


def net(told):
    ops = [eval(row) for row in told]  # rows as rows() has written them
    inserted = sorted(r["match_id"] for r in ops if r["op"] == "insert")
    for row in ops:
        if row["op"] == "delete":
            inserted.remove(row["match_id"])
    return inserted


@everywhere
def test_a_version_that_not_all_have_written_is_none(tmp_path, place):
    """The whole is named last: a crash between the workers' writes and that leaves the version before."""
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2, spill=tmp_path)
        several.process(events(100))
        several.checkpoint({"at": 1})
        several.process(events(200)[100:])
        several._crew.ask("write", 2)
        again = lc.Runtime.open(tmp_path)
        assert again.note == {"at": 1}
        assert again.counters["events"] == 100
        again.process(events(200)[100:])
        assert again.checkpoint({"at": 2}) == 2
        with pytest.raises(lc.StateError, match="fenced"):
            several.checkpoint()
        assert lc.Runtime.open(tmp_path).counters["events"] == 200


@everywhere
def test_a_folder_that_was_begun_and_never_written_can_be_begun_again(tmp_path, place):
    with place():
        first = lc.Runtime(STREAM, QUERY, workers=2, spill=tmp_path)
        first.process(events(100))
        first._crew.ask("write", 1)
        second = lc.Runtime(STREAM, QUERY, workers=2, spill=tmp_path)
        second.process(events(50))
        second.checkpoint()
        assert lc.Runtime.open(tmp_path).counters["events"] == 50


def test_processes_end_with_the_runtime():
    with apart():
        several = lc.Runtime(STREAM, QUERY, workers=2)
    [process] = several._crew.others.processes.values()
    assert process.poll() is None
    del several
    gc.collect()
    assert process.poll() == 0


@pytest.mark.parametrize("how", ["close", "forget"])
@pytest.mark.parametrize("left", [False, True])
def test_threads_end_with_the_runtime(how, left):
    """Even such as wait for somebody to take their pieces."""
    with woken(), mock.patch.object(engine, "PIECE", 1):
        several = lc.Runtime(STREAM, [QUERY, SORTED], workers=2)
        if left:
            pieces = several.stream_pieces(events(2_000))
            next(pieces)
            del pieces
        [seat] = several._crew.others.seats.values()
        thread = seat.thread
        del seat
        assert thread.is_alive()
        if how == "close":
            several.close()
            with pytest.raises(lc.StateError, match=r"finish\(\) was called|close\(\) was called"):
                several.process(events(1))
        del several
        gc.collect()
        assert not thread.is_alive()


@really
@pytest.mark.parametrize("left", [False, True])
def test_an_interpreter_ends_though_nobody_closes(place, left):
    taken = "next(r.stream_pieces(rows))" if left else "r.process(rows)"
    others = "Processes" if place is apart else "Threads"
    code = f"""
import latecomer as lc
from latecomer.runtime.workers import crew
crew.others_of = crew.{others}
if __name__ == "__main__":
    rows = [dict(id=i, type="ABC"[i % 3], ts=i, k=i % 2) for i in range(3_000)]
    r = lc.Runtime(lc.Stream(id="id", unit="s"), lc.Query({QUERY.text!r}), workers=2)
    {taken}
    print("done")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


@everywhere
def test_what_only_one_worker_cannot_do_ends_all(place):
    """The message that is there whatever the worker had to say."""

    def fails(self, *given, **options):
        if self._share is not None and self._share.number:
            raise ValueError("of the second alone")
        return whole(self, *given, **options)

    whole = Runtime.process
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        several.process(events(10))
        with mock.patch.object(Runtime, "process", fails), pytest.raises(ValueError, match="of the second alone"):
            several.process(events(10))
        with pytest.raises(lc.StateError, match="half-way"):
            several.process(events(10))
        with pytest.raises(lc.StateError, match="half-way"):
            several.snapshot()
        several.close()


@everywhere
def test_whoever_is_interrupted_is_told_so_by_the_next_call(place):
    def interrupted(self, *given, **options):
        if self._share is not None and not self._share.number:
            raise KeyboardInterrupt
        return whole(self, *given, **options)

    whole = Runtime.process
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        with mock.patch.object(Runtime, "process", interrupted), pytest.raises(KeyboardInterrupt):
            several.process(events(10))
        with pytest.raises(lc.StateError, match="half-way"):
            several.process(events(10))
        with pytest.raises(lc.StateError, match="half-way"):
            several.counters  # noqa: B018 - what is asked is whether it answers
        several.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@everywhere
def test_a_forked_process_is_told_that_workers_stay_behind(place):
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        several.process(events(10))
        child = os.fork()
        if not child:
            try:
                several.process(events(10))
            except lc.StateError as problem:
                os._exit(7 if "forked" in str(problem) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        several.process(events(20)[10:])
        several.close()


@really
def test_a_snapshot_goes_on_wherever_workers_are(place):
    alone = lc.Runtime(STREAM, [QUERY, SORTED])
    with place():
        several = lc.Runtime(STREAM, [QUERY, SORTED], workers=2)
    given = events(900)
    for begin in range(0, 900, 300):
        part = given[begin : begin + 300]
        assert rows(alone.process(part).changes) == rows(several.process(part).changes)
        before = several
        with threaded():
            several = Runtime.restore(before.snapshot())
        before.close()
    assert rows(alone.finish().changes) == rows(several.finish().changes)
    several.close()


@everywhere
def test_a_dropped_query_says_no_more(place):
    with place():
        several = lc.Runtime(STREAM, [QUERY, SORTED], workers=2)
        several.process(events(100))
        several.drop(["s"])
        out = several.process(events(200)[100:])
        assert set(out.changes["query"].to_pylist()) == {"q"}
        assert [q.name for q in several.queries] == list(several.explain()["queries"]) == ["q"]
        with pytest.raises(lc.ConfigError, match="no query would be left"):
            several.drop(["q"])


@everywhere
def test_shelves_and_keys_are_the_workers_own(place):
    with place():
        several = lc.Runtime(STREAM, QUERY, workers=2)
        for call in (several.residue, several.freeze, lambda: several.narrow(["k"], None)):
            with pytest.raises(lc.ConfigError, match="workers=1"):
                call()


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        (QUERY, {"workers": 0}, "whole number from 1"),
        (QUERY, {"workers": "2"}, "whole number from 1"),
        (QUERY, {"workers": True}, "whole number from 1"),
        (lc.Query("PATTERN SEQ(A a, C c) WITHIN 10 s", name="q", level=lc.KSlack(5)), {"workers": 2}, r"q \[\].*WHERE"),
        (
            lc.Query(
                "PATTERN SEQ(A a, !B, C c) WHERE [k] WITHIN 10 s",
                name="q",
                level=lc.Aggressive("5 s", retractions=0.1),
            ),
            {"workers": 2},
            "patience that adapts",
        ),
        (QUERY, {"workers": 2, "memory": "64 MiB"}, "spill="),
    ],
)
def test_what_cannot_be_shared_out_is_refused(queries, options, message):
    with pytest.raises(lc.ConfigError, match=message):
        lc.Runtime(STREAM, queries, **options)


def test_everything_public_is_answered_by_the_workers():
    """A method that the parallel runtime had not, would answer from an engine that is not there."""
    inherited = {"restore", "open", "resume"}
    public = {name for name in vars(Runtime) if not name.startswith("_")} - inherited
    assert public <= set(vars(ParallelRuntime))


def test_errors_that_cannot_be_sent_arrive_as_text():
    class Stubborn(Exception):
        def __reduce__(self):
            raise TypeError("no")

    assert isinstance(_portable(Stubborn("x")), lc.StateError)
    assert pickle.loads(pickle.dumps(_portable(lc.ConfigError("y")))).args == ("y",)


def test_changes_are_put_in_order_whatever_pieces_they_come_in():
    plans = [lc.Query(QUERY.text, name=name).plan for name in ("one", "two")]
    names = pa.chunked_array([[], ["two", "one"], ["one", "two", "two"]], pa.string())
    given = pa.table({"query": names, "n": pa.chunked_array([[0, 1, 2], [3, 4]])})
    ordered = merging.in_order(given, plans, lambda _: 0)
    assert ordered.to_pydict() == {"query": ["one"] * 2 + ["two"] * 3, "n": [1, 2, 0, 3, 4]}


MANY_PIECES = pa.table(
    {"id": range(10_000), "type": ["A", "C"] * 5_000, "ts": range(10_000), "k": [i // 2 % 50 for i in range(10_000)]}
)


@everywhere
def test_pieces_that_are_taken_after_close_end(place):
    """Whoever waits for a worker that has left is told so."""
    queries = [
        lc.Query("PATTERN SEQ(A a, C c) WHERE [k] WITHIN 300 s", name=f"q{i}", level=lc.Aggressive("5 s"))
        for i in range(5)
    ]
    with place():
        runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries, workers=2)
        pieces = runtime.stream_pieces(MANY_PIECES)
        next(pieces)
        runtime.close()
        with pytest.raises(lc.StateError, match="close"):
            list(pieces)
        for call in (lambda: runtime.process(MANY_PIECES), runtime.finish, runtime.snapshot):
            with pytest.raises(lc.StateError, match="close"):
                call()


def test_a_runtime_that_is_closed_says_so():
    runtime = lc.Runtime(
        lc.Stream(id="id", unit="s"), lc.Query("PATTERN SEQ(A a, C c) WITHIN 3 s", level=lc.KSlack("3 s"))
    )
    runtime.close()
    with pytest.raises(lc.StateError, match="close"):
        runtime.process([{"id": 1, "type": "A", "ts": 1}])
    again = lc.Runtime.restore(runtime.snapshot())
    assert again.process([{"id": 1, "type": "A", "ts": 1}]).changes.num_rows == 0


@everywhere
def test_what_is_left_after_drop_is_as_of_one_runtime(place):
    """A sorted level stays in order, and a name may be dropped again, from a snapshot too."""
    random, n = Random(1), 10_000
    whole = pa.table(
        {
            "id": range(n),
            "type": [random.choice("AC") for _ in range(n)],
            "ts": [i // 2 for i in range(n)],
            "k": [random.randrange(200) for _ in range(n)],
        }
    )
    text = "PATTERN SEQ(A a, C c) WHERE [k] WITHIN 10 s"
    queries = [
        lc.Query(text, name="soon", level=lc.Aggressive("20 s")),
        lc.Query(text, name="sorted", level=lc.KSlack("20 s")),
    ]
    with place():
        runtime = lc.Runtime(lc.Stream(id="id", unit="s"), queries, workers=2)
        runtime.process(whole.slice(0, 5_000))
        runtime.drop(["soon"])
        runtime.drop(["soon"])
        times = runtime.process(whole.slice(5_000)).changes["last_ts"].to_pylist()
        assert len(times) > 5
        assert times == sorted(times)
        snapshot = runtime.snapshot()
        runtime.close()
        again = lc.Runtime.restore(snapshot)
        again.drop(["soon"])
        assert [query.name for query in again.queries] == ["sorted"]
        again.close()
