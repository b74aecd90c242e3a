"""What clients of Kafka are made with, and whether librdkafka accepts it: found out without connecting anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from latecomer.connectors.kafka.config_errors import Misfit, guess
from latecomer.connectors.kafka.config_parts import Kafka, SchemaRegistry
from latecomer.connectors.kafka.config_values import Setting
from latecomer.errors import ConfigError, MissingDependency, options

#: Properties that the pipeline sets itself, and where a user says what they are about.
OWN = {
    "bootstrap.servers": "write it as brokers",
    "metadata.broker.list": "write it as brokers",
    "enable.auto.commit": "offsets are committed together with what was made of the messages",
    "enable.auto.offset.store": "offsets are committed together with what was made of the messages",
    "transactional.id": "it follows from name and instance at the top of the file",
    "enable.idempotence": "the producer is always idempotent",
    "isolation.level": "only what was committed is read",
    "partition.assignment.strategy": "it follows from the number of topics",
}
#: Properties that people use: for guesses at what was meant.
_USUAL = (
    "acks", "auto.offset.reset", "batch.size", "client.id", "client.rack", "compression.type", "debug",
    "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms", "group.id",
    "group.instance.id", "heartbeat.interval.ms", "linger.ms", "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes", "max.poll.interval.ms", "message.max.bytes", "metadata.max.age.ms",
    "queue.buffering.max.kbytes", "queue.buffering.max.messages", "queued.max.messages.kbytes",
    "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms",
    "retries", "retry.backoff.ms", "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url",
    "sasl.password", "sasl.username", "security.protocol", "session.timeout.ms", "socket.keepalive.enable",
    "socket.timeout.ms", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.key.password", "ssl.key.pem",
    "statistics.interval.ms", "transaction.timeout.ms",
)  # fmt: skip
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
#: What those of them take that take one of some words.
_WORDS = {
    "acks": ("all", "-1", "0", "1"),
    "auto.offset.reset": ("earliest", "latest", "error"),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "sasl.mechanism": _MECHANISMS,
    "sasl.mechanisms": _MECHANISMS,
    "security.protocol": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
}
#: The address of a broker.
_ADDRESS = re.compile(
    r"(?:(?:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?(?:(?!\d+(?::|$))[^\s:/\[\]]+|\[[0-9a-f:.%]+\])(?::(?P<port>\d{1,5}))?",
    re.I,
)
#: How librdkafka begins when each property is right, and they do not go together.
_TOGETHER = "Failed to create"


def revealed(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Settings with their secrets: never to be printed."""
    return {name: setting.reveal() for name, setting in settings.items()}


def settings_of(kafka: Kafka, registry: SchemaRegistry | None) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """All settings with their paths in the file."""
    yield ("kafka", "brokers"), kafka.brokers
    for side, settings in (((), kafka.common), (("consumer",), kafka.consumer), (("producer",), kafka.producer)):
        for name, setting in settings.items():
            yield ("kafka", *side, name), setting
    if registry is not None:
        yield ("schema_registry", "url"), registry.url
        for name, setting in registry.properties.items():
            yield ("schema_registry", name), setting


def check_properties(kafka: Kafka) -> Iterator[Misfit]:
    """Ask librdkafka about each property alone, then, where all are right, about each side's together."""
    wrong = False
    for path, setting in settings_of(kafka, None):
        told = _misaddressed(setting) if path == ("kafka", "brokers") else _told(path[-1], setting)
        if told is not None:
            wrong = True
            yield Misfit(path, told)
    if wrong:
        return
    said: set[str] = set()
    for side in ("consumer", "producer"):
        own: dict[str, Setting] = getattr(kafka, side)
        problem = _refusal(revealed(kafka.common | own)).rpartition(f"{_TOGETHER} producer: ")[2]
        if problem and problem not in said:
            said.add(problem)
            named = [name for name in kafka.common | own if name in problem]
            path = ("kafka", *([side] if own else []), *named[:1])
            yield Misfit(path, f"librdkafka does not accept these properties together: {problem}")


def _misaddressed(brokers: Setting) -> str | None:
    """What is wrong with the addresses of brokers: librdkafka notices when it connects, or takes another port."""
    for number, address in enumerate(brokers.reveal().split(","), 1):
        found = _ADDRESS.fullmatch(address.strip())
        if found is None or not 0 < int(found["port"] or 9092) < 1 << 16:
            return (
                f"brokers: address {number} is not host:port, with a port from 1 to 65535; several are separated by "
                f"commas, and before each may stand {options(_WORDS['security.protocol'])} and ://"
            )
    return None


def _told(name: str, setting: Setting) -> str | None:
    """What is wrong with one property; None when nothing is."""
    if name in OWN:
        return f"{name} cannot be set: {OWN[name]}"
    problem = _refusal({name: setting.reveal()})
    if (
        name.startswith("sasl.mechanism") and setting.reveal() not in _MECHANISMS
    ):  # librdkafka asks only when it connects
        problem = "unknown"
    if not problem or problem.startswith(_TOGETHER):
        return None
    if problem.startswith("No such configuration"):
        return f"{name} is no property of librdkafka{guess(name, _USUAL)}"
    return f"{name}: " + (f"allowed are {options(_WORDS[name])}" if name in _WORDS else problem)


def _refusal(properties: Mapping[str, str]) -> str:
    """What librdkafka says against these properties, without their values. A client without brokers connects to
    nothing."""
    try:
        from confluent_kafka import KafkaException, Producer
    except ImportError:
        raise MissingDependency("confluent-kafka", "kafka", "A Kafka pipeline") from None
    try:
        Producer({"log_level": 0, **properties})
    except KafkaException as error:
        problem = str(error.args[0].str()).strip()
        for value in properties.values():
            problem = problem.replace(f'"{value}"', '"…"')
            problem = problem if len(value) < 6 else problem.replace(value, "…")
        return problem
    return ""


def common_properties(kafka: Kafka) -> dict[str, Any]:
    """Properties for every client."""
    return {"bootstrap.servers": kafka.brokers.reveal(), **revealed(kafka.common)}


def unavailable(setting: Setting) -> str | None:
    """Why a setting's value cannot be had now; None when it can."""
    try:
        setting.reveal()
    except ConfigError as error:
        return str(error)
    return None
