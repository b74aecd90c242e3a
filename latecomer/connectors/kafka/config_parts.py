"""The tables of a pipeline's file, each as a model: its keys, their defaults, and what can be checked within it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from latecomer.connectors.kafka.config_values import (
    Bytes,
    Name,
    Names,
    Place,
    Seconds,
    Setting,
    Table,
    flattened,
)
from latecomer.errors import ConfigError, options
from latecomer.uncertainty import shape_of
from latecomer.units import Duration

#: How messages may be written that come in, and those that go out.
InputFormat = Literal["json", "avro", "protobuf", "msgpack", "csv"]
OutputFormat = Literal["json", "avro", "msgpack"]

#: What the record may be asked for, by purpose.
_PARTS = {
    "type": ("topic", "key"),
    "time": ("timestamp",),
    "id": ("position", "key"),
    "source": ("topic", "partition", "key"),
    "upper": ("timestamp",),
    "pmf": (),
}


class Kafka(Table):
    """``[kafka]``: where the brokers are, and any property of librdkafka.

    Attributes:
        brokers: ``host:port``, several with commas or as a list.
        common, consumer, producer: properties for both sides, and from ``[kafka.consumer]`` and ``[kafka.producer]``.
    """

    brokers: Setting
    common: dict[str, Setting] = Field(default={})
    consumer: dict[str, Setting] = Field(default={})
    producer: dict[str, Setting] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _sorted(cls, value: Any) -> Any:
        """What the file has in one table, by side."""
        if not isinstance(value, dict):
            return value
        flat = flattened(value, apart=("consumer", "producer"))
        sides = {
            side: flattened(flat.pop(side)) for side in ("consumer", "producer") if isinstance(flat.get(side), dict)
        }
        given = {"brokers": flat.pop("brokers")} if "brokers" in flat else {}
        return given | sides | {"common": flat}


class SchemaRegistry(Table):
    """``[schema_registry]``: its address, and any property of confluent-kafka's client."""

    url: Setting
    properties: dict[str, Setting] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _sorted(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        flat = flattened(value)
        given = {"url": flat.pop("url")} if "url" in flat else {}
        return given | {"properties": flat}


class StreamOptions(Table):
    """``[stream]``: options of :class:`latecomer.Stream`; event times are counted in ``unit``.

    In tables by source ``"*"`` stands for all others.
    """

    unit: Literal["ns", "us", "ms", "s", "min", "h", "d"] = "ms"
    clock: Literal["stream", "source"] = "stream"
    sources: Names | None = None
    quorum: int = 1
    idle_timeout: str | int | float | None = None
    max_ahead: str | int | float | None = None
    of_key: Names = ()
    promises: tuple[dict[str, Any], ...] = ()
    uncertainty: str | int | float | dict[str, str | int | float] | None = None
    granularity: str | int | float | None = None
    longest: str | int | float | None = None
    rounding: Literal["down", "nearest", "up"] = "down"
    distribution: Any = None

    @field_validator("idle_timeout", "max_ahead", "uncertainty", "granularity", "longest", mode="before")
    @classmethod
    def _lengths(cls, value: Any) -> Any:
        try:
            for length in value.values() if isinstance(value, dict) else [value]:
                Duration.of(length)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("distribution")
    @classmethod
    def _shapes(cls, value: Any) -> Any:
        try:
            for shape in value.values() if isinstance(value, dict) else [value]:
                shape_of(shape)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value


class Csv(Table):
    """``csv = { … }``: the names of a line's fields in order, what is between them, and what stands for null."""

    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    null: str = ""


class InputPunctuation(Table):
    """``punctuation = { … }``: messages that promise that no earlier event will follow.

    Attributes:
        type: event type of such messages; their time is the bound and their source, if any, the one they speak of.
        header: or a header of that name on any message, whose value is JSON: ``{"type": …, "source": …, "ts": …}``.
        of: where a message says which event type it speaks of; null there means all.
    """

    type: Name | None = None
    header: Name | None = None
    of: Place = Place(field="of")

    @model_validator(mode="after")
    def _one(self) -> InputPunctuation:
        if self.type is None and self.header is None:
            raise ValueError("type, the event type of such messages, or header, the name of one, is needed")
        return self


class Input(Table):
    """``[[input]]``: topics whose messages have one form.

    Attributes:
        topics: their names (``topic`` in the file; one or a list).
        format: how values are written.
        type, time, id, source: where the parts of an event are found.
        upper: where the last time is found at which the event may have happened, where ``time`` is the first.
        pmf: where the weights of the times between them are found, a list of numbers.
        fields: where columns are found that are not simply the field of their own name.
        key: columns whose values decide in which partition a message is, usually what its key is made of; empty:
            that is not known.
        types: event types that may come; messages of others are dead letters. Empty: they are counted and ignored.
        message: for Protobuf the generated class, ``package.module:Class``.
    """

    topics: Names = Field(alias="topic", min_length=1)
    format: InputFormat
    type: Place = Place(field="type")
    time: Place = Place(field="ts")
    id: Place = Place(record="position")
    source: Place | None = None
    upper: Place | None = None
    pmf: Place | None = None
    fields: dict[str, Place] = Field(default={})
    key: Names = ()
    types: Names = ()
    csv: Csv | None = None
    message: str | None = None
    punctuation: InputPunctuation | None = None

    @field_validator("type", "time", "id", "source", "upper", "pmf")
    @classmethod
    def _sensible(cls, place: Place | None, info: Any) -> Place | None:
        if place is None:
            return place
        allowed = _PARTS[info.field_name]
        if place.record is not None and place.record not in allowed:
            raise ValueError(f"record = {place.record!r} cannot be that: allowed are {options(allowed)}")
        times = ("time", "upper")
        if info.field_name not in times and place.unit is not None:
            raise ValueError("only times have a unit")
        if info.field_name in (*times, "id") and place.constant is not None:
            raise ValueError(
                "a constant would be the same for every event: give a field, a header or a part of the record"
            )
        if place.record is not None and place.unit is not None:
            raise ValueError("the broker's timestamps are in ms: leave the unit out")
        return place

    @model_validator(mode="after")
    def _fitting(self) -> Input:
        if self.pmf is not None and (self.pmf.kind != "field" or self.format == "csv"):
            raise ValueError('pmf is a list of numbers, which only a field holds, and no CSV: pmf = "weights"')
        if self.format == "csv" and self.csv is None:
            raise ValueError('the names of a line\'s fields are needed: csv = { columns = ["id", "type", "ts"] }')
        if self.format != "csv" and self.csv is not None:
            raise ValueError(f'csv = {{ … }} is for format = "csv", and this is {self.format}')
        if self.format == "protobuf" and (self.message is None or ":" not in self.message):
            raise ValueError('the generated class is needed: message = "package.module:Class"')
        if self.format != "protobuf" and self.message is not None:
            raise ValueError('message is for format = "protobuf"; Avro messages name their schema themselves')
        return self


class QueryOptions(Table):
    """``[[query]]``: its name, its text or the file of it, and its level, unless the text ends with CONSISTENCY."""

    name: Name
    text: str | None = None
    file: str | None = None
    level: str | None = None

    @model_validator(mode="after")
    def _one(self) -> QueryOptions:
        if (self.text is None) == (self.file is None):
            raise ValueError("either text, the query itself, or file, the name of a file of it, is needed")
        return self


class Topic(Table):
    """A topic to write to, and how. A text alone is its name, and the format is JSON."""

    topic: Name
    format: OutputFormat = "json"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"topic": value} if isinstance(value, str) else value


class Output(Table):
    """``[output]``: topics for what comes out.

    Attributes:
        changes: the full log: every insertion and deletion, in order.
        matches: what holds now, for a compacted topic: a match under its ``match_id``, and a tombstone once it is taken
            back.
        late: events that broke a promise, with the reason.
        dead_letters: messages that are no events, as they came, with position and reason.
    """

    changes: Topic | None = None
    matches: Topic | None = None
    late: Topic
    dead_letters: Name

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics for rows, by purpose."""
        found = {"changes": self.changes, "matches": self.matches, "late": self.late}
        return {purpose: topic for purpose, topic in found.items() if topic is not None}

    @model_validator(mode="after")
    def _some(self) -> Output:
        if self.changes is None and self.matches is None:
            raise ValueError("a topic is needed for changes (the full log), for matches (what holds now), or for both")
        return self


class State(Table):
    """``[state]``: where the state is kept, and how often at most a version is saved."""

    location: Setting = Field(alias="uri")
    interval: Seconds = Field(default=1.0, ge=0)

    @property
    def uri(self) -> str:
        """Where it is, with all secrets: never print this."""
        return self.location.reveal()


class Limits(Table):
    """``[limits]``: the largest message that is read (bytes), messages per step, and messages that are taken in but not
    yet committed, beyond which partitions are paused."""

    max_message: Bytes = Field(default=1_000_000, ge=1)
    batch: int = Field(default=10_000, ge=1, le=1_000_000)
    max_in_flight: int = Field(default=100_000, ge=1)

    @model_validator(mode="after")
    def _fitting(self) -> Limits:
        if self.max_in_flight < self.batch:
            raise ValueError(
                f"max_in_flight = {self.max_in_flight} is less than batch = {self.batch}: no batch would fit"
            )
        return self


class Operation(Table):
    """``[operation]``: how it is watched and stopped.

    Attributes:
        host, port: where ``/healthz``, ``/readyz`` and ``/metrics`` are served; without a port they are not.
        log: JSON lines, or text for people; ``auto``: text on a terminal.
        shutdown: seconds for the last batch after SIGTERM.
        idle_check: seconds between two looks at the wall clock, for idle sources.
    """

    host: Name = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65_535)
    log: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    shutdown: Seconds = Field(default=30.0, gt=0)
    idle_check: Seconds = Field(default=0.2, gt=0)


class Repartition(Table):
    """``[repartition]``: an internal topic through which messages reach the partition of their key.

    Attributes:
        topic: its name.
        by: the columns of the key; left out: those on which the events of all queries agree.
        partitions: how many it has.
    """

    topic: Name
    by: Names | None = None
    partitions: int = Field(default=8, ge=1)
