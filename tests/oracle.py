"""The oracle: what a query means, by brute force over a set of events.

Slow and obvious on purpose; it shares no code with the engine, only the plan and the expression tree. It decides every
dispute. An event is a dict with ``id``, ``type``, ``ts`` and its attributes; ids are distinct within the set.
"""

import math
import re

from latecomer.query import expressions as x
from latecomer.units import UNITS, Duration

COMPARE = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def value(expr, bound, unit):
    """The value of ``expr`` with variables bound to events; None is null, and also the truth value "unknown"."""
    sub = [value(child, bound, unit) for child in x.children(expr)]
    match expr:
        case x.Literal(value=Duration() as d):
            return d.exact(unit)
        case x.Literal(value=x.Moment() as m):
            return m.units(UNITS[unit])
        case x.Literal(value=v):
            return v
        case x.Attribute(var=var, name=name):
            v = bound[var][name]
            return None if isinstance(v, float) and math.isnan(v) else v
        case x.And():
            return False if False in sub else None if None in sub else True
        case x.Or():
            return True if True in sub else None if None in sub else False
        case x.Not():
            return None if sub[0] is None else not sub[0]
        case x.IsNull():
            return sub[0] is None
        case x.In():
            hits = [None if None in (sub[0], c) else sub[0] == c for c in sub[1:]]
            return True if True in hits else None if None in hits else False
        case x.Between():
            sides = [None if None in p else p[0] <= p[1] for p in ((sub[1], sub[0]), (sub[0], sub[2]))]
            return False if False in sides else None if None in sides else True
    if None in sub:
        return None
    match expr:
        case x.Comparison(op=op):
            return COMPARE[op](*sub)
        case x.Negative():
            return -sub[0]
        case x.Like(pattern=pattern):
            parts = re.findall(r"\\.|.", pattern, re.DOTALL)
            regex = "".join({"%": ".*", "_": "."}.get(p, re.escape(p[-1])) for p in parts)
            return re.fullmatch(regex, sub[0], re.DOTALL) is not None
        case x.Arithmetic(op=op):
            a, b = sub
            if op in "/%" and b == 0:
                return None
            v = a + b if op == "+" else a - b if op == "-" else a * b if op == "*" else a / b if op == "/" else a % b
            return None if isinstance(v, float) and math.isnan(v) else v
    raise AssertionError(expr)


def agree(key, one, other):
    """Equal and not null in every attribute of ``key``."""
    return all(one[k] is not None and one[k] == other[k] for k in key)  # NaN equals nothing


def combinations(plan, events, unit):
    """All tuples of events that fit the positives: order, window, equivalence and predicates; negation not yet looked
    at.
    """
    window = plan.window.units(unit)

    def extend(chosen):
        if len(chosen) == len(plan.positives):
            bound = {c.var: e for c, e in zip(plan.positives, chosen, strict=True)}
            tests = [*plan.conjuncts, *(f for c in plan.positives for f in c.filter)]
            if all(value(t, bound, unit) is True for t in tests):
                yield chosen
            return
        for e in events:
            if e["type"] != plan.positives[len(chosen)].type or not agree(plan.key, e, (*chosen, e)[0]):
                continue
            if not chosen or (chosen[-1]["ts"] < e["ts"] <= chosen[0]["ts"] + window):
                yield from extend((*chosen, e))

    yield from extend(())


def scopes(plan, chosen, unit):
    """For each negation: (negation, first and last whole time at which its event would undo the match)."""
    window = plan.window.units(unit)
    for n in plan.negations:
        low = chosen[-1]["ts"] - window if n.left is None else chosen[n.left]["ts"] + 1
        high = chosen[0]["ts"] + window if n.right is None else chosen[n.right]["ts"] - 1
        yield n, low, high


def killers(plan, chosen, events, unit):
    """The negative events that undo the match ``chosen``."""
    bound = {c.var: e for c, e in zip(plan.positives, chosen, strict=True)}
    for n, low, high in scopes(plan, chosen, unit):
        for e in events:
            fits = e["type"] == n.component.type and low <= e["ts"] <= high and agree(plan.key, e, chosen[0])
            tests, all_bound = (*n.component.filter, *n.conjuncts), bound | {n.component.var: e}
            if fits and all(value(t, all_bound, unit) is True for t in tests):
                yield e


def matches(plan, events, unit):
    """The answer: the ids of the positives of every match, in pattern order, as a set of tuples."""
    found = combinations(plan, events, unit)
    return {tuple(e["id"] for e in m) for m in found if not any(killers(plan, m, events, unit))}
