"""Sinks: where changes and late rows go, batch by batch. Each gives the log of changes and the matches that hold
now."""

from latecomer.connectors.sinks.base import FunctionSink, Sink, SinkFunction, as_sink, deliver
from latecomer.connectors.sinks.delta import DeltaSink
from latecomer.connectors.sinks.duckdb import DuckDBSink
from latecomer.connectors.sinks.kafka import KafkaSink
from latecomer.connectors.sinks.parquet import ParquetSink
from latecomer.connectors.sinks.postgres import PostgresSink
from latecomer.connectors.sinks.sqlite import SQLiteSink

__all__ = [
    "DeltaSink",
    "DuckDBSink",
    "FunctionSink",
    "KafkaSink",
    "ParquetSink",
    "PostgresSink",
    "SQLiteSink",
    "Sink",
    "SinkFunction",
    "as_sink",
    "deliver",
]
