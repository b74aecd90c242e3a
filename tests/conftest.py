"""Hypothesis profiles: ``test`` is bounded and repeatable; ``fuzz`` (see ``tests/fuzz.py``) is neither."""

from hypothesis import HealthCheck, settings

from tests import kafka_fixture

# Defined here, so that one broker serves all modules.
authority, kafka, own_kafka = kafka_fixture.authority, kafka_fixture.kafka, kafka_fixture.own_kafka

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "test", max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=SLOW_IS_FINE
)
settings.register_profile("fuzz", max_examples=500, deadline=None, database=None, suppress_health_check=SLOW_IS_FINE)
settings.load_profile("test")
