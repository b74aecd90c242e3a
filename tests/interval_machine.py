"""The interval matcher with the least around it: a log, stores, and a net answer. For tests and benchmarks.

Events are dicts as in ``worlds.py``; ``weights`` are their own, else the uniform distribution holds.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from latecomer.runtime.evaluate import Times, compile_truth
from latecomer.runtime.intervals.matcher import IntervalMatcher
from latecomer.runtime.intervals.pattern import IntervalPattern
from latecomer.runtime.intervals.reading import OWN, SHAPE, UPPER, WEIGHTS
from latecomer.runtime.intervals.spans import SpanStore
from latecomer.runtime.intervals.timing import LogTiming
from latecomer.runtime.pattern import Tester
from latecomer.runtime.selection import Selector
from latecomer.storage.log import EventLog
from latecomer.storage.store import CodeLayout
from latecomer.uncertainty import Uniform

TYPES = {"k": pa.string(), "x": pa.int64(), "id": pa.int64()}


@dataclass
class Machine:
    """One query over one stream; ``shown`` is the net output."""

    plan: object
    steps: float = 1e8
    moved: float = 0.0
    shapes: tuple = (Uniform(),)
    shown: dict = field(default_factory=dict)
    log: object = field(init=False)

    def __post_init__(self):
        times = Times("s", pa.int64())
        hidden = {UPPER: pa.int64(), SHAPE: pa.int64(), WEIGHTS: pa.binary()}
        self.log = EventLog(TYPES | hidden)
        window = self.plan.window.units("s")
        self.pattern = IntervalPattern(self.plan, window, TYPES, times)
        self.layout = CodeLayout.for_reach(window)
        self.stores = {s: SpanStore(self.layout) for s in sorted(self.pattern.selections(), key=repr)}
        self.conditions = {c: compile_truth(c, times) for s in self.stores for c in s.filter}
        self.numbers = {t: i for i, t in enumerate(self.plan.types)}
        tester, timing = Tester(self.log, self.pattern), LogTiming(self.log, self.shapes)
        least = self.plan.confidence
        args = (self.stores.__getitem__, self.layout, timing, tester, least, self.steps, self.moved)
        self.matcher = IntervalMatcher(self.pattern, *args)

    def columns(self, events):
        """Events as the arrays that :meth:`take` wants."""
        own = [e.get("weights") for e in events]
        columns = {name: pa.array([e.get(name) for e in events], kind) for name, kind in TYPES.items()}
        columns[UPPER] = pa.array([e["upper"] for e in events], pa.int64())
        columns[SHAPE] = pa.array(
            [e.get("shape", 0) if w is None else OWN for e, w in zip(events, own, strict=True)], pa.int64()
        )
        packed = [None if w is None else np.array(w, float).tobytes() for w in own]
        columns[WEIGHTS] = pa.array(packed, pa.binary())
        types = np.array([self.numbers.get(e["type"], -1) for e in events], np.int64)
        return types, np.array([e["lower"] for e in events], np.int64), columns

    def stage(self, types, lower, columns):
        """Bring a batch into the stores' staging."""
        refs = self.log.end + np.arange(len(lower))
        self.log.append(lower, types, np.zeros(len(lower), np.uint64), columns)
        upper = columns[UPPER].to_numpy()
        selector = Selector(types, self.numbers, lower, columns, self.conditions)
        for selection, store in self.stores.items():
            at, hashes = selector.select(selection)
            store.stage(hashes, lower[at], upper[at], refs[at])

    def run(self):
        """The revisions that the staged batch makes; then it is part of the state."""
        yield from self.matcher.step()
        for store in self.stores.values():
            store.commit()
            store._check()

    def process(self, events):
        """Take a batch; keep ``shown`` up to date, checking that each match comes and goes in turn."""
        self.stage(*self.columns(events))
        ids = self.log.columns["id"]
        for revision in self.run():
            refs = [revision.rows.ref(i) for i in self.pattern.positives]
            names = zip(*(ids.take(r).to_pylist() for r in refs), strict=True)
            ranges = zip(
                *(
                    zip(a.tolist(), b.tolist(), strict=True)
                    for a, b in zip(revision.earliest, revision.latest, strict=True)
                ),
                strict=True,
            )
            said = zip(names, revision.confidence.tolist(), ranges, strict=True)
            for key, confidence, spans in said:
                if revision.insert:
                    assert key not in self.shown, f"{key} was shown already"
                    self.shown[key] = (confidence, spans)
                else:
                    assert self.shown.get(key) == (confidence, spans), f"{key}: {self.shown.get(key)} shown"
                    del self.shown[key]
