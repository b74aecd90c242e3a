"""Random runs over interval streams: a query, events, an order of arrival, cuts, and what a runtime makes of them.

``pick`` chooses from a list: Hypothesis draws through it in tests, a plain generator in long runs.
"""

from dataclasses import dataclass

import pyarrow as pa

import latecomer as lc
from latecomer.uncertainty import Triangular
from tests import worlds

#: By how many seconds the clocks of sources may err.
ERRORS = {"good": 0, "fair": 1, None: 2}


TEXTS, NUMBERS = ("type", "id", "k", "of", "source"), ("lower", "upper", "ts", "v")
SCHEMA = pa.schema(
    dict.fromkeys(TEXTS, pa.string()) | dict.fromkeys(NUMBERS, pa.int64()) | {"weights": pa.list_(pa.float64())}
)


@dataclass(frozen=True)
class Run:
    """``steps`` are events (dicts), promises ``("promise", type, lower, upper)`` or ``("restart",)``; ``cuts`` are the
    numbers of steps before which a batch ends. ``form`` says how a stream tells of intervals: ``"ends"``, ``"shape"``
    (ends and a common distribution), ``"stamp"`` (a time stamp give or take what its source may err), or ``"exact"``.
    """

    query: lc.Query
    longest: int
    steps: tuple
    cuts: frozenset
    form: str = "ends"
    declared: bool = False

    @property
    def events(self):
        return [s for s in self.steps if isinstance(s, dict)]

    @property
    def stream(self):
        common = {"id": "id", "unit": "s", "punctuation": "PROMISE", "schema": SCHEMA if self.declared else None}
        if self.form == "exact":
            return lc.Stream(**common)
        if self.form == "stamp":
            return lc.Stream(**common, source="source", uncertainty=ERRORS)
        ends = {"lower": "lower", "upper": "upper", "longest": self.longest, "pmf": "weights"}
        return lc.Stream(**common, **ends, distribution="triangular" if self.form == "shape" else None)

    def row(self, event):
        """An event as a row of the stream."""
        if self.form == "stamp":
            return {**event, "ts": event["lower"] + (event["upper"] - event["lower"]) // 2}
        if self.form == "shape":
            return {**event, "weights": None}
        return {**event, "ts": event["lower"]} if self.form == "exact" else event

    def promise(self, of, lower, upper):
        """A promise about lower and upper ends as a row of the stream."""
        if self.form == "exact":
            ends = {"ts": max(e for e in (lower, upper) if e is not None)}
        elif self.form == "stamp":
            bounds = [lower, None if upper is None else upper - self.longest]
            ends = {"ts": max(b for b in bounds if b is not None) + max(ERRORS.values()), "source": None}
        else:
            ends = {"lower": lower, "upper": upper}
        return {"type": "PROMISE", "of": of, "id": None, **ends}


def query(pick, level, strategies=(worlds.STAM, worlds.STAM, worlds.STNM)):
    """A query of up to three positives and two negatives."""
    signs = pick(["++", "++", "+-+", "-++", "++-", "+++", "+", "+-", "-+-", "+--+", "-+-+", "++-+", "+-+-"])
    types = [pick("ABC") for _ in signs] if pick([True, False]) else ["ABCAB"[i] for i in range(len(signs))]
    names = [f"{t.lower()}{i}" for i, t in enumerate(types)]
    positives = [n for n, sign in zip(names, signs, strict=True) if sign == "+"]
    negatives = [n for n, sign in zip(names, signs, strict=True) if sign == "-"]
    where = ["[k]"] * pick([0, 0, 1])
    if pick([False, False, True]):
        where.append(f"{pick(names)}.v > {pick([0, 1])}")
    if pick([False, True]) and len(positives) > 1:
        where.append(f"{positives[0]}.v {pick(['<=', '<>'])} {positives[-1]}.v")
    if pick([False, True]) and negatives:
        where.append(f"{pick(negatives)}.v {pick(['<=', '<>'])} {pick(positives)}.v")
    pattern = ", ".join(f"{'!' * (s == '-')}{t} {n}" for s, t, n in zip(signs, types, names, strict=True))
    window = max(pick([1, 2, 3, 4, 6, 9, 9]), len(positives) - 1)
    text = f"PATTERN SEQ({pattern}) " + f"WHERE {' AND '.join(where)} " * bool(where) + f"WITHIN {window} s "
    returned = f"RETURN earliest({positives[0]}) AS first, latest({positives[-1]}) AS last, confidence()"
    limit = pick(["", "", "", "CONFIDENCE >= 0.5", "CONFIDENCE > 0.5", "CONFIDENCE >= 1", "CONFIDENCE > 0.25"])
    return lc.Query(f"{text} {returned} STRATEGY {pick(strategies)} {limit}", name="q", level=level)


def events(pick, types, most, longest, form):
    """Events of ``types``: mostly some that follow each other in time as the pattern says, and some others."""
    mixed = pick([True, False])  # else all attributes agree
    places = []  # (type, lower end)
    for _ in range(pick([1, 1, 2, 3])):
        time = pick(range(-2, 5))
        for type in types:
            if pick([True] * 9 + [False]):
                places.append((type, time))
            time += pick([0, 1, 1, 1, 2])
    places += [(pick([*types, "Z"]), pick(range(-3, 9))) for _ in range(pick([0, 0, 1, 2]))]
    found = []
    for number, (type, lower) in enumerate(places[-most:]):
        length = min(pick([0, 0, 1, 1, 2, 2, 3, longest]), longest)
        event = {"id": f"e{number}", "type": type, "lower": lower, "upper": lower + length}
        if form == "stamp":
            source = pick(["good", "fair", "bad", None])
            event |= {"source": source, "upper": lower + 2 * ERRORS.get(source, 2)}
        event |= {"k": "x", "v": 1}
        if mixed:
            event |= {"k": pick(["x", "x", "x", "x", "x", "y", None]), "v": pick([0, 1, 1, 1, 2, None])}
        if form == "shape":
            units = length + 1
            event["weights"] = [round(units**2 * w) for w in Triangular().weights(units)]
        elif form == "ends" and pick([False, False, True]):
            event["weights"] = [1, *(pick([0, 1, 2, 5]) for _ in range(length - 1)), *[3] * (length > 0)]
        found.append(event)
    return found


def movers(pick, found, slack):
    """Events of no other use than to move the clock: to where others are just not late, or where matches just leave."""
    ends = pick([(), ("lower",), ("lower", "upper", "upper")]) if found else ()
    times = [pick(found)[end] + slack + pick([-1, 0, 0, 1, 2]) for end in ends]
    common = {"type": "Z", "k": None, "v": None, "source": "good"}
    return [common | {"id": f"z{i}", "lower": time, "upper": time} for i, time in enumerate(times)]


def arrivals(pick, found, slack, held=None):
    """An order in which no lower end is more than ``slack`` behind the largest before it; None: any order. Events of
    type ``held`` are as late as that allows.
    """
    if slack is None:
        return sorted(found, key=lambda e: (e["type"] == held, pick(range(100))))
    late = [slack if e["type"] == held else pick([0, 0, slack, pick(range(slack + 1))]) for e in found]
    order = sorted(zip(found, late, strict=True), key=lambda pair: (pair[0]["lower"] + pair[1], pick(range(100))))
    return [e for e, _ in order]


def promised(pick, steps):
    """The same arrivals with a promise that they keep, about lower ends or about upper ends."""
    at, type = pick(range(len(steps) + 1)), pick(["A", "B", "C", None])
    later = [s for s in steps[at:] if isinstance(s, dict) and type in (None, s["type"])]
    lower = min((s["lower"] for s in later), default=30) - 1 - pick([0, 0, 1])
    upper = min((s["upper"] for s in later), default=30) - 1 - pick([0, 0, 1])
    both = pick([(lower, None), (None, upper), (lower, upper)])
    return [*steps[:at], ("promise", type, *both), *steps[at:]]


def make(pick, level, slack, most=6, keep=True, forms=("ends", "ends", "shape", "stamp"), declared=False):
    """A run at ``level``, whose promise is that no event is more than ``slack`` late; without ``keep`` it is broken."""
    asked = query(pick, level)
    form = pick(forms)
    longest = {"exact": 0, "stamp": 4}.get(form, pick([3, 3, 2, 5, 0]))
    found = events(pick, [c.type for c in asked.plan.components], most, longest, form)
    found += movers(pick, found, longest + (slack or 0))
    held = pick([None, *[n.component.type for n in asked.plan.negations] * 3, *(c.type for c in asked.plan.positives)])
    steps = arrivals(pick, found, None if not keep or slack is None else slack + longest, held)
    for _ in range(pick([0, 1, 2, 3])):
        steps = promised(pick, steps)
    if pick([False, True]):
        steps.insert(pick(range(len(steps) + 1)), ("restart",))
    often = pick([1, 1, 2, 1000])
    cuts = frozenset(n for n in range(len(steps)) if pick(range(often)) == 0)
    return Run(asked, longest, tuple(steps), cuts, form, declared)


def play(run, each=None):
    """Feed a run to a runtime and finish it; the changes and late rows of all calls. ``each``: called after each call
    with the rows so far and the changes so far.
    """
    runtime = lc.Runtime(run.stream, run.query)
    changes, late, batch, seen = [], [], [], []

    def took(output):
        changes.extend(output.changes.to_pylist())
        late.extend(output.late.to_pylist())

    def flush():
        if batch:
            took(runtime.process([run.row(s) if isinstance(s, dict) else run.promise(*s[1:]) for s in batch]))
            seen.extend(s for s in batch if isinstance(s, dict))
            batch.clear()
            if runtime._engine is not None and runtime._engine.memory is None:
                runtime._engine._check()
            if each is not None:
                each(seen, changes)

    for number, step in enumerate(run.steps):
        if number in run.cuts:
            flush()
        if isinstance(step, dict) or step[0] == "promise":
            batch.append(step)
        else:
            flush()
            runtime = lc.Runtime.restore(runtime.snapshot())
    flush()
    took(runtime.finish())
    return changes, late


def net(changes):
    """What the changes leave, by the ids of the events; checks that each match is there at most once, and that what is
    deleted is what was inserted.
    """
    shown = {}
    for change in changes:
        key = tuple(change["events"])
        if change["op"] == "insert":
            assert key not in shown, f"{key} was inserted twice"
            shown[key] = change
        else:
            assert shown.pop(key) == change | {"op": "insert"}
    return shown


def wanted(run, events):
    """What the oracle says of these events, by their ids."""
    limit = run.query.plan.confidence

    def passes(confidence):
        return confidence >= limit.least if limit.inclusive else confidence > limit.least

    heard = [e for e in events if e["type"] in run.query.plan.types]  # the others would only make more worlds
    found = worlds.answer(run.query.plan, heard) if heard else {}
    return {key: match for key, match in found.items() if passes(match.confidence)}


def agree(shown, expected, step=0.0):
    """Assert that a runtime's net output is the oracle's, confidences within ``step``; ranges too, if there is none."""
    assert shown.keys() == expected.keys()
    for key, match in expected.items():
        change = shown[key]
        assert abs(change["confidence"] - float(match.confidence)) <= step + 1e-9, (key, change, match)
        if not step:
            assert (change["first"], change["last"]) == match.range, (key, change, match)
        said = change.get("earliest", change["first"]), change.get("latest", change["last"])
        assert (change["first_ts"], change["last_ts"]) == said
        assert said == (change["first"], change["last"])


def accepted(run, slack):
    """The events that keep the promise that none is more than ``slack`` late, decided one by one."""
    clock, kept = -(10**9), []
    for event in run.events:
        clock = max(clock, event["lower"])
        if event["lower"] >= clock - slack - run.longest:
            kept.append(event)
    return kept
