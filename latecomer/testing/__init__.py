"""A kit for tests of your own queries and pipelines; see ``docs/testing.md``.

    assert_same_matches(query, events)       the matches do not depend on how the events arrive
    ScriptedSource([…], batch=, clock=)      events, Pause, Abort and End, handed over in batches
    ManualClock(now)                         a clock that you move
    CollectingSink()                         keeps changes and late rows; ``net()`` is what matches now
    play(runtime, source, sink, every=)      source to runtime to sink, with restarts
    disordered(events, model, stream, seed=) events as they arrive by a model of latecomer.disorder

Nothing here needs a test framework: what fails raises AssertionError.
"""

from __future__ import annotations

from latecomer.testing.clock import ManualClock
from latecomer.testing.disorder import disordered
from latecomer.testing.playing import play
from latecomer.testing.same import assert_same_matches
from latecomer.testing.script import Abort, Aborted, End, Pause, ScriptedSource
from latecomer.testing.sink import CollectingSink

__all__ = [
    "Abort",
    "Aborted",
    "CollectingSink",
    "End",
    "ManualClock",
    "Pause",
    "ScriptedSource",
    "assert_same_matches",
    "disordered",
    "play",
]
