"""The state of all promises against a reference that takes one promise after the other."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.consistency.bounds import Bounds, rising
from latecomer.consistency.clock import BEGINNING, END
from latecomer.consistency.punctuation import ANY, Punctuation

TYPES = 3


class Reference:
    """The definition: dictionaries, one row at a time."""

    def __init__(self):
        self.whole = [BEGINNING] * TYPES
        self.own = {}
        self.known, self.idle = 0, set()

    def before(self, kind, source):
        return max(self.whole[kind], self.own.get((kind, source), BEGINNING))

    def row(self, speaker, promises):
        """A row by ``speaker``, then the promises that hold from it on."""
        if speaker is not None:
            self.known = max(self.known, speaker + 1)
            self.idle.discard(speaker)
        for named, source, ts in promises:
            for kind in range(TYPES) if named == ANY else [named]:
                if source == ANY:
                    self.whole[kind] = max(self.whole[kind], ts)
                else:
                    self.own[kind, source] = max(self.own.get((kind, source), BEGINNING), ts)
        self.follow()

    def follow(self):
        for kind in range(TYPES):
            active = [self.own.get((kind, s), BEGINNING) for s in range(self.known) if s not in self.idle]
            if active:
                self.whole[kind] = max(self.whole[kind], min(active))

    def rest(self, idle):
        self.idle = set(idle)
        self.follow()


TIME = st.integers(-20, 20) | st.sampled_from([END, -(2**62), 2**62])


@st.composite
def rows(draw):
    """Rows of (speaker, event type, promises); speakers come in order of first appearance."""
    made, known = [], 0
    for _ in range(draw(st.integers(1, 14))):
        speaker = draw(st.integers(0, min(known, 4)))
        known = max(known, speaker + 1)
        promise = st.tuples(st.integers(ANY, TYPES - 1), st.integers(ANY, known - 1), TIME)
        made.append((speaker, draw(st.integers(0, TYPES - 1)), draw(st.lists(promise, max_size=3))))
    return made


def columns(chunk, known):
    """The promises of a chunk, and where its speakers spoke first."""
    position, kind, source, ts, count = [], [], [], [], []
    for at, (speaker, _, promises) in enumerate(chunk):
        known = max(known, speaker + 1)
        for named, of, time in promises:
            position.append(at)
            kind.append(named)
            source.append(of)
            ts.append(time)
            count.append(known)
    given_rows = Punctuation(*(np.array(c, np.int64) for c in (position, kind, ts, source, count)))
    return given_rows, known


def returns(chunk, reference):
    """The first rows of idle sources."""
    found, known = {}, reference.known
    for at, (speaker, _, _) in enumerate(chunk):
        known = max(known, speaker + 1)
        if speaker in reference.idle and speaker not in found:
            found[speaker] = (at, ANY, BEGINNING, speaker, known)
    return Punctuation(*np.array(list(found.values()), np.int64).T) if found else None


@settings(max_examples=400)
@given(rows(), st.lists(st.integers(0, 14), max_size=4), st.data())
def test_bounds_hold_what_was_promised_one_by_one(stream, cuts, data):
    reference, bounds, known = Reference(), Bounds(TYPES), 0
    edges = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    for begin, end in pairwise(edges):
        chunk = stream[begin:end]
        promises, known = columns(chunk, known)
        history = bounds.apply(promises, returns(chunk, reference))
        expected, wholes = [], []
        for speaker, kind, said in chunk:
            wholes.append(reference.whole[kind])
            expected.append(reference.before(kind, speaker))
            reference.row(speaker, said)
        kinds = np.array([kind for _, kind, _ in chunk])
        speakers = np.array([speaker for speaker, _, _ in chunk])
        at = np.arange(len(chunk))
        assert history.at(kinds, speakers, at).tolist() == expected
        assert [int(history.whole_at(k, at[i : i + 1])[0]) for i, k in enumerate(kinds.tolist())] == wholes
        if reference.idle or data.draw(st.booleans()):
            idle = data.draw(st.sets(st.integers(0, known - 1), max_size=known))
            reference.rest(idle)
            bounds.rest(np.array([s in idle for s in range(known)]))
        assert [bounds.bound(t) for t in range(TYPES)] == reference.whole
        assert bounds.least([0, 2]) == min(reference.whole[0], reference.whole[2])
        assert [bounds.own(t, 7).tolist() for t in range(TYPES)] == [
            [reference.before(t, s) for s in range(7)] for t in range(TYPES)
        ]
        bounds._check()
        again = Bounds(TYPES)
        again.load(bounds.dump())
        bounds = again


def test_a_batch_without_promises_changes_nothing():
    bounds = Bounds(2)
    none = np.zeros(0, np.int64)
    history = bounds.apply(Punctuation(none, none, none, none, none))
    assert history.at(np.array([0, 1]), np.array([0, ANY]), np.array([0, 1])).tolist() == [BEGINNING, BEGINNING]
    assert history.whole_at(1, none).tolist() == []


@pytest.mark.parametrize("far", [1, 2**61])
def test_the_running_maximum_of_groups(far):
    values = np.array([3, 1, 5, -far, -2, 0, 7, far])
    first, last = np.array([0, 3, 6]), np.array([2, 5, 7])
    assert rising(values, first, last).tolist() == [3, 3, 5, -far, max(-far, -2), 0, 7, max(7, far)]


def test_many_sources_cost_no_loop():
    """Ten thousand promises of a thousand sources in one batch: the least of the running maxima."""
    random = np.random.default_rng(7)
    n, sources = 10_000, 1_000
    who = np.concatenate((np.arange(sources), random.integers(0, sources, n - sources)))
    ts = random.integers(0, 1_000, n)
    known = np.maximum.accumulate(who) + 1
    bounds = Bounds(1)
    history = bounds.apply(Punctuation(np.arange(n), np.full(n, ANY), ts, who, known))
    own, expected, whole = np.full(sources, BEGINNING), [], BEGINNING
    for s, t, k in zip(who.tolist(), ts.tolist(), known.tolist(), strict=True):
        expected.append(whole)
        own[s] = max(own[s], t)
        whole = max(whole, int(own[:k].min()))
    assert history.whole_at(0, np.arange(n)).tolist() == expected
    assert bounds.bound(0) == whole
