"""``latecomer serve``: a pipeline behind HTTP, with a page that shows what it does.

    service.py     a pipeline without brokers: one worker, its runtime, its journal; kafka.py: one with brokers
    journal.py, log.py, outcome.py, folder.py, records.py    what is on disk, and in which order
    reading.py, arrow.py, letters.py, inbox.py               what comes in
    app.py, openapi.py, sse.py, watching.py, metrics.py      what is answered
    auth.py, limits.py, server.py                            who may come in, how much, how fast
    live.py, page/, demo.py                                  the page, and something to look at

Rule: one thread owns the runtime; the HTTP side never waits for it but by awaiting.
"""

from latecomer.serve.running import run, run_demo

__all__ = ["run", "run_demo"]
