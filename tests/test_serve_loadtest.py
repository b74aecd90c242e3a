"""Load tests of a service by HTTP: the same fleet, the same truth, the same verdict as with Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.request

import numpy as np
import pyarrow as pa
import pytest
from flask import Flask

from loadtest.__main__ import HERE, free_port, locust, service_under_test
from loadtest.http import arrow_body
from loadtest.outbox import EVENT
from loadtest.panel import linked
from loadtest.truth import CANCEL, LONE

TEXT = (HERE / "served.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("STATE", os.environ.get("STATE", ""))  # what a test sets is gone after it


def run(folder, text, *arguments):
    """Exit code and what was said of a load test of this service."""
    with service_under_test(folder, text) as address:
        options = ["--headless", "--only-summary", "--service", address, "--source-rate", "300", "--matching", "0.5"]
        running = locust(folder / "served.toml", [*options, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        told = running.communicate(timeout=90)[1].decode()
    return running.returncode, told


@pytest.mark.parametrize("form", ["lines", "arrow"])
def test_a_right_service_passes(tmp_path, form):
    disorder = ["--late", "0.4", "--duplicates", "0.05", "--poison", "0.01", "--future", "0.005", "--skew", "100"]
    code, told = run(tmp_path, TEXT, "-u", "3", "-t", "2s", "--form", form, *disorder)
    assert code == 0, told
    [matches] = re.findall(r"PASSED: ([\d,]+) of", told)
    dead, poison = re.search(r"(\d+) of (\d+) broken messages", told).groups()
    assert int(matches.replace(",", "")) > 100 and dead == poison != "0", told


def test_a_wrong_service_fails(tmp_path):
    """It has forgotten that a Cancel between the two takes the match away."""
    code, told = run(tmp_path, TEXT.replace("!Cancel b, ", ""), "-u", "2", "-t", "2s", "--patience", "3")
    assert code == 1, told
    assert int(re.search(r"FAILED: .* ([\d,]+) wrong,", told)[1].replace(",", "")) > 5


def test_events_as_arrow():
    events = np.array([(5, 7, 9 * 4 + CANCEL, False), (5, 8, 10 * 4 + LONE, False)], EVENT)
    with pa.ipc.open_stream(arrow_body(events, 3)) as reader:
        rows = reader.read_all().to_pylist()
    assert rows == [
        {"id": "37", "type": "Cancel", "ts": 7, "key": "k9", "source": "s3"},
        {"id": "43", "type": "Start", "ts": 8, "key": "n10", "source": "s3"},
    ]


def test_only_locusts_own_page_gets_a_link():
    app = Flask("locust")
    app.after_request(linked)
    app.add_url_rule("/", "index", lambda: "<html><body>Locust</body></html>")
    app.add_url_rule("/other", "other", lambda: "<html><body>Other</body></html>")
    client = app.test_client()
    assert b'<a href="/disorder"' in client.get("/").data and b"disorder" not in client.get("/other").data


def test_locusts_page_leads_to_the_knobs(tmp_path):
    port = free_port()
    arguments = ["--service", "http://127.0.0.1:1", "--web-host", "127.0.0.1", "--web-port", str(port)]
    running = locust(tmp_path / "none.toml", arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                    page = answer.read()
                break
            except OSError:
                assert time.monotonic() < end and running.poll() is None
                time.sleep(0.2)
        assert page.count(b'<a href="/disorder"') == 1
    finally:
        running.kill()
        running.wait()
