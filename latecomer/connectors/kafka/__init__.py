"""Kafka pipelines: from topics to topics, exactly once.

Messages become events (`decode`), a runtime per partition finds what they change (`task`), changes become messages
(`encode`), and outputs, consumed offsets and state versions are committed together (`commit`), step by step (`loop`).
"""
