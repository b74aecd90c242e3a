"""Watching a pipeline: readiness, metrics, logs, progress, signals; and what ``check --connect`` finds in a cluster."""

import json
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import latecomer as lc
from latecomer.cli.app import app
from latecomer.connectors.kafka.check import look
from latecomer.connectors.kafka.config import loads
from latecomer.connectors.kafka.operation import Figures, Watch
from latecomer.connectors.kafka.operation.explaining import Explaining
from latecomer.connectors.kafka.operation.http import serving
from latecomer.connectors.kafka.operation.logs import logging_to
from latecomer.connectors.kafka.operation.metrics import PipelineMetrics
from latecomer.connectors.kafka.operation.progress import Progress
from latecomer.connectors.kafka.operation.signals import CUT_OFF, ending_on_signals
from latecomer.errors import ConfigError
from tests.kafka_fixture import USERS

# the watch


def test_health_follows_the_beat_and_readiness_the_loop():
    now = [100.0]
    watch = Watch(stall=30, clock=lambda: now[0])
    assert watch.alive and not watch.is_ready
    watch.ready(True)
    assert watch.is_ready
    now[0] += 29
    assert watch.alive
    now[0] += 1
    assert not watch.alive and not watch.is_ready
    watch.beat()
    assert watch.alive and watch.is_ready
    watch.stop()
    assert watch.alive and not watch.is_ready and watch.stopping


def test_figures_are_shown_once_a_second_to_all_who_listen():
    now, heard = [0.0], []

    class Listener:
        def begin(self, name, runtime):
            heard.append(("begin", name))

        def show(self, figures, runtimes):
            heard.append((figures.consumed, sorted(runtimes)))

    watch = Watch([Listener(), Listener()], clock=lambda: now[0])
    assert watch.due
    watch.begin("in-0", None)
    watch.show(Figures(consumed=3), {"in-0": None})
    assert heard == [("begin", "in-0")] * 2 + [(3, ["in-0"])] * 2
    now[0] = 0.99
    assert not watch.due
    now[0] = 1.0
    assert watch.due


# metrics and the server


def _get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _runtime():
    query = lc.Query("PATTERN SEQ(A a, !B, C c) WITHIN 10 s", name="q", level=lc.KSlack("3 s"))
    return lc.Runtime(lc.Stream(id="id", unit="s"), query)


def test_the_server_tells_how_it_goes():
    metrics = PipelineMetrics("p")
    now = [0.0]
    watch = Watch([metrics], clock=lambda: now[0])
    runtime = _runtime()
    runtime.process([{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "C", "ts": 5}, {"id": 3, "type": "A", "ts": 9}])
    watch.begin("in-0", runtime)  # restored: what it counted before is not counted again
    runtime.process([{"id": 4, "type": "C", "ts": 12}, {"id": 5, "type": "A", "ts": 2}])
    figures = Figures(
        lag={("in", 0): 7, ("in", 1): 0}, consumed=5, bytes=500, changes=2, late=1, dead={"oversized": 3},
        transactions=4, aborted=1, in_flight=9, paused=1,
    )  # fmt: skip
    watch.show(figures, {"in-0": runtime})
    with serving(watch, metrics.registry, Explaining(), "127.0.0.1", 0) as address:
        assert _get(f"{address}/readyz") == (503, '{"ready": false, "stopping": false}\n')
        assert _get(f"{address}/healthz") == (200, '{"alive": true}\n')
        watch.ready(True)
        assert _get(f"{address}/readyz?probe=1")[0] == 200
        code, text = _get(f"{address}/metrics")
        assert code == 200
        found = _samples(text)
        own = ("pipeline", "p")
        for name, value in {
            "messages_total": 5, "bytes_total": 500, "changes_total": 2, "late_rows_total": 1, "commits_total": 4,
            "aborted_transactions_total": 1, "in_flight_messages": 9, "paused_partitions": 1,
        }.items():  # fmt: skip
            assert found[f"latecomer_kafka_{name}", own] == value
        assert found["latecomer_kafka_dead_letters_total", own, ("reason", "oversized")] == 3
        assert found["latecomer_kafka_lag_messages", ("partition", "0"), own, ("topic", "in")] == 7
        part, query = ("runtime", "in-0"), ("query", "q")
        assert found["latecomer_events_total", part] == 2
        assert found["latecomer_late_events_total", query, ("reason", "after_k"), part] == 1
        assert found["latecomer_clock_seconds", part] == 12
        assert found["latecomer_horizon_lag_seconds", query, part] == 4
        assert found["latecomer_held_matches", query, part] == runtime.explain()["queries"]["q"]["held"]
        watch.show(Figures(), {})
        assert not any("latecomer_events" in key[0] for key in _samples(_get(f"{address}/metrics")[1]))
        assert _get(f"{address}/else")[0] == 404
        watch.stop()
        assert _get(f"{address}/readyz") == (503, '{"ready": false, "stopping": true}\n')
        now[0] = 31.0
        assert _get(f"{address}/healthz")[0] == 503
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"the port {port} of 127.0.0.1 cannot be had"):
            serving(watch, metrics.registry, Explaining(), "127.0.0.1", port).__enter__()


def test_questions_are_answered_at_the_next_look():
    runtime = _runtime()
    runtime.process([{"id": 1, "type": "A", "ts": 1}, {"id": 2, "type": "C", "ts": 5}])
    explaining = Explaining()
    watch = Watch([explaining], every=0.0)
    with serving(watch, PipelineMetrics("p").registry, explaining, "127.0.0.1", 0) as address:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(_get(f"{address}/explain")))
        asking.start()
        until = time.monotonic() + 30
        while asking.is_alive() and time.monotonic() < until:
            watch.show(Figures(), {"in-0": runtime})
            time.sleep(0.01)
        asking.join(10)
    ((code, text),) = answers
    assert code == 200
    told = json.loads(text)["in-0"]
    assert told["clock"] == 5 and told["queries"]["q"]["level"] == str(runtime.queries[0].level)


def test_a_question_is_not_answered_while_the_loop_is_busy():
    explaining = Explaining()
    assert explaining.ask(0.01) is None
    explaining.show(Figures(), {})  # answers whoever asked before
    assert explaining.ask(0.01) is None  # and nobody who asks afterwards


def test_progress_counts_from_the_last_look():
    lines, now = [], [0.0]
    line = Progress(lines.append, clock=lambda: now[0])
    for second, consumed in ((1.0, 500), (3.0, 2_500)):
        now[0] = second
        line.show(Figures(consumed=consumed, lag={("in", 0): 5, ("in", 1): 7}, dead={"a": 1, "b": 2}, paused=1), {})
    assert lines[0].startswith("500 messages (500/s), 0 changes, 0 late, 3 dead; 12 behind in 2 partitions, 1 paused")
    assert lines[1].startswith("2,500 messages (1,000/s)")


# logs


def test_a_log_is_one_line_of_json_each():
    lines = []
    with logging_to(lines.append, level="info"):
        log = logging.getLogger("latecomer.kafka.test")
        log.debug("not asked for")
        log.warning("taken\nover", extra={"fields": {"topic": "in", "offsets": {("in", 3): 7}, "at": 1.5}})
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("failed")
    logging.getLogger("latecomer.kafka.test").error("afterwards")
    first, second = map(json.loads, lines)
    assert (first["level"], first["message"], first["topic"]) == ("warning", "taken\nover", "in")
    assert first["offsets"] == {"in-3": 7} and first["logger"] == "latecomer.kafka.test"
    assert first["time"].endswith("+00:00")
    assert "ValueError: broken" in second["error"]


def test_a_log_for_people():
    lines = []
    with logging_to(lines.append, form="text"):
        fields = {"topic": "in", "offsets": {("in", 3): 7, ("in", 4): 0}, "partitions": ["in-3", "in-4"]}
        logging.getLogger("latecomer.kafka.test").info("taken", extra={"fields": fields})
    assert lines[0].endswith("info    taken  topic=in  offsets=in-3:7,in-4:0  partitions=in-3,in-4")


# signals


def test_the_first_signal_asks_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    watch = Watch()
    with ending_on_signals(watch, 60):
        assert not watch.stopping
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 10
        while not watch.stopping and time.monotonic() < until:
            time.sleep(0.01)
        assert watch.stopping
        assert signal.getsignal(signal.SIGTERM) == before[0]  # the second signal acts at once
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    until = time.monotonic() + 10
    while any(t.name == "latecomer-cut-off" for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(t.name == "latecomer-cut-off" for t in threading.enumerate())


def test_a_loop_that_does_not_end_is_cut_off():
    script = (
        "import time\n"
        "from latecomer.connectors.kafka.operation import Watch\n"
        "from latecomer.connectors.kafka.operation.signals import ending_on_signals\n"
        "with ending_on_signals(Watch(), 0.2):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == CUT_OFF


# the cluster

PIPELINE = """
name = "look"
[kafka]
brokers = "{brokers}"
{more}
[columns]
tag = "text"
[[input]]
topic = {topics}
format = "json"
{key}
[[query]]
name = "q"
text = "PATTERN SEQ(A a, B b) WHERE [tag] WITHIN 5 s"
level = "kslack(1 s)"
[output]
changes = "{log}"
matches = "{now}"
late = "{late}"
dead_letters = "{dead}"
[state]
uri = "/nowhere"
"""
SASL = """security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "PLAIN"
sasl.username = "{}"
sasl.password = "{}\""""


@pytest.fixture(scope="module")
def topics(kafka):
    return {
        "log": kafka.topic(),
        "now": kafka.topic(cleanup_policy="compact"),
        "late": kafka.topic(),
        "dead": kafka.topic(),
    }


def _pipeline(brokers, inputs, topics, key='key = "tag"', more="", end=""):
    text = PIPELINE.format(brokers=brokers, topics=json.dumps(inputs), key=key, more=more, **topics)
    return text + end


def _found(text, seconds=10.0):
    return {(f.verdict, f.subject): f.text for f in look(loads(text), seconds)}


@pytest.mark.kafka
def test_a_cluster_that_has_everything(kafka, topics, tmp_path):
    source = kafka.topic(3)
    text = _pipeline(kafka.bootstrap, [source], topics)
    found = _found(text)
    assert {verdict for verdict, _ in found} == {"ok"}
    assert found["ok", f"topic {source}"] == "3 partitions, may READ"
    assert found["ok", f"topic {topics['log']}"] == "1 partitions, may WRITE"
    assert found["ok", "partitions"] == "3, each for itself"
    assert {("ok", "brokers"), ("ok", "group look"), ("ok", "transactions")} <= found.keys()
    (tmp_path / "p.toml").write_text(text)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "p.toml"), "--connect", "--json"])
    assert result.exit_code == 0, result.output
    assert {f["verdict"] for f in json.loads(result.stdout)["cluster"]} == {"ok"}


@pytest.mark.kafka
def test_what_a_cluster_lacks(kafka, topics, tmp_path):
    one, three = kafka.topic(1), kafka.topic(3)
    swapped = topics | {"log": topics["now"], "now": topics["log"], "late": "not-there"}
    text = _pipeline(kafka.bootstrap, [one, three], swapped)
    found = _found(text)
    assert "create it, or correct its name" in found["error", "topic not-there"]
    assert "different numbers of partitions" in found["error", "partitions"]
    assert "is not compacted" in found["warning", f"topic {topics['log']}"]
    assert "is compacted" in found["error", f"topic {topics['now']}"]
    (tmp_path / "p.toml").write_text(text)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "p.toml"), "--connect"])
    assert result.exit_code == 2
    assert "error   topic not-there" in " ".join(result.stdout.split("\n"))
    # Looking creates nothing.
    from confluent_kafka.admin import AdminClient

    assert "not-there" not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics


@pytest.mark.kafka
def test_partitions_of_another_key(kafka, topics):
    three, one, internal = kafka.topic(3), kafka.topic(1), kafka.topic(4)
    unknown = _found(_pipeline(kafka.bootstrap, [three], topics, key=""))
    assert "[repartition]" in unknown["error", "partitions"]
    assert ("ok", "partitions") in _found(_pipeline(kafka.bootstrap, [one], topics, key=""))
    section = "[repartition]\ntopic = '{}'\npartitions = {}\n"
    for name, count, verdict, told in (
        (internal, 4, "ok", "may READ and WRITE"),
        (internal, 5, "error", "has 4 partitions, and the file says 5"),
        ("will-be", 5, "ok", "the first start will create it"),
    ):
        found = _found(_pipeline(kafka.bootstrap, [three], topics, key="", end=section.format(name, count)))
        assert told in found[verdict, f"topic {name}"]


@pytest.mark.kafka
def test_permissions(kafka, topics):
    source, hidden = kafka.topic(), kafka.topic()
    kafka.allow("reader", source, "read")
    kafka.allow("reader", topics["log"], "describe")
    for name in ("now", "late"):
        kafka.allow("reader", topics[name], "write", "describe")
    text = _pipeline(
        kafka.sasl_bootstrap, [source], topics | {"dead": hidden}, more=SASL.format("reader", USERS["reader"])
    )
    found = _found(text)
    assert "may READ" in found["ok", f"topic {source}"]
    assert "this user may not WRITE" in found["error", f"topic {topics['log']}"]
    assert f"--operation Write --topic {topics['log']}" in found["error", f"topic {topics['log']}"]
    assert "may not be seen by this user, or is not there" in found["error", f"topic {hidden}"]
    assert "may not see whether it is compacted" in found["warning", f"topic {topics['now']}"]
    nobody = _found(_pipeline(kafka.sasl_bootstrap, [source], topics, more=SASL.format("writer", USERS["writer"])))
    assert ("error", "group look") in nobody and ("error", "transactions") in nobody


@pytest.mark.kafka
def test_a_wrong_password_is_told_and_not_shown(kafka, topics):
    text = _pipeline(kafka.sasl_bootstrap, ["in"], topics, more=SASL.format("reader", "wrong-wrong-wrong"))
    ((key, told),) = _found(text).items()
    assert key == ("error", "brokers") and "Authentication failed" in told
    assert "wrong-wrong" not in told


def test_brokers_that_are_not_there_are_given_up_in_time(topics_elsewhere):
    begun = time.monotonic()
    ((key, told),) = _found(topics_elsewhere, seconds=2.0).items()
    assert key == ("unknown", "brokers") and "Connection refused" in told
    assert time.monotonic() - begun < 60  # bounded; how long exactly is the machine's affair


@pytest.fixture
def topics_elsewhere():
    names = {name: name for name in ("log", "now", "late", "dead")}
    return _pipeline("127.0.0.1:1", ["in"], names)


@pytest.mark.kafka
def test_a_schema_registry_that_does_not_answer(kafka, topics):
    more = '[schema_registry]\nurl = "http://user:hunter2-hunter2@127.0.0.1:1"\n'
    found = _found(_pipeline(kafka.bootstrap, [kafka.topic()], topics, end=more))
    assert "does not answer" in found["unknown", "schema registry"]
    assert "hunter2" not in str(found)


# the command

LATECOMER = str(Path(sys.executable).parent / "latecomer")


def _run(folder, text):
    (folder / "p.toml").write_text(text.replace('uri = "/nowhere"', 'uri = "state"'))
    done = subprocess.run([LATECOMER, "run", "p.toml"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.kafka
def test_a_pipeline_that_cannot_run_says_why_in_its_log(kafka, topics, tmp_path):
    code, log = _run(tmp_path, _pipeline(kafka.bootstrap, [kafka.topic(3)], topics | {"late": "no-such"}, key=""))
    assert code == 2
    assert log[-1]["level"] == "error"
    assert "topic no-such: is not there" in log[-1]["message"] and "[repartition]" in log[-1]["message"]
    assert any(entry["level"] == "warning" and "[repartition]" in entry["message"] for entry in log)


@pytest.mark.kafka
def test_no_secret_is_in_the_log_of_a_refused_user(kafka, topics, tmp_path):
    text = _pipeline(kafka.sasl_bootstrap, ["in"], topics, more=SASL.format("reader", "wrong-wrong-wrong"))
    code, log = _run(tmp_path, text)
    assert code == 2
    assert log[-1]["level"] == "error" and "Authentication failed" in log[-1]["message"]
    assert "wrong-wrong" not in str(log)


def test_a_process_that_waits_for_its_brokers_can_be_stopped(topics_elsewhere, tmp_path):
    (tmp_path / "p.toml").write_text(topics_elsewhere)
    command = [LATECOMER, "run", "p.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "starting" not in (line := process.stderr.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGTERM)
            log = [json.loads(line) for line in process.communicate(timeout=60)[1].splitlines()]
        finally:
            process.kill()
    assert process.returncode == 0
    assert {"stopping", "stopped"} <= {entry["message"] for entry in log}  # said by two threads, in either order


@pytest.mark.kafka
def test_a_pipeline_on_a_terminal(kafka, topics, tmp_path):
    """Progress and logs for people; ready, with metrics; Ctrl-C ends it in order."""
    from confluent_kafka import Producer

    source = kafka.topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for number in range(40):
        event = {"type": "AB"[number // 2 % 2], "ts": number * 1000, "tag": str(number % 2)}
        producer.produce(source, json.dumps(event), str(number % 2))
    producer.produce(source, b"rubbish", "0")
    assert producer.flush(30) == 0
    text = _pipeline(kafka.bootstrap, [source], topics, end="[operation]\nport = 0\n")
    (tmp_path / "p.toml").write_text(text.replace('uri = "/nowhere"', 'uri = "state"'))
    ours, theirs = pty.openpty()
    seen = ""

    def read_until(pattern, seconds=90):
        nonlocal seen
        until = time.monotonic() + seconds
        while (found := re.search(pattern, seen)) is None:
            assert time.monotonic() < until, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65_536).decode(errors="replace")
        return found

    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    command = [LATECOMER, "run", "p.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stderr=theirs, env=environment) as process:
        try:
            address = read_until(r"serving\s+address=(http://127\.0\.0\.1:\d+)")[1]
            read_until(r"41 messages \([\d,]+/s\), [1-9]\d* changes, 0 late, 1 dead; 0 behind in 2 partitions")
            assert _get(f"{address}/readyz")[0] == 200
            found = _samples(_get(f"{address}/metrics")[1])
            assert found["latecomer_kafka_messages_total", ("pipeline", "look")] == 41
            assert sum(v for k, v in found.items() if k[0] == "latecomer_kafka_lag_messages") == 0
            assert json.loads(_get(f"{address}/explain")[1]).keys() == {f"{source}-0", f"{source}-1"}
            events = {dict(k[1:])["runtime"]: v for k, v in found.items() if k[0] == "latecomer_events_total"}
            assert events.keys() == {f"{source}-0", f"{source}-1"} and sum(events.values()) == 40
            process.send_signal(signal.SIGINT)
            read_until(r"info    stopped")
            assert process.wait(30) == 0
        finally:
            process.kill()
    os.close(ours)
    os.close(theirs)
    assert "{" not in seen  # no JSON for people
