"""Hypothesis profiles: ``test`` is bounded and repeatable; ``fuzz`` (see ``tests/fuzz.py``) is neither. And how several
workers share the tests: see ``tests/schedule.py``."""

from hypothesis import HealthCheck, settings

from tests import kafka_fixture, schedule

# Defined here, so that one broker serves all modules.
authority, kafka, own_kafka = kafka_fixture.authority, kafka_fixture.kafka, kafka_fixture.own_kafka

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "test", max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW_IS_FINE
)
settings.register_profile("fuzz", max_examples=500, deadline=None, database=None, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("test")


def pytest_xdist_make_scheduler(config, log):
    return schedule.Pieces(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):  # this is one of several workers
        items.sort(key=lambda item: schedule.rank(item.nodeid))
