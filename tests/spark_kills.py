"""Jobs that are killed: ``python -m tests.spark_kills --kills 30`` kills thirty drivers, or as many as you like.

``make test-spark`` does; the tests in ``tests/test_spark_kills.py`` do the same a few times. SIGKILL comes at a moment
that chance decides, while jobs are at work; then the next driver goes on from checkpoints, states and sinks, as they
were left.
"""

import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests import oracle, spark_job
from tests.test_spark import cut

#: Seconds after which a driver is taken to hang.
PATIENCE = 240


class Driver:
    """A driver process of :mod:`tests.spark_job`, with all its children in a process group of its own."""

    def __init__(self, root, master):
        path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
        self.errors = (root / "stderr.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark_job", str(root), master],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
            text=True,
        )
        self.words = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.words.put(line.split())
        self.words.put(None)

    def next(self):
        """What it says next; None at its end."""
        return self.words.get(timeout=PATIENCE)

    def children(self, *names):
        """Its processes whose command line has all of ``names``."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if all(any(name in word for word in child.cmdline()) for name in names):
                    found.append(child)
            except psutil.NoSuchProcess:
                pass
        return found

    def kill(self):
        """All of it, at once: Python and Java."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_python_only(self):
        """Java notices, and ends by itself."""
        java = self.children("SparkSubmit")
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(java, timeout=30)

    def close(self):
        if self.process.poll() is None:
            self.kill()
        for left in psutil.process_iter():
            try:
                if os.getpgid(left.pid) == self.process.pid:
                    left.kill()
            except (ProcessLookupError, psutil.NoSuchProcess):
                pass
        self.errors.close()


def prepare(root, jobs, files, seed):
    for number in range(jobs):
        spark_job.write_input(root / str(number), cut(spark_job.events(seed + number), files))


def check(root, jobs, seed):
    """Each sink's net content is the oracle's answer, and its log inserts and deletes no match twice in a row."""
    for number in range(jobs):
        rows = sorted(spark_job.events(seed + number).to_pylist(), key=lambda r: r["at"])
        found = [r | {"type": r["kind"], "ts": r["at"]} for r in rows]
        answers = {query.name: oracle.matches(query.plan, found, "s") for query in spark_job.QUERIES}
        expected = sorted((name, tuple(match)) for name, answer in answers.items() for match in answer)
        assert len(expected) > 20
        for sink in spark_job.sinks_of(root / str(number), number):
            assert spark_job.late_of(sink) == [], (number, sink)
            assert sorted(spark_job.matches_of(sink)) == expected, (number, sink)
            held = set()
            for query, match, op in spark_job.log_of(sink):
                assert (op == "delete") == ((query, match) in held), (number, sink, query, match, op)
                held ^= {(query, match)}
            assert len(held) == len(expected)


def run_to_the_end(root, master="local[2]"):
    driver = Driver(root, master)
    try:
        for _ in range(100_000):
            words = driver.next()
            assert words is not None, (root / "stderr.txt").read_text()[-3000:]
            if words == ["done"]:
                driver.process.wait(60)
                return
    finally:
        driver.close()


def drivers_killed(root, kills, jobs, files, seed, say=lambda *words: None):
    """Kill ``kills`` drivers with ``jobs`` jobs each at work; returns in how many jobs a micro-batch was cut short."""
    pick = random.Random(seed)
    prepare(root, jobs, files, seed)
    interrupted = 0
    # Each micro-batch says two words, and the end is one more; so the kills spread over all of the work.
    words_per_driver = jobs * (files + 1) * 2 // (kills + 1)
    for number in range(kills):
        driver = Driver(root, "local[2]")
        running = {}
        try:
            for _ in range(pick.randint(max(words_per_driver // 4, 1), max(words_per_driver, 1))):
                words = driver.next()
                assert words is not None, (root / "stderr.txt").read_text()[-3000:]
                if words == ["done"]:
                    raise AssertionError(f"the jobs ended before driver {number} was killed: give them more files")
                running[words[1]] = words
            time.sleep(pick.random() * 0.5)
            (driver.kill if number % 2 else driver.kill_python_only)()
        finally:
            driver.close()
        interrupted += len(running)
        say(f"driver {number} killed with {len(running)} jobs at work, at {sorted(running.values())[:4]} …")
    run_to_the_end(root)
    check(root, jobs, seed)
    return interrupted


def main():
    parser = argparse.ArgumentParser(description="Kill drivers at random moments; compare the sinks with the oracle.")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--files", type=int, default=None, help="micro-batches per job (default: enough)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.files or 2 * options.kills + 6
        cut_short = drivers_killed(Path(folder), options.kills, options.jobs, files, options.seed, spark_job.tell)
    spark_job.tell(f"{options.kills} drivers killed, {cut_short} jobs cut short: every sink holds the oracle's answer")


if __name__ == "__main__":
    main()
