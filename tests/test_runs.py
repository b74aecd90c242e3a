"""Runs that are merged and purged step by step, against a plain list of events."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.storage import runs
from latecomer.storage.runs import Run, Runs
from latecomer.storage.store import _LEAST, _RATE, _STEP, CodeLayout, Store, View

BITS = 3
#: What happens: a run of so many events comes, tasks go on by so many, or what is before a floor goes.
actions = st.lists(
    st.tuples(st.just("add"), st.integers(1, 30))
    | st.tuples(st.just("go on"), st.integers(1, 12))
    | st.tuples(st.just("purge"), st.integers(1, 7)),
    max_size=60,
)


@pytest.mark.parametrize("at_once", [0, 8, 40])
@given(actions, st.randoms(use_true_random=False))
def test_runs_hold_what_came_and_was_not_purged(at_once: int, steps: list[tuple[str, int]], choose: object) -> None:
    with mock.patch.multiple(runs, _AT_ONCE=at_once, _TAIL=2):
        own, held = Runs((1 << BITS) - 1), dict[int, int]()  # codes by reference
        floor = floor_end = count = gone = 0  # events below the last floor that came before it have to go
        seen: list[tuple[Run, list[int]]] = []
        for action, n in steps:
            if action == "add":
                codes = np.sort(np.array([choose.randrange(1 << BITS + 2) for _ in range(n)], np.uint64))
                refs = np.arange(n) + count
                count += n
                held |= dict(zip(refs.tolist(), codes.tolist(), strict=True))
                gone += own.add(Run(codes, refs), choose.choice((0, 10, 1_000)))
            elif action == "go on" and own.busy:
                gone += own.go_on(n)
            elif action == "purge" and own.purged is not None and n > floor:
                floor, floor_end = n, count
                gone += own.purge(n)
            own._check()
            seen += [(run, run.codes.tolist()) for run in own.all[-1:]]
            here = {r: c for run in own.all for r, c in zip(run.refs.tolist(), run.codes.tolist(), strict=True)}
            assert len(own) == len(here) == count - gone and here.items() <= held.items()
            lost = held.keys() - here.keys()
            assert all(held[ref] % (1 << BITS) < floor for ref in lost)
            assert own.nbytes >= 16 * len(own)
            if own.purged is not None:
                assert own.purged == floor
                assert all(code % (1 << BITS) >= floor for ref, code in here.items() if ref < floor_end)
            for run in own.all:  # of equal codes those that came first come first
                assert all(np.diff(run.refs)[np.diff(run.codes) == 0] > 0)
        assert all(run.codes.tolist() == codes for run, codes in seen)
        for _ in range(20 * count + 20):
            if own.busy:
                own.go_on(1)
        assert not own.busy and len(own.all) <= 2 + count.bit_length()


@pytest.mark.parametrize(("size", "batches", "few"), [(200, 1_500, 7), (2_048, 1_000, 5)])
def test_no_commit_goes_through_all_events(size: int, batches: int, few: int) -> None:
    """Upkeep follows what comes, however much there is, and keeps up with it: there are never many runs. Looking sees
    everything at each moment."""
    layout, rng = CodeLayout(30), np.random.default_rng(0)
    store, moved = Store(layout), list[int]()
    merge, merge_on = runs.kernels.merge, runs.kernels.merge_on

    def counted(codes: np.ndarray, *rest: np.ndarray) -> object:
        moved[-1] += len(codes) + len(rest[1])
        return merge(codes, *rest)

    def counted_on(*args: object) -> tuple[int, int, int]:
        done = merge_on(*args)
        moved[-1] += done[1] - args[5] + done[2] - args[8]
        return done

    with mock.patch.multiple(runs.kernels, merge=counted, merge_on=counted_on):
        for batch in range(batches):
            moved.append(0)
            refs = np.arange(size) + size * batch
            store.stage(rng.integers(0, 2**63, size, np.uint64), rng.integers(0, 1 << 30, size), refs)
            store.commit()
            found = store.source(View.OLD)
            assert store.count(View.OLD) == size * (batch + 1) == sum(len(run[1]) for run in found)
            assert len(found) <= few
    store._check()
    most = 2 * (_RATE * size + _LEAST + _STEP) + 4 * runs._AT_ONCE
    assert max(moved) < most < size * batches < sum(moved)
