"""Clocks, guards and slack, one event at a time, with plain scalars; and what must be out by then.

It shares nothing with the engine but the plans of queries; with the oracle it predicts every table of a runtime,
whatever the batches.
"""

from random import Random

from latecomer.consistency.clock import END
from latecomer.consistency.levels import Aggressive, KSlack
from tests.oracle import combinations, killers, scopes

FOREVER = 10**30


class Silence:
    """Who was silent for the timeout, by the ``now`` that is passed in. Who spoke is heard at the next ``now``."""

    def __init__(self, names, timeout):
        self.heard, self.fresh, self.idle, self.timeout = dict.fromkeys(names), set(), set(), timeout

    def spoke(self, name):
        self.heard.setdefault(name)
        self.fresh.add(name)
        self.idle.discard(name)

    def advance(self, now):
        for name, at in self.heard.items():
            if at is None or name in self.fresh:
                self.heard[name] = now
        self.fresh.clear()
        if self.timeout is not None:
            self.idle |= {name for name, at in self.heard.items() if now - at >= self.timeout}

    @property
    def all(self):
        return bool(self.heard) and self.idle == set(self.heard)


class Largest:
    """The largest time of all. Whoever speaks, the stream speaks."""

    def __init__(self, timeout=None):
        self.value, self.silence = -FOREVER, Silence(["the stream"], timeout)

    def event(self, ts, source):
        self.silence.spoke("the stream")
        self.reach(ts)

    def advance(self, now):
        self.silence.advance(now)
        if self.silence.all:
            self.reach(now - self.silence.timeout)

    def reach(self, ts):
        self.value = max(self.value, ts)


class Quorum(Largest):
    """The q-th largest of the sources' own largest times."""

    def __init__(self, quorum, declared=(), timeout=None):
        self.value, self.quorum, self.own, self.silence = -FOREVER, quorum, {}, Silence(declared, timeout)

    def event(self, ts, source):
        self.silence.spoke(source)
        self.own[source] = max(self.own.get(source, -FOREVER), ts)
        if len(self.own) >= self.quorum:
            self.reach(sorted(self.own.values())[-self.quorum])


class Least(Largest):
    """The least over the sources that are not idle of (own largest time - own slack); ``lag`` is the largest slack."""

    def __init__(self, declared=(), timeout=None, slack=lambda source: 0, lag=0):
        self.value, self.own, self.silence = -FOREVER, dict.fromkeys(declared, -FOREVER), Silence(declared, timeout)
        self.slack, self.lag = slack, lag

    def event(self, ts, source):
        self.silence.spoke(source)
        self.own[source] = max(self.own.get(source, self.value), ts - self.slack(source))
        self.combine()

    def combine(self):
        active = [own for source, own in self.own.items() if source not in self.silence.idle]
        self.value = max(self.value, min(active, default=-FOREVER))

    def advance(self, now):
        self.silence.advance(now)
        if self.silence.all:
            self.reach(now - self.silence.timeout - self.lag)
        else:
            self.combine()


def clock_of(kind="stream", declared=(), timeout=None, quorum=1):
    if kind == "source":
        return Least(declared, timeout)
    return Quorum(quorum, declared, timeout) if quorum > 1 else Largest(timeout)


class Limit:
    """The least time that is still on time, by the largest slack of the sources known so far, or source by source."""

    def __init__(self, level, unit, kind, declared, timeout):
        if isinstance(level, Aggressive):
            self.default, self.by_source = level.max_delay.units(unit), {}
        else:
            self.default, self.by_source = level.k.units(unit), {s: k.units(unit) for s, k in level.sources}
        self.longest = max(self.default, *self.by_source.values(), 0)
        self.value, self.known = -FOREVER, set(declared)
        self.least = None
        if kind == "source" and self.by_source:
            self.least = Least(declared, timeout, self.slack, self.longest)

    def slack(self, source):
        return self.by_source.get(source, self.default)

    def event(self, ts, source, clock):
        self.known.add(source)
        if self.least is not None:
            self.least.event(ts, source)
        self.settle(clock)

    def advance(self, now, clock):
        if self.least is not None:
            self.least.advance(now)
        self.settle(clock)

    def settle(self, clock):
        if self.least is not None:
            self.value = max(self.value, self.least.value, clock - self.longest)
        else:
            slacks = [self.slack(s) for s in self.known] if self.by_source else [self.default]
            self.value = max(self.value, clock - max(slacks, default=FOREVER))


class Asked:
    """What one query may use, what is late for it, and what must be out."""

    def __init__(self, query, unit, kind, declared, timeout):
        self.plan, self.unit, self.level, self.done, self.clock = query.plan, unit, query.level, False, -FOREVER
        self.limit = Limit(query.level, unit, kind, declared, timeout)
        self.accepted, self.late = [], []

    def event(self, e, clock):
        self.clock = clock
        self.limit.event(e["ts"], e["source"], clock)
        if e["type"] not in self.plan.types:
            return
        by = self.limit.value - e["ts"]
        if by > 0:
            self.late.append((e["id"], "after_k" if isinstance(self.level, KSlack) else "after_max_delay", by))
        else:
            self.accepted.append(e)

    def out(self):
        """ids -> the match's events."""
        events, horizon = self.accepted, FOREVER
        if not self.done and isinstance(self.level, KSlack):
            events, horizon = [e for e in events if e["ts"] <= self.limit.value], self.limit.value - 1
        elif not self.done:
            horizon = self.clock - self.level.patience.units(self.unit) - 1
        found = {}
        for m in combinations(self.plan, events, self.unit):
            closed = all(low > high or high <= horizon for _, low, high in scopes(self.plan, m, self.unit))
            if closed and not any(killers(self.plan, m, events, self.unit)):
                found[tuple(e["id"] for e in m)] = m
        return found


class World:
    """A stream and its queries: clock and guard, then each query for itself."""

    def __init__(self, queries, unit="s", kind="stream", declared=(), timeout=None, quorum=1, max_ahead=None):
        self.clock, self.max_ahead, self.now = clock_of(kind, declared, timeout, quorum), max_ahead, None
        self.asked = {q.name: Asked(q, unit, kind, declared, timeout) for q in queries}
        self.ahead = []

    def event(self, e, reached=-FOREVER):
        """``reached``: the clock at this event as known from elsewhere."""
        if self.max_ahead is not None and self.now is not None and e["ts"] > self.now + self.max_ahead:
            self.ahead.append((e["id"], "ahead", e["ts"] - self.now - self.max_ahead))
            self.observe(reached)
            return
        self.clock.event(e["ts"], e["source"])
        self.clock.reach(reached)
        for asked in self.asked.values():
            asked.event(e, self.clock.value)

    def advance(self, now):
        self.now = now if self.now is None else max(self.now, now)
        self.clock.advance(self.now)
        self.settle(lambda asked: asked.limit.advance(self.now, self.clock.value))

    def observe(self, ts):
        self.clock.reach(ts)
        self.settle(lambda asked: asked.limit.settle(self.clock.value))

    def settle(self, move):
        for asked in self.asked.values():
            asked.clock = self.clock.value
            move(asked)

    def finish(self):
        for asked in self.asked.values():
            asked.done = True


class Promised:
    """What has been promised, one row at a time, with dictionaries: by type, by (type, source); and by whom.

    A promise is (type or None, source or None, ts). A type is closed once every source that counts has promised as
    much. Generators are asked after each event, and when a clock has moved.
    """

    def __init__(self, types, generators=(), kind="stream", declared=(), timeout=None):
        self.types, self.generators, self.clock = types, generators, clock_of(kind, declared, timeout)
        self.whole, self.own, self.silence = dict.fromkeys(types, -FOREVER), {}, Silence(declared, timeout)
        self.keys = {}  # the bound of each (type, key)
        self.resting = set()  # sources that were idle at the last advance, and have sent nothing since
        for generator in generators:
            self.take(generator.begin(types))

    def bound(self, type, source):
        """No event of the type from the source at or below this time may come."""
        return max(self.whole[type], self.own.get((type, source), -FOREVER))

    def event(self, e):
        source = e.get("source")
        self.silence.spoke(source)
        self.resting.discard(source)
        self.clock.event(e["ts"], source)
        for generator in self.generators:
            self.take(generator.event(e, self.clock.value))
        self.follow()

    def punctuate(self, type, source, ts):
        if source is not None:
            self.silence.heard.setdefault(source)
        self.take([(type, source, ts)])

    def close(self, type, key, ts):
        """No event of the type with this key will come any more at or below ``ts``, whoever sends it."""
        for t in self.types if type is None else [type]:
            self.keys[t, key] = max(self.keys.get((t, key), -FOREVER), ts)

    def advance(self, now):
        self.clock.advance(now)
        self.silence.advance(now)
        self.resting = set(self.silence.idle)
        self.follow()
        self.moved()

    def observe(self, ts):
        self.clock.reach(ts)
        self.moved()

    def moved(self):
        for generator in self.generators:
            self.take(generator.moved(self.clock.value))

    def take(self, promises):
        for named, source, ts in promises:
            for type in self.types if named is None else [named]:
                if type not in self.whole:
                    continue
                if source is None:
                    self.whole[type] = max(self.whole[type], ts)
                else:
                    self.own[type, source] = max(self.own.get((type, source), -FOREVER), ts)
        self.follow()

    def follow(self):
        counts = [source for source in self.silence.heard if source not in self.resting]
        for type in self.types:
            least = min((self.own.get((type, source), -FOREVER) for source in counts), default=-FOREVER)
            self.whole[type] = max(self.whole[type], least)


class Says:
    """A generator of promises by its definition; this one says nothing."""

    def begin(self, types):
        return []

    def event(self, e, clock):
        return []

    def moved(self, clock):
        return []


class InOrder(Says):
    def __init__(self, strict=False):
        self.back = 0 if strict else 1

    def event(self, e, clock):
        return [(None, e.get("source"), e["ts"] - self.back)]


class Delayed(Says):
    def __init__(self, delays):
        self.delays = delays

    def event(self, e, clock):
        return self.moved(clock)

    def moved(self, clock):
        return [(type, None, clock - delay - 1) for type, delay in self.delays.items()]


class Beating(Says):
    def __init__(self, type):
        self.type = type

    def event(self, e, clock):
        return [(None, e.get("source"), e["ts"])] if e["type"] == self.type else []


class Ending(Beating):
    def event(self, e, clock):
        return [(None, e.get("source"), END)] if e["type"] == self.type else []


class Numbered(Says):
    """All numbers of a source are looked through after each event; the earliest gap is given up after the timeout."""

    def __init__(self, timeout=None):
        self.timeout, self.next, self.waiting, self.bounds = timeout, {}, {}, {}

    def event(self, e, clock):
        source, number = e.get("source"), e.get("seq")
        if number is not None:
            self.next.setdefault(source, 0)
            if number >= self.next[source]:
                self.waiting.setdefault(source, {}).setdefault(number, (e["ts"], clock))
        return self.moved(clock)

    def moved(self, clock):
        for source, waiting in self.waiting.items():
            while waiting:
                since = min(at for _, at in waiting.values())
                if min(waiting) != self.next[source] and (self.timeout is None or clock < since + self.timeout):
                    break
                number = min(waiting)
                while number in waiting:  # a run of numbers goes with its first
                    ts, _ = waiting.pop(number)
                    self.bounds[source] = max(self.bounds.get(source, -FOREVER), ts)
                    number += 1
                self.next[source] = number
        return [(None, source, bound - 1) for source, bound in self.bounds.items()]


class Planned(Says):
    """Expected events (id -> type and time), each of which comes or is cancelled; all is known up to ``end``."""

    def __init__(self, expected, end, cancelled=None):
        self.open, self.end = dict(expected), end
        self.named = {type for type, _ in expected.values()}

    def begin(self, types):
        return [(t, None, min([self.end + 1, *(ts for k, ts in self.open.values() if k == t)]) - 1) for t in self.named]

    def event(self, e, clock):
        self.open.pop(e["id"], None)
        return self.begin(())


class Proven(Promised):
    """A query at the conservative level: what it may use, what is late, what must be out."""

    def __init__(self, plan, unit, *given, **options):
        super().__init__(plan.types, *given, **options)
        self.plan, self.unit, self.accepted, self.late = plan, unit, [], []

    def event(self, e):
        if e["type"] in self.plan.types:
            bound = max(self.bound(e["type"], e.get("source")), self.keys.get((e["type"], e.get("k")), -FOREVER))
            by = bound + 1 - e["ts"]
            if by > 0:
                self.late.append((e["id"], "after_punctuation", by))
            else:
                self.accepted.append(e)
        super().event(e)

    def finish(self):
        self.whole = dict.fromkeys(self.types, FOREVER)

    def known_of(self, type, event):
        """The bound of the event's key, for queries whose components agree in it."""
        return self.keys.get((type, event["k"]), -FOREVER) if self.plan.key else -FOREVER

    def out(self):
        """ids -> the match's events."""
        found = {}
        for m in combinations(self.plan, self.accepted, self.unit):
            ends = [(n.component.type, high) for n, low, high in scopes(self.plan, m, self.unit) if low <= high]
            closed = all(high <= max(self.whole[type], self.known_of(type, m[0])) for type, high in ends)
            if closed and not any(killers(self.plan, m, self.accepted, self.unit)):
                found[tuple(e["id"] for e in m)] = m
        return found


def some(pick, size, often=3):
    """A set of numbers up to ``size``, each in or out by chance."""
    return frozenset(n for n in range(size + 1) if pick(range(often)) == 0)


def merged(pick, lists):
    """One order of all elements that keeps the order within each list."""
    lists, result = [list(part) for part in lists if part], []
    while lists:
        part = pick(lists)
        result.append(part.pop(0))
        lists = [part for part in lists if part]
    return result


def wild(make, check, seeds, **options):
    """Check what ``make`` gives with a plain random generator, which repeats itself less than Hypothesis does."""
    for seed in seeds:
        made = make(Random(seed).choice, **options)
        try:
            check(made)
        except Exception as error:
            error.add_note(f"seed {seed}: {made}")
            raise
