"""Which tests run in one worker, and in what order the workers take them up.

A session of Spark and a broker of Kafka cost more to start than most of their tests take, so one worker has all the
files that share one. Every other file is a piece of work of its own. The long pieces come first: one that is begun last
would keep a single worker busy while the others have nothing left to do.
"""

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

#: Pieces of several files. Files that need a broker too, but for a test or two, are among Spark's.
SHARED = {
    "spark": [
        "test_demo.py", "test_docs.py", "test_interval_spark.py", "test_spark.py", "test_spark_changes.py",
        "test_spark_examples.py", "test_spark_faults.py", "test_spark_progress.py", "test_spark_state.py",
        "test_spark_stream.py",
    ],
    "kafka": [
        "test_kafka_broker.py", "test_kafka_exactly_once.py", "test_kafka_example.py", "test_kafka_limits.py",
        "test_kafka_operation.py", "test_kafka_partitions.py", "test_kafka_tls.py", "test_loadtest_kafka.py",
        "test_sinks.py", "test_topics.py",
    ],
}  # fmt: skip
_PIECE = {file: piece for piece, files in SHARED.items() for file in files}

#: What takes longer than half a minute, longest first.
LONG = [
    "spark", "kafka", "test_kernels.py", "test_spark_kills.py", "test_spark_connect.py", "test_levels.py",
    "test_interval_runtime.py", "test_serve.py", "test_advise.py", "test_folder_crashes.py", "test_promises.py",
    "test_serve_page.py", "test_amend.py", "test_serve_durability.py", "test_spark_agreement.py", "test_serve_api.py",
    "test_bench_speed.py", "test_generators.py", "test_spill.py", "test_serve_live.py", "test_adaptive.py",
    "test_workers.py", "test_storage.py",
]  # fmt: skip


def piece_of(nodeid):
    file = PurePath(nodeid.partition("::")[0]).name
    return _PIECE.get(file, file)


def rank(nodeid):
    """The place of a test's piece among those that are to come first."""
    piece = piece_of(nodeid)
    return LONG.index(piece) if piece in LONG else len(LONG)


class Pieces(LoadScopeScheduling):
    """Hands out pieces as they come, in the order of the tests."""

    def __init__(self, config, log):
        config.option.loadscopereorder = False  # by number of tests, which says little of how long they take
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        return piece_of(nodeid)
