"""Clocks, guards and slack, one event at a time, with plain scalars; and what must be out by then.

It shares nothing with the engine but the plans of queries; with the oracle it predicts every table of a runtime,
whatever the batches.
"""

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
            self.value = max(self.value, clock - max(slacks, default=0))


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
