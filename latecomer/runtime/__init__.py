"""The engine: batches in, changes out; and :class:`Runtime`, which embeds it in any Python process."""

from latecomer.runtime.runtime import Output, Runtime
from latecomer.runtime.spill import Spill

__all__ = ["Output", "Runtime", "Spill"]
