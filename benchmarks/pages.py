"""From results to ``docs/performance.md``: each part's table stands between its own marks, and is replaced there.

The same results give the same bytes. What was not run is left as it is. Marks are comments: ``<!-- begin NAME -->`` and
``<!-- end NAME -->``; a page without a part's marks is an error, since its figures would be lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import adversarial, goals, growth, latency, peers, speed, stages, workers
from benchmarks.figures import DOCS
from benchmarks.harness import table
from latecomer.errors import MissingDependency

Results = dict[str, dict[str, Any]]


def load(folder: Path) -> Results:
    """All results that are kept, by part."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def write(results: Path, docs: Path = DOCS) -> None:
    """Write what there is into ``docs/performance.md`` and ``docs/figures/``."""
    found = load(results)
    page = docs / "performance.md"
    text = page.read_text()
    blocks: dict[str, Callable[[Results], str]] = {
        "goals": lambda r: _goals(r, text),
        "speed": _speed,
        "numpy": lambda r: _table(r, "speed-numpy", speed.shown),
        "peers": _peers,
        "stages": lambda r: _table(r, "stages", stages.shown),
        "growth": lambda r: _table(r, "growth", growth.shown),
        "latency": lambda r: _table(r, "latency", latency.shown),
        "workers": lambda r: _table(r, "workers", workers.shown),
        "adversarial": lambda r: _table(r, "adversarial", adversarial.shown),
    }
    for name, block in blocks.items():
        if content := block(found):
            text = replaced(text, name, content)
    page.write_text(text)
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    if "latency" in found:
        _histogram(found["latency"]["rows"][0], docs / "figures" / "latency.svg")
    if any(part.startswith("speed-W") for part in found):
        _curves(found, docs / "figures" / "speed.svg")


def replaced(text: str, name: str, content: str) -> str:
    """The page with ``content`` between the marks of ``name``; raises ValueError when they are not there."""
    old = between(text, name)
    begin, end = _marks(name)
    return text.replace(f"{begin}{old}{end}", f"{begin}\n{content}\n{end}", 1)


def between(text: str, name: str) -> str:
    """What stands between the marks of ``name``; raises ValueError when they are not there."""
    begin, end = _marks(name)
    _, found, rest = text.partition(begin)
    content, closed, _ = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks {begin} … {end}")
    return content


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"


def about(report: dict[str, Any]) -> str:
    """The machine, as a line."""
    machine = report["machine"]
    kernel = report["settings"].get("kernel", machine["kernel"])
    load = "" if machine.get("load") is None else f"; load {machine['load'][0]:.1f} at the end"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, NumPy {machine['numpy']}, PyArrow "
        f"{machine['pyarrow']}, {kernel} kernel, commit {machine['commit']}{load}."
    )


def _table(results: Results, part: str, shown: Callable[[list[dict[str, Any]]], str]) -> str:
    return "" if part not in results else f"{shown(results[part]['rows'])}\n\n{about(results[part])}"


def _goals(results: Results, page: str) -> str:
    """A goal whose part was not run keeps the row that stands on the page."""
    standing = {cells[0]: cells for line in between(page, "goals").splitlines() if len(cells := _cells(line)) == 4}
    rows = [standing.get(row[0], row) if row[2] == goals.UNKNOWN else row for row in goals.table_rows(results)]
    return table(["goal", "reached", "met", "command"], rows) if results else ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _speed(results: Results) -> str:
    found = [report for part, report in results.items() if part.startswith("speed-W")]
    parts = []
    for report in found:
        rows = report["rows"]
        queries = report["settings"]["queries"]
        title = rows[0]["workload"] + (
            f": `{queries[0]}`" if len(queries) == 1 else ": ten queries, then each by itself"
        )
        parts.append(f"**{title}**\n\n{speed.shown(rows)}\n\n{about(report)}\n")
    return "\n".join(parts)


def _peers(results: Results) -> str:
    found = [report for part, report in results.items() if part.startswith("peers-")]
    parts = []
    for report in found:
        settings = report["settings"]
        title = (
            f"{settings['workload']}, {settings['late']:.0%} late: `{settings['query']}`, {settings['events']:,} events"
        )
        parts.append(f"**{title}**\n\n{peers.shown(report['rows'])}\n\n{about(report)}\n")
    return "\n".join(parts)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "drawing the plots") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "latecomer", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    return pyplot


def _histogram(row: dict[str, Any], path: Path) -> None:
    """Changes by latency, on logarithmic scales, with the quantiles that goals speak of."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    edges = [row["bins_ms"][0] / 1.26, *row["bins_ms"], row["bins_ms"][-1] * 1.26]
    axes.stairs(row["histogram"], edges, fill=True, color="#4575b4")
    axes.set(xscale="log", yscale="log", xlabel="ms from the intended arrival to the change", ylabel="changes")
    for name in ("p50", "p99", "p99.9"):
        value = row["changes"][name]
        axes.axvline(value, color="#d73027", linewidth=1)
        axes.text(value, 0.97, f" {name}: {value:.1f} ms", transform=axes.get_xaxis_transform(), va="top", rotation=90)
    _save(pyplot, figure, path)


def _curves(results: Results, path: Path) -> None:
    """Speed over the size of batches: one line for each workload."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for part, report in results.items():
        if part.startswith("speed-W"):
            points = sorted(_aggressive(report["rows"]))
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=report["rows"][0]["workload"])
    axes.set(xscale="log", yscale="log", xlabel="events in a batch", ylabel="events per second of processor time")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(pyplot, figure, path)


def _aggressive(rows: Iterable[dict[str, Any]]) -> list[tuple[int, float]]:
    return [
        (r["batch"], r["events_per_s"])
        for r in rows
        if (r["late"], r["level"]) == (0.1, "aggressive") and "query" not in r
    ]


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
