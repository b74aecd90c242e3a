"""Late events that are applied all the same, and what they would have changed: exactly as far as state allows."""

from collections import Counter
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import latecomer as lc
from tests.oracle import combinations, killers, matches, scopes
from tests.squeeze import KINDS, squeezed
from tests.test_levels import Ledger
from tests.time_reference import FOREVER, some, wild

SCHEMA = pa.schema({"id": pa.string(), "type": pa.string(), "ts": pa.int64(), "k": pa.string()})
PATTERNS = [
    "SEQ(A a, C c)",
    "SEQ(A a, !B b, C c)",
    "SEQ(A a, !A x, C c)",
    "SEQ(A a, !B b)",
    "SEQ(A a, C c, !B b)",
    "SEQ(!B b, A a, C c)",
    "SEQ(!C c, A a, !B b)",
    "SEQ(A a, !B b, A d, !B e, C c)",
    "SEQ(A a, !B b, C c) WHERE [k]",
    "SEQ(A a, !B b) WHERE [k]",
]


def known(level, clock, bounds, types):
    """How far each type is known (limit - 1 of the level): time of late events, entry, horizons and floor follow."""
    if isinstance(level, lc.Conservative):
        return {t: bounds.get(t, -FOREVER) for t in types}
    slack = level.k if isinstance(level, lc.KSlack) else level.max_delay
    return dict.fromkeys(types, clock - slack.units("s") - 1)


class Amending:
    """What is out, batch by batch, with late events applied to all that lies at or above ``complete``.

    ``amends``: whether they are applied at all. An event that comes again never counts twice.
    """

    def __init__(self, query, amends=True):
        self.plan, self.level, self.window, self.amends = query.plan, query.level, query.plan.window.units("s"), amends
        self.clock, self.bounds, self.complete, self.done = -FOREVER, {}, -FOREVER, False
        self.seen, self.waiting, self.used = set(), [], []  # ids; events in the sort buffer; events that count
        self.held, self.out = {}, {}  # ids -> events of matches that wait, and that are out
        self.late = []  # (id, missed, wrong)

    def known(self):
        return known(self.level, self.clock, self.bounds, self.plan.types)

    def horizon(self, type):
        if self.done:
            return FOREVER
        if isinstance(self.level, lc.Aggressive):
            return self.clock - self.level.patience.units("s") - 1
        return self.known()[type]

    def closed(self, match):
        ends = [(n.component.type, high) for n, low, high in scopes(self.plan, match, "s") if low <= high]
        return all(high <= self.horizon(type) for type, high in ends)

    def reach(self, match):
        """The earliest time that a match depends on."""
        return min([match[0]["ts"], *(low for _, low, _ in scopes(self.plan, match, "s"))])

    def alive(self, events):
        """ids -> events of all matches among ``events``."""
        found = combinations(self.plan, events, "s")
        return {ids(m): m for m in found if not any(killers(self.plan, m, events, "s"))}

    def batch(self, events):
        """Take in events; returns the changes (op, ids, amended), in any order."""
        before, late = dict(self.out), []
        for e in events:
            self.clock = max(self.clock, e["ts"])
            again = e["id"] in self.seen
            if e["type"] in self.plan.types and not again:
                (late if e["ts"] <= self.known()[e["type"]] else self.waiting).append(e)
            self.seen.add(e["id"])
        self.step()
        changes = different(before, self.out, False)
        self.late += [(e["id"], *self.effect(e)) for e in late]
        if self.amends:
            before = dict(self.out)
            self.apply([e for e in late if e["ts"] >= self.complete])
            changes += different(before, self.out, True)
        return changes

    def punctuate(self, type, ts):
        self.bounds[type] = max(self.bounds.get(type, -FOREVER), ts)
        before = dict(self.out)
        self.step()
        return different(before, self.out, False)

    def finish(self):
        self.done = True
        before = dict(self.out)
        self.step()
        return different(before, self.out, False)

    def step(self):
        buffers = isinstance(self.level, lc.KSlack) and not self.done
        entry = self.known()[self.plan.types[0]] + 1 if buffers else FOREVER
        new = [e for e in self.waiting if e["ts"] <= entry]
        self.waiting = [e for e in self.waiting if e["ts"] > entry]
        if not isinstance(self.level, (lc.KSlack, lc.Conservative)):
            self.kill(new, -FOREVER)
        self.used += new
        alive = self.alive(self.used)
        found = {i: m for i, m in alive.items() if any(e in new for e in m) or i in self.held}
        self.leave(found)
        slack = self.level.patience.units("s") if isinstance(self.level, lc.Aggressive) else 0
        least = min(self.known().values())
        if isinstance(self.level, lc.Aggressive):
            floor = min(least + 1, self.clock - slack) - self.window
        else:
            floor = least + isinstance(self.level, lc.KSlack) - self.window
        self.complete = max(self.complete, floor)

    def kill(self, new, complete):
        """Take back what new negatives kill, where it lies at or above ``complete``."""
        for i, m in list(self.out.items()):
            old = any(killers(self.plan, m, self.used, "s"))
            if not old and any(killers(self.plan, m, new, "s")) and self.reach(m) >= complete:
                del self.out[i]

    def leave(self, found):
        self.out |= {i: m for i, m in found.items() if self.closed(m)}
        self.held = {i: m for i, m in (self.held | found).items() if not self.closed(m)}

    def apply(self, new):
        self.kill(new, self.complete)
        self.used += new
        alive = self.alive(self.used)
        self.leave({i: m for i, m in alive.items() if any(e in new for e in m) and self.reach(m) >= self.complete})

    def effect(self, e):
        """How many matches are missing, and how many are wrong, without a late event; None: too old to tell."""
        if e["ts"] < self.complete:
            return None, None
        without, within = self.alive(self.used), self.alive([*self.used, e])
        missed = [i for i in within if i not in without and self.reach(within[i]) >= self.complete]
        wrong = [i for i in without if i not in within and self.reach(without[i]) >= self.complete]
        return len(missed), len(wrong)


def ids(match):
    return tuple(e["id"] for e in match)


def different(before, after, amended):
    changes = [("insert", i, amended) for i in after if i not in before]
    return changes + [("delete", i, amended) for i in before if i not in after]


@dataclass(frozen=True)
class Story:
    """A query and steps in order: ("event", dict) and ("punctuate", type, ts); ``cuts`` end batches."""

    query: lc.Query
    steps: tuple[tuple, ...]
    cuts: frozenset[int]
    restores: frozenset[int]

    def actions(self):
        rows = []
        for number, step in enumerate(self.steps):
            if rows and (number in self.cuts or step[0] != "event"):
                yield "batch", rows
                rows = []
            if step[0] == "event":
                rows.append(step[1])
            else:
                yield step
        if rows:
            yield "batch", rows
        yield ("finish",)

    def play(self):
        """Each action with the engine's answer."""
        for action, out, _ in self.watch():
            yield action, out

    def watch(self):
        """Each action with the engine's answer, and from what time on it still holds everything."""
        runtime = lc.Runtime(lc.Stream(id="id", unit="s", schema=SCHEMA), self.query)
        for number, action in enumerate(self.actions()):
            match action:
                case "batch", rows:
                    out = runtime.process(pa.Table.from_pylist(rows, SCHEMA))
                case "punctuate", type, ts:
                    out = runtime.punctuate(ts, type=type)
                case _:
                    out = runtime.finish()
            yield action, out, runtime._engine.lanes[0].queries[0].complete
            if action == ("finish",):
                return
            if number in self.restores:
                runtime = lc.Runtime.restore(runtime.snapshot())


def make(pick, on_late, span=40, patterns=PATTERNS, windows=(6, 3, 10), copies=True):
    """A story; ``pick`` chooses from a list."""
    numbers = [0, 1, 2, 4]
    kinds = [lc.KSlack(n, on_late=on_late) for n in numbers] + [lc.Conservative(on_late=on_late)] * 4
    kinds += [lc.Aggressive(n, p, on_late=on_late) for n in numbers for p in (0, 3, 9)]
    text = f"PATTERN {pick(patterns)} WITHIN {pick(windows)}"
    times = pick([range(9), range(15), range(span + 1)])
    steps, made = [], []
    for number in range(pick(range(4, 19))):
        if pick(range(5)) == 0:
            steps.append(("punctuate", pick("ABC"), pick(times)))
        elif copies and made and pick(range(8)) == 0:
            steps.append(("event", pick(made)))
        else:
            made.append({"id": f"e{number}", "type": pick("AAABBCCC"), "ts": pick(times), "k": pick("uuv")})
            steps.append(("event", made[-1]))
    query = lc.Query(text, name="q", level=pick(kinds))
    return Story(query, tuple(steps), some(pick, len(steps), pick([1, 2, 4])), some(pick, len(steps)))


@st.composite
def stories(draw, *given, **options):
    return make(lambda choices: draw(st.sampled_from(choices)), *given, **options)


def told(out):
    return sorted((r["op"], tuple(r["events"]), r.get("amended")) for r in out.changes.to_pylist())


def without_marks(out):
    """A match that was inserted in time may be deleted by an amendment."""
    marks = [c for c in ("amended", "revision") if c in out.changes.column_names]
    return lc.Output(out.changes.drop_columns(marks), out.late)


def check(story, amends):
    """Every change, every mark, and every estimate is what the definition says."""
    reference, ledger, seen = Amending(story.query, amends), Ledger("q"), Counter()
    for action, out in story.play():
        told_late = len(reference.late)
        if action[0] == "batch":
            seen.update(e["id"] for e in action[1])
            expected = reference.batch(action[1])
        elif action[0] == "punctuate":
            expected = reference.punctuate(*action[1:])
        else:
            expected = reference.finish()
        ledger.read(without_marks(out))
        assert told(out) == sorted(expected if amends else [(op, i, None) for op, i, _ in expected])
        late = [(r["id"], r["missed"], r["wrong"]) for r in out.late.to_pylist() if r["query"] == "q"]
        fresh = reference.late[told_late:]
        first = {id: (id, *rest) for id, *rest in reversed(late)}
        assert [first.pop(id, None) for id, *_ in fresh] == fresh
        assert all(seen[id] > 1 for id in first)  # a copy may be late again where nobody remembers the id
    return ledger


@pytest.mark.parametrize("kind", KINDS)
def test_late_events_are_applied_exactly_as_far_as_state_allows(kind):
    with squeezed(kind):
        wild(lambda pick: make(pick, "amend"), lambda story: check(story, amends=True), range(50))


def test_amending_does_not_depend_on_what_lies_on_the_shelf():
    with squeezed("spilling", 1000, 1000):
        wild(lambda pick: make(pick, "amend"), lambda story: check(story, amends=True), range(50, 80))


def test_the_late_output_says_what_a_late_event_would_have_changed():
    wild(lambda pick: make(pick, "divert"), lambda story: check(story, amends=False), range(70))


@settings(max_examples=40)
@given(st.sampled_from(["amend", "divert"]).flatmap(lambda on_late: st.tuples(st.just(on_late), stories(on_late))))
def test_applied_and_estimated_in_small_cases(case):
    on_late, story = case
    check(story, amends=on_late == "amend")


#: Streams no longer than the window: state still holds all, but for leading scopes, which begin before the stream.
WHOLE = [pattern for pattern in PATTERNS if "SEQ(!" not in pattern]


def events_of(story):
    return list({s[1]["id"]: s[1] for s in story.steps if s[0] == "event"}.values())


@settings(max_examples=70)
@given(stories("amend", span=10, patterns=WHOLE, windows=(10, 12)), st.sampled_from(KINDS))
def test_with_all_state_at_hand_the_answer_is_that_of_all_events_whatever_the_promise(story, kind):
    with squeezed(kind):
        ledger = Ledger("q")
        for _, out in story.play():
            ledger.read(without_marks(out))
    assert set(ledger.held()) == matches(story.query.plan, events_of(story), "s")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_late_event_would_have_changed_is_the_difference_of_two_answers(kind):
    """With and without it, among the events that are in use by then, and the matches that lie above what proof has
    dropped."""

    def told(story):
        plan, late, seen = story.query.plan, set(), []
        reference = Amending(story.query, amends=False)
        for (name, *what), out, complete in story.watch():
            if name == "batch":
                reference.batch(what[0])
                seen += what[0]
            elif name == "punctuate":
                reference.punctuate(*what)
            assert complete >= reference.complete
            late |= {r["id"] for r in out.late.to_pylist()}
            used = [e for e in seen if e["id"] not in late and e not in reference.waiting]
            for row in out.late.to_pylist():
                event = next(e for e in seen if e["id"] == row["id"])
                if event["ts"] < complete:
                    assert (row["missed"], row["wrong"]) == (None, None)
                    continue
                within, without = matches(plan, [*used, event], "s"), matches(plan, used, "s")
                first = {e["id"]: e["ts"] for e in seen}
                counts = [sum(first[m[0]] >= complete for m in some) for some in (within - without, without - within)]
                assert [row["missed"], row["wrong"]] == counts

    with squeezed(kind):
        wild(make, told, range(50), on_late="divert", span=10, patterns=WHOLE, windows=(10, 12), copies=False)


@settings(max_examples=60)
@given(stories("amend"))
def test_what_is_not_amended_keeps_the_order_of_completion(story):
    plan, window, times = story.query.plan, story.query.plan.window.units("s"), []
    if not isinstance(story.query.level, lc.KSlack):
        return
    trailing = any(n.kind == "trailing" for n in plan.negations)
    for _, out in story.play():
        rows = [r for r in out.changes.to_pylist() if not r["amended"]]
        assert all(r["op"] == "insert" for r in rows)
        times += [r["first_ts"] + window if trailing else r["last_ts"] for r in rows]
    assert times == sorted(times)


# Case by case

GAP = "PATTERN SEQ(A a, !B b, C c) WITHIN 10"


def event(word):
    return {"id": word, "type": word[0].upper(), "ts": int(word[1:].rstrip("'")), "k": None}


def start(*queries):
    return lc.Runtime(lc.Stream(id="id", unit="s", schema=SCHEMA), list(queries))


def send(runtime, words):
    """Changes as text, amended ones with a star; then late rows."""
    out = runtime.process(pa.Table.from_pylist([event(w) for w in words.split()], SCHEMA))
    return lines(out)


def lines(out):
    changes = [
        f"{'+' if r['op'] == 'insert' else '-'}{' '.join(r['events'])}{'*' if r.get('amended') else ''}"
        for r in out.changes.to_pylist()
    ]
    return changes + [
        f"{r['id']} {r['reason']} {r['late_by']}: {r['missed']} missed, {r['wrong']} wrong"
        for r in out.late.to_pylist()
    ]


def query(level, text=GAP, name="q"):
    return lc.Query(text, name=name, level=level)


@pytest.mark.parametrize(
    ("level", "reason", "by"),
    [
        (lc.KSlack(2, on_late="amend"), "after_k", 6),
        (lc.Aggressive(2, on_late="amend"), "after_max_delay", 6),
        (lc.Conservative(on_late="amend"), "after_punctuation", 5),
    ],
)
def test_a_late_event_is_reported_and_corrects(level, reason, by):
    runtime = start(query(level))
    told = send(runtime, "a3 c9 z14") + lines(runtime.punctuate(10))
    assert told == ["+a3 c9"]
    assert sorted(send(runtime, "b6")) == ["-a3 c9*", f"b6 {reason} {by}: 0 missed, 1 wrong"]
    assert sorted(send(runtime, "a7")) == ["+a7 c9*", f"a7 {reason} {by - 1}: 1 missed, 0 wrong"]
    assert send(runtime, "b8 b8'")[-1:] == [f"b8' {reason} {by - 2}: 0 missed, 1 wrong"]
    assert lines(runtime.finish()) == []
    assert runtime.explain()["queries"]["q"]["gives_up"] is not None


def test_what_was_amended_and_waits_leaves_in_its_turn():
    """An amended match whose scope is still open is no correction: it leaves like any other, or is killed in time."""
    runtime = start(query(lc.KSlack(3, on_late="amend"), "PATTERN SEQ(A a, !B b) WITHIN 10"))
    send(runtime, "z20")
    assert send(runtime, "a16 a12") == ["a16 after_k 1: 1 missed, 0 wrong", "a12 after_k 5: 1 missed, 0 wrong"]
    assert send(runtime, "b26") == ["+a12"]  # the killer of a16 comes in time
    assert send(runtime, "z40") == []


def test_too_old_is_neither_applied_nor_estimated():
    runtime = start(query(lc.KSlack(0, on_late="amend"), "PATTERN SEQ(A a, C c) WITHIN 10"))
    send(runtime, "a20 c25 a40 c50")
    assert send(runtime, "a39") == ["a39 after_k 11: None missed, None wrong"]
    assert send(runtime, "a40'") == ["+a40' c50*", "a40' after_k 10: 1 missed, 0 wrong"]


def test_there_is_no_mark_where_nobody_amends():
    out = start(query(lc.KSlack(0))).process(pa.Table.from_pylist([event("a1"), event("c2")], SCHEMA))
    assert "amended" not in out.changes.column_names
    explained = start(query(lc.KSlack(0))).explain()["queries"]["q"]
    assert explained["gives_up"] is None


def test_in_company_only_those_are_marked_that_amend():
    runtime = start(query(lc.KSlack(2), name="strict"), query(lc.KSlack(2, on_late="amend"), name="loose"))
    out = runtime.process(pa.Table.from_pylist([event(w) for w in ("a3", "c9", "z14")], SCHEMA))
    assert {(r["query"], r["op"], r["amended"]) for r in out.changes.to_pylist()} == {
        ("strict", "insert", None),
        ("loose", "insert", False),
    }
    out = runtime.process(pa.Table.from_pylist([event("b6")], SCHEMA))
    assert [(r["query"], r["op"], r["amended"]) for r in out.changes.to_pylist()] == [("loose", "delete", True)]
    assert [r["query"] for r in out.late.to_pylist()] == ["strict", "loose"]


def test_the_late_events_of_one_batch_are_judged_each_for_itself():
    runtime = start(query(lc.KSlack(0)))
    send(runtime, "a1 c9 z10")
    assert send(runtime, "b3 a2 b4") == [
        "b3 after_k 7: 0 missed, 1 wrong",
        "a2 after_k 8: 1 missed, 0 wrong",
        "b4 after_k 6: 0 missed, 1 wrong",
    ]


# Corrections that belong together


def revised(runtime, words):
    out = runtime.process(pa.Table.from_pylist([event(w) for w in words.split()], SCHEMA))
    return [(f"{'+' if r['op'] == 'insert' else '-'}{' '.join(r['events'])}", r["revision"]) for r in rows_of(out)]


def rows_of(out):
    return out.changes.to_pylist()


def test_what_one_event_replaces_has_one_revision():
    """The late flight of the design: (a1, c9) was wrong, (a5, c9) takes its place."""
    level = lc.Aggressive(20, corrections="replace")
    runtime = start(query(level, "PATTERN SEQ(A a, !A x, C c) WITHIN 10"))
    assert [c for c, _ in revised(runtime, "a1 c9")] == ["+a1 c9"]
    (one, first), (two, second) = sorted(revised(runtime, "a5"))
    assert (one, two, first) == ("+a5 c9", "-a1 c9", second)
    runtime = lc.Runtime.restore(runtime.snapshot())
    assert revised(runtime, "a3") == []
    (one, third), (two, fourth) = sorted(revised(runtime, "a7"))
    assert (one, two, third) == ("+a7 c9", "-a5 c9", fourth)
    assert third != first


@given(st.data())
def test_each_event_has_a_revision_of_its_own(data):
    """The last to arrive of an inserted match, or the negative that killed a deleted one, tells the revision."""
    pattern = data.draw(st.sampled_from(["SEQ(A a, !A x, C c)", "SEQ(A a, !B b, C c)", "SEQ(A a, C c)"]))
    plan = query(lc.Aggressive(99, corrections="replace"), f"PATTERN {pattern} WITHIN 6").plan
    runtime = start(query(lc.Aggressive(99, corrections="replace"), f"PATTERN {pattern} WITHIN 6"))
    kinds, times = st.sampled_from("abc"), st.integers(0, 9)
    made = data.draw(st.lists(st.tuples(kinds, times), max_size=10))
    words = [f"{kind}{ts}{chr(39) * n}" for n, (kind, ts) in enumerate(made)]
    events, causes, done = [event(w) for w in words], {}, 0
    for end in sorted({*data.draw(st.sets(st.integers(1, max(1, len(words))))), len(words)}):
        batch, done = events[done:end], end
        out = runtime.process(pa.Table.from_pylist(batch, SCHEMA))
        arrived = {e["id"]: n for n, e in enumerate(events[:end])}
        for r in rows_of(out):
            chosen = [events[arrived[i]] for i in r["events"]]
            if r["op"] == "insert":
                causing = {max(chosen, key=lambda e: arrived[e["id"]])["id"]}
            else:
                causing = {e["id"] for e in killers(plan, chosen, batch, "s")}
            known = causes.setdefault(r["revision"], causing)
            causes[r["revision"]] = known & causing
    assert all(causes.values())  # one event fits all changes of a revision
    causes = [next(iter(c)) for c in causes.values() if len(c) == 1]
    assert len(causes) == len(set(causes))


def test_only_those_who_ask_get_revisions():
    plain, asks = query(lc.Aggressive(9), name="plain"), query(lc.Aggressive(9, corrections="replace"), name="asks")
    assert "revision" not in start(plain).process(pa.Table.from_pylist([event("a1")], SCHEMA)).changes.column_names
    out = start(plain, asks).process(pa.Table.from_pylist([event("a1"), event("c2")], SCHEMA))
    assert [(r["query"], r["revision"] is None) for r in rows_of(out)] == [("plain", True), ("asks", False)]


# Once wrong


def test_a_copy_of_an_applied_event_is_not_applied_again():
    runtime = start(query(lc.Conservative(on_late="amend"), "PATTERN SEQ(A a, C c) WITHIN 10"))
    assert send(runtime, "a5 c8") == ["+a5 c8"]
    runtime.punctuate(6, type="A")
    assert not any(line.startswith("+") for line in send(runtime, "a5"))
    assert [line for line in send(runtime, "a4") if "*" in line] == ["+a4 c8*"]
    assert not any(line.startswith("+") for line in send(runtime, "a4"))


@pytest.mark.parametrize(("on_late", "kind"), [("amend", ""), ("amend", "small"), ("divert", "")])
@pytest.mark.parametrize("seed", range(4))
def test_long_streams_of_late_events(seed, on_late, kind):
    """Many windows, frames and purges, most events late; useless state may linger, or be gone at once."""
    choose, steps = Random(seed), []
    level = [lc.KSlack(3), lc.Aggressive(3), lc.Aggressive(2, 9), lc.Conservative()][seed]
    level = type(level)(
        *([level.k] if seed == 0 else [level.max_delay, level.patience] if seed < 3 else []), on_late=on_late
    )
    for n in range(110):
        ts = 3 * n + choose.randint(-25, 0)
        steps.append(("event", {"id": f"e{n}", "type": choose.choice("AABCC"), "ts": ts, "k": choose.choice("uv")}))
        if n % 5 == 0:
            steps.append(("punctuate", choose.choice("ABC"), 3 * n - choose.randint(0, 20)))
    text = ["SEQ(A a, !B b, C c)", "SEQ(A a, !A x, C c)", "SEQ(A a, !B b)", "SEQ(!B b, A a, C c)"][seed]
    cuts = frozenset(n for n in range(len(steps)) if choose.random() < 0.4)
    asked = query(level, f"PATTERN {text} WHERE [k] WITHIN 12")
    with squeezed(kind):
        check(Story(asked, tuple(steps), cuts, frozenset(range(0, 110, 20))), amends=on_late == "amend")
