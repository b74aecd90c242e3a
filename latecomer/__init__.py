"""Latecomer finds patterns in event streams whose events arrive late and out of order."""

__version__ = "0.1.0"
