"""Charts as inline SVG: no script, no font and no picture from elsewhere.

Rules: a chart is drawn from plain numbers; it has a title for those who cannot see it, and each mark says its figures
when pointed at; colour is never the only difference between two families of marks. Both axes may be *symmetric
logarithmic*: linear up to the smallest value that matters, logarithmic above, so that 0 has a place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log1p

from latecomer.advise.words import tell
from latecomer.units import UNITS

INK, SOFT, FAINT = "#1f2933", "#5f6b7a", "#d9dee5"
#: Colour and marker of each family of levels.
FAMILIES = {
    "kslack": ("#2457a6", "circle", "K-slack"),
    "conservative": ("#17745a", "square", "Conservative"),
    "aggressive": ("#bb4a12", "triangle", "Aggressive"),
}
#: Lengths of time that people know, in nanoseconds: what axes are marked with.
_KNOWN = [10**p for p in range(9)] + [
    n * UNITS[u] for u, ns in {"s": (1, 10), "min": (1, 10), "h": (1, 3, 12), "d": (1, 7, 30, 365)}.items() for n in ns
]


@dataclass(frozen=True, slots=True)
class Axis:
    """A symmetric logarithmic axis from 0 to ``top``, linear up to ``fine``, with marks and their texts."""

    top: float
    fine: float
    marks: Sequence[tuple[float, str]]

    def at(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        return min(log1p(max(value, 0) / self.fine) / log1p(self.top / self.fine), 1.0) if self.top else 0.0

    def shown(self, room: float) -> list[tuple[float, str]]:
        """The marks that are at least ``room`` apart (0 to 1); the one at 0 is always among them."""
        kept: list[tuple[float, str]] = []
        for value, text in self.marks:
            if value <= self.top * 1.0001 and (not kept or self.at(value) - self.at(kept[-1][0]) >= room):
                kept.append((value, text))
        return kept


def time_axis(values: Sequence[float], unit: str) -> Axis:
    """An axis for lengths of time in ``unit`` that holds all ``values``."""
    above = [v for v in values if v > 0]
    top, least = max(above, default=1.0) * 1.1, min(above, default=1.0)
    marks = [(0.0, "0")] + [(n / UNITS[unit], tell(n / UNITS[unit], unit)) for n in _KNOWN if n >= UNITS[unit] * 0.999]
    return Axis(top, max(least, top / 1e4), marks)


def even_marks(span: float, unit: str) -> list[float]:
    """Four to ten even marks from 0 to ``span``, at lengths that people count in."""
    steps = [n * UNITS[u] for u in ("d", "h", "min", "s", "ms", "us", "ns") for n in (100, 50, 30, 20, 15, 10, 5, 2, 1)]
    whole = span * UNITS[unit]
    step = next((s for s in sorted(steps) if whole / s <= 10), max(steps)) / UNITS[unit]
    return [i * step for i in range(int(min(span / step, 40)) + 1)] if step * UNITS[unit] >= UNITS[unit] else [0.0]


def share_axis(values: Sequence[float]) -> Axis:
    """An axis for shares from 0 to 1 that holds all ``values``."""
    top = max([*values, 0.01]) * 1.05
    return Axis(top, 0.001, [(0.0, "0 %"), *((v, f"{v * 100:g} %") for v in (0.001, 0.01, 0.03, 0.1, 0.3, 1.0))])


def count_axis(values: Sequence[float]) -> Axis:
    """A linear axis for counts that holds all ``values``."""
    top = max([*values, 1.0]) * 1.05
    step = next(s for p in range(15) for s in (10**p, 2 * 10**p, 5 * 10**p) if top / s <= 5)
    return Axis(top, top * 1e6, [(float(i * step), f"{i * step:,}") for i in range(6)])


def _svg(width: int, height: int, title: str, body: Sequence[str]) -> str:
    label = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}" class="chart">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def histogram(on_time: int, edges: Sequence[int], counts: Sequence[int], unit: str) -> str:
    """How many events were on time, and how many were how late."""
    width, height, left, top, floor = 1060, 250, 56, 16, 200
    total = max(on_time + sum(counts), 1)
    most = max([on_time, *counts, 1])
    slot = (width - left - 12) / (len(counts) + 1.6)
    body = []
    axis = count_axis([most / total * 100])
    for value, text in axis.shown(0.12):
        y = floor - axis.at(value) * (floor - top)
        body += [_line(left, y, width - 8, y), _text(left - 6, y + 4, f"{text} %", anchor="end")]
    bars = [(on_time, "on time", 0.0, slot * 1.2, "#9aa7b5")]
    for i, count in enumerate(counts):
        told = f"late by {tell(edges[i] + 1, unit)} to {tell(edges[i + 1], unit)}"
        bars.append((count, told, slot * (1.6 + i), slot * 0.86, "#2457a6"))
    for count, told, at, wide, colour in bars:
        tall = axis.at(count / total * 100) * (floor - top)
        tall = max(tall, 1.5) if count else 0
        x = left + at
        body.append(
            f'<rect x="{x:.1f}" y="{floor - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}">'
            f"<title>{count:,} events {escape(told)}</title></rect>"
        )
    body += [_line(left, floor, width - 8, floor, SOFT), _text(left + slot * 0.6, floor + 16, "on time")]
    last = -1e9
    for i in range(len(counts)):
        x = left + slot * (1.6 + i) + slot * 0.86
        if x - last > 72:
            text = f"≤ {tell(edges[i + 1], unit)}"
            body.append(_text(min(x, width - 32), floor + 16, text))
            last = x
    body.append(
        _text((left + width) / 2, height - 10, "lateness: how far behind the clock an event arrived", kind="name")
    )
    return _svg(width, height, "Share of the events by lateness", body)


def over_time(periods: Sequence[dict[str, float]], span: float, unit: str) -> str:
    """Quantiles of lateness over the time of arrival."""
    width, height, left, top, floor = 1060, 290, 56, 16, 236
    axis = time_axis([p["max"] for p in periods] + [p["q50"] for p in periods], unit)
    body = []
    for value, text in axis.shown(0.1):
        y = floor - axis.at(value) * (floor - top)
        body += [_line(left, y, width - 70, y), _text(left - 6, y + 4, text, anchor="end")]
    right = width - 70

    def x_of(at: float) -> float:
        return left + at / max(span, 1) * (right - left)

    styles = {"max": ("#c3cad3", "1.5", ""), "q99": ("#bb4a12", "2", ""), "q90": ("#2457a6", "2", "6 3")}
    styles["q50"] = (INK, "1.5", "2 3")
    names = {"max": "largest", "q99": "99 %", "q90": "90 %", "q50": "half"}
    ends: list[tuple[float, str, str]] = []
    for key, (colour, wide, dash) in reversed(styles.items()):
        points = [(x_of(p["from"]), floor - axis.at(p[key]) * (floor - top)) for p in periods]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide}" stroke-dasharray="{dash}"/>'
        )
        ends.append((points[-1][1], names[key], SOFT if key == "max" else colour))
    low = 1e9
    for y, name, colour in sorted(ends, key=lambda end: -end[0]):
        low = min(y, low - 14)
        body.append(
            f'<text x="{right + 6}" y="{low + 4:.1f}" class="tick" style="fill:{colour};font-weight:600">{name}</text>'
        )
    for p in periods:
        told = (
            f"{tell(p['from'], unit)} after the start: {int(p['events']):,} events, {p['share_late']:.0%} late; "
            f"half ≤ {tell(p['q50'], unit)}, 90 % ≤ {tell(p['q90'], unit)}, 99 % ≤ {tell(p['q99'], unit)}, "
            f"largest {tell(p['max'], unit)}"
        )
        step = (right - left) / max(len(periods), 1)
        body.append(
            f'<rect x="{x_of(p["from"]):.1f}" y="{top}" width="{step:.1f}" height="{floor - top}" fill="transparent">'
            f"<title>{escape(told)}</title></rect>"
        )
    body.append(_line(left, floor, right, floor, SOFT))
    for at in even_marks(span, unit):
        body.append(_text(x_of(at), floor + 16, tell(at, unit)))
    body.append(_text((left + right) / 2, height - 12, "time of arrival, from the start of the sample", kind="name"))
    return _svg(width, height, "Lateness over time: half, 90 %, 99 % of the events and the largest", body)


def reach(quantiles: Sequence[float], axis: Axis, told: str) -> str:
    """A small bar for a table: half, 90 %, 99 % and all of a group's events, on an axis that the rows share."""
    width, height = 220, 14
    half, nine, most, whole = (axis.at(q) * (width - 8) + 4 for q in quantiles)
    body = [
        _line(4, 7, width - 4, 7, "#eef1f4"),
        _line(half, 7, whole, 7, "#c3cad3", 2),
        _line(half, 7, most, 7, "#2457a6", 4),
        f'<circle cx="{half:.1f}" cy="7" r="3" fill="{INK}"/>',
        _line(nine, 2, nine, 12, "#2457a6", 1.5),
        _line(whole, 3, whole, 11, SOFT, 1.5),
    ]
    return _svg(width, height, told, body).replace('class="chart"', 'class="reach"')


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a trade-off: where it lies, what it is, and what it says when pointed at."""

    x: float
    y: float
    family: str
    label: str
    told: str
    chosen: bool


def trade_off(marks: Sequence[Mark], x: Axis, y: Axis, x_name: str, y_name: str, title: str) -> str:
    """Points that are better towards the lower left; those on the Pareto front are filled and joined."""
    width, height, left, top, floor, right = 352, 310, 46, 44, 256, 342
    body = [_text(left - 40, 16, y_name, anchor="start", kind="name")]
    for value, text in y.shown(0.1):
        at = floor - y.at(value) * (floor - top)
        body += [_line(left, at, right, at), _text(left - 6, at + 4, text, anchor="end")]
    for value, text in x.shown(0.15):
        at = left + x.at(value) * (right - left - 12)
        body += [_line(at, floor, at, floor + 4, SOFT), _text(at, floor + 17, text)]
    body += [_line(left, floor, right, floor, SOFT), _text((left + right) / 2, height - 16, x_name, kind="name")]
    edge = on_front([(m.x, m.y) for m in marks])

    def place(m: Mark) -> tuple[float, float]:
        return left + x.at(m.x) * (right - left - 12), floor - y.at(m.y) * (floor - top)

    corners = sorted({place(m) for m, on in zip(marks, edge, strict=True) if on})
    if len(corners) > 1:
        path = f"M{corners[0][0]:.1f},{corners[0][1]:.1f}"
        path += "".join(f"H{b[0]:.1f}V{b[1]:.1f}" for _, b in pairwise(corners))
        body.append(f'<path d="{path}" fill="none" stroke="{SOFT}" stroke-width="1.2" stroke-dasharray="4 3"/>')
    for m, on in sorted(zip(marks, edge, strict=True), key=lambda pair: (pair[1], pair[0].chosen)):
        body.append(_mark(*place(m), m, on))
    taken: list[tuple[float, float]] = []
    for m, on in sorted(zip(marks, edge, strict=True), key=lambda pair: (not pair[0].chosen, not pair[1])):
        px, py = place(m)
        for dx, dy in ((9, -7), (9, 13), (-9, -7), (-9, 13)):
            spot = (px + dx + (3 if dx > 0 else -3), py + dy)
            inside = left - 2 <= spot[0] - 6 and spot[0] + 8 <= right and spot[1] <= floor - 1
            if inside and all(abs(spot[0] - a) > 15 or abs(spot[1] - b) > 11 for a, b in taken):
                kind = "chosen" if m.chosen else "mark" if on else "other"
                body.append(_text(spot[0], spot[1], m.label, kind=kind))
                taken.append(spot)
                break
    return _svg(width, height, title, body)


def _mark(x: float, y: float, mark: Mark, filled: bool) -> str:
    colour, shape, _ = FAMILIES[mark.family]
    style = f'fill="{colour if filled else "#fff"}" stroke="{colour}" stroke-width="1.6"'
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" fill="none" stroke="{INK}" stroke-width="1.6"/>'
    drawn = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {style}/>',
        "square": f'<rect x="{x - 4.6:.1f}" y="{y - 4.6:.1f}" width="9.2" height="9.2" {style}/>',
        "triangle": f'<path d="M{x:.1f},{y - 6:.1f}l5.6,10h-11.2z" {style}/>',
    }[shape]
    return f"<g>{ring if mark.chosen else ''}{drawn}<title>{escape(mark.told)}</title></g>"


def on_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other beats in both directions, less being better.

    >>> on_front([(0, 5), (1, 5), (1, 2)])
    [True, False, True]
    """
    return [not any(a <= x and b <= y and (a < x or b < y) for a, b in points) for x, y in points]
