"""A broker behind TLS that wants passwords (SCRAM): a pipeline runs through it, and what goes wrong on the way is told
so that it can be put right, without any secret."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from latecomer.connectors.kafka.check import look
from latecomer.connectors.kafka.config import loads
from tests.kafka_fixture import USERS
from tests.kafka_pipelines import Member, Scenario

LATECOMER = str(Path(sys.executable).parent / "latecomer")

#: Below [kafka].
SECURE = """
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "guest"
sasl.password = {{ file = "{password}" }}
ssl.ca.location = "{ca}"
"""


@pytest.fixture
def secrets(tmp_path, authority):
    """What a user writes below [kafka], and the files that it names."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    (tmp_path / "password").write_text(USERS["guest"] + "\n")
    return SECURE.format(password=tmp_path / "password", ca=tmp_path / "ca.pem")


@pytest.fixture
def scenario(kafka, tmp_path, secrets):
    made = Scenario(kafka, tmp_path, partitions=2, brokers=kafka.tls_bootstrap, secure=secrets)
    for topic in made.inputs:
        kafka.allow("guest", topic, "read", "describe")
    for topic in (made.changes, made.matches, made.late, made.dead):
        kafka.allow("guest", topic, "write", "describe", "describe_configs")
    return made


def found(pipeline, seconds=20.0):
    return {(finding.verdict, finding.subject): finding.text for finding in look(pipeline, seconds=seconds)}


def test_a_pipeline_behind_tls_and_scram(scenario):
    assert {verdict for verdict, _ in found(scenario.pipeline)} == {"ok"}
    scenario.send(600)
    scenario.finish()
    with Member(scenario) as member:
        scenario.drain(members=[member])
        member.stop()
    assert scenario.check()["insert"] > 10


def told_by_the_command(scenario):
    """All that ``check`` prints, and what it says of the brokers."""
    done = subprocess.run(
        [LATECOMER, "check", str(scenario.file), "--connect", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    ((finding),) = json.loads(done.stdout)["cluster"]
    assert (finding["verdict"], finding["subject"]) == ("error", "brokers")
    return done.stdout + done.stderr, finding["text"]


def told(scenario, old, new):
    """What is said of the brokers once ``old`` in the file is ``new``."""
    text = scenario.file.read_text()
    assert old in text
    (((_, subject), finding),) = found(loads(text.replace(old, new)), seconds=4.0).items()
    assert subject == "brokers" and USERS["guest"] not in finding
    return finding


def test_a_wrong_password(scenario, tmp_path):
    (tmp_path / "password").write_text("wrong-wrong-wrong")
    everything, finding = told_by_the_command(scenario)
    assert "Authentication failed" in finding and "sasl.password" in finding
    assert "wrong-wrong" not in everything


def test_an_authority_that_did_not_sign_the_brokers_certificate(scenario, tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    everything, finding = told_by_the_command(scenario)
    assert "certificate verify failed" in finding and "ssl.ca.location" in finding
    assert USERS["guest"] not in everything


def test_no_authority_is_named(scenario):
    finding = told(scenario, "ssl.ca.location", "# ssl.ca.location")
    assert "certificate verify failed" in finding and "ssl.ca.location" in finding


def test_a_file_of_certificates_that_is_none(scenario, tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    text = scenario.file.read_text()
    with pytest.raises(Exception, match=r"line \d+.*ssl\.ca\.location") as caught:
        loads(text)
    assert USERS["guest"] not in str(caught.value)


def test_a_mechanism_that_the_broker_does_not_have(scenario):
    finding = told(scenario, "SCRAM-SHA-512", "SCRAM-SHA-256")
    assert "SCRAM-SHA-512" in finding and "sasl.mechanism" in finding


def test_without_tls_at_a_port_that_wants_it(scenario):
    finding = told(scenario, "SASL_SSL", "SASL_PLAINTEXT")
    assert "security.protocol" in finding


def test_tls_at_a_port_that_has_none(scenario, kafka):
    finding = told(scenario, kafka.tls_bootstrap, kafka.sasl_bootstrap)
    assert "security.protocol" in finding
