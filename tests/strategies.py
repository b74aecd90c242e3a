"""Random runs: queries, levels, streams, disorder, punctuation and ways to cut a stream into batches.

Everything is made by picking from lists, simple choices first, through one function ``pick(options)``. So one recipe
serves twice: ``cases(…)`` is a Hypothesis strategy (a failure shrinks towards the simple choices), and ``wild(seed,
…)`` picks with a plain random generator, which finds more in the same time, since Hypothesis likes to repeat itself.

Times are few and dense, so that ties, neighbours and windows hit to the unit are common; then they are stretched and
shifted, so that large times and large gaps are common too.
"""

from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pyarrow as pa
from hypothesis import strategies as st

import latecomer as lc
from tests import squeeze
from tests.reference import Reference

PUNCTUATION = "PUNCT"
TYPES = "ABC"
SOURCES = ("north", "south", "east")
ATTRIBUTES = {
    "k": ("u",) * 20 + ("v", None, "", "a longer value, 1", "a longer value, 2"),
    "g": (1, 1, 1, 1, 2, None),
    "x": (1, 1, 1, 2, 0, None, 3),
    "p": (1.0,) * 5 + (2.0, 0.5, None, 0.0, -0.0, float("nan")),
    "s": ("a",) * 6 + ("ab", None, "", "B", "é"),
}
ALL_LEVELS = (lc.KSlack, lc.Conservative, lc.Aggressive)


@dataclass(frozen=True)
class Asked:
    """A query in pieces, so that a failing one can be made smaller."""

    name: str
    level: object
    pattern: tuple[str, ...]
    where: tuple[str, ...]
    within: str
    returns: str

    @property
    def text(self):
        lines = [f"PATTERN SEQ({', '.join(self.pattern)})"]
        lines += [f"WHERE {' AND '.join(self.where)}"] if self.where else []
        lines += [f"WITHIN {self.within}"]
        lines += [f"RETURN {self.returns}"] if self.returns else []
        return "\n".join(lines)

    @cache  # noqa: B019  (small, and runs are over soon)
    def query(self):
        return lc.Query(self.text, name=self.name, level=self.level)


@dataclass(frozen=True)
class Case:
    """Everything that a run needs; ``steps``, in order of arrival, are ("row", dict), ("punctuate", type, ts, source)
    or ("observe", ts).
    """

    asked: tuple[Asked, ...]
    steps: tuple[tuple, ...]
    cuts: frozenset[int] = frozenset()  # a batch ends before the steps with these numbers
    unit: str = "s"
    ids: type = int
    clock: str = "stream"
    declared: tuple[str, ...] = ()
    squeeze: str = ""  # see squeeze.py
    bare: bool = False  # the stream says nothing of sources and promises

    def __str__(self):
        lines = [
            f"unit={self.unit} ids={self.ids.__name__} clock={self.clock} declared={self.declared} bare={self.bare}"
        ]
        lines += [f"squeeze={self.squeeze!r} cuts={sorted(self.cuts)}"]
        lines += [f"query {a.name!r}, {a.level}:\n{a.text}" for a in self.asked]
        lines += [f"  {number:2} {' '.join(map(str, step))}" for number, step in enumerate(self.steps)]
        return "\n".join(lines)

    __repr__ = __str__

    def stream(self):
        if self.bare:
            return lc.Stream(id="id", unit=self.unit)
        clock = {"clock": self.clock, "sources": self.declared or None}
        return lc.Stream(id="id", source="source", unit=self.unit, punctuation=PUNCTUATION, **clock)

    def runtime(self, only=None):
        return lc.Runtime(self.stream(), [a.query() for a in self.asked if only in (None, a.name)])

    def references(self):
        plans, by_source = [a.query().plan for a in self.asked], self.clock == "source"
        wanted = [t for p in plans for t in p.types]
        return {p.name: Reference(p, self.unit, by_source, self.declared, wanted) for p in plans}

    def cut(self, where):
        """The same case in other batches: "one" (all in one), "each" (one row each) or a set of step numbers."""
        every = {"one": (), "each": range(len(self.steps))}
        return replace(self, cuts=frozenset(every[where] if isinstance(where, str) else where))

    def batches(self):
        """Actions ("process", table), ("punctuate", …) and ("observe", …), each with the number of steps done then."""
        rows = []
        for number, step in enumerate(self.steps):
            if rows and (number in self.cuts or step[0] != "row"):
                yield ("process", table(rows, self.ids)), number
                rows = []
            if step[0] == "row":
                rows.append(step[1])
            else:
                yield step, number + 1
        if rows:
            yield ("process", table(rows, self.ids)), len(self.steps)


def table(rows, ids=int):
    """Rows as an Arrow table whose schema does not depend on the rows."""
    text, whole = pa.string(), pa.int64()
    columns = {"id": whole if ids is int else text, "type": text, "ts": whole, "source": text, "of": text}
    columns |= {"k": text, "g": whole, "x": whole, "p": pa.float64(), "s": text}
    return pa.table({c: pa.array([r.get(c) for r in rows], t) for c, t in columns.items()})


def act(runtime, action):
    """Let ``runtime`` take one action of :meth:`Case.batches`."""
    match action:
        case "process", batch:
            return runtime.process(batch)
        case "punctuate", type, ts, source:
            return runtime.punctuate(ts, type=type, source=source)
        case "observe", ts:
            return runtime.observe(ts)


def feed(reference, step):
    """Let a :class:`Reference` take one step."""
    match step:
        case "row", row if row["type"] == PUNCTUATION:
            reference.punctuate(row["ts"], row["of"], row["source"])
        case "row", row:
            reference.event(row)
        case "punctuate", type, ts, source:
            reference.punctuate(ts, type, source)
        case "observe", ts:
            reference.observe(ts)


def sound(row):
    """Whether a row is an event, and whole."""
    return row["type"] != PUNCTUATION and None not in (row["id"], row["type"], row["ts"])


def local(var, n, t):
    """Predicates on one component; ``n`` a small number, ``t`` a time."""
    return [
        f"{var}.x = {n}",
        f"{var}.x <> {n}",
        f"{var}.x > {n}",
        f"{var}.s = 'a'",
        f"NOT {var}.x = {n}",
        f"{var}.x IS NULL",
        f"{var}.k IS NOT NULL",
        f"{var}.x IN ({n}, 2)",
        f"{var}.s NOT IN ('ab', 'B')",
        f"{var}.x BETWEEN {n} AND 2",
        f"{var}.s LIKE 'a%'",
        f"{var}.s NOT LIKE '_b'",
        f"{var}.p >= 1.0",
        f"{var}.p / {var}.x > 0.5",
        f"{var}.x - {var}.g = {n}",
        f"{var}.x * 2 <= {var}.g + {n}",
        f"-{var}.x < {var}.p",
        f"{var}.x % 2 = {n}",
        f"{var}.ts >= {t}",
        f"({var}.x = {n} OR {var}.s < 'b')",
        f"({var}.x > 0 AND NOT ({var}.g = 2 OR {var}.p > 1.5))",
    ]


def across(one, two, n, duration):
    """Predicates on two components."""
    return [
        f"{one}.x = {two}.x",
        f"{one}.x <= {two}.x",
        f"{one}.k = {two}.k",
        f"{one}.s = {two}.s",
        f"{one}.s = {two}.k",
        f"{one}.x = {two}.g",
        f"{one}.x = {two}.p",
        f"{one}.p = {two}.p",
        f"{one}.k <> {two}.k",
        f"{one}.x + {two}.x > {n}",
        f"{two}.ts - {one}.ts > {duration}",
        f"{two}.ts - {one}.ts <= {duration}",
        f"({one}.x = {two}.x OR {one}.s = 'a')",
        f"NOT ({one}.x = {two}.x)",
        f"{one}.s >= {two}.s",
        f"({one}.x = {two}.x AND {one}.k = {two}.k)",
        f"{one}.x / {two}.x >= 1",
        f"{one}.x BETWEEN {two}.g AND {two}.x",
    ]


THREE = ["{0}.x + {1}.x > {2}.x", "({0}.x = {1}.x OR {1}.x = {2}.x)", "{2}.x - {0}.x = {1}.x - {0}.x"]
RETURNS = ["", "{0}.x AS x", "{0}.s AS s, {1}.k AS k", "{0}.x + {1}.g AS sum", "{1}.ts AS t, {0}.p AS p"]
RETURNS += ["{1}.x / {0}.x AS q", "{1}.ts - {0}.ts AS took"]
#: Where negatives stand; an empty one stands for any shape that ends with a positive.
SHAPES = ["+", "++", "+-+", "+++", "-+", "+-", "", "", "", "++-", "-++", "-+-", "-++-", "+-+-", "-+-+", "+--+", "-+-+-"]
KEYS = [(), (), ("[k]",), ("[k]",), ("[k]",), ("[k, g]",), ("[g]",), ("[k]", "[g]")]


def asked(pick, name, kinds, unit, scale, offset):
    """A query: up to five components, negation anywhere, any keys and predicates, any level of ``kinds``."""
    shape = pick(SHAPES) or [pick("++-") for _ in range(pick(range(5)))] + ["+"]
    size, negated = len(shape), [sign == "-" for sign in shape]
    types = [pick(TYPES) for _ in range(size)]
    if pick([True, False]):  # types in order: more matches than all alike
        types = ["ABCAB"[i] for i in range(size)]
    names = [f"{t.lower()}{i}" for i, t in enumerate(types)]
    positives = [n for n, neg in zip(names, negated, strict=True) if not neg]
    negatives = [n for n, neg in zip(names, negated, strict=True) if neg]

    where = list(pick(KEYS))
    for _ in range(pick([0, 0, 0, 0, 1, 2])):
        number, time = pick(range(3)), pick(range(-4, 13)) * scale + offset
        where += [pick(local(pick(names), number, time))]
    pairs = [(a, b) for i, a in enumerate(positives) for b in positives[i + 1 :]]
    pairs += [pair for a in positives for b in negatives for pair in ((a, b), (b, a))]
    for _ in range(pick([0, 0, 0, 0, 1, 1, 2]) if pairs else 0):
        where += [pick(across(*pick(pairs), pick(range(3)), f"{pick(range(7)) * scale} {unit}"))]
    if len(positives) >= 3 and pick([False, False, True]):
        where.append(pick(THREE).format(*positives))
    if pick(range(20)) == 19:
        where.append(pick(["1 < 2", "2 < 1"]))

    window = pick([10, 8, 6, 9, 5, 12, 4, 2, 7, 3, 1]) * scale + (pick([0, 0, 0, 1, -1]) if scale > 1 else 0)
    pattern = tuple(f"{'!' if neg else ''}{t} {n}" for t, n, neg in zip(types, names, negated, strict=True))
    returns = pick(RETURNS).format(positives[0], positives[-1])
    kind = pick(kinds)
    numbers = [n * scale for n in (4, 0, 1, 2, 3, 5, 8, 12, 20, 8, 12, 20, 20)]
    level = kind() if kind is lc.Conservative else kind(pick(numbers))
    if kind is lc.Aggressive:
        level = kind(level.max_delay, pick([0] * 30 + numbers))  # patience may exceed the greatest delay
    return Asked(name, level, pattern, tuple(where), f"{window} {unit}", returns)


def slack(level, unit):
    """By how much the level lets an event be late, or None for any amount."""
    length = getattr(level, "k", None) or getattr(level, "max_delay", None)
    return None if length is None else length.units(unit)


def reach(query, unit):
    """How far apart in time events of ``query`` may still have to do with each other."""
    window, late = query.query().plan.window.units(unit), slack(query.level, unit) or 0
    patience = query.level.patience.units(unit) if isinstance(query.level, lc.Aggressive) else 0
    return [window, late, patience, window + late, window + patience]


def events(pick, pattern, distances, ids, scale, offset, most):
    """Events without the same id twice: a few stories that follow the pattern's types in time, others at distances from
    those at which something may change (windows, slacks), and some noise.
    """
    mixed = pick([False, True, True])  # else all attributes agree
    eras = pick([(0,), (0,), (0, 0, 1), (0, 1, 2)])  # times in other frames of the stores
    places = []  # (type, time in small units)
    for _ in range(pick([1, 2, 3, 3, 4, 0]) * (most // 12)):
        time = pick(range(-4, 7)) + 1021 * pick(eras)
        for type in pattern:
            time += pick([1, 1, 1, 2, 2, 3, 0])
            if pick([True, True, True, True, False]):
                places.append((type, time))
    for _ in range(pick(range(4)) if places else 0):
        places.append((pick(pattern), pick(places)[1] + pick([0, 1, -1]) + pick([1, -1]) * pick(distances)))
    places += [(pick([*pattern, *TYPES, "Z"]), pick(range(-4, 13))) for _ in range(pick(range(4)) * (most // 12))]
    found = []
    for number, (type, time) in enumerate(places[-most:]):
        ts = time * scale + offset + (pick([0, 0, 0, 1, -1]) if scale > 1 else 0)
        place = {"id": number if ids is int else f"e{number}", "type": type, "ts": ts, "source": pick(SOURCES)}
        found.append(place | {name: pick(values) if mixed else values[0] for name, values in ATTRIBUTES.items()})
    return found


def arrivals(pick, found, most, scale):
    """An order of arrival in which no event is more than ``most`` late; without ``most`` a bit more, or anything."""
    if most is None and pick([False, True]):
        return sorted(found, key=lambda e: pick(range(2 * len(found))))
    slots = 12 if most is None else most // scale
    delays = [pick([0, slots, pick(range(slots + 1)), pick(range(slots + 1))]) * scale for _ in found]
    order = sorted(zip(found, delays, strict=True), key=lambda e: (e[0]["ts"] + e[1], pick(range(len(found)))))
    return [e for e, _ in order]


def make(pick, kinds=ALL_LEVELS, promise=None, queries=1, most=12, plain=False, sources=True, bare=None):
    """A whole run. With ``promise`` all levels' promises hold; without it they are broken freely; None picks which.

    ``plain``: no duplicates, no malformed rows, no clock from elsewhere. ``sources``: clocks and punctuation per source
    too. ``bare``: neither these nor any punctuation; None picks where it may.
    """
    promise = pick([True, False]) if promise is None else promise
    scale = pick([1, 1, 1, 1, 1000, 2**40])
    offset = pick([0, 0, -5, 1_700_000_000_000, -(2**40)])
    unit = pick(["s", "ms", "ns", "min"] if scale == 1 else ["ns", "us"])
    ids = pick([int, str])
    clock = pick(["stream", "stream", "stream", "source"]) if sources else "stream"
    declared = tuple(SOURCES[: pick(range(4))]) if clock == "source" else ()
    queries = tuple(asked(pick, f"q{i}", kinds, unit, scale, offset) for i in range(pick(range(queries)) + 1))
    allowed = [s for s in (slack(q.level, unit) for q in queries) if s is not None]
    pattern = [word.strip("!")[0] for word in pick(queries).pattern]
    distances = [0, *(n // scale for q in queries for n in reach(q, unit))]
    found = events(pick, pattern, distances, ids, scale, offset, most)
    steps = [("row", e) for e in arrivals(pick, found, min(allowed) if promise and allowed else None, scale)]
    bare = (clock == "stream" and pick([True, False])) if bare is None else bare
    for _ in range(0 if bare else pick(range(7))):
        steps = punctuated(pick, steps, promise, scale, offset, sources)
    for _ in range(0 if plain else pick([0, 0, 1, 2])):
        steps = spoiled(pick, steps, promise, allowed, scale, offset)
    steps = remembered(Case(queries, tuple(steps), unit=unit, ids=ids, clock=clock, declared=declared, bare=bare))
    often = pick([1, 2, 3, 1000])
    cuts = frozenset(n for n in range(len(steps)) if pick(range(often)) == 0)
    return Case(queries, tuple(steps), cuts, unit, ids, clock, declared, pick(squeeze.KINDS), bare)


def punctuated(pick, steps, promise, scale, offset, sources):
    """The same arrivals with one more punctuation, which is true (it knows what will come) if ``promise``."""
    at = pick(range(len(steps) + 1))
    type = pick([*TYPES, None, "Z"])
    before = [r["source"] for kind, r, *_ in steps[:at] if kind == "row" and sound(r)]
    source = pick([None, None, *before]) if sources else None
    if promise:
        later = [r for kind, r, *_ in steps[at:] if kind == "row" and sound(r) and type in (None, r["type"])]
        bound = min((r["ts"] for r in later), default=1041 * scale + offset) - 1 - pick([0, 0, 0, 1, 3 * scale])
    else:
        bound = pick(range(-6, 15)) * scale + offset
    row = {"type": PUNCTUATION, "ts": bound, "of": type, "source": source, "id": None}
    step = pick([("row", row), ("punctuate", type, bound, source)])
    return [*steps[:at], step, *steps[at:]]


def spoiled(pick, steps, promise, allowed, scale, offset):
    """The same arrivals with a duplicate (a true copy, or one with other content), a malformed row or news of the
    clock.
    """
    rows = [n for n, s in enumerate(steps) if s[0] == "row" and sound(s[1])]
    what = pick(["copy", "other", "malformed", "observe"] if rows else ["observe"])
    if what == "observe":
        at = pick(range(len(steps) + 1))
        later = [s[1]["ts"] for s in steps[at:] if s[0] == "row" and sound(s[1])]
        truth = min(later, default=offset) + min(allowed, default=0)
        step = ("observe", truth if promise else pick(range(-6, 15)) * scale + offset)
    else:
        first = pick(rows)
        row, at = steps[first][1], min(len(steps), first + pick([1, 2, 3]))
        change = {
            "other": {"x": 7, "ts": row["ts"] + pick([0, -1] if promise else [0, 1, -1])},
            "malformed": {pick(["id", "type", "ts"]): None},
        }
        step = ("row", row | change.get(what, {}))
    return [*steps[:at], step, *steps[at:]]


def remembered(case):
    """The steps without duplicates of events that nobody needs to remember: what is said of those is not fixed."""
    references, kept = list(case.references().values()), []
    for step in case.steps:
        for reference in references:
            feed(reference, step)
        if not any(r.forgotten for r in references):
            kept.append(step)
        for reference in references:
            reference.forgotten = False
    return kept


@st.composite
def cases(draw, **options):
    """Runs as :func:`make` describes them."""
    return make(lambda choices: draw(st.sampled_from(choices)), **options)


def wild(seed, **options):
    """One run, by a plain random generator."""
    return make(Random(seed).choice, **options)
