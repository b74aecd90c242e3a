"""A member of a crew: a runtime with one share of the events, which answers requests.

A request is a tuple (method, arguments…), an answer any number of outputs, and a value.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

from latecomer.runtime.runtime import Output, Runtime
from latecomer.runtime.share import Share
from latecomer.runtime.spill import Spill

#: Methods that take in a batch, and those that give one Output without.
BATCHES = frozenset({"process", "stream_pieces"})
OUTPUTS = frozenset({"reject", "punctuate", "observe", "advance", "finish"})


@dataclass(frozen=True, slots=True)
class Part:
    """What a member says at once: an output, and whether the answer ends with it: with a value, or with an error."""

    output: Output | None = None
    last: bool = False
    value: Any = None
    error: BaseException | None = None


class Member:
    """Answers requests with a runtime of its own."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None

    def answer(self, method: str, *given: Any) -> Generator[Output, None, Any]:
        if method == "begin":
            return self._begin(*given)
        runtime = self.runtime
        assert runtime is not None
        if method in BATCHES:
            batch, clocks, cuts = given
            if method == "process":
                yield runtime.process(batch, clocks=clocks, cuts=cuts)
            else:
                yield from runtime.stream_pieces(batch, clocks=clocks, cuts=cuts)
        elif method in OUTPUTS:
            yield getattr(runtime, method)(*given)
        elif method == "write":
            return runtime.checkpoint(number=given[0])
        else:
            value = getattr(runtime, method)
            return value(*given) if callable(value) else value
        return None

    def parts(self, method: str, *given: Any) -> Iterator[Part]:
        """An answer in parts. An output is told together with how the answer ends, if it is the last."""
        answer = self.answer(method, *given)
        output: Output | None = None
        try:
            while True:
                following = next(answer)
                if output is not None:
                    yield Part(output)
                output = following
        except StopIteration as end:
            yield Part(output, last=True, value=end.value)
        except Exception as problem:  # noqa: BLE001 - whatever it is, whoever has asked raises it
            yield Part(output, last=True, error=problem)

    def _begin(
        self, share: Share, snapshot: bytes | None, spill: Spill | None, version: int | None, memory: int | None
    ) -> None:
        """Begin from a snapshot, or from a version in a folder. A snapshot of nothing may begin a folder."""
        if snapshot is None:
            assert spill is not None
            runtime = Runtime.open(spill, version=version, memory=memory)
        else:
            runtime = Runtime.restore(snapshot)
            if spill is not None:
                runtime = Runtime(runtime.stream, runtime.queries, memory=memory, spill=spill)
        runtime._take_share(share)
        self.runtime = runtime
