"""SIGKILL for drivers, executors and Python workers: afterwards every sink holds the oracle's answer, each change
once."""

import random
import time

import pytest

from tests.spark_kills import Driver, check, drivers_killed, prepare

pytestmark = pytest.mark.spark


def test_drivers_killed_with_ten_jobs_at_work(tmp_path):
    """Three drivers are killed; each cuts some of ten jobs short, at another point of their work."""
    assert drivers_killed(tmp_path, kills=3, jobs=10, files=3, seed=1) >= 15


def test_executors_and_python_workers_killed(tmp_path):
    """Two executor processes; now and then one of them, or one of their Python workers, dies at work."""
    prepare(tmp_path, jobs=2, files=6, seed=100)
    driver, pick = Driver(tmp_path, "local-cluster[2,1,512]"), random.Random(4)
    killed = []
    try:
        for _ in range(1000):
            words = driver.next()
            assert words is not None, (tmp_path / "stderr.txt").read_text()[-3000:]
            if words == ["done"]:
                driver.process.wait(60)
                break
            if words[0] == "batch" and int(words[2]) in (1, 2, 4):
                time.sleep(pick.random())
                kind = "pyspark.daemon" if int(words[2]) != 2 else "CoarseGrainedExecutorBackend"
                found = driver.children(kind)
                if found:
                    pick.choice(found).kill()
                    killed.append(kind)
    finally:
        driver.close()
    assert {"pyspark.daemon", "CoarseGrainedExecutorBackend"} <= set(killed)
    check(tmp_path, jobs=2, seed=100)
