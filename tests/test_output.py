"""Changes made in one go are the changes made column by column."""

from __future__ import annotations

import importlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from latecomer.storage import kernels

IDS = {
    pa.int64(): lambda i: i * 10**15 - 5,
    pa.int32(): lambda i: i - 3,
    pa.int8(): lambda i: i - 7,
    pa.uint16(): lambda i: 65_535 - i,
    pa.uint64(): lambda i: 2**64 - 1 - i,
    pa.string(): lambda i: f"event number {i}" * (i % 3),
    pa.binary(): lambda i: bytes(range(i)),
}
TIMES = [pa.int64(), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("s", "Asia/Tokyo")]
QUERIES = [
    "PATTERN SEQ(A a, B b) WHERE [k] WITHIN 20 s",
    "PATTERN SEQ(A a, !B b, A c) WITHIN 9 s RETURN a.k AS k, c.at AS at",
    "PATTERN SEQ(B b, !A a) WHERE [k] WITHIN 5 s",
]
LEVELS = [
    lc.Aggressive("9 s"),
    lc.Aggressive("1 s", corrections="replace"),
    lc.Aggressive("1 s", on_late="amend"),
    lc.KSlack("4 s"),
]


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """Changes are made in one go, whatever kernels the other tests run with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "write_changes", importlib.import_module("latecomer.storage._compiled").write_changes)
        yield


@st.composite
def cases(draw):
    kind, timed = draw(st.sampled_from(list(IDS))), draw(st.sampled_from(TIMES))
    times = draw(st.lists(st.integers(0, 40), min_size=1, max_size=25))
    n = len(times)
    factor = {"ms": 1_000, "us": 1_000_000}.get(getattr(timed, "unit", ""), 1)
    events = pa.record_batch(
        {
            "id": pa.array([IDS[kind](i) for i in draw(st.permutations(range(n)))], kind),
            "type": draw(st.lists(st.sampled_from("AB"), min_size=n, max_size=n)),
            "at": pa.array([t * factor for t in times], pa.int64()).view(timed),
            "k": draw(st.lists(st.sampled_from([1, 2]), min_size=n, max_size=n)),
        }
    )
    levels = [draw(st.sampled_from(LEVELS)) for _ in QUERIES]
    return events, levels, draw(st.integers(1, n))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_changes_made_in_one_go_are_those_made_by_column(case):
    events, levels, size = case
    stream = lc.Stream(
        type="type", ts="at", id="id", unit="s" if events.schema.field("at").type == pa.int64() else None
    )

    def changes(by_column):
        queries = [lc.Query(text, name=f"query {i}", level=levels[i]) for i, text in enumerate(QUERIES)]
        with pytest.MonkeyPatch.context() as patch:
            if by_column:
                patch.setattr(kernels, "write_changes", None)
            runtime = lc.Runtime(stream, queries)
            parts = [runtime.process(events.slice(at, size)).changes for at in range(0, len(events), size)]
            return pa.concat_tables([*parts, runtime.finish().changes])

    one, other = changes(False), changes(True)
    one.validate(full=True)
    assert one.schema.equals(other.schema) and one.to_pylist() == other.to_pylist()


def test_changes_outlive_all_that_they_came_from():
    runtime = lc.Runtime(lc.Stream(id="id", unit="s"), [lc.Query(QUERIES[0], name="q", level=lc.Aggressive("9 s"))])
    events = [{"id": f"e{i}", "type": "AB"[i % 2], "ts": i, "k": 1} for i in range(1_000)]
    changes = runtime.process(events).changes
    ids, first = changes["events"].combine_chunks(), changes["first_ts"].chunk(0)
    expected = changes.to_pylist()
    del changes, runtime
    assert ids.to_pylist() == [row["events"] for row in expected]
    assert first.to_pylist() == [row["first_ts"] for row in expected]


def test_arguments_that_do_not_fit_each_other_are_refused():
    slot, one, two = np.zeros(10, np.uint64), np.zeros(1, np.int64), np.zeros(2, np.int64)
    for given_slot, ops, refs, first in (
        (np.zeros(9, np.uint64), [(True, 1)], two, one),
        (slot, [(True, 2)], two, one),
        (slot, [(True, 1)], two[:0], one),
        (slot, [(True, 1)], two, two),
        (slot, [(True, 2)], np.zeros(3, np.int64), two),
    ):
        with pytest.raises(TypeError):
            kernels.write_changes(given_slot, ops, "q", two, True, refs, 0, first, first, 0, 0)
    texts = np.array([5, 6, 8]), np.zeros(2, np.uint8)
    for ids, shift in ((two, 3), (two, -2), (texts, -1), (texts, 1)):
        with pytest.raises(IndexError):
            kernels.write_changes(slot, [(True, 1)], "q", ids, True, two, shift, one, one, 0, 0)
