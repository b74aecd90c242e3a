"""Filters never deny a key that they hold, and seldom affirm one that they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.errors import StateError
from latecomer.storage import filters, kernels
from latecomer.storage.filters import Builder, Filter
from latecomer.storage.hashing import mix
from latecomer.storage.sieve import Sieve

WRONG = 2**-16  # the share of absent keys that a filter affirms


def random_keys(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, n, dtype=np.uint64)


words = st.integers(0, 2**64 - 1)
key_sets = st.lists(
    st.one_of(words, st.integers(0, 20), words.map(lambda w: w & ~(2**48 - 1)), st.integers(2**64 - 5, 2**64 - 1)),
    max_size=200,
)


@given(key_sets, st.sampled_from([0, 1, 4, 17]), st.lists(st.integers(0, 200), max_size=4), st.integers(0, 400))
def test_no_key_is_ever_denied(values: list[int], shard: int, cuts: list[int], expected: int) -> None:
    keys = np.array(values, np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_SHARD", shard)  # from one shard for all to more shards than keys
        whole = Filter.of(keys)
        builder = Builder(expected)  # whatever was expected
        for piece in np.split(np.sort(mix(keys)), sorted(min(cut, len(keys)) for cut in cuts)):
            builder.add(piece)
        for made in (whole, Filter(whole.words.copy()), builder.finish()):
            made._check()
            assert made.maybe(keys).all()
            assert made.keys == len(set(values))


@pytest.mark.parametrize("n", [100, 10_000, 300_000])  # the last one takes several shards
def test_absent_keys_are_seldom_affirmed(n: int) -> None:
    made = Filter.of(random_keys(n, seed=n))
    affirmed = int(made.maybe(random_keys(2**20, seed=7)).sum())
    assert affirmed < 5 * WRONG * 2**20
    assert Filter.of(random_keys(n, seed=n)).words.tolist() == made.words.tolist()
    assert len(made._stash) <= 16 * 8, "most of some shard found no place"
    if n > 1_000:
        assert made.nbytes * 8 < 21 * n


@pytest.mark.parametrize("form", ["low bits zero", "high bits zero", "in steps"])
def test_regular_keys_are_as_good_as_random_ones(form: str) -> None:
    all_keys = np.arange(2**20, dtype=np.uint64)
    if form == "low bits zero":
        all_keys <<= np.uint64(44)
    elif form == "in steps":
        all_keys *= np.uint64(1_000_003)
    present = all_keys[::8]
    made = Filter.of(present)
    assert made.maybe(present).all()
    absent = np.delete(all_keys, slice(None, None, 8))
    assert made.maybe(absent).sum() < 5 * WRONG * len(absent)


def test_keys_that_agree_in_all_cells_are_kept_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.fuse_cells

    def alike(mixed: np.ndarray, *shape: int) -> tuple[np.ndarray, ...]:
        """Every fourth key has the cells of key 0."""
        first = real(np.zeros(1, np.uint64), *shape)
        own = real(mixed, *shape)
        return tuple(np.where(mixed & np.uint64(3) == 0, cell, other) for cell, other in zip(first, own, strict=True))

    def fuse(mixed: np.ndarray, cells: np.ndarray, *shape: int) -> np.ndarray:
        first, second, third = alike(mixed, *shape)
        return cells[first] ^ cells[second] ^ cells[third] == kernels.fuse_marks(mixed)

    monkeypatch.setattr(kernels, "fuse_cells", alike)
    monkeypatch.setattr(kernels, "fuse", fuse)
    keys = random_keys(2_000, seed=1)
    made = Filter.of(keys)
    made._check()
    assert len(made._stash) > 400
    assert made.maybe(keys).all()
    assert made.maybe(random_keys(10_000, seed=2)).sum() < 20


def test_the_filter_of_everything_denies_nothing() -> None:
    some = Filter.of_any()
    some._check()
    assert some.any and some.nbytes == 8 and not Filter.of(random_keys(9, seed=1)).any
    assert Filter(some.words.copy()).maybe(random_keys(50, seed=4)).all()


def test_what_is_no_filter_is_refused() -> None:
    good = Filter.of(random_keys(50, seed=3)).words
    for bad in (good[:0], good[:3], good[:-1], np.append(good[:-1], good[-1] + np.uint64(1))):
        with pytest.raises(StateError, match="no filter of this format"):
            Filter(bad)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.integers(1, 400))
def test_a_sieve_lets_pass_all_that_was_added(keys: list[int], capacity: int) -> None:
    mixed = mix(np.array(keys, np.uint64))
    sieve = Sieve(capacity)
    sieve.add(mixed[: len(mixed) // 2])
    sieve.add(mixed[len(mixed) // 2 :])
    assert sieve.passing(mixed).tolist() == list(range(len(keys)))


def test_a_sieve_holds_up_most_of_what_was_not_added() -> None:
    mixed = mix(np.arange(150_000, dtype=np.uint64))
    sieve = Sieve(50_000)
    sieve.add(mixed[:50_000])
    assert len(sieve.passing(mixed[50_000:])) < 0.06 * 100_000
    assert sieve.nbytes == 50_000
