"""From results to pages: tables in Markdown and plots in SVG, the same bytes for the same results.

``python -m benchmarks.figures`` reads the JSON that parts have kept: ``levels.json`` becomes the page
``docs/choosing-a-level-figures.md`` and ``docs/figures/``. What was not run is left as it is.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, table
from latecomer.errors import MissingDependency

DOCS = Path(__file__).resolve().parent.parent / "docs"

Row = dict[str, Any]

_HEAD = """# Levels compared, in figures

Written by `python -m benchmarks levels` and `python -m benchmarks.figures`; do not edit. How to read it, and what to
choose, is in [choosing a level](choosing-a-level.md).

All levels of a table saw the same arrivals.

- *Precision* and *recall* compare the net output at the end with the true answer on the complete, sorted stream.
- *Taken back* is deletions as a share of insertions.
- *Wait* is from the arrival of a match's last event to the match's leaving, told to within one batch (200 ms for the
  made streams, 5 min for the flights, 10 min for the earthquakes). Matches that leave only because the stream ends do
  not count.
- *Too late* counts the events that broke the level's promise; they are in the late output.
- *For recall 99 %* is the adaptive K-slack, which sets its slack from the lateness seen so far; beside it stands the
  least fixed slack that would have reached that recall, known by hindsight. *For 1 % taken back* is the adaptive
  patience.
- *Max* means the largest lateness of that very stream, which one can only know afterwards. The conservative level has
  the best punctuation there can be, also known afterwards.
"""


def main(results: Path = RESULTS, docs: Path = DOCS) -> int:
    """Write the pages whose results there are; returns 1 when there are none."""
    writers = {"levels": _levels_page}
    found = {part: results / f"{part}.json" for part in writers if (results / f"{part}.json").exists()}
    for part, path in found.items():
        writers[part](json.loads(path.read_text()), docs)
    if not found:
        print(f"no results in {results}: run python -m benchmarks first", file=sys.stderr)
    return 0 if found else 1


def _levels_page(report: dict[str, Any], docs: Path) -> None:
    cases: dict[str, list[Row]] = {}
    for row in report["rows"]:
        cases.setdefault(row["case"], []).append(row)
    (docs / "figures").mkdir(parents=True, exist_ok=True)
    made = {name: of for name, of in cases.items() if of[0]["unit"] == "ms" and name != "earthquakes"}
    _plots(made, docs / "figures")
    page = [_HEAD, "## The made streams at a glance\n"]
    for stem, title in _PLOTS:
        page.append(f"![{title}](figures/levels-{stem}.svg)\n")
    page += [_section(name, of) for name, of in cases.items()]
    (docs / "choosing-a-level-figures.md").write_text("\n".join(page))


def _section(name: str, rows: list[Row]) -> str:
    first = rows[0]
    unit = first["unit"]
    found = (
        f"{percent(first['share_late'])} of the events arrive late, by at most {duration(first['max_lateness'], unit)}"
    )
    lines = [
        f"## {name[0].upper() + name[1:]}\n",
        f"{found}; {first['truth']:,} true matches.\n",
        table(
            ["level", "precision", "recall", "taken back", "wait, median", "wait, 95 %", "too late"],
            [
                [
                    r["level"],
                    percent(r["precision"]),
                    percent(r["recall"]),
                    percent(r["taken_back"]),
                    duration(r["wait_median"], unit),
                    duration(r["wait_95"], unit),
                    f"{r['late']:,}",
                ]
                for r in rows
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def percent(share: float) -> str:
    """Two digits where they matter: nothing short of all is shown as 100 %."""
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    return f"{min(max(share * 100, 0.01), 99.99):.2f} %"


def duration(value: float | None, unit: str) -> str:
    """A time in the unit that suits its size."""
    if value is None:
        return "only at the end"
    seconds = value * {"ms": 0.001, "min": 60.0}[unit]
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


_PLOTS = (
    ("recall", "Recall: the share of true matches found"),
    ("taken-back", "Taken back: deletions as a share of insertions"),
    ("wait", "Wait, 95 %: from a match's last event to its leaving"),
)


def _plots(cases: dict[str, list[Row]], folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("matplotlib", "bench", "drawing the plots") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "latecomer", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    values: dict[str, Callable[[Row], tuple[float, str]]] = {
        "recall": lambda r: (r["recall"], percent(r["recall"])),
        "taken-back": lambda r: (r["taken_back"], percent(r["taken_back"])),
        # the plot's scale is logarithmic from a tenth of a second on; a match told only at the end waits longest of all
        "wait": lambda r: (1e6 if r["wait_95"] is None else r["wait_95"], duration(r["wait_95"], "ms")),
    }
    names = [r["level"] for r in next(iter(cases.values()))]
    for stem, title in _PLOTS:
        cells = [[values[stem](r) for r in rows] for rows in cases.values()]
        figure, axes = pyplot.subplots(figsize=(12, 0.36 * len(cells) + 2.0), layout="constrained")
        norm = {
            "recall": matplotlib.colors.Normalize(0.3, 1),
            "taken-back": matplotlib.colors.Normalize(0, 0.15),
            "wait": matplotlib.colors.SymLogNorm(100, vmin=0, vmax=1e6),
        }[stem]
        colours = "RdYlBu" if stem == "recall" else "RdYlBu_r"
        axes.imshow([[c[0] for c in row] for row in cells], aspect="auto", norm=norm, cmap=colours, alpha=0.6)
        for y, row in enumerate(cells):
            for x, (_, text) in enumerate(row):
                axes.text(x, y, text, ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(names)), [textwrap.fill(n.replace(" s", "\u00a0s"), 13) for n in names])
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(cases)), list(cases))
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, loc="left", fontsize=11)
        figure.savefig(folder / f"levels-{stem}.svg", metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
