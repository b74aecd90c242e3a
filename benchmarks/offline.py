"""DuckDB and Polars on the finished file: what one would run over night, each on one thread.

They have all events at once and need neither order nor corrections. Queries are written as their users would: keys are
joined by equality; where there is no key, times are put into buckets as wide as the window, since a join by inequality
alone takes minutes; an ``ASOF`` join finds the first negative.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.limit import IntArray
from benchmarks.shapes import Shape


def able(shape: Shape) -> bool:
    """Whether the queries below cover the shape."""
    return shape.above is None and len(shape.parts) <= 3 and not shape.parts[0].startswith("!")


def duckdb(events: pa.Table, shape: Shape) -> Callable[[], IntArray]:
    """A program that answers the shape in SQL."""
    import duckdb as engine

    connection = engine.connect()
    connection.execute("SET threads = 1")
    connection.register("e", events)
    text = sql(shape)
    return lambda: _ids(connection.sql(text).to_arrow_table())


def sql(shape: Shape) -> str:
    """The shape in DuckDB's SQL."""
    window = shape.window
    names = [p.lstrip("!").lower() for p in shape.parts]
    tables = ", ".join(
        f"{n} AS (SELECT id, key, ts, price, ts // {window} AS k FROM e WHERE kind = '{n.upper()}')" for n in names
    )
    negative = [p.startswith("!") for p in shape.parts]
    a, rise = names[0], f" AND {names[-1]}.price > {names[0]}.price" if shape.rise else ""
    if not any(negative) and shape.keyed:
        b, c = names[1:]
        return (
            f"WITH {tables} SELECT {a}.id, {b}.id, {c}.id FROM {a} "
            f"JOIN {b} ON {a}.key = {b}.key AND {b}.ts > {a}.ts AND {b}.ts <= {a}.ts + {window} "
            f"JOIN {c} ON {c}.key = {b}.key AND {c}.ts > {b}.ts AND {c}.ts <= {a}.ts + {window}{rise}"
        )
    if not any(negative):
        b, c = names[1:]
        return (
            f"WITH {tables}, near AS (SELECT {a}.*, k + s AS bucket FROM {a}, (VALUES (0), (1)) v(s)), "
            f"ends AS (SELECT {a}.id AS first, {c}.id AS last, {a}.ts AS since, {c}.ts AS until, {a}.k AS k "
            f"FROM near {a} JOIN {c} ON {a}.bucket = {c}.k AND {c}.ts > {a}.ts AND {c}.ts <= {a}.ts + {window}{rise}), "
            f"wide AS (SELECT *, k + s AS bucket FROM ends, (VALUES (0), (1)) v(s)) SELECT first, {b}.id, last "
            f"FROM wide JOIN {b} ON wide.bucket = {b}.k AND {b}.ts > since AND {b}.ts < until"
        )
    b = names[1]
    first = f"{a} ASOF LEFT JOIN {b} ON {a}.key = {b}.key AND {b}.ts > {a}.ts"
    if shape.trailing:
        return f"WITH {tables} SELECT {a}.id FROM {first} WHERE {b}.ts IS NULL OR {b}.ts > {a}.ts + {window}"
    c = names[2]
    return (
        f"WITH {tables}, n AS (SELECT {a}.*, least(coalesce({b}.ts, {a}.ts + {window}), {a}.ts + {window}) AS until "
        f"FROM {first}) SELECT {a}.id, {c}.id FROM n {a} "
        f"JOIN {c} ON {a}.key = {c}.key AND {c}.ts > {a}.ts AND {c}.ts <= {a}.until{rise}"
    )


def polars(events: pa.Table, shape: Shape) -> Callable[[], IntArray]:
    """A program that answers the shape with the streaming engine of Polars; set ``POLARS_MAX_THREADS`` beforehand."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    import polars as pl

    frame: Any = pl.from_arrow(events)
    window, col = shape.window, pl.col
    names = [p.lstrip("!").lower() for p in shape.parts]

    def side(name: str) -> Any:
        columns = {name + c: col(c) for c in ("id", "ts", "price")}
        keys = {"key": col("key")} if shape.keyed else {}
        return frame.lazy().filter(col("kind") == name.upper()).select(**keys, **columns)

    def plan() -> Any:
        a, *rest = names
        rise = col(f"{names[-1]}price") > col(f"{a}price") if shape.rise else True
        start, ids = col(f"{a}ts"), [f"{p.lower()}id" for p in shape.positives]
        if len(shape.positives) == 3:
            b, c = rest
            within = (col(f"{c}ts") > start) & (col(f"{c}ts") <= start + window) & rise
            if shape.keyed:
                near = (col(f"{b}ts") > start) & (col(f"{b}ts") <= start + window)
                pairs = side(a).join(side(b), on="key").filter(near)
                return pairs.join(side(c), on="key").filter(within & (col(f"{c}ts") > col(f"{b}ts"))).select(ids)

            def buckets(table: Any) -> Any:
                return pl.concat([table.with_columns(k=start // window + s) for s in (0, 1)])

            ends = buckets(side(a)).join(side(c).with_columns(k=col(f"{c}ts") // window), on="k").filter(within)
            inner = (col(f"{b}ts") > start) & (col(f"{b}ts") < col(f"{c}ts"))
            middle = side(b).with_columns(k=col(f"{b}ts") // window)
            return buckets(ends.drop("k")).join(middle, on="k").filter(inner).select(ids)
        b = rest[0]
        first = side(a).sort(f"{a}ts").join_asof(
            side(b).sort(f"{b}ts"), left_on=f"{a}ts", right_on=f"{b}ts", by="key", strategy="forward",
            allow_exact_matches=False, coalesce=False, check_sortedness=False,
        )  # fmt: skip
        if shape.trailing:
            return first.filter(col(f"{b}ts").is_null() | (col(f"{b}ts") > start + window)).select(ids)
        until = col(f"{rest[1]}ts") <= pl.min_horizontal(start + window, col(f"{b}ts"))
        return first.join(side(rest[1]), on="key").filter((col(f"{rest[1]}ts") > start) & until & rise).select(ids)

    return lambda: _ids(plan().collect(engine="streaming").to_arrow())


def _ids(found: pa.Table) -> IntArray:
    columns = [np.asarray(c, np.int64) for c in found.columns]
    return np.column_stack(columns) if columns else np.zeros((0, 1), np.int64)
