"""Look whether a cluster has what a pipeline needs: brokers, topics, partitions, permissions, transactions, schemas.

:func:`look` tells all of it, for people; :func:`ready` is for a process that starts, and refuses what cannot run.

Rules: nothing is written and no topic is created (an exactly-once pipeline does announce a transactional id, as the run
would); it ends within its time, whatever the cluster does; what is found out carries no secret.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from latecomer.connectors.kafka.advice import partitioning
from latecomer.connectors.kafka.config import Pipeline
from latecomer.errors import ConfigError, MissingDependency

_log = logging.getLogger("latecomer.kafka.check")

#: Seconds for everything together.
TIME = 30.0
#: Seconds for one request: what a far cluster needs, and no more.
STEP = 8.0
#: Seconds in which a broker must have answered a process that starts.
PATIENCE = 60.0
#: Errors after which the same request may succeed a moment later.
_PASSING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
#: What brokers or their certificates say to those who need not try again.
_FINAL = ("SASL", "certificate verify failed")
#: What to do, by what librdkafka says; the first that fits.
_ADVICE = {
    "mechanism handshake": "sasl.mechanism has to be one that the brokers have",
    "SASL": "correct sasl.username, sasl.password or sasl.mechanism",
    "certificate verify failed": (
        "ssl.ca.location has to name a file with the authority that signed the brokers' certificate, and brokers the "
        "names that are in it"
    ),
    "SSL": "the port may want no TLS: correct security.protocol or brokers",
    "Timed out": (
        "the address may be another one, or its port wants TLS or a login: correct brokers or security.protocol"
    ),
}
#: What clients must be allowed to do.
_READ, _WRITE = "READ", "WRITE"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    ``error``: the pipeline cannot run; ``warning``: it should not; ``unknown``: the cluster did not say, now.
    """

    verdict: Literal["ok", "warning", "unknown", "error"]
    subject: str
    text: str


def look(pipeline: Pipeline, seconds: float = TIME, *, transactions: bool = True) -> list[Finding]:
    """What a cluster has to say to a pipeline. ``transactions``: also try whether one could be begun."""
    secrets = sorted(pipeline.secrets, key=len, reverse=True)

    def clean(text: str) -> str:
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        return text

    found = _Look(pipeline, seconds).findings(transactions)
    return [Finding(f.verdict, f.subject, clean(f.text)) for f in found]


def ready(pipeline: Pipeline, alive: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a broker answers, then see whether the pipeline can run.

    ``alive`` is called while it waits; it returns early once that is false. Raises ConfigError for what cannot run as
    it is, and when no broker has answered in time. What is only unwise, or was not to be found out, is logged.
    """
    until = time.monotonic() + seconds
    while alive():
        found = look(pipeline, transactions=False)
        away = [f for f in found if f.subject == "brokers" and f.verdict == "unknown"]
        if not away:
            break
        if time.monotonic() > until:
            raise ConfigError(f"after {seconds:.0f} seconds {away[0].text}")
        _log.warning(away[0].text)
    else:
        return
    for finding in found:
        if finding.verdict in ("warning", "unknown"):
            _log.warning(f"{finding.subject}: {finding.text}")
    wrong = [f"{f.subject}: {f.text}" for f in found if f.verdict == "error"]
    if wrong:
        raise ConfigError("\n".join(wrong))


class _Look:
    def __init__(self, pipeline: Pipeline, seconds: float) -> None:
        try:
            import confluent_kafka
            from confluent_kafka import admin
        except ImportError:
            raise MissingDependency("confluent-kafka", "kafka", "A Kafka pipeline") from None
        self._kafka: Any = confluent_kafka
        self._api: Any = admin  # it does not declare all of its names as its own
        self._pipeline = pipeline
        self._until = time.monotonic() + seconds
        self._said: dict[str, str] = {}
        self._step = min(STEP, seconds / 2)
        config: dict[str, Any] = {**pipeline.admin_config(), "error_cb": self._hear, "log_level": 0}
        self._admin = admin.AdminClient(config)

    def findings(self, transactions: bool) -> Iterator[Finding]:
        """Look at one thing after the other; without brokers there is nothing else to see."""
        reached = self._brokers()
        yield reached
        if reached.verdict != "ok":
            return
        topics: dict[str, Any] = {}
        yield from self._topics(topics)
        yield from self._partitions({name: len(topic.partitions) for name, topic in topics.items()})
        yield from self._compaction(topics)
        yield self._group()
        if transactions and self._pipeline.guarantee == "exactly-once":
            yield self._transactions()
        if self._pipeline.schema_registry is not None:
            yield self._registry()

    # --- one thing each ----------------------------------------------------------------------------------------------

    def _brokers(self) -> Finding:
        wait = self._wait()
        answer = self._admin.describe_cluster(request_timeout=wait)
        try:
            while not answer.done():
                self._admin.poll(0.1)
                refusal = next((self._said[kind] for kind in ("_AUTHENTICATION", "_SSL") if kind in self._said), "")
                if any(words in refusal for words in _FINAL):  # to try on would not help, and may lock the user out
                    return Finding("error", "brokers", f"no broker lets this user in: {refusal}{_advice(refusal)}")
            cluster = answer.result()
        except self._kafka.KafkaException as error:
            reason = self._reason(error)
            return Finding("unknown", "brokers", f"no broker answers: {reason}{_advice(reason)}")
        return Finding("ok", "brokers", f"{len(cluster.nodes)} reached")

    def _topics(self, found: dict[str, Any]) -> Iterator[Finding]:
        """Whether each topic is there and may be used; those that are there are put into ``found``."""
        output, internal = self._pipeline.output, self._pipeline.repartition
        needs: dict[str, tuple[str, ...]] = dict.fromkeys(self._pipeline.topics, (_READ,))
        needs |= {topic.topic: (_WRITE,) for topic in output.topics.values()} | {output.dead_letters: (_WRITE,)}
        if internal is not None:
            needs[internal.topic] = (_READ, _WRITE)
        asked = self._kafka.TopicCollection(list(needs))
        wait = self._wait()
        answers = self._admin.describe_topics(asked, include_authorized_operations=True, request_timeout=wait)
        for name, need in needs.items():
            subject = f"topic {name}"
            try:
                topic = answers[name].result(wait + 1)
            except self._kafka.KafkaException as error:
                if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART" and internal is not None and name == internal.topic:
                    yield Finding("ok", subject, "is not there yet; the first start will create it")
                else:
                    yield self._missing(subject, error)
                continue
            found[name] = topic
            allowed = {operation.name for operation in topic.authorized_operations or ()}
            missing = [operation for operation in need if operation not in allowed]
            if missing:
                yield Finding(
                    "error",
                    subject,
                    f"is there, but this user may not {' and '.join(missing)}: an administrator can allow that, as in "
                    f"kafka-acls --add --allow-principal User:… --operation {missing[0].title()} --topic {name}",
                )
            else:
                yield Finding("ok", subject, f"{len(topic.partitions)} partitions, may {' and '.join(need)}")

    def _missing(self, subject: str, error: Any) -> Finding:
        """A topic that could not be looked at, and why."""
        name = error.args[0].name()
        if name == "UNKNOWN_TOPIC_OR_PART":
            return Finding("error", subject, "is not there: create it, or correct its name in the file")
        if name == "TOPIC_AUTHORIZATION_FAILED":
            text = "may not be seen by this user, or is not there: an administrator can allow Describe, or create it"
            return Finding("error", subject, text)
        if name == "TOPIC_EXCEPTION":
            return Finding(
                "error", subject, "has a name that no topic can have: letters, digits, '.', '_' and '-' will do"
            )
        return Finding("unknown", subject, f"could not be looked at: {self._reason(error)}")

    def _partitions(self, counts: Mapping[str, int]) -> Iterator[Finding]:
        """Whether events that belong together meet."""
        pipeline = self._pipeline
        inputs = {topic: counts[topic] for topic in pipeline.topics if topic in counts}
        internal = pipeline.repartition
        if internal is not None:
            there = counts.get(internal.topic, internal.partitions)
            if there != internal.partitions:
                yield Finding(
                    "error",
                    f"topic {internal.topic}",
                    f"has {there} partitions, and the file says {internal.partitions}: say {there}, or give another "
                    "topic, since events of one key would change their partition",
                )
            return
        if len(set(inputs.values())) > 1:
            told = ", ".join(f"{topic} {count}" for topic, count in inputs.items())
            yield Finding(
                "error",
                "partitions",
                f"the topics have different numbers of partitions ({told}), so one key is in different ones: use "
                "topics of one number, or [repartition]",
            )
        elif not (spread := partitioning(pipeline)).independent and max(inputs.values(), default=1) > 1:
            yield Finding("error", "partitions", str(spread.advice))
        elif inputs:
            yield Finding("ok", "partitions", f"{max(inputs.values())}, each for itself")

    def _compaction(self, topics: Mapping[str, Any]) -> Iterator[Finding]:
        """Whether the topic of matches is compacted, and the log is not."""
        written = {p: t.topic for p, t in self._pipeline.output.topics.items() if p != "late" and t.topic in topics}
        kind = self._api.ConfigResource.Type.TOPIC
        asked = [self._api.ConfigResource(kind, name) for name in written.values()]
        if not asked:
            return
        wait = self._wait()
        answers = self._admin.describe_configs(asked, request_timeout=wait)
        policies: dict[str, str] = {}
        for resource, future in answers.items():
            try:
                policies[resource.name] = future.result(wait + 1)["cleanup.policy"].value
            except self._kafka.KafkaException:
                yield Finding("warning", f"topic {resource.name}", "this user may not see whether it is compacted")
        for purpose, name in written.items():
            policy = policies.get(name)
            if policy is None:
                continue
            if purpose == "matches" and "compact" not in policy:
                yield Finding(
                    "warning",
                    f"topic {name}",
                    f"is not compacted (cleanup.policy={policy}), so what was taken back stays, and what holds may be "
                    "deleted with age: set cleanup.policy=compact",
                )
            elif purpose == "changes" and "compact" in policy:
                yield Finding(
                    "error",
                    f"topic {name}",
                    f"is compacted (cleanup.policy={policy}), which deletes parts of the log: set "
                    "cleanup.policy=delete, or write it as matches",
                )

    def _group(self) -> Finding:
        group = self._pipeline.group
        subject = f"group {group}"
        try:
            told = self._ask(
                lambda wait: self._admin.describe_consumer_groups(
                    [group], include_authorized_operations=True, request_timeout=wait
                )[group]
            )
        except self._kafka.KafkaException as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":  # a group that nobody has joined yet
                return Finding("ok", subject, "is new")
            if error.args[0].name() == "GROUP_AUTHORIZATION_FAILED":
                return Finding("error", subject, "this user may not use it: an administrator can allow Read")
            return Finding("unknown", subject, f"could not be looked at: {self._reason(error)}")
        if _READ not in {operation.name for operation in told.authorized_operations or ()}:
            return Finding("error", subject, "this user may not READ, so it cannot join: an administrator can allow it")
        members = len(told.members)
        return Finding("ok", subject, f"{members} members" if members else "nobody is in it")

    def _transactions(self) -> Finding:
        name = f"{self._pipeline.name}-check"
        producer = self._kafka.Producer(
            {**self._pipeline.producer_config(name), "error_cb": self._hear, "log_level": 0}
        )
        try:
            producer.init_transactions(self._wait())
        except self._kafka.KafkaException as error:
            return Finding(
                "error",
                "transactions",
                f"this user may not use the transactional id {name}, or the cluster has none: {self._reason(error)}. "
                f"An administrator can allow Write for ids that begin with {self._pipeline.name}-; or use "
                'guarantee = "at-least-once"',
            )
        return Finding("ok", "transactions", "are possible")

    def _registry(self) -> Finding:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        config = {"timeout": self._wait(), "max.retries": 1, **(self._pipeline.registry_config() or {})}
        try:
            subjects = SchemaRegistryClient(config).get_subjects()
        except Exception as error:  # noqa: BLE001 (its HTTP client raises errors of several libraries)
            return Finding("unknown", "schema registry", f"does not answer: {type(error).__name__}: {error}")
        return Finding("ok", "schema registry", f"{len(subjects)} subjects")

    # --- asking ------------------------------------------------------------------------------------------------------

    def _wait(self) -> float:
        """Seconds for the next request."""
        return min(self._step, max(self._until - time.monotonic(), 0.5))

    def _ask(self, request: Callable[[float], Any]) -> Any:
        """The answer to a request; what passes by itself is tried again while there is time."""
        while True:
            wait = self._wait()
            try:
                return request(wait).result(wait + 1)
            except self._kafka.KafkaException as error:
                if error.args[0].name() not in _PASSING or time.monotonic() > self._until - 1:
                    raise
                time.sleep(0.2)

    def _hear(self, error: Any) -> None:
        """Keep the first thing of each kind that librdkafka says about connections."""
        self._said.setdefault(error.name(), error.str())

    def _reason(self, error: Any) -> str:
        """Why a request failed, as far as that is known: a time-out alone says little."""
        self._admin.poll(0)
        for kind in ("_AUTHENTICATION", "_SSL", "_RESOLVE", "_TRANSPORT"):
            if kind in self._said:
                return self._said[kind]
        return str(error.args[0].str() or error.args[0].name())


def _advice(said: str) -> str:
    """What to do about what librdkafka says.

    >>> _advice("Local: Timed out")[:28]
    ': the address may be another'
    """
    found = next((what for words, what in _ADVICE.items() if words in said), "")
    return f": {found}" if found else ""
