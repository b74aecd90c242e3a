"""SIGTERM and SIGINT: the first asks the loop to end in order, the second does not wait for that.

A loop that does not end within its time is cut off. That is safe: what was not committed did not happen.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from latecomer.connectors.kafka.operation.watch import Watch

#: The exit code of a process that was cut off.
CUT_OFF = 75

_log = logging.getLogger("latecomer.kafka.operation")


@contextmanager
def ending_on_signals(watch: Watch, seconds: float) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGINT stop the watch; for the main thread only.

    Args:
        seconds: how long the loop may take after that; then the process ends with code :data:`CUT_OFF`.
    """
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def cut_off(name: str) -> None:
        _log.info("stopping", extra={"fields": {"signal": name}})
        if not ended.wait(seconds):
            _log.error("the last batch took too long; it is given up", extra={"fields": {"seconds": seconds}})
            os._exit(CUT_OFF)

    def handle(number: int, frame: FrameType | None) -> None:
        for each, earlier in before.items():
            signal.signal(each, earlier)  # the next one acts as it would without us
        watch.stop()
        # Not logged in the handler itself: the thread that it interrupts may hold the log's lock.
        name = signal.Signals(number).name
        threads.append(threading.Thread(target=cut_off, args=(name,), name="latecomer-cut-off", daemon=True))
        threads[-1].start()

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    for each in before:
        signal.signal(each, handle)
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for each, earlier in before.items():
            signal.signal(each, earlier)
