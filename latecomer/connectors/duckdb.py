"""The DuckDB sink, also under this name; the sinks live in :mod:`latecomer.connectors.sinks`."""

from latecomer.connectors.sinks.duckdb import DuckDBSink
from latecomer.connectors.sinks.tables import last_changes

__all__ = ["DuckDBSink", "last_changes"]
