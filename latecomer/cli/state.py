"""What a runtime holds and waits for, on a terminal: the facts of ``Runtime.explain()`` in a reader's words.

Rule: the page fits 80 columns. Times are told as the stream's column has them (timestamps, or numbers of its unit),
lengths to three digits or in the two largest units that they fill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from latecomer.cli.intervals import Reach
from latecomer.cli.report import facts, grid, some, unknown, with_units
from latecomer.consistency.clock import END, FAR
from latecomer.query.plan import Plan
from latecomer.units import UNITS

#: Sources that are listed; the others, with fewer events, are only counted.
SOURCES = 20
#: From this width on a page has room for the median, and for more room between columns.
WIDE = 100
#: What rows are called that are counted besides events, where there are any.
CAME = {
    "other_types": "of types that no query asks for",
    "punctuation": "punctuation",
    "duplicates": "repeated",
    "conflicts": "of these with other content",
    "malformed": "malformed",
    "ahead": "too far ahead",
}


class Times:
    """How one stream's times are told.

    >>> times = Times("s", timestamps=True)
    >>> times.at(1_357_034_400), times.length(3_723), Times("ms", False).at(1_500)
    ('2013-01-01 10:00:00', '1 h 2 min', '1500')
    """

    def __init__(self, unit: str | None, timestamps: bool) -> None:
        self.unit, self._timestamps = unit or "ns", timestamps

    def at(self, ts: int) -> str:
        """A moment."""
        if ts >= END:
            return "the end"
        if not self._timestamps or abs(ts) > FAR:
            return str(ts)
        seconds, rest = divmod(ts * UNITS[self.unit], UNITS["s"])
        try:
            moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
        except OverflowError:
            return f"{ts} {self.unit}"
        return f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{rest:09d}".rstrip("0") if rest else "")

    def length(self, units: float) -> str:
        """A length of time, 0 or more."""
        left = round(units) * UNITS[self.unit]
        if left < UNITS["min"]:
            name = next((name for name in ("s", "ms", "us") if left >= UNITS[name]), "ns")
            return f"{left / UNITS[name]:.3g} {name}" if left else f"0 {self.unit}"
        parts: list[str] = []
        for name in ("d", "h", "min", "s"):
            count, left = divmod(left, UNITS[name])
            if count:
                parts.append(f"{count} {name}")
            elif parts:
                break
        return " ".join(parts[:2])

    def apart(self, ts: int, clock: int) -> str:
        """How far a moment is from the clock."""
        if ts == clock:
            return "at it"
        return f"{self.length(abs(clock - ts))} {'behind' if ts < clock else 'ahead'}"


def plain(told: Any) -> Any:
    """What ``explain`` says as JSON can hold it: names that are no text become text."""
    if isinstance(told, Mapping):
        return {"null" if key is None else str(key): plain(value) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [plain(value) for value in told]
    return told if told is None or isinstance(told, (bool, int, float, str)) else str(told)


def show(told: Mapping[str, Any], plans: Sequence[Plan], console: Console) -> None:
    """Print what ``Runtime.explain()`` has told of a runtime with these queries."""
    times = Times(told["unit"], told["timestamps"])
    console.print(grid(_stream(told, times)))
    if told["sources"]:
        console.print(Padding(_sources(told, times, console.width), (1, 0, 0, 0), expand=False))
    for plan in plans:
        query = told["queries"][plan.name]
        console.print(Padding(Text(plan.name, style="bold"), (1, 0, 0, 0), expand=False))
        console.print(Padding(grid(_query(plan, query, told, times)), (0, 0, 0, 2), expand=False))
        if query["waiting"]:
            console.print(Padding(_waiting(query, times), (1, 0, 0, 2), expand=False))


def _stream(told: Mapping[str, Any], times: Times) -> list[tuple[str, RenderableType]]:
    clock, counters = told["clock"], told["counters"]
    unit = "" if told["timestamps"] or clock is None else f" {times.unit}"
    at = "no event has come yet" if clock is None else times.at(clock) + unit
    came = [some(counters["rows"], "row"), some(counters["events"], "event")]
    came += [f"{counters[key]:,} {what}" for key, what in CAME.items() if counters[key]]
    rows: list[tuple[str, RenderableType]] = [("Clock", Text(at))]
    if told["now"] is not None:
        rows.append(("Now", Text(times.at(told["now"]) + unit)))
    rows += [
        ("Came", Text(", ".join(came))),
        ("State", Text(f"{some(told['events'], 'event')} in {_bytes(told['bytes'])}")),
    ]
    return rows


def _bytes(count: int) -> str:
    size = float(count)
    for name in ("bytes", "kB", "MB"):
        if size < 1_000:
            return f"{size:,.0f} {name}" if name == "bytes" else f"{size:.3g} {name}"
        size /= 1_000
    return f"{size:,.1f} GB"


def _sources(told: Mapping[str, Any], times: Times, width: int) -> Table:
    """Who sends how much, where its clock stands, and how late its last events were, where that is known."""
    listed = sorted(told["sources"].items(), key=lambda item: -item[1]["events"])
    known = any(source["share_late"] is not None for _, source in listed)
    quantiles = [q for q in listed[0][1]["lateness"] if width >= WIDE or float(q) > 0.5] if known else []
    lateness = ["at most" if float(q) == 1 else f"{float(q) * 100:g} %" for q in quantiles]
    table = _table(
        ("source", "events", "too late", "beside\nthe clock", *(["out of\norder"] if known else []), *lateness),
        right=("events", "too late", "out of\norder", *lateness),
        apart=2 if width >= WIDE else 1,
    )
    for name, source in listed[:SOURCES]:
        share = source["share_late"]
        late = ["–" if share is None else times.length(source["lateness"][q]) for q in quantiles]
        table.add_row(
            "null" if name is None else str(name),
            f"{source['events']:,}",
            f"{source['late']:,}",
            _beside(source, told["clock"], times),
            *(["–" if share is None else f"{share * 100:.3g} %"] if known else []),
            *late,
        )
    if len(listed) > SOURCES:
        rest = [source for _, source in listed[SOURCES:]]
        events, broken = (f"{sum(source[key] for source in rest):,}" for key in ("events", "late"))
        table.add_row(f"{len(rest):,} more", events, broken)
    return table


def _beside(source: Mapping[str, Any], clock: int | None, times: Times) -> str:
    if source["clock"] is None or clock is None:
        return "not heard yet"
    return times.apart(source["clock"], clock) + (", idle" if source["idle"] else "")


def _query(
    plan: Plan, query: Mapping[str, Any], told: Mapping[str, Any], times: Times
) -> list[tuple[str, RenderableType]]:
    """What is said of one query, line by line."""
    reach = None if told["longest"] is None else Reach(told["longest"])
    known, counters = facts(plan, told["unit"], reach), told["counters"]
    lines = [
        ("Level", f"{known['level']['text']}: {known['level']['meaning']}"),
        ("A match waits", "\n".join(known["waits"])),
    ]
    if told["unit"] is not None:  # an event has come, so there is something to hold
        lines += [*_horizon(query, told["clock"], times), *_in_use(query, times)]
        proven = ", ".join(
            f"{kind} up to {times.at(told['bounds'][kind])}"
            for kind in dict.fromkeys(plan.types)
            if kind in told["bounds"]
        )
        kept = with_units(known["retention"])
        if query["retention"] is None:
            lines.append(("Proven", proven or "nothing yet: all is kept until punctuation comes, or finish()"))
        lines.append(("State is kept", kept))
        waiting = some(query["held"], "match", "matches") + (" waits" if query["held"] == 1 else " wait")
        stored = f"{some(query['stored'], 'event')} in stores, {query['buffered']:,} in sort buffers"
        lines.append(("Held now", f"{stored}; {waiting}"))
    found = some(counters["inserted"][plan.name], "match", "matches")
    late = [f"; {some(n, 'event')} {reason}" for reason, n in counters["late"][plan.name].items()]
    lines.append(("Found", f"{found}, {counters['deleted'][plan.name]:,} taken back{''.join(late)}"))
    lines += _confidences(counters["confidences"].get(plan.name), plan)
    if query.get("gives_up"):
        lines.append(("Gives up", query["gives_up"]))
    return [(label, Text(text)) for label, text in lines]


def _confidences(counts: Mapping[str, int] | None, plan: Plan) -> list[tuple[str, str]]:
    """What computing confidences cost, and what became of those that cost too much."""
    if counts is None:
        return []
    text = f"{counts['steps']:.3g} steps were taken to compute them (a few ns each)"
    if counts["unknown"]:
        text += "\n" + unknown(counts["unknown"], plan)
    if counts["sampled"]:
        text += f"\n{some(counts['sampled'], 'match', 'matches')} came with an estimate, since it would have cost more"
    return [("Confidences", text)]


def _horizon(query: Mapping[str, Any], clock: int | None, times: Times) -> list[tuple[str, str]]:
    """Up to where all is taken as known."""
    horizon = query["horizon"]
    if horizon is None or clock is None:
        return []
    behind = f", {times.length(clock - horizon)} behind the clock" if horizon < clock else ""
    return [("Known up to", times.at(horizon) + behind)]


def _in_use(query: Mapping[str, Any], times: Times) -> list[tuple[str, str]]:
    """The slack or patience in use."""
    if "patience" in query:
        return [("Patience", times.length(query["patience"]))]
    if "k" not in query:
        return []
    text = times.length(query["k"])
    if "expected_loss" in query:
        text += f", chosen from the lateness seen so far, at most {times.length(query['longest'])}"
    others = query.get("k_by_source", {}).items()
    return [("Slack", "; ".join([text, *(f"{name}: {times.length(slack)}" for name, slack in others)]))]


def _waiting(query: Mapping[str, Any], times: Times) -> Table:
    table = _table(("match", "no", "until", "to go", "waits for"), right=("to go",))
    for match in query["waiting"]:
        events = ", ".join(map(str, match["events"]))
        for scope in match["scopes"]:
            horizon = scope["horizon"]
            to_go = "–" if horizon is None else times.length(scope["ends"] - horizon)
            waits = scope["waits_for"]
            if scope["source"] is not None:
                waits += f"{' of' if waits == 'the clock' else ' from'} {scope['source']}"
            table.add_row(events, scope["type"], times.at(scope["ends"]), to_go, waits)
            events = ""
    if query["held"] > len(query["waiting"]):
        table.add_row(f"{query['held'] - len(query['waiting']):,} more")
    return table


def _table(names: Sequence[str], right: Sequence[str], apart: int = 2) -> Table:
    table = Table(box=None, padding=(0, apart, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    return table
