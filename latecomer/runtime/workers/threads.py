"""Members in threads of this process: where kernels are compiled, since these do without Python's lock.

A batch is handed over as it is, and answers are tables that lie where they are asked for. The batch's rows are read
once, by all members together (:mod:`latecomer.runtime.joint`). What takes less than waking a thread is answered where
it is asked, by one member after another.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from latecomer.errors import StateError
from latecomer.runtime.joint import Joint
from latecomer.runtime.runtime import CLOSED
from latecomer.runtime.workers.member import BATCHES, Member, Part

#: Rows of a batch, and requests without one, for which threads are woken.
_MANY = 1_024
_LONG = frozenset({"begin", "snapshot", "write", "finish"})

#: Pieces of output of one member that wait to be taken, so that it does not run far ahead of whoever takes them.
_AHEAD = 2

#: Seconds that the end of a thread is waited for: it may be in the middle of a batch, and ends behind it by itself.
_PATIENCE = 10


class Threads:
    """The members from 1 to ``size``."""

    def __init__(self, size: int) -> None:
        self.joint = Joint()
        self._said: SimpleQueue[tuple[int, Part]] = SimpleQueue()
        self._many = False  # whether the batch that is shown has many rows
        self._here: dict[int, Iterator[Part]] = {}  # answers of members that are asked here
        self.seats = {number: Seat(number, self._said) for number in range(1, size)}

    @contextmanager
    def showing(self, batch: Any) -> Iterator[Any]:
        self._many = (batch.num_rows if isinstance(batch, pa.RecordBatch) else len(batch)) >= _MANY
        with self.joint.showing(batch if self._many else None):
            yield batch

    def send(self, number: int, request: tuple[Any, ...]) -> None:
        seat, method = self.seats[number], request[0]
        if method in _LONG or (method in BATCHES and self._many):
            seat.asked.put(request)
        else:
            self._here[number] = seat.member.parts(*request)

    def receive(self, numbers: Collection[int]) -> Iterator[tuple[int, Part]]:
        if self._here:
            number, parts = self._here.popitem()
            for part in parts:
                yield number, part
            return
        number, part = self._said.get()
        if not part.last:
            self.seats[number].room.release()
        yield number, part

    def close(self) -> None:
        for seat in self.seats.values():
            seat.leave()
        for seat in self.seats.values():
            seat.thread.join(_PATIENCE)


class Seat:
    """One member, and its thread, which holds on to nothing of the crew, so that this ends with the runtime."""

    def __init__(self, number: int, said: SimpleQueue[tuple[int, Part]]) -> None:
        self.member = Member()
        self.asked: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self.room = threading.Semaphore(_AHEAD)
        self._number, self._said, self._left = number, said, False
        self.thread = threading.Thread(target=self._serve, name=f"latecomer-worker-{number}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (request := self.asked.get()) is not None:
            try:
                self._answer(request)
            except BaseException as problem:  # noqa: BLE001 - whoever has asked waits for an end, whatever it is
                self._said.put((self._number, Part(last=True, error=problem)))
            del request  # and with it a batch, which nobody needs until the next one comes

    def _answer(self, request: tuple[Any, ...]) -> None:
        for part in self.member.parts(*request):
            if not part.last:
                self.room.acquire()
                if self._left:
                    raise StateError(CLOSED)
            self._said.put((self._number, part))

    def leave(self) -> None:
        """End the thread: at once if it waits for a request, or for its pieces to be taken."""
        self._left = True
        self.asked.put(None)
        self.room.release()
