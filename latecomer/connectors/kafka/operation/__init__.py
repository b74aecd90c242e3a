"""How a running pipeline is watched and stopped: what the loop tells, and who hears it."""

from latecomer.connectors.kafka.operation.watch import Figures, Listener, NullWatch, Watch

__all__ = ["Figures", "Listener", "NullWatch", "Watch"]
