"""The query language: text or Python -> validated query -> plan. Knows nothing of execution."""

from latecomer.query.builder import absent, confidence, earliest, event, latest, seq
from latecomer.query.plan import Component, Confidence, Negation, Plan
from latecomer.query.query import Query

__all__ = [
    "Component",
    "Confidence",
    "Negation",
    "Plan",
    "Query",
    "absent",
    "confidence",
    "earliest",
    "event",
    "latest",
    "seq",
]
