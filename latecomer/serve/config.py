"""What is served: a pipeline's file with one table more, ``[serve]``, and, without ``[kafka]``, some tables less.

A pipeline without brokers has no topics to read and write: events come by HTTP, and what comes out is kept in the state
folder. Everything else in its file means what it means with Kafka, so it is checked by the same code, and all problems
are told at once with their lines.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from latecomer.connectors.kafka.config import Pipeline, checked, parsed
from latecomer.connectors.kafka.config_clients import unavailable
from latecomer.connectors.kafka.config_errors import Misfit, Problem
from latecomer.connectors.kafka.config_lines import Document
from latecomer.connectors.kafka.config_parts import Input, Kafka, Output, Topic
from latecomer.connectors.kafka.config_values import Bytes, Name, Names, Place, Seconds, Setting, Table
from latecomer.errors import ConfigError
from latecomer.texts import read_text

#: The name that stands for a topic in the positions of events that came by HTTP.
HTTP = "http"
#: The fewest characters of a token: what nobody guesses.
SHORTEST = 16


class Serve(Table):
    """``[serve]``: where the service listens, who may come in, and how much of everything.

    Attributes:
        host, port: the address; port 0: any that is free.
        token: what a client has to know; needed for every address that is not the machine's own.
        hosts: names under which browsers may reach it, besides the machine's own.
        max_body: the largest body of a request.
        inbox: bytes of requests that are taken in and not yet worked off; beyond it clients are told to wait.
        rate: requests per second of each client address, twice that at once.
        connections, readers: how many may be open, and of these how many may follow a stream.
        patience: how long a client may take to send a request, and a reader to take in what it is sent.
        keep: bytes that each log (changes, late events, dead letters) may have on disk.
        matches: how many of the matches that hold are told.
    """

    host: Name = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65_535)
    token: Setting | None = None
    hosts: Names = ()
    max_body: Annotated[Bytes, Field(ge=1_024, le=1 << 30)] = 16 << 20
    inbox: Annotated[Bytes, Field(ge=1 << 16)] = 64 << 20
    rate: float = Field(default=2_000, gt=0)
    connections: int = Field(default=4_096, ge=10)
    readers: int = Field(default=1_000, ge=1)
    patience: Seconds = Field(default=30.0, gt=0)
    keep: Annotated[Bytes, Field(ge=1 << 20)] = 256 << 20
    matches: int = Field(default=100_000, ge=1)

    def checked(self, variable: str | None = None) -> str | None:
        """The token, if any; ``variable``: the environment's, which goes before. Raises ConfigError where one is needed
        and there is none, or where it is too short."""
        token = variable or (self.token.reveal() if self.token is not None else None)
        if token is not None and len(token) < SHORTEST:
            raise ConfigError(f"the token has {len(token)} characters: at least {SHORTEST} are needed, by chance")
        if token is None and not is_loopback(self.host):
            raise ConfigError(
                f"host = {self.host!r} can be reached from other machines, so a token is needed: set LATECOMER_TOKEN, "
                "give --token-file, or write token in [serve]; or listen on 127.0.0.1"
            )
        return token


def is_loopback(host: str) -> bool:
    """Whether an address is the machine's own, which nobody else can reach.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpInput(Input):
    """``[[input]]`` of a pipeline without brokers: where the parts of an event are in a line of JSON."""

    topics: Names = Field(default=(HTTP,), alias="topic")
    format: Literal["json"] = "json"
    id: Place = Place(field="id")


class HttpPipeline(Pipeline):
    """A pipeline without brokers."""

    kafka: Kafka = Kafka(brokers=Setting("none"))
    output: Output = Output(
        changes=Topic(topic="changes"), late=Topic(topic="late"), dead_letters="dead"
    )  # where they would go, had it topics
    inputs: tuple[HttpInput, ...] = Field(default=(HttpInput(),), alias="input", min_length=1, max_length=1)
    serve: Serve = Serve()


class KafkaPipeline(Pipeline):
    """A pipeline of topics, served."""

    serve: Serve = Serve()


Served = HttpPipeline | KafkaPipeline


@dataclass(frozen=True, slots=True)
class Site:
    """What is served, and to whom.

    Attributes:
        name: what it is called.
        options: where it listens, and limits.
        token: what a client has to know; None: nothing.
        pipeline: what takes events; None: something that takes none from outside.
        shutdown: seconds that requests may take to end.
    """

    name: str
    options: Serve
    token: str | None = None
    pipeline: Served | None = None
    shutdown: float = 10.0


#: Keys that mean nothing without brokers.
_WITH_BROKERS = ("guarantee", "transaction", "instance", "schema_registry", "output", "repartition")


def load(path: str | os.PathLike[str]) -> Served:
    """Read and check a pipeline's file, without connecting to anything.

    Raises PipelineError with all that is wrong in it, ConfigError when there is no such file.
    """
    return loads(read_text(path, "pipeline"), name=Path(path).name, folder=Path(path).parent)


def loads(text: str, *, name: str = "pipeline.toml", folder: str | os.PathLike[str] = ".") -> Served:
    """Like :func:`load`, of a text; ``folder`` is where files of queries are looked for."""
    document = parsed(text, name)
    if "kafka" in document.values:
        return checked(KafkaPipeline, document, name, folder, _own_problems)
    return checked(HttpPipeline, document, name, folder, _own_problems)


def _own_problems(pipeline: Served, document: Document) -> list[Problem]:
    return [Problem(document.line(misfit.path), str(misfit)) for misfit in _own_misfits(pipeline, document)]


def _own_misfits(pipeline: Served, document: Document) -> Iterator[Misfit]:
    """What only this service minds."""
    token = pipeline.serve.token
    if token is not None and (problem := unavailable(token)):
        yield Misfit(("serve", "token"), f"token: {problem}")
    if isinstance(pipeline, KafkaPipeline):
        return
    for key in _WITH_BROKERS:
        if key in document.values:
            yield Misfit((key,), f"{key} is about topics, and this pipeline has no [kafka]: leave it out")
    if "max_in_flight" in document.values.get("limits", {}):
        yield Misfit(("limits", "max_in_flight"), "max_in_flight is about topics: write inbox in [serve]")
    given = pipeline.inputs[0]
    if "topic" in (document.values.get("input") or [{}])[0]:
        yield Misfit(("input", 0, "topic"), "a topic needs [kafka] with brokers; events that come by HTTP have none")
    for role in ("type", "time", "id", "source", *given.fields):
        place = getattr(given, role, None) if role not in given.fields else given.fields[role]
        if place is not None and (place.header is not None or place.record in ("key", "partition", "topic")):
            told = f"{role}: events that come by HTTP have fields, constants, a timestamp and a position"
            yield Misfit(("input", 0, role), told)
    if given.punctuation is not None and given.punctuation.header is not None:
        yield Misfit(("input", 0, "punctuation"), "events that come by HTTP have no headers: give punctuation a type")
    if unavailable(pipeline.state.location) is None and "://" in pipeline.state.uri:
        yield Misfit(("state", "uri"), "uri: without brokers the state has a journal, which needs a folder on a disk")
