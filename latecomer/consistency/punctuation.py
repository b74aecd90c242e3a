"""Punctuation (partial order guarantees): ``<type, ts>`` says that no event of the type with time ``<= ts`` will
arrive any more.

Rules (Liu 2012, §3.6.1, in the "none at or below" reading): keep the largest bound per type; punctuation may be late,
repeated or lost, never taken back. Punctuation for one source binds that source alone; the type's bound follows once
*every* known source has promised as much. Like clocks, bounds are running values: what counts for an event is the
bound at its arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.consistency.clock import I64

#: In columns of punctuation: any type, or any source.
ANY = -1


@dataclass(frozen=True, slots=True)
class Punctuation:
    """n promises of a batch, in order: at ``position`` in the batch, no event of ``type`` (or ANY) from ``source``
    (or ANY) with time ``<= ts`` will follow. Types and sources are numbers; ``known`` is the number of sources known
    at that position.
    """

    position: I64
    type: I64
    ts: I64
    source: I64
    known: I64
