"""What users know about the order of a stream, as promises: see ``docs/punctuation.md``."""

from latecomer.consistency.arrivals import Arrivals
from latecomer.consistency.generators.base import (
    Generator,
    Logic,
    Promises,
    Setting,
    Stateless,
    from_plain,
    generator,
    to_plain,
)
from latecomer.consistency.generators.combined import Combined
from latecomer.consistency.generators.delay import BoundedDelay
from latecomer.consistency.generators.marks import EndOfInput, Heartbeats
from latecomer.consistency.generators.ordered import SourcesInOrder
from latecomer.consistency.generators.schedule import Schedule
from latecomer.consistency.generators.sequence import SequenceNumbers

__all__ = [
    "Arrivals",
    "BoundedDelay",
    "Combined",
    "EndOfInput",
    "Generator",
    "Heartbeats",
    "Logic",
    "Promises",
    "Schedule",
    "SequenceNumbers",
    "Setting",
    "SourcesInOrder",
    "Stateless",
    "from_plain",
    "generator",
    "to_plain",
]
