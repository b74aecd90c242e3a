"""The report: one HTML page that needs nothing else, for people in a meeting.

Rule: the page says nothing that the data of :meth:`Advice.as_dict` does not hold. All text from outside (names of
files, types, sources, queries) is escaped by the template or the chart that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from latecomer import __version__
from latecomer.advise import charts
from latecomer.advise.advice import Advice
from latecomer.advise.levels import Point, Trial
from latecomer.advise.words import Recommendation, percent, some, tell
from latecomer.errors import MissingDependency

#: Sources shown in the report; all watched ones are in the JSON.
SHOWN = 20


def page(advice: Advice) -> str:
    """The report as HTML. Raises MissingDependency where Jinja2 is missing."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as missing:
        raise MissingDependency("jinja2", "advise", "the report") from missing
    environment = Environment(
        loader=PackageLoader("latecomer.advise"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sample = advice.sample

    def length(units: float | None) -> str:
        return "–" if units is None else tell(units, sample.unit)

    environment.filters |= {"length": length, "length_of": len, "percent": percent, "some": some}
    return environment.get_template("report.html").render(
        advice=advice,
        sample=sample,
        found=advice.lateness,
        kept=advice.promises,
        version=__version__,
        headlines=headlines(advice),
        histogram=charts.histogram(**advice.lateness["histogram"], unit=sample.unit),
        over_time=charts.over_time(advice.lateness["over_time"], advice.lateness["arrival_span"], sample.unit),
        groups=[
            ("By type", "types", "type", _reaches(advice, advice.lateness["types"])),
            ("By source", "sources", "source", _reaches(advice, advice.lateness["sources"])),
        ],
        skew=_skewed(advice.lateness["skew"]),
        queries=[_query(number, one, said) for number, (one, said) in enumerate(advice.trials, 1)],
        families=charts.FAMILIES,
    )


def headlines(advice: Advice) -> list[str]:
    """What to say first, in sentences."""
    found, unit = advice.lateness, advice.sample.unit
    whole, kept = found["all"], advice.promises["slack"]
    if not whole["late"]:
        return ["Every event arrived in order: no level has anything to wait for, as long as it stays so."]
    most, more, all_ = (tell(kept["k"][q], unit) for q in ("0.99", "0.999", "1.0"))
    first_words = f"{percent(whole['share_late'])} of the events arrived after one with a later time"
    told = [f"{first_words}; 99 % were at most {most} late, 99.9 % at most {more}, all at most {all_}."]
    first, last = found["drift"]["first"]["q99"], found["drift"]["last"]["q99"]
    if max(first, last) >= 2 * max(min(first, last), 1):
        told.append(
            f"Lateness changed: 99 % were at most {tell(first, unit)} late in the first third, {tell(last, unit)} in "
            "the last. A fixed number will not fit both."
        )
    if found["bursts"]:
        burst = found["bursts"][0]
        told.append(
            f"Late events come in bursts: the longest, {burst['events']:,} events in a row of {burst['source']}, was "
            f"up to {tell(burst['max_lateness'], unit)} late. Look for outages of that source."
        )
    if found["copies"] and found["copies"]["events"]:
        differ = found["copies"]["conflicting"]
        told.append(
            f"{percent(found['copies']['share'])} of the events are copies; they count once"
            + (f", but {differ:,} of them say something else than the first." if differ else ".")
        )
    if found["ahead"]["set_aside"]:
        furthest = max(event["by"] for event in found["ahead"]["events"])
        told.append(
            f"{some(found['ahead']['set_aside'], 'event')} stamped up to {tell(furthest, unit)} ahead of the others "
            "would have made all that follows look late, so the figures leave them out: guard the stream with "
            "Stream(max_ahead=…) or Stream(quorum=2)."
        )
    return told


def _reaches(advice: Advice, groups: dict[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """The groups' names, figures and small bars."""
    unit = advice.sample.unit
    shown = list(groups.items())[:SHOWN]
    axis = charts.time_axis([v for _, g in shown for v in g["quantiles"].values()], unit)
    keys = ("0.5", "0.9", "0.99", "1.0")
    return [
        (
            name,
            group,
            charts.reach(
                [group["quantiles"][k] for k in keys],
                axis,
                "half, 90 %, 99 %, all of the events at most "
                + ", ".join(tell(group["quantiles"][k], unit) for k in keys)
                + " late",
            ),
        )
        for name, group in shown
    ]


def _skewed(skew: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The sources whose clocks are furthest off, those first."""
    return sorted(skew.items(), key=lambda pair: -abs(pair[1]["offset"]))[:8]


def _query(number: int, trial: Trial, said: Recommendation) -> dict[str, Any]:
    chosen = {id(choice.point) for choice in said.choices}
    numbered = list(enumerate(trial.points, 1))
    return {
        "number": number,
        "trial": trial,
        "said": said,
        "charts": _charts(trial, numbered, chosen),
        "rows": [(n, point, id(point) in chosen) for n, point in numbered],
        "unseen": [n for n, point in numbered if point.verdict.wait_95 is None],
    }


def _charts(trial: Trial, numbered: list[tuple[int, Point]], chosen: set[int]) -> list[str]:
    """Missed matches, wrong alarms and state, each against the wait."""
    shown = [(n, p) for n, p in numbered if p.verdict.wait_95 is not None and p.promises != ""]
    if not shown:
        return []
    waits = charts.time_axis([float(p.verdict.wait_95 or 0) for _, p in shown], trial.unit)
    views: list[tuple[str, Callable[[list[float]], charts.Axis], Callable[[Point], float]]] = [
        ("Matches missed", charts.share_axis, lambda p: 1 - p.verdict.recall),
        ("Alarms that are wrong", charts.share_axis, lambda p: p.verdict.wrong),
        ("Events held at most", charts.count_axis, lambda p: float(p.verdict.peak_events)),
    ]
    drawn = []
    for name, axis_of, value in views:
        marks = [
            charts.Mark(float(p.verdict.wait_95 or 0), value(p), p.family, str(n), _told(trial, p), id(p) in chosen)
            for n, p in shown
        ]
        axis = axis_of([m.y for m in marks])
        title = f"{trial.query.name}: {name.lower()} against the wait for 95 % of the answers"
        drawn.append(charts.trade_off(marks, waits, axis, "wait for 95 % of the answers", name, title))
    return drawn


def _told(trial: Trial, point: Point) -> str:
    found = point.verdict
    return (
        f"{charts.FAMILIES[point.family][2]}, {point.name}: misses {percent(1 - found.recall)}, "
        f"{percent(found.wrong)} of alarms wrong, 95 % of the answers within {tell(found.wait_95 or 0, trial.unit)}, "
        f"at most {found.peak_events:,} events held"
    )
