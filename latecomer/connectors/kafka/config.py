"""A pipeline's file: from TOML to a validated, frozen :class:`Pipeline`.

:func:`load` finds everything that can be wrong without connecting to anything: the file's form, names and values, the
queries against the columns, librdkafka's properties, and whether the secrets are there. All problems are told at once,
each with its line (:class:`~latecomer.connectors.kafka.config_errors.PipelineError`).

All inputs feed one stream, whose columns are fixed beforehand: ``type``, ``ts``, ``id``, ``source`` and ``of`` where
they are used, then those of ``[columns]``. So nothing depends on which message comes first.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field, PrivateAttr, ValidationError

from latecomer.connectors.kafka.config_check import misfits
from latecomer.connectors.kafka.config_clients import common_properties, revealed, settings_of
from latecomer.connectors.kafka.config_errors import PipelineError, Problem, problems_of
from latecomer.connectors.kafka.config_lines import Document, read
from latecomer.connectors.kafka.config_parts import (
    Input,
    Kafka,
    Limits,
    Operation,
    Output,
    QueryOptions,
    Repartition,
    SchemaRegistry,
    State,
    StreamOptions,
)
from latecomer.connectors.kafka.config_values import Bytes, Name, Place, Seconds, Setting, Table, read_level
from latecomer.connectors.kafka.operation.logs import CLIENT
from latecomer.consistency.generators import from_plain
from latecomer.query import Query
from latecomer.stream import Stream
from latecomer.texts import read_text

#: How columns may be declared.
ColumnType = Literal["int", "float", "bool", "text", "time"]
TYPES: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "time": pa.timestamp("us", "UTC"),
}
#: Where librdkafka's own messages go.
_CLIENT = logging.getLogger(CLIENT)
#: Names of settings that are secrets, however they are given.
_SECRET = re.compile(r"password|secret|token|\.pem$|user\.info$")
#: The login in an address.
_LOGIN = re.compile(r"://([^/@\s]+)@")


class Pipeline(Table):
    """A validated pipeline.

    Attributes:
        name: names the consumer group and, with ``instance``, the transactions.
        guarantee: whether outputs, offsets and state are committed in one transaction.
        transaction: seconds between two commits, 5 minutes at most: brokers give longer ones up.
        instance: a name of this process that stays the same when it is started again; None: one by chance.
        memory: bytes of a partition's state that may be in memory; the rest is in the state folder.
        columns_written: ``[columns]``: the attributes of events and their types.
        inputs, query_options, output, state, limits, operation, repartition, stream_options, kafka, schema_registry:
            the tables of the file.
        serve: ``[serve]``, which means something to ``latecomer serve`` only, and is checked there.
    """

    name: Name
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once"
    transaction: Seconds = Field(default=0.1, gt=0, le=300)
    instance: Name | None = None
    memory: Annotated[Bytes, Field(ge=1 << 20)] | None = None
    kafka: Kafka
    schema_registry: SchemaRegistry | None = None
    stream_options: StreamOptions = Field(default=StreamOptions(), alias="stream")
    columns_written: dict[Name, ColumnType] = Field(default={}, alias="columns")
    inputs: tuple[Input, ...] = Field(alias="input", min_length=1)
    query_options: tuple[QueryOptions, ...] = Field(alias="query", min_length=1)
    output: Output
    state: State
    limits: Limits = Limits()
    operation: Operation = Operation()
    repartition: Repartition | None = None
    serve: Any = None

    _folder: Path = PrivateAttr(Path())

    # --- the stream --------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> dict[str, pa.DataType]:
        """The attributes of events, and their Arrow types."""
        return {name: TYPES[kind] for name, kind in self.columns_written.items()}

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the batches that messages become."""
        parts: dict[str, pa.DataType] = {"type": pa.string(), "ts": pa.int64(), "id": pa.string()}
        if any(given.source is not None for given in self.inputs):
            parts["source"] = pa.string()
        if any(given.upper is not None for given in self.inputs):
            parts["upper"] = pa.int64()
        if any(given.pmf is not None for given in self.inputs):
            parts["pmf"] = pa.list_(pa.float64())
        if self._punctuated:
            parts["of"] = pa.string()
        return pa.schema(list((parts | self.columns).items()))

    @property
    def _punctuated(self) -> bool:
        return any(given.punctuation is not None for given in self.inputs)

    @cached_property
    def stream(self) -> Stream:
        """The stream of all inputs; raises ConfigError for options that make no sense."""
        options = dict(self.stream_options)
        for name in ("uncertainty", "distribution"):
            options[name] = _by_source(options[name])
        options["promises"] = [from_plain(promise) for promise in options["promises"]]
        uncertain = "upper" in self.schema.names
        return Stream(
            **options,
            lower="ts" if uncertain else None,
            upper="upper" if uncertain else None,
            pmf="pmf" if "pmf" in self.schema.names else None,
            id="id",
            source="source" if "source" in self.schema.names else None,
            punctuation=self.punctuation_type,
            schema=self.schema,
        )

    @property
    def punctuation_type(self) -> str | None:
        """The type of the batches' punctuation rows; None when no input has any."""
        if not self._punctuated:
            return None
        named = (given.punctuation.type for given in self.inputs if given.punctuation is not None)
        return next(filter(None, named), "PUNCT")

    def unit_of(self, place: Place) -> str:
        """The unit of a time that is found there: ``iso`` for texts."""
        return "ms" if place.record is not None else place.unit or self.stream_options.unit

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that are read, but the internal one."""
        return tuple(topic for given in self.inputs for topic in given.topics)

    def input_of(self, topic: str) -> Input:
        """The input that a topic belongs to."""
        return next(given for given in self.inputs if topic in given.topics)

    # --- the queries -------------------------------------------------------------------------------------------------

    @cached_property
    def queries(self) -> tuple[Query, ...]:
        """The queries; raises QueryError or ConfigError for the first that is wrong."""
        return tuple(self.query(number) for number in range(len(self.query_options)))

    def query(self, number: int) -> Query:
        """One query, by its number from 0."""
        options = self.query_options[number]
        level = None if options.level is None else read_level(options.level)
        return Query(self.query_text(number), name=options.name, level=level)

    def query_text(self, number: int) -> str:
        """The text of a query; files are looked for beside the pipeline's."""
        options = self.query_options[number]
        if options.text is not None:
            return options.text
        return read_text(self._folder / str(options.file), "query file")

    # --- clients -----------------------------------------------------------------------------------------------------

    def consumer_config(self, **more: Any) -> dict[str, Any]:
        """Properties of the consumer, with all secrets: never print them."""
        common = common_properties(self.kafka)
        own = {"group.id": self.name, "auto.offset.reset": "earliest", "logger": _CLIENT}
        fixed = {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.auto.offset.store": False}
        return own | common | revealed(self.kafka.consumer) | fixed | more

    def producer_config(self, transactional_id: str | None = None, **more: Any) -> dict[str, Any]:
        """Properties of a producer, with all secrets: never print them."""
        fixed: dict[str, Any] = {"enable.idempotence": True, "logger": _CLIENT}
        if transactional_id is not None:
            fixed["transactional.id"] = transactional_id
        return common_properties(self.kafka) | revealed(self.kafka.producer) | fixed | more

    def admin_config(self) -> dict[str, Any]:
        """Properties of an AdminClient, with all secrets: never print them."""
        return {"logger": _CLIENT, **common_properties(self.kafka)}

    def registry_config(self) -> dict[str, Any] | None:
        """What the schema registry's client is made with, with all secrets; None without a registry."""
        registry = self.schema_registry
        return None if registry is None else {"url": registry.url.reveal(), **revealed(registry.properties)}

    @property
    def group(self) -> str:
        """The consumer group."""
        return str(self.consumer_config()["group.id"])

    @property
    def secrets(self) -> frozenset[str]:
        """What must never be printed: for the logs, which blot it out."""
        found: set[str] = set()
        for path, setting in self.settings():
            found.update(setting.secrets)
            value = setting.reveal()
            found.update(_LOGIN.findall(value))
            if _SECRET.search(path[-1]):
                found.add(value)
        return frozenset(found)

    def settings(self) -> Iterator[tuple[tuple[str, ...], Setting]]:
        """All values that may hold secrets, and where they are in the file."""
        yield from settings_of(self.kafka, self.schema_registry)
        yield ("state", "uri"), self.state.location


#: A kind of pipeline.
P = TypeVar("P", bound=Pipeline)


def _by_source(option: Any) -> Any:
    """An option with None, which TOML cannot write, for all other sources."""
    return {None if k == "*" else k: v for k, v in option.items()} if isinstance(option, dict) else option


def load(path: str | os.PathLike[str]) -> Pipeline:
    """Read and check a pipeline's file, without connecting to anything.

    Raises PipelineError with all that is wrong in it, ConfigError when there is no such file.
    """
    return loads(read_text(path, "pipeline"), name=Path(path).name, folder=Path(path).parent)


def loads(text: str, *, name: str = "pipeline.toml", folder: str | os.PathLike[str] = ".") -> Pipeline:
    """Like :func:`load`, of a text; ``folder`` is where files of queries are looked for."""
    return checked(Pipeline, parsed(text, name), name, folder)


def parsed(text: str, name: str) -> Document:
    """The values of a text, with their lines. Raises PipelineError when it is no TOML."""
    try:
        return read(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error).removesuffix(")").rpartition(" (at ")
        line = str(problem[2]).removeprefix("line ").partition(",")[0]
        at = int(line) if line.isdigit() else text.count("\n") + 1
        raise PipelineError(name, [Problem(at, f"this is no TOML: {problem[0] or error}")]) from None


def checked(
    model: type[P],
    document: Document,
    name: str,
    folder: str | os.PathLike[str],
    more: Callable[[P, Document], Iterable[Problem]] = lambda pipeline, document: (),
) -> P:
    """The pipeline that a document tells; ``more`` finds what else is wrong with it. Raises PipelineError."""
    try:
        pipeline = model.model_validate(document.values)
    except ValidationError as error:
        raise PipelineError(name, problems_of(error.errors(), document, model)) from None
    pipeline._folder = Path(folder)
    found = [Problem(line, str(misfit)) for line, misfit in misfits(pipeline, document)]
    found += more(pipeline, document)
    if found:
        raise PipelineError(name, found)
    return pipeline
