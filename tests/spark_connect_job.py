"""A PatternSink through Spark Connect, in a process of its own: ``python -m tests.spark_connect_job FOLDER``.

Reads ``FOLDER/in`` twice over with a restart in between, and then with another checkpoint, which is to be refused.
Tells what came of it on stdout.
"""

import os
import sys
from pathlib import Path

from latecomer.connectors.sinks import SQLiteSink
from latecomer.connectors.spark import PatternSink
from tests.spark_job import COLUMNS, QUERIES, STREAM, tell


def main(root):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true",
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tell("session", type(spark).__module__, spark.version)

    def run(checkpoint):
        sink = PatternSink(STREAM, QUERIES, state=root / "state", sinks=SQLiteSink(root / "results.sqlite"), buckets=2)
        events = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(root / "in"))
        writer = events.writeStream.foreachBatch(sink).option("checkpointLocation", str(root / checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sink

    run("checkpoint")
    for path in sorted((root / "later").iterdir()):
        path.rename(root / "in" / path.name)
    sink = run("checkpoint")
    try:
        run("another checkpoint")
        tell("refused", "not")
    except Exception as error:  # noqa: BLE001 - told, and looked at by the test
        tell("refused", str(error).replace("\n", " "))
    sink.finish(spark)
    sink.close()
    tell("done")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
