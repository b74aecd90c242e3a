"""The demo: two queries at five levels over a year of real flights, as one Spark job (``latecomer demo``)."""

from __future__ import annotations

from latecomer.demo.show import run

__all__ = ["run"]
