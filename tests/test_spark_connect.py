"""PatternSink and detect through Spark Connect: the client speaks to a server, and the sink runs in a worker of the
server's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import latecomer as lc
from tests import sinks_kit, spark_job
from tests.spark_connect_job import net
from tests.test_spark import cut
from tests.test_spark_faults import answer, each_change_once, held

pytestmark = pytest.mark.spark


def test_both_surfaces_give_the_oracles_answers_and_a_replaced_checkpoint_is_refused(tmp_path):
    events = spark_job.events(12)
    spark_job.write_input(tmp_path, cut(events, 4))
    (tmp_path / "later").mkdir()
    for name in ("0002.parquet", "0003.parquet"):
        (tmp_path / "in" / name).rename(tmp_path / "later" / name)
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.spark_connect_job", str(tmp_path)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert told["session"].startswith("pyspark.sql.connect")
    assert "the checkpoint was replaced" in told["refused"]
    assert "done" in told
    case = sinks_kit.SQLite(tmp_path)
    assert held(case) == answer(events)
    assert each_change_once(case) == len(held(case))
    assert {r["batch_id"] for r in case.rows("changes")} <= set(range(5))
    static, streaming = (
        [(query, tuple(match)) for query, match in json.loads(told[road])] for road in ("static", "streaming")
    )
    assert static == answer(events)
    runtime = lc.Runtime(spark_job.STREAM, spark_job.QUERIES)
    assert streaming == net(runtime.process(events).changes)  # the stream has not ended
