"""Advice from a recorded sample: how late events are, which promises would have held, what each level would cost.

take(thin(chunks), stream, name=…)    -> Sample: events in order of arrival
advise(sample, queries)               -> Advice: plain data (``as_dict``), or a page of its own (``html``)
"""

from __future__ import annotations

from latecomer.advise.advice import Advice, advise
from latecomer.advise.sample import Sample, chunks_of, take, thin

__all__ = ["Advice", "Sample", "advise", "chunks_of", "take", "thin"]
