"""The possible-worlds oracle: what a query means over events that are known only to lie between two times.

A *world* gives each event one time, independently. In a world the query means what it always means: strict order,
window, scopes open at their neighbours. All matches of the same events are one: its confidence is the probability of
the worlds in which it is a match, and each constituent's range spans its times in those worlds.

``every_world`` lists them all, with whole-number weights, so that confidences are exact fractions; ``random_worlds``
draws some. ``answer`` judges all worlds at once, ``answer_by_world`` one after another by plain recursion: a second
opinion on the first. An event is a dict with ``id``, ``type``, ``lower``, ``upper``, attributes, and optionally
``weights``, one whole number for each time from lower to upper.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from latecomer.query.expressions import attributes, variables
from tests import oracle

STAM, STNM = "skip-till-any-match", "skip-till-next-match"


@dataclass(frozen=True)
class Worlds:
    """``times[w, e]`` is when event e happens in world w; ``weights`` sum to ``total``."""

    times: np.ndarray
    weights: np.ndarray
    total: int


@dataclass(frozen=True)
class Collapsed:
    """All matches of the same events: the probability, and (earliest, latest) of each constituent."""

    confidence: Fraction
    ranges: tuple[tuple[int, int], ...]

    @property
    def range(self):
        return self.ranges[0][0], self.ranges[-1][1]


def weights(event):
    return event.get("weights") or [1] * (event["upper"] - event["lower"] + 1)


def every_world(events):
    """All worlds, the last event's time changing fastest."""
    spans = [range(e["lower"], e["upper"] + 1) for e in events]
    times = np.array(list(itertools.product(*spans)), np.int64).reshape(-1, len(events))
    chances = np.array([np.prod(w, dtype=object) for w in itertools.product(*map(weights, events))], object)
    return Worlds(times, chances, int(np.prod([sum(weights(e)) for e in events], dtype=object)))


def random_worlds(events, n, seed=0):
    """``n`` worlds drawn at random, all of one weight."""
    draw = np.random.default_rng(seed)
    columns = []
    for e in events:
        chances = np.array(weights(e), float)
        columns.append(e["lower"] + draw.choice(len(chances), n, p=chances / chances.sum()))
    return Worlds(np.array(columns, np.int64).reshape(len(events), n).T, np.ones(n, np.int64), n)


def answer(plan, events, unit="s", worlds=None):
    """The answer as a dict from the ids of a match's events, in pattern order, to :class:`Collapsed`."""
    worlds = every_world(events) if worlds is None else worlds
    found = {}
    for chosen in _choices(plan, events, unit):
        mask = _match(plan, events, unit, worlds.times, chosen)
        if mask.any():
            chance = Fraction(int(worlds.weights[mask].sum()), worlds.total)
            if chance:
                lived = worlds.times[mask & (worlds.weights > 0)]
                ranges = tuple((int(lived[:, i].min()), int(lived[:, i].max())) for i in chosen)
                found[tuple(events[i]["id"] for i in chosen)] = Collapsed(chance, ranges)
    return found


def _choices(plan, events, unit):
    """Tuples of distinct events that fit the positives in everything but time."""

    def extend(chosen):
        if len(chosen) == len(plan.positives):
            yield chosen
            return
        component = plan.positives[len(chosen)]
        for i, e in enumerate(events):
            first = events[chosen[0]] if chosen else e
            if i not in chosen and e["type"] == component.type and oracle.agree(plan.key, e, first):
                yield from extend((*chosen, i))

    yield from extend(())


def _holds(expr, bound, events, unit, times):
    """In which worlds ``expr`` is true; ``bound`` maps variables to numbers of events."""
    names = sorted(variables(expr))
    if not any(a.name == "ts" for a in attributes(expr)):
        return oracle.value(expr, {v: events[bound[v]] for v in names}, unit) is True
    distinct, which = np.unique(times[:, [bound[v] for v in names]], axis=0, return_inverse=True)
    truth = [
        oracle.value(expr, {v: events[bound[v]] | {"ts": int(t)} for v, t in zip(names, row, strict=True)}, unit)
        for row in distinct
    ]
    return np.array([t is True for t in truth])[which.reshape(-1)]


def _match(plan, events, unit, times, chosen):
    """The worlds in which ``chosen`` is a match."""
    window = plan.window.units(unit)
    at = [times[:, i] for i in chosen]
    bound = {c.var: i for c, i in zip(plan.positives, chosen, strict=True)}
    mask = at[-1] - at[0] <= window
    for before, after in itertools.pairwise(at):
        mask = mask & (before < after)
    for expr in (*plan.conjuncts, *(f for c in plan.positives for f in c.filter)):
        mask = mask & _holds(expr, bound, events, unit, times)
    for n in plan.negations:
        low = at[-1] - window if n.left is None else at[n.left] + 1
        high = at[0] + window if n.right is None else at[n.right] - 1
        for q, e in enumerate(events):
            if e["type"] == n.component.type and oracle.agree(plan.key, e, events[chosen[0]]) and mask.any():
                kills = (low <= times[:, q]) & (times[:, q] <= high)
                for expr in (*n.component.filter, *n.conjuncts):
                    kills = kills & _holds(expr, bound | {n.component.var: q}, events, unit, times)
                mask = mask & ~kills
    if plan.strategy == STNM:
        for j, q in itertools.product(range(1, len(chosen)), range(len(events))):
            if q != chosen[j] and mask.any() and oracle.agree(plan.key, events[q], events[chosen[0]]):
                mask = mask & ~(_fits(plan, j, q, bound, events, unit, times) & _between(times, q, at[j - 1], at[j]))
    return mask


def _between(times, q, low, high):
    return (low < times[:, q]) & (times[:, q] < high)


def _fits(plan, j, q, bound, events, unit, times):
    """The worlds in which event q could be the match's component j, by all that is known up to there."""
    component = plan.positives[j]
    if events[q]["type"] != component.type:
        return False
    known = {c.var for c in plan.positives[: j + 1]}
    tests = [c for c in plan.conjuncts if component.var in variables(c) and variables(c) <= known]
    mask = True
    for expr in (*component.filter, *tests):
        mask = mask & _holds(expr, bound | {component.var: q}, events, unit, times)
    return mask


def answer_by_world(plan, events, unit="s"):
    """The same, world by world, with skip-till-next-match told as what an automaton does."""
    worlds = every_world(events)
    sums, lists = {}, {}
    for row, chance in zip(worlds.times, worlds.weights, strict=True):
        if not chance:
            continue
        world = [e | {"ts": int(t)} for e, t in zip(events, row, strict=True)]
        now = oracle.matches(plan, world, unit)
        if plan.strategy == STNM:
            now &= set(_next_matches(plan, world, unit))
        for ids in now:
            sums[ids] = sums.get(ids, 0) + chance
            lists.setdefault(ids, []).append([next(e["ts"] for e in world if e["id"] == i) for i in ids])
    return {
        ids: Collapsed(
            Fraction(int(chance), worlds.total),
            tuple((min(t), max(t)) for t in zip(*lists[ids], strict=True)),
        )
        for ids, chance in sums.items()
    }


def _next_matches(plan, world, unit):
    """From each first event to the next one that fits, to the next one; of several at the same time to each."""

    def walk(chosen):
        if len(chosen) == len(plan.positives):
            yield tuple(e["id"] for e in chosen)
            return
        component = plan.positives[len(chosen)]
        able = []
        for e in world:
            bound = {c.var: x for c, x in zip(plan.positives, (*chosen, e), strict=False)}
            tests = [c for c in plan.conjuncts if component.var in variables(c) and variables(c) <= set(bound)]
            fits = e["type"] == component.type and oracle.agree(plan.key, e, (*chosen, e)[0])
            later = not chosen or e["ts"] > chosen[-1]["ts"]
            if fits and later and all(oracle.value(t, bound, unit) is True for t in (*component.filter, *tests)):
                able.append(e)
        soonest = min((e["ts"] for e in able), default=None)
        for e in able:
            if not chosen or e["ts"] == soonest:
                yield from walk((*chosen, e))

    yield from walk(())
