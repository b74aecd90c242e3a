"""Latecomer finds patterns in event streams whose events arrive late and out of order."""

from latecomer.consistency.generators import (
    BoundedDelay,
    EndOfInput,
    Heartbeats,
    Schedule,
    SequenceNumbers,
    SourcesInOrder,
)
from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.errors import ConfigError, LatecomerError, MissingDependency, QueryError, SchemaError, StateError
from latecomer.query import Query, absent, confidence, earliest, event, latest, seq
from latecomer.runtime import Output, Runtime, Spill
from latecomer.stream import Stream

__version__ = "0.1.0"

__all__ = [
    "Aggressive",
    "BoundedDelay",
    "ConfigError",
    "Conservative",
    "EndOfInput",
    "Heartbeats",
    "KSlack",
    "LatecomerError",
    "MissingDependency",
    "Output",
    "Query",
    "QueryError",
    "Runtime",
    "Schedule",
    "SchemaError",
    "SequenceNumbers",
    "SourcesInOrder",
    "Spill",
    "StateError",
    "Stream",
    "__version__",
    "absent",
    "confidence",
    "earliest",
    "event",
    "latest",
    "seq",
]
