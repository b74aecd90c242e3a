"""The API against its own description: schemathesis makes requests from the OpenAPI document, right and wrong ones."""

from __future__ import annotations

import json

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.serve_fixture import events, lines, pipeline, serving

LINES = ("application/x-ndjson", "application/jsonl", "application/vnd.apache.arrow.stream")
KNOWN = {"after", "limit", "query", "since", "wait"}
TOKEN = "a-token-that-is-long-enough"
CHECKS = (
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, positive_data_acceptance, ignored_auth, unsupported_method,
)  # fmt: skip
#: One example fewer per operation costs a tenth of the time: enough to meet every parameter and every kind of body.
EXAMPLES = 40


@schemathesis.serializer(*LINES)
def as_bytes(ctx, value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def plain(value):
    """Whole numbers as they are written: for a schema 5.0 is one of them, for a decoder it is none."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    # How long an event may be is a setting, which the description does not tell.
    file = pipeline(folder, serve="rate = 100000", input='fields = { n = "deep.n" }', most=1 << 20)
    with serving(file, log=folder / "log", env={"LATECOMER_TOKEN": TOKEN}) as server:
        yield server


@pytest.fixture(scope="module")
def described(served):
    answer = requests.get(f"{served.url}openapi.json", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10)
    return schemathesis.openapi.from_dict(answer.json())


PATHS = (
    "POST /v1/events", "POST /v1/punctuate", "POST /v1/advance", "GET /v1/changes", "GET /v1/live", "GET /v1/matches",
    "GET /v1/late", "GET /v1/dead", "GET /v1/explain", "GET /metrics", "GET /healthz", "GET /readyz",
    "GET /openapi.json",
)  # fmt: skip


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", PATHS)
def test_the_api_is_as_described(operation, mode, served, described):
    method, path = operation.split()
    found = described[path][method]
    if mode == GenerationMode.NEGATIVE and not (found.query or found.body or found.headers):
        assert "parameters" not in found.definition.raw or not found.definition.raw["parameters"]
        return  # there is nothing to get wrong

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=found.as_strategy(generation_mode=mode))
    def run(case):
        if path in ("/v1/changes", "/v1/live"):
            wait = (case.query or {}).get("wait")
            if wait is None or (isinstance(wait, int) and 0 < wait <= 3_600):  # what is refused stays as it is
                case.query = {**(case.query or {}), "wait": 0}
        if isinstance(case.body, dict | list):
            case.body = plain(case.body)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        # Lines stand each for themselves: what is wrong with some, or right with none, is told in the receipt.
        apart = (negative_data_rejection, positive_data_acceptance) if case.media_type in LINES else ()
        sent = {name for name, value in (case.query or {}).items() if value not in (None, [], {})}
        if (set(case.query or {}) - KNOWN and not sent - KNOWN) or (sent == {"wait"} and not case.headers):
            apart = (negative_data_rejection,)  # what is wrong with it is not sent
        checks = [check for check in CHECKS if check not in apart]
        case.call_and_validate(base_url=served.url.rstrip("/"), headers=headers, timeout=20, checks=checks)

    run()


def test_it_still_works_after_all_that(served):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, told = served.send(lines(events(5)), **bearer)
    assert status == 202 and told["accepted"] == 5
    assert served.get("/healthz") == {"alive": True}
    assert "Traceback" not in served.said(), served.said()


def test_the_description_names_every_path(served):
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    described = requests.get(f"{served.url}openapi.json", headers=bearer, timeout=10).json()
    assert set(described["paths"]) == {
        "/v1/events", "/v1/punctuate", "/v1/advance", "/v1/finish", "/v1/changes", "/v1/live", "/v1/matches",
        "/v1/late", "/v1/dead", "/v1/explain", "/metrics", "/healthz", "/readyz", "/openapi.json",
    }  # fmt: skip
    event = described["components"]["schemas"]["Event"]
    assert event["required"] == ["type", "ts", "id"]
    assert event["properties"]["type"]["enum"] == ["A", "B", "C"]
    assert event["properties"]["deep"]["properties"]["n"]["type"] == ["integer", "null"]
