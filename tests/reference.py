"""What a level promises, one arrival at a time, with plain scalars: what a query may use, what is late, what must be
out by now.

Together with the oracle this predicts every table that the engine gives, whatever the batches.
"""

from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from tests.oracle import combinations, killers, scopes

FOREVER = 10**30


class Reference:
    """One query over one arrival sequence, event by event: what it may use, what is late, how far it knows."""

    def __init__(self, plan, unit, by_source=False, declared=(), wanted=()):
        self.plan, self.unit, self.level, self.by_source, self.done = plan, unit, plan.level, by_source, False
        self.wanted = {*plan.types, *wanted}  # ids are remembered of these types only: those that some query looks at
        self.clock = -FOREVER
        self.clocks = dict.fromkeys(declared, -FOREVER)  # each known source's own
        self.proved, self.own = {}, {}  # the bound of each type, and of each (type, source)
        self.accepted, self.late, self.seen, self.duplicates, self.conflicts, self.malformed = [], [], {}, 0, 0, 0
        self.forgotten = False  # whether a duplicate came so late that counting it twice does no harm

    def event(self, e):
        if None in (e["id"], e["type"], e["ts"]):
            self.malformed += 1
            return
        source = e.get("source")
        self.clocks[source] = max(self.clocks.get(source, self.clock), e["ts"])
        self.observe(min(self.clocks.values()) if self.by_source else e["ts"])
        if e["id"] in self.seen:
            self.forgotten |= self.seen[e["id"]]["ts"] < self.floor(e["type"])
            self.duplicates += 1
            self.conflicts += repr(self.seen[e["id"]]) != repr(e)  # NaN is like NaN here
            return
        if e["type"] in self.wanted:
            self.seen[e["id"]] = e
        if e["type"] not in self.plan.types:
            return
        promised = self.promised(e["type"])
        if isinstance(self.level, Conservative):
            promised = max(promised, self.own.get((e["type"], source), -FOREVER))
        if e["ts"] <= promised:
            name = {KSlack: "after_k", Aggressive: "after_max_delay"}.get(type(self.level), "after_punctuation")
            self.late.append((e["id"], name, promised + 1 - e["ts"]))
        else:
            self.accepted.append(e)

    def punctuate(self, ts, type=None, source=None):
        for t in [type] if type is not None else self.plan.types:
            if source is not None:  # the type's bound is what all sources have promised
                self.own[t, source] = max(self.own.get((t, source), -FOREVER), ts)
                ts_of_all = min(self.own.get((t, s), -FOREVER) for s in {*self.clocks, source})
            else:
                ts_of_all = ts
            self.proved[t] = max(self.proved.get(t, -FOREVER), ts_of_all)

    def observe(self, ts):
        self.clock = max(self.clock, ts)

    def floor(self, type):
        """An id below this time need not be remembered: nothing of its event is needed, or a copy would be late."""
        kept = 0 if isinstance(self.level, Conservative) else self.plan.window.units(self.unit)
        patient = isinstance(self.level, Aggressive)
        return min(self.promised(type), self.horizon(type) if patient else FOREVER) + 1 - kept

    def promised(self, type):
        """No event of ``type`` at or before this time may come any more."""
        if isinstance(self.level, KSlack):
            return self.clock - self.level.k.units(self.unit) - 1
        if isinstance(self.level, Aggressive):
            return self.clock - self.level.max_delay.units(self.unit) - 1
        return self.proved.get(type, -FOREVER)

    def horizon(self, type):
        """Everything of ``type`` at or before this time is taken as known."""
        if self.done:
            return FOREVER
        patience = isinstance(self.level, Aggressive) and self.level.patience.units(self.unit)
        return self.clock - patience - 1 if isinstance(self.level, Aggressive) else self.promised(type)

    def entered(self):
        if not self.done and isinstance(self.level, KSlack):
            return [e for e in self.accepted if e["ts"] <= self.clock - self.level.k.units(self.unit)]
        return self.accepted

    def expected(self):
        """What must be out by now: ids -> the match's events."""
        events, out = self.entered(), {}
        for m in combinations(self.plan, events, self.unit):
            ends = [(n.component.type, high) for n, low, high in scopes(self.plan, m, self.unit) if low <= high]
            closed = all(high <= self.horizon(type) for type, high in ends)
            if closed and not any(killers(self.plan, m, events, self.unit)):
                out[tuple(e["id"] for e in m)] = m
        return out
