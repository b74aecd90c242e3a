"""KafkaSink: changes into Kafka topics, each batch in one transaction together with its number.

The rule: the transaction that carries a batch's messages also commits its number, as the offset of a consumer group
that is named after the job and reads nothing. So a batch that comes again is skipped, and whoever reads with
``isolation.level=read_committed`` sees each change once; a process that was thought dead and is not is fenced off,
because the job's name is also the transactional id.

Two views of the same changes, both keyed by ``match_id``:

* the *log*: every change as a message (topic of cleanup policy ``delete``);
* the *matches*: what holds now (topic of policy ``compact``): an insertion is the match's row, a deletion is a
  tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa

from latecomer.connectors.sinks.rows import values
from latecomer.connectors.sinks.tables import last_changes, renamed, usual_table
from latecomer.errors import ConfigError, MissingDependency, StateError

#: Seconds within which the broker has to answer.
_PATIENCE = 60.0

#: One message: topic, key, value, headers.
Message = tuple[str, bytes, bytes | None, list[tuple[str, bytes]]]


class KafkaSink:
    """Writes to the Kafka cluster at ``servers``.

    Args:
        servers: ``host:port``, several with commas.
        changes: topic of the log; None: none.
        matches: topic of the matches that hold now; None: none.
        late: topic of the late rows, keyed by ``late_id``; None: none.
        partitions: of topics that do not exist yet, which are made; with ``replicas`` copies.
        settings: more settings of the producer, as librdkafka names them (security, compression, …).

    Messages are JSON objects; times as in ISO 8601, lengths of time in microseconds. Headers ``job``, ``batch_id`` and
    ``seq`` say where a message came from. The order within a key is that of the changes.

    Kafka forgets the offsets of a group that has been quiet for longer than ``offsets.retention.minutes`` (a week); a
    batch that comes again after that is written again.

    Example::

        sink = KafkaSink("localhost:9092", changes="theft-log", matches="theft")
        sink.open("theft job")
        sink.apply(0, *runtime.process(events))
    """

    def __init__(
        self,
        servers: str,
        *,
        changes: str | None = "latecomer-changes",
        matches: str | None = "latecomer-matches",
        late: str | None = "latecomer-late",
        partitions: int = 1,
        replicas: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        _kafka()
        if not isinstance(servers, str) or not servers:
            raise ConfigError(f"servers={servers!r}: give the address of a broker, like 'localhost:9092'")
        topics = [topic for topic in (changes, matches, late) if topic is not None]
        if len(set(topics)) != len(topics) or not topics:
            raise ConfigError(f"topics {topics}: at least one is needed, and no two may be the same")
        self._servers, self._partitions, self._replicas = servers, partitions, replicas
        self._changes, self._matches, self._late = changes, matches, late
        self._settings = dict(settings or {})
        self._job: str | None = None
        self._producer: Any = None
        self._next = 0  # the first batch that is not in

    def __repr__(self) -> str:
        return f"KafkaSink({self._servers!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_producer": None}

    def open(self, job: str) -> None:
        """Connect, make the topics, and see how far the job has come. StateError when there is no broker."""
        self.close()
        self._job = job
        self._connect()

    def apply(self, batch_id: int, changes: pa.Table, late: pa.Table) -> None:
        """Write one batch in one transaction; a batch that is in already is skipped."""
        if self._job is None:
            raise StateError("KafkaSink.apply was called before open: sink.open('name of the job') first")
        if self._producer is None:
            self._connect()
        if batch_id < self._next or not changes.num_rows + late.num_rows:
            return
        try:
            self._producer.begin_transaction()
            for topic, key, value, headers in self._messages(batch_id, renamed(changes), renamed(late)):
                self._produce(topic, key, value, headers)
            mark = _kafka().TopicPartition(self._mark_topic, 0, batch_id + 1)
            self._producer.send_offsets_to_transaction([mark], self._group, _PATIENCE)
            self._producer.commit_transaction(_PATIENCE)
        except BaseException as error:
            self.close()  # an open transaction is aborted when the job connects again, or by the broker
            if isinstance(error, _kafka().KafkaException) and _is_fatal(error.args[0]):
                raise StateError(
                    f"Kafka at {self._servers} takes nothing more from this process for job {self._job!r}: another one "
                    f"has taken the job over, and this one is fenced off. One of the two has to end ({error})"
                ) from error
            raise
        self._next = batch_id + 1

    def close(self) -> None:
        """Let the connection go. What has not been committed does not count."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = None

    @property
    def _mark_topic(self) -> str:
        return next(topic for topic in (self._changes, self._matches, self._late) if topic is not None)

    def _connect(self) -> None:
        kafka = _kafka()
        self._make_topics()
        producer = kafka.Producer(
            {
                "linger.ms": 5,
                "retry.backoff.ms": 10,  # a transaction's end waits for it; 100 would be a tenth of a second per batch
                "compression.type": "zstd",
                "partitioner": "murmur2_random",  # as Java's clients do, so that topics can be joined by key
                "log_level": 0,
                **self._settings,
                "bootstrap.servers": self._servers,
                "transactional.id": f"latecomer {self._job}",
            }
        )
        reader = kafka.Consumer(self._client() | {"group.id": f"latecomer {self._job}", "enable.auto.commit": False})
        try:
            producer.init_transactions(_PATIENCE)  # waits for, or aborts, what an earlier process left open
            [mark] = reader.committed([kafka.TopicPartition(self._mark_topic, 0)], timeout=_PATIENCE)
            self._group = reader.consumer_group_metadata()
        except kafka.KafkaException as error:
            raise StateError(f"Kafka at {self._servers} cannot be reached or refuses the job: {error}") from error
        finally:
            reader.close()
        self._next = max(mark.offset, 0)
        self._producer = producer

    def _make_topics(self) -> None:
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        kafka, admin = _kafka(), AdminClient(self._client())
        wanted = {self._changes: "delete", self._matches: "compact", self._late: "delete"}
        topics = [
            NewTopic(t, self._partitions, self._replicas, config={"cleanup.policy": policy})
            for t, policy in wanted.items()
            if t is not None
        ]
        try:
            there = admin.list_topics(timeout=_PATIENCE).topics
            missing = [t for t in topics if t.topic not in there]
            for made in admin.create_topics(missing).values() if missing else ():
                try:
                    made.result(_PATIENCE)
                except kafka.KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
        except kafka.KafkaException as error:
            raise StateError(
                f"Kafka at {self._servers} cannot be reached, or does not make the topics: {error}"
            ) from error

    def _client(self) -> dict[str, Any]:
        """The settings by which any client reaches the cluster."""
        reach = ("security.", "sasl.", "ssl.", "enable.ssl", "client.")
        shared = {k: v for k, v in self._settings.items() if k.startswith(reach)}
        return shared | {"bootstrap.servers": self._servers, "log_level": 0}

    def _messages(self, batch_id: int, changes: pa.Table, late: pa.Table) -> Iterator[Message]:
        stamp = [("job", str(self._job).encode()), ("batch_id", str(batch_id).encode())]

        def of(topic: str | None, key: str, rows: pa.Table, tombstones: bool = False) -> Iterator[Message]:
            if topic is None or not rows.num_rows:
                return
            rows = usual_table(rows)
            columns = [values(column) for column in rows.columns]
            for seq, row in enumerate(zip(*columns, strict=True)):
                content = dict(zip(rows.column_names, row, strict=True))
                gone = tombstones and content.pop("op") == "delete"
                text = None if gone else json.dumps(_finite(content), ensure_ascii=False, default=_shown).encode()
                yield topic, str(content[key]).encode(), text, [*stamp, ("seq", str(seq).encode())]

        yield from of(self._changes, "match_id", changes)
        yield from of(self._matches, "match_id", last_changes(changes), tombstones=True)
        yield from of(self._late, "late_id", late)

    def _produce(self, topic: str, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
            except BufferError:
                self._producer.poll(1.0)
            else:
                return


def _is_fatal(error: Any) -> bool:
    kinds = _kafka().KafkaError
    return error.fatal() or error.code() in (kinds._FATAL, kinds._FENCED)


def _finite(content: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN and no infinity: null."""
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in content.items()}


def _shown(value: Any) -> Any:
    """How JSON shows what it has no word for."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{value!r} has no form in JSON")


def _kafka() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise MissingDependency("confluent_kafka", "kafka", "KafkaSink") from error
    return confluent_kafka
