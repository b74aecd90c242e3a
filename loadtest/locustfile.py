"""Locust's half: virtual sources as users, the shape of the load, the knobs' page, and the verdict as exit code.

    export BROKERS=127.0.0.1:9092 STATE=state
    latecomer run loadtest/pipeline.toml                            # the pipeline under test
    locust -f loadtest/locustfile.py --web-host 127.0.0.1 -t 5m     # then open http://127.0.0.1:8089

Every user is one source with a connection of its own. See ``docs/load-testing.md``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # Locust knows only this file's own folder

import gevent
from locust import LoadTestShape, User, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from latecomer.connectors.kafka.config import load
from loadtest.fleet import Fleet, Knobs
from loadtest.http import Service
from loadtest.panel import WORDS, linked, panel
from loadtest.session import Session
from loadtest.shapes import SHAPES, phase
from loadtest.wire import Cluster

#: Between two looks of a source at what is due.
TICK = 0.01
#: Seconds beyond the patience that a master waits for its workers' verdicts.
GRACE = 15.0


@events.init_command_line_parser.add_listener
def arguments(parser: LocustArgumentParser) -> None:
    """What this test adds to Locust's own options; the knobs are those of the page."""
    group = parser.add_argument_group("Latecomer")
    add = group.add_argument
    add("--pipeline", default=str(Path(__file__).parent / "pipeline.toml"), help="the pipeline under test")
    add("--service", default="", help="instead of a pipeline on Kafka: the address of a service (latecomer serve)")
    add("--form", choices=("lines", "arrow"), default="lines", help="how a service is sent events")
    add("--source-rate", type=float, default=1_000, help="events per second of each source")
    add("--matching", type=float, default=0.1, help="share of the events that belong to stories which may match")
    add("--window", type=int, default=5_000, help="the query's window, ms")
    add("--skew", type=int, default=0, help="each source's clock is off by up to so many ms")
    add("--drift", type=float, default=0.0, help="and runs wrong by up to this rate")
    add("--seed", type=int, default=1, help="of all chance")
    add("--patience", type=float, default=30.0, help="seconds to wait for answers after the end")
    add("--shape", choices=sorted(SHAPES), default="steady", help="how the load goes over time")
    add("--latency-limit", type=float, default=1_000, help="shape 'step' ends where the 99 %% latency is above, ms")
    for name, value in Knobs().typed().items():
        add(f"--{name}", default=value, help=WORDS[name])


def knobs_of(options: Any) -> Knobs:
    """The knobs as the command line has them."""
    return Knobs().turned({f.name: str(getattr(options, f.name)) for f in fields(Knobs)})


class Run:
    """What this process runs; Locust's listeners share it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.knobs = Knobs()
        self.expected = 1  # verdicts
        self.verdicts: list[tuple[bool, str]] = []
        self.slowest: dict[str, float] = {}  # by worker, as it last told the master


run = Run()


@events.init.add_listener
def begin(environment: Environment, **_: Any) -> None:
    """Learn the knobs, show their page, and listen to those of the master."""
    run.knobs = knobs_of(environment.parsed_options)
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        runner.register_message("knobs", lambda environment, msg, **_: _turn(Knobs().turned(msg.data)))
        runner.register_message("finish", lambda environment, msg, **_: finish(environment), concurrent=True)
    if isinstance(runner, MasterRunner):
        runner.register_message("verdict", lambda environment, msg, **_: run.verdicts.append(tuple(msg.data)))
    if environment.web_ui is not None:
        environment.web_ui.app.register_blueprint(
            panel(lambda: run.knobs, lambda knobs: turn(environment, knobs), lambda: _state(environment))
        )
        environment.web_ui.app.after_request(linked)


def turn(environment: Environment, knobs: Knobs) -> None:
    """Set the knobs here and on all workers."""
    if isinstance(environment.runner, MasterRunner):
        environment.runner.send_message("knobs", knobs.typed())
    _turn(knobs)


def _turn(knobs: Knobs) -> None:
    run.knobs = knobs
    if run.session is not None:
        run.session.turn(knobs)


def _state(environment: Environment) -> dict[str, Any]:
    if run.session is not None:
        return run.session.state()
    return {"verdicts": "\n".join(text for _, text in run.verdicts) or "none yet"}


@events.test_start.add_listener
def start(environment: Environment, **_: Any) -> None:
    """A session for each process that sends."""
    run.verdicts.clear()
    run.slowest.clear()
    run.expected = 1
    if isinstance(environment.runner, MasterRunner):
        run.expected = environment.runner.worker_count
        return
    options = environment.parsed_options
    worker = environment.runner.worker_index if isinstance(environment.runner, WorkerRunner) else 0
    fleet = Fleet(
        rate=options.source_rate,
        window=options.window,
        share=options.matching,
        skew=options.skew,
        drift=options.drift,
        seed=options.seed,
        base=worker << 40,
    )
    tested = Service(options.service, options.form) if options.service else Cluster(load(options.pipeline))
    run.session = Session(tested, fleet, environment.stats)
    run.session.turn(run.knobs)


@events.report_to_master.add_listener
def report(client_id: str, data: dict[str, Any], **_: Any) -> None:
    """A worker tells the master how slow it finds the pipeline, for shape ``step``."""
    data["slowest"] = 0.0 if run.session is None else run.session.slowest()


@events.worker_report.add_listener
def reported(client_id: str, data: dict[str, Any], **_: Any) -> None:
    """The master hears it."""
    run.slowest[client_id] = data.get("slowest", 0.0)


@events.test_stop.add_listener
def stop(environment: Environment, **_: Any) -> None:
    """Wait for the last answers, judge, and tell the master; the master waits for all of its workers."""
    options = environment.parsed_options
    if isinstance(environment.runner, MasterRunner):
        environment.runner.send_message("finish")  # at the end of its shape Locust does not tell them itself
        end = time.monotonic() + options.patience + GRACE
        while len(run.verdicts) < run.expected and time.monotonic() < end:
            gevent.sleep(0.1)
        return
    finish(environment)


def finish(environment: Environment) -> None:
    """End this process's session, once, with a verdict."""
    session, run.session = run.session, None
    if session is None:
        return
    verdict = session.finish(environment.parsed_options.patience)
    run.verdicts.append((verdict.passed, str(verdict)))
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.send_message("verdict", [verdict.passed, str(verdict)])


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """The exit code: 0 where every process passed, else 1."""
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        return
    for passed, text in run.verdicts:
        print(text, file=sys.stderr)
        if not passed:
            environment.process_exit_code = 1
    if len(run.verdicts) < run.expected:
        print(f"FAILED: {run.expected - len(run.verdicts)} processes gave no verdict", file=sys.stderr)
        environment.process_exit_code = 1


class Source(User):
    """One source: it sends what is due, each time it is asked."""

    wait_time = constant(TICK)

    def on_start(self) -> None:
        assert run.session is not None, "a test has started"
        self.session = run.session
        self.number, self.sender = self.session.join()

    @task
    def send(self) -> None:
        self.session.send(self.number, self.sender)

    def on_stop(self) -> None:
        self.session.leave(self.number, self.sender)


class Shape(LoadTestShape):
    """The shape that ``--shape`` names, over ``--run-time``, with ``--users`` as its largest number of sources."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        assert self.runner is not None, "Locust sets it"
        environment = self.runner.environment
        options = environment.parsed_options
        length = options.run_time or 60
        now = phase(options.shape, self.get_run_time(), length, options.num_users or 1)
        slowest = max(run.slowest.values(), default=0.0) if run.session is None else run.session.slowest()
        if now is not None and options.shape == "step" and slowest > options.latency_limit:
            rate = now.sources * options.source_rate
            print(
                f"BROKE at {now.sources} sources, {rate:,.0f} events/s: 99 % within {slowest:,.0f} ms", file=sys.stderr
            )
            return None
        if now is None:
            return None
        if options.shape == "outage" and now.outage != run.knobs.outage:
            turn(environment, run.knobs.turned({"outage": str(now.outage)}))
        return now.sources, max(now.sources, 1)
