"""What each level promises, on random runs: the engine against the oracle, whatever the order, the batches and the
company.

``tests/fuzz.py`` runs the same properties for as long as asked.
"""

from collections import Counter
from dataclasses import replace
from functools import wraps

import pytest
from hypothesis import given

import latecomer as lc
from tests.oracle import matches, value
from tests.script import event, start, tell
from tests.squeeze import KINDS, squeezed
from tests.strategies import PUNCTUATION, act, cases, feed, sound, wild
from tests.test_oracle import BY_HAND

PROPERTIES = {}
ESTIMATES = ["missed", "wrong"]


def property_of(**wishes):
    """Make a check a test over ``cases(**wishes)``, and keep it where the fuzzer finds it."""

    def keep(check):
        strategy = cases(**wishes)

        @wraps(check)
        def check_squeezed(case):
            with squeezed(case.squeeze):
                check(case)

        PROPERTIES[check.__name__] = check_squeezed, strategy, wishes
        return given(strategy)(check_squeezed)

    return keep


class Ledger:
    """The net of a query's changes. Each match's multiplicity stays in {0, 1}, row by row."""

    def __init__(self, query):
        self.query, self.net, self.ever, self.order = query, {}, {}, []

    def read(self, out):
        for row in out.changes.to_pylist():
            if row.pop("query") != self.query:
                continue
            op, name = row.pop("op"), row.pop("match_id")
            events = tuple(row["events"])
            assert self.ever.setdefault(name, events) == events, "one match_id for two matches"
            if op == "insert":
                assert name not in self.net, f"{events} inserted twice"
                self.net[name] = row
            else:
                assert op == "delete"
                assert self.net.pop(name, None) == row, f"{events} deleted, but not in the net as it was inserted"
            self.order.append((op, row))

    def held(self):
        assert len({tuple(r["events"]) for r in self.net.values()}) == len(self.net), "two match_ids for one match"
        return {tuple(r["events"]): r for r in self.net.values()}


def shown(plan, chosen, unit, columns):
    """The row that a match must have in the changes."""
    bound = {c.var: e for c, e in zip(plan.positives, chosen, strict=True)}
    fields = {alias: value(expr, bound, unit) for alias, expr in plan.returns}
    fixed = {"events": [e["id"] for e in chosen], "first_ts": chosen[0]["ts"], "last_ts": chosen[-1]["ts"]}
    return fixed | {c: fields.get(c) for c in columns if c not in fixed}


def late_rows(outs, query):
    return [(r["id"], r["reason"], r["late_by"]) for out in outs for r in out.late.to_pylist() if r["query"] == query]


def run(case, restore_after=()):
    """All outputs of a case, ``finish`` last; the runtime goes through a snapshot after the batches with these
    numbers.
    """
    runtime, outs = case.runtime(), []
    for number, (action, _) in enumerate(case.batches()):
        outs.append(act(runtime, action))
        if number in restore_after:
            runtime = lc.Runtime.restore(runtime.snapshot())
    outs.append(runtime.finish())
    return outs


def net(outs, query):
    ledger = Ledger(query)
    for out in outs:
        ledger.read(out)
    return ledger.net


@pytest.mark.parametrize("arrival", ["sorted", "reversed", "positives last"])
@pytest.mark.parametrize("level", [lc.KSlack(20), lc.Conservative(), lc.Aggressive(20)])
@pytest.mark.parametrize(("pattern", "words", "answer"), BY_HAND)
def test_answers_worked_out_by_hand(pattern, words, answer, level, arrival):
    ordered = {
        "sorted": lambda e: event(e)["ts"],
        "reversed": lambda e: -event(e)["ts"],
        "positives last": lambda e: f"!{event(e)['type']}" not in pattern,
    }[arrival]
    runtime = start(f"PATTERN SEQ({pattern}) WITHIN 10 s", level)
    told = [c for change in tell(runtime, " ".join(sorted(words.split(), key=ordered)) + " .").values() for c in change]
    assert {tuple(c[1:].split()) for c in told if c[0] == "+"} - {
        tuple(c[1:].split()) for c in told if c[0] == "-"
    } == answer


@property_of(queries=5)
def test_after_every_batch_exactly_the_expected_matches_are_out(case):
    runtime, references = case.runtime(), case.references()
    ledgers = {name: Ledger(name) for name in references}
    outs, done = [], 0
    actions = [*case.batches(), (("finish",), len(case.steps))]
    for action, upto in actions:
        for step in case.steps[done:upto]:
            for reference in references.values():
                feed(reference, step)
        done = upto
        if action == ("finish",):
            outs.append(runtime.finish())
            for reference in references.values():
                reference.done = True
        else:
            outs.append(act(runtime, action))
        columns = [c for c in outs[-1].changes.column_names if c not in ("op", "query", "match_id")]
        for name, reference in references.items():
            ledgers[name].read(outs[-1])
            expected = {i: shown(reference.plan, m, case.unit, columns) for i, m in reference.expected().items()}
            assert ledgers[name].held() == expected, f"{name} after step {upto}"
            assert late_rows(outs, name) == reference.late, f"{name} after step {upto}"
            if not isinstance(reference.level, lc.Aggressive):
                assert all(op == "insert" for op, _ in ledgers[name].order), f"{name} is final, yet deletes"
        stream = Counter(r["reason"] for out in outs for r in out.late.to_pylist() if r["query"] is None)
        one = next(iter(references.values()))
        assert stream == Counter(malformed=one.malformed, duplicate=one.conflicts)


@property_of(promise=True)
def test_a_kept_promise_gives_the_answer_of_the_sorted_complete_stream(case):
    outs = run(case)
    plan = next(iter(case.references().values())).plan
    first = {}
    for kind, *what in case.steps:
        if kind == "row" and sound(what[0]):
            first.setdefault(what[0]["id"], what[0])
    assert {tuple(r["events"]) for r in net(outs, "q0").values()} == matches(plan, list(first.values()), case.unit)
    assert not late_rows(outs, "q0")


@property_of(kinds=(lc.KSlack,))
def test_k_slack_gives_matches_in_order_of_completion(case):
    plan = next(iter(case.references().values())).plan
    trailing = any(n.kind == "trailing" for n in plan.negations)
    ledger = Ledger("q0")
    for out in run(case):
        ledger.read(out)
    window = plan.window.units(case.unit)
    times = [row["first_ts"] + window if trailing else row["last_ts"] for _, row in ledger.order]
    assert times == sorted(times)


@property_of(queries=4)
def test_no_answer_depends_on_the_batches(case):
    found = [run(case.cut(where)) for where in (case.cuts, "one", "each")]
    for name in case.references():
        assert net(found[0], name) == net(found[1], name) == net(found[2], name)
    # How much a late event would have changed is told as far as the state of the moment goes, so that may differ.
    rows = [[row for out in outs for row in out.late.to_pylist()] for outs in found]
    late = [sorted(repr({k: v for k, v in row.items() if k not in ESTIMATES}) for row in told) for told in rows]
    assert late[0] == late[1] == late[2]


@property_of(promise=True, plain=True)
def test_no_answer_depends_on_the_order_of_arrival(case):
    rows = [s for s in case.steps if s[0] == "row" and s[1]["type"] != PUNCTUATION]
    in_order = replace(case, steps=tuple(sorted(rows, key=lambda s: s[1]["ts"])), cuts=frozenset())
    assert net(run(case), "q0") == net(run(in_order), "q0")


@property_of(queries=3)
def test_a_restored_runtime_has_the_same_future(case):
    points = set(range(len(case.steps))) if len(case.steps) % 2 else {len(case.steps) // 2 - 1}
    for plain, restored in zip(run(case), run(case, points), strict=True):
        for one, other in ((plain.changes, restored.changes), (plain.late, restored.late)):
            assert one.schema == other.schema
            assert repr(one.to_pylist()) == repr(other.to_pylist())  # unlike ``equals``, NaN is like NaN here


@property_of(queries=3)
def test_a_query_in_company_answers_as_alone(case):
    together = case.runtime()
    alone = {name: case.runtime(only=name) for name in case.references()}

    def rows(out, name):
        fields = [{k: v for k, v in r.items() if v is not None} for r in out.changes.to_pylist() if r["query"] == name]
        return sorted(map(repr, fields))

    for action in [*(a for a, _ in case.batches()), None]:
        out = act(together, action) if action else together.finish()
        for name, runtime in alone.items():
            single = act(runtime, action) if action else runtime.finish()
            assert rows(out, name) == rows(single, name)
            assert late_rows([out], name) == late_rows([single], name)


def test_reference_agrees_with_the_oracle_when_everything_is_known():
    """Guards the guard: with all promises complete, a Reference expects the oracle's answer on what it accepted."""

    @given(cases(promise=False))
    def check(case):
        reference = next(iter(case.references().values()))
        for step in case.steps:
            feed(reference, step)
        reference.done = True
        assert set(reference.expected()) == matches(reference.plan, reference.accepted, case.unit)

    check()


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_same_on_plainly_random_runs(name):
    """Hypothesis finds small failures, a plain generator finds different ones: see ``strategies.py``."""
    check, _, wishes = PROPERTIES[name]
    for seed in range(60):
        case = wild(seed, **wishes)
        try:
            check(case)
        except Exception as error:
            error.add_note(f"seed {seed}:\n{case}")
            raise


#: Smallest inputs on which an answer was once wrong: (level, query, words, what they tell).
ONCE_WRONG = [
    # A killer that is gone when its match is released.
    (lc.Conservative(), "SEQ(!C c, A a, B b, !D d) WITHIN 10", "a5 b6 c-3 <*,13> <*,14> <*,15> .", {}),
    (lc.Aggressive(5, patience=20), "SEQ(!C c, A a, B b, !D d) WITHIN 10", "a5 b6 c3 f34 f35 f36 .", {}),
    # A negation that is looked at before the component is bound to which its key is tied.
    (lc.KSlack(5), "SEQ(A a, C c, !A x, B b) WHERE [k] WITHIN 10", "c2.k=u a3.k=u b4.k=u .", {}),
    # A duplicate in a batch that lets its first be forgotten.
    (lc.Aggressive(0), "SEQ(C c) WITHIN 6", "c4 c4+c10 .", {"c4": ["+c4"], "c4+c10": ["+c10"]}),
    # Empty keys, alone and in company.
    (lc.Aggressive(9), "SEQ(A a, B b) WHERE [k] WITHIN 10", "a4.k= b5.k=u+b6.k= .", {"b5.k=u+b6.k=": ["+a4 b6"]}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("level", "query", "words", "told"), ONCE_WRONG)
def test_once_found(level, query, words, told, kind):
    with squeezed(kind):
        assert tell(start(f"PATTERN {query}", level), words) == told
