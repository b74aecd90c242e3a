"""The description of the API, as OpenAPI 3.1: made from the pipeline, so that it says what its events look like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from latecomer import __version__
from latecomer.connectors.kafka.config_values import Place
from latecomer.serve.config import HttpPipeline

if TYPE_CHECKING:
    from latecomer.serve.config import Served

#: Media types of events, and the form that each means.
FORMS: dict[str, Any] = {
    "application/x-ndjson": "lines",
    "application/jsonl": "lines",
    "application/json": "json",
    "application/vnd.apache.arrow.stream": "arrow",
}
#: Rows of one answer at most.
ROWS = 10_000
#: The largest numbers of units that are times.
FARTHEST = 2**62 - 1

_WORDS = {
    400: "not HTTP as it should be",
    401: "the token is missing or wrong",
    403: "asked for by a page of another site",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    409: "the stream was finished, or the pipeline does not do this",
    413: "the body is too large",
    415: "the body is of a type that is not taken",
    421: "the service has another name",
    422: "it is understood and makes no sense",
    429: "too much at a time: try again after Retry-After seconds; nothing of it was taken",
    431: "the head of the request is too large",
    503: "the service is starting, ending, has failed or cannot write",
}
_ALWAYS = (400, 401, 403, 421, 429, 431, 503)
_PROBLEM = {"$ref": "#/components/schemas/Problem"}


def describe(pipeline: Served | None, *, locked: bool, name: str) -> dict[str, Any]:
    """The whole description. ``pipeline`` None: it takes no events from outside; ``locked``: a token is needed."""
    security: dict[str, Any] = {"security": [{"token": []}]} if locked else {}
    components: dict[str, Any] = {"schemas": _schemas(pipeline)}
    if locked:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{name}, served by Latecomer",
            "version": __version__,
            "description": "Events in, changes to the matches out.",
        },
        "paths": _paths(pipeline),
        "components": components,
        **security,
    }


def _paths(pipeline: Served | None) -> dict[str, Any]:
    paths = {
        "/v1/changes": {"get": _stream("Changes to the matches, as server-sent events", changes=True)},
        "/v1/live": {"get": _stream("What the page shows, as server-sent events", changes=False)},
        "/v1/matches": {
            "get": _get(
                "The matches that hold, newest first", "Matches", [_limit(1_000), _text("query", "Of one query")]
            )
        },
        "/v1/late": {"get": _get("Late events with their reasons", "Rows", [_after(), _limit(1_000)])},
        "/v1/dead": {"get": _get("Dead letters: what was no event", "Rows", [_after(), _limit(1_000)])},
        "/v1/explain": {"get": _get("What is held, and what each match waits for", "Explained", [])},
        "/metrics": {"get": _plain("Prometheus's metrics", "text/plain", {"type": "string"})},
        "/healthz": {"get": _probe("Whether the worker goes round", "alive")},
        "/readyz": {"get": _probe("Whether events are taken", "ready")},
        "/openapi.json": {"get": _plain("This description", "application/json", {"type": "object"})},
    }
    if pipeline is not None:
        paths["/v1/events"] = {"post": _events(pipeline)}
    if isinstance(pipeline, HttpPipeline):  # with brokers words about time travel in the topics
        paths |= {
            "/v1/punctuate": {
                "post": _word("Promise that no event up to a time will come any more", "Punctuation", required=True)
            },
            "/v1/advance": {"post": _word("Say what time it is", "Now", required=True)},
            "/v1/finish": {"post": _word("End the stream: all that waits leaves, and nothing can follow", None)},
        }
    return paths


# --- operations ------------------------------------------------------------------------------------------------------


def _events(pipeline: Served) -> dict[str, Any]:
    lines: dict[str, Any] = {"schema": {"type": "string"}, "example": '{"id": "e1", "type": "A", "ts": 1}\n'}
    content: dict[str, Any] = {
        media: lines if form == "lines" else {"schema": {"type": "string", "format": "binary"}}
        for media, form in FORMS.items()
    }
    event = {"$ref": "#/components/schemas/Event"}
    content["application/json"] = {"schema": {"oneOf": [event, {"type": "array", "items": event}]}}
    return {
        "summary": "Take in events; answered once they are safe",
        "operationId": "events",
        "description": "Lines and rows that are no events become dead letters; a JSON document is taken whole or not.",
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Requests of one key count once: for trying again when no answer came",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
            }
        ],
        "requestBody": {"required": True, "content": content},
        "responses": _answers((408, 409, 413, 415, 422), {202: ("Safe", "application/json", "Receipt")}),
    }


def _word(summary: str, body: str | None, *, required: bool = False) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": summary, "operationId": summary.split()[0].lower()}
    if body is not None:
        schema = {"$ref": f"#/components/schemas/{body}"}
        told["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    told["responses"] = _answers((408, 409, 413, 415, 422), {200: ("Done", "application/json", "Done")})
    return told


def _get(summary: str, schema: str, parameters: list[Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": schema.lower() + "-" + summary.split()[0].lower(),
        "parameters": parameters,
        "responses": _answers((422,) if parameters else (), {200: ("Here it is", "application/json", schema)}),
    }


def _plain(summary: str, media: str, schema: dict[str, Any]) -> dict[str, Any]:
    responses = _answers((), {})
    responses["200"] = {"description": "Here it is", "content": {media: {"schema": schema}}}
    return {"summary": summary, "operationId": summary.split()[-1].lower(), "responses": responses}


def _probe(summary: str, name: str) -> dict[str, Any]:
    answer = {"type": "object", "properties": {name: {"type": "boolean"}}, "required": [name]}
    responses = {
        str(code): {"description": text, "content": {"application/json": {"schema": answer}}}
        for code, text in ((200, "It is so"), (503, "It is not so"))
    }
    for code in (400, 403, 421, 429, 431):
        responses[str(code)] = _refusal(code)
    return {"summary": summary, "operationId": name, "security": [], "responses": responses}


def _stream(summary: str, *, changes: bool) -> dict[str, Any]:
    wait = _number("wait", "End after so many seconds without news; left out: never", 0, 3_600)
    if changes:
        parameters = [
            {**_text("after", "Begin behind this position; `Last-Event-ID` goes before it"), "schema": _POSITION},
            {"name": "Last-Event-ID", "in": "header", "schema": _POSITION},
            _number("limit", "End after so many", 1, ROWS),
            wait,
        ]
    else:
        parameters = [
            _number("since", "Frames after this one", 0, FARTHEST),
            {"name": "Last-Event-ID", "in": "header", "schema": _POSITION},
            wait,
        ]
    responses = _answers((422,), {})
    content: dict[str, Any] = {"text/event-stream": {}}
    responses["200"] = {"description": "A stream that goes on", "content": content}
    return {
        "summary": summary,
        "operationId": "changes" if changes else "live",
        "parameters": parameters,
        "responses": responses,
    }


_POSITION = {"type": "string", "pattern": "^[0-9]{1,18}$"}


def _answers(refusals: Iterable[int], good: dict[int, tuple[str, str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        str(code): {
            "description": text,
            "content": {media: {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
        }
        for code, (text, media, schema) in good.items()
    }
    return found | {str(code): _refusal(code) for code in sorted({*_ALWAYS, *refusals})}


def _refusal(code: int) -> dict[str, Any]:
    told: dict[str, Any] = {"description": _WORDS[code].capitalize()}
    if code != 431:
        told["content"] = {"application/problem+json": {"schema": _PROBLEM}}
    if code == 429:
        told["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "required": True}}
    return told


def _limit(usual: int) -> dict[str, Any]:
    found = _number("limit", "At most so many", 1, ROWS)
    return {**found, "schema": {**found["schema"], "default": usual}}


def _after() -> dict[str, Any]:
    return _number("after", "Those behind this position", 0, FARTHEST)


def _number(name: str, words: str, least: int, most: int) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return {"name": name, "in": "query", "description": words, "schema": schema}


def _text(name: str, words: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": words, "schema": {"type": "string"}}


# --- schemas ---------------------------------------------------------------------------------------------------------

_KINDS: dict[str, dict[str, Any]] = {
    "int": {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"type": ["number", "null"]},
    "bool": {"type": ["boolean", "null"]},
    "text": {"type": ["string", "null"]},
    "time": {"type": ["string", "null"], "format": "date-time"},
}
_WHOLE = {"type": "integer", "minimum": -FARTHEST, "maximum": FARTHEST}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: Iterable[str] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | {"required": list(required)} if required else found


def _schemas(pipeline: Served | None) -> dict[str, Any]:
    row = _object(["position"], position=_COUNT)
    problem = _object(["line", "reason", "detail"], line=_COUNT, reason={"type": "string"}, detail={"type": "string"})
    schemas = {
        "Problem": _object(
            ["title", "status", "detail"],
            title={"type": "string"},
            status={"type": "integer"},
            detail={"type": "string"},
            problems={"type": "array", "items": problem},
        ),
        "Receipt": _object(
            ["accepted", "dead", "problems", "repeated"],
            accepted=_COUNT,
            dead=_COUNT,
            problems={"type": "array", "items": problem},
            repeated={"type": "boolean"},
        ),
        "Rows": _object(
            ["rows", "oldest", "newest"], rows={"type": "array", "items": row}, oldest=_COUNT, newest=_COUNT
        ),
        "Matches": _object(
            ["matches", "count", "left_out"], matches={"type": "array", "items": row}, count=_COUNT, left_out=_COUNT
        ),
        "Explained": {"type": "object"},
        "Done": _object(["changes"], changes=_COUNT, clock={"type": ["integer", "null"]}),
    }
    if pipeline is not None:
        schemas |= {
            "Event": _event(pipeline),
            "Punctuation": _punctuation(pipeline),
            "Now": {**_object(["now"], now=_WHOLE), "additionalProperties": False},
        }
    return schemas


def _punctuation(pipeline: Served) -> dict[str, Any]:
    """What a promise by hand looks like; it may be about one key where the stream says which columns make one."""
    text = {"type": ["string", "null"]}
    found = _object(["ts"], ts=_WHOLE, type=text, source=text)
    keys = pipeline.stream_options.of_key
    if keys:
        key = _object(keys, **{name: _KINDS[pipeline.columns_written[name]] for name in keys})
        found["properties"]["key"] = {"oneOf": [{**key, "additionalProperties": False}, {"type": "null"}]}
    return {**found, "additionalProperties": False}


def _event(pipeline: Served) -> dict[str, Any]:
    """What an event of the first input looks like."""
    given = pipeline.inputs[0]
    kind: dict[str, Any] = {"type": "string"}
    if given.types:
        marks = [given.punctuation.type] if given.punctuation is not None and given.punctuation.type else []
        kind["enum"] = [*given.types, *marks]
    unit = pipeline.unit_of(given.time)
    time = {"type": "string", "format": "date-time"} if unit == "iso" else _WHOLE
    if unit not in ("iso", pipeline.stream_options.unit):  # it is converted, so it may have a fraction
        time = {**_WHOLE, "type": "number"}
    number = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    name = {"anyOf": [{"type": "string"}, number]}
    schema: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    parts: list[tuple[Place | None, dict[str, Any], bool]] = [
        (given.type, kind, True),
        (given.time, time, True),
        (given.id, name, True),
        (given.source, {"anyOf": [*name["anyOf"], {"type": "null"}]}, False),
    ]
    for column, written in pipeline.columns_written.items():
        parts.append((given.fields.get(column) or Place(field=column), _KINDS[written], False))
    for place, told, needed in parts:
        if place is not None and place.field is not None:
            _put(schema, place.field.split("."), told, needed)
    return schema


def _put(schema: dict[str, Any], path: list[str], told: dict[str, Any], needed: bool) -> None:
    """Describe a field at a path into nested objects."""
    head, *rest = path
    if needed and head not in schema["required"]:
        schema["required"].append(head)
    if not rest:
        schema["properties"].setdefault(head, told)
        return
    inner = schema["properties"].setdefault(head, {"type": "object", "properties": {}, "required": []})
    _put(inner, rest, told, needed)
