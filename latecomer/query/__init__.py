"""The query language: text or Python -> validated query -> plan. Knows nothing of execution."""

from latecomer.query.builder import absent, event, seq
from latecomer.query.plan import Component, Negation, Plan
from latecomer.query.query import Query

__all__ = ["Component", "Negation", "Plan", "Query", "absent", "event", "seq"]
