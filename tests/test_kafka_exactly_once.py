"""Exactly once on a real broker: whatever is killed, stopped or frozen, a reader of committed messages finds each
match, late row and dead letter once, as the oracle says. Every scenario has 1 % poison and events that are late by up
to three days. ``LATECOMER_KAFKA_KILLS`` says how often the member is killed at random."""

import os
import random
import signal
import threading
import time
from itertools import pairwise

import pytest

from tests.kafka_pipelines import Member, Scenario

KILLS = int(os.environ.get("LATECOMER_KAFKA_KILLS", "10"))


class Feeding:
    """Sends messages in the background for as long as something is done to the members, fewer with time: however long
    that takes, there is always something to do, and what is left in the end is not too much."""

    def __init__(self, scenario):
        self._scenario = scenario
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def _run(self):
        while not self._end.is_set():
            self._scenario.send(20, beyond=0.005)
            self._end.wait(0.02 + len(self._scenario.sent) / 50_000)


def run_to_the_end(scenario, **more):
    """Let a member do what is left, and compare."""
    scenario.finish()
    with Member(scenario) as member:
        scenario.drain(members=[member])
        member.stop()
    return scenario.check(**more)


def test_poison_and_three_days_of_disorder(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path)
    scenario.send(6000, beyond=0.01)
    told = run_to_the_end(scenario)
    assert told["insert"] > 300 and told["delete"] > 0  # corrections are among what was compared
    assert len(scenario.read(scenario.late)) > 10 and len(scenario.read(scenario.dead)) > 30


@pytest.mark.parametrize(
    "die",
    [
        "write:40", "before-version:3", "after-version:3", "before-naming:3", "after-offsets:6", "after-offsets:7",
        "after-commit:3",
    ],
)  # fmt: skip
def test_death_at_each_step_of_a_commit(kafka, tmp_path, die):
    scenario = Scenario(kafka, tmp_path, partitions=2, top='instance = "one"')
    scenario.send(1500)
    with Member(scenario, die=die) as member:
        member.wait_for("opened")
        scenario.send(500)
        assert member.process.wait(30) == -signal.SIGKILL, member.said()
    assert scenario.committed()[0] < scenario.committed()[1]
    run_to_the_end(scenario)


def killed(scenario, seconds):
    """Let a member run until it is killed, after so many seconds of work."""
    with Member(scenario, die=f"work:{seconds:.3f}") as member:
        assert member.process.wait() == -signal.SIGPROF, member.said()


def test_killed_at_random(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=2, top='instance = "one"')
    rng, committed = random.Random(KILLS), [0]
    with Feeding(scenario):
        for _ in range(KILLS):
            killed(scenario, 0.02 + rng.random() * 0.3)
            committed.append(scenario.committed()[0])
    assert 2 * sum(b > a for a, b in pairwise(committed)) > KILLS  # most had come to commit something
    told = run_to_the_end(scenario)
    assert told["insert"] > 100


def test_members_join_and_leave(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=4)
    with Feeding(scenario), Member(scenario) as one:
        one.wait_for_tasks(4)
        with Member(scenario) as two:
            two.wait_for_tasks(2)
            time.sleep(0.3)
            with Member(scenario) as three:
                three.wait_for("opened")
                time.sleep(0.3)
                two.stop()
                time.sleep(0.3)
                three.kill()
            one.wait_for_tasks(4)
        one.stop()
    run_to_the_end(scenario)


def test_a_frozen_member_wakes_up_as_a_zombie(kafka, tmp_path):
    scenario = Scenario(kafka, tmp_path, partitions=2)
    with Feeding(scenario), Member(scenario) as zombie:
        zombie.wait_for("opened", times=2)
        time.sleep(0.5)
        zombie.process.send_signal(signal.SIGSTOP)
        with Member(scenario) as other:
            other.wait_for("opened", times=2)
            time.sleep(0.5)
            zombie.process.send_signal(signal.SIGCONT)
            zombie.wait_for("opened", times=3)  # it is back as an ordinary member
            time.sleep(0.5)
            other.stop()
        zombie.stop()
    run_to_the_end(scenario)


def test_the_broker_stops_dies_and_stalls(own_kafka, tmp_path):
    """Under a pipeline of each guarantee. The stall is longer than the members' sessions and their transactions."""
    once = Scenario(own_kafka, tmp_path, partitions=2)
    least = Scenario(own_kafka, tmp_path, partitions=2, guarantee="at-least-once", seed=1)

    def send(count):
        once.send(count)
        least.send(count)

    send(800)
    with Member(once) as one, Member(least) as other:
        for member in (one, other):
            member.wait_for("opened", times=2)
        send(400)
        own_kafka.stop()
        time.sleep(0.5)
        own_kafka.start()
        send(400)
        own_kafka.kill()
        own_kafka.start()
        send(400)
        own_kafka.pause()
        time.sleep(3)
        own_kafka.resume()
        send(400)
        for scenario, member in ((once, one), (least, other)):
            scenario.finish()
            scenario.drain(members=[member])
            member.stop()
    once.check()
    least.check_at_least_once()


def test_at_least_once(kafka, tmp_path):
    """Without transactions things may come twice, but under the same keys: what holds in the end is the same."""
    scenario = Scenario(kafka, tmp_path, partitions=2, guarantee="at-least-once")
    rng = random.Random(3)
    with Feeding(scenario):
        for _ in range(3):
            killed(scenario, 0.1 + rng.random() * 0.3)
    scenario.finish()
    with Member(scenario) as member:
        scenario.drain(members=[member])
        member.stop()
    scenario.check_at_least_once()
