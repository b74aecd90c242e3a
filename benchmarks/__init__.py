"""Benchmarks: fixed seeds, answers checked in the same run, ratios to what the machine can do.

Run ``python -m benchmarks`` (or ``make bench``); one module per part, see :mod:`benchmarks.__main__`.
"""
