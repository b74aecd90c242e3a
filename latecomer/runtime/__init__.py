"""Running queries: batches in, changes out. Pure state machines, no I/O and no clock."""

from latecomer.runtime.runtime import Output, Runtime

__all__ = ["Output", "Runtime"]
