"""What ``latecomer check`` says of a query: facts as plain values (the JSON form), and their look on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from latecomer.cli.intervals import IntervalFacts, Reach
from latecomer.cli.promises import retention, slack_of
from latecomer.consistency.levels import Aggressive, Conservative, KSlack
from latecomer.query.plan import Confidence, Negation, Plan
from latecomer.query.unparse import write
from latecomer.runtime.intervals.guards import over_intervals
from latecomer.stream import Stream
from latecomer.units import Duration


def facts(plan: Plan, unit: str | None = None, reach: Reach | None = None) -> dict[str, Any]:
    """Everything that can be said of a plan before it runs.

    Args:
        unit: the unit of the stream's time; where it is not known, lengths are told in words only.
        reach: of a stream whose times are intervals.
    """
    over = IntervalFacts(plan, unit, reach or Reach(0)) if over_intervals(plan, reach is not None) else None
    twice = plan.negates_both_ends and isinstance(plan.level, Aggressive)  # what is final need not look back again
    return {
        "name": plan.name,
        "components": [
            {
                "variable": c.var,
                "type": c.type,
                "negated": c.negated,
                "filter": [write(conjunct) for conjunct in c.filter],
            }
            for c in plan.components
        ],
        "key": list(plan.key),
        "conditions": [write(conjunct) for conjunct in plan.conjuncts],
        "negations": [_negation(plan, negation) for negation in plan.negations],
        "window": _length(plan.window, unit),
        "returns": [{"name": alias, "value": write(expr)} for alias, expr in plan.returns],
        "strategy": plan.strategy,
        "confidence": str(plan.confidence),
        "intervals": reach is not None,
        "level": _level(plan),
        "waits": waits(plan) if over is None else over.waits(),
        "retention": retention(plan, unit, twice=twice) if over is None else over.retention(),
        "text": plan.text,
    }


def _length(length: Duration, unit: str | None) -> dict[str, Any]:
    return {"text": str(length), "units": None if unit is None else length.units(unit), "unit": unit}


def _negation(plan: Plan, negation: Negation) -> dict[str, Any]:
    first, last = plan.positives[0].var, plan.positives[-1].var
    var, window = negation.component.var, plan.window
    left = None if negation.left is None else plan.positives[negation.left].var
    right = None if negation.right is None else plan.positives[negation.right].var
    if left is None:
        scope, formula = f"[{last} - {window}, {first})", f"{last}.ts - {window} <= {var}.ts < {first}.ts"
    elif right is None:
        scope, formula = f"({last}, {first} + {window}]", f"{last}.ts < {var}.ts <= {first}.ts + {window}"
    else:
        scope, formula = f"({left}, {right})", f"{left}.ts < {var}.ts < {right}.ts"
    return {
        "variable": var,
        "type": negation.component.type,
        "kind": negation.kind,
        "scope": scope,
        "formula": formula,
        "conditions": [write(conjunct) for conjunct in negation.conjuncts],
    }


def _level(plan: Plan) -> dict[str, Any]:
    match plan.level:
        case KSlack(k=k):
            slack = "a fixed slack" if k is not None else "a slack that it chooses from the lateness seen so far"
            meaning = f"waits {slack}, then is final; matches leave in order of completion"
        case Conservative():
            meaning = "waits for punctuation, then is final; matches leave as soon as they are proven"
        case Aggressive(patience=patience, retractions=retractions):
            first = f"waits {patience}" if patience.amount else "answers at once"
            if retractions is not None:
                first = f"waits as long as keeps the share of answers taken back at {retractions:.3g} or less"
            meaning = f"{first}, and takes an answer back when a late event makes it wrong"
    amends = plan.level.on_late == "amend"
    if amends:
        meaning += "; but events that break its promise are applied all the same, as marked corrections"
    return {
        "text": str(plan.level),
        "meaning": meaning,
        "final": not amends and not isinstance(plan.level, Aggressive),
    }


def waits(plan: Plan) -> list[str]:
    """What a match waits for before it leaves, one sentence per promise. The clock is the largest event time seen."""
    first, last = plan.positives[0].var, plan.positives[-1].var
    trailing = any(negation.kind == "trailing" for negation in plan.negations)
    end = f"{first}.ts + {plan.window}" if trailing else f"{last}.ts"
    match plan.level:
        case KSlack():
            beyond = "is past" if trailing else "reaches"
            return [f"until the clock {beyond} {end} + {slack_of(plan.level)}"]
        case Conservative() if plan.negations:
            return [_proof(plan, negation) for negation in plan.negations]
        case Aggressive(patience=patience, retractions=chosen) if plan.negations and (
            trailing or patience.amount or chosen is not None
        ):
            beyond = "is past" if trailing else "reaches"
            # The scope that closes last decides: a trailing one, else the one that ends at the latest event.
            ends = [_right_end(plan, negation) for negation in plan.negations]
            moment = end if trailing else ends[-1]
            wait = " + the patience it chooses" if chosen is not None else f" + {patience}" if patience.amount else ""
            return [f"until the clock {beyond} {moment}{wait}"]
    return ["nothing: it leaves with its last event"]


def _right_end(plan: Plan, negation: Negation) -> str:
    if negation.right is None:
        return f"{plan.positives[0].var}.ts + {plan.window}"
    return f"{plan.positives[negation.right].var}.ts"


def _proof(plan: Plan, negation: Negation) -> str:
    end = _right_end(plan, negation)
    covers = "reaches" if negation.right is None else "covers all times before"
    return f"until punctuation of {negation.component.type} {covers} {end}"


def hints(stream: Stream, plans: Iterable[Plan], where: str) -> list[str]:
    """What a stream leaves open that one broken event can make use of; ``where`` says how it is closed."""
    moved = any(not isinstance(plan.level, Conservative) for plan in plans)
    if not moved or stream.max_ahead is not None or stream.clock == "source" or stream.quorum > 1:
        return []
    told = "one event dated far in the future moves the clock for good, and all that come after it are late"
    return [f"{told}: where events come live, {where} keeps such an event apart"]


def show(told: dict[str, Any], console: Console) -> None:
    """Print the facts for a reader."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("variable", "type", "must", "of its own"):
        table.add_column(column)
    for c in told["components"]:
        table.add_row(
            c["variable"], c["type"], "not occur" if c["negated"] else "occur", " AND ".join(c["filter"]) or "–"
        )
    console.print(Text(told["name"], style="bold"))
    _section(console, "Pattern", table)
    rows: list[tuple[str, RenderableType]] = [
        ("Equal in all", Text(", ".join(told["key"]) or "–")),
        ("Conditions", _lines(told["conditions"])),
        ("No", _lines([_negation_line(n) for n in told["negations"]])),
        ("Window", Text(with_units(told["window"]))),
        ("Returns", _lines([f"{r['name']} = {r['value']}" for r in told["returns"]])),
        ("Strategy", Text(told["strategy"])),
        *_confidence(told),
        ("Level", Text(f"{told['level']['text']}: {told['level']['meaning']}")),
        ("A match waits", _lines(told["waits"])),
        ("State is kept", Text(with_units(told["retention"]))),
        *(("Mind", Text(hint)) for hint in told.get("hints", ())),
    ]
    console.print(Padding(grid(rows), (1, 0, 0, 0), expand=False))


def _confidence(told: dict[str, Any]) -> list[tuple[str, RenderableType]]:
    """How probable a match must be, where that is asked for or times are intervals."""
    asked = told["confidence"]
    if told["intervals"]:
        unsure = "" if "SAMPLED" in asked else "; unknown where computing it would cost too much, and told all the same"
        return [("Confidence", Text(asked + unsure))]
    if asked == str(Confidence()):
        return []
    return [("Confidence", Text(f"{asked}, which all matches have as long as the stream's times are exact"))]


def grid(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """Labels and what they say, one below the other."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in rows:
        table.add_row(label, value)
    return table


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2), expand=False))


def _negation_line(negation: dict[str, Any]) -> str:
    conditions = f", where {' AND '.join(negation['conditions'])}" if negation["conditions"] else ""
    return (
        f"{negation['type']} {negation['variable']} in {negation['scope']}, that is {negation['formula']}{conditions}"
    )


def with_units(length: dict[str, Any]) -> str:
    """A length as the user wrote it, and in the stream's units where these are known."""
    text, units, unit = str(length["text"]), length["units"], length["unit"]
    return text if units is None or text.startswith(f"{units} {unit}") else f"{text} ({units:,} {unit})"


def some(count: int, what: str, plural: str | None = None) -> str:
    """A number of things.

    >>> some(1, "event"), some(2_000, "event"), some(0, "match", "matches")
    ('1 event', '2,000 events', '0 matches')
    """
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def unknown(count: int, plan: Plan) -> str:
    """What to do about matches without a confidence."""
    limit = plan.confidence if plan.confidence != Confidence() else "> 0"
    return (
        f"{some(count, 'match', 'matches')} came without a confidence, whatever the threshold: computing it exactly "
        "would have cost too much. Count time in a coarser unit (Stream(unit='ms')), or allow estimates: "
        f"CONFIDENCE {limit} SAMPLED 0.01"
    )


def _lines(texts: list[str]) -> RenderableType:
    return Group(*(Text(text) for text in texts)) if texts else Text("–")
