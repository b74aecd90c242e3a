"""The events that benchmarks run on: made by seed, in order of arrival, as Arrow tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from latecomer.disorder import Delayed, Uniform, inject
from latecomer.stream import Stream

#: How the tables below are to be read.
STREAM = Stream(type="kind", ts="ts", id="id", unit="ms")

KINDS = ("A", "B", "C", "D")


def keyed(
    n: int,
    *,
    keys: int = 10_000,
    per_ms: int = 5,
    late: float = 0.1,
    most: int = 5_000,
    text_keys: bool = False,
    seed: int = 1,
) -> pa.Table:
    """``n`` events of four equally likely types, ``per_ms`` in every millisecond, each of one of ``keys`` keys.

    Columns: id (int64, by event time), kind (text), key (int64 or text), ts (int64, ms), place (text of 100 values),
    price (float). A share ``late`` is delayed by 1 to ``most`` ms; the rows are in order of arrival. No two events of
    one key have the same time.
    """
    rng = np.random.default_rng(seed)
    key = _distinct(rng, n, keys, per_ms)
    in_order = pa.table(
        {
            "id": pa.array(np.arange(n)),
            "kind": pa.array(KINDS).take(pa.array(rng.integers(0, len(KINDS), n))),
            "key": pa.array([f"tag-{k:05d}" for k in range(keys)]).take(pa.array(key)) if text_keys else pa.array(key),
            "ts": pa.array(100_000 + np.arange(n) // per_ms),
            "place": pa.array([f"aisle {i:02d}" for i in range(100)]).take(pa.array(rng.integers(0, 100, n))),
            "price": pa.array(rng.uniform(1, 500, n).round(2)),
        }
    )
    return delayed(in_order, late, most, rng)


def delayed(in_order: pa.Table, late: float, most: int, rng: np.random.Generator) -> pa.Table:
    """The events in order of arrival, a share ``late`` of them delayed by 1 to ``most`` ms."""
    return inject(in_order, Delayed(late, Uniform(most)), STREAM, seed=rng).drop_columns(["arrival"]).combine_chunks()


def _distinct(rng: np.random.Generator, n: int, keys: int, group: int) -> np.ndarray:
    """``n`` random keys; those of each ``group`` in a row differ, where there are enough keys."""
    key = rng.integers(0, keys, -(-n // group) * group).reshape(-1, group)
    while keys >= group * 2:
        order = np.sort(key, axis=1)
        again = np.flatnonzero((order[:, 1:] == order[:, :-1]).any(axis=1))
        if not len(again):
            break
        key[again] = rng.integers(0, keys, (len(again), group))
    return key.ravel()[:n]


def batches(events: pa.Table, size: int) -> list[pa.RecordBatch]:
    """The table cut into record batches of ``size`` rows, as a source would hand them over."""
    return list(events.to_batches(max_chunksize=size))
