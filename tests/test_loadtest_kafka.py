"""Load tests on a real broker: Locust, the pipeline as a process, the knobs turned while it runs, the exit code."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from loadtest.__main__ import HERE, free_port, locust, pipeline_under_test
from tests import spark_java


def ask(url, **form):
    """The page at ``url``, after posting what is given."""
    data = urllib.parse.urlencode(form).encode() if form else None
    with urllib.request.urlopen(url, data, timeout=10) as answer:
        return answer.read().decode()


def wait_for(what, seconds=60):
    """Until ``what`` gives something true; a server that is not there yet counts as nothing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := what():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what} gave nothing for {seconds} s")


def renamed(text, suffix):
    """The pipeline with topics and a name of its own."""
    return re.sub(r'"loadtest([\w-]*)"', rf'"loadtest\1-{suffix}"', text)


TEXT = (HERE / "pipeline.toml").read_text(encoding="utf-8")


def test_a_right_pipeline_passes_whatever_is_turned_meanwhile(kafka, tmp_path):
    port = free_port()
    page = f"http://127.0.0.1:{port}/disorder"
    arguments = [
        "--autostart",
        "--autoquit",
        "0",
        "--web-host",
        "127.0.0.1",
        "--web-port",
        str(port),
        "-u",
        "4",
        "-t",
        "8s",
    ]
    with pipeline_under_test(kafka, tmp_path, renamed(TEXT, "right")) as pipeline:
        running = locust(
            pipeline,
            [*arguments, "--source-rate", "300", "--matching", "0.4", "--skew", "100", "--shape", "outage"],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            wait_for(lambda: json.loads(ask(f"{page}.json"))["state"].get("sent"))
            assert "Applied." in ask(page, late="0.5", delay="900", duplicates="0.05", poison="0.01", future="0.005")
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(page, late="7")
            assert json.loads(ask(f"{page}.json"))["knobs"]["late"] == "0.5"
            told = running.communicate(timeout=90)[1].decode()
        finally:
            running.kill()
            running.wait()
    assert running.returncode == 0, told
    [verdict] = re.findall(r"^PASSED.*", told, re.MULTILINE)
    matches, wrong_alarms = (
        int(n.replace(",", ""))
        for n in re.findall(r"([\d,]+) (?:matches stand|wrong alarms)", verdict.replace(" of ", " "))
    )
    dead, poison = re.search(r"(\d+) of (\d+) broken messages", verdict).groups()
    assert matches > 200 and wrong_alarms > 3 and int(dead) == int(poison) > 5


def test_a_wrong_pipeline_fails(kafka, tmp_path):
    """It has forgotten that a Cancel between the two takes the match away."""
    text = renamed(TEXT, "wrong").replace("!Cancel b, ", "")
    with pipeline_under_test(kafka, tmp_path, text) as pipeline:
        arguments = [
            "--headless",
            "-u",
            "2",
            "-t",
            "5s",
            "--source-rate",
            "300",
            "--matching",
            "0.5",
            "--patience",
            "3",
        ]
        running = locust(pipeline, arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        told = running.communicate(timeout=90)[1].decode()
    assert running.returncode == 1, told
    assert int(re.search(r"FAILED: .* ([\d,]+) wrong,", told)[1].replace(",", "")) > 5


@pytest.mark.spark
def test_a_spark_job_on_kafka_passes_the_same_test(kafka, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", spark_java.options())
    with pipeline_under_test(kafka, tmp_path, renamed(TEXT, "spark"), engine="spark") as pipeline:
        arguments = ["--headless", "-u", "2", "-t", "6s", "--source-rate", "300", "--matching", "0.5", "--late", "0.4"]
        arguments += ["--duplicates", "0.05", "--patience", "120"]
        running = locust(pipeline, arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        told = running.communicate(timeout=180)[1].decode()
    assert running.returncode == 0, told
    assert int(re.search(r"PASSED: ([\d,]+) of", told)[1].replace(",", "")) > 100


def test_steps_go_on_until_the_pipeline_breaks(kafka, tmp_path):
    """With a limit that no pipeline keeps it breaks as soon as a hundred matches are there."""
    with pipeline_under_test(kafka, tmp_path, renamed(TEXT, "step")) as pipeline:
        arguments = [
            "--headless",
            "-u",
            "4",
            "-t",
            "60s",
            "--source-rate",
            "400",
            "--matching",
            "0.9",
            "--only-summary",
        ]
        arguments += ["--shape", "step", "--latency-limit", "1"]
        running = locust(pipeline, arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        out, told = (text.decode() for text in running.communicate(timeout=120))
    assert running.returncode == 0, told
    assert re.search(r"BROKE at \d sources, [\d,]+ events/s: 99 % within", told) and "PASSED" in told
    for row in ("match, from", "correction, from", "wrong alarm, until", "missed", "wrong ", "duplicated", "unknown"):
        assert f"DETECT   {row}" in out + told, row


def test_without_a_verdict_a_run_fails(kafka, tmp_path, monkeypatch):
    monkeypatch.setenv("BROKERS", kafka.bootstrap)
    monkeypatch.setenv("STATE", str(tmp_path))
    (tmp_path / "pipeline.toml").write_text(renamed(TEXT, "nowhere"))
    arguments = ["--headless", "-u", "1", "-t", "2s", "--patience", "1"]
    running = locust(tmp_path / "pipeline.toml", arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert "FAILED: 1 processes gave no verdict" in running.communicate(timeout=90)[1].decode()
    assert running.returncode == 1
